"""Format the facts of one object as lines for a person.

A fact whose value is a group of other facts becomes an indented block.

The functions in this module have no side effects.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from controlplane.cli.moments import Clock
from proxy.wire.figures import number
from proxy.wire.log_line import one_line

_INDENT: Final = "  "
_NOTHING: Final = "-"
_WORDS: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_UPPER: Final = {
    "id": "ID",
    "ip": "IP",
    "api": "API",
    "hmac": "HMAC",
    "url": "URL",
    "p50": "p50",
    "p95": "p95",
}
_TIME: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]+(?:Z|[+-][0-9]{2}:[0-9]{2})")


def label(member: str) -> str:
    """Return the JSON name of a member as words for a person, such as `last seen` for `lastSeen`."""
    words = (word.lower() for word in _WORDS.sub(" ", member).split())
    return " ".join(_UPPER.get(word, word) for word in words)


def fact_lines(facts: Mapping[str, Any], clock: Clock) -> Iterator[str]:
    """Yield a line for each fact of an object, and a block for each fact that contains other facts."""
    named = [(label(one_line(name)), value) for name, value in facts.items()]
    width = max((len(name) for name, value in named if not _is_block(value)), default=0)
    for name, value in named:
        if not _is_block(value):
            yield f"{name:{width}}  {_text(value, clock)}"
            continue
        yield name
        for line in _block(value, clock):
            yield f"{_INDENT}{line}"


def said(value: Any) -> str:
    """Return the value of a fact on one line, such as for the cell of a table."""
    if value is None:
        return _NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return one_line(value) or _NOTHING
    if isinstance(value, Mapping):
        parts = (f"{label(one_line(name))} {said(each)}" for name, each in value.items())
        return ", ".join(parts) or _NOTHING
    if isinstance(value, Sequence):
        between = "; " if any(isinstance(each, Mapping) for each in value) else ", "
        return between.join(map(said, value)) or _NOTHING
    return str(value)


def _is_block(value: Any) -> bool:
    if isinstance(value, Mapping):
        return bool(value)
    return _is_list(value) and any(isinstance(each, Mapping) or _is_long(each) for each in value)


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _is_long(value: Any) -> bool:
    return isinstance(value, str) and " " in value


def _block(value: Any, clock: Clock) -> Iterator[str]:
    if isinstance(value, Mapping):
        yield from fact_lines(value, clock)
        return
    for each in value:
        yield _of_list(each, clock) if isinstance(each, Mapping) else _text(each, clock)


def _of_list(facts: Mapping[str, Any], clock: Clock) -> str:
    return ", ".join(f"{label(one_line(name))} {_text(value, clock)}" for name, value in facts.items())


def _text(value: Any, clock: Clock) -> str:
    if isinstance(value, str) and _TIME.fullmatch(value):
        return clock.whole(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return number(value)
    if isinstance(value, float):
        return f"{value:,.2f}".rstrip("0").rstrip(".")
    if _is_list(value):
        return ", ".join(_text(each, clock) for each in value) or _NOTHING
    if isinstance(value, Mapping):
        return f"({_of_list(value, clock)})" if value else _NOTHING
    return said(value)
