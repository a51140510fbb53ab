"""HMAC-SHA256 signatures of the agent API: of requests, and of responses that must not be forged."""

import hmac
import re
from hashlib import sha256
from typing import Final

API_KEY_HEADER: Final = "X-Api-Key"
TIMESTAMP_HEADER: Final = "X-Timestamp"
SIGNATURE_HEADER: Final = "X-Hmac-Signature"
# Only a 304 has this header: it signs the version that is unchanged. The X-Hmac-Signature of a 304 signs an
# empty body, so it cannot identify a version.
UNCHANGED_HEADER: Final = "X-Unchanged-Signature"

MAX_SKEW_SECONDS: Final = 300
# up to so many bytes are copied to be signed in one call, which takes half the time
_SMALL_BODY: Final = 64 * 1024

# Lowercase only: the specification makes an uppercase digest a mismatch. ASCII classes, because \d takes
# any Unicode digit, and fullmatch, because $ would let a trailing newline through.
_SIGNATURE = re.compile(r"[0-9a-f]{64}")
_TIMESTAMP = re.compile(r"[0-9]{1,12}")


def sign(secret: bytes, timestamp: str, body: bytes) -> str:
    """Return the lowercase hex signature of a request, an HMAC over `<timestamp>.<raw body bytes>`."""
    return _mac(secret, timestamp.encode("ascii") + b".", body)


def _mac(secret: bytes, head: bytes, body: bytes) -> str:
    if len(body) <= _SMALL_BODY:
        return hmac.digest(secret, head + body, "sha256").hex()
    mac = hmac.new(secret, head, sha256)
    mac.update(body)
    return mac.hexdigest()


def verify(secret: bytes, timestamp: str, body: bytes, signature: str) -> bool:
    """Return whether `signature` is the signature of the given request.

    The comparison of both signatures takes constant time. A `signature` that is not in the format of a
    signature is allowed, and makes `verify` return False. `verify` never raises an exception.
    """
    if not timestamp.isascii() or _SIGNATURE.fullmatch(signature) is None:
        return False
    return hmac.compare_digest(sign(secret, timestamp, body), signature)


def timestamp_in_range(timestamp: str, now: float) -> bool:
    """Return whether X-Timestamp is plain Unix seconds within ±300 s of `now`, the bounds included."""
    if _TIMESTAMP.fullmatch(timestamp) is None:
        return False
    return abs(int(timestamp) - int(now)) <= MAX_SKEW_SECONDS


def sign_response(secret: bytes, request_signature: str, body: bytes) -> str:
    """Return the signature of a response, bound to the request that the response belongs to.

    The signature of a 304 response covers the empty body.
    """
    return _mac(secret, b"response." + request_signature.encode("ascii") + b".", body)


def verify_response(secret: bytes, request_signature: str, body: bytes, signature: str) -> bool:
    """Return whether the holder of the secret signed exactly the given response to the given request."""
    if _SIGNATURE.fullmatch(signature) is None:
        return False
    return hmac.compare_digest(sign_response(secret, request_signature, body), signature)


def sign_unchanged(secret: bytes, request_signature: str, version: str) -> str:
    """Return the signature of a 304 response, which covers the version of the unchanged rules.

    The request signature does not cover If-None-Match. If the signature did not cover the version of the
    rules, an intermediary could replace If-None-Match by the ETag of a newer version. The control plane would
    then send a valid signed 304, and the proxy would keep its old rules, even if they were withdrawn.
    """
    payload = f"unchanged.{request_signature}.{version}"
    return hmac.new(secret, payload.encode("utf-8", "surrogatepass"), sha256).hexdigest()


def verify_unchanged(secret: bytes, request_signature: str, version: str, signature: str) -> bool:
    """Return whether the holder of the secret signed a 304 for exactly this version of the rules."""
    if _SIGNATURE.fullmatch(signature) is None:
        return False
    return hmac.compare_digest(sign_unchanged(secret, request_signature, version), signature)
