"""Resolve the references that operators type: find the row with the given ID or name.

The resolver finds only rows that the actor may look at, so that the existence of other rows stays secret.
Rows that the actor may not see do not make a name ambiguous, because the ambiguity would reveal that these
rows exist. If a visible row requires a higher role than the actor has, the result is Forbidden.

Before the resolver checks the actor's role, it records the organisation to which the row belongs. The
operator log therefore names this organisation even if the operation is refused.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Final, TypeVar

from controlplane.operations.actor import EVERY_ORG, Actor, Role
from controlplane.store.database import is_text
from controlplane.store.interface import (
    App,
    Conflict,
    NotFound,
    Operator,
    Org,
    Proxy,
    Ruleset,
    Store,
    Tombstone,
    TombstoneKind,
    WasDeleted,
)
from controlplane.store.pages import ListPage, ListQuery, all_rows
from proxy.wire.audit_event import rfc3339

_MOST_LETTERS_OFF: Final = 3  # letters by which the intended name may be longer or shorter
_MOST_COMPARED: Final = 1000  # names to compare; more would delay other requests
_NOUNS: Final[Mapping[TombstoneKind, str]] = {
    "org": "organisation",
    "app": "app",
    "ruleset": "ruleset",
    "proxy": "proxy",
    "operator": "operator",
}
_LABEL: Final = re.compile(r"(.+) \(deleted [0-9-]{10}\)")
_LIKENESS: Final = 0.75  # share of common letters; below this, a suggestion would often be wrong

T = TypeVar("T", Org, Proxy, Ruleset, App)
OfOrg = TypeVar("OfOrg", Ruleset, App)


class Resolver:
    """Class that finds store rows by ID or name, limited to the rows that an actor has permission to see.

    A method that takes the name or ID of a row raises NotFound if the actor can see no such row. The method
    raises Conflict if several rows have the name, and Forbidden if the actor lacks the required role.
    """

    def __init__(self, store: Store, about: set[str]) -> None:
        """Create a resolver that adds the ID of each found row's organisation to the set `about`."""
        self._store = store
        self._about = about

    async def org(self, actor: Actor, role: Role, reference: str) -> Org:
        """Return the organisation whose ID or name is the reference."""
        found = [each for each in await self._store.find_orgs(reference) if actor.may("viewer", each.org_id)]
        if not found:
            known = [org.name for org in await self.orgs(actor)]
            raise await self._missing(actor, "org", reference, known)
        org = _only(found, "organisation", reference)
        self._require(actor, role, org.org_id)
        return org

    async def org_id(self, actor: Actor, reference: str | None) -> str | None:
        """Return the ID of the visible organisation that the reference names, or None without a reference."""
        return None if reference is None else (await self.org_of_events(actor, reference)).org_id

    async def org_of_events(self, actor: Actor, reference: str) -> Org:
        """Return the organisation whose ID or name is the reference.

        The result may be a deleted organisation that still has events.
        """
        try:
            return await self.org(actor, "viewer", reference)
        except NotFound:
            dead = await self.deleted(actor, "org", reference)
            if len(dead) != 1:  # several deleted organisations had the name; only their ids are unique
                raise
        self._about.add(dead[0].id)
        return dead[0].as_org()

    async def orgs_of_events(self, actor: Actor, reference: str | None = None) -> list[Org]:
        """Return one organisation by its ID or name, or all visible organisations without a reference.

        The result includes deleted organisations that still have events.
        """
        if reference is not None:
            return [await self.org_of_events(actor, reference)]
        dead = await self._store.tombstones_of("org") if actor.may("viewer", None) else []
        return [*await self.orgs(actor), *(each.as_org() for each in dead)]

    async def orgs(self, actor: Actor, reference: str | None = None) -> list[Org]:
        """Return one organisation by its ID or name, or all visible organisations without a reference."""
        if reference is not None:
            return [await self.org(actor, "viewer", reference)]
        return [each for each in await self._store.orgs() if actor.may("viewer", each.org_id)]

    async def sight(self, actor: Actor, reference: str | None) -> frozenset[str] | None:
        """Return the organisations to which a list is limited, or None for all organisations.

        The list is limited to one organisation if a reference is given, and otherwise to all organisations
        that the actor may look at.
        """
        return (
            actor.sees
            if reference is None
            else frozenset({(await self.org(actor, "viewer", reference)).org_id})
        )

    async def org_names(self, actor: Actor, org_ids: Collection[str]) -> dict[str, str]:
        """Return organisation names by ID, without organisations that the actor may not look at."""
        query = ListQuery(ids=frozenset(filter(is_text, org_ids)), org_ids=actor.sees)
        found = {org.org_id: org.name for org in await all_rows(self._store.list_orgs, query)}
        return found | await self._deleted_names(actor, org_ids, found, "org")

    async def names(self, actor: Actor, ids: Collection[str]) -> dict[str, str]:
        """Return the names of objects by ID, without the objects that the actor may not look at.

        The parameter `ids` may contain the IDs of applications, rulesets, proxies and operators.
        """
        query = ListQuery(ids=frozenset(filter(is_text, ids)), org_ids=actor.sees)
        rulesets = await all_rows(self._store.list_rulesets, query)
        operators = await all_rows(partial(self.list_operators, actor), replace(query, org_ids=None))
        found = (
            await self.app_names(actor, ids)
            | await self.proxy_names(actor, ids)
            | {each.ruleset.ruleset_id: each.ruleset.name for each in rulesets}
            | {operator.operator_id: operator.name for operator in operators}
        )
        return found | await self._deleted_names(actor, ids, found, "ruleset", "operator")

    async def app_names(self, actor: Actor, app_ids: Collection[str]) -> dict[str, str]:
        """Return app names by ID, without apps that the actor may not look at."""
        found = {app.app_id: app.name for app in await self.apps_with(actor, app_ids)}
        return found | await self._deleted_names(actor, app_ids, found, "app")

    async def apps_with(self, actor: Actor, app_ids: Collection[str]) -> Sequence[App]:
        """Return the apps with these IDs, without the apps that the actor may not look at."""
        query = ListQuery(ids=frozenset(filter(is_text, app_ids)), org_ids=actor.sees)
        return await all_rows(self._store.list_apps, query)

    async def proxy_names(self, actor: Actor, proxy_ids: Collection[str]) -> dict[str, str]:
        """Return proxy names by ID, without proxies that the actor may not look at."""
        query = ListQuery(ids=frozenset(filter(is_text, proxy_ids)), org_ids=actor.sees)
        read = partial(self._store.list_proxies, standing="any")
        found = {proxy.proxy_id: proxy.name for proxy in await all_rows(read, query)}
        return found | await self._deleted_names(actor, proxy_ids, found, "proxy")

    async def ruleset(self, actor: Actor, role: Role, reference: str, org: str | None) -> Ruleset:
        """Return a ruleset by its ID or name, in one organisation or in all organisations."""
        listed = await self._store.find_rulesets(reference, await self.org_id(actor, org))
        found = _visible(actor, listed)
        if not found:
            known = await self.rulesets(actor, org)
            raise await self._missing(actor, "ruleset", reference, [each.name for each in known])
        ruleset = _only(found, "ruleset", reference)
        self._require(actor, role, ruleset.org_id)
        return ruleset

    async def rulesets(self, actor: Actor, org: str | None) -> list[Ruleset]:
        """Return the visible rulesets of one organisation or of all organisations."""
        return _visible(actor, await self._store.rulesets(await self.org_id(actor, org)))

    async def app(self, actor: Actor, role: Role, reference: str, org: str | None) -> App:
        """Return an app by its ID, client ID or name, in one organisation or in all organisations."""
        listed = await self._store.find_apps(reference, await self.org_id(actor, org))
        found = _visible(actor, listed)
        if not found:
            known = [each.name for each in await self.apps(actor, org)]
            raise await self._missing(actor, "app", reference, known)
        app = _only(found, "app", reference)
        self._require(actor, role, app.org_id)
        return app

    async def apps(self, actor: Actor, org: str | None) -> list[App]:
        """Return the visible apps of one organisation or of all organisations."""
        return _visible(actor, await self._store.apps(await self.org_id(actor, org)))

    async def proxy(self, actor: Actor, role: Role, reference: str) -> Proxy:
        """Return the proxy whose ID or name is the reference.

        An operator who is viewer in one of the proxy's organisations may look at the proxy. A role above
        viewer is required in all organisations of the proxy.
        """
        found = _visible_proxies(actor, await self._store.find_proxies(reference))
        if not found:
            known = [each.name for each in await self.proxies(actor, None)]
            raise await self._missing(actor, "proxy", reference, known)
        proxy = _only(found, "proxy", reference)
        self._about.update(proxy.org_ids)
        if role != "viewer":
            for org_id in proxy.org_ids or (None,):
                actor.require(role, org_id)
        return proxy

    async def proxies(self, actor: Actor, org: str | None) -> list[Proxy]:
        """Return the visible proxies of one organisation or of all organisations."""
        return _visible_proxies(actor, await self._store.proxies(await self.org_id(actor, org)))

    async def operator(self, actor: Actor, reference: str, *, role_in: str = EVERY_ORG) -> Operator:
        """Return an operator by ID or name; in names, A-Z and a-z compare equal.

        `role_in` is the organisation in which the operation changes a role of the operator. If `role_in` is
        given, the line in the operator log names only this organisation, not the operator's other
        organisations. In the operator log, every operator with permission to view the organisation `role_in`
        can see that the role changed.
        """
        operator = await self._store.operator(reference)
        if operator is None or not _may_see(actor, operator):
            query = ListQuery()
            known = await all_rows(partial(self.list_operators, actor), query)
            raise await self._missing(actor, "operator", reference, [each.name for each in known])
        if role_in == EVERY_ORG:
            self._about.update(org_id for org_id in operator.roles if org_id != EVERY_ORG)
        return operator

    async def list_operators(
        self, actor: Actor, query: ListQuery, org_id: str | None = None
    ) -> ListPage[Operator]:
        """Return a page of the operators that the actor may look at.

        `org_id` limits the page to operators with a role in that organisation, or with a role in every
        organisation.
        """
        if actor.may("admin", None):
            return await self._store.list_operators(query, None, org_id)
        administered = {each for each, role in actor.roles.items() if role == "admin"}
        if administered:  # any admin sees the operators with a role in every organisation
            administered.add(EVERY_ORG)
        seen = replace(query, org_ids=frozenset(administered))
        return await self._store.list_operators(seen, actor.name, org_id)

    # Deleted things

    async def deleted(self, actor: Actor, kind: TombstoneKind, reference: str) -> list[Tombstone]:
        """Return visible deleted objects with the given ID or name, latest deletion first."""
        found = [each for each in await self._store.tombstones((reference,)) if _may_see_deleted(actor, each)]
        found = found or await self.deleted_named(actor, reference)
        return [each for each in found if each.kind == kind]

    async def app_of_events(self, org_id: str, app_id: str) -> App | None:
        """Return an app by its ID, with its last ruleset, even if the app was deleted."""
        for app in await self._store.find_apps(app_id, org_id):
            if app.app_id == app_id:
                return app
        dead = [each for each in await self._store.tombstones((app_id,)) if each.kind == "app"]
        return (await self._as_apps(dead))[0] if dead and org_id in dead[0].org_ids else None

    async def apps_of_events(self, org_id: str) -> list[App]:
        """Return all apps of an organisation, including deleted ones."""
        dead = [each for each in await self._store.tombstones_of("app") if org_id in each.org_ids]
        return [*await self._store.apps(org_id), *await self._as_apps(dead)]

    async def _as_apps(self, dead: Sequence[Tombstone]) -> list[App]:
        ids = {each.ruleset_id for each in dead if each.ruleset_id is not None}
        rulesets = await all_rows(self._store.list_rulesets, ListQuery(ids=frozenset(ids)))
        names = {each.id: each.label for each in await self._store.tombstones(ids)}
        names |= {each.ruleset.ruleset_id: each.ruleset.name for each in rulesets}
        return [each.as_app(names.get(each.ruleset_id or "", "")) for each in dead]

    async def deleted_named(self, actor: Actor, name: str) -> list[Tombstone]:
        """Return the deleted objects that the actor may see and that have exactly the given name or label."""
        found = await self._store.tombstones_named(name)
        if (label := _LABEL.fullmatch(name)) is not None:
            found += [each for each in await self._store.tombstones_named(label[1]) if each.label == name]
        return [each for each in found if _may_see_deleted(actor, each)]

    async def all_deleted(self, actor: Actor, kinds: Collection[str]) -> list[Tombstone]:
        """Return all deleted objects of the given kinds that the actor may see."""
        found = [each for kind in _NOUNS if kind in kinds for each in await self._store.tombstones_of(kind)]
        return [each for each in found if _may_see_deleted(actor, each)]

    async def _deleted_names(
        self, actor: Actor, ids: Collection[str], known: Collection[str], *kinds: TombstoneKind
    ) -> dict[str, str]:
        """Return the names of deleted objects by ID, for the IDs in `ids`."""
        dead = await self._store.tombstones([each for each in ids if each not in known])
        return {each.id: each.label for each in dead if each.kind in kinds and _may_see_deleted(actor, each)}

    async def _missing(
        self, actor: Actor, kind: TombstoneKind, reference: str, names: Iterable[str]
    ) -> NotFound:
        """Return the NotFound error for a reference that matches no visible row.

        If a deleted object had the given name, the error message states this.
        """
        noun = _NOUNS[kind]
        for each in await self.deleted(actor, kind, reference):
            when = rfc3339(each.deleted_ms)
            return WasDeleted(f"{noun} {each.name} was deleted on {when} by {each.deleted_by}", each)
        return _unknown(noun, reference, names)

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


def _may_see_deleted(actor: Actor, dead: Tombstone) -> bool:
    role: Role = "admin" if dead.kind == "operator" else "viewer"
    return actor.may(role, None) or any(actor.may(role, org_id) for org_id in dead.org_ids)


def _only(found: Sequence[T], kind: str, reference: str) -> T:
    if len(found) > 1:
        raise Conflict(
            f"{len(found)} organisations have {kind} {reference}: name the organisation with --org"
        )
    return found[0]


def _unknown(kind: str, reference: str, names: Iterable[str]) -> NotFound:
    """Return the NotFound error for a reference that matches no visible row.

    The error message suggests the visible name that is most similar to the given name.
    """
    meant = _nearest(reference, names)
    return NotFound(f"there is no {kind} {reference}" + (f": did you mean {meant}?" if meant else ""))


def _nearest(reference: str, names: Iterable[str]) -> str | None:
    folded = reference.casefold()
    similar = {
        name.casefold(): name for name in names if abs(len(name) - len(reference)) <= _MOST_LETTERS_OFF
    }
    candidates = list(islice(similar, _MOST_COMPARED))
    near = difflib.get_close_matches(folded, candidates, n=1, cutoff=_LIKENESS)
    return similar[near[0]] if near else None
