"""Tests of the sweep over deadlines: a deadline passes only while the event loop runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import pytest

from proxy.server.loop.deadlines import NEVER, PARTS, STALL_SECONDS, SWEEP_SECONDS, Deadlines


class Loop:
    """Event loop with one timer, and with a clock that the test sets."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.due = NEVER
        self.callback: Callable[[], None] = lambda: None

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, callback: Callable[[], None]) -> None:
        self.due, self.callback = self.now + delay, callback

    def run(self, seconds: float) -> None:
        """Let time pass, and call each timer at its time or, after a stop, at once."""
        end = self.now + seconds
        while self.due <= end:
            self.now = max(self.now, self.due)
            self.callback()
        self.now = end

    def stop(self, seconds: float) -> None:
        """Advance the clock without running the timer, as if the process had been stopped for some time."""
        self.now += seconds


class Connection:
    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self.ended_at = NEVER

    def on_deadline(self, now: float) -> None:
        self.deadline, self.ended_at = NEVER, now


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def deadlines(loop: Loop) -> Deadlines:
    deadlines = Deadlines(cast(asyncio.AbstractEventLoop, loop))
    deadlines.start()
    return deadlines


def test_a_deadline_passes_at_its_time_or_up_to_a_sweep_later(loop: Loop, deadlines: Deadlines) -> None:
    connections = [Connection(deadlines.now + 5) for _ in range(3 * PARTS)]
    for each in connections:
        deadlines.add(each)
    loop.run(4.9)
    assert {each.ended_at for each in connections} == {NEVER}
    loop.run(SWEEP_SECONDS + 0.2)
    assert all(1005 <= each.ended_at <= 1005 + SWEEP_SECONDS + 0.2 for each in connections)


@pytest.mark.parametrize("seconds", [STALL_SECONDS + 0.2, 60.0, 3600.0])
def test_the_time_of_a_stop_does_not_count(loop: Loop, deadlines: Deadlines, seconds: float) -> None:
    before = Connection(deadlines.now + 5)
    unlimited = Connection(NEVER)
    deadlines.add(before)
    deadlines.add(unlimited)
    loop.run(3)
    loop.stop(seconds)
    after = Connection(deadlines.now + 5)  # its request arrived during the stop, and is read before any timer
    deadlines.add(after)
    loop.run(1.5)
    assert before.ended_at == after.ended_at == NEVER
    loop.run(2)
    assert before.ended_at <= loop.now
    assert after.ended_at == NEVER
    loop.run(3)
    assert after.ended_at <= loop.now
    assert unlimited.ended_at == NEVER


def test_a_short_delay_of_the_event_loop_counts(loop: Loop, deadlines: Deadlines) -> None:
    """A loop that is busy again and again must not postpone deadlines without end."""
    connection = Connection(deadlines.now + 5)
    deadlines.add(connection)
    for _ in range(20):
        loop.stop(STALL_SECONDS - 0.3)
        loop.run(0.1)
    assert connection.ended_at < loop.now
