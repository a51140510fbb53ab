"""What the proxy says itself: error bodies in the shape that Graph clients parse, and the heads around
them."""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from email.utils import formatdate
from http import HTTPStatus
from typing import Final

import orjson

from proxy.server.errors import Refusal

_REASON: Final[dict[int, bytes]] = {status.value: status.phrase.encode() for status in HTTPStatus}

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"

JSON: Final = b"Content-Type: application/json\r\nX-Content-Type-Options: nosniff\r\n"


def head(status: int, length: int, extra: bytes = b"", *, close: bool, now: float) -> bytes:
    """The head of a response that the proxy makes itself; `extra` holds whole field lines."""
    return b"HTTP/1.1 %d %b\r\nDate: %b\r\n%bContent-Length: %d\r\n%b\r\n" % (
        status,
        _REASON.get(status, b""),
        formatdate(now, usegmt=True).encode(),
        extra,
        length,
        b"Connection: close\r\n" if close else b"",
    )


def json_response(
    status: int, body: object, *, extra: bytes = b"", close: bool, now: float
) -> tuple[bytes, bytes]:
    """Head and body of a JSON response."""
    encoded = orjson.dumps(body)
    return head(status, len(encoded), JSON + extra, close=close, now=now), encoded


def refusal_response(
    refusal: Refusal, *, request_id: str, client_request_id: str | None, close: bool, now: float
) -> tuple[bytes, bytes]:
    """Head and body for a refusal (docs/clients.md)."""
    body = error_body(refusal, request_id=request_id, client_request_id=client_request_id, now=now)
    extra = JSON + b"Cache-Control: no-store\r\n"
    if refusal.status == 401:
        extra += claims_challenge(now)
    if refusal.allow is not None:
        extra += b"Allow: %b\r\n" % refusal.allow.encode()
    if refusal.retry_after is not None:
        extra += b"Retry-After: %d\r\n" % refusal.retry_after
    return head(refusal.status, len(body), extra, close=close, now=now), body


def error_body(refusal: Refusal, *, request_id: str, client_request_id: str | None, now: float) -> bytes:
    """The JSON error body of a refusal."""
    error: dict[str, object] = {"code": refusal.code, "message": refusal.message}
    if refusal.rule_id is not None:
        error["ruleId"] = refusal.rule_id
    if refusal.upstream_status is not None:
        error["upstreamStatus"] = refusal.upstream_status
    error["innerError"] = {
        "request-id": request_id,
        "client-request-id": client_request_id or request_id,
        "date": datetime.fromtimestamp(int(now), UTC).strftime("%Y-%m-%dT%H:%M:%S"),
    }
    return orjson.dumps({"error": error})


def claims_challenge(now: float) -> bytes:
    """The challenge that makes Graph SDKs drop a dead token and ask again (docs/clients.md)."""
    claims = b'{"access_token":{"nbf":{"essential":true,"value":"%d"}}}' % int(now)
    return b'WWW-Authenticate: Bearer realm="", error="insufficient_claims", claims="%b"\r\n' % (
        base64.b64encode(claims)
    )
