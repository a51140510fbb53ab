"""Respond to a request that is refused before its exchange begins, and write the audit event."""

from __future__ import annotations

import logging
import time
from typing import Final

from proxy.audit.record import request_id
from proxy.ipc.counters import BAD_REQUESTS, LIMIT_HEAD_BYTES, LIMIT_HEADER_COUNT
from proxy.server.context import Context
from proxy.server.errors import NO_ROOM, MalformedHead, Refusal, overloaded
from proxy.server.http1 import own_responses
from proxy.server.http1.request_reader import HeadTooLong, TooManyFields
from proxy.server.record.request_record import pending_event_of_refused
from proxy.wire.audit_event import STATUS_CLIENT_LEFT

logger = logging.getLogger(__name__)

# methods to name in Allow if another one is refused
METHODS: Final = "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"


def refuse_head(context: Context, error: MalformedHead, received: bytes, client_ip: str) -> bytes | None:
    """Return the response to a request with a malformed head, or None if the audit event cannot be written.

    If `received` contains a readable token, the refusal is recorded as an audit event. If `received` contains
    no readable token, the organisation is unknown, so the refusal is only counted and logged.
    """
    _count(context, error)
    logger.info("refused a request from %s: %s", client_ip, error)
    refusal = Refusal(
        error.code,
        f"The request is not acceptable: {error}.",
        error.reason,
        allow=METHODS if error.code == "methodNotAllowed" else None,
        close=True,
    )
    pending = pending_event_of_refused(context, received, client_ip)
    recorded = pending.caller is not None
    if recorded and not context.can_record(pending.record_bytes):
        recorded = False
        refusal = Refusal("notReady", NO_ROOM, "notReady", retry_after=5, close=True)
    head, body = _response(context, refusal, pending.request_id(context), pending.client_request_id_text)
    if pending.method == "HEAD":
        body = b""
    if recorded and not pending.close(context, refusal, len(body)):
        return None
    return head + body


def no_room_for_connection(context: Context) -> bytes:
    """Return the response to a client whose connection exceeds the connection limits."""
    refusal = overloaded("The proxy has too many connections.", close=True)
    context.requests += 1
    own_id = request_id(int(time.time() * 1000), context.spool.id_prefix, context.requests)
    head, body = _response(context, refusal, own_id, None)
    return head + body


def record_unfinished_head(context: Context, received: bytes, client_ip: str) -> None:
    """Write an audit event if a client with a known token left before sending a complete request head."""
    pending = pending_event_of_refused(context, received, client_ip)
    if pending.caller is not None:
        pending.status = STATUS_CLIENT_LEFT
        pending.reason = "clientAborted"
        pending.write(context)


def _count(context: Context, error: MalformedHead) -> None:
    values = context.counters.values
    if isinstance(error, HeadTooLong):
        values[LIMIT_HEAD_BYTES] += 1
    elif isinstance(error, TooManyFields):
        values[LIMIT_HEADER_COUNT] += 1
    values[BAD_REQUESTS] += 1


def _response(
    context: Context, refusal: Refusal, own_id: str, client_request_id: str | None
) -> tuple[bytes, bytes]:
    return own_responses.refusal_response(
        refusal,
        request_id=own_id,
        client_request_id=client_request_id,
        contact=context.contact,
        close=True,
        now=time.time(),
    )
