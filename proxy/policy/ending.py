"""The end of a rule: the moment as a ruleset spells it, and the check that compares it with the clock."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

from proxy.policy.conditions import NO, YES, Check
from proxy.policy.facts import RequestFacts, ResponseFacts
from proxy.policy.ruleset import Until

# RFC 3339 §5.6 without leap seconds, which Unix time does not have.
MOMENT: Final = (
    r"[0-9]{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12][0-9]|3[01])"
    r"[Tt](?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?"
    r"(?:[Zz]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
)
_MOMENT: Final = re.compile(MOMENT)
_WITHOUT_OFFSET: Final = re.compile(r"[0-9-]+(?:[Tt ][0-9:.]+)?")
_EXAMPLE: Final = "2027-01-31T00:00:00Z or 2027-01-31T00:00:00+01:00"


def parse_until(text: str) -> Until:
    """Parse the moment at which a rule ends. Raise ValueError if the text is not one."""
    if not _MOMENT.fullmatch(text):
        if _WITHOUT_OFFSET.fullmatch(text):
            raise ValueError(f"a moment needs its date, its time and its offset from UTC: write {_EXAMPLE}")
        raise ValueError(f"a moment must be a time of RFC 3339: write {_EXAMPLE}")
    try:
        moment = datetime.fromisoformat(text.upper())
    except ValueError:
        raise ValueError(f"this day does not exist: write {_EXAMPLE}") from None
    if not 1970 < moment.year < 9999:
        raise ValueError("a moment must be between the years 1971 and 9998")
    return Until(moment.timestamp())


def ending_check(until: Until) -> Check:
    """Return a check that holds before the moment, and does not hold at the moment itself."""
    end = until.end
    return lambda request, response: _before(end, request, response)


def _before(end: float, request: RequestFacts, response: ResponseFacts | None) -> int:
    return YES if request.now < end else NO


def moment_text(seconds: float) -> str:
    """Write a moment in UTC as a ruleset spells it."""
    moment = datetime.fromtimestamp(seconds, UTC)
    return moment.isoformat(timespec="seconds" if not moment.microsecond else "microseconds")[:-6] + "Z"
