"""Finds the IDs of requests in a pasted text, such as an error body or a log line.

The code of this module does no input or output.
"""

from __future__ import annotations

import re
from typing import Final

from controlplane.search.query import QueryError, TextTerm, parse_filter

MOST_IDS: Final = 8  # number of ids of one text that are looked up; an error body has two
LONGEST_TEXT: Final = 20_000  # number of characters of a text that are searched for ids
_ID: Final = re.compile(
    r"(?<![0-9A-Za-z])(?:"
    r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"  # a GUID
    r"|[0-9a-f]{32}"  # a trace id
    r"|[0-7][0-9a-hjkmnp-tv-z]{25}"  # a ULID
    r")(?![0-9A-Za-z])",
    re.IGNORECASE,
)
_AROUND: Final = " \t\r\n\"'`,;.<>()[]{}"  # characters that may be copied together with an id
_LONGEST_ID: Final = 256  # number of characters of an id


def ids_in(text: str) -> tuple[str, ...]:
    """Return the GUIDs, ULIDs and trace IDs in a text, each once, in the order of the text."""
    return tuple(dict.fromkeys(_ID.findall(text[:LONGEST_TEXT])))[:MOST_IDS]


def whole_id(text: str) -> str | None:
    """Return the text without quotes and similar characters around it, or None if it can't be an ID."""
    word = text.strip(_AROUND)
    return word if 0 < len(word) <= _LONGEST_ID and "\n" not in word else None


def asks_for_ids(text: str) -> tuple[str, ...]:
    """Return the IDs in the text of a search box.

    If the text of the search box names a field of the filter grammar, the function returns no IDs.
    """
    found = ids_in(text)
    if not found:
        return ()
    try:
        terms = parse_filter(text).terms
    except QueryError:
        return found
    return found if all(isinstance(term, TextTerm) for term in terms) else ()
