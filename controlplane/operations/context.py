"""Context of an operation: settings, store, clock, and access to the vault and the search index."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from controlplane.operations.actor import Actor, Forbidden
from controlplane.operations.resolve import Resolver
from controlplane.store.interface import MOST_OPEN

if TYPE_CHECKING:  # a command without a search starts without the modules that search
    from controlplane.clock import Clock
    from controlplane.live_tail import LiveTail
    from controlplane.search.interface import SearchIndex
    from controlplane.secrets import Vault
    from controlplane.settings import Settings
    from controlplane.store.interface import Store


INDEX_HAS: Final = "the index has"  # start of the note on an index that is being filled


@dataclass(frozen=True, slots=True)
class OperationContext:
    settings: Settings
    store: Store
    clock: Clock
    vault: Callable[[], Awaitable[Vault]]
    index: Callable[[], Awaitable[SearchIndex]]
    """Return the index once it holds every event that was accepted before this call, unless `is_behind`."""
    tail: LiveTail
    is_behind: Callable[[], bool] = lambda: False
    """Return True if the index misses too many events for operations to wait for it."""
    percent_indexed: Callable[[], int] = lambda: 100
    """Return the percentage of the stored events that the index has."""
    most_proposals: int = MOST_OPEN
    """Largest number of open proposals that an operator may have in an organisation."""
    about: set[str] = field(default_factory=set)
    """Ids of the organisations that the operation affected, for the operator log."""
    results: list[str] = field(default_factory=list)
    """Change that the operation made, in words, for the operator log."""

    def index_note(self) -> str:
        return f"{INDEX_HAS} {self.percent_indexed()}% of the stored events"

    @property
    def resolve(self) -> Resolver:
        return Resolver(self.store, self.about)

    async def refresh_roles(self, actor: Actor) -> Actor:
        """Return the actor with the roles that its operator account has now.

        Raise Forbidden if the operator is disabled. A user whose commands open the store directly has no
        operator account and keeps every role.
        """
        if actor.is_local:
            return actor
        operator = await self.store.operator(actor.name)
        if operator is None or not operator.enabled:
            raise Forbidden("your operator account has been disabled")
        if not operator.may_act(self.clock.wall_ms()):
            raise Forbidden("your roles from the identity provider have expired: sign in again")
        return replace(actor, roles=operator.roles)
