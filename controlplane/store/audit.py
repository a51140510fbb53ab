"""Database tables for audit events, for the reports that proxies send, and for the outbox."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any, Final, NamedTuple

from controlplane.clock import Clock
from controlplane.rate_limits import WINDOW_MS, retry_after_seconds
from controlplane.store.batch_ids import WITHOUT_TIME_MS, forget_ms, is_too_old
from controlplane.store.blocks import (
    add_blocks,
    blocks_between,
    correct_receipts,
    count_between,
    events_after,
    find_event,
    holds_all,
    purge_events,
    received_at,
    received_before,
)
from controlplane.store.chain_table import BEFORE_ALL, Chain, Head
from controlplane.store.chain_tables import ChainTables
from controlplane.store.credential_uses import note_uses
from controlplane.store.database import NO_LOCKS, Connection, Database, of_org, of_proxy
from controlplane.store.fleet_tables import latest_reports, losses_of_proxies, note_heartbeat
from controlplane.store.interface import (
    IDEMPOTENCY_WINDOW_MS,
    NOTHING_SAID,
    Acknowledgement,
    BlockPlace,
    BlockSlice,
    Duplicate,
    Expired,
    Gap,
    GivenOut,
    LatestReports,
    Limited,
    Losses,
    NewBatch,
    Outcome,
    RateLimits,
    ReceivedNumbers,
    Report,
    Said,
    SequenceState,
    Stored,
    StoredEvent,
)
from controlplane.store.losses import (
    acknowledge,
    acknowledgement_of,
    implausible_of,
    losses_of,
    losses_of_org,
)
from controlplane.store.outbox import finish, fix_range, give_out, go_back
from controlplane.store.received_numbers import received_numbers
from controlplane.store.sequences import fold, ranges, size
from controlplane.store.usage_tables import count_uses

_OF_HEARTBEATS: Final = "received_ms, body, skew_ms"
_OF_METRICS: Final = "received_ms, body"
_FORGET: Final = "DELETE FROM batches WHERE (proxy_id, batch) IN (SELECT proxy_id, batch FROM batches WHERE"
_HISTORY: Final = 200  # heartbeats and metrics windows that are kept of each proxy
# A proxy that skips every other number could make a range of each event. Beyond this limit, only the count of
# missing numbers is kept.
_MOST_GAPS: Final = 10_000
_TIDY_MS: Final = 10_000  # least time between two batches of a proxy whose job also does maintenance


def batch_digest(batch_id: str) -> bytes:
    return sha256(batch_id.encode()).digest()[:16]


class AuditTables(ChainTables):
    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._tidied_ms: dict[str, int] = {}  # one entry for each proxy

    # Batches

    async def commit_batch(self, batch: NewBatch, limits: RateLimits) -> Outcome:
        digest = batch_digest(batch.batch_id)

        def job(connection: Connection) -> Outcome:
            now, wall_ms = connection.steady_ms(), self._clock.wall_ms()
            found = _find(connection, batch, digest, limits, now)
            outcome = _replayed(connection, batch, found, now) or _aged(batch, wall_ms)
            if isinstance(outcome, Duplicate) and outcome.content_differs:
                _note_reuse(connection, batch, wall_ms)
            outcome = outcome or _limited(found, now)
            if outcome is not None:
                return outcome
            accepted, position = _store(connection, batch, digest, now, self._chain(), found.head)
            other_content = accepted < len(batch.ids) and not holds_all(connection, batch)
            if other_content:
                _note_reuse(connection, batch, wall_ms)
            _fold_sequence(connection, batch, found, accepted, wall_ms)
            _count_implausible(connection, batch, accepted, wall_ms)
            if accepted:
                count_uses(connection, batch)
                note_uses(connection, batch)
            if now - self._tidied_ms.get(batch.proxy_id, 0) >= _TIDY_MS:
                _tidy(connection, batch.proxy_id, now, wall_ms)
                self._tidied_ms[batch.proxy_id] = now
            return Stored(accepted, position, other_content)

        locks = of_org(batch.org_id) + of_proxy(batch.proxy_id)
        return await self._database.write(job, locks, sum(map(len, batch.events)))

    async def purge_batches(self, now_ms: int, limit: int) -> int:
        def job(connection: Connection) -> int:
            forgotten = connection.count(f"{_FORGET} forget_ms < ? LIMIT ?)", (now_ms, limit))
            return forgotten + connection.count(
                f"{_FORGET} forget_ms IS NULL AND accepted_ms < ? LIMIT ?)",
                (now_ms - WITHOUT_TIME_MS, limit - forgotten),
            )

        return await self._database.write(job, NO_LOCKS)

    # Events

    async def events_after(self, position: int, limit: int) -> list[StoredEvent]:
        settled = await self._database.settled()
        return await self._database.read(
            lambda connection: events_after(connection, position, limit, settled)
        )

    async def last_position(self) -> int:
        return await self._database.newest_position()

    async def event(self, org_id: str, event_id: str) -> StoredEvent | None:
        return await self._database.read(lambda connection: find_event(connection, org_id, event_id))

    async def blocks_between(
        self, org_id: str, from_ms: int, to_ms: int, before: BlockPlace | None
    ) -> BlockSlice:
        return await self._database.read(
            lambda connection: blocks_between(connection, org_id, from_ms, to_ms, before)
        )

    async def count_between(self, org_id: str, from_ms: int, to_ms: int) -> int:
        return await self._database.read(lambda connection: count_between(connection, org_id, from_ms, to_ms))

    async def outbox_position(self, index: str) -> int:
        rows = await self._database.fetch("SELECT position FROM outbox_cursor WHERE index_name = ?", (index,))
        return int(rows[0][0]) if rows else 0

    async def set_outbox_position(self, index: str, position: int) -> None:
        await self._execute(
            "INSERT INTO outbox_cursor (index_name, position) VALUES (?, ?)"
            " ON CONFLICT (index_name) DO UPDATE SET position = excluded.position",
            (index, position),
        )

    async def give_out(self, index: str, wanted: GivenOut) -> GivenOut | None:
        return await self._database.write(lambda connection: give_out(connection, index, wanted), NO_LOCKS)

    async def finish(self, index: str, given: GivenOut) -> None:
        await self._database.write(lambda connection: finish(connection, index, given), NO_LOCKS)

    async def go_back(self, index: str, position: int) -> None:
        await self._database.write(lambda connection: go_back(connection, index, position), NO_LOCKS)

    async def fix_range(self, archive: str, after: int, upto: int) -> int:
        return await self._database.write(
            lambda connection: fix_range(connection, archive, after, upto), NO_LOCKS
        )

    async def purge_events(self, org_id: str, before_ms: int, limit: int) -> int:
        return await self._database.write(
            lambda connection: purge_events(connection, org_id, before_ms, limit, self._chain()),
            of_org(org_id),
        )

    async def received_before(self, org_id: str, before_ms: int) -> int:
        return await self._database.read(lambda connection: received_before(connection, org_id, before_ms))

    async def received_at(self, position: int) -> int | None:
        return await self._database.read(lambda connection: received_at(connection, position))

    async def correct_receipts(self, org_id: str, now_ms: int) -> int:
        return await self._database.write(
            lambda connection: correct_receipts(connection, org_id, now_ms), of_org(org_id)
        )

    # Reports

    async def add_heartbeat(
        self, proxy_id: str, body: str, skew_ms: int | None = None, said: Said = NOTHING_SAID
    ) -> None:
        now = self._clock.wall_ms()

        def job(connection: Connection) -> None:
            # Received while the clock of this host was ahead: later reports would be sorted behind these.
            connection.run("DELETE FROM heartbeats WHERE proxy_id = ? AND received_ms > ?", (proxy_id, now))
            connection.run(
                "INSERT INTO heartbeats (proxy_id, received_ms, body, skew_ms) VALUES (?, ?, ?, ?)"
                " ON CONFLICT (proxy_id, received_ms) DO UPDATE SET body = excluded.body,"
                " skew_ms = excluded.skew_ms",
                (proxy_id, now, body, skew_ms),
            )
            _forget_old(connection, "heartbeats", proxy_id)
            note_heartbeat(connection, proxy_id, now, said)

        await self._database.write(job, of_proxy(proxy_id))

    async def add_metrics(self, proxy_id: str, window_start: str, body: str) -> None:
        now = self._clock.wall_ms()

        def job(connection: Connection) -> None:
            connection.run(
                "UPDATE metrics SET received_ms = ?2 WHERE proxy_id = ?1 AND received_ms > ?2",
                (proxy_id, now),
            )
            connection.run(
                "INSERT INTO metrics (proxy_id, window_start, received_ms, body) VALUES (?, ?, ?, ?)"
                " ON CONFLICT (proxy_id, window_start) DO UPDATE SET received_ms = excluded.received_ms,"
                " body = excluded.body",
                (proxy_id, window_start, now, body),
            )
            _forget_old(connection, "metrics", proxy_id)
            _seen(connection, proxy_id, now)

        await self._database.write(job, of_proxy(proxy_id))

    async def heartbeats(self, proxy_id: str, limit: int) -> list[Report]:
        return await self._reports("heartbeats", _OF_HEARTBEATS, proxy_id, limit)

    async def metrics(self, proxy_id: str, limit: int) -> list[Report]:
        return await self._reports("metrics", _OF_METRICS, proxy_id, limit)

    async def _reports(self, table: str, columns: str, proxy_id: str, limit: int) -> list[Report]:
        return await self._database.read(
            lambda connection: _reports(connection, table, columns, proxy_id, limit)
        )

    async def latest_reports(self, proxy_ids: Sequence[str], windows: int) -> Mapping[str, LatestReports]:
        return await self._database.read(lambda connection: latest_reports(connection, proxy_ids, windows))

    async def sequences(self, proxy_id: str, gap_limit: int) -> list[SequenceState]:
        def job(connection: Connection) -> list[SequenceState]:
            states = []
            for org_id, highest, unlisted, repeated, repeated_ms in connection.rows(
                "SELECT org_id, highest, unlisted, repeated, repeated_ms FROM sequences WHERE proxy_id = ?1"
                " UNION ALL SELECT org_id, 0, 0, 0, NULL FROM (SELECT proxy_id, org_id FROM implausible_times"
                " UNION SELECT proxy_id, org_id FROM reused_batch_ids) AS i WHERE proxy_id = ?1"
                " AND NOT EXISTS (SELECT 1 FROM sequences AS s"
                " WHERE s.proxy_id = ?1 AND s.org_id = i.org_id) ORDER BY org_id",
                (proxy_id,),
            ):
                gaps = _gaps(connection, proxy_id, org_id, Gap(0, highest))
                listed, hidden = tuple(gaps[:gap_limit]), size(gaps[gap_limit:])
                implausible, implausible_ms = implausible_of(connection, proxy_id, org_id)
                reused, reused_ms = _reused(connection, proxy_id, org_id)
                states.append(
                    SequenceState(
                        org_id,
                        highest,
                        listed,
                        unlisted + hidden,
                        repeated,
                        repeated_ms,
                        implausible,
                        implausible_ms,
                        losses_of(connection, proxy_id, org_id),
                        acknowledgement_of(connection, proxy_id, org_id),
                        reused,
                        reused_ms,
                    )
                )
            return states

        return await self._database.read(job)

    async def received_numbers(self, org_id: str, gap_limit: int) -> Mapping[str, ReceivedNumbers]:
        return await self._database.read(lambda connection: received_numbers(connection, org_id, gap_limit))

    async def losses(self, proxy_ids: Sequence[str]) -> Mapping[str, Losses]:
        return await self._database.read(lambda connection: losses_of_proxies(connection, proxy_ids))

    async def losses_of_org(self, org_id: str) -> Losses:
        return await self._database.read(lambda connection: losses_of_org(connection, org_id))

    async def acknowledge_losses(
        self, proxy_id: str, org_id: str, acknowledgement: Acknowledgement, expected: Losses | None
    ) -> Losses:
        return await self._database.write_even_if_full(
            lambda connection: acknowledge(connection, (proxy_id, org_id), acknowledgement, expected),
            of_proxy(proxy_id),
        )

    async def _execute(self, sql: str, parameters: Sequence[Any]) -> int:
        return await self._database.write(lambda connection: connection.count(sql, parameters), NO_LOCKS)


def _reports(connection: Connection, table: str, columns: str, proxy_id: str, limit: int) -> list[Report]:
    rows = connection.rows(
        f"SELECT {columns} FROM {table} WHERE proxy_id = ? ORDER BY received_ms DESC LIMIT ?",  # noqa: S608
        (proxy_id, limit),
    )
    return [Report(*row) for row in rows]


class _Found(NamedTuple):
    """Rows of the database that determine how the store handles a batch."""

    accepted_ms: int | None  # time at which its id was accepted; None if it never was
    accepted: int | None
    content: bytes | None
    # time at which the batch that fills a limit was accepted; None if there is room
    proxy_limit_ms: int | None
    org_limit_ms: int | None
    number: int | None  # number of the newest link of the organisation's chain
    link: bytes | None
    highest: int | None  # highest sequence number
    unlisted: int | None

    @property
    def head(self) -> Head:
        return BEFORE_ALL if self.number is None or self.link is None else Head(self.number, self.link)


_FIND: Final = (
    "SELECT known.accepted_ms, known.accepted, known.content,"
    " (SELECT accepted_ms FROM rate_log WHERE proxy_id = ?1 AND accepted_ms > ?4"
    " ORDER BY accepted_ms DESC LIMIT 1 OFFSET ?5),"
    " (SELECT accepted_ms FROM rate_log WHERE org_id = ?3 AND accepted_ms > ?4"
    " ORDER BY accepted_ms DESC LIMIT 1 OFFSET ?6),"
    " newest.number, newest.link, counted.highest, counted.unlisted"
    " FROM (SELECT 1 AS one) AS single"
    " LEFT JOIN batches AS known ON known.proxy_id = ?1 AND known.batch = ?2"
    " LEFT JOIN sequences AS counted ON counted.proxy_id = ?1 AND counted.org_id = ?3"
    " LEFT JOIN chain AS newest ON newest.org_id = ?3"
    " AND newest.number = (SELECT max(number) FROM chain WHERE org_id = ?3)"
)


def _find(connection: Connection, batch: NewBatch, digest: bytes, limits: RateLimits, now: int) -> _Found:
    key = batch.proxy_id, digest, batch.org_id
    return _Found(*connection.row(_FIND, (*key, now - WINDOW_MS, limits.proxy - 1, limits.org - 1)))


def _replayed(connection: Connection, batch: NewBatch, found: _Found, now: int) -> Outcome | None:
    accepted_ms, accepted, content = found[:3]
    if accepted_ms is None or accepted is None:
        return None
    if now - accepted_ms > IDEMPOTENCY_WINDOW_MS:
        return Expired()
    # A client that writes its JSON again for each attempt may spell the same events differently.
    is_same = content in (None, batch.content) or holds_all(connection, batch)
    return Duplicate(accepted, content_differs=not is_same)


def _aged(batch: NewBatch, wall_ms: int) -> Outcome | None:
    """Refuse a batch if its ID is so old that the store may have deleted the record of the ID.

    The proxy then sends the events of the batch again under a new batch ID. A new batch ID contains the time
    of the proxy's clock. The control plane accepts a signed request only if the clocks of both agree, so
    `_aged` never refuses a new batch ID.
    """
    return Expired() if is_too_old(batch.batch_id, wall_ms) else None


def _reused(connection: Connection, proxy_id: str, org_id: str) -> tuple[int, int | None]:
    row = connection.row(
        "SELECT count, latest_ms FROM reused_batch_ids WHERE proxy_id = ? AND org_id = ?",
        (proxy_id, org_id),
    )
    return (0, None) if row is None else (row[0], row[1])


def _note_reuse(connection: Connection, batch: NewBatch, wall_ms: int) -> None:
    connection.run(
        "INSERT INTO reused_batch_ids (proxy_id, org_id, count, latest_ms) VALUES (?, ?, 1, ?)"
        " ON CONFLICT (proxy_id, org_id) DO UPDATE SET count = reused_batch_ids.count + 1,"
        " latest_ms = excluded.latest_ms",
        (batch.proxy_id, batch.org_id, wall_ms),
    )


def _limited(found: _Found, now: int) -> Outcome | None:
    wait = retry_after_seconds(now, (found.proxy_limit_ms, found.org_limit_ms))
    return Limited(wait) if wait else None


def _store(
    connection: Connection, batch: NewBatch, digest: bytes, now: int, chain: Chain, head: Head
) -> tuple[int, int]:
    accepted, position = add_blocks(connection, batch, digest, chain, head)
    connection.run(
        "INSERT INTO batches (proxy_id, batch, accepted_ms, accepted, content, forget_ms)"
        " VALUES (?, ?, ?, ?, ?, ?)",
        (batch.proxy_id, digest, now, accepted, batch.content, forget_ms(batch.batch_id, now)),
    )
    connection.run(
        "INSERT INTO rate_log (accepted_ms, proxy_id, org_id) VALUES (?, ?, ?)",
        (now, batch.proxy_id, batch.org_id),
    )
    return accepted, position


def _tidy(connection: Connection, proxy_id: str, now: int, wall_ms: int) -> None:
    """Run the maintenance tasks that need not run after every batch."""
    connection.run(
        "DELETE FROM rate_log WHERE proxy_id = ? AND accepted_ms <= ?", (proxy_id, now - WINDOW_MS)
    )
    _seen(connection, proxy_id, wall_ms)


# Sequences


def _fold_sequence(
    connection: Connection, batch: NewBatch, found: _Found, accepted: int, wall_ms: int
) -> None:
    """Add the sequence numbers in a batch to the received ranges of its proxy.

    `accepted` is the number of new events in the batch. If `accepted` exceeds the count of new sequence
    numbers, the batch has duplicate sequence numbers. A proxy sends duplicate sequence numbers if it lost its
    journals, or if a second proxy runs under the same name.
    """
    came = ranges(seq for seq in batch.seqs if seq is not None)
    if not came:
        return
    key = (batch.proxy_id, batch.org_id)
    known, unlisted = found.highest or 0, found.unlisted or 0
    within = Gap(came[0].first, came[-1].last)
    before = _gaps(connection, *key, within) if within.first <= known else []
    highest, after = fold(known, before, came)
    _replace_gaps(connection, key, before, after)
    new_numbers = highest - known - (size(after) - size(before))
    repeated = accepted - sum(not seq for seq in batch.seqs) - new_numbers  # sequence numbers begin at 1
    if unlisted or repeated < 0:  # the numbers outside all ranges are unknown
        repeated = 0
    connection.run(
        "INSERT INTO sequences (proxy_id, org_id, highest, unlisted, repeated, repeated_ms)"
        " VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (proxy_id, org_id) DO UPDATE SET highest = excluded.highest,"
        " unlisted = excluded.unlisted, repeated = sequences.repeated + excluded.repeated,"
        " repeated_ms = coalesce(excluded.repeated_ms, sequences.repeated_ms)",
        (
            *(*key, highest, unlisted + _drop_surplus(connection, key, added=len(after) > len(before))),
            *(repeated, wall_ms if repeated else None),
        ),
    )


def _count_implausible(connection: Connection, batch: NewBatch, accepted: int, wall_ms: int) -> None:
    count = min(batch.implausible, accepted)  # events that were received before have been counted before
    if count:
        connection.run(
            "INSERT INTO implausible_times (proxy_id, org_id, count, latest_ms) VALUES (?, ?, ?, ?)"
            " ON CONFLICT (proxy_id, org_id) DO UPDATE SET count = implausible_times.count + excluded.count,"
            " latest_ms = excluded.latest_ms",
            (batch.proxy_id, batch.org_id, count, wall_ms),
        )


def _gaps(connection: Connection, proxy_id: str, org_id: str, within: Gap) -> list[Gap]:
    """Return each gap in a proxy's sequence numbers that overlaps the range `within`.

    Of the gaps that begin before the range `within`, only the last gap can overlap the range.
    """
    rows = connection.rows(
        "SELECT first, last FROM sequence_gaps"
        " WHERE proxy_id = ?1 AND org_id = ?2 AND last >= ?3 AND first <= ?4"
        " AND first >= coalesce((SELECT max(first) FROM sequence_gaps"
        " WHERE proxy_id = ?1 AND org_id = ?2 AND first <= ?3), 0) ORDER BY first",
        (proxy_id, org_id, within.first, within.last),
    )
    return [Gap(*row) for row in rows]


def _replace_gaps(connection: Connection, key: tuple[str, str], before: list[Gap], after: list[Gap]) -> None:
    gone, new = set(before) - set(after), set(after) - set(before)
    if gone:
        connection.many(
            "DELETE FROM sequence_gaps WHERE proxy_id = ? AND org_id = ? AND first = ?",
            [(*key, gap.first) for gap in gone],
        )
    if new:
        connection.many(
            "INSERT INTO sequence_gaps (proxy_id, org_id, first, last) VALUES (?, ?, ?, ?)",
            [(*key, *gap) for gap in new],
        )


def _drop_surplus(connection: Connection, key: tuple[str, str], *, added: bool) -> int:
    """Delete the newest gaps beyond the limit, and return how many sequence numbers are in these gaps."""
    if not added:
        return 0
    rows = connection.rows(
        "DELETE FROM sequence_gaps WHERE proxy_id = ?1 AND org_id = ?2 AND first >= (SELECT first"
        " FROM sequence_gaps WHERE proxy_id = ?1 AND org_id = ?2 ORDER BY first LIMIT 1 OFFSET ?3)"
        " RETURNING last - first + 1",
        (*key, _MOST_GAPS),
    )
    return sum(size for (size,) in rows)


def _forget_old(connection: Connection, table: str, proxy_id: str) -> None:
    connection.run(
        f"DELETE FROM {table} WHERE proxy_id = ?1 AND received_ms < (SELECT received_ms FROM {table}"  # noqa: S608
        " WHERE proxy_id = ?1 ORDER BY received_ms DESC LIMIT 1 OFFSET ?2)",
        (proxy_id, _HISTORY - 1),
    )


def _seen(connection: Connection, proxy_id: str, now: int) -> None:
    connection.run("UPDATE proxies SET last_seen_ms = ? WHERE proxy_id = ?", (now, proxy_id))
