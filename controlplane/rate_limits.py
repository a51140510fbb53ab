"""Sliding windows: how long until a batch fits into every limit again."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

WINDOW_MS: Final = 60_000


def retry_after_seconds(now_ms: int, blocking_ms: Iterable[int | None]) -> int:
    """Whole seconds until a slot is free in each window, 0 if there is one now.

    For each limit of N, `blocking_ms` holds when the N-th newest batch of its window was accepted, None where
    there are fewer. A batch counts for one window from its acceptance on, so that slot is free once it is as
    old as the window.
    """
    wait_ms = max((ms + WINDOW_MS - now_ms for ms in blocking_ms if ms is not None), default=0)
    return -(-wait_ms // 1000)
