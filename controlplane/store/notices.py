"""Tables of the notices for operators, and of the lasting problems that some notices report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from controlplane.clock import Clock
from controlplane.store.database import Connection, Database, Lock, Locks
from controlplane.store.sink_interface import ConditionState, NewNotice, SinkState, StoredNotice
from controlplane.store.sinks import STATE

_NOTICES: Final[Locks] = (Lock("notices"),)  # keeps the positions of notices in the order of their commits
_INSERT: Final = (
    "INSERT INTO notices (notice_id, time_ms, body) VALUES (?, ?, ?) ON CONFLICT (notice_id) DO NOTHING"
)


class NoticeTables:
    _database: Database
    _clock: Clock

    async def log_position_noticed(self) -> int:
        def job(connection: Connection) -> int:
            connection.run(
                "INSERT INTO notice_progress (source, position) SELECT 'operator log',"
                " coalesce(max(position), 0) FROM operator_log WHERE true ON CONFLICT (source) DO NOTHING"
            )
            (position,) = connection.row("SELECT position FROM notice_progress WHERE source = 'operator log'")
            return int(position)

        return await self._database.write(job, _NOTICES)

    async def add_notices(self, notices: Sequence[NewNotice], log_position: int) -> None:
        def job(connection: Connection) -> None:
            _add(connection, notices)
            connection.run(
                "UPDATE notice_progress SET position = ?1 WHERE source = 'operator log' AND position < ?1",
                (log_position,),
            )

        await self._database.write(job, _NOTICES)

    async def notices_after(self, position: int, limit: int) -> list[StoredNotice]:
        rows = await self._database.fetch(
            "SELECT position, body FROM notices WHERE position > ? ORDER BY position LIMIT ?",
            (position, limit),
        )
        return [StoredNotice(*row) for row in rows]

    async def oldest_notice_after(self, position: int) -> int | None:
        return await self._database.read(lambda connection: oldest_notice(connection, position))

    async def notices_waiting(self, position: int) -> int:
        ((number,),) = await self._database.fetch(
            "SELECT count(*) FROM notices WHERE position > ?", (position,)
        )
        return int(number)

    async def notice_position(self, time_ms: int) -> int:
        ((position,),) = await self._database.fetch(
            "SELECT coalesce(max(position), 0) FROM notices WHERE time_ms < ?", (time_ms,)
        )
        return int(position)

    async def purge_notices(self, before_ms: int) -> int:
        return await self._database.write(
            lambda connection: connection.count("DELETE FROM notices WHERE time_ms < ?", (before_ms,)),
            _NOTICES,
        )

    async def begin_webhook(self, name: str, *, at_newest: bool) -> SinkState:
        now = self._clock.wall_ms()

        def job(connection: Connection) -> SinkState:
            (newest,) = connection.row("SELECT coalesce(max(position), 0) FROM notices")
            connection.run(
                "INSERT INTO sink_cursors (sink, position, begun_ms) VALUES (?, ?, ?)"
                " ON CONFLICT (sink) DO NOTHING",
                (name, newest if at_newest else 0, now),
            )
            return SinkState(*connection.row(f"{STATE} WHERE sink = ?", (name,)))

        rows = await self._database.fetch(f"{STATE} WHERE sink = ?", (name,))
        return SinkState(*rows[0]) if rows else await self._database.write(job, _NOTICES)

    # Conditions

    async def conditions(self) -> Mapping[str, ConditionState]:
        rows = await self._database.fetch("SELECT condition, body, reminded_ms FROM notice_conditions")
        return {row[0]: ConditionState(*row) for row in rows}

    async def begin_condition(self, state: ConditionState, notice: NewNotice) -> None:
        def job(connection: Connection) -> None:
            added = connection.count(
                "INSERT INTO notice_conditions (condition, body, reminded_ms) VALUES (?, ?, ?)"
                " ON CONFLICT (condition) DO NOTHING",
                (state.condition, state.body, state.reminded_ms),
            )
            if added:
                _add(connection, [notice])

        await self._database.write(job, _NOTICES)

    async def remind_of_condition(self, before: ConditionState, notice: NewNotice) -> None:
        def job(connection: Connection) -> None:
            changed = connection.count(
                "UPDATE notice_conditions SET reminded_ms = ?, body = ?"
                " WHERE condition = ? AND reminded_ms = ?",
                (notice.time_ms, notice.body, before.condition, before.reminded_ms),
            )
            if changed:
                _add(connection, [notice])

        await self._database.write(job, _NOTICES)

    async def end_condition(self, condition: str, notice: NewNotice) -> None:
        def job(connection: Connection) -> None:
            if connection.count("DELETE FROM notice_conditions WHERE condition = ?", (condition,)):
                _add(connection, [notice])

        await self._database.write(job, _NOTICES)


def oldest_notice(connection: Connection, position: int) -> int | None:
    row = connection.row(
        "SELECT time_ms FROM notices WHERE position > ? ORDER BY position LIMIT 1", (position,)
    )
    return None if row is None else int(row[0])


def _add(connection: Connection, notices: Sequence[NewNotice]) -> None:
    connection.many(_INSERT, [(each.notice_id, each.time_ms, each.body) for each in notices])
