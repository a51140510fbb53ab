"""A sink for Splunk's HTTP Event Collector.

One HTTP request holds a batch as JSON objects, one after the other.

The collector reports an invalid event in `invalid-event-number`, and the sink sends the other events again.
With the setting `Acknowledge`, events count as delivered only when Splunk's indexers have written them.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlencode

import aiohttp
import orjson

from controlplane.search.query import rfc3339_ms
from controlplane.sinks.http import retry_after, said, text_of, unproven
from controlplane.sinks.interface import Limits, Refusal, Sent, SinkEvent, SinkRefused, SinkUnavailable
from controlplane.sinks.settings import SplunkSettings, secrets_of_sink
from proxy.config.tls import client_tls
from proxy.outbound.call import CallFailed, call
from proxy.outbound.egress import Egress
from proxy.outbound.session import open_session

_EVENT: Final = "/services/collector/event"
_ACK: Final = "/services/collector/ack"
_HEALTH: Final = "/services/collector/health"
_LIMITS: Final = Limits(events=1000, bytes=900_000)  # a collector accepts 1 MB by default in Splunk Cloud
# Codes of the collector's responses.
_SUCCESS, _NO_DATA, _HEALTHY = 0, 5, 17
_BAD_EVENT: Final = frozenset({6, 12, 13, 15})  # invalid format, no event, blank event, indexed fields
# pauses in seconds between status requests; the last one repeats
_ACK_PAUSES: Final = (0.1, 0.2, 0.5, 1.0, 2.0)


class SplunkSink:
    def __init__(self, settings: SplunkSettings, egress: Egress) -> None:
        self._settings = settings
        self._session = open_session(client_tls(settings.ca_file), egress, user_agent="graphward")
        self._timeout = aiohttp.ClientTimeout(total=settings.timeout_seconds, sock_connect=10)
        self._channel = str(uuid.uuid4())
        self._about = {"source": settings.source, "sourcetype": settings.source_type}
        if settings.index:
            self._about["index"] = settings.index

    @property
    def limits(self) -> Limits:
        return _LIMITS

    async def send(self, events: Sequence[SinkEvent]) -> Sent:
        left, refused = list(events), []
        while left:
            invalid = await self._post(left)
            if invalid is None:
                break
            number, reason = invalid
            refused.append(Refusal(left.pop(number).position, reason))
        return Sent(tuple(refused))

    async def test(self) -> str:
        """Request the collector's health, then test the token with an empty delivery."""
        status, headers, body = await self._call("GET", _HEALTH, b"")
        if status != 200 or _code(body) != _HEALTHY:
            raise SinkUnavailable(self._said(status, headers, body), retry_after(headers))
        status, headers, body = await self._call("POST", _EVENT, b"")
        if status == 400 and _code(body) == _NO_DATA:
            return "the collector is healthy and accepts the token"
        raise SinkUnavailable(self._said(status, headers, body), retry_after(headers))

    def _said(self, status: int, headers: Mapping[str, str], body: bytes) -> str:
        words = unproven if 200 <= status < 300 else said
        return words(status, headers, body, secrets_of_sink(self._settings))

    async def close(self) -> None:
        await self._session.close()

    async def _post(self, events: Sequence[SinkEvent]) -> tuple[int, str] | None:
        """Send the events to the collector in one request.

        Return the index of an invalid event and the reason, or None if the collector accepts all events.
        """
        status, headers, body = await self._call("POST", _EVENT, b"\n".join(map(self._line, events)))
        if status == 200 and _code(body) == _SUCCESS:
            if self._settings.acknowledge:
                await self._until_indexed(_members(body).get("ackId"))
            return None
        if status == 413:
            raise SinkRefused(self._said(status, headers, body))
        if status == 400 and _code(body) in _BAD_EVENT:
            number = _members(body).get("invalid-event-number")
            if isinstance(number, int) and 0 <= number < len(events):
                return number, self._said(status, headers, body)
            raise SinkRefused(self._said(status, headers, body))
        raise SinkUnavailable(self._said(status, headers, body), retry_after(headers))

    def _line(self, event: SinkEvent) -> bytes:
        time_ms = rfc3339_ms(str(event.members.get("time")))
        about: dict[str, Any] = dict(self._about)
        about["host"] = text_of(event.members.get("proxyId")) or "graphward"
        if time_ms is not None:
            about["time"] = time_ms / 1000
        return orjson.dumps(about)[:-1] + b',"event":' + event.payload + b"}"

    async def _until_indexed(self, number: object) -> None:
        """Wait until Splunk's indexers have written the events.

        The consumer cancels this call if the indexers take too long.
        """
        if not isinstance(number, int):
            what = "turn on indexer acknowledgement for the token, or set Acknowledge = false"
            raise SinkUnavailable(f"the collector returned no ackId: {what}")
        question = orjson.dumps({"acks": [number]})
        path = f"{_ACK}?{urlencode({'channel': self._channel})}"
        tries = 0
        while True:
            status, headers, body = await self._call("POST", path, question)
            if status != 200:
                raise SinkUnavailable(self._said(status, headers, body), retry_after(headers))
            acks = _members(body).get("acks")
            if isinstance(acks, dict) and acks.get(str(number)) is True:
                return
            await asyncio.sleep(_ACK_PAUSES[min(tries, len(_ACK_PAUSES) - 1)])
            tries += 1

    async def _call(self, method: str, path: str, body: bytes) -> tuple[int, Mapping[str, str], bytes]:
        headers = {
            "Authorization": f"Splunk {self._settings.token}",
            "X-Splunk-Request-Channel": self._channel,
            "Content-Type": "application/json",
        }
        try:
            return await call(
                self._session, method, self._settings.url + path, body, headers, limits=self._timeout
            )
        except CallFailed as error:
            raise SinkUnavailable(str(error)) from None


def _members(body: bytes) -> Mapping[str, Any]:
    try:
        members = orjson.loads(body)
    except ValueError:
        return {}
    return members if isinstance(members, dict) else {}


def _code(body: bytes) -> object:
    return _members(body).get("code")
