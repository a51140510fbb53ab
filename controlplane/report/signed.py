"""Sign statements of the control plane with Ed25519, and verify them without a store.

A signed file is one line, `{"signed":` PAYLOAD `,"signature":"` HEX `"}` and a line end. The signature covers
the bytes of PAYLOAD. A payload is JSON without `<`, `>` and `&`, so an HTML page can contain the same bytes.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_public_key,
)

PURPOSE: Final = "graphward report signature 1"
_KEY_BYTES: Final = 32
_FILE: Final = re.compile(rb'\{"signed":(\{.*\}),"signature":"([0-9a-f]{128})"\}\n', re.DOTALL)
_OTHER_LINE_END: Final = re.compile(rb'"signature":"[0-9a-f]{128}"\}\r\n')
_ESCAPED: Final = ((b"<", b"\\u003c"), (b">", b"\\u003e"), (b"&", b"\\u0026"))


class NotVerified(Exception):
    """Error because the signature or the content of a signed file is not valid.

    The text of a NotVerified error says why the signed file is not valid.
    """


class Signer:
    """The private key of a control plane, which is derived from its master key."""

    def __init__(self, seed: bytes) -> None:
        self._key: Final = Ed25519PrivateKey.from_private_bytes(seed)
        self.key: Final = key_text(self._key.public_key())

    def sign(self, payload: bytes) -> bytes:
        """Sign a payload, and return the signed file."""
        signature = self._key.sign(payload).hex().encode()
        return b'{"signed":%b,"signature":"%b"}\n' % (payload, signature)


def payload_of(value: msgspec.Struct) -> bytes:
    """Return the bytes that represent the value in a signed file, and that the signature covers."""
    text = msgspec.json.encode(value)
    for char, escape in _ESCAPED:
        text = text.replace(char, escape)
    return text


def key_text(key: Ed25519PublicKey) -> str:
    return key.public_bytes(Encoding.Raw, PublicFormat.Raw).hex()


def key_pem(key: str) -> str:
    """Return a public key in the format that the `openssl` command reads."""
    public = Ed25519PublicKey.from_public_bytes(bytes.fromhex(key))
    return public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()


def read_key(text: str) -> str:
    """Return a public key, given as 64 hexadecimal digits or as PEM.

    Raise NotVerified if the text is neither 64 hexadecimal digits nor PEM.
    """
    stripped = text.strip()
    if re.fullmatch(r"[0-9A-Fa-f]{64}", stripped):
        return stripped.lower()
    try:
        key = load_pem_public_key(stripped.encode())
    except ValueError:
        key = None
    if not isinstance(key, Ed25519PublicKey):
        raise NotVerified("the public key must be 64 hexadecimal digits, or an Ed25519 key in PEM")
    return key_text(key)


class Claimed(msgspec.Struct):
    """JSON fields that every signed payload has, and that a reader needs before it checks the signature."""

    kind: str
    key: str


def split(file: bytes) -> tuple[bytes, bytes]:
    """Return the payload and the signature of a signed file.

    Raise NotVerified if the file is not a signed file.
    """
    found = _FILE.fullmatch(file)
    if found is None:
        raise NotVerified('a signed file must be one line of the form {"signed":…,"signature":"…"}')
    return found[1], bytes.fromhex(found[2].decode())


def line_ends_changed(file: bytes) -> bool:
    """Return True if a signed line ends with CRLF because a mail program or git changed its LF."""
    return _OTHER_LINE_END.search(file) is not None


def claimed(payload: bytes) -> Claimed:
    try:
        return msgspec.json.decode(payload, type=Claimed)
    except msgspec.DecodeError as error:
        raise NotVerified(f"the signed data is not JSON with the fields kind and key: {error}") from None


def check(payload: bytes, signature: bytes, key: str) -> None:
    """Raise NotVerified unless the key signed the payload."""
    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(key)).verify(signature, payload)
    except InvalidSignature:
        named = claimed(payload).key
        if named != key:
            raise NotVerified(
                f"another key signed the file: the file names {named}, but --key is {key}"
            ) from None
        raise NotVerified(
            "the signature of the file is not valid: the data or the signature was changed after the signing"
        ) from None
    if claimed(payload).key != key:
        raise NotVerified(f"the file names the signing key {claimed(payload).key}, but --key is {key}")


def decode(payload: bytes, cls: Any) -> Any:
    try:
        return msgspec.json.decode(payload, type=cls)
    except msgspec.DecodeError as error:
        raise NotVerified(f"another release of Graphward made the signed data: {error}") from None
