"""Report of counters to the control plane: differences since the last report, summed over all workers."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from itertools import accumulate
from typing import Final

import msgspec

from proxy.agent.health import AuditStatus
from proxy.agent.report import Report
from proxy.agent.sync import Sync
from proxy.ipc import counters as c
from proxy.outbound.retry import jittered
from proxy.wire.audit_event import rfc3339
from proxy.wire.models import Latency, Metrics

_REPORTED: Final = (
    *c.VERDICTS,
    c.UPSTREAM_ERRORS,
    *range(c.LATENCY_FIRST, c.LATENCY_LAST + 1),
    c.LATENCY_SUM_US,
)


class MetricsReporter:
    """Reporter of the counts since the last metrics report that certainly arrived at the control plane.

    If a metrics report does not arrive at the control plane, the next report covers its period too.

    The agent stores the reported totals on a memory page of counters that only the agent writes. The memory
    page outlives the agent process, so that the next agent process continues with the stored totals.
    """

    def __init__(
        self,
        report: Report,
        counters: c.CounterPages,
        *,
        sync: Sync,
        audit: Callable[[], Awaitable[AuditStatus | None]],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._report = report
        self._counters = counters
        self._sync = sync
        self._audit = audit
        self._clock = clock
        own = counters.agent.values
        if not own[c.REPORTED_UNTIL_MS]:
            own[c.REPORTED_UNTIL_MS] = int(clock() * 1000)

    async def run(self) -> None:
        while True:
            await asyncio.sleep(jittered(self._sync.interval, 0.9))
            await self.once()

    async def once(self) -> bool:
        status = await self._audit()
        until_ms = int(self._clock() * 1000)
        totals = {index: self._counters.total(index) for index in _REPORTED}
        if not await self._report.post(msgspec.json.encode(self._message(totals, until_ms, status))):
            return False
        own = self._counters.agent.values
        for index, total in totals.items():
            own[c.REPORTED_FIRST + index] = total
        own[c.REPORTED_UNTIL_MS] = until_ms
        return True

    def _message(self, totals: dict[int, int], until_ms: int, status: AuditStatus | None) -> Metrics:
        own = self._counters.agent.values
        delta = {index: total - own[c.REPORTED_FIRST + index] for index, total in totals.items()}
        *cumulative, count = accumulate(delta[at] for at in range(c.LATENCY_FIRST, c.LATENCY_LAST + 1))
        return Metrics(
            window_start=rfc3339(own[c.REPORTED_UNTIL_MS]),
            window_end=rfc3339(until_ms),
            evaluated=sum(delta[index] for index in c.VERDICTS),
            allowed=delta[c.ALLOWED],
            blocked=delta[c.BLOCKED],
            filtered=delta[c.FILTERED],
            logged_only=delta[c.LOGGED_ONLY],
            upstream_errors=delta[c.UPSTREAM_ERRORS],
            audit_pending=status.pending if status is not None else 0,
            latency_ms=Latency(
                buckets=tuple(zip(c.LATENCY_BOUNDS_MS, cumulative, strict=True)),
                sum=delta[c.LATENCY_SUM_US] / 1000,
                count=count,
            ),
        )
