"""Check that this host has a time zone of the given name, and explain an unknown name."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Final
from zoneinfo import ZoneInfo, available_timezones

_FEW: Final = 100  # a host with fewer zones has no database; a whole one has some 600
_LONGEST: Final = 64  # characters of the longest name that is compared with all others
# Prefixes of obsolete names, which Debian 13 has in a separate package.
_OLD: Final = ("US/", "Canada/", "Brazil/", "Chile/", "Mexico/")
_INSTALL: Final = "install the package `tzdata` (of Debian or Alpine, or with pip)"


def checked_time_zone(name: str) -> str:
    """Return the name of a time zone if the host has data for this time zone.

    Raise ValueError otherwise. The error message says that the name of the time zone is wrong, or that the
    host has no time zone database.
    """
    try:
        ZoneInfo(name)
    except (ValueError, OSError, LookupError):
        raise ValueError(_problem(name)) from None
    return name


def _problem(name: str) -> str:
    known = available_timezones()
    if len(known) < _FEW:
        return f"this host has no time zone database, so {name!r} cannot be checked: {_INSTALL}"
    wrong = f"{name!r} is not a time zone of the IANA database"
    if len(name) > _LONGEST:
        return wrong
    if near := get_close_matches(name, sorted(known), n=1, cutoff=0.75):
        return f"{wrong}; did you mean {near[0]}?"
    if name.startswith(_OLD):
        return f"{wrong} on this host: use the name of a city, or install the package tzdata-legacy"
    return wrong
