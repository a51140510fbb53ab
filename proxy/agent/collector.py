"""Collector that moves records from the workers' spool segments into journals, each record exactly once.

The collector moves each record exactly once, even if any process is killed at any time.

A pass of the collector reads the available records and gives each record the next sequence number of its
organisation. The pass writes the records to the journals. Then the pass saves its positions in the spool and
the sequence numbers together, in one saved state.

The file of the saved state has two slots. The collector deletes a completely read spool segment only when
both slots list the segment as used up. So no record is lost if only one slot of the state is readable.

Records that are missing from a stream (a deleted segment, a damaged block) still take sequence numbers.
Segment headers count records per organisation, so the collector can compute the numbers of missing records.
"""

import contextlib
import errno
import logging
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from proxy.agent.journal import Journal
from proxy.agent.statefile import Cursor
from proxy.audit.record import Record, decode, event_of, lines_of
from proxy.audit.segment import (
    DamagedSegmentError,
    Header,
    NewerSegmentError,
    Reached,
    SegmentName,
    SegmentReader,
    header_of,
    parse_name,
)
from proxy.audit.spool import DiskUse, WhenFull, spool_directory, used_bytes, worker_budget

log = logging.getLogger(__name__)

# Bytes to read from each stream in a pass; spreads the cost of a pass over about 3,000 events.
_PASS_BYTES: Final = 1024 * 1024
_SHORT_PASS_BYTES: Final = 32 * 1024  # bytes to read from one stream when there is little room left
_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT)
_PASS_GROWTH: Final = 16 * 1024 * 1024  # bytes of room that a pass may need in the journals
# Records to process at once, so that a worker that waits for this processor continues within 0.1 ms.
_TOGETHER: Final = 16
_STALE_SECONDS: Final = 60.0  # seconds after which a prepared file that no worker uses is deleted


class Collector:
    """Collector that moves audit records from the workers' spools into the agent's journals.

    The collector runs one pass at a time, always on the journal's thread.
    """

    def __init__(
        self,
        retention: Path,
        journal: Journal,
        *,
        max_bytes: int,
        when_full: WhenFull,
        workers_room: int,
        proxy_id: Callable[[], str | None],
        collected: Callable[[Sequence[Record], int], None] | None = None,
        settle_seconds: float = 1.0,
    ) -> None:
        """The callback `collected` receives the collected audit records and the prefix of their request IDs.

        After a failed pass of the collector, the callback `collected` receives the records of that pass
        again.
        """
        self._spool = spool_directory(retention)
        self._use = DiskUse(retention)
        self._journal = journal
        # With drop-oldest, the journals leave room for the segments that workers are about to need.
        self._max_bytes = self._limit = max_bytes
        self._workers_room = workers_room
        if when_full == "drop-oldest":
            self._limit = max(max_bytes // 4, worker_budget(max_bytes) - workers_room)
        self._when_full = when_full
        self._proxy_id = proxy_id
        self._collected = collected
        # Seconds without a new record after which the collector checks whether the stream has ended. The
        # writer may be between two stores.
        self._settle_seconds = settle_seconds
        self._open: dict[str, SegmentReader] = {}
        self._used_up: dict[Path, int] = {}  # number of saves after which the segment can be deleted
        self._still_since: dict[str, float] = {}
        self._waiting_for: dict[str, str] = {}  # per stream, the reason why it can't be read, logged once
        self._grew = True  # the use of the disk must be measured before the journals may grow again
        self._is_short = False  # the disk has too little room for a whole pass
        self.stalled: str | None = None  # reason why records stay in the spool

    def run_pass(self) -> bool:
        """Move the audit records that are available in the spool into the journals, in one pass.

        Return True if more records can be collected immediately. Raise OSError if the pass collected no
        records; the caller then tries again.
        """
        try:
            busy = self._pass()
        except OSError as error:
            self.stalled = str(error)
            self._is_short = error.errno in _NO_ROOM
            self._start_over()
            raise
        if self._used_up:
            self._delete_used_up(busy=busy)
        return busy

    def close(self) -> None:
        for reader in self._open.values():
            reader.close()
        self._open.clear()

    def backlog(self) -> int:
        """Return the number of records in the spool, according to the segment headers.

        Raise OSError if the spool can't be read.
        """
        waiting = 0
        for stream, numbers in self._segments().items():
            cursor = self._journal.state.streams.get(stream)
            done = cursor.ordinal if cursor is not None else 0
            for number in reversed(numbers):
                header = self._header(stream, number)
                if header is not None:
                    waiting += max(0, header.first_ordinal - done)
                    break
        return waiting

    def _header(self, stream: str, number: int) -> Header | None:
        """Return the header of a spool segment; None if the segment is not in use or can't be read."""
        try:
            return header_of(self._path(stream, number))
        except OSError:
            return None

    def _note_used_up(self, path: Path) -> None:
        self._used_up.setdefault(path, self._journal.saves + 2)

    def _delete_used_up(self, *, busy: bool) -> None:
        if not busy and self._journal.saves < max(self._used_up.values()):
            self._journal.commit()  # no other save is due, so save once more
        for path, saves in list(self._used_up.items()):
            if self._journal.saves >= saves:
                path.unlink(missing_ok=True)
                del self._used_up[path]

    def _start_over(self) -> None:
        """Undo everything that a failed pass of the collector has written.

        On a full disk, data of a failed pass of the collector would use the room that the next pass of the
        collector needs. Journal files whose events are all sent also use disk space that the next pass of the
        collector needs.
        """
        self._journal.rollback()
        self._used_up.clear()
        self.close()
        self._journal.cut_to_committed()
        if self._is_short:
            self._journal.give_up_sent()

    def _pass(self) -> bool:
        if self._grew:
            self._grew = not self._find_room()
            if self._grew:
                return False
        self.stalled = None
        segments = self._segments()
        busy = changed = False
        for stream in segments.keys() | self._journal.state.streams.keys():
            read, more = self._collect_stream(stream, segments.get(stream, []))
            changed = changed or read
            busy = busy or more
            if read and self._is_short:  # the next stream may find no room, so save this progress
                self._journal.commit()
        if changed:
            self._grew = True
            self._journal.commit()
        self._is_short = self._is_short and busy  # keep the short passes until everything is collected
        return busy

    def _find_room(self) -> bool:
        growth = min(_PASS_GROWTH, self._limit // 32)
        self._use.count_quarantined()
        while (used := self._use.total()) + growth > self._limit:
            if self._journal.give_up_sent():
                continue
            limit = self._limit_within_reach(used - self._journal.held_bytes + growth)
            if limit is not None and used + growth <= limit:
                return True
            if limit is not None and self._when_full == "drop-oldest" and self._journal.drop_oldest():
                continue
            self.stalled = f"Audit.MaxDiskBytes: {used} of {self._limit} bytes in use"
            return False
        return True

    def _limit_within_reach(self, needed: int) -> int | None:
        """Return how many bytes the audit directory may use.

        Return None if the agent can't meet this limit by deleting journals, because data that the agent must
        not delete uses too much space.

        `needed` is the number of bytes that the agent needs without its journals: the other audit files, and
        the room for a pass of the collector.
        """
        if needed <= self._limit:
            return self._limit
        # Without an agent, workers fill all the room that they may use. Only collected records free any room.
        collectable = used_bytes(self._spool) - self._workers_room
        return self._max_bytes if collectable > 0 and needed - collectable <= self._limit else None

    def _segments(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        try:
            names = os.listdir(self._spool)
        except FileNotFoundError:
            return found
        for text in names:
            name = parse_name(text)
            if name is not None:
                found.setdefault(name.stream, []).append(name.number)
            elif text.endswith(".tmp"):
                self._remove_stale(self._spool / text)
        for numbers in found.values():
            numbers.sort()
        return found

    def _remove_stale(self, path: Path) -> None:
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > _STALE_SECONDS:
                path.unlink()

    def _path(self, stream: str, number: int) -> Path:
        return self._spool / str(SegmentName(stream, number))

    def _collect_stream(self, stream: str, numbers: list[int]) -> tuple[bool, bool]:
        """Return whether the state changed, and whether more records can be collected immediately."""
        reader = self._open.get(stream)
        if reader is None:
            reader = self._next_segment(stream, numbers)
            if reader is None:
                return self._without_segment(stream, numbers), False
        cursor = self._journal.state.streams[stream]
        before = cursor.ordinal, cursor.offset
        if self._take_records(stream, cursor, reader) is None:
            return False, False
        if reader.reached is Reached.MORE:
            self._still_since.pop(stream, None)
            return True, True
        if reader.reached in (Reached.ROTATED, Reached.CLOSED):
            self._finish_segment(stream, cursor, reader, closed=reader.reached is Reached.CLOSED)
            return True, True
        changed = (cursor.ordinal, cursor.offset) != before
        if changed:
            self._still_since.pop(stream, None)
            return True, False
        return self._stands_still(stream, cursor, reader, numbers)

    def _take_records(self, stream: str, cursor: Cursor, reader: SegmentReader) -> bool | None:
        """Return True if the spool segment had any new records; None if the segment can't be read."""
        assert reader.header is not None
        id_prefix, proxy_id, counts = reader.header.id_prefix, self._proxy_id(), cursor.counts
        try:
            records = reader.records(_SHORT_PASS_BYTES if self._is_short else _PASS_BYTES)
        except OSError as error:  # the error is of the segment's disk, not of the journals' disk
            self._wait_for(stream, f"{reader.path} can't be read: {error.strerror}")
            return None
        self._waiting_for.pop(stream, None)
        for at in range(0, len(records), _TOGETHER):
            for org_id, found in _by_organisation(cursor, records[at : at + _TOGETHER]).items():
                first = self._journal.next_seq(org_id)
                events = [event_of(each, id_prefix, seq, proxy_id) for seq, each in enumerate(found, first)]
                self._journal.add(org_id, lines_of(events), len(events))
                counts[org_id] = counts.get(org_id, 0) + len(events)
                if self._collected is not None:
                    self._collected(found, id_prefix)
            os.sched_yield()
        cursor.offset, cursor.ordinal = reader.offset, max(cursor.ordinal, reader.ordinal)
        return bool(records)

    def _next_segment(self, stream: str, numbers: list[int]) -> SegmentReader | None:
        """Return the spool segment at the cursor or the next segment; None if no segment is in use yet."""
        cursor = self._journal.state.streams.get(stream)
        for number in numbers:
            path = self._path(stream, number)
            if cursor is not None and (cursor.finished or number < cursor.number):
                # Saved as used up, but the agent was killed before it deleted the segment.
                self._note_used_up(path)
                continue
            try:
                reader = SegmentReader(path)
            except FileNotFoundError:
                continue
            except NewerSegmentError as error:
                self._wait_for(stream, f"{path}: {error}; it stays there for that release")
                return None
            except DamagedSegmentError as error:
                log.error("%s: %s; renamed the spool segment to *.damaged", path, error)
                path.rename(path.with_suffix(".damaged"))
                continue
            except OSError as error:  # a bad sector, or not a file: the other streams continue
                self._wait_for(stream, f"{path} can't be read: {error.strerror}")
                return None
            if reader.header is None and reader.writer_is_gone():
                reader.look_again()  # the writer may have used it between the first look and its own end
                if reader.header is None:
                    self._note_used_up(path)
                    reader.close()
                    continue
            if reader.header is None:
                reader.close()
                return None
            self._begin_segment(stream, reader, reader.header)
            return reader
        return None

    def _wait_for(self, stream: str, why: str) -> None:
        self.stalled = why
        if self._waiting_for.get(stream) != why:
            self._waiting_for[stream] = why
            log.error("%s", why)

    def _begin_segment(self, stream: str, reader: SegmentReader, header: Header) -> None:
        cursor = self._journal.state.streams.get(stream)
        self._open[stream] = reader
        self._still_since.pop(stream, None)
        if cursor is not None and cursor.offset and cursor.number == header.number:
            reader.offset, reader.ordinal = cursor.offset, cursor.ordinal
            return
        if cursor is None:
            cursor = Cursor(0, 0, 0, {})
            self._journal.state.streams[stream] = cursor
        self._account_for_missing(cursor, header)
        cursor.number, cursor.offset = header.number, header.data_offset

    def _account_for_missing(self, cursor: Cursor, header: Header) -> None:
        """Assign sequence numbers to missing records between the cursor and the segment with this header."""
        cursor.unplaced += max(0, header.first_ordinal - cursor.ordinal)
        cursor.ordinal = max(cursor.ordinal, header.first_ordinal)
        for org_id, count in header.counts.items():
            missing = count - cursor.counts.get(org_id, 0)
            if missing > 0:
                self._journal.skip(org_id, missing, "spool segment deleted or damaged")
                cursor.counts[org_id] = count
                cursor.unplaced = max(0, cursor.unplaced - missing)
        self._settle_unplaced(cursor)

    def _settle_unplaced(self, cursor: Cursor) -> None:
        """Assign an organisation to missing records whose organisation no segment header shows.

        If the stream has only one organisation, the missing records belong to that organisation. If the
        stream has several organisations, the missing records are counted but assigned to no organisation.
        """
        if not cursor.unplaced:
            return
        if len(cursor.counts) == 1:
            org_id = next(iter(cursor.counts))
            self._journal.skip(org_id, cursor.unplaced, "spool segment deleted or damaged")
            cursor.counts[org_id] += cursor.unplaced
        else:
            log.error("lost %d audit events of unknown organisations", cursor.unplaced)
            self._journal.miss_unplaced(cursor.unplaced)
        cursor.unplaced = 0

    def _finish_segment(self, stream: str, cursor: Cursor, reader: SegmentReader, *, closed: bool) -> None:
        cursor.number += 1
        cursor.offset = 0
        if closed:
            self._settle_unplaced(cursor)
            cursor.finished = True
        reader.close()
        del self._open[stream]
        self._still_since.pop(stream, None)
        self._note_used_up(reader.path)

    def _has_stood(self, stream: str) -> bool:
        now = time.monotonic()
        return now - self._still_since.setdefault(stream, now) >= self._settle_seconds

    def _stands_still(
        self, stream: str, cursor: Cursor, reader: SegmentReader, numbers: list[int]
    ) -> tuple[bool, bool]:
        """Handle a stream without new records: the worker is idle or dead, or the segment is damaged."""
        if not self._has_stood(stream):
            return False, False
        over = reader.writer_is_gone() or self._later_in_use(stream, cursor.number, numbers)
        if over and self._take_records(stream, cursor, reader):
            return True, True  # written between the last read and the writer's end
        if over or reader.reached is Reached.UNREADABLE:
            if reader.skip_damage():
                log.error("%s: skipped a damaged block of the spool segment", reader.path)
                cursor.offset = reader.offset
                return True, True
            if over:
                gone = not self._later_in_use(stream, cursor.number, numbers)
                if gone and reader.ends_in_damage:
                    log.error(
                        "%s: the end of the spool segment is damaged; the events in it are lost", reader.path
                    )
                    self._journal.state.lost_ends += 1
                self._finish_segment(stream, cursor, reader, closed=gone)
                return True, not gone
        self._still_since.pop(stream, None)
        return False, False

    def _later_in_use(self, stream: str, number: int, numbers: list[int]) -> bool:
        return any(later > number and self._header(stream, later) is not None for later in numbers)

    def _without_segment(self, stream: str, numbers: list[int]) -> bool:
        """Handle a spool stream without a readable segment.

        Either the next segment does not exist yet, or the stream has ended and the cursor of the stream can
        be removed.
        """
        if numbers or not self._has_stood(stream):
            return False
        cursor = self._journal.state.streams.pop(stream, None)
        self._still_since.pop(stream, None)
        if cursor is None:
            return False
        if not cursor.finished:
            log.error(
                "spool stream %s ended without its last segment; the events in that segment are lost", stream
            )
            self._settle_unplaced(cursor)
            self._journal.state.lost_ends += 1
        return True


def _by_organisation(cursor: Cursor, records: list[tuple[int, bytes]]) -> dict[str, list[Record]]:
    """Return the readable records, grouped by organisation.

    Add the number of unreadable and missing records to the count in `cursor`, which is the state of a spool
    stream.
    """
    found: dict[str, list[Record]] = {}
    for ordinal, payload in records:
        cursor.unplaced += ordinal - cursor.ordinal
        cursor.ordinal = ordinal + 1
        try:
            record = decode(payload)
        except msgspec.DecodeError:
            cursor.unplaced += 1
            continue
        own = found.get(record.org_id)
        if own is None:
            own = found[record.org_id] = []
        own.append(record)
    return found
