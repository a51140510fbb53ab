"""CSRF token of a browser session, which each page contains under a different random mask.

Pages are compressed. If every page contained the same token bytes, another site could put guesses of the
token into page addresses. If the guess in a page address matches the token, the compressed page is shorter,
which reveals the match (BREACH).
"""

from __future__ import annotations

import hmac
import secrets
from typing import Final

CSRF_HEADER: Final = "X-CSRF-Token"
CSRF_FIELD: Final = "csrf"
_BYTES: Final = 32


def masked_token(session_id: str) -> str:
    """Return random bytes, followed by the result of XOR between these bytes and the session's CSRF token."""
    mask = secrets.token_bytes(_BYTES)
    return (mask + _xor(mask, _token(session_id))).hex()


def is_token(given: str, session_id: str) -> bool:
    """Return True if `given` is a CSRF token that the console issued to this session."""
    try:
        content = bytes.fromhex(given)
    except ValueError:
        return False
    if len(content) != 2 * _BYTES:
        return False
    return hmac.compare_digest(_xor(content[:_BYTES], content[_BYTES:]), _token(session_id))


def _token(session_id: str) -> bytes:
    return hmac.digest(session_id.encode(), b"csrf", "sha256")


def _xor(one: bytes, other: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(one, other, strict=True))
