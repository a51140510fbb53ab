"""The end of a rule: the time in the rule's `until`, and a check that compares this time with the clock."""

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
    """Parse a rule's `until`, the time from which the rule no longer applies.

    Raise ValueError if the text is not a valid time.
    """
    if not _MOMENT.fullmatch(text):
        if _WITHOUT_OFFSET.fullmatch(text):
            raise ValueError(f"`until` needs a date, a time and an offset from UTC: write {_EXAMPLE}")
        raise ValueError(f"`until` must be an RFC 3339 time: write {_EXAMPLE}")
    try:
        moment = datetime.fromisoformat(text.upper())
    except ValueError:
        raise ValueError(f"the date in `until` does not exist: write {_EXAMPLE}") from None
    if not 1970 < moment.year < 9999:
        raise ValueError("the time in `until` must be between the years 1971 and 9998")
    return Until(moment.timestamp())


def ending_check(until: Until) -> Check:
    """Return a check that is true before a rule's end time, and false from the end time on."""
    end = until.end
    return lambda request, response: _before(end, request, response)


def _before(end: float, request: RequestFacts, response: ResponseFacts | None) -> int:
    return YES if request.now < end else NO


def moment_text(seconds: float) -> str:
    """Write a UTC time in the format that rulesets use."""
    moment = datetime.fromtimestamp(seconds, UTC)
    return moment.isoformat(timespec="seconds" if not moment.microsecond else "microseconds")[:-6] + "Z"
