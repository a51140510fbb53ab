"""The lists of the store, page by page: one query for a page's IDs, then one for the page's rows."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Final, TypeVar

from controlplane.clock import Clock
from controlplane.store.database import Connection, Database, Dialect
from controlplane.store.fleet_tables import count_by_health, page_of_proxies
from controlplane.store.interface import EVERY_ORG, App, Operator, Org, Proxy, Ruleset, RulesetSummary
from controlplane.store.lists import APPS, OPERATORS, ORGS, RULESETS, Condition, Found, among, page_of
from controlplane.store.operators import HELD_ROLES, OPERATOR, operators_of
from controlplane.store.pages import (
    EVERY_APP,
    AppQuery,
    FleetQuery,
    Health,
    HealthBounds,
    ListPage,
    ListQuery,
    Standing,
)
from controlplane.store.registry import ORG, PROXY, RULESET, apps_where, proxies_of

R = TypeVar("R")

_CHANGES: Final = (
    "SELECT ruleset_id, version, created_ms, note,"
    " (SELECT count(*) FROM apps WHERE apps.ruleset_id = ruleset_versions.ruleset_id)"
    " FROM ruleset_versions"
)


class ListTables:
    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def list_orgs(self, query: ListQuery) -> ListPage[Org]:
        def job(connection: Connection) -> ListPage[Org]:
            found = page_of(connection, ORGS, query)
            chosen = among(connection.dialect, "org_id", found.ids)
            rows = connection.rows(f"{ORG} WHERE {chosen.sql}", chosen.parameters)
            return _page(found, {row[0]: Org(*row) for row in rows})

        return await self._database.read(job)

    async def list_proxies(
        self, query: ListQuery, fleet: FleetQuery | None = None, standing: Standing = "active"
    ) -> ListPage[Proxy]:
        def job(connection: Connection) -> ListPage[Proxy]:
            found = page_of_proxies(connection, query, fleet, standing)
            chosen = among(connection.dialect, "proxies.proxy_id", found.ids)
            rows = connection.rows(f"{PROXY} WHERE {chosen.sql}", chosen.parameters)
            return _page(found, {each.proxy_id: each for each in proxies_of(rows)})

        return await self._database.read(job)

    async def list_rulesets(self, query: ListQuery) -> ListPage[RulesetSummary]:
        def job(connection: Connection) -> ListPage[RulesetSummary]:
            found = page_of(connection, RULESETS, query)
            chosen = among(connection.dialect, "ruleset_id", found.ids)
            rows = connection.rows(f"{RULESET} AND {chosen.sql}", chosen.parameters)
            active = {row[0]: Ruleset(*row) for row in rows}
            changes = connection.rows(f"{_CHANGES} WHERE {chosen.sql}", chosen.parameters)
            listed = {
                ruleset_id: RulesetSummary(active[ruleset_id], *change)
                for ruleset_id, version, *change in changes
                if version == active[ruleset_id].version
            }
            return _page(found, listed)

        return await self._database.read(job)

    async def list_apps(self, query: ListQuery, chosen_apps: AppQuery = EVERY_APP) -> ListPage[App]:
        now = self._clock.wall_ms()

        def job(connection: Connection) -> ListPage[App]:
            found = page_of(connection, APPS, query, list(_of_apps(chosen_apps)))
            chosen = among(connection.dialect, "app_id", found.ids)
            apps = apps_where(connection, chosen.sql, chosen.parameters, now)
            return _page(found, {app.app_id: app for app in apps})

        return await self._database.read(job)

    async def list_operators(
        self, query: ListQuery, name: str | None, org_id: str | None = None
    ) -> ListPage[Operator]:
        def job(connection: Connection) -> ListPage[Operator]:
            wanted: list[Condition] = []
            if query.org_ids is not None:
                held = _has_role(connection.dialect, query.org_ids)
                wanted.append(Condition(f"{held.sql} OR lower(name) = lower(?)", (*held.parameters, name)))
            if org_id is not None:
                wanted.append(_has_role(connection.dialect, {org_id, EVERY_ORG}))
            found = page_of(connection, OPERATORS, query, wanted)
            chosen = among(connection.dialect, "operators.operator_id", found.ids)
            rows = connection.rows(f"{OPERATOR} WHERE {chosen.sql}", chosen.parameters)
            return _page(found, {each.operator_id: each for each in operators_of(rows)})

        return await self._database.read(job)

    async def count_proxies(
        self, bounds: HealthBounds, org_ids: frozenset[str] | None, search: str | None = None
    ) -> Mapping[Health, int]:
        return await self._database.read(
            lambda connection: count_by_health(connection, bounds, org_ids, search)
        )


def _of_apps(chosen: AppQuery) -> Iterator[Condition]:
    if chosen.ruleset_id is not None:
        yield Condition("apps.ruleset_id = ?", (chosen.ruleset_id,))
    if chosen.shadow_ruleset_id is not None:
        yield Condition("apps.shadow_ruleset_id = ?", (chosen.shadow_ruleset_id,))
    if chosen.unused is None:
        return
    counted = "SELECT 1 FROM orgs WHERE orgs.org_id = apps.org_id AND counted_since_ms"
    used = "SELECT 1 FROM app_uses WHERE app_uses.app_id = apps.app_id"
    if chosen.unused == "never":
        yield Condition(f"NOT EXISTS ({used}) AND EXISTS ({counted} <= apps.created_ms)", ())
        return
    since = chosen.idle_since_ms
    yield Condition(
        f"apps.created_ms < ? AND NOT EXISTS ({used} AND last_ms >= ?) AND EXISTS ({counted} < ?)",
        (since, since, since),
    )


def _has_role(dialect: Dialect, org_ids: Collection[str]) -> Condition:
    held = among(dialect, "held.org_id", org_ids)
    return Condition(
        f"EXISTS (SELECT 1 FROM ({HELD_ROLES}) AS held WHERE held.operator_id = operators.operator_id"  # noqa: S608
        f" AND (held.mapping IS NULL) = (operators.issuer IS NULL) AND {held.sql})",
        held.parameters,
    )


def _page(found: Found, rows: Mapping[str, R]) -> ListPage[R]:
    return ListPage(
        tuple(rows[each] for each in found.ids), found.next, found.total, found.before, found.previous
    )
