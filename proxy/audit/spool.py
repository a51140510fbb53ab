"""A worker's side of the spool: append a record to memory that outlives it, rotate, survive a full disk.

`append` runs on the worker's loop for every request and makes no system call. All that may wait for the
disk is in `maintain`, which the worker calls off its loop. The two run at the same time, so they share
only what one of them alone assigns, and queues whose ends each belong to one. Only where more requests end
at once than was prepared for does `append` prepare a segment itself: a moment's wait is better than a
request without an event.
"""

import contextlib
import fcntl
import mmap
import os
import struct
import threading
import time
import uuid
import zlib
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal

from proxy.audit.segment import (
    END_CHECK,
    END_CLOSED,
    END_MARK_BYTES,
    END_ROTATED,
    FRAME_HEADER,
    IN_USE_OFFSET,
    MAX_FRAME,
    MAX_RECORD,
    Header,
    SegmentName,
    encode_rest,
    encode_start,
    header_bytes,
    header_of,
    parse_name,
)
from proxy.process.own_process import give_to_owner_of, make_directory

WhenFull = Literal["refuse", "drop-oldest"]

MIN_SEGMENT_BYTES: Final = 4 * MAX_FRAME
_RESERVE_SHARE: Final = (
    8  # workers leave 1/8 of the budget to the agent, whose journals are larger than the spool
)
_KEPT_FREE: Final = 64 * 1024 * 1024  # of the disk, or this share of a small one, workers leave to the agent
_KEPT_SHARE: Final = 4
_POPULATE_WRITE: Final = 23  # MADV_POPULATE_WRITE, Linux 5.14
_POPULATE_STEP: Final = 128 * 1024
_MOST_PREPARED: Final = 64 * MAX_FRAME  # bytes; segments for more are prepared when they are needed
_SPARE_SHARE: Final = 8  # of the room that is left, which the other workers count on too
SILENT_SECONDS: Final = 1.0  # a disk that takes longer than that to say what it can do is one without room
_TABLE_SHARE: Final = 4  # the counts of so many organisations that they take more than 1/4 are left out
_QUARANTINE: Final = ("rejected", "resend")
_COUNTING_SHARE: Final = 100  # of the time, at most, goes to counting what was set aside
_PAGE: Final = mmap.PAGESIZE

_head: Final = struct.Struct("<IQ").pack
_crc32: Final = zlib.crc32


class SpoolFull(Exception):
    """No room for the record: `ready` was ignored."""


def spool_directory(retention: Path) -> Path:
    return retention / "spool"


def worker_budget(max_bytes: int) -> int:
    """How much of MaxDiskBytes may be in use for a worker to take another segment."""
    return max_bytes - max_bytes // _RESERVE_SHARE


def kept_free(disk: os.statvfs_result) -> int:
    """What workers leave of that disk to the agent."""
    return min(_KEPT_FREE, disk.f_blocks * disk.f_frsize // _KEPT_SHARE)


def used_bytes(directory: Path, but: tuple[str, ...] = ()) -> int:
    """What files take of the disk, `but` those below folders of these names; one that just vanished takes
    nothing."""
    total = 0
    for folder, folders, files in os.walk(directory):
        folders[:] = [each for each in folders if each not in but]
        for name in files:
            with contextlib.suppress(OSError):
                total += os.stat(os.path.join(folder, name)).st_size
    return total


class DiskUse:
    """What all audit files take of the disk, for who asks again and again. Batches that were set aside may be
    many and lie there until an operator comes: counting them takes 1/100 of the time at most."""

    def __init__(self, retention: Path) -> None:
        self._retention = retention
        self._quarantined_bytes = 0
        self._count_again_at = 0.0

    def count_quarantined(self) -> None:
        """Anew, if it is time for that."""
        began = time.monotonic()
        if began >= self._count_again_at:
            self._quarantined_bytes = sum([used_bytes(self._retention / each) for each in _QUARANTINE])
            self._count_again_at = began + _COUNTING_SHARE * (time.monotonic() - began)

    def total(self) -> int:
        """With what was set aside as it was counted."""
        return self._quarantined_bytes + used_bytes(self._retention, but=_QUARANTINE)


@contextlib.contextmanager
def budget_lock(retention: Path) -> Iterator[None]:
    """Held while room is measured and taken, so that two processes never take the same room."""
    fd = os.open(retention / "budget.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        give_to_owner_of(retention, fd)
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


class _Segment:
    """A mapped segment; the lock on its descriptor shows the agent that the writer is alive."""

    __slots__ = ("fd", "mapped", "number", "path", "words")

    def __init__(self, path: Path, number: int, fd: int, mapped: mmap.mmap) -> None:
        self.path = path
        self.number = number
        self.fd = fd
        self.mapped = mapped
        self.words = memoryview(mapped).cast("I")

    def exists(self) -> bool:
        own = os.fstat(self.fd)
        try:
            there = os.stat(self.path)
        except OSError:
            return False
        return (own.st_ino, own.st_dev) == (there.st_ino, there.st_dev)

    def end(self, offset: int, mark: int) -> None:
        self.words[(offset >> 2) + 1] = END_CHECK
        self.words[offset >> 2] = mark

    def release(self) -> None:
        self.words.release()
        self.mapped.close()
        os.close(self.fd)


class SpoolWriter:
    """One worker process's stream of records, in segments under `<directory>/spool`. There is room for none
    before the first `maintain`."""

    def __init__(
        self,
        directory: Path,
        *,
        segment_bytes: int,
        max_bytes: int,
        when_full: WhenFull,
        id_prefix: int,
    ) -> None:
        if segment_bytes < MIN_SEGMENT_BYTES:
            raise ValueError(f"segments must have at least {MIN_SEGMENT_BYTES} bytes")
        self.id_prefix = id_prefix
        self.stream = uuid.uuid4().hex
        self.needs_maintenance = True
        self.problem: str | None = None  # why there is no further segment, for the log
        self.dropped = 0  # records deleted unsent, under drop-oldest
        self._directory = directory
        self._use = DiskUse(directory)
        self._segment_bytes = segment_bytes & ~7
        self._max_bytes = max_bytes
        self._when_full = when_full
        self._maintaining = threading.Lock()
        self._prepared: deque[_Segment] = deque()  # maintain appends, append takes from the left
        self._retired: deque[_Segment] = deque()  # append appends, maintain takes from the left
        self._next_number = 0
        self._counts: dict[str, int] = {}
        self._ordinal = 0
        self._active: _Segment | None = None
        self._offset = 0
        self._end = 0  # no record may reach past it; 0 makes the next append rotate
        self._half = 0
        self._reserved = 0  # for requests that have begun
        self._wanted = MAX_FRAME  # what is prepared goes by it
        self._spare = 0  # what segments may still be prepared for
        self._silent = False  # the disk, at present
        self._usable = self._usable_bytes()

    @property
    def ready(self) -> bool:
        """Whether another request may begin: there is room for its record and all that are reserved."""
        return self._room >= self._reserved + MAX_FRAME

    @property
    def _room(self) -> int:
        return self._end - self._offset + len(self._prepared) * self._usable + self._spare

    def promise(self, size: int) -> bool:
        """Whether there is room for a request's records of so many bytes; if so it is reserved, until
        `reserve` counts again."""
        reserved = self._reserved
        if self._room < reserved + max(size, MAX_FRAME):
            return False
        self._reserved = reserved + size
        return True

    @property
    def has_promised(self) -> bool:
        """Whether anything was promised since `reserve` counted."""
        return self._reserved + MAX_FRAME > self._wanted

    def reserve(self, size: int) -> None:
        """Keeps room for so many bytes of records of requests that have begun, and one record more: prepared
        for some, and within MaxDiskBytes for all."""
        self._reserved = size
        self._wanted = size + MAX_FRAME
        if self.problem is None and not self._has_ample_room():
            self.needs_maintenance = True

    def note_silence(self) -> None:
        """Said on the loop while a `maintain` has been under way for over SILENT_SECONDS: what is prepared is
        all the room until it ends, for nobody knows whether there will be more."""
        self._silent = True
        self._spare = 0
        self.problem = f"the disk has not responded for over {SILENT_SECONDS:.0f} s"

    def append(self, org_id: str, payload: bytes) -> None:
        """Writes one record of that organisation. Nothing here can wait."""
        length = len(payload)
        start = self._offset
        end = start + FRAME_HEADER + length
        if end > self._end:
            start = self._rotate(length)
            end = start + FRAME_HEADER + length
        active = self._active
        assert active is not None
        ordinal = self._ordinal
        # The length makes the record count, so it comes last and in one aligned store.
        active.mapped[start + 4 : end] = _head(_crc32(payload, ordinal & 0xFFFFFFFF), ordinal) + payload
        active.words[start >> 2] = length
        self._ordinal = ordinal + 1
        self._offset = offset = (end + 7) & ~7
        self._counts[org_id] = self._counts.get(org_id, 0) + 1
        if offset > self._half:
            self.needs_maintenance = True
            self._half = self._segment_bytes

    def maintain(self) -> None:
        """Prepares segments ahead and gives back old ones; called off the loop, each second and on need."""
        if not self._maintaining.acquire(blocking=False):
            return
        try:
            self.needs_maintenance = False
            while self._retired:
                self._retired.popleft().release()
            self._use.count_quarantined()
            self._forget_deleted_files()
            self.problem = None
            while not self._has_ample_room():
                self._prepared.append(self._prepare())
            self._leave_deleted_file()
            self._spare = self._room_for_segments() // self._segment_bytes * self._usable // _SPARE_SHARE
        except OSError as error:
            self.problem = str(error)
            self._spare = 0
        finally:
            self._silent = False
            self._maintaining.release()

    def close(self) -> None:
        """Ends the stream in good order; what was prepared and not used is removed."""
        with self._maintaining:
            if self._active is not None:
                self._active.end(self._offset, END_CLOSED)
                self._retired.append(self._active)
                self._active = None
                self._offset = self._end = 0
            while self._prepared:
                unused = self._prepared.popleft()
                unused.path.unlink(missing_ok=True)
                self._retired.append(unused)
            while self._retired:
                self._retired.popleft().release()

    def _has_ample_room(self) -> bool:
        """One whole segment beside the active one, and what is reserved twice over, within reason."""
        prepared = len(self._prepared) * self._usable
        return prepared >= self._usable and self._end - self._offset + prepared >= 2 * self._to_prepare()

    def _to_prepare(self) -> int:
        return min(self._wanted, _MOST_PREPARED)

    def _usable_bytes(self) -> int:
        """What a segment holds for certain: its last record may leave almost MAX_FRAME unused."""
        table = min(header_bytes(len(self._counts)), self._segment_bytes // _TABLE_SHARE)
        return self._segment_bytes - table - END_MARK_BYTES - MAX_FRAME

    def _rotate(self, length: int) -> int:
        """Puts the next segment to use, then seals the one before; the offset of the next record."""
        if length > MAX_RECORD:
            raise ValueError(f"a record of {length} bytes is over the {MAX_RECORD} that a segment takes")
        if not self._prepared:
            self._prepare_now()
        segment = self._prepared.popleft()
        offset = self._put_to_use(segment)
        previous, before = self._active, self._offset
        self._active, self._offset, self._end = segment, offset, self._segment_bytes - END_MARK_BYTES
        self._half = self._segment_bytes // 2
        self._usable = self._usable_bytes()
        self.needs_maintenance = True
        if previous is not None:
            previous.end(before, END_ROTATED)
            self._retired.append(previous)
        return offset

    def _prepare_now(self) -> None:
        """Raises SpoolFull where that can't be done. A silent disk is waited for once, not by each record."""
        if not self._maintaining.acquire(timeout=0.0 if self._silent else SILENT_SECONDS):
            self.note_silence()
            raise SpoolFull("no segment is prepared, and the disk does not respond")
        try:
            if not self._prepared:  # else `maintain` has just done it
                self._prepared.append(self._prepare())
        except OSError as error:
            raise SpoolFull(str(error)) from None
        finally:
            self._maintaining.release()

    def _put_to_use(self, segment: _Segment) -> int:
        counts = self._counts
        if header_bytes(len(counts)) > self._segment_bytes // _TABLE_SHARE:
            counts = {}
        header = Header(
            stream=self.stream,
            number=segment.number,
            data_offset=0,
            id_prefix=self.id_prefix,
            first_ordinal=self._ordinal,
            created_ms=int(time.time() * 1000),
            counts=counts,
        )
        rest = encode_rest(header)
        end = IN_USE_OFFSET + 4 + len(rest)
        segment.mapped[IN_USE_OFFSET + 4 : end] = rest
        segment.words[IN_USE_OFFSET >> 2] = 1
        return (end + 7) & ~7

    def _forget_deleted_files(self) -> None:
        for segment in list(self._prepared):
            if not segment.exists():
                with contextlib.suppress(ValueError):  # append may have taken it this very moment
                    self._prepared.remove(segment)
                    segment.release()

    def _leave_deleted_file(self) -> None:
        """Leaves an active segment that somebody deleted: what it holds is lost once the agent lets go."""
        active = self._active
        if active is None or active.exists():
            return
        while len(self._prepared) * self._usable < max(self._usable, self._to_prepare()):
            self._prepared.append(self._prepare())
        self._end = 0

    def _prepare(self) -> _Segment:
        """A preallocated, mapped, populated file that counts for nothing yet; OSError if there is no room."""
        folder = spool_directory(self._directory)
        make_directory(folder)
        number = self._next_number
        path = folder / str(SegmentName(self.stream, number))
        unfinished = path.with_suffix(".tmp")
        unfinished.unlink(missing_ok=True)
        fd = os.open(unfinished, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            give_to_owner_of(folder, fd)
            fcntl.flock(fd, fcntl.LOCK_EX)
            with budget_lock(self._directory):
                self._make_room()
                # Blocks are taken here, so that a full disk is an error now and never a SIGBUS in append.
                os.posix_fallocate(fd, 0, self._segment_bytes)
            mapped = mmap.mmap(fd, self._segment_bytes)
            mapped[:16] = encode_start()
            _populate(mapped)
            os.rename(unfinished, path)
        except BaseException:
            os.close(fd)
            unfinished.unlink(missing_ok=True)
            raise
        self._next_number = number + 1
        return _Segment(path, number, fd, mapped)

    def _make_room(self) -> None:
        while (problem := self._want_of_room()) is not None:
            if self._when_full == "refuse" or not self._drop_oldest():
                raise OSError(problem)

    def _want_of_room(self, dropped: int = 0) -> str | None:
        """Why a segment has no room, also once so many bytes were dropped."""
        limit = worker_budget(self._max_bytes)
        used = self._use.total() - dropped
        if used + self._segment_bytes > limit:
            return f"Audit.MaxDiskBytes: {used} of {limit} bytes in use, a segment has no room"
        free, kept = self._free_and_kept()
        free += dropped
        if free < self._segment_bytes + kept:
            return f"No space left: {free} bytes are free on the disk, and {kept} are kept for the agent"
        return None

    def _room_for_segments(self) -> int:
        """Bytes that could still be taken, those that would be dropped for it included."""
        limit = worker_budget(self._max_bytes)
        used = self._use.total() if self._when_full == "refuse" else 0
        free, kept = self._free_and_kept()
        return max(0, min(limit - used, free - kept))

    def _free_and_kept(self) -> tuple[int, int]:
        """Of the disk. Were one that is smaller than the budget all segments, the agent could write no line
        of a journal and so never free one."""
        disk = os.statvfs(self._directory)
        return disk.f_bavail * disk.f_frsize, kept_free(disk)

    def _drop_oldest(self) -> bool:
        """Deletes the oldest finished segment of any worker; False if there is none, or if all of them
        together don't make the room."""
        finished = sorted(_finished_segments(spool_directory(self._directory)), key=lambda found: found[0])
        if self._want_of_room(sum(_size(path) for _, path, _ in finished)) is not None:
            return False
        for _, path, records in finished:
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
                self.dropped += records
                return True
        return False


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _finished_segments(folder: Path) -> Iterator[tuple[int, Path, int]]:
    """(created, path, records) of each segment that its stream has left for a later one."""
    later: dict[str, Header] = {}
    names = [name for name in map(parse_name, os.listdir(folder)) if name is not None]
    for name in sorted(names, key=lambda name: (name.stream, -name.number)):
        path = folder / str(name)
        header = header_of(path)
        if header is None:
            continue
        if name.stream in later:
            yield header.created_ms, path, later[name.stream].first_ordinal - header.first_ordinal
        later[name.stream] = header


def _populate(mapped: mmap.mmap) -> None:
    """Takes the page faults now. In steps, because the interpreter lock is held during each."""
    for offset in range(0, len(mapped), _POPULATE_STEP):
        length = min(_POPULATE_STEP, len(mapped) - offset)
        try:
            mapped.madvise(_POPULATE_WRITE, offset, length)
        except OSError:  # an older kernel
            for page in range(offset, offset + length, _PAGE):
                mapped[page] = mapped[page]
        time.sleep(0)
