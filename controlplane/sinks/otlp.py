"""A sink that sends log records to an OpenTelemetry collector, by OTLP over HTTP in JSON.

Every error status except 400 and 413 concerns the collector and not the events, which then wait in the store.
For some error statuses, the specification of OTLP lets a client drop the records. The OTLP sink never drops
records.
"""

from __future__ import annotations

import gzip
import logging
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import aiohttp
import orjson

from controlplane.search.query import rfc3339_ms
from controlplane.sinks.http import beginning, retry_after, said, text_of, unproven
from controlplane.sinks.interface import (
    ALL_SENT,
    Limits,
    Refusal,
    Sent,
    SinkEvent,
    SinkRefused,
    SinkUnavailable,
)
from controlplane.sinks.settings import OtlpSettings, secrets_of_sink
from proxy.config.header_fields import parse_header_fields
from proxy.config.tls import client_tls
from proxy.outbound.call import CallFailed, call
from proxy.outbound.egress import Egress
from proxy.outbound.session import open_session
from proxy.wire.release import VERSION

LOGS_PATH: Final = "/v1/logs"
# collectors accept about 4 MB; a record repeats members
_LIMITS: Final = Limits(events=1000, bytes=2_000_000)
_OF_EVENTS: Final = frozenset({400, 413})  # statuses that concern the events
_JSON, _PROTOBUF = "application/json", "application/x-protobuf"
_INFO, _WARN = (9, "INFO"), (13, "WARN")
_TRACE_ID: Final = re.compile(r"(?!0{32})[0-9a-f]{32}", re.ASCII)
# Attributes from OpenTelemetry's conventions, or of this project, and the event member of each.
_ATTRIBUTES: Final = {
    "log.record.uid": "id",
    "http.request.method": "method",
    "url.path": "path",
    "url.query": "query",
    "http.response.status_code": "status",
    "client.address": "clientIp",
    "service.instance.id": "proxyId",
    "graphward.org_id": "orgId",
    "graphward.app_id": "appId",
    "graphward.request_id": "requestId",
    "graphward.verdict": "verdict",
    "graphward.reason": "reason",
    "graphward.rule_id": "ruleId",
    "graphward.ruleset_version": "rulesetVersion",
    "graphward.upstream.request_id": "upstreamRequestId",
}

_log = logging.getLogger(__name__)


class OtlpSink:
    def __init__(self, settings: OtlpSettings, egress: Egress) -> None:
        self._session = open_session(client_tls(settings.ca_file), egress, user_agent="graphward")
        self._timeout = aiohttp.ClientTimeout(total=settings.timeout_seconds, sock_connect=10)
        base = settings.url.rstrip("/")
        self._url = base if base.endswith(LOGS_PATH) else base + LOGS_PATH
        self._name = settings.name
        self._secrets = secrets_of_sink(settings)
        self._headers = {
            "Content-Type": _JSON,
            "Content-Encoding": "gzip",
            **parse_header_fields(settings.headers),
        }

    @property
    def limits(self) -> Limits:
        return _LIMITS

    async def send(self, events: Sequence[SinkEvent]) -> Sent:
        rejected, words = await self._export([_log_record(each) for each in events])
        if not rejected:
            if words:
                _log.warning(
                    "sink %s: the collector accepted all log records and reported: %s", self._name, words
                )
            return ALL_SENT
        # The response does not name the rejected records, and none may be sent again. So an operator decides
        # about all of them.
        number = "all" if rejected >= len(events) else f"{rejected} (it does not say which) of {len(events)}"
        reason = f"the collector rejected {number} records: {words or 'it gave no reason'}"
        return Sent(tuple(Refusal(each.position, reason) for each in events))

    async def test(self) -> str:
        """Send an export request without log records.

        An OTLP collector handles this empty export request in the same way as an export request with log
        records.
        """
        await self._export([])
        return "the collector accepts log records"

    async def close(self) -> None:
        await self._session.close()

    async def _export(self, records: list[dict[str, Any]]) -> tuple[int, str]:
        """Send log records to the OTLP collector.

        Return the number of log records that the collector rejected, and the collector's message.
        """
        body = gzip.compress(_request(records), 3, mtime=0)
        try:
            status, headers, content = await call(
                self._session, "POST", self._url, body, self._headers, limits=self._timeout
            )
        except CallFailed as error:
            raise SinkUnavailable(str(error)) from None
        if 200 <= status < 300:
            outcome = _outcome(headers.get("Content-Type", ""), content)
            if outcome is None:
                raise SinkUnavailable(unproven(status, headers, content, self._secrets))
            return outcome.rejected, beginning(outcome.words.encode(), self._secrets)
        words = said(status, headers, content, self._secrets)
        if status in _OF_EVENTS and records:
            raise SinkRefused(words)
        raise SinkUnavailable(words, retry_after(headers))


def _request(records: list[dict[str, Any]]) -> bytes:
    resource = {"attributes": [_attribute("service.name", "graphward")]}
    scope = {"scope": {"name": "graphward.audit", "version": VERSION}, "logRecords": records}
    logs = [{"resource": resource, "scopeLogs": [scope]}] if records else []
    return orjson.dumps({"resourceLogs": logs})


def _log_record(event: SinkEvent) -> dict[str, Any]:
    members = event.members
    severity, text = _WARN if members.get("verdict") == "block" else _INFO
    time, received = (_nanoseconds(members.get(name)) for name in ("time", "receivedAt"))
    record = {
        "timeUnixNano": time,
        "observedTimeUnixNano": received or time,
        "severityNumber": severity,
        "severityText": text,
        "eventName": "graphward.request",
        "body": {"stringValue": event.payload.decode("utf-8", "replace")},
        "attributes": [
            _attribute(key, members[name])
            for key, name in _ATTRIBUTES.items()
            if isinstance(members.get(name), str | int)
        ],
    }
    return record | dict(_trace_of(text_of(members.get("traceId")), event))


def _trace_of(trace_id: str, event: SinkEvent) -> Iterator[tuple[str, str]]:
    """Return the trace and span IDs of the event's request, as in the proxy's own spans."""
    request = text_of(event.members.get("requestId")).replace("-", "")
    trace_id = trace_id or text_of(event.members.get("parentRequestId")).replace("-", "") or request
    if _TRACE_ID.fullmatch(trace_id):
        yield "traceId", trace_id
        if _TRACE_ID.fullmatch(request):
            yield "spanId", request[16:]


def _attribute(key: str, value: str | int) -> dict[str, Any]:
    if isinstance(value, str):
        return {"key": key, "value": {"stringValue": value}}
    return {"key": key, "value": {"intValue": str(value)}}  # protobuf's JSON writes 64-bit integers as text


def _nanoseconds(value: object) -> str:
    ms = rfc3339_ms(value) if isinstance(value, str) else None
    return str((ms or 0) * 1_000_000)


@dataclass(frozen=True, slots=True)
class _Outcome:
    rejected: int = 0
    words: str = ""


def _outcome(media_type: str, content: bytes) -> _Outcome | None:
    """Return the content of an ExportLogsServiceResponse, or None for another kind of response.

    An empty response body counts as success: some collectors send an empty body, and in protobuf it means
    complete success.
    """
    media_type = media_type.partition(";")[0].strip().lower()
    if not content:
        return _Outcome() if media_type in ("", _JSON, _PROTOBUF) else None
    if media_type != _JSON:
        return None
    try:
        members = orjson.loads(content)
        if not isinstance(members, dict) or not (members.keys() <= {"partialSuccess"}):
            return None
        partial = members.get("partialSuccess") or {}
        return _Outcome(
            max(0, int(partial.get("rejectedLogRecords") or 0)), text_of(partial.get("errorMessage"))
        )
    except (ValueError, TypeError, AttributeError):
        return None
