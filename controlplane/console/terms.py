"""Pure functions for links that change a filter: the functions add terms or remove terms."""

from __future__ import annotations

import re
from typing import Final

from controlplane.search.query import FIELDS, QueryError, parse_filter

_TERM: Final = re.compile(r'(?:[^\s"]|"(?:[^"\\]|\\.)*")+', re.DOTALL)
_BARE: Final = re.compile(r"[\w./@:+$()\-]+", re.ASCII)


def term(field: str, value: str, *, negated: bool = False) -> str | None:
    """Return a filter term that matches exactly the given field value, or None if no term can do this."""
    quoted = '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    is_number = FIELDS[field].kind == "number"
    spellings = [value] if is_number or _BARE.fullmatch(value) else []
    if not is_number:
        spellings.append(quoted)
    for spelling in spellings:
        text = f"{'-' if negated else ''}{field}:{spelling}"
        try:
            parse_filter(text)
        except QueryError:
            continue
        return text
    return None


def has(text: str, wanted: str) -> bool:
    return wanted in _TERM.findall(text)


def with_term(text: str, added: str) -> str:
    """Return the filter with the term added at the end, and without the opposite term."""
    opposite = added.removeprefix("-") if added.startswith("-") else f"-{added}"
    return " ".join([*(each for each in _TERM.findall(text) if each not in (added, opposite)), added])


def without_term(text: str, gone: str) -> str:
    return " ".join(each for each in _TERM.findall(text) if each != gone)
