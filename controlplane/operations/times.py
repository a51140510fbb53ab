"""Times in requests and responses: periods, end times, and their text."""

from __future__ import annotations

import re
from typing import Final

from controlplane.operations.operation import InvalidRequest
from controlplane.search.query import QueryError, parse_time
from controlplane.usage import DAY_MS
from proxy.wire.audit_event import rfc3339

_UNIT_MS: Final = {"m": 60_000, "h": 3_600_000, "d": DAY_MS}


def span(from_: str | None, to: str | None, now_ms: int) -> tuple[int | None, int | None]:
    """Return the start and the end of a period in Unix ms, or None for a missing bound.

    Raise InvalidRequest if a time is not valid, or if the start is after the end.
    """
    from_ms, to_ms = _moment("from", from_, now_ms), _moment("to", to, now_ms)
    if from_ms is not None and to_ms is not None and from_ms > to_ms:
        raise InvalidRequest("from: must not be after `to`")
    return from_ms, to_ms


def _moment(member: str, text: str | None, now_ms: int) -> int | None:
    if not text:
        return None
    try:
        return parse_time(text, now_ms)
    except QueryError as error:
        raise InvalidRequest(f"{member}: {error.message}") from None


def end_of(name: str, text: str, now_ms: int, longest_days: int) -> int:
    """Return an end time in Unix ms from a text in RFC 3339, a date, or a span such as 90d.

    Raise InvalidRequest if the text is not a valid end time, or the time is past or too far away.
    """
    if (span := re.fullmatch(r"([0-9]{1,9})([mhd])", text)) is not None:
        end_ms = now_ms + int(span[1]) * _UNIT_MS[span[2]]
    else:
        try:
            end_ms = parse_time(text, now_ms)
        except QueryError:
            raise InvalidRequest(
                f"{name}: must be a time of RFC 3339, a date, or a number with m, h or d, such as 90d, "
                f"not {text!r}"
            ) from None
    if not now_ms < end_ms <= now_ms + longest_days * DAY_MS:
        raise InvalidRequest(f"{name}: must be after now and within {longest_days} days, not {text!r}")
    return end_ms


def as_rfc3339(ms: int | None) -> str | None:
    """Return a time in Unix ms as RFC 3339, or None without a time."""
    return None if ms is None else rfc3339(ms)
