"""The two times that the control plane reads: the host's clock, and one that never jumps."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Final, Protocol


class Clock(Protocol):
    def wall_ms(self) -> int:
        """The host's clock in Unix milliseconds: what a proxy's X-Timestamp is compared with."""

    def steady_ms(self) -> int:
        """Unix milliseconds that never go back and never jump: what windows and limits are measured with."""

    def not_before(self, ms: int) -> None:
        """Steady time goes on from `ms` at least: the newest time that is on record from before a restart."""

    def follow(self, ms: int) -> None:
        """Steady time is `ms` now: the time of the database that several control planes share."""


class SystemClock:
    """Steady time is the wall clock at start, carried on by the kernel's monotonic one (suspend included)."""

    def __init__(self) -> None:
        self._offset_ms = self.wall_ms() - self._elapsed_ms()

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def steady_ms(self) -> int:
        return self._offset_ms + self._elapsed_ms()

    def not_before(self, ms: int) -> None:
        self._offset_ms = max(self._offset_ms, ms - self._elapsed_ms())

    def follow(self, ms: int) -> None:
        self._offset_ms = ms - self._elapsed_ms()

    @staticmethod
    def _elapsed_ms() -> int:
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)


def milliseconds(time: datetime) -> int:
    return (time - _EPOCH) // _MILLISECOND


# Of a time that can be written in UTC; with an offset there are some hours before and after.
EARLIEST_MS: Final = milliseconds(datetime.min.replace(tzinfo=UTC))
LATEST_MS: Final = milliseconds(datetime.max.replace(tzinfo=UTC))
