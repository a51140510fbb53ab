"""Resolve what an operator refers to: an id or a name becomes the row, among those that the actor may see.

A row that the actor may not look at is not found, so that its existence is not revealed. For the same reason
it does not make a name ambiguous. A row that is visible, but takes a higher role, is forbidden. Each row is
noted for the operator log before the role is required: the line of a refusal names the organisation too.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from controlplane.operations.actor import EVERY_ORG, Actor, Role
from controlplane.store.database import is_text
from controlplane.store.interface import App, Conflict, NotFound, Operator, Org, Proxy, Ruleset, Store
from controlplane.store.pages import ListPage, ListQuery, all_rows

T = TypeVar("T", Org, Proxy, Ruleset, App)
OfOrg = TypeVar("OfOrg", Ruleset, App)


class Resolver:
    """Rows by reference, and the rows that an actor may see.

    Methods that take a reference raise NotFound if the actor may see no such row, Conflict if several have
    that name, and Forbidden if the actor lacks the role.
    """

    def __init__(self, store: Store, about: set[str]) -> None:
        """Add the id of each organisation that an operation turns out to be about to `about`."""
        self._store = store
        self._about = about

    async def org(self, actor: Actor, role: Role, reference: str) -> Org:
        """Return the organisation with that id or name."""
        found = [each for each in await self._store.find_orgs(reference) if actor.may("viewer", each.org_id)]
        org = _only(found, "organisation", reference)
        self._require(actor, role, org.org_id)
        return org

    async def org_id(self, actor: Actor, reference: str | None) -> str | None:
        """Return the id of an organisation that the actor may look at; None, without a reference."""
        return None if reference is None else (await self.org(actor, "viewer", reference)).org_id

    async def orgs(self, actor: Actor, reference: str | None = None) -> list[Org]:
        """Return the organisations that the actor may look at, or the one with that id or name."""
        if reference is not None:
            return [await self.org(actor, "viewer", reference)]
        return [each for each in await self._store.orgs() if actor.may("viewer", each.org_id)]

    async def sight(self, actor: Actor, reference: str | None) -> frozenset[str] | None:
        """Return the organisations whose rows a list has: the one with that id or name, or all that the actor
        may look at. None: every one."""
        return (
            actor.sees
            if reference is None
            else frozenset({(await self.org(actor, "viewer", reference)).org_id})
        )

    async def org_names(self, actor: Actor, org_ids: Collection[str]) -> dict[str, str]:
        """Return the names of those organisations that the actor may look at, by id."""
        query = ListQuery(ids=frozenset(filter(is_text, org_ids)), org_ids=actor.sees)
        return {org.org_id: org.name for org in await all_rows(self._store.list_orgs, query)}

    async def names(self, actor: Actor, ids: Collection[str]) -> dict[str, str]:
        """Return the names of the apps, rulesets, proxies and operators with these ids, by id, as far as the
        actor may look at them."""
        query = ListQuery(ids=frozenset(filter(is_text, ids)), org_ids=actor.sees)
        rulesets = await all_rows(self._store.list_rulesets, query)
        operators = await all_rows(partial(self.list_operators, actor), replace(query, org_ids=None))
        return (
            await self.app_names(actor, ids)
            | await self.proxy_names(actor, ids)
            | {each.ruleset.ruleset_id: each.ruleset.name for each in rulesets}
            | {operator.operator_id: operator.name for operator in operators}
        )

    async def app_names(self, actor: Actor, app_ids: Collection[str]) -> dict[str, str]:
        """Return the names of those apps that the actor may look at, by id."""
        query = ListQuery(ids=frozenset(filter(is_text, app_ids)), org_ids=actor.sees)
        return {app.app_id: app.name for app in await all_rows(self._store.list_apps, query)}

    async def proxy_names(self, actor: Actor, proxy_ids: Collection[str]) -> dict[str, str]:
        """Return the names of those proxies that the actor may look at, by id."""
        query = ListQuery(ids=frozenset(filter(is_text, proxy_ids)), org_ids=actor.sees)
        return {proxy.proxy_id: proxy.name for proxy in await all_rows(self._store.list_proxies, query)}

    async def ruleset(self, actor: Actor, role: Role, reference: str, org: str | None) -> Ruleset:
        """Return the ruleset with that id or name, in one organisation or in all."""
        listed = await self._store.find_rulesets(reference, await self.org_id(actor, org))
        ruleset = _only(_visible(actor, listed), "ruleset", reference)
        self._require(actor, role, ruleset.org_id)
        return ruleset

    async def rulesets(self, actor: Actor, org: str | None) -> list[Ruleset]:
        """Return the rulesets that the actor may look at, in one organisation or in all."""
        return _visible(actor, await self._store.rulesets(await self.org_id(actor, org)))

    async def app(self, actor: Actor, role: Role, reference: str, org: str | None) -> App:
        """Return the application with that id, client id or name, in one organisation or in all."""
        listed = await self._store.find_apps(reference, await self.org_id(actor, org))
        app = _only(_visible(actor, listed), "app", reference)
        self._require(actor, role, app.org_id)
        return app

    async def apps(self, actor: Actor, org: str | None) -> list[App]:
        """Return the applications that the actor may look at, in one organisation or in all."""
        return _visible(actor, await self._store.apps(await self.org_id(actor, org)))

    async def proxy(self, actor: Actor, role: Role, reference: str) -> Proxy:
        """Return the proxy with that id or name.

        A viewer in one of its organisations may look at it. The other roles are required in all of them.
        """
        found = _visible_proxies(actor, await self._store.find_proxies(reference))
        proxy = _only(found, "proxy", reference)
        self._about.update(proxy.org_ids)
        if role != "viewer":
            for org_id in proxy.org_ids or (None,):
                actor.require(role, org_id)
        return proxy

    async def proxies(self, actor: Actor, org: str | None) -> list[Proxy]:
        """Return the proxies that the actor may look at, of one organisation or of all."""
        return _visible_proxies(actor, await self._store.proxies(await self.org_id(actor, org)))

    async def operator(self, actor: Actor, reference: str, *, role_in: str = EVERY_ORG) -> Operator:
        """Return the operator with that id or name; in the name, the letters A-Z and a-z are alike.

        `role_in` is the organisation in which the operation changes a role. The line in the operator log is
        about that organisation alone, so that everybody who may look at it sees who got which role there,
        wherever else the operator has one.
        """
        operator = await self._store.operator(reference)
        if operator is None or not _may_see(actor, operator):
            raise NotFound(f"there is no operator {reference}")
        if role_in == EVERY_ORG:
            self._about.update(org_id for org_id in operator.roles if org_id != EVERY_ORG)
        return operator

    async def list_operators(
        self, actor: Actor, query: ListQuery, org_id: str | None = None
    ) -> ListPage[Operator]:
        """Return a page of the operators that the actor may look at.

        `org_id`: only those with a role there or in every organisation.
        """
        if actor.may("admin", None):
            return await self._store.list_operators(query, None, org_id)
        administered = {each for each, role in actor.roles.items() if role == "admin"}
        if administered:  # any admin sees the operators with a role in every organisation
            administered.add(EVERY_ORG)
        seen = replace(query, org_ids=frozenset(administered))
        return await self._store.list_operators(seen, actor.name, org_id)

    def _require(self, actor: Actor, role: Role, org_id: str) -> None:
        self._about.add(org_id)
        actor.require(role, org_id)


def _visible(actor: Actor, rows: Sequence[OfOrg]) -> list[OfOrg]:
    return [each for each in rows if actor.may("viewer", each.org_id)]


def _visible_proxies(actor: Actor, proxies: Sequence[Proxy]) -> list[Proxy]:
    return [
        proxy for proxy in proxies if any(actor.may("viewer", org_id) for org_id in proxy.org_ids or (None,))
    ]


def _may_see(actor: Actor, operator: Operator) -> bool:
    if actor.is_named(operator.name) or actor.may("admin", None):
        return True
    administers = any(role == "admin" for role in actor.roles.values())
    return any(
        administers if org_id == EVERY_ORG else actor.may("admin", org_id) for org_id in operator.roles
    )


def _only(found: Sequence[T], kind: str, reference: str) -> T:
    if not found:
        raise NotFound(f"there is no {kind} {reference}")
    if len(found) > 1:
        raise Conflict(f"{len(found)} organisations have {kind} {reference}: name one with --org")
    return found[0]
