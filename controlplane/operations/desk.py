"""What operations work with: the store and what stands around it, opened when first asked for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from controlplane.clock import Clock
from controlplane.operations.actor import Actor, Role
from controlplane.registry import Registry
from controlplane.search.interface import SearchIndex
from controlplane.secrets import Vault
from controlplane.settings import Settings
from controlplane.store.interface import NotFound, Org, Store
from controlplane.tail import Tail


@dataclass(frozen=True, slots=True)
class Desk:
    settings: Settings
    store: Store
    registry: Registry
    clock: Clock
    vault: Callable[[], Awaitable[Vault]]
    index: Callable[[], Awaitable[SearchIndex]]
    """The index with everything in it that was accepted before this call."""
    tail: Tail

    async def org(self, actor: Actor, role: Role, reference: str) -> Org:
        """The organisation, by id or name. To who may not even look at it, it is one that never was."""
        org = await self.registry.org(reference)
        if not actor.may("viewer", org.org_id):
            raise NotFound(f"there is no organisation {reference}")
        actor.require(role, org.org_id)
        return org

    async def orgs(self, actor: Actor, reference: str | None = None) -> list[Org]:
        """The organisations that the actor may look at, or the one of them that is named."""
        if reference is not None:
            return [await self.org(actor, "viewer", reference)]
        return [org for org in await self.store.orgs() if actor.may("viewer", org.org_id)]
