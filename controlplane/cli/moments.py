"""Format times for the command line, always with a named time zone.

A table shows a short time, such as `14:03:22`. A sentence or a fact about one object shows the complete time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

VARIABLE: Final = "GRAPHWARD_TIME_ZONE"
LOCAL: Final = "local"


class UnknownZone(Exception):
    """Error because an environment variable does not name a known time zone."""


@dataclass(frozen=True, slots=True)
class Clock:
    """Time zone for the output of a command, the name of the zone, and the current time."""

    name: str
    now: datetime
    zone: tzinfo | None  # None means the zone of this machine, including summer time

    def short(self, time: str, *, seconds: bool) -> str:
        """Return `14:03:22` for a time of today and `Nov 25 14:03` for an earlier day of this year.

        If `seconds` is True, times of earlier days also show seconds. A text that is not a time is returned
        unchanged.
        """
        moment = self._moment(time)
        if moment is None:
            return time
        clock = f"{moment:%H:%M:%S}"
        if moment.date() == self.now.date():
            return clock
        year = "" if moment.year == self.now.year else f" {moment.year}"
        return f"{moment:%b} {moment.day:2}{year} {clock if seconds else clock[:5]}"

    def whole(self, time: str) -> str:
        """Return a time in the form `2026-11-25 14:03:22 UTC`.

        A text that is not a time is returned unchanged.
        """
        moment = self._moment(time)
        return time if moment is None else f"{moment:%Y-%m-%d %H:%M:%S} {self.name}"

    def _moment(self, time: str) -> datetime | None:
        try:
            moment = datetime.fromisoformat(time)
        except ValueError:
            return None
        return None if moment.tzinfo is None else moment.astimezone(self.zone)


def clock_of(environment: Mapping[str, str], now: datetime) -> Clock:
    """Return a clock for UTC, unless the environment names another time zone.

    Raise UnknownZone if the environment names a time zone that is not known.
    """
    name = environment.get(VARIABLE, "") or "UTC"
    if name == "UTC":
        return Clock(name, now.astimezone(UTC), UTC)
    if name == LOCAL:
        here = now.astimezone()
        return Clock(here.tzname() or LOCAL, here, None)
    try:
        zone = ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise UnknownZone(
            f"{VARIABLE}: unknown time zone {name}: write local, UTC or a name such as Europe/Oslo"
        ) from None
    return Clock(name, now.astimezone(zone), zone)
