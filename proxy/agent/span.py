"""Pure conversion of a spool record to a span of OTLP in JSON (OpenTelemetry's HTTP semantic conventions)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from proxy.audit.record import Record, request_id
from proxy.policy.redaction import shortened
from proxy.wire.release import VERSION
from proxy.wire.trace_context import TraceParent, parent_in

_KIND_SERVER: Final = 2
_STATUS_ERROR: Final = 2
_PARENT_KNOWN: Final = 0x100  # span flag: it is known whether the parent is remote
_PARENT_REMOTE: Final = 0x200
_ERROR_FROM: Final = 500  # lowest status that is the server's fault
_METHODS: Final = frozenset(
    ("CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "QUERY", "TRACE")
)
LONGEST_TEXT: Final = 2048  # characters of a path or a query, because a caller chooses their length
_encode: Final = msgspec.json.Encoder().encode

Attribute = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Source:
    """Attributes that all spans of one proxy share."""

    proxy_id: str | None
    scheme: str  # scheme of the address that applications use


def is_sampled(record: Record) -> bool:
    """Return True if the request's trace context is sampled, or if the request has no trace context."""
    return record.trace is None or parent_in(record.trace).sampled


def texts_cut(record: Record) -> Record:
    """Return a copy of the record with a shortened path and query, for a span."""
    if len(record.path) <= LONGEST_TEXT and len(record.query or "") <= LONGEST_TEXT:
        return record
    query = None if record.query is None else shortened(record.query, LONGEST_TEXT)
    return msgspec.structs.replace(record, path=shortened(record.path, LONGEST_TEXT), query=query)


def characters_of(record: Record) -> int:
    """Return the number of characters in the method, path and query, whose length the caller chooses."""
    return len(record.method) + len(record.path) + len(record.query or "")


def export_body(records: Iterable[tuple[Record, int]], source: Source) -> bytes:
    """Return the body of an OTLP trace export request, with one span for each given request record.

    Each record comes with the request ID prefix of the worker that wrote it.
    """
    resource = [_text("service.name", "graphward-proxy"), _text("service.version", VERSION)]
    if source.proxy_id is not None:
        resource.append(_text("service.instance.id", source.proxy_id))
    spans = [_span(record, id_prefix, source.scheme) for record, id_prefix in records]
    scope = {"scope": {"name": "graphward", "version": VERSION}, "spans": spans}
    return _encode({"resourceSpans": [{"resource": {"attributes": resource}, "scopeSpans": [scope]}]})


def _span(record: Record, id_prefix: int, scheme: str) -> dict[str, Any]:
    own_id = request_id(record.time_ms, id_prefix, record.n)
    started = record.time_ms * 1_000_000
    known = record.method in _METHODS
    span: dict[str, Any] = {
        **_place_in_trace(record, id_prefix, own_id),
        "name": record.method if known else "HTTP",
        "kind": _KIND_SERVER,
        "startTimeUnixNano": str(started),
        "endTimeUnixNano": str(started + record.duration_us * 1000),
        "attributes": list(_attributes(record, own_id, scheme, known=known)),
    }
    if record.status >= _ERROR_FROM:
        span["status"] = {"code": _STATUS_ERROR}
    return span


def _place_in_trace(record: Record, id_prefix: int, own_id: str) -> dict[str, Any]:
    """Return the IDs of the trace, of the request's span and of the parent span.

    A record always gets the same span IDs, so a span that is sent twice counts once. If the caller sent no
    trace context, the request ID becomes the trace ID.
    """
    place: dict[str, Any] = {"spanId": _span_id(own_id)}
    if record.parent is not None:
        batch = request_id(record.parent[1], id_prefix, record.parent[0])
        trace = None if record.trace is None else parent_in(record.trace)
        place["traceId"] = _trace_id(batch) if trace is None else trace.trace_id
        place["parentSpanId"] = _span_id(batch)
        place["flags"] = _PARENT_KNOWN | (1 if trace is None else trace.flags)
    elif record.trace is None:
        place["traceId"] = _trace_id(own_id)
        place["flags"] = 1
    else:
        place |= _below(parent_in(record.trace))
    return place


def _below(caller: TraceParent) -> dict[str, Any]:
    if not caller.span_id:
        return {"traceId": caller.trace_id, "flags": caller.flags}
    flags = _PARENT_KNOWN | _PARENT_REMOTE | caller.flags
    return {"traceId": caller.trace_id, "parentSpanId": caller.span_id, "flags": flags}


def _trace_id(own_id: str) -> str:
    return own_id.replace("-", "")


def _span_id(own_id: str) -> str:
    """Return the half of a request ID that distinguishes requests with the same time."""
    return _trace_id(own_id)[16:]


def _attributes(record: Record, own_id: str, scheme: str, *, known: bool) -> Iterator[Attribute]:
    yield _text("http.request.method", record.method if known else "_OTHER")
    if not known:
        yield _text("http.request.method_original", record.method)
    yield _text("url.scheme", scheme)
    yield _text("url.path", record.path)
    yield _number("http.response.status_code", record.status)
    if record.status >= _ERROR_FROM:
        yield _text("error.type", str(record.status))
    yield _number("http.request.body.size", record.request_bytes)
    yield _number("http.response.body.size", record.response_bytes)
    yield _text("graphward.request_id", own_id)
    yield _text("graphward.org_id", record.org_id)
    yield _text("graphward.verdict", record.verdict)
    yield _text("graphward.reason", record.reason)
    for key, text in (
        ("url.query", record.query),
        ("client.address", record.client_ip),
        ("graphward.app_id", record.app_id),
        ("graphward.rule_id", record.rule_id),
        ("graphward.upstream.request_id", record.upstream_request_id),
    ):
        if text is not None:
            yield _text(key, text)
    for key, number in (
        ("graphward.ruleset_version", record.ruleset_version),
        ("graphward.upstream.status_code", record.upstream_status),
        ("graphward.upstream.duration_us", record.upstream_us),
    ):
        if number is not None:
            yield _number(key, number)


def _text(key: str, value: str) -> Attribute:
    return {"key": key, "value": {"stringValue": value}}


def _number(key: str, value: int) -> Attribute:
    return {"key": key, "value": {"intValue": str(value)}}  # protobuf's JSON writes 64-bit numbers as text
