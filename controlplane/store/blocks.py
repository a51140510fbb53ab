"""Storage of audit events in blocks.

A block is an array that holds all or some of the events of one batch.

The position of an event is the position of its block plus the index of the event in the array. A purged event
leaves null in the array, so that other events keep their positions until the block is deleted.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

import msgspec
import orjson

from controlplane.clock import LATEST_MS, milliseconds
from controlplane.store.block_body import events_of, packed, unpacked
from controlplane.store.chain_table import PURGED, Chain, Head, purged_places
from controlplane.store.database import Connection
from controlplane.store.interface import (
    MOST_AHEAD_MS,
    UNREADABLE,
    BlockPlace,
    BlockSlice,
    NewBatch,
    StoredEvent,
    StoreError,
)

MAX_READ_BYTES: Final = 16 * 1024 * 1024  # bytes of events that are read at once for the search index
# bytes of events for a reader that reads a whole time range while others wait
MAX_SLICE_BYTES: Final = 4 * 1024 * 1024
_LEAST_MS: Final = -(1 << 63)
# largest number of events of a block: a search reads single events, but a block is read as a whole
EVENTS: Final = 64


class _Kept(msgspec.Struct):
    id: str
    time: datetime


_log = logging.getLogger(__name__)
_decode_kept: Final = msgspec.json.Decoder(list[_Kept | None]).decode


def _kept(body: bytes) -> list[_Kept | None]:
    """Return the ID and time of each event in a block, with None for each purged event."""
    return _decode_kept(unpacked(body))


def add_blocks(
    connection: Connection, batch: NewBatch, digest: bytes, chain: Chain, head: Head
) -> tuple[int, int]:
    """Store those events of the batch that have an ID which the store does not have yet.

    Return the number of stored events, and the position of the oldest stored event.
    """
    dialect = connection.dialect
    position = connection.first_position(len(batch.events))
    events, times = batch.events, batch.times
    inserted = connection.count(
        "INSERT INTO event_ids (org_id, id, block)"  # noqa: S608
        f" SELECT ?1, value, CAST(?2 AS bigint) + key / {EVENTS} * {EVENTS}"
        f" FROM {dialect.texts} WHERE TRUE ON CONFLICT (org_id, id) DO NOTHING",
        (batch.org_id, position, dialect.listed(batch.ids)),
    )
    if inserted < len(events):
        places = _new_ones(connection, batch, position)
        events, times = [events[at] for at in places], [times[at] for at in places]
    starts = range(0, len(events), EVENTS)
    blocks = {position + first: events[first : first + EVENTS] for first in starts}
    connection.many(
        "INSERT INTO blocks (position, count, org_id, proxy_id, least_ms, most_ms, body)"
        " VALUES (?, ?, ?, ?, ?, ?, ?)",
        [
            (at, len(of_block), batch.org_id, batch.proxy_id, min(ms), max(ms), packed(of_block))
            for (at, of_block), ms in zip(
                blocks.items(), (times[first : first + EVENTS] for first in starts), strict=True
            )
        ],
    )
    if blocks:
        chain.add_blocks(connection, batch.org_id, batch.proxy_id, digest, blocks, head)
        connection.many(
            "INSERT INTO receipts (position, org_id, received_ms) VALUES (?, ?, ?)",
            [(at, batch.org_id, chain.now_ms) for at in blocks],
        )
    connection.positions_used(position + len(events) - 1)
    return len(events), position


def _new_ones(connection: Connection, batch: NewBatch, position: int) -> list[int]:
    """Return the batch indexes of new events: those whose IDs the store lacks, once for each ID."""
    dialect = connection.dialect
    rows = connection.rows(
        f"SELECT id FROM event_ids WHERE org_id = ? AND block >= ? AND id {dialect.among}",  # noqa: S608
        (batch.org_id, position, dialect.listed(batch.ids)),
    )
    new = {each for (each,) in rows}
    places = {each: at for at, each in reversed([*enumerate(batch.ids)]) if each in new}
    kept = sorted(places.values())
    connection.many(
        "UPDATE event_ids SET block = ? WHERE org_id = ? AND id = ?",
        [(position + at // EVENTS * EVENTS, batch.org_id, batch.ids[old]) for at, old in enumerate(kept)],
    )
    return kept


def events_after(connection: Connection, position: int, limit: int, settled: int) -> list[StoredEvent]:
    """Return stored events in position order, up to the position `settled`.

    The result has at most MAX_READ_BYTES, plus the bytes of one event, which may have 5 MB. Each event of a
    damaged block is returned as UNREADABLE, so that a reader continues after the block.
    """
    blocks = connection.each(
        "SELECT position, count, org_id, body FROM blocks WHERE position >="
        " coalesce((SELECT max(position) FROM blocks WHERE position <= ?), 0) AND position <= ?"
        " ORDER BY position",
        (position, settled),
    )
    found: list[StoredEvent] = []
    size = 0
    with blocks as rows:
        for first, count, org_id, body in rows:
            for at, text in enumerate(_texts(body) or [UNREADABLE] * count, first):
                if at <= position or text == PURGED:
                    continue
                found.append(StoredEvent(at, org_id, text))
                size += len(text)
                if len(found) == limit or size >= MAX_READ_BYTES:
                    return found
    return found


def _texts(body: bytes) -> list[bytes] | None:
    """Return the events of a block, or None if the block is damaged."""
    try:
        return [bytes(event) for event in events_of(body)]
    except (ValueError, RecursionError):
        return None


def find_event(connection: Connection, org_id: str, event_id: str) -> StoredEvent | None:
    """Return the organisation's event with this ID, or None if the store does not have it.

    Raise StoreError if the event is in a block that is damaged.
    """
    row = connection.row(
        "SELECT position, body FROM event_ids JOIN blocks ON position = block"
        " WHERE event_ids.org_id = ? AND id = ?",
        (org_id, event_id),
    )
    if row is None:
        return None
    first, body = row
    try:
        events = zip(events_of(body), _kept(body), strict=True)
    except ValueError as error:
        what = f"the block of events at position {first} of organisation {org_id} is damaged"
        raise StoreError(f"{what}: restore it from a backup: {error}") from error
    for at, (raw, kept) in enumerate(events, first):
        if kept is not None and kept.id == event_id:
            return StoredEvent(at, org_id, bytes(raw))
    return None


def holds_all(connection: Connection, batch: NewBatch) -> bool:
    """Return True if the store has every event of the batch, with equal JSON values."""
    try:
        return _holds_all(connection, batch)
    except (RecursionError, ValueError):  # nested too deep for a comparison, or in a damaged block
        return False


def _as_it_came(event: Mapping[str, object]) -> Mapping[str, object]:
    """Return the event without the JSON fields that the control plane added to the received event."""
    return {name: value for name, value in event.items() if name not in ("implausibleTime", "receivedAt")}


def _holds_all(connection: Connection, batch: NewBatch) -> bool:
    position, kept = -1, {}
    for event_id, event in zip(batch.ids, batch.events, strict=True):
        row = connection.row(
            "SELECT block FROM event_ids WHERE org_id = ? AND id = ?", (batch.org_id, event_id)
        )
        if row is None:
            return False
        if row[0] != position:  # events of a batch have adjacent positions
            position = row[0]
            (body,) = connection.row("SELECT body FROM blocks WHERE position = ?", (position,))
            kept = {each["id"]: each for each in orjson.loads(unpacked(body)) if each is not None}
        if _as_it_came(kept.get(event_id, {})) != _as_it_came(orjson.loads(bytes(event))):
            return False
    return True


def hidden_event(
    connection: Connection, org_id: str, position: int, span: tuple[int, int], body: bytes
) -> tuple[int, str] | None:
    """Return the index and ID of the block's first event that searches can't find.

    Searches can't find an event if its ID is not in the table of IDs, or if its time lies outside the block's
    time span. After purges, the stored time span of a block may be wider than the time span of its remaining
    events. `body` contains the bytes of the block as they are in the store, possibly compressed.
    """
    events = [(at, event) for at, event in enumerate(_kept(body)) if event is not None]
    dialect = connection.dialect
    rows = connection.rows(
        f"SELECT id FROM event_ids WHERE org_id = ? AND block = ? AND id {dialect.among}",  # noqa: S608
        (org_id, position, dialect.listed([event.id for _, event in events])),
    )
    known = {event_id for (event_id,) in rows}
    least_ms, most_ms = span
    for at, event in events:
        if event.id not in known or not least_ms <= milliseconds(event.time) <= most_ms:
            return at, event.id
    return None


def blocks_between(
    connection: Connection, org_id: str, from_ms: int, to_ms: int, before: BlockPlace | None
) -> BlockSlice:
    """Return whole blocks that may have events in the time range, the block with the latest beginning first.

    A returned block may also have events outside the time range. The function omits damaged blocks and logs
    them.
    """
    least_ms, position = before or (to_ms, 0)
    blocks = connection.each(
        "SELECT least_ms, position, body FROM blocks"
        " WHERE org_id = ?1 AND least_ms <= ?4 AND (least_ms < ?4 OR position < ?5) AND most_ms >= ?2"
        " AND least_ms < ?3 ORDER BY least_ms DESC, position DESC",
        (org_id, from_ms, to_ms, least_ms, position),
    )
    found: list[bytes] = []
    size = 0
    with blocks as rows:
        for least_ms, position, body in rows:
            events = _texts(body)
            if events is None:
                _log.error(
                    "organisation %s: skipped the damaged block at position %d while reading events",
                    org_id,
                    position,
                )
                continue
            texts = [text for text in events if text != PURGED]
            found += texts
            size += sum(map(len, texts))
            if size >= MAX_SLICE_BYTES:
                return BlockSlice(found, BlockPlace(least_ms, position))
    return BlockSlice(found, None)


def count_between(connection: Connection, org_id: str, from_ms: int, to_ms: int) -> int:
    """Estimate the number of events in the time range, by the time of the first event in each block."""
    return int(
        connection.row(
            "SELECT coalesce(sum(count), 0) FROM blocks WHERE org_id = ? AND least_ms >= ? AND least_ms < ?",
            (org_id, from_ms, to_ms),
        )[0]
    )


def purge_events(connection: Connection, org_id: str, before_ms: int, limit: int, chain: Chain) -> int:
    """Delete up to `limit` events that were received before `before_ms` and happened before that time.

    Return the number of deleted events. If the time of an event lies in the future, only the time when the
    event was received decides about its deletion. All events of a damaged block are deleted together, when
    the last of these events may be deleted.
    """
    purged, reached = 0, (_LEAST_MS, 0)
    while purged < limit:
        block = connection.row(
            "SELECT received_ms, receipts.position, body, count, most_ms"
            " FROM receipts JOIN blocks USING (position)"
            " WHERE receipts.org_id = ?1 AND received_ms < ?2 AND (received_ms, receipts.position) > (?4, ?5)"
            " AND (least_ms < ?2 OR most_ms > received_ms + ?3) ORDER BY received_ms, position LIMIT 1",
            (org_id, before_ms, MOST_AHEAD_MS, *reached),
        )
        if block is None:
            break
        received_ms, position, body, *span = block
        latest_ms = _latest_that_stays(connection, org_id, position, received_ms, before_ms, chain.now_ms)
        if latest_ms is not None:
            ends = before_ms, latest_ms
            if _texts(body) is None:
                purged += _purge_damaged(connection, org_id, position, span, ends, chain)
            else:
                purged += _purge_block(connection, org_id, position, body, ends, limit - purged, chain)
        reached = received_ms, position
    return purged


def _latest_that_stays(
    connection: Connection, org_id: str, position: int, received_ms: int, before_ms: int, now_ms: int
) -> int | None:
    """Return the latest plausible time of an event in the block, in ms.

    Return None if retention may not delete any event of the block yet. The audit chain proves the time of
    receipt, so a receipt time that somebody edits cannot cause a deletion.
    """
    row = connection.row(
        "SELECT kind, chained_ms FROM chain WHERE org_id = ? AND position = ? AND kind <> 'purge'",
        (org_id, position),
    )
    if row is None:
        return LATEST_MS
    kind, chained_ms = row
    # the clock was ahead then, and the receipt has been corrected since
    if chained_ms > now_ms + MOST_AHEAD_MS:
        chained_ms = received_ms
    if chained_ms < before_ms:
        return int(chained_ms) + MOST_AHEAD_MS
    return None if kind == "block" else LATEST_MS


def _purge_block(
    connection: Connection, org_id: str, position: int, body: bytes, ends: tuple[int, int],
    limit: int, chain: Chain,
) -> int:  # fmt: skip
    """Delete the block's events that happened before the first time, or after the second time, in `ends`."""
    kept, events = _kept(body), events_of(body)
    times = {at: milliseconds(event.time) for at, event in enumerate(kept) if event is not None}
    before_ms, latest_ms = ends
    due = (at for at, ms in times.items() if ms < before_ms or ms > latest_ms)
    gone = sorted(due, key=times.__getitem__)[:limit]
    ids = connection.dialect.listed([kept[at].id for at in gone])  # type: ignore[union-attr]
    connection.run(
        f"DELETE FROM event_ids WHERE org_id = ? AND id {connection.dialect.among}",  # noqa: S608
        (org_id, ids),
    )
    if gone:
        chain.add_purge(connection, org_id, position, events, sorted(gone))
    for at in gone:
        del times[at]
    if times:
        left = packed(event if at in times else PURGED for at, event in enumerate(events))
        connection.run(
            "UPDATE blocks SET least_ms = ?, most_ms = ?, body = ? WHERE position = ?",
            (min(times.values()), max(times.values()), left, position),
        )
    else:
        _delete_block(connection, position)
    return len(gone)


def _purge_damaged(
    connection: Connection, org_id: str, position: int, span: Sequence[int], ends: tuple[int, int],
    chain: Chain,
) -> int:  # fmt: skip
    """Delete a damaged block, unless retention may still require the block's latest event.

    The IDs of the events in the deleted block remain in the table of IDs. To find the IDs of a damaged
    block's events, the store would have to read all IDs of the organisation.
    """
    (count, most_ms), (before_ms, latest_ms) = span, ends
    if before_ms <= most_ms <= latest_ms:
        return 0
    gone = sorted(set(range(count)) - purged_places(connection, org_id, position))
    chain.add_purge(connection, org_id, position, [UNREADABLE] * count, gone)
    _delete_block(connection, position)
    _log.error("organisation %s: purged the damaged block of events at position %d", org_id, position)
    return len(gone)


def _delete_block(connection: Connection, position: int) -> None:
    for table in ("blocks", "event_digests", "receipts"):
        connection.run(f"DELETE FROM {table} WHERE position = ?", (position,))  # noqa: S608


def received_before(connection: Connection, org_id: str, before_ms: int) -> int:
    """Return the position of the organisation's last event that was received before `before_ms`."""
    row = connection.row(
        "SELECT position FROM receipts WHERE org_id = ? AND received_ms >= ?"
        " ORDER BY received_ms, position LIMIT 1",
        (org_id, before_ms),
    )
    if row is not None:
        return int(row[0]) - 1
    last = connection.row(
        "SELECT position + count - 1 FROM chain WHERE org_id = ? AND kind <> 'purge'"
        " ORDER BY position DESC LIMIT 1",
        (org_id,),
    )
    return 0 if last is None else int(last[0])


def received_at(connection: Connection, position: int) -> int | None:
    row = connection.row(
        "SELECT received_ms FROM receipts WHERE position <= ? ORDER BY position DESC LIMIT 1",
        (position,),
    )
    return None if row is None else int(row[0])


def correct_receipts(connection: Connection, org_id: str, now_ms: int) -> int:
    """Change receipt times that lie in the future to the current time.

    Return the number of blocks whose receipt times were changed.

    A receipt time can lie in the future if the control plane's clock was ahead when the block arrived.
    """
    return connection.count(
        "UPDATE receipts SET received_ms = ?1 WHERE org_id = ?2 AND received_ms > ?1 + ?3",
        (now_ms, org_id, MOST_AHEAD_MS),
    )
