"""Database tables for the schemas of graph APIs, and for the schemas that each ruleset version uses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from controlplane.clock import Clock
from controlplane.store.database import REGISTRY, Connection, Database
from controlplane.store.interface import Conflict, NewSchema, NotFound, OrgSchema, PackedSchemas, SchemaUse
from controlplane.store.rows import require_row

MOST_ROOTS_OF_ORG: Final = 16
# Limits of the schemas that are current or that an active version names, each counted once. Each worker of a
# proxy loads the named ones, and a proxy may serve other organisations too. Microsoft Graph's v1.0 has 0.5
# MB.
MOST_BYTES_OF_ORG: Final = 16 * 1024 * 1024
MOST_PACKED_OF_ORG: Final = 6 * 1024 * 1024
_COUNTED: Final = (
    "SELECT coalesce(sum(bytes), 0), coalesce(sum(length(packed)), 0) FROM schemas WHERE digest IN"
    " (SELECT digest FROM org_schemas WHERE org_id = ?1 AND is_current = 1"
    " UNION SELECT digest FROM ruleset_schemas JOIN rulesets USING (ruleset_id) WHERE org_id = ?1"
    " AND version = (SELECT max(version) FROM ruleset_versions AS newest"
    " WHERE newest.ruleset_id = rulesets.ruleset_id))"
)
_ORG_SCHEMA: Final = "SELECT org_id, root, digest, source, fetched_ms, is_current FROM org_schemas"
_FORGET: Final = (
    "DELETE FROM org_schemas WHERE org_id = ?1 AND root = ?2 AND is_current = 0"
    " AND digest <> coalesce(?3, '') AND NOT EXISTS (SELECT 1 FROM ruleset_schemas"
    " JOIN rulesets USING (ruleset_id) WHERE rulesets.org_id = org_schemas.org_id"
    " AND ruleset_schemas.root = org_schemas.root AND ruleset_schemas.digest = org_schemas.digest)"
)


class SchemaTables:
    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def add_schema(self, org_ids: Sequence[str], schema: NewSchema) -> Mapping[str, str | None]:
        def job(connection: Connection) -> Mapping[str, str | None]:
            now = self._clock.wall_ms()
            for org_id in org_ids:
                require_row(connection, "org", org_id)
            connection.run(
                "INSERT INTO schemas (digest, packed, bytes) VALUES (?, ?, ?)"
                " ON CONFLICT (digest) DO NOTHING",
                (schema.digest, schema.packed, schema.bytes),
            )
            return {org_id: _make_current(connection, org_id, schema, now) for org_id in org_ids}

        # A schema may have megabytes and can wait: the reserve for a full disk is for rules and stops.
        return await self._database.write(job, REGISTRY)

    async def delete_schema(self, org_id: str, root: str) -> str:
        def job(connection: Connection) -> str:
            key = (org_id, root)
            current = connection.row(
                "SELECT digest FROM org_schemas WHERE org_id = ? AND root = ? AND is_current = 1", key
            )
            if current is None:
                raise NotFound(f"the organisation has no schema for the root path {root}")
            users = [f"{each.ruleset}@{each.version}" for each in _uses(connection, *key) if each.in_force]
            if users:
                raise Conflict(f"the schema of {root} is in use: {', '.join(users)} names it")
            connection.run("UPDATE org_schemas SET is_current = 0 WHERE org_id = ? AND root = ?", key)
            connection.run(_FORGET, (*key, None))
            forget_unused_schemas(connection)
            return str(current[0])

        return await self._database.write_even_if_full(job, REGISTRY)

    async def org_schemas(self, org_id: str | None) -> list[OrgSchema]:
        order = "ORDER BY org_id, root, is_current DESC, fetched_ms DESC, digest"
        if org_id is None:
            rows = await self._database.fetch(f"{_ORG_SCHEMA} {order}")
        else:
            rows = await self._database.fetch(f"{_ORG_SCHEMA} WHERE org_id = ? {order}", (org_id,))
        return [_org_schema(*row) for row in rows]

    async def current_schemas(self, org_id: str) -> PackedSchemas:
        rows = await self._database.fetch(
            "SELECT root, digest, packed FROM org_schemas JOIN schemas USING (digest)"
            " WHERE org_id = ? AND is_current = 1 ORDER BY root",
            (org_id,),
        )
        return PackedSchemas({row[0]: row[1] for row in rows}, {row[1]: row[2] for row in rows})

    async def version_schemas(self, ruleset_id: str, version: int) -> PackedSchemas:
        rows = await self._database.fetch(
            "SELECT root, digest, packed FROM (SELECT root, digest FROM ruleset_schemas"
            " WHERE ruleset_id = ?1 AND version = ?2 UNION ALL SELECT root, digest"
            " FROM deleted_version_schemas WHERE ruleset_id = ?1 AND version = ?2) AS named"
            " JOIN schemas USING (digest) ORDER BY root",
            (ruleset_id, version),
        )
        return PackedSchemas({row[0]: row[1] for row in rows}, {row[1]: row[2] for row in rows})

    async def packed_schema(self, digest: str) -> bytes | None:
        rows = await self._database.fetch("SELECT packed FROM schemas WHERE digest = ?", (digest,))
        return bytes(rows[0][0]) if rows else None

    async def schema_uses(self, org_id: str, root: str) -> list[SchemaUse]:
        return await self._database.read(lambda connection: _uses(connection, org_id, root))


def _uses(connection: Connection, org_id: str, root: str) -> list[SchemaUse]:
    rows = connection.rows(
        "SELECT ruleset_schemas.digest, rulesets.name, version, version = (SELECT max(version) FROM"
        " ruleset_versions AS newest WHERE newest.ruleset_id = rulesets.ruleset_id)"
        " FROM ruleset_schemas JOIN rulesets USING (ruleset_id)"
        " WHERE org_id = ? AND root = ? ORDER BY rulesets.name, version DESC",
        (org_id, root),
    )
    return [SchemaUse(digest, name, version, bool(newest)) for digest, name, version, newest in rows]


def _org_schema(org_id: str, root: str, digest: str, source: str, fetched: int, current: int) -> OrgSchema:
    return OrgSchema(org_id, root, digest, source, fetched, bool(current))


def named_schemas(connection: Connection, ruleset_id: str, version: int) -> dict[str, str]:
    """Return a mapping from root path to schema digest, for the schemas that a ruleset version names."""
    rows = connection.rows(
        "SELECT root, digest FROM ruleset_schemas WHERE ruleset_id = ? AND version = ? ORDER BY root",
        (ruleset_id, version),
    )
    return dict(rows)


def name_schemas(connection: Connection, ruleset_id: str, version: int, schemas: Mapping[str, str]) -> None:
    """Store the digests of the schemas that a new ruleset version names."""
    connection.many(
        "INSERT INTO ruleset_schemas (ruleset_id, version, root, digest) VALUES (?, ?, ?, ?)",
        [(ruleset_id, version, root, digest) for root, digest in schemas.items()],
    )


def require_current(connection: Connection, org_id: str, name: str, schemas: Mapping[str, str]) -> None:
    """Raise Conflict unless `schemas` are exactly the current schemas of the organisation."""
    rows = connection.rows(
        "SELECT root, digest FROM org_schemas WHERE org_id = ? AND is_current = 1", (org_id,)
    )
    if dict(rows) != dict(schemas):
        raise Conflict(
            f"ruleset {name}: the schemas of its organisation have changed: apply the ruleset again"
        )


def packed_schemas(connection: Connection, digests: Sequence[str]) -> dict[str, bytes]:
    """Return the compressed schemas, by digest."""
    found = {}
    for digest in digests:
        (found[digest],) = connection.row("SELECT packed FROM schemas WHERE digest = ?", (digest,))
    return found


def _make_current(connection: Connection, org_id: str, schema: NewSchema, now: int) -> str | None:
    """Make a schema the current schema of its root path.

    Return the digest of the schema that was current before.
    """
    key = (org_id, schema.root)
    before = connection.row(
        "SELECT digest FROM org_schemas WHERE org_id = ? AND root = ? AND is_current = 1", key
    )
    if before == (schema.digest,):
        return schema.digest
    connection.run("UPDATE org_schemas SET is_current = 0 WHERE org_id = ? AND root = ?", key)
    connection.run(
        "INSERT INTO org_schemas (org_id, root, digest, source, fetched_ms, is_current)"
        " VALUES (?, ?, ?, ?, ?, 1)"
        " ON CONFLICT (org_id, root, digest) DO UPDATE SET source = excluded.source,"
        " fetched_ms = excluded.fetched_ms, is_current = 1",
        (*key, schema.digest, schema.source, now),
    )
    _require_few(connection, org_id)
    require_room(connection, org_id)
    # The newest of the other schemas is kept too, so that it can be compared with the current one.
    connection.run(_FORGET, (*key, None if before is None else before[0]))
    forget_unused_schemas(connection)
    return None if before is None else str(before[0])


def forget_unused_schemas(connection: Connection) -> None:
    """Delete the schemas that no organisation and no ruleset version uses."""
    connection.run(
        "DELETE FROM schemas WHERE digest NOT IN (SELECT digest FROM org_schemas)"
        " AND digest NOT IN (SELECT digest FROM ruleset_schemas)"
        " AND digest NOT IN (SELECT digest FROM deleted_version_schemas)"
    )


def require_room(connection: Connection, org_id: str) -> None:
    """Raise Conflict if the schemas that an organisation's proxies must load exceed the size limits."""
    size, packed = connection.row(_COUNTED, (org_id,))
    if size > MOST_BYTES_OF_ORG or packed > MOST_PACKED_OF_ORG:
        raise Conflict(
            "the current schemas and the schemas of active rulesets would have more than"
            f" {MOST_BYTES_OF_ORG} bytes, or {MOST_PACKED_OF_ORG} bytes compressed:"
            " apply the rulesets that name older schemas again"
        )


def _require_few(connection: Connection, org_id: str) -> None:
    (roots,) = connection.row(
        "SELECT count(*) FROM org_schemas WHERE org_id = ? AND is_current = 1", (org_id,)
    )
    if roots > MOST_ROOTS_OF_ORG:
        raise Conflict(f"an organisation can have at most {MOST_ROOTS_OF_ORG} current schemas")
