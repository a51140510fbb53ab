"""Rate limits: the time until the next batch or report is accepted, and how proxies avoid refusals."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Final

WINDOW_MS: Final = 60_000
_SHARE: Final = 0.8  # share of a limit for steady small batches; the rest is for full batches and final ones
_MOST_LINGER: Final = 128.0  # seconds that events wait for others at most, for any number of proxies
_LINGERS: Final = [*(step * 2.0**power for power in range(7) for step in (1.0, 1.5)), _MOST_LINGER][1:]
"""Linger times in seconds. They are few, so that a new proxy rarely changes those of the others."""


def retry_after_seconds(now_ms: int, blocking_ms: Iterable[int | None]) -> int:
    """Return the whole seconds until all time windows accept a batch; 0 if all accept the batch now.

    `blocking_ms` has one time for each limit of N batches per window: the acceptance time of the N-th newest
    batch, or None if fewer batches were accepted. A batch counts in a window from the time of its acceptance,
    until the length of the window has passed.
    """
    wait_ms = max((ms + WINDOW_MS - now_ms for ms in blocking_ms if ms is not None), default=0)
    return -(-wait_ms // 1000)


class ReportRate:
    """The limit on the reports of one proxy: a burst at first, and then one report in each interval."""

    def __init__(self, at_once: int, interval_ms: int) -> None:
        self._room_ms = (at_once - 1) * interval_ms
        self._interval_ms = interval_ms
        self._spent_until: dict[Hashable, int] = {}

    def wait_seconds(self, sender: Hashable, now_ms: int) -> int:
        """Count a report and return 0.

        If `sender` has reached its limit of reports, do not count the report, and return the seconds until
        the limit accepts a report again.
        """
        spent = max(now_ms, self._spent_until.get(sender, now_ms))
        if spent - now_ms > self._room_ms:
            return -(-(spent - now_ms - self._room_ms) // 1000)
        self._spent_until[sender] = spent + self._interval_ms
        return 0


def linger_seconds(limit: int, senders: int) -> float:
    """Seconds between the batches of one sender, so that all senders together obey a limit per minute."""
    exact = 60.0 * senders / (limit * _SHARE)
    return next((step for step in _LINGERS if step >= exact), _MOST_LINGER)
