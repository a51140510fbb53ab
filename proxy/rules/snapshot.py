"""The persisted snapshot: validated rules and applications, which the agent stores for workers and restarts.

The snapshot file has one line `graphward-snapshot <format> <sha256 of the rest>`, followed by a JSON body.
The agent replaces the snapshot file by rename. A reader therefore finds either the complete old snapshot file
or the complete new file. If the content of the snapshot file is damaged, such as a flipped bit or half a
file, the reader raises SnapshotDamaged and uses no part of the file.

The snapshot file contains the compressed schemas together with the rulesets that name them. So the rulesets
and their schemas stay together if the agent is killed, if the disk is full, or if the file is copied. A
snapshot file with schemas has format 2. A Graphward release that does not support schemas rejects snapshot
files of format 2. A release that does not support schemas would ignore the parts of a rule that need a
schema.

The modification time of the snapshot file is the time of the last good sync, even of a sync that changed
nothing (`mark_synced`). A reader of the snapshot file stores the modification time in `Snapshot.synced_at`.
When a worker starts, the worker measures MaxStalenessSeconds from the time `Snapshot.synced_at`. After the
worker's start, each `Rules` message restarts the measurement of the rules' age on the worker's monotonic
clock. A jump of the system clock therefore neither stops the service nor keeps outdated rules active.
"""

import hashlib
import math
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from proxy.policy.ruleset import Rule, Ruleset
from proxy.process.own_process import make_directory, make_file
from proxy.rules.stops import NOTHING_STOPPED, Stops
from proxy.wire.models import SyncCredential, SyncLinger

_FORMAT: Final = 2
_FORMAT_WITHOUT_SCHEMAS: Final = 1
# Raise this number with each optional member of a sync response that only the new release reads. Raise it
# also with each change to how the text of a ruleset is read.
READ: Final = 5
_CLOCK_LEEWAY_SECONDS: Final = 60.0  # tolerance for a clock that was set back
_ANY_FORMAT: Final = re.compile(rb"graphward-snapshot ([0-9]{1,9}) ")
_FIRST_LINE: Final = re.compile(rb"graphward-snapshot [12] ([0-9a-f]{64})\n")
_FIRST_LINE_BYTES: Final = len(b"graphward-snapshot 1 \n") + 64
# To write one megabyte, the kernel looks for one piece of memory of that size. A virtual machine that returns
# unused memory to its host must get such a piece again, which takes 14 ms instead of 1.5
# (bench/test_audit.py).
_WRITE_BYTES: Final = 64 * 1024


class App(msgspec.Struct, frozen=True):
    app_id: str
    org_id: str
    name: str
    client_id: str
    secret_hashes: tuple[str, ...]
    secret_version: int
    ruleset_id: str | None
    enabled: bool  # False if the application is stopped, so that a release without stops obeys them
    shadow_ruleset_id: str | None = None
    credentials: tuple[SyncCredential, ...] | None = None  # None: only `secret_hashes` applies
    ended_credentials: tuple[SyncCredential, ...] = ()  # expired within the last days


class SnapshotRuleset(msgspec.Struct, frozen=True):
    ruleset_id: str
    org_id: str
    name: str
    version: int
    digest: str  # digest of the YAML text; an unchanged text is not parsed again
    ruleset: Ruleset
    schemas: dict[str, str] = {}  # schema digest by root path, for rules that name things


class Snapshot(msgspec.Struct, frozen=True):
    version: str
    generated_at: str
    generation: int  # increases with each snapshot that this proxy activates
    synced_at: float  # modification time of the file: see the module's docstring
    etag: str | None
    proxy_id: str | None
    sync_interval_seconds: float | None
    orgs: dict[str, str]
    apps: tuple[App, ...]
    rulesets: tuple[SnapshotRuleset, ...]
    proves_unchanged: bool = False  # the control plane must sign the version that a 304 confirms
    stops: Stops = NOTHING_STOPPED
    read: int = 0  # value of READ in the release that read the sync response
    schemas: dict[str, bytes] = {}  # deflated schemas that the rulesets name, by digest
    linger: SyncLinger | None = None  # None: an older control plane that does not send it
    rotate_at: str | None = None  # time at which the control plane requests that this proxy renew its keys

    @property
    def rule_count(self) -> int:
        return sum(len(held.ruleset.rules) for held in self.rulesets)

    def missing_schemas(self) -> str:
        """Describe the first schema that a ruleset needs but the snapshot lacks; empty if none is missing."""
        for held in self.rulesets:
            for root, digest in held.schemas.items():
                if digest not in self.schemas:
                    return f"ruleset {held.name} needs schema {digest[:12]} of {root}, which is missing"
        return ""

    def age_at(self, now: float) -> float:
        """Return the seconds since the control plane confirmed the snapshot, at the Unix time `now`.

        If the confirmation has a time in the future, return infinity as the age. After a clock was set back,
        old rules must not count as new.
        """
        age = now - self.synced_at
        return math.inf if age < -_CLOCK_LEEWAY_SECONDS else max(0.0, age)


class SnapshotDamaged(Exception):
    """Error because the snapshot file is incomplete or invalid."""


class _OutlinedRuleset(Ruleset, frozen=True, kw_only=True):
    rules: tuple[msgspec.Raw, ...] = ()  # type: ignore[assignment]  # raw JSON, to be decoded in steps


class _OutlinedEntry(SnapshotRuleset, frozen=True, kw_only=True):
    ruleset: _OutlinedRuleset


class _Outline(Snapshot, frozen=True, kw_only=True):
    rulesets: tuple[_OutlinedEntry, ...]


_RULES_AT_ONCE: Final = 100  # rules decoded in one step, which takes some hundred microseconds

_encoder = msgspec.json.Encoder()
_outline_decoder = msgspec.json.Decoder(_Outline)
_rule_decoder = msgspec.json.Decoder(Rule)

S = TypeVar("S", bound=msgspec.Struct)


def write_snapshot(path: Path, snapshot: Snapshot) -> None:
    body = _encoder.encode(snapshot)
    digest = hashlib.sha256(body).hexdigest().encode()
    names_schemas = any(held.schemas for held in snapshot.rulesets)
    format_ = _FORMAT if names_schemas else _FORMAT_WITHOUT_SCHEMAS
    write_by_rename(path, b"graphward-snapshot %d %b\n" % (format_, digest) + body)
    mark_synced(path, snapshot.synced_at)


def read_snapshot(path: Path, pause: Callable[[], None] = lambda: None) -> Snapshot:
    """Read the rules snapshot from the snapshot file.

    Raise FileNotFoundError if the snapshot file is missing, or SnapshotDamaged if it is not valid.

    Decoding ten thousand rules at once would hold Python's global interpreter lock for milliseconds.
    `read_snapshot` therefore decodes the rules in steps, and calls `pause` between the steps. If
    `read_snapshot` runs in a thread, `pause` can let the event loop run.
    """
    with path.open("rb") as file:
        content = file.read()
        synced_at = os.fstat(file.fileno()).st_mtime
    first = _FIRST_LINE.match(content)
    later = _ANY_FORMAT.match(content)
    if later is not None and int(later[1]) > _FORMAT:
        raise SnapshotDamaged(
            f"{path}: a newer release wrote this snapshot (format {int(later[1])}; this release reads up to "
            f"{_FORMAT})"
        )
    if first is None:
        raise SnapshotDamaged(f"{path}: the file is not a snapshot, or this release does not read its format")
    body = memoryview(content)[_FIRST_LINE_BYTES:]
    if hashlib.sha256(body).hexdigest().encode() != first[1]:
        raise SnapshotDamaged(f"{path}: the checksum does not match the content of the snapshot")
    try:
        outline = _outline_decoder.decode(body)
        rulesets = tuple(_whole_entry(entry, pause) for entry in outline.rulesets)
    except msgspec.DecodeError as error:
        raise SnapshotDamaged(f"{path}: {error}") from error
    snapshot = _as(Snapshot, outline, rulesets=rulesets, synced_at=synced_at)
    if missing := snapshot.missing_schemas():
        raise SnapshotDamaged(f"{path}: {missing}")
    return snapshot


def _whole_entry(entry: _OutlinedEntry, pause: Callable[[], None]) -> SnapshotRuleset:
    texts = entry.ruleset.rules
    rules: list[Rule] = []
    for at in range(0, len(texts), _RULES_AT_ONCE):
        pause()
        rules += map(_rule_decoder.decode, texts[at : at + _RULES_AT_ONCE])
    return _as(SnapshotRuleset, entry, ruleset=_as(Ruleset, entry.ruleset, rules=tuple(rules)))


def _as(cls: type[S], outline: msgspec.Struct, **changes: object) -> S:
    return cls(**({name: getattr(outline, name) for name in cls.__struct_fields__} | changes))


def mark_synced(path: Path, at: float) -> None:
    """Set the file's modification time to `at`, the Unix time when the control plane confirmed the rules."""
    os.utime(path, (at, at))


def write_by_rename(path: Path, content: bytes) -> None:
    """Replace the file `path` atomically.

    Even after a crash, a reader of the file finds either the old content or the new content.
    """
    make_directory(path.parent)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    unfinished.unlink(missing_ok=True)  # a killed process may have left this file
    fd = make_file(unfinished, os.O_WRONLY)
    try:
        try:
            write_at(fd, content, 0)
            os.fsync(fd)
        finally:
            os.close(fd)
        os.rename(unfinished, path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def write_at(fd: int, content: bytes, offset: int) -> None:
    """Write the complete content to the file from the given offset on, in as many pieces as needed."""
    view, at = memoryview(content), 0
    while at < len(content):
        at += os.pwrite(fd, view[at : at + _WRITE_BYTES], offset + at)


def sync_directory(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
