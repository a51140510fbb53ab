"""Times as the command line writes them: short in a table, whole beside a fact, always in a named zone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

VARIABLE: Final = "GRAPHWARD_TIME_ZONE"
LOCAL: Final = "local"


class UnknownZone(Exception):
    """The variable does not name a time zone."""


@dataclass(frozen=True, slots=True)
class Clock:
    """The zone that times are written in, its name, and the time now."""

    name: str
    now: datetime
    zone: tzinfo | None  # None is the zone of this machine, summer time included

    def short(self, time: str, *, seconds: bool) -> str:
        """Return `14:03:22` for a time of today and `Nov 25 14:03` for an earlier day of this year.

        `seconds`: also of earlier days. A text that is not a time is returned as it is.
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
        """Return `2026-11-25 14:03:22 UTC`; a text that is not a time as it is."""
        moment = self._moment(time)
        return time if moment is None else f"{moment:%Y-%m-%d %H:%M:%S} {self.name}"

    def _moment(self, time: str) -> datetime | None:
        try:
            moment = datetime.fromisoformat(time)
        except ValueError:
            return None
        return None if moment.tzinfo is None else moment.astimezone(self.zone)


def clock_of(environment: Mapping[str, str], now: datetime) -> Clock:
    """Return a clock of UTC, unless the environment names another zone. Raise UnknownZone."""
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
            f"{VARIABLE}: there is no time zone {name}: write local, UTC or a name like Europe/Oslo"
        ) from None
    return Clock(name, now.astimezone(zone), zone)
