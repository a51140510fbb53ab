"""Parse `$expand`: the relations of one level, each with its own options (OData 4.01 part 2 §5.1.3)."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from proxy.policy.bounded_memo import BoundedMemo, WhenFull
from proxy.policy.canonical import MalformedTarget, option_name
from proxy.policy.odata import fold

MAX_EXPANSIONS: Final = 100  # relations on one level
MAX_NESTING: Final = 8  # levels of nested parentheses
MAX_SEGMENTS: Final = 32
# A name can leave out each cast, so the number of names doubles with each cast.
MAX_CASTS: Final = 4
MAX_LEVELS: Final = 16  # a path of more segments than a pattern has matches no pattern
_MOST_TEXTS: Final = 1024
_LONGEST_TEXT: Final = 512

_SEGMENT: Final = re.compile(r"\*|\$?[^\W\d][\w.-]*")
_OPTIONS_OF_ITEMS: Final = frozenset(("$ref", "$count", "$value"))
_BOTH_QUOTES: Final = ("'", "'\"")
_BLANKS: Final = " \t\r\n+"  # a form parser reads `+` as a blank; no name contains one
_UNREADABLE: Final = "$expand cannot be parsed"

Options = dict[str, tuple[str, ...]]


class Expansion(NamedTuple):
    """A relation that `$expand` names.

    `options` are the options in the relation's parentheses, in the form of query options.
    """

    path: tuple[str, ...]  # segments with casts, as sent
    options: tuple[tuple[str, tuple[str, ...]], ...]
    levels: int


_known: Final[BoundedMemo[str, tuple[Expansion, ...]]] = BoundedMemo(
    _MOST_TEXTS, _LONGEST_TEXT, WhenFull.CLEAR
)


def expansions_of(text: str) -> tuple[Expansion, ...]:
    """Return the relations in a value of `$expand`, parsed with single and with double quotes.

    Raise MalformedTarget if the value of `$expand` cannot be parsed.
    """
    found = _known.entries.get(text)
    if found is None:
        found = tuple(_read_with(text, _BOTH_QUOTES) if '"' in text else _read(text, "'"))
        _known.keep(text, found)
    return found


def _read_with(text: str, each: tuple[str, ...]) -> dict[Expansion, None]:
    """Return the relations that any of the possible parsers finds in a value of `$expand`.

    The text of `$expand` is refused only if all possible parsers reject it.
    """
    read: dict[Expansion, None] = {}
    refusals: list[MalformedTarget] = []
    for quotes in each:
        try:
            read.update(dict.fromkeys(_read(text, quotes)))
        except MalformedTarget as error:
            refusals.append(error)
    if len(refusals) == len(each):
        raise refusals[0]
    return read


def _read(text: str, quotes: str) -> list[Expansion]:
    items = [item for item in _split(text, ",", quotes) if item.strip(_BLANKS)]
    if len(items) > MAX_EXPANSIONS:
        raise MalformedTarget("$expand names too many relations")
    return [_expansion(item.strip(_BLANKS), quotes) for item in items]


def _expansion(item: str, quotes: str) -> Expansion:
    path, parenthesis, rest = item.partition("(")
    options: Options = {}
    if parenthesis:
        if not rest.endswith(")"):
            raise MalformedTarget(_UNREADABLE)
        options = _options(rest[:-1], quotes)
    segments = tuple([segment.strip(_BLANKS) for segment in path.split("/")])
    if not all(map(_SEGMENT.fullmatch, segments)) or segments[0] in _OPTIONS_OF_ITEMS:
        raise MalformedTarget(_UNREADABLE)
    if len(segments) > MAX_SEGMENTS or sum("." in segment for segment in segments) > MAX_CASTS:
        raise MalformedTarget("a path in $expand is too long")
    return Expansion(segments, tuple(options.items()), _levels(options.get("levels", ())))


def _options(text: str, quotes: str) -> Options:
    options: Options = {}
    for piece in _split(text, ";&", quotes):
        name, mark, value = piece.partition("=")
        if not name.strip():
            continue
        known = option_name(name)
        # A parser that ends an option at a comma would find another option there.
        if not mark or (known == "select" and ("=" in value or "(" in value)):
            raise MalformedTarget(_UNREADABLE)
        options[known] = (*options.get(known, ()), value)
    return options


def _levels(values: tuple[str, ...]) -> int:
    """Return the number of levels of a relation that `$expand` returns, at most MAX_LEVELS."""
    levels = 1
    for value in values:
        text = value.strip()
        levels = max(levels, int(text) if text.isdecimal() and len(text) < 3 else MAX_LEVELS)
    return min(levels, MAX_LEVELS)


def _split(text: str, separators: str, quotes: str) -> list[str]:
    """Split the text of `$expand` at separators outside strings and parentheses.

    Raise MalformedTarget if a string or parenthesis in the text is not closed.
    """
    pieces: list[str] = []
    begin = depth = 0
    quote = ""
    for at, char in enumerate(text):
        if quote:
            if char == quote:
                quote = ""
        elif char in quotes:
            quote = char
        elif char == "(":
            depth += 1
            if depth > MAX_NESTING:
                raise MalformedTarget("$expand is nested too deeply")
        elif char == ")":
            depth -= 1
            if depth < 0:
                raise MalformedTarget(_UNREADABLE)
        elif depth == 0 and char in separators:
            pieces.append(text[begin:at])
            begin = at + 1
    if quote or depth:
        raise MalformedTarget(_UNREADABLE)
    pieces.append(text[begin:])
    return pieces


def property_place(path: tuple[str, ...]) -> str:
    """Return the property path of the expanded objects in a response, without casts and `$ref`."""
    return ".".join([fold(segment) for segment in path if "." not in segment and segment[0] != "$"])
