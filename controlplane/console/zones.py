"""Pure functions for the time zone in which an operator reads and enters times in the console."""

from __future__ import annotations

import re
from datetime import UTC, datetime, tzinfo
from typing import Final
from zoneinfo import ZoneInfo

_LONGEST: Final = 64  # characters of a zone's name in a cookie
_NAIVE: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}(?:T[0-9]{2}:[0-9]{2}(?::[0-9]{2})?)?")


def zone_of(name: str) -> tzinfo:
    """Return the time zone that a cookie names, or UTC if this host does not have that zone."""
    try:
        return UTC if name in ("", "UTC") else ZoneInfo(name[:_LONGEST])
    except (ValueError, OSError, LookupError):
        return UTC


def name_of(zone: tzinfo) -> str:
    """Return the name of a time zone in the time zone database, such as `Europe/Oslo`."""
    return str(zone)


def local(ms: int, zone: tzinfo) -> datetime:
    """Return a time in Unix ms as a local time of the zone.

    If the local time is outside the years 1 to 9999, the result is in UTC.
    """
    try:
        return datetime.fromtimestamp(ms / 1000, zone)
    except (OverflowError, ValueError):
        return datetime.fromtimestamp(ms / 1000, UTC)


def short_name(ms: int, zone: tzinfo) -> str:
    """Return the abbreviation of a time zone at a time, such as `CET`, or an offset like `UTC-03:00`."""
    moment = local(ms, zone)
    name = moment.tzname() or ""
    return name if name.isalpha() else f"UTC{moment.isoformat()[-6:]}"


def absolute(given: str, zone: tzinfo) -> str:
    """Add the zone's offset to a time from a form that has no offset.

    A text that already has an offset or is not a time is returned unchanged.
    """
    if not _NAIVE.fullmatch(given):
        return given
    try:
        moment = datetime.fromisoformat(given).replace(tzinfo=zone)
        return moment.isoformat().replace("+00:00", "Z")
    except (ValueError, OverflowError):  # the search reports what is wrong with the text
        return given


def for_field(ms: int, zone: tzinfo) -> str:
    """Return a time as the value of a `datetime-local` field."""
    return local(ms, zone).strftime("%Y-%m-%dT%H:%M")
