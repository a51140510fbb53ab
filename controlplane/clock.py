"""Two clocks of the control plane: the host's clock, and a clock for durations that never jumps."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Final, Protocol


class Clock(Protocol):
    def wall_ms(self) -> int:
        """Return the time of the host's clock in Unix milliseconds.

        The control plane compares the X-Timestamp header of a proxy's request with the host's clock.
        """

    def steady_ms(self) -> int:
        """Return the steady time in Unix milliseconds, which never goes back or jumps.

        The control plane measures time windows and rate limits with the steady time, because the wall clock
        can jump.
        """

    def not_before(self, ms: int) -> None:
        """Advance steady time to at least `ms`, the newest time that was recorded before a restart."""

    def follow(self, ms: int) -> None:
        """Set the steady time, which never jumps, to `ms`, the time of the database of all control planes."""


class SystemClock:
    """The clock of the host on which the control plane runs.

    Steady time starts at the wall clock's time, and then advances with the kernel's monotonic clock, also
    during suspend.
    """

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


# Limits of times that can be written in UTC. Times with an offset reach some hours beyond them.
EARLIEST_MS: Final = milliseconds(datetime.min.replace(tzinfo=UTC))
LATEST_MS: Final = milliseconds(datetime.max.replace(tzinfo=UTC))
