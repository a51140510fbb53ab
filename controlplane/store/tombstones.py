"""Deletions of objects, and the tombstones that keep the names of deleted objects for audit events."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final

import msgspec

from controlplane.clock import Clock
from controlplane.store.database import ALL, REGISTRY, Connection, Database, is_text
from controlplane.store.interface import (
    RETENTION_MS,
    Acknowledgement,
    Conflict,
    NotFound,
    Operator,
    Org,
    Proxy,
    Ruleset,
    Tombstone,
    TombstoneKind,
)
from controlplane.store.lists import among
from controlplane.store.losses import acknowledge
from controlplane.store.operators import OPERATOR, keeping_an_admin, operators_of
from controlplane.store.registry import ORG, PROXY, RULESET, apps_where, proxies_of
from controlplane.store.schemas import forget_unused_schemas

_COLUMNS: Final = (
    "id, kind, name, org_ids, client_id, ruleset_id, retention, created_ms, deleted_ms, deleted_by"
)
_FOUND: Final = f"SELECT {_COLUMNS} FROM tombstones"  # noqa: S608 - our own names
_MOST_NAMED: Final = 10  # users of a ruleset that an error names
# An event of a deleted thing may be made until each proxy has synced, and the clock of a proxy may be wrong.
_LATE_MS: Final = 30 * 86_400_000
_OF_PROXY: Final = (
    *("ending_keys", "owed_events", "sync_state", "enforced_versions", "metrics", "proxy_orgs", "proxies"),
)
_OF_APP: Final = (
    *("stops", "app_secrets", "app_credentials", "credential_uses", "app_uses", "app_days", "apps"),
)
# Rows that show whether all events of a deleted proxy were received.
_TRAIL: Final = (
    *("heartbeats", "sequences", "sequence_gaps", "implausible_times", "reused_batch_ids"),
    "acknowledged_losses",
)
_WITHDRAWN: Final = (
    "UPDATE proposals SET state = 'rejected', decided_by = ?, decided_ms = ?, reason = ? WHERE state = 'open'"
)


class TombstoneTables:
    _database: Database
    _clock: Clock

    async def delete_app(self, app_id: str, by: str) -> Tombstone:
        def job(connection: Connection) -> Tombstone:
            now = self._clock.wall_ms()
            app = _only(apps_where(connection, "app_id = ?", (app_id,), now), "app")
            made = Tombstone(
                app.app_id, "app", app.name, (app.org_id,), now, by, app.client_id, app.ruleset_id
            )
            reason = "Its app was deleted."
            connection.run(f"{_WITHDRAWN} AND app_id = ?", (by, now, reason, app_id))
            own = (
                "stops",
                "app_secrets",
                "app_credentials",
                "credential_uses",
                "app_uses",
                "app_days",
                "apps",
            )
            for table in own:
                connection.run(f"DELETE FROM {table} WHERE app_id = ?", (app_id,))  # noqa: S608
            add_tombstone(connection, made)
            return made

        return await self._database.write_even_if_full(job, REGISTRY)

    async def delete_ruleset(self, ruleset_id: str, by: str, expected: int | None) -> Tombstone:
        def job(connection: Connection) -> Tombstone:
            row = connection.row(f"{RULESET} AND ruleset_id = ?", (ruleset_id,))
            ruleset = _only([] if row is None else [Ruleset(*row)], "ruleset")
            if expected not in (None, ruleset.version):
                raise Conflict(
                    f"ruleset {ruleset.name}: version {ruleset.version} is active, but version"
                    f" {expected} was expected"
                )
            users = _users(connection, ruleset_id)
            if users:
                raise Conflict(f"ruleset {ruleset.name} is in use: {'; '.join(users)}")
            now = self._clock.wall_ms()
            made = Tombstone(ruleset_id, "ruleset", ruleset.name, (ruleset.org_id,), now, by)
            _delete_rulesets(connection, (ruleset_id,))
            add_tombstone(connection, made)
            return made

        return await self._database.write_even_if_full(job, REGISTRY)

    async def ruleset_users(self, ruleset_id: str) -> list[str]:
        return await self._database.read(lambda connection: _users(connection, ruleset_id))

    async def delete_org(self, org_id: str, by: str) -> Tombstone:
        def job(connection: Connection) -> Tombstone:
            row = connection.row(f"{ORG} WHERE org_id = ?", (org_id,))
            org = _only([] if row is None else [Org(*row)], "organisation")
            apps = connection.rows("SELECT name FROM apps WHERE org_id = ? ORDER BY name", (org_id,))
            if apps:
                named = ", ".join(name for (name,) in apps[:_MOST_NAMED])
                more = len(apps) - _MOST_NAMED
                raise Conflict(
                    f"organisation {org.name} has apps, which would lose service:"
                    f" delete {named}{f' and {more} more' if more > 0 else ''} first"
                )
            now = self._clock.wall_ms()
            made = Tombstone(
                org_id, "org", org.name, (org_id,), now, by,
                retention=org.retention, created_ms=org.created_ms,
            )  # fmt: skip
            rulesets = connection.rows("SELECT ruleset_id, name FROM rulesets WHERE org_id = ?", (org_id,))
            for ruleset_id, name in rulesets:
                add_tombstone(connection, Tombstone(ruleset_id, "ruleset", name, (org_id,), now, by))
            _delete_rulesets(connection, [ruleset_id for ruleset_id, _ in rulesets])
            _acknowledge_losses(connection, made)
            connection.run(
                "INSERT INTO owed_events (proxy_id, org_id) SELECT proxy_id, org_id FROM proxy_orgs"
                " WHERE org_id = ?",
                (org_id,),
            )
            for table in (
                "proposals",
                "org_schemas",
                "proxy_orgs",
                "stops",
                "operator_roles",
                "provided_roles",
                "orgs",
            ):
                connection.run(f"DELETE FROM {table} WHERE org_id = ?", (org_id,))  # noqa: S608
            forget_unused_schemas(connection)
            add_tombstone(connection, made)
            return made

        return await self._database.write_even_if_full(job, REGISTRY)

    async def delete_proxy(self, proxy_id: str, by: str) -> Tombstone:
        def job(connection: Connection) -> Tombstone:
            rows = connection.rows(f"{PROXY} WHERE proxies.proxy_id = ?", (proxy_id,))
            proxy: Proxy = _only(proxies_of(rows), "proxy")
            now = self._clock.wall_ms()
            made = Tombstone(proxy_id, "proxy", proxy.name, proxy.org_ids, now, by)
            for table in _OF_PROXY:
                connection.run(f"DELETE FROM {table} WHERE proxy_id = ?", (proxy_id,))  # noqa: S608
            add_tombstone(connection, made)
            return made

        return await self._database.write_even_if_full(job, REGISTRY)

    async def delete_operator(self, operator_id: str, by: str) -> Tombstone:
        def job(connection: Connection) -> Tombstone:
            rows = connection.rows(f"{OPERATOR} WHERE operators.operator_id = ?", (operator_id,))
            operator: Operator = _only(operators_of(rows), "operator")
            now = self._clock.wall_ms()
            made = Tombstone(operator_id, "operator", operator.name, tuple(sorted(operator.roles)), now, by)
            reason = "Its proposer was deleted."
            connection.run(
                f"{_WITHDRAWN} AND lower(proposed_by) = lower(?)", (by, now, reason, operator.name)
            )
            for table in (
                "operator_sessions",
                "operator_tokens",
                "operator_roles",
                "provided_roles",
                "operators",
            ):
                connection.run(f"DELETE FROM {table} WHERE operator_id = ?", (operator_id,))  # noqa: S608
            add_tombstone(connection, made)
            return made

        return await self._database.write_even_if_full(keeping_an_admin(job), REGISTRY)

    # Tombstones

    async def tombstones(self, ids: Collection[str]) -> list[Tombstone]:
        known = [each for each in ids if is_text(each)]

        def job(connection: Connection) -> list[Tombstone]:
            chosen = among(connection.dialect, "id", known)
            return list(map(_tombstone, connection.rows(f"{_FOUND} WHERE {chosen.sql}", chosen.parameters)))

        return await self._database.read(job) if known else []

    async def tombstones_named(self, name: str) -> list[Tombstone]:
        if not is_text(name):
            return []
        rows = await self._database.fetch(f"{_FOUND} WHERE name = ? ORDER BY deleted_ms DESC", (name,))
        return list(map(_tombstone, rows))

    async def tombstones_of(self, kind: TombstoneKind) -> list[Tombstone]:
        rows = await self._database.fetch(f"{_FOUND} WHERE kind = ? ORDER BY name, deleted_ms", (kind,))
        return list(map(_tombstone, rows))

    async def purge_tombstones(self, now_ms: int, log_kept_ms: int) -> int:
        """Remove each tombstone if no stored event and no kept operator log line names its deleted object."""

        def job(connection: Connection) -> int:
            rows = connection.rows(f"{_FOUND} WHERE deleted_ms < ?", (now_ms - _LATE_MS,))
            ended = [
                each
                for each in map(_tombstone, rows)
                if _is_over(connection, each, now_ms, now_ms - log_kept_ms)
            ]
            for each in ended:
                _remove(connection, each)
            if ended:
                forget_unused_schemas(connection)
            return len(ended)

        return await self._database.write(job, REGISTRY)


def add_tombstone(connection: Connection, made: Tombstone) -> None:
    connection.run(
        f"INSERT INTO tombstones ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",  # noqa: S608
        (
            *(made.id, made.kind, made.name, msgspec.json.encode(made.org_ids).decode()),
            *(made.client_id, made.ruleset_id, made.retention, made.created_ms),
            *(made.deleted_ms, made.deleted_by),
        ),
    )


def _tombstone(row: Sequence[Any]) -> Tombstone:
    identity, kind, name, org_ids, *further, deleted_ms, deleted_by = row
    orgs = tuple(msgspec.json.decode(org_ids, type=list[str]))
    return Tombstone(identity, kind, name, orgs, deleted_ms, deleted_by, *further)


def _only(found: Sequence[Any], what: str) -> Any:
    if not found:
        raise NotFound(f"this {what} was deleted")
    return found[0]


def _users(connection: Connection, ruleset_id: str) -> list[str]:
    """Return the ways in which applications use the ruleset, as texts for a person."""
    users = []
    for column, verb in (("ruleset_id", "evaluates"), ("shadow_ruleset_id", "is the shadow ruleset of")):
        rows = connection.rows(
            f"SELECT name FROM apps WHERE {column} = ? ORDER BY name LIMIT ?",  # noqa: S608
            (ruleset_id, _MOST_NAMED),
        )
        if rows:
            users.append(f"it {verb} {', '.join(name for (name,) in rows)}")
    proposals = connection.rows(
        "SELECT proposal_id FROM proposals WHERE state = 'open' AND (ruleset_id = ?1 OR base_ruleset_id = ?1)"
        " ORDER BY proposed_ms LIMIT ?2",
        (ruleset_id, _MOST_NAMED),
    )
    if proposals:
        users.append(f"open proposals name it: {', '.join(each for (each,) in proposals)}")
    return users


def _delete_rulesets(connection: Connection, ruleset_ids: Sequence[str]) -> None:
    """Move the versions of rulesets to the table of deleted versions."""
    for ruleset_id in ruleset_ids:
        connection.run(
            "INSERT INTO deleted_versions"
            " (ruleset_id, version, yaml, rule_count, rolled_back_to, created_ms, note)"
            " SELECT ruleset_id, version, yaml, rule_count, rolled_back_to, created_ms, note"
            " FROM ruleset_versions WHERE ruleset_id = ?",
            (ruleset_id,),
        )
        connection.run(
            "INSERT INTO deleted_version_schemas (ruleset_id, version, root, digest)"
            " SELECT ruleset_id, version, root, digest FROM ruleset_schemas WHERE ruleset_id = ?",
            (ruleset_id,),
        )
        for table in ("ruleset_schemas", "ruleset_versions", "rule_days", "enforced_versions", "rulesets"):
            connection.run(f"DELETE FROM {table} WHERE ruleset_id = ?", (ruleset_id,))  # noqa: S608


def _acknowledge_losses(connection: Connection, org: Tombstone) -> None:
    """Acknowledge the losses of a deleted organisation: these losses no longer affect proxy health."""
    given = Acknowledgement(org.deleted_ms, org.deleted_by, "The organisation was deleted.")
    for (proxy_id,) in connection.rows("SELECT proxy_id FROM proxy_orgs WHERE org_id = ?", (org.id,)):
        acknowledge(connection, (proxy_id, org.id), given, None)


def _is_over(connection: Connection, dead: Tombstone, now_ms: int, log_from_ms: int) -> bool:
    """Return True if the store has no more data that refers to the deleted object of a tombstone."""
    if dead.kind == "operator":
        return dead.deleted_ms < log_from_ms
    if dead.retention is not None and dead.deleted_ms >= now_ms - RETENTION_MS[dead.retention]:
        return False  # its proxies may still deliver events
    # An organisation's events, of any time, are purged as long as it has its tombstone.
    before = ALL if dead.kind == "org" else dead.deleted_ms + _LATE_MS
    for org_id in dead.org_ids:
        if connection.row(
            "SELECT 1 FROM blocks WHERE org_id = ? AND least_ms <= ? LIMIT 1", (org_id, before)
        ):
            return False
    return True


def _remove(connection: Connection, dead: Tombstone) -> None:
    for table in ("deleted_version_schemas", "deleted_versions"):
        connection.run(f"DELETE FROM {table} WHERE ruleset_id = ?", (dead.id,))  # noqa: S608
    if connection.count("DELETE FROM owed_events WHERE org_id = ?", (dead.id,)):
        connection.run("UPDATE registry_generation SET generation = generation + 1")
    for table in _TRAIL:
        connection.run(f"DELETE FROM {table} WHERE proxy_id = ?", (dead.id,))  # noqa: S608
    connection.run("DELETE FROM tombstones WHERE id = ?", (dead.id,))
