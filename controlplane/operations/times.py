"""The times between which a request asks for events or for lines of the operator log."""

from __future__ import annotations

from controlplane.operations.operation import InvalidRequest
from controlplane.search.query import QueryError, parse_time


def span(from_: str | None, to: str | None, now_ms: int) -> tuple[int | None, int | None]:
    """Milliseconds since 1970: from the first, before the second; None where there is no such bound. Raises
    InvalidRequest, also where they are in the wrong order."""
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
