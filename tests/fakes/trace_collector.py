"""A fake trace collector, which receives JSON over HTTP as the OpenTelemetry specification says."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any, Final, Literal

from tests.fakes.server import Fake, Received, Response
from tests.patience import PATIENCE_SECONDS

TRACES: Final = "/v1/traces"
Mode = Literal["ok", "throttled", "refused", "partial"]

_TRACE_ID: Final = re.compile(r"(?!0{32})[0-9a-f]{32}")
_SPAN_ID: Final = re.compile(r"(?!0{16})[0-9a-f]{16}")
_NANOSECONDS: Final = re.compile(r"[1-9][0-9]{18}")


class FakeTraceCollector(Fake):
    """A fake trace collector that stores accepted spans.

    If a received span violates the protocol, the fake collector adds the span to `problems`.
    """

    def __init__(self, *, token: str = "") -> None:
        super().__init__()
        self.mode: Mode = "ok"
        self.retry_after = "0"  # value of Retry-After in a response that throttles
        self.token = token  # value of Authorization that each request must have
        self.spans: list[dict[str, Any]] = []
        self.resources: list[dict[str, Any]] = []
        self.problems: list[str] = []
        self._news = asyncio.Event()

    async def until_spans(self, count: int) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while len(self.spans) < count:
                self._news.clear()
                await self._news.wait()

    async def response(self, request: Received) -> Response:
        if request.method != "POST" or request.path != TRACES:
            return _json(404, {"code": 5, "message": "not found"})
        if request.value("Content-Type") != "application/json":
            return _json(415, {"code": 3, "message": "unsupported media type"})
        if request.value("Authorization") != self.token:
            return _json(401, {"code": 16, "message": "no valid token"})
        match self.mode:
            case "throttled":
                return Response(503, (("Retry-After", self.retry_after),), b"")
            case "refused":
                return _json(400, {"code": 3, "message": "no such tenant"})
            case "partial":
                return _json(200, {"partialSuccess": {"rejectedSpans": "1", "errorMessage": "too old"}})
            case "ok":
                self._accept(json.loads(bytes(request.body)))
                return _json(200, {})

    def _accept(self, body: dict[str, Any]) -> None:
        for resource in body["resourceSpans"]:
            self.resources.append(attributes(resource["resource"]))
            for scope in resource["scopeSpans"]:
                for span in scope["spans"]:
                    self._check(span)
                    self.spans.append(span)
        self._news.set()

    def _check(self, span: dict[str, Any]) -> None:
        parent = span.get("parentSpanId")
        forms = (
            _TRACE_ID.fullmatch(span["traceId"]),
            _SPAN_ID.fullmatch(span["spanId"]),
            parent is None or _SPAN_ID.fullmatch(parent),
            _NANOSECONDS.fullmatch(span["startTimeUnixNano"]),
            _NANOSECONDS.fullmatch(span["endTimeUnixNano"]),
        )
        if not all(forms) or span["endTimeUnixNano"] < span["startTimeUnixNano"]:
            self.problems.append(f"malformed span: {span}")


def attributes(of: dict[str, Any]) -> dict[str, Any]:
    """Return the attributes of a span or a resource as plain values."""
    found: dict[str, Any] = {}
    for each in of["attributes"]:
        value = each["value"]
        found[each["key"]] = int(value["intValue"]) if "intValue" in value else value["stringValue"]
    return found


def _json(status: int, body: dict[str, Any]) -> Response:
    return Response(status, (("Content-Type", "application/json"),), json.dumps(body).encode())
