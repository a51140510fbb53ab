"""Remember used assertions on disk, for all workers of the proxy, so that no assertion is accepted twice.

Each application has its own file, so one application cannot fill the store of another. If federated
credentials of several applications have the same issuer, subject and audience, these applications share a
file. An issuer token that one of these applications has used is then refused for the others. Issuer tokens of
a credential with the reuse `untilEnd` are not recorded in a file.

Each file of used assertions is a sequence of records of equal size. A kernel lock lets only one thread of one
process read and append at a time. The records in a file of used assertions remain if the process is killed.
If the machine fails, for example by a power loss, assertions that were used in the last seconds may be
accepted again.
"""

from __future__ import annotations

import contextlib
import enum
import fcntl
import hashlib
import json
import os
import struct
import time
from pathlib import Path
from typing import Final

from proxy.process.own_process import make_directory, make_file
from proxy.rules.credentials import Federated, PublicKey
from proxy.server.assertions.judge import Proof, Reuse

# time in which a registered key's assertion may be repeated; MSAL keeps one for 540 s
REPEAT_SECONDS: Final = 600.0
MOST_USED: Final = 16_384  # unexpired assertions to remember for one application
LOCK_SECONDS: Final = 2.0  # longest wait for the lock of a file, because a stopped process can hold it
_RETRY_SECONDS: Final = 0.001

_RECORD: Final = struct.Struct(">16s8sdd")  # assertion digest, address digest, first use, end
_DIGEST_BYTES: Final = 16
_ADDRESS_BYTES: Final = 8


class Use(enum.Enum):
    """Outcome of an attempt to use a client assertion for a token."""

    FIRST = "first"
    REPEATED = "repeated"  # the same client sent it again, within REPEAT_SECONDS
    USED_BEFORE = "used before"
    FULL = "full"


class NotRemembered(Exception):
    """Error because the store of used assertions is unusable, so that the proxy refuses all assertions."""


def used_directory(retention: Path) -> Path:
    return retention / "assertions"


class UsedAssertions:
    """Access of one process to the proxy's store of used assertions."""

    def __init__(self, directory: Path, most: int = MOST_USED, lock_seconds: float = LOCK_SECONDS) -> None:
        self._directory = directory
        self._most = most
        self._lock_seconds = lock_seconds

    def use(self, app_id: str, proof: Proof, network: str, now: float) -> Use:
        """Record the use of a client assertion, if the assertion may still be used.

        Raise NotRemembered if the store of used assertions can't be read or written.

        `network` is the network address of the client that sent the assertion. An empty client address counts
        as different from every other address.
        """
        digest = proof.use_id[:_DIGEST_BYTES]  # the same if the credential is removed and added again
        address = hashlib.sha256(network.encode()).digest()[:_ADDRESS_BYTES]
        name = _name_of(app_id, proof.credential)
        try:
            file = _open(self._directory / name)
            try:
                _lock(file, self._lock_seconds)
                return self._noted(file, digest, address if network else b"", proof, now)
            finally:
                os.close(file)  # this releases the lock
        except OSError as error:
            raise NotRemembered(str(error)) from None

    def _noted(self, file: int, digest: bytes, address: bytes, proof: Proof, now: float) -> Use:
        size = _RECORD.size
        content = os.pread(file, size * self._most, 0)
        content = content[: len(content) // size * size]
        known = _find(content, digest)
        if known is not None:
            _, first_address, first_use, _ = known
            is_repeated = proof.reuse is Reuse.SAME_ADDRESS and first_address == address
            return Use.REPEATED if is_repeated and now - first_use <= REPEAT_SECONDS else Use.USED_BEFORE
        if len(content) >= size * self._most:
            content = _without_ended(content, now)
            if len(content) >= size * self._most:
                return Use.FULL
            # Records move only towards the beginning of the file, so a kill during the write loses none.
            _write(file, content, 0)
            os.ftruncate(file, len(content))
        record = _RECORD.pack(digest, address or b"\0" * _ADDRESS_BYTES, now, proof.ends_at)
        _write(file, record, len(content))
        return Use.FIRST


def _name_of(app_id: str, credential: Federated | PublicKey) -> str:
    """Return the name of the file that remembers the assertions of a credential."""
    owner = app_id
    if isinstance(credential, Federated):
        owner = json.dumps([credential.issuer, credential.subject, credential.audience])
    return hashlib.sha256(owner.encode()).hexdigest()[:32]


def _open(path: Path) -> int:
    while True:
        with contextlib.suppress(FileNotFoundError):
            return os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        make_directory(path.parent)
        with contextlib.suppress(FileExistsError):  # another process created it
            return make_file(path, os.O_RDWR)


def _lock(file: int, seconds: float) -> None:
    """Lock the file of used assertions. Wait at most `seconds` seconds for the file lock.

    Raise OSError if another process still holds the file lock after `seconds` seconds.
    """
    end = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= end:
                raise
        time.sleep(_RETRY_SECONDS)


def _find(content: bytes, digest: bytes) -> tuple[bytes, bytes, float, float] | None:
    at = content.find(digest)
    while at >= 0:
        if at % _RECORD.size == 0:
            found: tuple[bytes, bytes, float, float] = _RECORD.unpack_from(content, at)
            return found
        at = content.find(digest, at + 1)
    return None


def _without_ended(content: bytes, now: float) -> bytes:
    size = _RECORD.size
    records = [content[at : at + size] for at in range(0, len(content), size)]
    return b"".join([each for each in records if now < _RECORD.unpack(each)[3]])


def _write(file: int, content: bytes, offset: int) -> None:
    """Write all bytes of `content` to the file, starting at `offset`.

    If the system writes only a part of the bytes, `_write` writes the rest. The file system raises an error
    if it is full.
    """
    at = 0
    while at < len(content):
        at += os.pwrite(file, content[at:], offset + at)
