"""Pure functions for a ruleset's text on a page: coloured lines, positions of rules, changed lines."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import Match, SequenceMatcher
from typing import Any, Final

from markupsafe import Markup, escape

from controlplane.console.line_diff import Piece, alike, pieces, same_lines
from proxy.policy import yaml_document
from proxy.policy.scalars import as_text
from proxy.policy.visible import escaped

MAX_LISTED_LINES: Final = 10_000
MAX_COMPARED_LINES: Final = 4000  # lines of each text; longer texts are compared only by rules
_AROUND: Final = 3  # unchanged lines shown before and after a change
_LOOKED_AHEAD: Final = 5  # lines to search for the one that a changed line became
# Characters of a line; a longer line is not coloured, because colours do not help to read it
_MOST_COLOURED: Final = 2000
# Matching takes linear time for every line: a token is searched only at places where one can begin, and no
# text is matched twice. Repeated groups are atomic, not possessive, because Python before 3.11.5 has an error
# there (python/cpython#106052).
_TOKEN: Final = re.compile(
    r"(?P<comment>(?<!\S)#.*)"
    r"|(?P<string>(?<![^\s\[{,])(?:\"[^\"\\]*+(?>(?:\\.[^\"\\]*+)*)\"|'[^']*+(?>(?:''[^']*+)*)'))"
    r"|(?P<key>(?<![\w.$-])[A-Za-z_][\w.$-]*+(?=:(?:\s|$)))"
)


@dataclass(frozen=True, slots=True)
class Line:
    number: int
    html: Markup
    rule_id: str | None = None  # id of the rule that begins in this line


@dataclass(frozen=True, slots=True)
class RulePlace:
    id: str
    verdict: str
    description: str
    line: int


@dataclass(frozen=True, slots=True)
class DiffLine:
    sign: str  # "+", "-" or " "
    old: int | None  # line number in the old text
    new: int | None
    text: str
    pieces: tuple[Piece, ...] = ()  # parts of a replaced line, otherwise empty


def rule_places(text: str) -> tuple[RulePlace, ...]:
    """Return the rules in the text of a ruleset, in the order of the text.

    If the text is not a valid ruleset, return the parts that look like rules.
    """
    try:
        document = yaml_document.parse(text)
    except yaml_document.InvalidYaml:
        return ()
    value = document.value
    rules: Any = value.get("rules") if isinstance(value, dict) else None
    return tuple(
        RulePlace(
            str(as_text(rule.get("id"))),
            str(as_text(rule.get("verdict", ""))),
            as_it_is(str(as_text(rule.get("description")) or "")),
            document.mark(("rules", at), at_key=False)[0],
        )
        for at, rule in enumerate(rules if isinstance(rules, list) else ())
        if isinstance(rule, dict)
    )


def listing(text: str, places: Iterable[RulePlace] = ()) -> tuple[Line, ...] | None:
    """Return the lines of a ruleset's text, or None if the text is too long for a display line by line."""
    lines = text.splitlines()
    if len(lines) > MAX_LISTED_LINES:
        return None
    begins = {place.line: place.id for place in places}
    return tuple(
        Line(number, _coloured(as_it_is(line)), begins.get(number))
        for number, line in enumerate(lines, start=1)
    )


def as_it_is(text: str) -> str:
    """Escape characters that change the direction of a line or hide text, so that reviewers see them."""
    return escaped(text, keep="\t\n\r")


def _coloured(line: str) -> Markup:
    if len(line) > _MOST_COLOURED:
        return escape(line)
    pieces: list[str] = []
    end = 0
    for token in _TOKEN.finditer(line):
        pieces.append(escape(line[end : token.start()]))
        pieces.append(f'<span class="y-{token.lastgroup}">{escape(token.group())}</span>')
        end = token.end()
    return Markup("".join([*pieces, escape(line[end:])]))  # noqa: S704 - escaped piece by piece


def text_diff(old: str, new: str) -> tuple[tuple[DiffLine, ...], ...] | None:
    """Return groups of changed lines with their context, or None if the comparison takes too long."""
    before, after = old.splitlines(), new.splitlines()
    if max(len(before), len(after)) > MAX_COMPARED_LINES:
        return None
    if (same := same_lines(before, after)) is None:
        return None
    groups = _Matched(before, after, same).get_grouped_opcodes(_AROUND)
    return tuple(tuple(_group(before, after, group)) for group in groups)


class _Matched(SequenceMatcher[str]):
    """A SequenceMatcher that receives the equal lines, and makes groups of the changed lines."""

    def __init__(self, before: Sequence[str], after: Sequence[str], same: list[Match]) -> None:
        super().__init__(None, before, after, autojunk=False)
        self._same = same

    def get_matching_blocks(self) -> list[Match]:
        return self._same


def _group(
    before: Sequence[str], after: Sequence[str], group: Sequence[tuple[str, int, int, int, int]]
) -> Iterator[DiffLine]:
    for kind, first, last, new_first, new_last in group:
        if kind == "equal":
            for at, text in enumerate(before[first:last]):
                yield DiffLine(" ", first + at + 1, new_first + at + 1, as_it_is(text))
            continue
        yield from _replaced(
            [as_it_is(text) for text in before[first:last]],
            [as_it_is(text) for text in after[new_first:new_last]],
            first,
            new_first,
        )


def _replaced(before: Sequence[str], after: Sequence[str], first: int, new_first: int) -> Iterator[DiffLine]:
    """Yield the removed and the added lines of a changed range.

    Mark the words that differ between two similar lines.
    """
    partner = dict(_partners(before, after))
    partner_of_new = {new: old for old, new in partner.items()}
    for at, text in enumerate(before):
        marked = pieces(text, after[partner[at]])[0] if at in partner else ()
        yield DiffLine("-", first + at + 1, None, text, marked)
    for at, text in enumerate(after):
        marked = pieces(before[partner_of_new[at]], text)[1] if at in partner_of_new else ()
        yield DiffLine("+", None, new_first + at + 1, text, marked)


def _partners(before: Sequence[str], after: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Yield pairs of positions of similar lines, in the order of both texts."""
    at = 0
    for place, text in enumerate(before):
        for new in range(at, min(at + _LOOKED_AHEAD, len(after))):
            if alike(text, after[new]):
                yield place, new
                at = new + 1
                break
