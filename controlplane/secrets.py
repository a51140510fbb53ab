"""Secrets: minted once and shown once; at rest only hashes, digests and ciphertext."""

from __future__ import annotations

import os
import re
import secrets
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Final

from proxy.config.given_text import decoded
from proxy.process.own_process import foreign, make_directory, make_file

if TYPE_CHECKING:
    from argon2 import PasswordHasher

_NONCE_BYTES: Final = 12
KEY_BYTES: Final = 32
_MINTED: Final = re.compile(r"(gw[a-z]+)_[\w-]{20,}")


class MasterKeyError(Exception):
    """The master key can't be used; the text is one line that says why."""


class VaultKeyError(MasterKeyError):
    """The vault did not give the master key."""

    def __init__(self, what: str, cure: str) -> None:
        super().__init__(f"{what}; {cure}")
        self.what = what
        self.cure = cure


def mint(prefix: str) -> str:
    """A new secret of 256 random bits. The prefix tells people and scanners of leaked text what it opens."""
    return f"{prefix}_{secrets.token_urlsafe(32)}"


def without_secrets(text: str) -> str:
    """Return the text, in which only the prefix of each of our secrets is left."""
    return _MINTED.sub(r"\1_***", text)


def digest(api_key: str) -> bytes:
    """What an API key is found by. It holds 256 random bits, so that a plain digest can't be searched."""
    return sha256(api_key.encode("utf-8", "surrogateescape")).digest()


def hash_client_secret(secret: str) -> str:
    """argon2id with OWASP's least parameters, since a proxy verifies one at every token request."""
    return _hasher().hash(secret)


def hash_password(password: str) -> str:
    return _hasher().hash(password)


def is_password(hashed: str, password: str) -> bool:
    """Takes some 30 ms of a processor, whether or not it is right."""
    from argon2.exceptions import VerificationError

    try:
        return _hasher().verify(hashed, password)
    except VerificationError:
        return False


def _hasher() -> PasswordHasher:
    from argon2 import PasswordHasher
    from argon2.low_level import Type

    return PasswordHasher(time_cost=2, memory_cost=19 * 1024, parallelism=1, type=Type.ID)


class Vault:
    """AES-256-GCM at rest. `owner` is authenticated too: a ciphertext opens in its own row only."""

    def __init__(self, master_key: bytes) -> None:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        self._cipher = AESGCM(master_key)
        self._master_key = master_key

    def derive(self, purpose: str) -> bytes:
        """A key for one purpose: who learns it learns neither the master key nor that of another purpose."""
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF

        return HKDF(SHA256(), KEY_BYTES, salt=None, info=purpose.encode()).derive(self._master_key)

    def seal(self, owner: str, text: str) -> bytes:
        nonce = os.urandom(_NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, text.encode(), owner.encode())

    def open(self, owner: str, sealed: bytes) -> str:
        from cryptography.exceptions import InvalidTag

        try:
            return self._cipher.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], owner.encode()).decode()
        except (InvalidTag, ValueError):
            raise MasterKeyError("the master key is not the one that this store was made with") from None


def read_master_key(text: str, path: Path) -> bytes:
    """The master key from the setting, or from its file, which is made if absent."""
    if text:
        return key_of(text)
    try:
        return _read(path)
    except FileNotFoundError:
        return _make(path)
    except OSError as error:
        raise MasterKeyError(foreign([path]) or f"{path}: {error.strerror}") from None


def valid_master_key(text: str) -> str:
    """The text of a master key as it came; ValueError where it is none."""
    key_of(text)
    return text


def key_of(text: str) -> bytes:
    """Return the key that the text spells. Raise ValueError if it spells none."""
    try:
        key = bytes.fromhex(text)
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise ValueError(f"must hold {2 * KEY_BYTES} hex digits")
    return key


def _read(path: Path) -> bytes:
    try:
        return key_of(decoded(path.read_bytes()))
    except ValueError as error:
        raise MasterKeyError(f"{path}: {error}") from None


def _make(path: Path) -> bytes:
    """A new key file, whole or not at all: written beside, then linked; of two starts only one makes it."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        make_directory(path.parent)
        descriptor = make_file(temporary, os.O_WRONLY)
        with os.fdopen(descriptor, "w") as file:
            file.write(f"{secrets.token_hex(KEY_BYTES)}\n")
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(temporary, path)
        except FileExistsError:
            pass
        finally:
            temporary.unlink()
        return _read(path)
    except OSError as error:
        raise MasterKeyError(f"{path}: {error.strerror}") from None
