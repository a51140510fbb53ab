"""Secrets of applications, proxies and operators, each of which is shown only once, when it is made.

The store has only hashes, digests and ciphertexts of secrets.
"""

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
    """Error for a master key that can't be used.

    The text of the MasterKeyError is one line with the reason.
    """


class VaultKeyError(MasterKeyError):
    """Error because the key vault did not return the master key."""

    def __init__(self, what: str, cure: str) -> None:
        super().__init__(f"{what}; {cure}")
        self.what = what
        self.cure = cure


def mint(prefix: str) -> str:
    """Return a new secret that consists of 256 random bits.

    The prefix of a secret shows its purpose to people and to secret scanners.
    """
    return f"{prefix}_{secrets.token_urlsafe(32)}"


def without_secrets(text: str) -> str:
    """Shorten each secret of this system in the text to the secret's prefix, and return the text."""
    return _MINTED.sub(r"\1_***", text)


def digest(api_key: str) -> bytes:
    """Return the digest of an API key, by which the store finds the key.

    An API key has 256 random bits, so nobody can guess the key from its plain digest.
    """
    return sha256(api_key.encode("utf-8", "surrogateescape")).digest()


def hash_client_secret(secret: str) -> str:
    """Return the argon2id hash of a client secret, with OWASP's minimum parameters.

    A proxy verifies one client secret against its argon2id hash at every token request.
    """
    return _hasher().hash(secret)


def hash_password(password: str) -> str:
    return _hasher().hash(password)


def is_password(hashed: str, password: str) -> bool:
    """Return True if the password matches the hash.

    The check takes about 30 ms of CPU time, even if the password is wrong.
    """
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
    """Authenticated encryption of stored secrets with AES-256-GCM.

    `owner` is authenticated together with the secret, so a ciphertext can be decrypted only in its own row.
    """

    def __init__(self, master_key: bytes) -> None:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        self._cipher = AESGCM(master_key)
        self._master_key = master_key

    def derive(self, purpose: str) -> bytes:
        """Return a key for one purpose, derived from the master key.

        The derived key reveals neither the master key nor the key of another purpose.
        """
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
            raise MasterKeyError("the master key does not belong to this store") from None


def read_master_key(text: str, path: Path) -> bytes:
    """Return the master key from the setting, or from the master key file.

    If the key file is missing, create this file.
    """
    if text:
        return key_of(text)
    try:
        return _read(path)
    except FileNotFoundError:
        return _make(path)
    except OSError as error:
        raise MasterKeyError(foreign([path]) or f"{path}: {error.strerror}") from None


def valid_master_key(text: str) -> str:
    """Check the text of a master key, and return it unchanged.

    Raise ValueError if the text is not a master key.
    """
    key_of(text)
    return text


def key_of(text: str) -> bytes:
    """Return the key that a text of hex digits encodes.

    Raise ValueError if the text is not a key in hex digits.
    """
    try:
        key = bytes.fromhex(text)
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise ValueError(f"the key must contain {2 * KEY_BYTES} hex digits")
    return key


def _read(path: Path) -> bytes:
    try:
        return key_of(decoded(path.read_bytes()))
    except ValueError as error:
        raise MasterKeyError(f"{path}: {error}") from None


def _make(path: Path) -> bytes:
    """Write a new key to the key file atomically.

    The key file is written under another name and then linked to its own name. If two processes start at the
    same time, only one of the processes makes the key file.
    """
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
