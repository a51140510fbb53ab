"""Check the deadlines of all connections in one regular sweep, without a timer per request.

A connection only writes the monotonic time of its next deadline into an attribute, which costs almost
nothing. The sweep divides the connections into eight parts, and checks one part every eighth of a second. So
the sweep checks each connection once a second. A check of ten thousand connections at once would stall the
event loop.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

NEVER: Final = float("inf")
SWEEP_SECONDS: Final = 1.0
PARTS: Final = 8
STALL_SECONDS: Final = 1.0  # seconds between two ticks after which the event loop counts as stopped


class Timed(Protocol):
    """Interface of an object with a deadline, such as a connection."""

    deadline: float

    def on_deadline(self, now: float) -> None:
        """Handle a deadline that has passed: set a new deadline, or close the connection.

        The sweep calls `on_deadline` at the time `deadline`, or up to `SWEEP_SECONDS` later.
        """


class Deadlines:
    """Connections of one worker, and the sweep that checks their deadlines.

    `now` is the monotonic time, at most one tick late.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._parts: list[set[Timed]] = [set() for _ in range(PARTS)]
        self._next = 0
        self._handle: asyncio.TimerHandle | None = None
        self.now = loop.time()

    def start(self) -> None:
        self._handle = self._loop.call_later(SWEEP_SECONDS / PARTS, self._tick)

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()

    def add(self, timed: Timed) -> None:
        self._parts[hash(timed) % PARTS].add(timed)

    def discard(self, timed: Timed) -> None:
        self._parts[hash(timed) % PARTS].discard(timed)

    def _tick(self) -> None:
        # Set before the calls, so that a failure of one connection does not delay the others.
        self._handle = self._loop.call_later(SWEEP_SECONDS / PARTS, self._tick)
        now = self._loop.time()
        elapsed = now - self.now
        self.now = now
        if elapsed > STALL_SECONDS:
            self._postpone_all(elapsed)
            return
        due = [timed for timed in self._parts[self._next] if timed.deadline <= now]
        self._next = (self._next + 1) % PARTS
        for timed in due:
            timed.on_deadline(now)

    def _postpone_all(self, seconds: float) -> None:
        """Move every deadline to a later time, because the event loop did not run for so many seconds.

        The process or its virtual machine was stopped. The worker may not have read the data that clients and
        upstreams sent during the stop. The newest deadlines were computed from a time before the stop.
        """
        for part in self._parts:
            for timed in part:
                timed.deadline += seconds
