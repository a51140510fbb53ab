"""Identity file of an enrolled proxy: the proxy's keys, and an unfinished enrolment or key renewal."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Final

import msgspec

from proxy.process.given_file import read_given_file
from proxy.process.own_process import give_to_owner_of, make_directory
from proxy.rules.snapshot import write_by_rename

_FORMAT: Final = 1


class IdentityUnusable(Exception):
    """Error because the identity file can't be read. The error's message is one line for the operator."""


class Keys(msgspec.Struct, frozen=True, rename="camel"):
    """API key and HMAC secret that the control plane gave to a proxy."""

    proxy_id: str
    name: str
    api_key: str
    hmac_secret: str
    obtained_at: float  # Unix seconds
    rotate_at: str | None = None  # time in RFC 3339

    def __repr__(self) -> str:
        """Hide the API key and the HMAC secret from logs and tracebacks."""
        return f"Keys(proxy_id={self.proxy_id!r})"


class Enrolling(msgspec.Struct, frozen=True, rename="camel", tag="enrolling", tag_field="state"):
    """State of the proxy's identity before the control plane's response to the enrolment request.

    The ID of the enrolment request is stored before the request is sent, so that a lost response does not
    create a second proxy.
    """

    enrolment_id: str


class Enrolled(msgspec.Struct, frozen=True, rename="camel", tag="enrolled", tag_field="state"):
    """State of an identity with a valid API key and HMAC secret.

    `earlier` is the previous pair of keys, which may be the only pair that a restored control plane accepts.
    """

    keys: Keys
    earlier: Keys | None = None


class Renewing(msgspec.Struct, frozen=True, rename="camel", tag="renewing", tag_field="state"):
    """State of the proxy's identity before the control plane's response to the key renewal request.

    The proxy may already have sent the key renewal request whose ID is `renewal_id`.
    """

    keys: Keys
    renewal_id: str
    earlier: Keys | None = None


class Proving(msgspec.Struct, frozen=True, rename="camel", tag="proving", tag_field="state"):
    """State of an identity that has received new keys from the control plane.

    The proxy keeps its old keys until the control plane has accepted the new keys once.
    """

    keys: Keys
    renewed: Keys
    earlier: Keys | None = None


IdentityState = Enrolling | Enrolled | Renewing | Proving


class _File(msgspec.Struct, frozen=True):
    format: int
    identity: IdentityState


_decoder: Final = msgspec.json.Decoder(_File)


def read_identity(path: Path) -> IdentityState | None:
    """Return the identity's state in the file; None if the file is missing.

    Raise IdentityUnusable if the identity file can't be used.
    """
    cure = "delete the file to enrol this proxy again, under another id"
    if path.is_symlink():  # a write would replace the link, and the old keys would stay in its target
        raise IdentityUnusable(
            f"{path}: the file is a symbolic link: write {path.resolve()} into Agent.IdentityPath"
        )
    try:
        found = _decoder.decode(read_given_file(path))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise IdentityUnusable(f"{path}: {error.strerror or error}") from None
    except ValueError:  # the error's text could show a part of a secret
        raise IdentityUnusable(
            f"{path}: the file is not an identity that this release can read: {cure}"
        ) from None
    if found.format != _FORMAT:
        raise IdentityUnusable(
            f"{path}: the identity has format {found.format}, but this release reads format {_FORMAT}: {cure}"
        )
    return found.identity


def write_identity(path: Path, identity: IdentityState) -> None:
    """Replace the identity file.

    If a kill or a crash interrupts the write, the file contains either the old or the new state.

    Raise OSError.
    """
    write_by_rename(path, msgspec.json.encode(_File(_FORMAT, identity)) + b"\n")


def lock_identity(path: Path) -> int:
    """Return the descriptor of a lock on the identity file.

    Raise IdentityUnusable if another proxy holds the lock.
    """
    # A separate file, because each write replaces the identity file.
    beside = path.with_name(f".{path.name}.lock")
    try:
        make_directory(path.parent)
        lock = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise IdentityUnusable(f"{beside}: {error.strerror or error}") from None
    try:
        give_to_owner_of(path.parent, lock)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        if isinstance(error, BlockingIOError):
            cure = "give each proxy its own Agent.IdentityPath"
            raise IdentityUnusable(f"{path}: another proxy uses this identity file: {cure}") from None
        raise IdentityUnusable(f"{beside}: {error.strerror or error}") from None
    return lock


def keys_in(path: Path) -> Keys | None:
    """Return the API key and HMAC secret in the identity file; None if it is unreadable or has neither."""
    try:
        return keys_of(read_identity(path))
    except IdentityUnusable:
        return None


def secrets_in(path: Path) -> list[str]:
    """Return every secret in the identity file, so that reports can mask these secrets."""
    try:
        state = read_identity(path)
    except IdentityUnusable:
        return []
    held = [keys_of(state), earlier_of(state), state.renewed if isinstance(state, Proving) else None]
    return [secret for keys in held if keys is not None for secret in (keys.api_key, keys.hmac_secret)]


def keys_of(identity: IdentityState | None) -> Keys | None:
    """Return the API key and HMAC secret for signed calls, or None if the proxy is not enrolled."""
    return None if identity is None or isinstance(identity, Enrolling) else identity.keys


def earlier_of(identity: IdentityState | None) -> Keys | None:
    """Return the previous pair of keys of an identity; None if the file has no previous pair."""
    return None if identity is None or isinstance(identity, Enrolling) else identity.earlier
