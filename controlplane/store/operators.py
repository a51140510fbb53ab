"""Tables of operators, their sessions and tokens, and the operator log."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, TypeVar

import msgspec

from controlplane.clock import Clock
from controlplane.store.database import (
    NO_LOCKS,
    READ_REGISTRY,
    REGISTRY,
    Connection,
    Database,
    Dialect,
    Job,
    Lock,
    Locks,
    NotUnique,
    Row,
    is_text,
)
from controlplane.store.instances import running_instances
from controlplane.store.interface import (
    EVERY_ORG,
    AlreadyExists,
    Conflict,
    LinkedPerson,
    LogBound,
    LogLine,
    LogQuery,
    NewLogLine,
    NotFound,
    Operator,
    OperatorToken,
    Provided,
    ProvidedRole,
    Role,
    Session,
)
from controlplane.store.lists import part_of, pattern
from controlplane.store.rows import require_row

T = TypeVar("T")

# Roles of both kinds. A local operator has none from a provider, and an operator from a provider has no
# others.
HELD_ROLES: Final = (
    "SELECT operator_id, org_id, role, NULL AS mapping FROM operator_roles"
    " UNION ALL SELECT operator_id, org_id, role, mapping FROM provided_roles"
)
OPERATOR: Final = (
    "SELECT operators.operator_id, name, password_hash, enabled, created_ms, signed_in_ms,"  # noqa: S608
    " issuer, subject, display_name, roles_until_ms, linked_issuer, linked_subject, linked_ms,"
    " org_id, role, mapping FROM operators"
    f" LEFT JOIN ({HELD_ROLES}) AS held ON held.operator_id = operators.operator_id"
    " AND (held.mapping IS NULL) = (operators.issuer IS NULL)"
)
_ADMINS_OVER_ALL: Final = (
    "SELECT count(*) FROM operators JOIN operator_roles USING (operator_id)"
    " WHERE enabled = 1 AND issuer IS NULL AND org_id = ? AND role = 'admin'"
)
_LINK: Final = "UPDATE operators SET linked_issuer = ?, linked_subject = ?, linked_ms = ?"


_BOUNDED_LINES: Final[Locks] = (Lock("bounded lines"),)


class OperatorTables:
    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._instance_id: str | None = None  # the control plane that uses this store
        self._under_way: set[int] = set()  # lines of the operator log whose operations are under way

    def use_as(self, instance_id: str) -> None:
        self._instance_id = instance_id

    # Operators

    async def add_operator(self, operator: Operator) -> None:
        def job(connection: Connection) -> None:
            _insert_unique(
                connection,
                "INSERT INTO operators (operator_id, name, password_hash, enabled, created_ms,"
                " issuer, subject, display_name, roles_until_ms) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    operator.operator_id,
                    operator.name,
                    operator.password_hash,
                    operator.enabled,
                    operator.created_ms,
                    *_columns_of(operator.provided),
                ),
                f"an operator named {operator.name} exists already",
            )
            connection.many(
                "INSERT INTO operator_roles (operator_id, org_id, role) VALUES (?, ?, ?)",
                [(operator.operator_id, org_id, role) for org_id, role in operator.roles.items()],
            )

        await self._database.write_even_if_full(job, REGISTRY)

    async def operators(self) -> list[Operator]:
        return operators_of(await self._database.fetch(f"{OPERATOR} ORDER BY lower(name)"))

    async def operator(self, reference: str) -> Operator | None:
        if not is_text(reference):
            return None
        rows = await self._database.fetch(
            f"{OPERATOR} WHERE operators.operator_id = ?1 UNION {OPERATOR} WHERE lower(name) = lower(?1)",
            (reference,),
        )
        found = operators_of(rows)
        return found[0] if found else None

    async def set_password(self, operator_id: str, password_hash: str | None) -> None:
        def job(connection: Connection) -> None:
            require_row(connection, "operator", operator_id)
            connection.run(
                "UPDATE operators SET password_hash = ? WHERE operator_id = ?", (password_hash, operator_id)
            )
            connection.run("DELETE FROM operator_sessions WHERE operator_id = ?", (operator_id,))

        await self._database.write_even_if_full(job, REGISTRY)

    async def set_operator_enabled(self, operator_id: str, enabled: bool) -> None:
        def job(connection: Connection) -> None:
            require_row(connection, "operator", operator_id)
            connection.run("UPDATE operators SET enabled = ? WHERE operator_id = ?", (enabled, operator_id))
            connection.run("DELETE FROM operator_sessions WHERE operator_id = ?", (operator_id,))

        await self._database.write_even_if_full(keeping_an_admin(job), REGISTRY)

    async def set_role(self, operator_id: str, org_id: str, role: Role) -> None:
        def job(connection: Connection) -> None:
            require_row(connection, "operator", operator_id)
            connection.run(
                "INSERT INTO operator_roles (operator_id, org_id, role) VALUES (?, ?, ?)"
                " ON CONFLICT (operator_id, org_id) DO UPDATE SET role = excluded.role",
                (operator_id, org_id, role),
            )

        await self._database.write_even_if_full(keeping_an_admin(job), REGISTRY)

    async def remove_role(self, operator_id: str, org_id: str) -> None:
        def job(connection: Connection) -> None:
            removed = connection.count(
                "DELETE FROM operator_roles WHERE operator_id = ? AND org_id = ?", (operator_id, org_id)
            )
            if not removed:
                raise NotFound("the operator has no role in the given organisations")

        await self._database.write_even_if_full(keeping_an_admin(job), REGISTRY)

    # Operators from an identity provider

    async def operator_of_subject(self, issuer: str, subject: str) -> Operator | None:
        rows = await self._database.fetch(f"{OPERATOR} WHERE issuer = ? AND subject = ?", (issuer, subject))
        found = operators_of(rows)
        return found[0] if found else None

    async def set_provided(
        self, operator_id: str, display_name: str, roles: Sequence[ProvidedRole], until_ms: int
    ) -> None:
        def job(connection: Connection) -> None:
            require_row(connection, "operator", operator_id)
            connection.run(
                "UPDATE operators SET display_name = ?, roles_until_ms = ? WHERE operator_id = ?",
                (display_name, until_ms, operator_id),
            )
            connection.run("DELETE FROM provided_roles WHERE operator_id = ?", (operator_id,))
            connection.many(
                "INSERT INTO provided_roles (operator_id, org_id, role, mapping) VALUES (?, ?, ?, ?)",
                [(operator_id, each.org_id, each.role, each.mapping) for each in roles],
            )
            if not roles:
                connection.run("DELETE FROM operator_sessions WHERE operator_id = ?", (operator_id,))

        await self._database.write_even_if_full(job, REGISTRY)

    # Local operators that a person of an identity provider may sign in as

    async def operator_linked_to(self, issuer: str, subject: str) -> Operator | None:
        rows = await self._database.fetch(
            f"{OPERATOR} WHERE linked_issuer = ? AND linked_subject = ?", (issuer, subject)
        )
        found = operators_of(rows)
        return found[0] if found else None

    async def link_operator(self, operator_id: str, issuer: str, subject: str) -> None:
        now = self._clock.wall_ms()

        def job(connection: Connection) -> None:
            require_row(connection, "operator", operator_id)
            _insert_unique(
                connection,
                f"{_LINK} WHERE operator_id = ?",
                (issuer, subject, now, operator_id),
                "another operator is linked to this person: unlink that one first",
            )
            connection.run("DELETE FROM operator_sessions WHERE operator_id = ?", (operator_id,))

        await self._database.write_even_if_full(job, REGISTRY)

    async def link_first_sign_in(self, operator_id: str, issuer: str, subject: str) -> bool:
        now = self._clock.wall_ms()

        def job(connection: Connection) -> bool:
            linked = connection.count(
                f"{_LINK} WHERE operator_id = ? AND issuer IS NULL AND password_hash IS NULL"  # noqa: S608
                " AND linked_issuer IS NULL AND NOT EXISTS"
                " (SELECT 1 FROM operators WHERE linked_issuer = ? AND linked_subject = ?)",
                (issuer, subject, now, operator_id, issuer, subject),
            )
            return linked > 0

        return await self._database.write_even_if_full(job, REGISTRY)

    async def unlink_operator(self, operator_id: str) -> None:
        def job(connection: Connection) -> None:
            unlinked = connection.count(
                "UPDATE operators SET linked_issuer = NULL, linked_subject = NULL, linked_ms = NULL"
                " WHERE operator_id = ? AND linked_issuer IS NOT NULL",
                (operator_id,),
            )
            if not unlinked:
                raise NotFound("the operator is not linked to a person of an identity provider")
            connection.run("DELETE FROM operator_sessions WHERE operator_id = ?", (operator_id,))

        await self._database.write_even_if_full(job, REGISTRY)

    # Sessions

    async def add_session(self, digest: bytes, operator_id: str, password_hash: str | None = None) -> bool:
        now = self._clock.wall_ms()

        def job(connection: Connection) -> bool:
            added = connection.count(
                "INSERT INTO operator_sessions (digest, operator_id, created_ms, used_ms)"
                " SELECT ?1, operator_id, CAST(?3 AS bigint), CAST(?3 AS bigint) FROM operators"
                " WHERE operator_id = ?2 AND password_hash IS NOT DISTINCT FROM ?4",
                (digest, operator_id, connection.steady_ms(), password_hash),
            )
            if added:
                connection.run(
                    "UPDATE operators SET signed_in_ms = ? WHERE operator_id = ?", (now, operator_id)
                )
            return added > 0

        return await self._database.write_even_if_full(job, READ_REGISTRY)

    async def session(self, digest: bytes) -> Session | None:
        rows = await self._database.fetch(
            "SELECT operator_id, created_ms, used_ms FROM operator_sessions WHERE digest = ?", (digest,)
        )
        return Session(*rows[0]) if rows else None

    async def use_session(self, digest: bytes) -> None:
        def job(connection: Connection) -> None:
            connection.run(
                "UPDATE operator_sessions SET used_ms = ? WHERE digest = ?", (connection.steady_ms(), digest)
            )

        await self._database.write_even_if_full(job, NO_LOCKS)

    async def remove_session(self, digest: bytes) -> None:
        await self._change("DELETE FROM operator_sessions WHERE digest = ?", (digest,))

    async def purge_sessions(self, created_before_ms: int, used_before_ms: int, limit: int) -> int:
        return await self._purge(
            "DELETE FROM operator_sessions WHERE digest IN (SELECT digest FROM operator_sessions"
            " WHERE created_ms <= ? OR used_ms <= ? LIMIT ?)",
            (created_before_ms, used_before_ms, limit),
        )

    # Tokens

    async def add_token(self, token: OperatorToken, digest: bytes) -> None:
        def job(connection: Connection) -> None:
            require_row(connection, "operator", token.operator_id)
            _insert_unique(
                connection,
                "INSERT INTO operator_tokens (token_id, operator_id, name, digest, created_ms, expires_ms)"
                " VALUES (?, ?, ?, ?, ?, ?)",
                (
                    token.token_id,
                    token.operator_id,
                    token.name,
                    digest,
                    token.created_ms,
                    token.expires_ms,
                ),
                f"the operator has a token named {token.name} already",
            )

        await self._database.write_even_if_full(job, REGISTRY)

    async def tokens(self, operator_id: str) -> list[OperatorToken]:
        rows = await self._database.fetch(
            "SELECT token_id, operator_id, name, created_ms, expires_ms FROM operator_tokens"
            " WHERE operator_id = ? ORDER BY name",
            (operator_id,),
        )
        return [OperatorToken(*row) for row in rows]

    async def token(self, digest: bytes) -> OperatorToken | None:
        rows = await self._database.fetch(
            "SELECT token_id, operator_id, name, created_ms, expires_ms FROM operator_tokens"
            " WHERE digest = ?",
            (digest,),
        )
        return OperatorToken(*rows[0]) if rows else None

    async def remove_token(self, token_id: str) -> None:
        await self._change("DELETE FROM operator_tokens WHERE token_id = ?", (token_id,))

    # The record

    async def begin_log_line(self, record: NewLogLine) -> int:
        now = self._clock.wall_ms()
        position = await self._database.write_even_if_full(
            lambda connection: _add_line(connection, record, now, None, self._instance_id), NO_LOCKS
        )
        self._under_way.add(position)
        return position

    async def add_sign_in_line(
        self, record: NewLogLine, outcome: str, bound: LogBound | None, org_ids: Sequence[str] = ()
    ) -> None:
        now = self._clock.wall_ms()

        def is_enough(connection: Connection) -> bool:
            return bound is not None and _is_reached(connection, record, bound)

        def job(connection: Connection) -> None:
            if not is_enough(connection):
                _add_line(connection, record, now, outcome, None, org_ids)

        # An unauthenticated client must not use up the space for operators.
        if bound is not None and await self._database.read(is_enough):
            return
        write = self._database.write_even_if_full if outcome == "done" else self._database.write
        await write(job, NO_LOCKS if bound is None else _BOUNDED_LINES)

    async def end_log_line(
        self, position: int, outcome: str, org_ids: Sequence[str], result: str | None = None
    ) -> None:
        try:
            await self._change(
                "UPDATE operator_log SET outcome = ?, org_ids = ?, result = ? WHERE position = ?",
                (outcome, msgspec.json.encode(sorted(org_ids)).decode(), result, position),
            )
        finally:
            self._under_way.discard(position)

    async def operator_log(self, query: LogQuery) -> list[LogLine]:
        conditions = _conditions(query, self._database.dialect)
        where = f"WHERE {' AND '.join(conditions)} " if conditions else ""
        order = "position DESC" if query.order == "newest first" else "position"
        parameters = (*(each for values in conditions.values() for each in values), query.limit)

        def job(connection: Connection) -> list[LogLine]:
            rows = connection.rows(
                "SELECT position, time_ms, operator, address, operation, request, org_ids, outcome,"  # noqa: S608
                f" result, instance_id FROM operator_log {where}ORDER BY {order} LIMIT ?",
                parameters,
            )
            running = {each.instance.instance_id for each in running_instances(connection)}
            instances = running - {self._instance_id}
            return [_line(row, row[-1] in instances or row[0] in self._under_way) for row in rows]

        return await self._database.read(job)

    async def purge_record(self, before_ms: int, limit: int) -> int:
        return await self._purge(
            "DELETE FROM operator_log WHERE position IN"
            " (SELECT position FROM operator_log WHERE time_ms < ? LIMIT ?)",
            (before_ms, limit),
        )

    async def _purge(self, sql: str, parameters: Sequence[Any]) -> int:
        return await self._database.write(lambda connection: connection.count(sql, parameters), NO_LOCKS)

    async def _change(self, sql: str, parameters: Sequence[Any]) -> int:
        return await self._database.write_even_if_full(
            lambda connection: connection.count(sql, parameters), NO_LOCKS
        )


def operators_of(rows: Iterable[Row]) -> list[Operator]:
    """Group the rows by operator; each row has one role of an operator.

    The operators are returned in the order of their first rows in the input.
    """
    held: dict[Row, list[Row]] = {}
    for row in rows:
        found = held.setdefault(tuple(row[:-3]), [])
        if row[-3] is not None:
            found.append(row[-3:])
    return [_operator(row, roles) for row, roles in held.items()]


def _operator(row: Row, held: Sequence[Row]) -> Operator:
    operator_id, name, password_hash, enabled, created_ms, signed_in_ms = row[:6]
    issuer, subject, display_name, until_ms = row[6:10]
    linked_issuer, linked_subject, linked_ms = row[10:]
    roles: dict[str, Role] = {org_id: role for org_id, role, _ in held}
    mappings = {org_id: mapping for org_id, _, mapping in held}
    provided = None if issuer is None else Provided(issuer, subject, display_name, until_ms, mappings)
    link = None if linked_issuer is None else LinkedPerson(linked_issuer, linked_subject, linked_ms)
    return Operator(
        operator_id, name, password_hash, bool(enabled), created_ms, roles, signed_in_ms, provided, link
    )


def _columns_of(provided: Provided | None) -> tuple[object, ...]:
    if provided is None:
        return (None, None, None, None)
    return provided.issuer, provided.subject, provided.display_name, provided.roles_until_ms


def _conditions(query: LogQuery, dialect: Dialect) -> dict[str, tuple[object, ...]]:
    """Return the SQL conditions that select lines of the operator log, each condition with its parameters."""
    orgs = dialect.elements.format("org_ids")
    found: dict[str, tuple[object, ...]] = {}
    if query.past is not None:
        found["position < ?" if query.order == "newest first" else "position > ?"] = (query.past,)
    if query.search is not None:
        searched = [part_of(column) for column in ("operator", "operation", "request", "result")]
        found[f"({' OR '.join(searched)})"] = (pattern(query.search),) * len(searched)
    if query.from_ms is not None:
        found["time_ms >= ?"] = (query.from_ms,)
    if query.to_ms is not None:
        found["time_ms < ?"] = (query.to_ms,)
    if query.operator is not None:
        found["lower(operator) = lower(?)"] = (query.operator,)
    if query.operation is not None:
        found["(operation = ? OR substr(operation, 1, length(?)) = ?)"] = (
            query.operation, f"{query.operation}.", f"{query.operation}.",
        )  # fmt: skip
    if query.org_id is not None:
        found[f"EXISTS (SELECT 1 FROM {orgs} WHERE value = ?)"] = (query.org_id,)  # noqa: S608
    if query.org_ids is not None:
        other = f"SELECT 1 FROM {orgs} WHERE NOT value {dialect.among}"  # noqa: S608
        found[f"org_ids <> '[]' AND NOT EXISTS ({other})"] = (dialect.listed(sorted(query.org_ids)),)
    if query.outcome is not None:
        found["(outcome IS NULL OR outcome = ?)"] = (query.outcome,)
    return found


def _line(row: Sequence[Any], may_be_under_way: bool) -> LogLine:
    position, time_ms, operator, address, operation, request, org_ids, outcome, result, _ = row
    about = tuple(msgspec.json.decode(org_ids))
    is_under_way = outcome is None and may_be_under_way
    return LogLine(
        position, time_ms, operator, address, operation, request, about, outcome, is_under_way, result
    )


def _add_line(
    connection: Connection,
    record: NewLogLine,
    now_ms: int,
    outcome: str | None,
    instance_id: str | None,
    org_ids: Sequence[str] = (),
) -> int:
    (position,) = connection.row(
        "INSERT INTO operator_log"
        " (time_ms, operator, address, operation, request, org_ids, outcome, instance_id)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?) RETURNING position",
        (
            *(now_ms, record.operator, record.address, record.operation, record.request),
            *(msgspec.json.encode(sorted(org_ids)).decode(), outcome, instance_id),
        ),
    )
    return int(position)


def add_whole_line(
    connection: Connection, record: NewLogLine, now_ms: int, org_ids: Sequence[str], result: str
) -> None:
    """Add a line about a change to the operator log, in the transaction of the change."""
    position = _add_line(connection, record, now_ms, "done", None, org_ids)
    connection.run("UPDATE operator_log SET result = ? WHERE position = ?", (result, position))


def _is_reached(connection: Connection, record: NewLogLine, bound: LogBound) -> bool:
    (lines,) = connection.row(
        "SELECT count(*) FROM operator_log WHERE time_ms > ? AND operator = ? AND operation = ?"
        " AND outcome <> 'done'",
        (bound.since_ms, record.operator, record.operation),
    )
    return int(lines) >= bound.most


def _insert_unique(connection: Connection, sql: str, parameters: Sequence[Any], taken: str) -> None:
    try:
        connection.add(sql, parameters)
    except NotUnique:
        raise AlreadyExists(taken) from None


def keeping_an_admin(job: Job[T]) -> Job[T]:
    """Return a job that fails if it would remove the last local admin over all organisations.

    A local admin can make other admins, and can sign in while the identity provider is unreachable.
    """

    def guarded(connection: Connection) -> T:
        (before,) = connection.row(_ADMINS_OVER_ALL, (EVERY_ORG,))
        made = job(connection)
        (after,) = connection.row(_ADMINS_OVER_ALL, (EVERY_ORG,))
        if before and not after:
            raise Conflict("this operator is the last admin over all organisations: make another admin first")
        return made

    return guarded
