"""Tables of the progress of sinks, and of the events that sinks refused permanently."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from controlplane.clock import Clock
from controlplane.store.database import NO_LOCKS, Connection, Database
from controlplane.store.sink_interface import DeadLetter, SinkState

STATE: Final = (
    "SELECT sink, position, begun_ms, delivered, delivered_ms, problem, problem_ms,"
    " (SELECT count(*) FROM dead_letters AS d WHERE d.sink = c.sink),"
    " (SELECT count(*) FROM dead_letters AS d WHERE d.sink = c.sink AND is_retried = 1)"
    " FROM sink_cursors AS c"
)
_LETTER: Final = "SELECT position, org_id, refused_ms, reason, is_retried FROM dead_letters WHERE sink = ?"
# The first block with an event past a position. The subquery finds the block at which the search begins.
_OLDEST: Final = (
    "SELECT received_ms FROM receipts JOIN blocks USING (position) WHERE"
    " blocks.position >= coalesce((SELECT max(position) FROM blocks WHERE position <= ?1 + 1), 0)"
    " AND blocks.position + count > ?1 + 1 ORDER BY blocks.position LIMIT 1"
)


class SinkTables:
    _database: Database
    _clock: Clock

    async def begin_sink(self, sink: str, *, at_newest: bool) -> SinkState:
        newest = await self._database.newest_position() if at_newest else 0
        now = self._clock.wall_ms()

        def job(connection: Connection) -> SinkState:
            connection.run(
                "INSERT INTO sink_cursors (sink, position, begun_ms) VALUES (?, ?, ?)"
                " ON CONFLICT (sink) DO NOTHING",
                (sink, newest, now),
            )
            return SinkState(*connection.row(f"{STATE} WHERE sink = ?", (sink,)))

        rows = await self._database.fetch(f"{STATE} WHERE sink = ?", (sink,))
        return SinkState(*rows[0]) if rows else await self._database.write(job, NO_LOCKS)

    async def sink_states(self) -> Mapping[str, SinkState]:
        rows = await self._database.fetch(f"{STATE} ORDER BY sink")
        return {row[0]: SinkState(*row) for row in rows}

    async def advance_sink(
        self, sink: str, after: int, upto: int, delivered: int, refused: Sequence[DeadLetter] = ()
    ) -> bool:
        now = self._clock.wall_ms()

        def job(connection: Connection) -> bool:
            moved = connection.count(
                "UPDATE sink_cursors SET position = ?3, delivered = delivered + ?4,"
                " delivered_ms = CASE WHEN ?4 > 0 THEN ?5 ELSE delivered_ms END"
                " WHERE sink = ?1 AND position = ?2",
                (sink, after, upto, delivered, now),
            )
            if moved:
                _add(connection, sink, refused)
            return moved > 0

        return await self._database.write(job, NO_LOCKS)

    async def note_sink_problem(self, sink: str, problem: str | None) -> None:
        now = self._clock.wall_ms()

        def job(connection: Connection) -> None:
            if problem is None:
                forget = "UPDATE sink_cursors SET problem = NULL, problem_ms = NULL WHERE sink = ?"
                connection.run(forget, (sink,))
            else:
                note = (
                    "UPDATE sink_cursors SET problem = ?, problem_ms = coalesce(problem_ms, ?) WHERE sink = ?"
                )
                connection.run(note, (problem, now, sink))

        await self._database.write(job, NO_LOCKS)

    async def refused_in_a_row(self, sink: str) -> int:
        count = (
            "SELECT count(*) FROM dead_letters WHERE sink = ?1 AND is_retried = 0 AND refused_ms >"
            " coalesce((SELECT delivered_ms FROM sink_cursors WHERE sink = ?1), -1)"
        )
        rows = await self._database.fetch(count, (sink,))
        return int(rows[0][0])

    async def rewind_sink(self, sink: str, position: int) -> bool:
        def job(connection: Connection) -> bool:
            rewound = connection.count(
                "UPDATE sink_cursors SET position = ? WHERE sink = ?", (position, sink)
            )
            return rewound > 0

        return await self._database.write(job, NO_LOCKS)

    async def position_received(self, received_ms: int) -> int:
        newest = await self._database.newest_position()

        def job(connection: Connection) -> int:
            (first,) = connection.row(
                "SELECT min(position) FROM receipts WHERE received_ms >= ?", (received_ms,)
            )
            return newest if first is None else int(first) - 1

        return await self._database.read(job)

    async def oldest_received_after(self, position: int) -> int | None:
        return await self._database.read(lambda connection: oldest_received(connection, position))

    async def oldest_lacking(self, org_id: str, position: int, before_ms: int) -> int | None:
        def job(connection: Connection) -> int | None:
            row = connection.row(
                "SELECT received_ms FROM receipts JOIN blocks USING (position) WHERE receipts.org_id = ?1"
                " AND received_ms < ?3 AND position + count > ?2 + 1 ORDER BY received_ms LIMIT 1",
                (org_id, position, before_ms),
            )
            return None if row is None else int(row[0])

        return await self._database.read(job)

    # Dead letters

    async def dead_letters(
        self, sink: str, limit: int, after: int = 0, *, retried: bool = False
    ) -> list[DeadLetter]:
        wanted = " AND is_retried = 1" if retried else ""
        rows = await self._database.fetch(
            f"{_LETTER} AND position > ?{wanted} ORDER BY position LIMIT ?", (sink, after, limit)
        )
        return [
            DeadLetter(position, org_id, refused_ms, reason, bool(is_retried))
            for position, org_id, refused_ms, reason, is_retried in rows
        ]

    async def retry_dead_letters(self, sink: str, positions: Collection[int] | None) -> int:
        def job(connection: Connection) -> int:
            update = "UPDATE dead_letters SET is_retried = 1 WHERE sink = ?"
            return _of_each(connection, update, sink, positions)

        return await self._database.write(job, NO_LOCKS)

    async def discard_dead_letters(self, sink: str, positions: Collection[int] | None) -> int:
        def job(connection: Connection) -> int:
            return _of_each(connection, "DELETE FROM dead_letters WHERE sink = ?", sink, positions)

        return await self._database.write(job, NO_LOCKS)

    async def end_retries(
        self, sink: str, ended: Collection[int], delivered: int, refused: Sequence[DeadLetter] = ()
    ) -> None:
        now = self._clock.wall_ms()

        def job(connection: Connection) -> None:
            _of_each(connection, "DELETE FROM dead_letters WHERE sink = ?", sink, ended)
            _add(connection, sink, refused)
            if delivered:
                connection.run(
                    "UPDATE sink_cursors SET delivered = delivered + ?, delivered_ms = ? WHERE sink = ?",
                    (delivered, now, sink),
                )

        await self._database.write(job, NO_LOCKS)


def oldest_received(connection: Connection, position: int) -> int | None:
    row = connection.row(_OLDEST, (position,))
    return None if row is None else int(row[0])


def _add(connection: Connection, sink: str, letters: Sequence[DeadLetter]) -> None:
    connection.many(
        "INSERT INTO dead_letters (sink, position, org_id, refused_ms, reason) VALUES (?, ?, ?, ?, ?)"
        " ON CONFLICT (sink, position) DO UPDATE SET refused_ms = excluded.refused_ms,"
        " reason = excluded.reason, is_retried = 0",
        [(sink, each.position, each.org_id, each.refused_ms, each.reason) for each in letters],
    )


def _of_each(connection: Connection, statement: str, sink: str, positions: Collection[int] | None) -> int:
    """Run an SQL statement for the dead letters at the given positions.

    If `positions` is None, run the SQL statement for all dead letters of the sink.

    Return the number of the selected dead letters.
    """
    if positions is None:
        return connection.count(statement, (sink,))
    return sum(connection.count(f"{statement} AND position = ?", (sink, each)) for each in positions)
