"""Key that signs proxy tokens: given in the settings, or created in a file at the first start."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Final

from proxy.config.given_text import without_mark
from proxy.process.given_file import read_given_file
from proxy.process.own_process import foreign, foreign_above, give_to_owner_of, make_directory

MIN_BYTES: Final = 32  # RFC 7518 §3.2: a key must be at least as long as the hash


class SigningKeyError(Exception):
    """Error because the signing key can't be used.

    The message of a SigningKeyError is one line for the operator.
    """


def signing_key(given: str, path: Path) -> bytes:
    """Return the active signing key of proxy tokens.

    If the settings have no signing key and the file at `path` is missing, create the file with mode 0600.
    """
    if given:
        key = given.encode()
        where = "Token.SigningKey"
    else:
        key = _from_file(path)
        where = f"Token.SigningKeyFile {path}"
    if len(key) < MIN_BYTES:
        raise SigningKeyError(f"{where}: the key must have at least {MIN_BYTES} characters")
    return key


def _from_file(path: Path) -> bytes:
    try:
        make_directory(path.parent)
        _make_if_absent(path)
        return key_in(path)
    except OSError as error:
        problem = f"{path}: {error.strerror}"
        if isinstance(error, PermissionError):
            problem = foreign([path]) or foreign_above(path) or problem
        raise SigningKeyError(f"Token.SigningKeyFile: {problem}") from None


def key_in(path: Path) -> bytes:
    """Return the signing key in the file. The bytes of a signing key may have any values. Raise OSError."""
    return without_mark(read_given_file(path)).strip()


def _make_if_absent(path: Path) -> None:
    """Create the signing key file with a new key, unless the file exists.

    If two proxies start at the same time with one key file, both use the key of the proxy that created the
    file first.
    """
    if path.exists():
        return
    mine = path.with_name(f".{path.name}.{os.getpid()}")
    fd = os.open(mine, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(fd, "wb") as file:
            give_to_owner_of(path.parent, fd)
            file.write(secrets.token_urlsafe(48).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        os.link(mine, path)
    except FileExistsError:
        pass
    finally:
        mine.unlink()
