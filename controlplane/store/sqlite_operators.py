"""Operators, their sessions and tokens, and the operator log, in SQLite."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence, Set
from typing import Any, Final

import msgspec

from controlplane.clock import Clock
from controlplane.store.database import Database, Job, is_text, one_row
from controlplane.store.interface import (
    EVERY_ORG,
    AlreadyExists,
    Conflict,
    LogLine,
    LogQuery,
    NewLogLine,
    NotFound,
    Operator,
    OperatorToken,
    Role,
    Session,
)

_OPERATOR: Final = (
    "SELECT operator_id, name, password_hash, enabled, created_ms, (SELECT json_group_object(org_id, role)"
    " FROM operator_roles WHERE operator_roles.operator_id = operators.operator_id) FROM operators"
)
_ADMINS_OVER_ALL: Final = (
    "SELECT count(*) FROM operators JOIN operator_roles USING (operator_id)"
    " WHERE enabled AND org_id = ? AND role = 'admin'"
)


class OperatorTables:
    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._under_way: set[int] = set()  # lines of the operator log that will have their outcome

    # Operators

    async def add_operator(self, operator: Operator) -> None:
        def job(connection: sqlite3.Connection) -> None:
            _insert_unique(
                connection,
                "INSERT INTO operators VALUES (?, ?, ?, ?, ?)",
                (
                    operator.operator_id,
                    operator.name,
                    operator.password_hash,
                    operator.enabled,
                    operator.created_ms,
                ),
                f"an operator named {operator.name} exists already",
            )
            connection.executemany(
                "INSERT INTO operator_roles VALUES (?, ?, ?)",
                [(operator.operator_id, org_id, role) for org_id, role in operator.roles.items()],
            )

        await self._database.write_even_if_full(job)

    async def operators(self) -> list[Operator]:
        return [_operator(row) for row in await self._database.fetch(f"{_OPERATOR} ORDER BY name")]

    async def operator(self, reference: str) -> Operator | None:
        if not is_text(reference):
            return None
        rows = await self._database.fetch(
            f"{_OPERATOR} WHERE operator_id = ?1 UNION {_OPERATOR} WHERE name = ?1 COLLATE NOCASE",
            (reference,),
        )
        return _operator(rows[0]) if rows else None

    async def set_password(self, operator_id: str, password_hash: str | None) -> None:
        def job(connection: sqlite3.Connection) -> None:
            connection.execute(
                "UPDATE operators SET password_hash = ? WHERE operator_id = ?", (password_hash, operator_id)
            )
            connection.execute("DELETE FROM operator_sessions WHERE operator_id = ?", (operator_id,))

        await self._database.write_even_if_full(job)

    async def set_operator_enabled(self, operator_id: str, enabled: bool) -> None:
        def job(connection: sqlite3.Connection) -> None:
            connection.execute(
                "UPDATE operators SET enabled = ? WHERE operator_id = ?", (enabled, operator_id)
            )
            connection.execute("DELETE FROM operator_sessions WHERE operator_id = ?", (operator_id,))

        await self._database.write_even_if_full(_keeping_an_admin(job))

    async def set_role(self, operator_id: str, org_id: str, role: Role) -> None:
        def job(connection: sqlite3.Connection) -> None:
            connection.execute(
                "INSERT INTO operator_roles VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET role = excluded.role",
                (operator_id, org_id, role),
            )

        await self._database.write_even_if_full(_keeping_an_admin(job))

    async def remove_role(self, operator_id: str, org_id: str) -> None:
        def job(connection: sqlite3.Connection) -> None:
            removed = connection.execute(
                "DELETE FROM operator_roles WHERE operator_id = ? AND org_id = ?", (operator_id, org_id)
            )
            if not removed.rowcount:
                raise NotFound("the operator has no role there")

        await self._database.write_even_if_full(_keeping_an_admin(job))

    # Sessions

    async def add_session(self, digest: bytes, operator_id: str, password_hash: str | None = None) -> bool:
        added = await self._change(
            "INSERT INTO operator_sessions SELECT ?1, ?2, ?3, ?3 WHERE NOT EXISTS"
            " (SELECT 1 FROM operators WHERE operator_id = ?2 AND password_hash IS NOT ?4)",
            (digest, operator_id, self._clock.steady_ms(), password_hash),
        )
        return added > 0

    async def session(self, digest: bytes) -> Session | None:
        rows = await self._database.fetch(
            "SELECT operator_id, created_ms, used_ms FROM operator_sessions WHERE digest = ?", (digest,)
        )
        return Session(*rows[0]) if rows else None

    async def use_session(self, digest: bytes) -> None:
        await self._change(
            "UPDATE operator_sessions SET used_ms = ? WHERE digest = ?", (self._clock.steady_ms(), digest)
        )

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
        def job(connection: sqlite3.Connection) -> None:
            _insert_unique(
                connection,
                "INSERT INTO operator_tokens VALUES (?, ?, ?, ?, ?, ?)",
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

        await self._database.write_even_if_full(job)

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

    async def begin_log_line(self, record: NewLogLine, *, unauthenticated: bool = False) -> int:
        now = self._clock.wall_ms()

        def job(connection: sqlite3.Connection) -> int:
            inserted = connection.execute(
                "INSERT INTO operator_log (time_ms, operator, address, operation, request, org_ids)"
                " VALUES (?, ?, ?, ?, ?, '[]')",
                (now, record.operator, record.address, record.operation, record.request),
            )
            assert inserted.lastrowid is not None
            return inserted.lastrowid

        # Nobody who has not signed in may use up what is kept for operators.
        write = self._database.write if unauthenticated else self._database.write_even_if_full
        position = await write(job)
        self._under_way.add(position)
        return position

    async def end_log_line(self, position: int, outcome: str, org_ids: Sequence[str]) -> None:
        try:
            await self._change(
                "UPDATE operator_log SET outcome = ?, org_ids = ? WHERE position = ?",
                (outcome, msgspec.json.encode(sorted(org_ids)).decode(), position),
            )
        finally:
            self._under_way.discard(position)

    async def operator_log(self, query: LogQuery) -> list[LogLine]:
        visible = None if query.org_ids is None else msgspec.json.encode(sorted(query.org_ids)).decode()
        rows = await self._database.fetch(
            "SELECT position, time_ms, operator, address, operation, request, org_ids, outcome"
            " FROM operator_log WHERE position < coalesce(?1, 9223372036854775807)"
            " AND time_ms >= coalesce(?2, 0) AND time_ms < coalesce(?3, 9223372036854775807)"
            " AND operator = coalesce(?4, operator) COLLATE NOCASE"
            " AND (?5 IS NULL OR operation = ?5 OR operation GLOB ?5 || '.*')"
            " AND (?6 IS NULL OR EXISTS (SELECT 1 FROM json_each(org_ids) WHERE value = ?6))"
            " AND (?7 IS NULL OR (org_ids <> '[]' AND NOT EXISTS (SELECT 1 FROM json_each(org_ids)"
            " WHERE value NOT IN (SELECT value FROM json_each(?7)))))"
            " AND (?8 IS NULL OR coalesce(outcome, ?8) = ?8)"
            " ORDER BY position DESC LIMIT ?9",
            (
                query.before,
                query.from_ms,
                query.to_ms,
                query.operator,
                query.operation,
                query.org_id,
                visible,
                query.outcome,
                query.limit,
            ),
        )
        return [_line(row, self._under_way) for row in rows]

    async def purge_record(self, before_ms: int, limit: int) -> int:
        return await self._purge(
            "DELETE FROM operator_log WHERE position IN"
            " (SELECT position FROM operator_log WHERE time_ms < ? LIMIT ?)",
            (before_ms, limit),
        )

    async def _purge(self, sql: str, parameters: Sequence[Any]) -> int:
        return await self._database.write(lambda connection: connection.execute(sql, parameters).rowcount)

    async def _change(self, sql: str, parameters: Sequence[Any]) -> int:
        def job(connection: sqlite3.Connection) -> int:
            return connection.execute(sql, parameters).rowcount

        return await self._database.write_even_if_full(job)


def _operator(row: Sequence[Any]) -> Operator:
    operator_id, name, password_hash, enabled, created_ms, roles = row
    return Operator(operator_id, name, password_hash, bool(enabled), created_ms, msgspec.json.decode(roles))


def _line(row: Sequence[Any], under_way: Set[int]) -> LogLine:
    position, time_ms, operator, address, operation, request, org_ids, outcome = row
    about = tuple(msgspec.json.decode(org_ids))
    is_under_way = outcome is None and position in under_way
    return LogLine(position, time_ms, operator, address, operation, request, about, outcome, is_under_way)


def _insert_unique(connection: sqlite3.Connection, sql: str, parameters: Sequence[Any], taken: str) -> None:
    try:
        connection.execute(sql, parameters)
    except sqlite3.IntegrityError as error:
        if error.sqlite_errorcode == sqlite3.SQLITE_CONSTRAINT_UNIQUE:
            raise AlreadyExists(taken) from None
        raise


def _keeping_an_admin(job: Job[None]) -> Job[None]:
    """Where there was an admin over all organisations before, there is one after; else nobody could make
    another."""

    def guarded(connection: sqlite3.Connection) -> None:
        (before,) = one_row(connection, _ADMINS_OVER_ALL, (EVERY_ORG,))
        job(connection)
        (after,) = one_row(connection, _ADMINS_OVER_ALL, (EVERY_ORG,))
        if before and not after:
            raise Conflict("this is the last admin over all organisations: make another one first")

    return guarded
