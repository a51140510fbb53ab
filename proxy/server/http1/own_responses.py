"""Build the responses that the proxy makes itself: heads, and error bodies in Graph's form."""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from email.utils import formatdate
from http import HTTPStatus
from typing import Final

import orjson

from proxy.server.errors import BLOCKED, Refusal

_REASON: Final[dict[int, bytes]] = {status.value: status.phrase.encode() for status in HTTPStatus}

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"

_LONGEST_CLIENT_ID: Final = 256  # characters of a client-request-id that a response repeats; a GUID has 36

JSON: Final = b"Content-Type: application/json\r\nX-Content-Type-Options: nosniff\r\n"


def head(status: int, length: int, extra: bytes = b"", *, close: bool, now: float) -> bytes:
    """Return the head of a response that the proxy itself makes.

    `extra` contains additional header lines, each with its line end.
    """
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
    """Return head and body of a JSON response."""
    encoded = orjson.dumps(body)
    return head(status, len(encoded), JSON + extra, close=close, now=now), encoded


def id_fields(request_id: str, client_request_id: str | None) -> bytes:
    """Return the header fields by which Graph identifies a request, such as its request ID."""
    fields = b"request-id: %b\r\n" % request_id.encode("ascii")
    repeated = _repeated(client_request_id)
    if repeated is not None:
        fields += b"client-request-id: %b\r\n" % repeated.encode("ascii")
    return fields


def ids_as_entra(request_id: str, client_request_id: str | None, now: float) -> dict[str, str]:
    """Return members of a token endpoint error, under the names that Entra uses.

    The identity library of an application prints the members of a token endpoint error.
    """
    return {
        "timestamp": datetime.fromtimestamp(int(now), UTC).strftime("%Y-%m-%d %H:%M:%SZ"),
        "trace_id": request_id,
        "correlation_id": _repeated(client_request_id) or request_id,
    }


def _repeated(client_request_id: str | None) -> str | None:
    """Return the request ID that a client sent, if a response may repeat this ID.

    Return None if the ID is too long for a response, or has characters other than printable ASCII.
    """
    own = client_request_id
    return own if own and len(own) <= _LONGEST_CLIENT_ID and own.isascii() and own.isprintable() else None


def refusal_response(
    refusal: Refusal,
    *,
    request_id: str,
    client_request_id: str | None,
    contact: str,
    close: bool,
    now: float,
) -> tuple[bytes, bytes]:
    """Return the head and the body for a refusal (docs/reference/token-endpoint.md)."""
    body = error_body(
        refusal, request_id=request_id, client_request_id=client_request_id, contact=contact, now=now
    )
    extra = JSON + b"Cache-Control: no-store\r\n" + id_fields(request_id, client_request_id)
    if refusal.status == 401:
        extra += claims_challenge(now)
    if refusal.allow is not None:
        extra += b"Allow: %b\r\n" % refusal.allow.encode()
    if refusal.retry_after is not None:
        extra += b"Retry-After: %d\r\n" % refusal.retry_after
    return head(refusal.status, len(body), extra, close=close, now=now), body


def error_body(
    refusal: Refusal, *, request_id: str, client_request_id: str | None, contact: str, now: float
) -> bytes:
    """Return the JSON error body of the response to a refused request.

    `contact` names the person or team to contact with questions, or is empty.
    """
    error: dict[str, object] = {"code": refusal.code, "message": _message(refusal, contact)}
    if refusal.rule_id is not None:
        error["ruleId"] = refusal.rule_id
    if refusal.upstream_status is not None:
        error["upstreamStatus"] = refusal.upstream_status
    error["innerError"] = {
        "request-id": request_id,
        "client-request-id": _repeated(client_request_id) or request_id,
        "date": datetime.fromtimestamp(int(now), UTC).strftime("%Y-%m-%dT%H:%M:%S"),
    }
    return orjson.dumps({"error": error})


def _message(refusal: Refusal, contact: str) -> str:
    """Return the message for the error body of a refused request.

    The error message says that the response comes from Graphward and not from the upstream.
    """
    if refusal.code in BLOCKED:  # these messages name Graphward themselves
        return f"{refusal.message} Ask: {contact}" if contact else refusal.message
    if refusal.code == "itemNotFound":  # must look like the response for an item that does not exist
        return refusal.message
    return f"Graphward: {refusal.message}"


def claims_challenge(now: float) -> bytes:
    """Return the challenge that makes Graph SDKs discard an invalid token and get a new token."""
    claims = b'{"access_token":{"nbf":{"essential":true,"value":"%d"}}}' % int(now)
    return b'WWW-Authenticate: Bearer realm="", error="insufficient_claims", claims="%b"\r\n' % (
        base64.b64encode(claims)
    )
