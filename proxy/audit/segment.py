"""Format of a spool segment file: header, audit records and end marks.

A spool segment is a preallocated file. A reader can read a segment that a writer still extends. All numbers
are little-endian.

    0   magic "GWSPOOL1"                  48  u64 ordinal of the first record in the stream
    8   u32 format version                56  u64 created, Unix ms
    12  u32 1 once the segment is in use  64  u32 length of the table
    16  stream ID, 16 bytes               68  u32 crc32 of bytes 16..68 and the table
    32  u32 segment number                72  table: JSON object, organisation -> records before this segment
    36  u32 offset of the first record
    40  u64 ID prefix of the worker

    record: u32 length, u32 crc32(payload, seeded with the ordinal), u64 ordinal, payload, padding to 8 bytes
    end:    u32 mark, u32 END_CHECK

The writer writes the u32 that makes a header or record valid (`in use`, `length`) last. So a SIGKILL of the
writer leaves only complete records in the segment.

Some processors show the memory writes of another processor out of order. So a reader may find a record whose
checksum does not match yet. If the checksum does not match, the reader reads the record again.
"""

import fcntl
import os
import re
import struct
import uuid
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final
from zlib import crc32

import msgspec

MAGIC: Final = b"GWSPOOL1"
FORMAT_VERSION: Final = 1
MAX_RECORD: Final = 16 * 1024

IN_USE_OFFSET: Final = 12
FIXED_HEADER: Final = 72
FRAME_HEADER: Final = 16
MAX_FRAME: Final = FRAME_HEADER + MAX_RECORD + 8
END_ROTATED: Final = 0xFFFFFFFF  # the stream continues in the next segment
END_CLOSED: Final = 0xFFFFFFFE  # the writer stopped in an orderly way: the stream is complete
END_CHECK: Final = 0x474E4445
END_MARK_BYTES: Final = 8

_HEADER_START = struct.Struct("<8sII")
_HEADER_REST = struct.Struct("<16sIIQQQI")
_U32 = struct.Struct("<I")
_FRAME = struct.Struct("<IIQ")
_MARK = struct.Struct("<II")
_SOMETHING = re.compile(rb"[^\0]")
_READ_BYTES: Final = 256 * 1024

_NAME = re.compile(r"([0-9a-f]{32})-([0-9]{10})\.seg")
_table_decoder = msgspec.json.Decoder(dict[str, int])


class DamagedSegmentError(Exception):
    """Error because the header of the spool segment is damaged."""


class NewerSegmentError(DamagedSegmentError):
    """A newer release wrote the spool segment, so only a newer release can read it."""


@dataclass(frozen=True, slots=True)
class SegmentName:
    stream: str
    number: int

    def __str__(self) -> str:
        return f"{self.stream}-{self.number:010d}.seg"


def parse_name(name: str) -> SegmentName | None:
    matched = _NAME.fullmatch(name)
    return None if matched is None else SegmentName(matched[1], int(matched[2]))


@dataclass(frozen=True, slots=True)
class Header:
    stream: str
    number: int
    data_offset: int
    id_prefix: int
    first_ordinal: int
    created_ms: int
    counts: dict[str, int]  # records of this stream in earlier segments, per organisation


def encode_start() -> bytes:
    """Return the first bytes of a prepared spool segment that is not in use yet."""
    return _HEADER_START.pack(MAGIC, FORMAT_VERSION, 0)


def encode_rest(header: Header) -> bytes:
    """Return the part of the segment header after the 32-bit word `in use`.

    `encode_rest` computes the header field `data_offset`, and ignores the value in `header`.
    """
    table = msgspec.json.encode(header.counts)
    fixed = _HEADER_REST.pack(
        uuid.UUID(header.stream).bytes,
        header.number,
        _aligned(FIXED_HEADER + len(table)),
        header.id_prefix,
        header.first_ordinal,
        header.created_ms,
        len(table),
    )
    return fixed + _U32.pack(crc32(table, crc32(fixed))) + table


def header_bytes(organisations: int) -> int:
    """Return the maximum size in bytes of a segment header with this number of organisations.

    In the segment header, each organisation takes a UUID text and a count.
    """
    return FIXED_HEADER + 64 * (organisations + 1)


def _aligned(offset: int) -> int:
    return (offset + 7) & ~7


def read_header(fd: int) -> Header | None:
    """Return the segment's header; None if the segment is prepared but not in use yet.

    Raise DamagedSegmentError if the file is neither a segment in use nor a prepared segment.
    """
    start = os.pread(fd, FIXED_HEADER, 0)
    if len(start) < FIXED_HEADER:
        raise DamagedSegmentError("the spool segment is shorter than its header")
    magic, version, in_use = _HEADER_START.unpack_from(start)
    if magic == MAGIC and version > FORMAT_VERSION:
        raise NewerSegmentError(
            f"a newer release wrote this spool segment (format {version}, this release reads "
            f"{FORMAT_VERSION})"
        )
    if magic != MAGIC or version != FORMAT_VERSION or in_use not in (0, 1):
        raise DamagedSegmentError("the file is not a spool segment in a format that this release reads")
    if not in_use:
        return None
    fixed = start[16:68]
    stream, number, data_offset, id_prefix, ordinal, created, table_length = _HEADER_REST.unpack(fixed)
    table = os.pread(fd, table_length, FIXED_HEADER) if table_length < 1 << 28 else b""
    if crc32(table, crc32(fixed)) != _U32.unpack_from(start, 68)[0] or len(table) != table_length:
        raise DamagedSegmentError("the checksum in the segment header does not match the header")
    counts = _table_decoder.decode(table)
    return Header(uuid.UUID(bytes=stream).hex, number, data_offset, id_prefix, ordinal, created, counts)


_READING: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # a FIFO of that name must not block


def header_of(path: Path) -> Header | None:
    """Return the header of the spool segment at `path`.

    Return None if the segment is missing or damaged, or has no header yet.
    """
    try:
        fd = os.open(path, _READING)
    except FileNotFoundError:
        return None
    try:
        return read_header(fd)
    except DamagedSegmentError:
        return None
    finally:
        os.close(fd)


class Reached(Enum):
    """State of a segment reader after it has read all available records."""

    MORE = "more"  # stopped at the caller's limit
    WAITING = "waiting"  # nothing is written here yet
    ROTATED = "rotated"
    CLOSED = "closed"
    UNREADABLE = "unreadable"  # being written now, or damaged: only a later read can decide


class SegmentReader:
    """Reader of one spool segment from a position onwards.

    The reader can read a deleted segment file to its end.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = os.open(path, _READING)
        try:
            self.look_again()
        except BaseException:
            os.close(self._fd)
            raise
        self.reached = Reached.WAITING

    def look_again(self) -> None:
        """Read the header of the spool segment. The header is None until the segment is in use."""
        self.header = read_header(self._fd)
        self.offset = self.header.data_offset if self.header is not None else 0
        self.ordinal = self.header.first_ordinal if self.header is not None else 0
        # The checksum covers half of an ordinal. The whole ordinal must be one that the segment can contain.
        self._last_ordinal = self.ordinal + os.fstat(self._fd).st_size // FRAME_HEADER

    def close(self) -> None:
        os.close(self._fd)

    def writer_is_gone(self) -> bool:
        """Return True if no process holds the writer's lock on this segment."""
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        fcntl.flock(self._fd, fcntl.LOCK_UN)
        return True

    @property
    def ends_in_damage(self) -> bool:
        """True if neither an end mark nor unwritten space follows the readable data of the segment.

        A writer that was killed leaves unwritten space after its last record.
        """
        if self.reached is Reached.WAITING:
            return self._bytes_left() < END_MARK_BYTES
        return self.reached is Reached.UNREADABLE

    def _bytes_left(self) -> int:
        """Return the number of bytes from the reader's position to the end of the file.

        Return a negative number if the file now ends before the reader's position.
        """
        return os.fstat(self._fd).st_size - self.offset

    def records(self, limit: int) -> list[tuple[int, bytes]]:
        """Return pairs (ordinal, payload) for about `limit` bytes of audit records.

        After a call of `records`, the reader's attribute `reached` gives the reason why the reader stopped.
        """
        found: list[tuple[int, bytes]] = []
        while limit > 0:
            began = self.offset
            self._one_read(os.pread(self._fd, max(MAX_FRAME, min(limit, _READ_BYTES)), began), found)
            if self.reached is not Reached.MORE:
                break
            limit -= self.offset - began
        return found

    def _one_read(self, data: bytes, found: list[tuple[int, bytes]]) -> None:
        """Append the complete records at the start of `data` to `found`."""
        position, next_ordinal = 0, self.ordinal
        while True:
            if len(data) - position < FRAME_HEADER:
                self.reached = _short(data[position:]) if position == 0 else Reached.MORE
                break
            length, check, ordinal = _FRAME.unpack_from(data, position)
            if length == 0 or length > MAX_RECORD:
                self.reached = _no_record(length, check)
                break
            end = position + FRAME_HEADER + length
            if end > len(data):
                self.reached = Reached.MORE if position else Reached.UNREADABLE
                break
            payload = data[position + FRAME_HEADER : end]
            if crc32(payload, ordinal & 0xFFFFFFFF) != check or not self._may_follow(next_ordinal, ordinal):
                self.reached = Reached.UNREADABLE
                break
            found.append((ordinal, payload))
            position, next_ordinal = (end + 7) & ~7, ordinal + 1
        self.offset += position
        self.ordinal = next_ordinal

    def _may_follow(self, next_ordinal: int, ordinal: int) -> bool:
        return next_ordinal <= ordinal <= self._last_ordinal

    def skip_damage(self) -> bool:
        """Move the reader to the next complete record or end mark.

        Return False if the rest of the segment has no complete record and no end mark.

        Payloads of audit records are JSON text, which contains no NUL. So no payload can look like the header
        of an audit record.
        """
        data = os.pread(self._fd, max(0, self._bytes_left()), self.offset)
        position = 8
        while (found := _SOMETHING.search(data, position)) is not None:
            position = found.start() & ~7
            if self._is_whole(data, position):
                self.offset += position
                return True
            position += 8
        return False

    def _is_whole(self, data: bytes, position: int) -> bool:
        if len(data) - position < END_MARK_BYTES:
            return False
        if _MARK.unpack_from(data, position) in ((END_ROTATED, END_CHECK), (END_CLOSED, END_CHECK)):
            return True
        if len(data) - position < FRAME_HEADER:
            return False
        length, check, ordinal = _FRAME.unpack_from(data, position)
        if not 0 < length <= MAX_RECORD or not self._may_follow(self.ordinal, ordinal):
            return False
        payload = data[position + FRAME_HEADER : position + FRAME_HEADER + length]
        return len(payload) == length and crc32(payload, ordinal & 0xFFFFFFFF) == int(check)


def _short(rest: bytes) -> Reached:
    """Interpret the last bytes of a segment file if they are too few for a record header."""
    if len(rest) < END_MARK_BYTES:
        return Reached.WAITING
    return _no_record(*_MARK.unpack_from(rest))


def _no_record(word: int, check: int) -> Reached:
    if word == 0:
        return Reached.WAITING
    if check == END_CHECK and word == END_ROTATED:
        return Reached.ROTATED
    if check == END_CHECK and word == END_CLOSED:
        return Reached.CLOSED
    return Reached.UNREADABLE
