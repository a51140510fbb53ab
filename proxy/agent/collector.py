"""Moves records from the workers' spool segments into journals: each one once, whoever is killed when.

A pass reads what there is, gives every record its organisation's next sequence number, writes the
journals, saves cursors and numbers in one state, and only then deletes segments that are used up: once both
slots of the state say so, so that either of them alone is enough to lose nothing. What is missing from a
stream (a deleted segment, a damaged block) takes its numbers all the same: segment headers count records
per organisation.
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

_PASS_BYTES: Final = 1024 * 1024  # of each stream; what a pass costs by itself is spread over 3,000 events
_SHORT_PASS_BYTES: Final = 32 * 1024  # of one stream, where there is hardly any room
_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT)
_PASS_GROWTH: Final = 16 * 1024 * 1024  # room that a pass may need in the journals
_TOGETHER: Final = 16  # records: a worker that waits for this processor goes on within 0.1 ms
_STALE_SECONDS: Final = 60.0  # a prepared file that nobody took this long belongs to nobody


class Collector:
    """One pass at a time, all of it on the journal's thread."""

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
        """`collected` receives the records that were read, with the prefix of their request ids. After a pass
        that failed it receives the same ones again."""
        self._spool = spool_directory(retention)
        self._use = DiskUse(retention)
        self._journal = journal
        # Under drop-oldest the journals make way for the segments that workers are about to need.
        self._max_bytes = self._limit = max_bytes
        self._workers_room = workers_room
        if when_full == "drop-oldest":
            self._limit = max(max_bytes // 4, worker_budget(max_bytes) - workers_room)
        self._when_full = when_full
        self._proxy_id = proxy_id
        self._collected = collected
        # How long a stream may stand still before its end is asked after: its writer may be between stores.
        self._settle_seconds = settle_seconds
        self._open: dict[str, SegmentReader] = {}
        self._used_up: dict[Path, int] = {}  # and how many saves it takes until it may go
        self._still_since: dict[str, float] = {}
        self._waiting_for: dict[str, str] = {}  # by stream, why it can't be read, told of once
        self._grew = True  # room has to be measured before the journals may grow again
        self._is_short = False  # of room on the disk, for a whole pass
        self.stalled: str | None = None  # why records wait in the spool

    def run_pass(self) -> bool:
        """Collects; whether there is more to collect at once. OSError: nothing was collected, try again."""
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
        """Records that wait in the spool, as far as segment headers tell. OSError: it can't be read."""
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
        """None where the segment isn't in use, or can't be read."""
        try:
            return header_of(self._path(stream, number))
        except OSError:
            return None

    def _note_used_up(self, path: Path) -> None:
        self._used_up.setdefault(path, self._journal.saves + 2)

    def _delete_used_up(self, *, busy: bool) -> None:
        if not busy and self._journal.saves < max(self._used_up.values()):
            self._journal.commit()  # nobody else has anything to save
        for path, saves in list(self._used_up.items()):
            if self._journal.saves >= saves:
                path.unlink(missing_ok=True)
                del self._used_up[path]

    def _start_over(self) -> None:
        """What a failed pass has written is given back: on a full disk it would hold the room that the next
        one needs, and so would files that are all sent."""
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
            if read and self._is_short:  # the next may find no room; this much is done
                self._journal.commit()
        if changed:
            self._grew = True
            self._journal.commit()
        self._is_short = self._is_short and busy  # until all was collected, bit by bit
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
        """What dropping journals can bring the use down to, where so much is needed beside them. None: what
        isn't ours to drop has taken the room."""
        if needed <= self._limit:
            return self._limit
        # Without an agent, workers fill all that they may. Only what is collected can be given back.
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
        """Return whether the state changed, and whether more can be collected at once."""
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
        """Whether there were any; None if the segment can't be read."""
        assert reader.header is not None
        id_prefix, proxy_id, counts = reader.header.id_prefix, self._proxy_id(), cursor.counts
        try:
            records = reader.records(_SHORT_PASS_BYTES if self._is_short else _PASS_BYTES)
        except OSError as error:  # of the segment's disk, not of the journals'
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
        """The segment at the cursor, or the next there is; None if none is in use yet."""
        cursor = self._journal.state.streams.get(stream)
        for number in numbers:
            path = self._path(stream, number)
            if cursor is not None and (cursor.finished or number < cursor.number):
                self._note_used_up(path)  # saved as used up, killed before it was deleted
                continue
            try:
                reader = SegmentReader(path)
            except FileNotFoundError:
                continue
            except NewerSegmentError as error:
                self._wait_for(stream, f"{path}: {error}; it is left for that release")
                return None
            except DamagedSegmentError as error:
                log.error("%s: %s; set aside", path, error)
                path.rename(path.with_suffix(".damaged"))
                continue
            except OSError as error:  # a bad sector, or no file: the other streams go on
                self._wait_for(stream, f"{path} can't be read: {error.strerror}")
                return None
            if reader.header is None and reader.writer_is_gone():
                reader.look_again()  # it may have been put to use between the look and the end
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
        """Numbers for the records that lie before this segment and were never seen."""
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
        """What no header gives the organisation of: certain if there is but one, else it is counted only."""
        if not cursor.unplaced:
            return
        if len(cursor.counts) == 1:
            org_id = next(iter(cursor.counts))
            self._journal.skip(org_id, cursor.unplaced, "spool segment deleted or damaged")
            cursor.counts[org_id] += cursor.unplaced
        else:
            log.error("%d audit events of unknown organisations are missing", cursor.unplaced)
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
        """Nothing new for a while: the worker has nothing to write, or is dead, or something is damaged."""
        if not self._has_stood(stream):
            return False, False
        over = reader.writer_is_gone() or self._later_in_use(stream, cursor.number, numbers)
        if over and self._take_records(stream, cursor, reader):
            return True, True  # written between the look that found nothing and the writer's end
        if over or reader.reached is Reached.UNREADABLE:
            if reader.skip_damage():
                log.error("%s: a damaged block is skipped", reader.path)
                cursor.offset = reader.offset
                return True, True
            if over:
                gone = not self._later_in_use(stream, cursor.number, numbers)
                if gone and reader.ends_in_damage:
                    log.error("%s: its end is damaged; what it held is lost", reader.path)
                    self._journal.state.lost_ends += 1
                self._finish_segment(stream, cursor, reader, closed=gone)
                return True, not gone
        self._still_since.pop(stream, None)
        return False, False

    def _later_in_use(self, stream: str, number: int, numbers: list[int]) -> bool:
        return any(later > number and self._header(stream, later) is not None for later in numbers)

    def _without_segment(self, stream: str, numbers: list[int]) -> bool:
        """No segment to read: between two, or the stream is over and its cursor can go."""
        if numbers or not self._has_stood(stream):
            return False
        cursor = self._journal.state.streams.pop(stream, None)
        self._still_since.pop(stream, None)
        if cursor is None:
            return False
        if not cursor.finished:
            log.error("spool stream %s ended without its last segment; what it held is lost", stream)
            self._settle_unplaced(cursor)
            self._journal.state.lost_ends += 1
        return True


def _by_organisation(cursor: Cursor, records: list[tuple[int, bytes]]) -> dict[str, list[Record]]:
    """The records that can be read; the cursor counts those that can't, or are missing before them."""
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
