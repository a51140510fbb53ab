"""Journals: per organisation, numbered events as JSON lines, and the state of their delivery.

All methods of a journal run on one thread. After each public method, disk and memory agree: the method saved
the state, or raised OSError and changed nothing. If the agent is killed between writing lines and saving the
state, a journal file has bytes beyond its committed length. At its next start, the agent removes the
uncommitted bytes, so that each event enters a journal exactly once.
"""

import contextlib
import hashlib
import logging
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

import msgspec

from proxy.agent import quarantine
from proxy.agent.quarantine import QuarantinedBatch
from proxy.agent.statefile import (
    Batch,
    Gap,
    JournalFile,
    OrganisationState,
    State,
    StateFile,
    decode_state,
    encode_state,
)
from proxy.process.own_process import give_to_owner_of, make_directory
from proxy.rules.snapshot import sync_directory, write_at, write_by_rename
from proxy.wire.audit_event import rfc3339, uuid7

log = logging.getLogger(__name__)

_PLAIN_NAME: Final = re.compile(r"[0-9A-Za-z_-]{1,64}")
_FILE_NAME: Final = re.compile(r"([0-9]{1,20})\.ndjson")
_SEQ: Final = re.compile(rb'"seq":([0-9]+)')
_JOURNAL: Final = "journal"
_MAX_FILE: Final = 8 * 1024 * 1024
_MIN_FILE: Final = 64 * 1024
_FILES_IN_BUDGET: Final = 64  # files within the budget, so that dropping one frees at most 1/64 of it
_IDLE_SHARE: Final = 8  # a completely sent file is deleted once it has 1/8 of its full size
_MAX_GAPS: Final = 64
_MAX_LINE: Final = 128 * 1024


class _LineHead(msgspec.Struct):
    seq: int
    time: str


_line_decoder = msgspec.json.Decoder(_LineHead)


@dataclass(frozen=True, slots=True)
class JournalStatus:
    last_seq: dict[str, int]
    pending: int
    oldest_ms: int | None  # time of the oldest event that is not delivered
    gaps: tuple[Gap, ...]
    missing: int
    unplaced: int
    rejected_batches: int
    dropped: int
    lost_ends: int
    restarted_at: float = 0.0  # when numbers began again at 1 because the state was lost; 0: never


def waiting(retention: Path) -> tuple[int, int | None]:
    """Return the number of undelivered events in the journals, and the time of the oldest event in ms.

    `waiting` only reads the journal files, so any process may call it. Raise OSError or NewerState if the
    journal files can't be read.
    """
    state = StateFile(retention).load() or State()
    oldest: list[int] = []
    for org_id, organisation in state.organisations.items():
        head = _first_line(retention / _JOURNAL, org_id, organisation) if organisation.pending else None
        moment = None if head is None else _milliseconds(head.time)
        if moment is not None:
            oldest.append(moment)
    return sum(each.pending for each in state.organisations.values()), min(oldest, default=None)


class Journal:
    def __init__(self, retention: Path, *, max_bytes: int, has_served: bool = False) -> None:
        """Open the journals in the directory `retention`.

        `has_served` is True if the proxy had rules before. If so, a missing saved state means that the state
        was lost.
        """
        self._root = retention / _JOURNAL
        self._rejected = retention / "rejected"
        self._file_bytes = min(_MAX_FILE, max(_MIN_FILE, max_bytes // _FILES_IN_BUDGET))
        self._state_file = StateFile(retention)
        state = self._state_file.load()
        make_directory(self._root)
        make_directory(self._rejected)
        self.state = State() if state is None else state
        self._saved = encode_state(self.state)
        self._lines: dict[str, list[bytes]] = {}  # lines that are not written yet
        if state is not None:
            self.cut_to_committed()
        elif any(self._files()):
            self._rebuild()
        else:
            if has_served or self._has_history():
                self._restart_numbers()
            self._save()  # a journal without a state now means that the state was lost

    # Methods for the collector.

    @property
    def saves(self) -> int:
        """Number of saves of the journals' state to disk.

        The state on disk has two slots, and each save overwrites one slot. So any two saves that follow each
        other overwrite both slots.
        """
        return self._state_file.generation

    def next_seq(self, org_id: str) -> int:
        return self._organisation(org_id).next_seq

    def add(self, org_id: str, lines: bytes, count: int) -> None:
        """Add event lines with the sequence numbers from `next_seq` on.

        The lines are part of the journal as soon as the method `commit` has returned.
        """
        self._lines.setdefault(org_id, []).append(lines)
        organisation = self._organisation(org_id)
        first, files = organisation.next_seq, organisation.files
        if not files or files[-1].length >= self._file_bytes:
            files.append(JournalFile(first, first, 0, 0))
        file = files[-1]
        file.last = first + count - 1
        file.count += count
        file.length += len(lines)
        organisation.next_seq = first + count
        if file.length >= self._file_bytes:
            self._write_lines(org_id)

    def skip(self, org_id: str, count: int, cause: str) -> None:
        """Skip the sequence numbers of missing events, so that the control plane detects the gap."""
        organisation = self._organisation(org_id)
        first = organisation.next_seq
        organisation.next_seq += count
        self._note_gap(org_id, first, first + count - 1, count, cause)

    def miss_unplaced(self, count: int) -> None:
        self.state.missing += count
        self.state.unplaced += count

    def commit(self) -> None:
        for org_id in list(self._lines):
            self._write_lines(org_id)
        self._save()

    def number_for(self, proxy_id: str, before: str | None) -> None:
        """If the pending events were numbered under an earlier proxy ID, number them again from 1.

        The control plane expects the events of each proxy to count from 1, so it would report the earlier
        numbers as missing. If an earlier release saved the state without a proxy ID, `before` is the proxy ID
        under which the events were numbered.
        """
        before = self.state.proxy_id or before or proxy_id
        if before != proxy_id:
            for org_id, organisation in self.state.organisations.items():
                organisation.earlier = self._last_of_earlier(org_id, organisation)
                organisation.batches = []  # their ids stand for bytes with other numbers
            log.warning(
                "events that proxy %s did not deliver are sent under the new proxy ID %s", before, proxy_id
            )
        self.state.proxy_id = proxy_id
        self._save()

    def _last_of_earlier(self, org_id: str, organisation: OrganisationState) -> int:
        if not organisation.pending:
            return organisation.next_seq - 1
        head = _first_line(self._root, org_id, organisation)
        return organisation.sent_seq if head is None else head.seq - 1

    def rollback(self) -> None:
        """Restore the last saved state of the journals.

        Journal files may contain bytes beyond the length in the saved state; `cut_to_committed` removes these
        bytes.
        """
        self._lines.clear()
        self.state = decode_state(self._saved)

    # Methods for the shipper.

    def pending(self) -> dict[str, int]:
        return {org_id: held.pending for org_id, held in self.state.organisations.items() if held.pending}

    def oldest_ms(self, org_id: str) -> int | None:
        organisation = self._organisation(org_id)
        if not organisation.pending:
            return None
        head = _first_line(self._root, org_id, organisation)
        return None if head is None else _milliseconds(head.time)

    def plan(self, org_id: str, *, max_events: int | None, max_bytes: int) -> Batch | None:
        """Return the batch to send now: the current batch, or a new batch.

        A new batch is saved before the proxy sends the ID of the batch.
        """
        organisation = self._organisation(org_id)
        while not organisation.batches and self._head_file(org_id, organisation) is not None:
            file = organisation.files[0]
            data = self._read(
                org_id, file, organisation.sent, min(file.length - organisation.sent, max_bytes)
            )
            good, heads = _good_lines(data, max_events)
            if good:
                organisation.batches.append(
                    Batch(
                        batch_id=new_batch_id(),
                        file=file.first,
                        start=organisation.sent,
                        end=organisation.sent + good,
                        count=len(heads),
                        first_seq=heads[0],
                        last_seq=heads[-1],
                    )
                )
            else:
                self._lose_damaged(org_id, organisation)
            self._save()
        return organisation.batches[0] if organisation.batches else None

    def body(self, org_id: str, batch: Batch) -> bytes | None:
        """Return the bytes of a batch, which never change; None if its file was deleted or truncated."""
        organisation = self._organisation(org_id)
        file = self._head_file(org_id, organisation)
        if file is None or batch not in organisation.batches:
            return None
        lines = self._read(org_id, file, batch.start, batch.end - batch.start)
        if organisation.earlier:
            lines = _renumbered(lines, organisation.earlier)
        return b'{"batchId":"%s","events":[%s]}' % (batch.batch_id.encode(), lines[:-1].replace(b"\n", b","))

    def done(self, org_id: str, batch: Batch) -> None:
        """Record that the batch was delivered or quarantined."""
        organisation = self._organisation(org_id)
        if not organisation.batches or organisation.batches[0].batch_id != batch.batch_id:
            return  # its file was removed while the batch was sent
        organisation.batches.pop(0)
        organisation.sent = batch.end
        organisation.sent_count += batch.count
        organisation.sent_seq = batch.last_seq
        consumed = self._consumed_files(organisation)
        self._save()
        for file in consumed:
            self._path(org_id, file.first).unlink(missing_ok=True)

    def renew(self, org_id: str, batch: Batch) -> None:
        """Give the events of the batch a new batch ID."""
        organisation = self._organisation(org_id)
        if organisation.batches and organisation.batches[0].batch_id == batch.batch_id:
            organisation.batches[0] = msgspec.structs.replace(batch, batch_id=new_batch_id())
            self._save()

    def split(self, org_id: str, batch: Batch) -> bool:
        """Replace the batch by two halves with new IDs.

        Return False if the batch cannot be split, because it contains a single event.
        """
        organisation = self._organisation(org_id)
        if not organisation.batches or organisation.batches[0].batch_id != batch.batch_id:
            return True
        lines = self._read(org_id, organisation.files[0], batch.start, batch.end - batch.start)
        length, heads = _good_lines(lines, max(1, batch.count // 2))
        if batch.count < 2 or not heads:
            return False
        rest = _good_lines(lines[length:], None)[1] or [batch.last_seq]
        middle = batch.start + length
        first = msgspec.structs.replace(
            batch, batch_id=new_batch_id(), end=middle, count=len(heads), last_seq=heads[-1]
        )
        second = msgspec.structs.replace(
            batch, batch_id=new_batch_id(), start=middle, count=batch.count - len(heads), first_seq=rest[0]
        )
        organisation.batches[:1] = [first, second]
        self._save()
        return True

    def quarantine(self, org_id: str, batch: Batch, body: bytes, status: int, response: str) -> Path:
        """Store a batch that was refused for good, and the response, in a file for operators."""
        refused_at = rfc3339(int(time.time() * 1000))
        span = *self.numbers_sent(org_id, batch), batch.count
        held = QuarantinedBatch(org_id, status, response, refused_at, *span, msgspec.Raw(body))
        path = self._rejected / f"{batch.batch_id}.json"
        write_by_rename(path, quarantine.encode(held))
        self.state.rejected_batches += 1
        self.done(org_id, batch)
        return path

    def numbers_sent(self, org_id: str, batch: Batch) -> tuple[int, int]:
        """Return the first and the last sequence number of a batch, as the control plane receives them."""
        earlier = self._organisation(org_id).earlier
        return batch.first_seq - earlier, batch.last_seq - earlier

    def rejected_files(self) -> int:
        """Number of refused batches that nobody has removed or sent again.

        A refused batch is a batch that the control plane refused permanently.
        """
        try:
            return sum(name.endswith(".json") for name in os.listdir(self._rejected))
        except OSError:  # the directory was removed, or the disk fails, which is reported elsewhere
            return 0

    # Methods for the whole agent.

    def status(self) -> JournalStatus:
        oldest = [ms for org_id in self.state.organisations if (ms := self.oldest_ms(org_id)) is not None]
        return JournalStatus(
            last_seq={
                org_id: held.next_seq - 1 - held.earlier for org_id, held in self.state.organisations.items()
            },
            pending=sum(self.pending().values()),
            oldest_ms=min(oldest, default=None),
            gaps=tuple(self._gaps()),
            missing=self.state.missing,
            unplaced=self.state.unplaced,
            rejected_batches=self.state.rejected_batches,
            dropped=self.state.dropped,
            lost_ends=self.state.lost_ends,
            restarted_at=self.state.restarted_at,
        )

    def _gaps(self) -> Iterator[Gap]:
        """Yield the gaps among the events of this identity, with its sequence numbers (which begin at 1)."""
        for gap in self.state.gaps:
            earlier = self._organisation(gap.org_id).earlier
            if gap.last > earlier:
                first = max(1, gap.first - earlier)
                yield msgspec.structs.replace(gap, first=first, last=gap.last - earlier)

    def verify_files(self) -> None:
        """Detect deleted or truncated journal files before the events of these files are due to be sent."""
        before = self.state.missing
        for org_id, organisation in self.state.organisations.items():
            for file in list(organisation.files):
                self._verify(org_id, organisation, file)
        if self.state.missing != before:
            self._save()

    def give_up_sent(self) -> bool:
        """Delete journal files that are completely sent, including journal files that may still grow.

        With a thousand organisations, completely sent journal files can fill the whole disk budget. Return
        True if any file was deleted.
        """
        consumed = [
            self._path(org_id, file.first)
            for org_id, organisation in self.state.organisations.items()
            for file in self._consumed_files(organisation, least=0)
        ]
        if consumed:
            self._save()
        for path in consumed:
            path.unlink(missing_ok=True)
        return bool(consumed)

    @property
    def held_bytes(self) -> int:
        """Number of bytes that would be free if the agent dropped all journals."""
        return sum(file.length for each in self.state.organisations.values() for file in each.files)

    def drop_oldest(self) -> int:
        """Delete the oldest journal file among all organisations' files, as `drop-oldest` requires.

        Return the number of events that were lost with the journal file.
        """
        # An organisation without a time has a damaged journal, and goes first.
        times = {
            org_id: self.oldest_ms(org_id) or 0
            for org_id, each in self.state.organisations.items()
            if each.pending
        }
        if not times:
            return 0
        org_id = min(times, key=lambda each: times[each])
        organisation = self._organisation(org_id)
        file = organisation.files[0]
        count = file.count - organisation.sent_count
        self._remove_from_state(org_id, organisation, file, "dropped to make room")
        self.state.dropped += count
        self._save()
        self._path(org_id, file.first).unlink(missing_ok=True)
        return count

    # Methods for files.

    def _organisation(self, org_id: str) -> OrganisationState:
        organisation = self.state.organisations.get(org_id)
        if organisation is None:
            organisation = self.state.organisations[org_id] = OrganisationState()
        return organisation

    def _path(self, org_id: str, first: int) -> Path:
        return _path(self._root, org_id, first)

    def _write_lines(self, org_id: str) -> None:
        data = b"".join(self._lines.pop(org_id))
        organisation = self._organisation(org_id)
        file = organisation.files[-1]
        committed = file.length - len(data)
        path = self._path(org_id, file.first)
        if committed:
            fd = self._open_to_append(org_id, organisation, file, committed)
        else:
            make_directory(path.parent)
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            give_to_owner_of(path.parent, fd)
            write_at(fd, data, committed)
            os.fdatasync(fd)
        finally:
            os.close(fd)
        if not committed:
            sync_directory(path.parent)
            sync_directory(self._root)

    def _open_to_append(
        self, org_id: str, organisation: OrganisationState, file: JournalFile, committed: int
    ) -> int:
        """Return the file descriptor of the journal file to append to.

        Raise OSError if the journal file is shorter than its committed length.
        """
        path = self._path(org_id, file.first)
        with contextlib.suppress(FileNotFoundError):
            fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
            if os.fstat(fd).st_size >= committed:
                return fd
            os.close(fd)
        raise _JournalGoneError(org_id, file.first)

    def _verify(self, org_id: str, organisation: OrganisationState, file: JournalFile) -> bool:
        """Return True if the journal file has its committed length.

        If the journal file is shorter than its committed length, keep the valid lines and record the gap.
        """
        path = self._path(org_id, file.first)
        try:
            if path.stat().st_size >= file.length:
                return True
            content = path.read_bytes()
        except FileNotFoundError:
            content = b""
        length, heads = _good_lines(content, None)
        begun = file is organisation.files[0]
        if length <= (organisation.sent if begun else 0):
            self._remove_from_state(org_id, organisation, file, "journal file deleted or cut")
            path.unlink(missing_ok=True)
            return False
        self._note_gap(org_id, heads[-1] + 1, file.last, file.count - len(heads), "journal file cut")
        file.length, file.count, file.last = length, len(heads), heads[-1]
        if begun:
            organisation.batches = [each for each in organisation.batches if each.end <= length]
        os.truncate(path, length)
        return False

    def _remove_from_state(
        self, org_id: str, organisation: OrganisationState, file: JournalFile, cause: str
    ) -> None:
        begun = file is organisation.files[0]
        count = file.count - (organisation.sent_count if begun else 0)
        if count:
            first = max(file.first, organisation.sent_seq + 1) if begun else file.first
            self._note_gap(org_id, first, file.last, count, cause)
        organisation.files.remove(file)
        if begun:
            organisation.batches = []
            organisation.sent = organisation.sent_count = 0

    def _head_file(self, org_id: str, organisation: OrganisationState) -> JournalFile | None:
        """Return the journal file with the next events to send; None if no events are left to send."""
        while organisation.files and organisation.pending:
            file = organisation.files[0]
            if not self._verify(org_id, organisation, file):
                self._save()
            elif file.length > organisation.sent:
                return file
            else:
                consumed = self._consumed_files(organisation)
                if not consumed:
                    organisation.sent_count = file.count  # a damaged line may have swallowed another
                    return None
                self._save()
                for each in consumed:
                    self._path(org_id, each.first).unlink(missing_ok=True)
        return None

    def _consumed_files(self, organisation: OrganisationState, least: int | None = None) -> list[JournalFile]:
        """Remove completely sent files of an organisation from the state.

        The last journal file of an organisation is removed only if the file has at least `least` bytes.
        """
        if least is None:
            least = self._file_bytes // _IDLE_SHARE
        consumed: list[JournalFile] = []
        while organisation.files and organisation.sent >= organisation.files[0].length:
            file = organisation.files[0]
            if len(organisation.files) == 1 and file.length < least:
                break
            consumed.append(organisation.files.pop(0))
            organisation.sent = organisation.sent_count = 0
        return consumed

    def _read(self, org_id: str, file: JournalFile, start: int, length: int) -> bytes:
        return _read(self._path(org_id, file.first), start, length)

    def _lose_damaged(self, org_id: str, organisation: OrganisationState) -> None:
        """Skip damaged bytes of a journal up to the next valid line.

        A bad block of the disk also destroys newlines, so the next valid line is found by its sequence
        number.
        """
        file = organisation.files[0]
        rest = self._read(org_id, file, organisation.sent, file.length - organisation.sent)
        length, following, left = _damaged_part(rest)
        before = organisation.sent_seq if organisation.sent else file.first - 1
        last, count = file.last, file.count - organisation.sent_count - left
        if following is not None and before < following <= file.last:
            last = following - 1
            count = min(count, last - before)  # there may be more damage further on
        self._note_gap(org_id, min(before + 1, last), last, count, "journal damaged")
        organisation.sent += length
        organisation.sent_count += count
        organisation.sent_seq = last

    def _note_gap(self, org_id: str, first: int, last: int, count: int, cause: str) -> None:
        self.state.missing += count
        self.state.gaps.append(Gap(org_id, first, last, cause, time.time()))
        del self.state.gaps[:-_MAX_GAPS]
        log.error("audit events %d to %d of organisation %s are missing: %s", first, last, org_id, cause)

    # Methods for the state.

    def _save(self) -> None:
        body = encode_state(self.state)
        try:
            self._state_file.save(body)
        except OSError:
            self.rollback()
            raise
        self._saved = body

    def cut_to_committed(self) -> None:
        """Remove journal files and bytes that are not part of the last saved state.

        Journal bytes that the last saved state does not list remain if a process was killed, or if a pass of
        the collector failed.
        """
        known = {
            self._path(org_id, file.first): file.length
            for org_id, organisation in self.state.organisations.items()
            for file in organisation.files
        }
        for path in self._files():
            length = known.get(path)
            if length is None:
                path.unlink()
            elif path.stat().st_size > length:
                os.truncate(path, length)
        self.verify_files()

    def _has_history(self) -> bool:
        """Return True if an earlier process used the audit directory.

        At the first start of a proxy, its audit directory has no state and no other files.
        """
        return self._state_file.exists() or any(self._root.iterdir()) or any(self._rejected.glob("*.json"))

    def _restart_numbers(self) -> None:
        log.error(
            "%s: the audit state is missing or unreadable, and no journal holds the last sequence numbers;"
            " numbering restarts at 1", self._root.parent,
        )  # fmt: skip
        self.state.restarted_at = time.time()

    def _rebuild(self) -> None:
        """Rebuild the state of the journals from the journal files, because the saved state is lost.

        All events in the journals count as unsent, and the next sequence number follows the last event.
        """
        log.error(
            "the audit state is damaged or missing; "
            "rebuilding it from the journals; some events may be sent twice"
        )
        names = {_directory_name(org_id): org_id for org_id in self.state.organisations}
        for path in sorted(self._files(), key=lambda path: int(path.stem)):
            length, heads = _good_lines(path.read_bytes(), None)
            if not heads:
                path.unlink()
                continue
            os.truncate(path, length)
            organisation = self._organisation(names.get(path.parent.name, path.parent.name))
            organisation.files.append(JournalFile(int(path.stem), heads[-1], length, len(heads)))
            organisation.next_seq = heads[-1] + 1
        known = {_directory_name(org_id) for org_id in self.state.organisations}
        if any(path.name not in known for path in self._root.iterdir()):
            self._restart_numbers()  # the numbers of an organisation whose events are all delivered
        self._save()

    def _files(self) -> Iterator[Path]:
        for path in self._root.glob("*/*.ndjson"):
            if _FILE_NAME.fullmatch(path.name):
                yield path


class _JournalGoneError(OSError):
    """Error because the last file of a journal is missing or shorter than its committed length.

    The method `verify_files` later handles the missing or short file.
    """

    def __init__(self, org_id: str, first: int) -> None:
        super().__init__(f"journal file {first} of organisation {org_id} was deleted or cut")


def _directory_name(org_id: str) -> str:
    if _PLAIN_NAME.fullmatch(org_id):
        return org_id
    return "sha256-" + hashlib.sha256(org_id.encode("utf-8", "surrogatepass")).hexdigest()


def new_batch_id() -> str:
    return uuid7(int(time.time() * 1000), int.from_bytes(os.urandom(10)) >> 6)


def _path(root: Path, org_id: str, first: int) -> Path:
    return root / _directory_name(org_id) / f"{first}.ndjson"


def _read(path: Path, start: int, length: int) -> bytes:
    with path.open("rb") as opened:
        return os.pread(opened.fileno(), length, start)


def _first_line(root: Path, org_id: str, organisation: OrganisationState) -> _LineHead | None:
    """Return the sequence number and the time of the oldest event that is not delivered."""
    try:
        file = next(each for each in organisation.files if each.count)
        start = organisation.sent if file is organisation.files[0] else 0
        if start >= file.length:
            file, start = next(each for each in organisation.files[1:] if each.count), 0
        with _path(root, org_id, file.first).open("rb") as opened:
            opened.seek(start)
            return _line_decoder.decode(opened.readline(min(_MAX_LINE, file.length - start)))
    # DecodeError is a ValueError, and so is the error for text that is not UTF-8.
    except (StopIteration, OSError, ValueError):
        return None


def _milliseconds(text: str) -> int | None:
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except ValueError:
        return None


def _good_lines(data: bytes, limit: int | None) -> tuple[int, list[int]]:
    """Return the length and the sequence numbers of the well-formed lines at the beginning of `data`."""
    lines = data.split(b"\n", -1 if limit is None else limit)[:-1]
    heads: list[int] = []
    with contextlib.suppress(ValueError):
        for line in lines:
            heads.append(_line_decoder.decode(line).seq)  # noqa: PERF401 - lines before a damaged one count
    return sum(map(len, lines[: len(heads)])) + len(heads), heads


def _renumbered(lines: bytes, earlier: int) -> bytes:
    """Subtract `earlier` from the `seq` of each event line.

    JSON escapes quotes within a text, so the pattern for the member `seq` never matches within a text.
    """
    return _SEQ.sub(lambda found: b'"seq":%d' % (int(found[1]) - earlier), lines)


def _damaged_part(data: bytes) -> tuple[int, int | None, int]:
    """Find out how much journal data is damaged at the beginning of `data`.

    Return three numbers: the bytes before the first well-formed line, the sequence number of this line, and
    the count of all well-formed lines. If no well-formed line follows, return the number of all bytes, None
    and 0.
    """
    length, following, left, at = len(data), None, 0, 0
    for line in data.split(b"\n")[:-1]:
        heads = _good_lines(line + b"\n", None)[1]
        if heads and following is None:
            length, following = at, heads[0]
        left += len(heads)
        at += len(line) + 1
    return length, following, left
