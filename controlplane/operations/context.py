"""The context of an operation: the settings, the store, the clock, and what opens vault and index."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from controlplane.operations.actor import Actor, Forbidden, Role
from controlplane.registry import only
from controlplane.store.interface import App, NotFound, Org, Proxy, Ruleset

if TYPE_CHECKING:  # a command that needs no search starts without what searches
    from controlplane.clock import Clock
    from controlplane.registry import Registry
    from controlplane.search.interface import SearchIndex
    from controlplane.secrets import Vault
    from controlplane.settings import Settings
    from controlplane.store.interface import Store
    from controlplane.tail import Tail


@dataclass(frozen=True, slots=True)
class OperationContext:
    settings: Settings
    store: Store
    registry: Registry
    clock: Clock
    vault: Callable[[], Awaitable[Vault]]
    index: Callable[[], Awaitable[SearchIndex]]
    """The index with everything in it that was accepted before this call, or else `is_behind`."""
    tail: Tail
    is_behind: Callable[[], bool] = lambda: False
    """Whether so much is missing from the index that nobody waits for it."""
    about: set[str] = field(default_factory=set)
    """The organisations that the operation under way turned out to be about, for the record."""

    async def as_now(self, actor: Actor) -> Actor:
        """With the roles of by now. Raises Forbidden where they may do nothing any more. Who runs commands
        beside the store is no operator."""
        if actor.is_local:
            return actor
        operator = await self.store.operator(actor.name)
        if operator is None or not operator.enabled:
            raise Forbidden("this operator was disabled meanwhile")
        return replace(actor, roles=operator.roles)

    async def org(self, actor: Actor, role: Role, reference: str) -> Org:
        """The organisation, by id or name. To who may not even look at it, it is one that never was."""
        org = await self.registry.org(reference)
        if not actor.may("viewer", org.org_id):
            raise NotFound(f"there is no organisation {reference}")
        self._judged(actor, role, org.org_id)
        return org

    async def orgs(self, actor: Actor, reference: str | None = None) -> list[Org]:
        """The organisations that the actor may look at, or the one of them that is named."""
        if reference is not None:
            return [await self.org(actor, "viewer", reference)]
        return [org for org in await self.store.orgs() if actor.may("viewer", org.org_id)]

    async def ruleset(self, actor: Actor, role: Role, reference: str, org: str | None) -> Ruleset:
        """The ruleset, by id or name, among those that the actor may look at."""
        found = (
            each for each in await self.rulesets(actor, org) if reference in (each.ruleset_id, each.name)
        )
        ruleset = only(found, "ruleset", reference)
        self._judged(actor, role, ruleset.org_id)
        return ruleset

    async def rulesets(self, actor: Actor, org: str | None) -> list[Ruleset]:
        org_id = None if org is None else (await self.org(actor, "viewer", org)).org_id
        return [each for each in await self.store.rulesets(org_id) if actor.may("viewer", each.org_id)]

    async def app(self, actor: Actor, role: Role, reference: str, org: str | None) -> App:
        """The app identity, by id, client id or name, among those that the actor may look at."""
        found = (
            each
            for each in await self.apps(actor, org)
            if reference in (each.app_id, each.name, each.client_id)
        )
        app = only(found, "app", reference)
        self._judged(actor, role, app.org_id)
        return app

    async def apps(self, actor: Actor, org: str | None) -> list[App]:
        org_id = None if org is None else (await self.org(actor, "viewer", org)).org_id
        return [each for each in await self.store.apps(org_id) if actor.may("viewer", each.org_id)]

    async def proxy(self, actor: Actor, role: Role, reference: str) -> Proxy:
        """The proxy, by id or name: who may look at one of its organisations may look at it, and any other
        role is asked for in all of them."""
        found = (each for each in await self.proxies(actor, None) if reference in (each.proxy_id, each.name))
        proxy = only(found, "proxy", reference)
        self.about.update(proxy.org_ids)
        if role != "viewer":
            for org_id in proxy.org_ids or (None,):
                actor.require(role, org_id)
        return proxy

    async def proxies(self, actor: Actor, org: str | None) -> list[Proxy]:
        """Those of an organisation, or of all that the actor may look at."""
        org_id = None if org is None else (await self.org(actor, "viewer", org)).org_id
        return [
            proxy
            for proxy in await self.store.proxies(org_id)
            if any(actor.may("viewer", each) for each in proxy.org_ids or (None,))
        ]

    def _judged(self, actor: Actor, role: Role, org_id: str) -> None:
        self.about.add(org_id)
        actor.require(role, org_id)
