"""State of the collector and the shipper on disk, in two slots that are overwritten in turn.

Saving the state to a new file, which replaces the old file by a rename, needs disk space for both files. If
the disk is full, batches must still be sent, because their delivery frees room. Each save of the state
therefore overwrites the older of the two slots, whose disk space is allocated in advance. If a kill or a
crash interrupts the overwriting of one slot, the other slot still has the previously saved state.
"""

import hashlib
import os
import re
from pathlib import Path
from typing import Final

import msgspec

from proxy.process.own_process import give_to_owner_of
from proxy.rules.snapshot import sync_directory, write_at

FORMAT: Final = 1  # format of the state and of the journals that it lists
# At most two digits. A flipped bit in the space between this number and the next one would make three or
# more.
_ANY_FORMAT: Final = re.compile(rb"graphward-audit-state ([0-9]{1,2}) ")
_FIRST_LINE: Final = re.compile(
    rb"graphward-audit-state [0-9]{1,2} ([0-9]{1,20}) ([0-9]{1,12}) ([0-9a-f]{64})\n"
)
_ROUND_TO: Final = 64 * 1024


class JournalFile(msgspec.Struct):
    """Committed part of one journal file.

    If the file has more than `length` bytes, the bytes after `length` do not belong to the journal.
    """

    first: int  # first sequence number, which is also the file's name
    last: int
    length: int
    count: int


class Batch(msgspec.Struct):
    """A batch of events that the agent has perhaps already sent.

    Once the agent has saved a batch, the ID of the batch always stands for the same bytes of events.
    """

    batch_id: str
    file: int
    start: int
    end: int
    count: int
    first_seq: int
    last_seq: int


class OrganisationState(msgspec.Struct):
    next_seq: int = 1
    files: list[JournalFile] = []
    sent: int = 0  # bytes of files[0] that are done
    sent_count: int = 0
    sent_seq: int = 0  # the last sequence number that is done
    batches: list[Batch] = []  # ranges within files[0], from `sent` on without a gap
    earlier: int = 0  # last number of an earlier identity, subtracted from each number that is sent

    @property
    def pending(self) -> int:
        return sum(file.count for file in self.files) - self.sent_count


class Cursor(msgspec.Struct):
    """Position in a worker's spool stream.

    The agent has collected all records before the position of a cursor.
    """

    number: int
    offset: int  # 0 at the beginning of the segment
    ordinal: int
    counts: dict[str, int]  # per organisation, records that are collected or known to be missing
    unplaced: int = 0  # missing records whose organisation no header has shown yet
    finished: bool = False


class Gap(msgspec.Struct):
    """Sequence numbers of events that will never be delivered."""

    org_id: str
    first: int
    last: int
    cause: str
    noticed_at: float


class State(msgspec.Struct):
    streams: dict[str, Cursor] = {}
    organisations: dict[str, OrganisationState] = {}
    gaps: list[Gap] = []  # only the latest gaps
    missing: int = 0  # events lost since the directory was created
    unplaced: int = 0  # the part of `missing` whose organisation is unknown
    rejected_batches: int = 0
    dropped: int = 0  # events deleted unsent, with drop-oldest
    restarted_at: float = 0.0  # when numbers began again at 1 because the state was lost; 0: never
    proxy_id: str | None = None  # proxy that these numbers belong to; None if it is not known yet
    lost_ends: int = 0  # streams whose last segment was deleted, so that its number of events is unknown


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(State)


def encode_state(state: State) -> bytes:
    return _encoder.encode(state)


def decode_state(body: bytes) -> State:
    return _decoder.decode(body)


class NewerState(Exception):
    """A later release wrote the state, so this release must not change any file in the directory."""


class StateFile:
    def __init__(self, directory: Path) -> None:
        self._slots = (directory / "state.0", directory / "state.1")
        self.generation = 0

    def load(self) -> State | None:
        """Return the newest intact state in the file, or None if the file has no intact state."""
        newest: tuple[int, bytes] | None = None
        for slot in self._slots:
            try:
                content = slot.read_bytes()
            except FileNotFoundError:
                continue
            read = _read_slot(content)
            if read is None:
                _refuse_newer(slot, content)
            elif newest is None or read[0] > newest[0]:
                newest = read
        if newest is None:
            return None
        self.generation = newest[0]
        return decode_state(newest[1])

    def exists(self) -> bool:
        return any(slot.exists() for slot in self._slots)

    def save(self, body: bytes) -> None:
        generation = self.generation + 1
        digest = _digest(FORMAT, b"%d %d " % (generation, len(body)), body)
        content = b"graphward-audit-state %d %d %d %s\n" % (FORMAT, generation, len(body), digest) + body
        slot = self._slots[generation % 2]
        new = not slot.exists()
        fd = os.open(slot, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            give_to_owner_of(slot.parent, fd)
            size = -(-len(content) // _ROUND_TO) * _ROUND_TO
            if os.fstat(fd).st_size < size:
                os.posix_fallocate(fd, 0, size)
            write_at(fd, content, 0)
            os.fdatasync(fd)
        finally:
            os.close(fd)
        if new:
            sync_directory(slot.parent)
        self.generation = generation


def _refuse_newer(slot: Path, content: bytes) -> None:
    found = _ANY_FORMAT.match(content)
    if found is not None and int(found[1]) > FORMAT:
        raise NewerState(
            f"{slot}: a newer release wrote this file (format {int(found[1])}, this release reads {FORMAT}). "
            "Run the newer release again, because this release does not change an audit state that"
            " a newer release"
            " wrote."
        )


def _read_slot(content: bytes) -> tuple[int, bytes] | None:
    """Parse the content of one of the two slots of the state file.

    Return the generation number and the body of the slot.

    The checksum depends on the format number that this release expects, not on the format number in the slot.
    If the checksum matches, the slot has the expected format, even if a bit of its format number has flipped.
    """
    first = _FIRST_LINE.match(content)
    if first is None:
        return None
    body = content[first.end() : first.end() + int(first[2])]
    digest = _digest(FORMAT, b"%s %s " % (first[1], first[2]), body)
    return (int(first[1]), body) if digest == first[3] else None


def _digest(form: int, head: bytes, body: bytes) -> bytes:
    """Return the checksum of the agent's stored state.

    The checksum of a state file includes the format number if the format is 2 or later. Because the checksum
    covers the format, a release cannot read a state that another release wrote in a different format.
    """
    tag = b"" if form == 1 else b"%d " % form
    return hashlib.sha256(tag + head + body).hexdigest().encode()
