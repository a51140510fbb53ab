"""Sliding windows: when a batch fits into every limit again, and how proxies avoid to wait for that."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

WINDOW_MS: Final = 60_000
_SHARE: Final = 0.8  # share of a limit for steady trickles; the rest is for full batches and last ones
_MOST_LINGER: Final = 128.0  # seconds that events wait for others at most, however many the proxies are
_LINGERS: Final = [*(step * 2.0**power for power in range(7) for step in (1.0, 1.5)), _MOST_LINGER][1:]
"""Seconds to linger: few values, so that rarely a new proxy changes what the others are told."""


def retry_after_seconds(now_ms: int, blocking_ms: Iterable[int | None]) -> int:
    """Whole seconds until a slot is free in each window, 0 if there is one now.

    For each limit of N, `blocking_ms` holds when the N-th newest batch of its window was accepted, None where
    there are fewer. A batch counts for one window from its acceptance on, so that slot is free once it is as
    old as the window.
    """
    wait_ms = max((ms + WINDOW_MS - now_ms for ms in blocking_ms if ms is not None), default=0)
    return -(-wait_ms // 1000)


def linger_seconds(limit: int, senders: int) -> float:
    """Seconds between two batches of each sender with which all of them stay below a limit per minute."""
    exact = 60.0 * senders / (limit * _SHARE)
    return next((step for step in _LINGERS if step >= exact), _MOST_LINGER)
