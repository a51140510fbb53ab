"""Names of time zones: which are known on this host, and what an unknown one means."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Final
from zoneinfo import ZoneInfo, available_timezones

_FEW: Final = 100  # zones; a whole database has some 600
_LONGEST: Final = 64  # characters of a name that is compared with all others
# Names of long ago, which Debian 13 keeps in a package of their own.
_OLD: Final = ("US/", "Canada/", "Brazil/", "Chile/", "Mexico/")
_INSTALL: Final = "install the package `tzdata` (of Debian or Alpine, or with pip)"


def checked_time_zone(name: str) -> str:
    """Return the name of a time zone that this host knows.

    Raise ValueError otherwise; its text says whether the name or the host's database is at fault.
    """
    try:
        ZoneInfo(name)
    except (ValueError, OSError, LookupError):
        raise ValueError(_problem(name)) from None
    return name


def _problem(name: str) -> str:
    known = available_timezones()
    if len(known) < _FEW:
        return f"this host has no time zone database to look {name!r} up in: {_INSTALL}"
    wrong = f"no time zone of the IANA database: {name!r}"
    if len(name) > _LONGEST:
        return wrong
    if near := get_close_matches(name, sorted(known), n=1, cutoff=0.75):
        return f"{wrong}; did you mean {near[0]}?"
    if name.startswith(_OLD):
        return f"{wrong} on this host: write the city's name, or install the package tzdata-legacy"
    return wrong
