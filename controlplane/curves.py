"""Curves of a proxy's metrics over the reported time windows, and the times of the proxy's restarts.

The code of this module does no input or output.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache

from controlplane.clock import milliseconds
from controlplane.reports import Heartbeat, Latency, Load, Metrics

_RESTART_MARGIN_SECONDS = 1.0  # An uptime is measured before it is sent, so it may seem to go back slightly.


@dataclass(frozen=True, slots=True)
class Window:
    """A metrics report of a proxy, for one window of time.

    The latency is None if the proxy received no request in the window.
    """

    start_ms: int
    end_ms: int
    requests: int
    blocked: int
    upstream_errors: int
    p50_ms: float | None
    p95_ms: float | None
    p99_ms: float | None

    @property
    def requests_a_second(self) -> float:
        return _rate(self.requests, self.start_ms, self.end_ms)


def window(metrics: Metrics) -> Window | None:
    """Return the time window of a metrics report, or None if the report lacks a time."""
    start, end = _ms(metrics.window_start), _ms(metrics.window_end or "")
    if start is None or end is None:
        return None
    latency = metrics.latency_ms or Latency()
    return Window(
        start,
        end,
        metrics.evaluated or 0,
        metrics.blocked or 0,
        metrics.upstream_errors or 0,
        percentile(latency, 0.50),
        percentile(latency, 0.95),
        percentile(latency, 0.99),
    )


def percentile(latency: Latency, share: float) -> float | None:
    """Return a percentile, interpolated linearly within buckets as in Prometheus.

    If the percentile lies above the last bucket, return the upper bound of this bucket.
    """
    buckets, count = latency.buckets or [], latency.count or 0
    if not buckets or count <= 0:
        return None
    rank = share * count
    bound_before, count_before = 0.0, 0
    for bound, cumulative in buckets:
        if cumulative >= rank and cumulative > count_before:
            within = (rank - count_before) / (cumulative - count_before)
            return bound_before + (bound - bound_before) * within
        bound_before, count_before = bound, cumulative
    return bound_before


def restarts(heartbeats: Sequence[tuple[int, Heartbeat]]) -> list[int]:
    """Return the times in ms when the proxy restarted, oldest first.

    If the reported uptime decreases, the proxy has restarted.

    `heartbeats` contains pairs of a receipt time and a heartbeat, oldest first.
    """
    found = []
    uptime_before: float | None = None
    for received_ms, heartbeat in heartbeats:
        uptime = heartbeat.uptime_seconds
        if uptime is None:
            continue
        if uptime_before is not None and uptime < uptime_before - _RESTART_MARGIN_SECONDS:
            found.append(received_ms - round(uptime * 1000))
        uptime_before = uptime
    return found


def windows(reports: Iterable[Metrics]) -> list[Window]:
    """Return the time windows of metrics reports, sorted from the oldest to the newest.

    The argument `reports` may have any order.
    """
    return sorted(filter(None, map(window, reports)), key=lambda each: each.start_ms)


def rates(reports: Iterable[Load]) -> list[float]:
    """Return the number of requests per second in each report's time window, oldest window first."""
    found = [
        (start, _rate(each.evaluated or 0, start, end))
        for each in reports
        for start, end in [(_ms(each.window_start), _ms(each.window_end or ""))]
        if start is not None and end is not None
    ]
    return [rate for _, rate in sorted(found, key=lambda each: each[0])]


def _rate(requests: int, start_ms: int, end_ms: int) -> float:
    return requests * 1000 / max(1, end_ms - start_ms)


@lru_cache(1024)  # The end of a window is the start of the next one.
def _ms(text: str) -> int | None:
    """Parse a time to ms. Return None if the text is not a time, or if its year in UTC is out of range."""
    try:
        return milliseconds(datetime.fromisoformat(text).astimezone(UTC))
    except (ValueError, OverflowError, OSError):
        return None
