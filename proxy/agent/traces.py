"""Make trace spans from audit records of requests, and send these spans to a trace collector.

Spans may be lost, but audit events may not. The storage of an event therefore never waits for a span. The
queue of spans has a maximum length. A span is lost if the queue is full, if the collector refuses the span,
or if the collector stays unreachable until shutdown.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec
from aiohttp import ClientSession, ClientTimeout

from proxy.agent.lasting import LastingProblem
from proxy.agent.span import Source, characters_of, export_body, is_sampled, texts_cut
from proxy.audit.record import Record
from proxy.outbound.call import CallFailed, call
from proxy.outbound.retry import backoff, retry_after
from proxy.policy.redaction import shortened
from proxy.wire.audit_event import rfc3339
from proxy.wire.models import Check

log = logging.getLogger(__name__)

TRACES_PATH: Final = "/v1/traces"
MOST_QUEUED: Final = 8192  # records of about 1 KB each, in addition to method, path and query
MOST_QUEUED_CHARACTERS: Final = 8 * 1024 * 1024  # characters of methods, paths and queries in the queue
MOST_IN_A_REQUEST: Final = 512  # spans; encoding them takes about 5 ms of the agent's loop
# Characters of methods, paths and queries, so that a body stays near 1 MB.
MOST_CHARACTERS_IN_A_REQUEST: Final = 256 * 1024
SEND_SECONDS: Final = 1.0  # seconds between two looks at the queue
LONGEST_WAIT: Final = 60.0  # seconds between two attempts while the collector is unreachable
LONGEST_RETRY_AFTER: Final = 300.0  # seconds; the longest delay that a collector can request
_REQUEST_LIMITS: Final = ClientTimeout(total=10.0, sock_connect=5.0)
_RETRYABLE: Final = frozenset((429, 502, 503, 504))  # statuses that OTLP/HTTP lets a client repeat
_LONGEST_MESSAGE: Final = 200  # characters of the collector's message

Queued = tuple[Record, int]  # a record, and the prefix of its worker's request ids


class _PartialSuccess(msgspec.Struct, frozen=True, rename="camel"):
    rejected_spans: int | str = 0  # protobuf's JSON writes 64-bit numbers as text
    error_message: str = ""


class _ExportResponse(msgspec.Struct, frozen=True, rename="camel"):
    partial_success: _PartialSuccess = _PartialSuccess()


class _Refused(Exception):
    """Error because the trace collector refused spans permanently."""


class _PutOff(Exception):
    """Error because the trace collector can't accept spans at the moment; a retry may succeed."""

    def __init__(self, text: str, wait: float | None = None) -> None:
        super().__init__(text)
        self.wait = wait


class TraceExporter:
    """Exporter of trace spans. The queue contains the spans that are not exported yet.

    The journal's thread calls the method `offer` of the exporter. The event loop calls all methods of the
    exporter except `offer`.
    """

    def __init__(
        self,
        session: ClientSession,
        url: str,
        headers: Mapping[str, str],
        source: Callable[[], Source],
        *,
        interval: float = SEND_SECONDS,
    ) -> None:
        """`url` is the base address of the collector, or its complete address ending with `/v1/traces`."""
        self._session = session
        self._url = url if url.endswith(TRACES_PATH) else url.rstrip("/") + TRACES_PATH
        self._headers = {"Content-Type": "application/json", **headers}
        self._source = source
        self._interval = interval
        self._queue: deque[Queued] = deque()
        self._problem = LastingProblem(log)
        self._sending: list[Queued] = []  # taken from the queue, and not accepted yet
        # Total of characters put into the queue; only the journal's thread writes it.
        self._queued_characters = 0
        self._taken_characters = 0  # total of characters taken out of the queue
        self._next_attempt_ms: int | None = None  # set while spans wait
        self.exported = 0
        self._overflowed = 0  # only the journal's thread writes it
        self._unsent = 0  # spans that the collector refused, or that were left at the end

    @property
    def lost(self) -> int:
        return self._overflowed + self._unsent

    def offer(self, records: Sequence[Record], id_prefix: int) -> None:
        """Add trace spans of sampled records to the queue.

        The method `offer` of the exporter never waits. If the queue is full, spans of the records are lost.
        """
        for record in records:
            if not is_sampled(record):
                continue
            queued = texts_cut(record)
            characters = characters_of(queued)
            if not self._has_room(characters):
                self._overflowed += 1
                continue
            self._queued_characters += characters
            self._queue.append((queued, id_prefix))

    def _has_room(self, characters: int) -> bool:
        waiting = self._queued_characters - self._taken_characters
        return len(self._queue) < MOST_QUEUED and waiting + characters <= MOST_QUEUED_CHARACTERS

    async def run(self) -> None:
        """Export spans repeatedly, until the task is cancelled."""
        failures = 0
        while True:
            try:
                await self._export_queued()
                failures = 0
                wait = self._interval
            except _PutOff as put_off:
                asked = min(put_off.wait or 0.0, LONGEST_RETRY_AFTER)
                wait = asked or backoff(failures, LONGEST_WAIT)
                failures += 1
                self._next_attempt_ms = int((time.time() + wait) * 1000)
                self._problem.met(str(put_off), "spans wait: %s", str(put_off))
            await asyncio.sleep(wait)

    async def flush(self, seconds: float) -> None:
        """Export the queued spans once, without a retry.

        Spans that remain in the queue after the last export are lost.
        """
        with contextlib.suppress(TimeoutError, _PutOff):
            async with asyncio.timeout(seconds):
                await self._export_queued()
        self._unsent += len(self._sending) + len(self._queue)
        self._sending = []
        self._queue.clear()

    async def _export_queued(self) -> None:
        while self._sending or self._queue:
            self._take()
            try:
                rejected = await self._export(export_body(self._sending, self._source()))
            except _Refused as refused:
                self._next_attempt_ms = None
                self._problem.met(str(refused), "lost spans: %s", str(refused))
                rejected = len(self._sending)
            else:
                self._next_attempt_ms = None
                if not rejected and self._problem.over():
                    log.info("the trace collector accepts spans again")
            self.exported += len(self._sending) - rejected
            self._unsent += rejected
            self._sending = []

    def _take(self) -> None:
        """Move spans from the queue to the next export request, up to the request's size limit."""
        characters = sum(characters_of(record) for record, _ in self._sending)
        while self._queue and len(self._sending) < MOST_IN_A_REQUEST:
            more = characters_of(self._queue[0][0])
            if self._sending and characters + more > MOST_CHARACTERS_IN_A_REQUEST:
                return
            characters += more
            self._taken_characters += more
            self._sending.append(self._queue.popleft())

    async def _export(self, body: bytes) -> int:
        """Send one export request to the trace collector, and return how many spans the collector rejected.

        Raise _PutOff if the export must be repeated later, or _Refused if the collector refuses the spans
        permanently.
        """
        try:
            status, headers, content = await call(
                self._session, "POST", self._url, body, self._headers, limits=_REQUEST_LIMITS
            )
        except CallFailed as failed:
            raise _PutOff(f"the trace collector does not respond: {failed}") from None
        if status in _RETRYABLE:
            wait = retry_after(headers.get("Retry-After"), time.time())
            raise _PutOff(f"the trace collector responds with {status}", wait)
        if not 200 <= status < 300:
            raise _Refused(f"the trace collector responds with {status}: {_words(content)}")
        return self._rejected(content)

    def _rejected(self, content: bytes) -> int:
        try:
            partial = msgspec.json.decode(content or b"{}", type=_ExportResponse).partial_success
            rejected = max(0, min(int(partial.rejected_spans), len(self._sending)))
        except ValueError:  # any 2xx is a success, whatever its body
            return 0
        if rejected:
            words = shortened(partial.error_message, _LONGEST_MESSAGE)
            text = f"the trace collector rejected {rejected} of {len(self._sending)} spans: {words}"
            self._problem.met(text, "lost spans: %s", text)
        return rejected

    def check(self) -> Check:
        """Return the state of the span export as a check, for heartbeat, readiness and metrics."""
        if self._problem.text is None:
            return Check("ok")
        attempt = self._next_attempt_ms
        again = f"; the next attempt is at {rfc3339(attempt)}" if attempt else ""
        lost = f"; {self.lost} spans are lost since the start" if self.lost else ""
        return Check("degraded", f"{self._problem.text}{again}{lost}")


def _words(content: bytes) -> str:
    return shortened(content.decode("utf-8", "replace"), _LONGEST_MESSAGE)
