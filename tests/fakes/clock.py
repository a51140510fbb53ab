"""A clock for tests, whose time changes only when a test moves it."""

from __future__ import annotations

from typing import Final

NOON_MS: Final = 1_795_262_400_000  # 2026-11-21T12:00:00Z


class FakeClock:
    """A clock for tests, whose wall time and monotonic time change only when a test moves the clock."""

    def __init__(self, ms: int = NOON_MS) -> None:
        self.wall = ms
        self.steady = ms

    def wall_ms(self) -> int:
        return self.wall

    def steady_ms(self) -> int:
        return self.steady

    def not_before(self, ms: int) -> None:
        self.steady = max(self.steady, ms)

    def follow(self, ms: int) -> None:
        # The database of a test has the time of this clock. A value that was read before a test moved the
        # clock is older than the clock, so it must not take the move back.
        self.steady = max(self.steady, ms)

    def advance(self, *, seconds: float = 0, hours: float = 0) -> None:
        ms = round(seconds * 1000 + hours * 3_600_000)
        self.wall += ms
        self.steady += ms
