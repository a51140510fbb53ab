"""Fakes of two log receivers: Azure Monitor's Logs Ingestion API, and an OTLP collector over HTTP.

Both fakes behave as the services' documentation says: limits of size, throttling, refusals with the words of
the service, and responses that reject some records only.
"""

from __future__ import annotations

import gzip
import json
from typing import Any, Final, Literal

from tests.fakes.server import Fake, Received, Response

RULE_ID: Final = "dcr-00000000000000000000000000000000"
STREAM: Final = "Custom-GraphwardAudit"
MONITOR_TOKEN: Final = "monitor-token"
_MOST: Final = 1024 * 1024
_RETRY_AFTER: Final = ("Retry-After", "30")

IngestionMode = Literal["ok", "throttled", "noRole", "expired", "badStream", "busy"]


class FakeLogsIngestion(Fake):
    """A fake data collection rule of Azure Monitor, with one stream.

    A row whose `Path` is `/poison` makes the fake refuse all rows of the call.
    """

    def __init__(self) -> None:
        super().__init__()
        self.mode: IngestionMode = "ok"
        self.instead: Response | None = None  # response of another program at this address
        self.calls: list[list[dict[str, Any]]] = []

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [row for call in self.calls for row in call]

    async def response(self, request: Received) -> Response:
        if self.instead is not None:
            return self.instead
        if request.value("Authorization") != f"Bearer {MONITOR_TOKEN}" or self.mode == "expired":
            return _azure_error(401, "InvalidToken", "The token is not valid")
        if self.mode == "noRole":
            what = "The token provided does not have access to ingest data for the rule"
            return _azure_error(403, "OperationFailed", what)
        if self.mode == "throttled":
            return Response(429, (_RETRY_AFTER,), b"")
        if self.mode == "busy":
            return Response(503, (), b"")
        wanted = f"/dataCollectionRules/{RULE_ID}/streams/{STREAM}"
        if request.path != wanted or self.mode == "badStream":
            return _azure_error(400, "InvalidStream", "The stream is not one of the data collection rule")
        if request.query != "api-version=2023-01-01" or request.value("Content-Encoding") != "gzip":
            return _azure_error(400, "InvalidRequest", "api-version or encoding")
        text = gzip.decompress(bytes(request.body))
        if len(text) > _MOST:
            return Response(413, (), b"")
        rows = json.loads(text)
        if any(row.get("Path") == "/poison" for row in rows):
            return _azure_error(400, "InvalidPayload", "A record of the payload can't be read")
        self.calls.append(rows)
        return Response(204)


def _azure_error(status: int, code: str, message: str) -> Response:
    body = json.dumps({"error": {"code": code, "message": message}}).encode()
    return Response(status, (("Content-Type", "application/json"), ("x-ms-error-code", code)), body)


CollectorMode = Literal["ok", "throttled", "partial", "warning", "badData", "unauthorized"]


class FakeLogCollector(Fake):
    """A fake OTLP collector that stores the log records that it accepts.

    The collector requires the header `api-key`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.mode: CollectorMode = "ok"
        self.instead: Response | None = None  # response of another program at this address
        self.records: list[dict[str, Any]] = []

    async def response(self, request: Received) -> Response:
        if self.instead is not None:
            return self.instead
        if request.path != "/v1/logs" or request.value("Content-Type") != "application/json":
            return _collector_error(404, "no such place")
        if request.value("api-key") != "key,1" or self.mode == "unauthorized":
            return _collector_error(401, "no valid key")
        body = json.loads(gzip.decompress(bytes(request.body)))
        records = [
            record
            for resource in body["resourceLogs"]
            for scope in resource["scopeLogs"]
            for record in scope["logRecords"]
        ]
        match self.mode:
            case "throttled":
                return Response(503, (_RETRY_AFTER,), b"")
            case "badData":
                return _collector_error(400, "a record can't be read")
            case "partial":
                said = {"rejectedLogRecords": "1", "errorMessage": "a record is too old"}
                return _json({"partialSuccess": said})
            case "warning":
                self.records += records
                return _json({"partialSuccess": {"rejectedLogRecords": 0, "errorMessage": "use gRPC"}})
        self.records += records
        return _json({})


def _json(body: dict[str, Any], status: int = 200) -> Response:
    return Response(status, (("Content-Type", "application/json"),), json.dumps(body).encode())


def _collector_error(status: int, message: str) -> Response:
    return _json({"code": 3, "message": message}, status)
