"""Write times and lists as text for the sentences of a report."""

from __future__ import annotations

from collections.abc import Sequence

from proxy.wire.figures import counted


def requests(number: int) -> str:
    return counted(number, "request")


def moment(time: str) -> str:
    """Return an RFC 3339 time as text for a report, in UTC and without fractions of a second."""
    return f"{time[:10]} {time[11:19]} UTC"


def joined(texts: Sequence[str]) -> str:
    """Join the texts as in a sentence, such as `a`, `a and b` or `a, b and c`."""
    if len(texts) < 2:
        return "".join(texts)
    return f"{', '.join(texts[:-1])} and {texts[-1]}"
