"""A fake of Splunk's HTTP Event Collector: responses, errors and acknowledgements as documented."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

from aiohttp import web

_TEXTS: Final = {
    2: (401, "Token is required"),
    3: (401, "Invalid authorization"),
    4: (403, "Invalid token"),
    5: (400, "No data"),
    6: (400, "Invalid data format"),
    7: (400, "Incorrect index"),
    8: (500, "Internal server error"),
    9: (503, "Server is busy"),
    10: (400, "Data channel is missing"),
    13: (400, "Event field cannot be blank"),
    14: (400, "ACK is disabled"),
    18: (503, "HEC is unhealthy, queues are full"),
}


class SplunkCollector:
    def __init__(self, token: str = "hec-token") -> None:
        self.token = token
        self.index = "main"
        self.events: list[dict[str, Any]] = []
        self.codes: list[int] = []  # codes of the next responses
        self.responses: list[web.Response] = []  # next responses, used instead of `codes`
        self.acknowledges = False
        self.looks_until_indexed = 1
        self.url = ""
        self.after: list[Callable[[], None]] = []  # called between the storage of a delivery and its response
        self.took = asyncio.Semaphore(0)  # released for each delivery
        # number of polls until an acknowledgement is true, by its id
        self._channels: dict[str, dict[int, int]] = {}
        self._acks = 0

    def _error(self, code: int, **more: Any) -> web.Response:
        status, text = _TEXTS[code]
        return web.json_response({"text": text, "code": code, **more}, status=status)

    def _refusal(self, request: web.Request) -> web.Response | None:
        given = request.headers.get("Authorization", "")
        if not given:
            return self._error(2)
        if not given.startswith("Splunk "):
            return self._error(3)
        return None if given == f"Splunk {self.token}" else self._error(4)

    async def event(self, request: web.Request) -> web.Response:
        body = (await request.read()).decode()
        if (refusal := self._refusal(request)) is not None:
            return refusal
        channel = request.headers.get("X-Splunk-Request-Channel")
        if self.acknowledges and not channel:
            return self._error(10)
        if not body:
            return self._error(5)
        if self.responses:
            return self.responses.pop(0)
        if self.codes:
            return self._error(self.codes.pop(0))
        read = json.JSONDecoder()
        found: list[dict[str, Any]] = []
        while body:
            try:
                each, end = read.raw_decode(body)
            except ValueError:
                return self._error(6, **{"invalid-event-number": len(found)})
            if each.get("index", self.index) != self.index:
                return self._error(7, **{"invalid-event-number": len(found)})
            if not each.get("event") or each["event"].get("path") == "/blank":
                return self._error(13, **{"invalid-event-number": len(found)})
            found.append(each)
            body = body[end:].lstrip()
        self.events += found
        self.took.release()
        if self.after:
            self.after.pop(0)()
        success: dict[str, Any] = {"text": "Success", "code": 0}
        if self.acknowledges:
            assert channel is not None
            self._channels.setdefault(channel, {})[self._acks] = self.looks_until_indexed
            success["ackId"] = self._acks
            self._acks += 1
        return web.json_response(success)

    async def ack(self, request: web.Request) -> web.Response:
        if (refusal := self._refusal(request)) is not None:
            return refusal
        if not self.acknowledges:
            return self._error(14)
        known = self._channels.get(request.query.get("channel", ""), {})
        acks = {}
        for number in (await request.json())["acks"]:
            left = known.get(number, 1)
            acks[str(number)] = left <= 0
            if left <= 0:
                known.pop(number, None)  # an acknowledgement is reported once
            else:
                known[number] = left - 1
        return web.json_response({"acks": acks})

    async def health(self, _: web.Request) -> web.Response:
        if self.codes:
            return self._error(self.codes.pop(0))
        return web.json_response({"text": "HEC is healthy", "code": 17})


@asynccontextmanager
async def splunk_collector() -> AsyncIterator[SplunkCollector]:
    collector = SplunkCollector()
    app = web.Application(client_max_size=8 * 1024 * 1024)
    app.add_routes(
        [
            web.post("/services/collector/event", collector.event),
            web.post("/services/collector/ack", collector.ack),
            web.get("/services/collector/health", collector.health),
        ]
    )
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    collector.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield collector
    finally:
        await runner.cleanup()
