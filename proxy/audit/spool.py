"""Spool writer of a worker: append audit records to mapped files, rotate segments, survive a full disk.

`append` runs on the worker's event loop for every request and makes no system call. The function `maintain`
does all work that may wait for the disk. The worker calls `maintain` outside its event loop.

Because `append` and `maintain` may run at the same time, they never assign the same variable. `append` and
`maintain` use opposite ends of each queue that they share. If requests that end at the same time need more
segments than are prepared, `append` prepares a segment itself. A short wait for the disk is better than a
request without an audit event.
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
_RESERVE_SHARE: Final = 8  # the agent has 1/8 of the budget, because its journals are larger than the spool
# bytes of the disk that workers leave to the agent; on a small disk it is this share
_KEPT_FREE: Final = 64 * 1024 * 1024
_KEPT_SHARE: Final = 4
_POPULATE_WRITE: Final = 23  # MADV_POPULATE_WRITE, Linux 5.14
_POPULATE_STEP: Final = 128 * 1024
# bytes to prepare for; segments for more are prepared when they are needed
_MOST_PREPARED: Final = 64 * MAX_FRAME
# share of the remaining space that one worker counts on, because the others count on it too
_SPARE_SHARE: Final = 8
SILENT_SECONDS: Final = 1.0  # seconds after which a disk that does not respond counts as full
_TABLE_SHARE: Final = 4  # counts of organisations are omitted if they take more than 1/4 of a segment
_QUARANTINE: Final = ("rejected", "resend")
_COUNTING_SHARE: Final = 100  # counting quarantined batches takes at most 1/100 of the time
_PAGE: Final = mmap.PAGESIZE

_head: Final = struct.Struct("<IQ").pack
_crc32: Final = zlib.crc32


class SpoolFull(Exception):
    """Error because the spool has no room for the audit record: the caller ignored `ready`."""


def spool_directory(retention: Path) -> Path:
    return retention / "spool"


def worker_budget(max_bytes: int) -> int:
    """Return the number of used bytes up to which a worker may take another spool segment.

    The argument `max_bytes` is the setting `Audit.MaxDiskBytes`.
    """
    return max_bytes - max_bytes // _RESERVE_SHARE


def kept_free(disk: os.statvfs_result) -> int:
    """Return the number of bytes on the disk that workers leave free for the agent."""
    return min(_KEPT_FREE, disk.f_blocks * disk.f_frsize // _KEPT_SHARE)


def used_bytes(directory: Path, but: tuple[str, ...] = ()) -> int:
    """Return the size of all files in a directory, except the files in the subdirectories named in `but`.

    A file that vanishes during the count counts as 0 bytes.
    """
    total = 0
    for folder, folders, files in os.walk(directory):
        folders[:] = [each for each in folders if each not in but]
        for name in files:
            with contextlib.suppress(OSError):
                total += os.stat(os.path.join(folder, name)).st_size
    return total


class DiskUse:
    """Disk space that all audit files take, for callers that measure the space repeatedly.

    Quarantined batches can be many, and remain until an operator removes them. A process spends at most 1 %
    of its time on counting the quarantined batches.
    """

    def __init__(self, retention: Path) -> None:
        self._retention = retention
        self._quarantined_bytes = 0
        self._count_again_at = 0.0

    def count_quarantined(self) -> None:
        """Count the quarantined batches again, if the last count is old enough."""
        began = time.monotonic()
        if began >= self._count_again_at:
            self._quarantined_bytes = sum([used_bytes(self._retention / each) for each in _QUARANTINE])
            self._count_again_at = began + _COUNTING_SHARE * (time.monotonic() - began)

    def total(self) -> int:
        """Return the total size of all audit files, with the last counted size of quarantined batches."""
        return self._quarantined_bytes + used_bytes(self._retention, but=_QUARANTINE)


@contextlib.contextmanager
def budget_lock(retention: Path) -> Iterator[None]:
    """Lock the disk budget while a process measures the disk use and allocates disk space.

    The lock keeps two processes from allocating the same disk space.
    """
    fd = os.open(retention / "budget.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        give_to_owner_of(retention, fd)
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


class _Segment:
    """A spool segment file that is mapped into memory.

    While the segment's writer runs, the writer holds a lock on the file descriptor. The agent checks the lock
    on the file descriptor to find out if the segment's writer runs.
    """

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
    """Stream of audit records of one worker process, in segments under `<directory>/spool`.

    Until `maintain` has been called once, the spool has no room for audit records.
    """

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
            raise ValueError(f"segment_bytes is {segment_bytes}: use at least {MIN_SEGMENT_BYTES}")
        self.id_prefix = id_prefix
        self.stream = uuid.uuid4().hex
        self.needs_maintenance = True
        self.problem: str | None = None  # reason why no further segment can be prepared, for the log
        self.dropped = 0  # records deleted before they were sent, under drop-oldest
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
        self._end = 0  # no record may extend past it; 0 makes the next append rotate
        self._half = 0
        self._reserved = 0  # bytes for requests that have begun
        self._wanted = MAX_FRAME  # bytes that segments are prepared for
        self._spare = 0  # bytes that further segments could be prepared for
        self._silent = False  # the disk does not respond now
        self._usable = self._usable_bytes()

    @property
    def ready(self) -> bool:
        """True if the spool has room for one more audit record, in addition to all reserved bytes."""
        return self._room >= self._reserved + MAX_FRAME

    @property
    def _room(self) -> int:
        return self._end - self._offset + len(self._prepared) * self._usable + self._spare

    def promise(self, size: int) -> bool:
        """Reserve `size` bytes for a request's audit records, and return True, if the spool has the room.

        If the result is True, the bytes stay reserved until the next call of `reserve`.
        """
        reserved = self._reserved
        if self._room < reserved + max(size, MAX_FRAME):
            return False
        self._reserved = reserved + size
        return True

    @property
    def has_promised(self) -> bool:
        """True if `promise` has reserved more bytes since the last call of `reserve`."""
        return self._reserved + MAX_FRAME > self._wanted

    def reserve(self, size: int) -> None:
        """Reserve `size` bytes for audit records of requests that have begun, and room for one more record.

        The prepared spool segments may cover only a part of the reserved bytes. All reserved bytes are within
        `Audit.MaxDiskBytes`.
        """
        self._reserved = size
        self._wanted = size + MAX_FRAME
        if self.problem is None and not self._has_ample_room():
            self.needs_maintenance = True

    def note_silence(self) -> None:
        """Count only prepared segments as room in the spool, because the disk does not respond.

        If a call of `maintain` takes longer than SILENT_SECONDS, the worker calls `note_silence` on its event
        loop. Until the slow call of `maintain` ends, the worker cannot determine if the spool has more room.
        """
        self._silent = True
        self._spare = 0
        self.problem = f"the disk has not responded for over {SILENT_SECONDS:.0f} s"

    def append(self, org_id: str, payload: bytes) -> None:
        """Write one audit record of an organisation to the spool.

        The call waits for the disk only if no spool segment is prepared.
        """
        length = len(payload)
        start = self._offset
        end = start + FRAME_HEADER + length
        if end > self._end:
            start = self._rotate(length)
            end = start + FRAME_HEADER + length
        active = self._active
        assert active is not None
        ordinal = self._ordinal
        # The length makes the record valid, so it is written last and in one aligned store.
        active.mapped[start + 4 : end] = _head(_crc32(payload, ordinal & 0xFFFFFFFF), ordinal) + payload
        active.words[start >> 2] = length
        self._ordinal = ordinal + 1
        self._offset = offset = (end + 7) & ~7
        self._counts[org_id] = self._counts.get(org_id, 0) + 1
        if offset > self._half:
            self.needs_maintenance = True
            self._half = self._segment_bytes

    def maintain(self) -> None:
        """Prepare new spool segments, and release the segments that are no longer used.

        The worker calls `maintain` each second and on demand.
        """
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
        """Write the end mark of the record stream and release its segments.

        The worker deletes the files of prepared segments that were never used.
        """
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
        """Return True if a segment is prepared and the spool has room for two times `_to_prepare` bytes."""
        prepared = len(self._prepared) * self._usable
        return prepared >= self._usable and self._end - self._offset + prepared >= 2 * self._to_prepare()

    def _to_prepare(self) -> int:
        return min(self._wanted, _MOST_PREPARED)

    def _usable_bytes(self) -> int:
        """Return the number of audit record bytes that fit into any one spool segment.

        Almost MAX_FRAME bytes at the end of a segment can stay unused, if the next record does not fit into
        them.
        """
        table = min(header_bytes(len(self._counts)), self._segment_bytes // _TABLE_SHARE)
        return self._segment_bytes - table - END_MARK_BYTES - MAX_FRAME

    def _rotate(self, length: int) -> int:
        """Switch to the next spool segment, then seal the previous segment.

        Return the offset at which the next audit record begins in the new segment.
        """
        if length > MAX_RECORD:
            raise ValueError(
                f"an audit record has {length} bytes, but a spool segment accepts at most {MAX_RECORD}"
            )
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
        """Prepare a spool segment now, because an audit record needs one.

        Raise SpoolFull if no segment can be prepared.

        If the disk does not respond, only the first audit record waits for the disk.
        """
        if not self._maintaining.acquire(timeout=0.0 if self._silent else SILENT_SECONDS):
            self.note_silence()
            raise SpoolFull("no spool segment is ready, and the disk does not respond")
        try:
            if not self._prepared:  # otherwise `maintain` has just prepared one
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
                with contextlib.suppress(ValueError):  # append may have taken it just now
                    self._prepared.remove(segment)
                    segment.release()

    def _leave_deleted_file(self) -> None:
        """Replace the spool segment in use, because somebody deleted its file.

        The agent can read the deleted segment only while the file is open.
        """
        active = self._active
        if active is None or active.exists():
            return
        while len(self._prepared) * self._usable < max(self._usable, self._to_prepare()):
            self._prepared.append(self._prepare())
        self._end = 0

    def _prepare(self) -> _Segment:
        """Return a preallocated, memory-mapped segment file that is not in use yet.

        Raise OSError if the disk has no room for the segment.
        """
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
                # Disk blocks are allocated here, so that a full disk is an error now and never a SIGBUS in
                # append.
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
        """Return why no further segment fits after `dropped` bytes are deleted, or None if a segment fits."""
        limit = worker_budget(self._max_bytes)
        used = self._use.total() - dropped
        if used + self._segment_bytes > limit:
            return f"Audit.MaxDiskBytes: {used} of {limit} bytes in use, so another segment does not fit"
        free, kept = self._free_and_kept()
        free += dropped
        if free < self._segment_bytes + kept:
            return f"No space left: {free} bytes are free on the disk, and {kept} are kept for the agent"
        return None

    def _room_for_segments(self) -> int:
        """Return the number of bytes that new spool segments can still take on the disk.

        The result includes the space of old segments that may be deleted.
        """
        limit = worker_budget(self._max_bytes)
        used = self._use.total() if self._when_full == "refuse" else 0
        free, kept = self._free_and_kept()
        return max(0, min(limit - used, free - kept))

    def _free_and_kept(self) -> tuple[int, int]:
        """Return the free bytes of the disk, and the bytes that workers leave free for the agent.

        If segments filled a disk that is smaller than the budget, the agent could not write to its journal.
        Without the journal, the agent could never free a segment.
        """
        disk = os.statvfs(self._directory)
        return disk.f_bavail * disk.f_frsize, kept_free(disk)

    def _drop_oldest(self) -> bool:
        """Delete the oldest finished spool segment of any worker.

        Return False if no finished segment exists, or if deleting all finished segments would not free enough
        space for one segment.
        """
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
    """Yield (created, path, records) for each segment that is not the last segment of its stream."""
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
    """Cause the page faults of mapped memory now, in steps.

    No other thread of the process can run until the current step of page faults ends.
    """
    for offset in range(0, len(mapped), _POPULATE_STEP):
        length = min(_POPULATE_STEP, len(mapped) - offset)
        try:
            mapped.madvise(_POPULATE_WRITE, offset, length)
        except OSError:  # older kernels do not support it
            for page in range(offset, offset + length, _PAGE):
                mapped[page] = mapped[page]
        time.sleep(0)
