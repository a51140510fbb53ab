"""Pure functions that find the lines that two texts have in common, within a predictable time.

If a line occurs exactly once in each text, such as the ID of a rule, the two copies of the line correspond.
The corresponding lines divide both texts into ranges, most of which are short. In the worst case, a precise
comparison of two ranges takes time proportional to the cube of the length of the ranges.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from difflib import Match, SequenceMatcher
from typing import Final

_MOST_WORK: Final = 20_000_000  # steps of a comparison, about one second
_MOST_PIECES: Final = 200  # words of the part of a line that differs; a longer part is marked as a whole
_WORD: Final = re.compile(r"\w+|\W")
Pair = tuple[int, int]  # positions of one line in the old and the new text


@dataclass(frozen=True, slots=True)
class Piece:
    """Piece of a changed line, with a mark if the piece differs from the other version of the line."""

    text: str
    changed: bool


def alike(old: str, new: str) -> bool:
    """Return True if the old line was probably changed into the new line.

    Two lines are similar if their equal start and equal end make up at least a third of the shorter line.
    """
    shorter = min(len(old.strip()), len(new.strip()))
    before, behind = _same_ends(old.strip(), new.strip())
    return shorter > 0 and 3 * (before + behind) >= shorter


def pieces(old: str, new: str) -> tuple[tuple[Piece, ...], tuple[Piece, ...]]:
    """Split two similar lines into pieces, and mark the pieces that differ."""
    words, new_words = _WORD.findall(old), _WORD.findall(new)
    before, behind = _same_ends(words, new_words)
    middle, new_middle = [each[before : len(each) - behind] for each in (words, new_words)]
    same = [Match(0, 0, 0)]
    if max(len(middle), len(new_middle)) <= _MOST_PIECES:
        same = SequenceMatcher(None, middle, new_middle, autojunk=False).get_matching_blocks()
    starts = Piece("".join(words[:before]), False)
    ends = Piece("".join(words[len(words) - behind :]), False)
    found = _marked(middle, [(each.a, each.size) for each in same])
    new_found = _marked(new_middle, [(each.b, each.size) for each in same])
    return _joined(starts, found, ends), _joined(starts, new_found, ends)


def _same_ends(old: Sequence[str], new: Sequence[str]) -> Pair:
    """Return how many characters or words are equal at the start of two lines, and how many at the end."""
    most = min(len(old), len(new))
    before = next((at for at in range(most) if old[at] != new[at]), most)
    most -= before
    behind = next((at for at in range(most) if old[-1 - at] != new[-1 - at]), most)
    return before, behind


def _marked(words: Sequence[str], same: Sequence[Pair]) -> list[Piece]:
    """Split one of two lines into pieces, and mark the pieces that do not occur in the other line.

    `same` has the positions and counts of words that occur in both lines.
    """
    found, at = [], 0
    for place, size in (*same, (len(words), 0)):
        found.append(Piece("".join(words[at:place]), True))
        found.append(Piece("".join(words[place : place + size]), False))
        at = place + size
    return found


def _joined(starts: Piece, middle: Sequence[Piece], ends: Piece) -> tuple[Piece, ...]:
    return tuple(each for each in (starts, *middle, ends) if each.text)


def same_lines(before: Sequence[str], after: Sequence[str]) -> list[Match] | None:
    """Return the equal lines that SequenceMatcher would find, or None if this takes too long."""
    found = _Found()
    _look_between(before, after, found)
    if sum(_work(before[gap.old], after[gap.new]) for gap in found.gaps) > _MOST_WORK:
        return None
    for gap in found.gaps:
        found.pairs += _compared(before, after, gap)
    return [*_runs(sorted(found.pairs)), Match(len(before), len(after), 0)]


@dataclass(frozen=True, slots=True)
class _Gap:
    old: slice
    new: slice


@dataclass(slots=True)
class _Found:
    pairs: list[Pair] = field(default_factory=list)
    gaps: list[_Gap] = field(default_factory=list)  # gaps that are still to be compared


def _look_between(before: Sequence[str], after: Sequence[str], found: _Found) -> None:
    """Collect the pairs of equal lines in two texts, and the ranges of lines that stay without a pair."""
    at, new_at = 0, 0
    for end, new_end in [*_held_by(before, after), (len(before), len(after))]:
        if end < len(before):
            found.pairs.append((end, new_end))
        last, new_last = end, new_end
        while at < last and new_at < new_last and before[at] == after[new_at]:
            found.pairs.append((at, new_at))
            at, new_at = at + 1, new_at + 1
        while at < last and new_at < new_last and before[last - 1] == after[new_last - 1]:
            last, new_last = last - 1, new_last - 1
            found.pairs.append((last, new_last))
        if at < last and new_at < new_last:
            found.gaps.append(_Gap(slice(at, last), slice(new_at, new_last)))
        at, new_at = end + 1, new_end + 1


def _held_by(before: Sequence[str], after: Sequence[str]) -> list[Pair]:
    """Return the longest sequence of lines that occur once in each text, in the same order in both texts."""
    count, new_count = Counter(before), Counter(after)
    place = {line: at for at, line in enumerate(after)}
    once = [(at, place[line]) for at, line in enumerate(before) if count[line] == new_count[line] == 1]
    ends: list[int] = []  # last position in the new text of the best run of each length
    last: list[int] = []
    previous: list[int | None] = []
    for number, (_, new_at) in enumerate(once):
        length = bisect_left(ends, new_at)
        previous.append(last[length - 1] if length else None)
        ends[length : length + 1], last[length : length + 1] = [new_at], [number]
    run = []
    at = last[-1] if last else None
    while at is not None:
        run.append(once[at])
        at = previous[at]
    return run[::-1]


def _work(before: Sequence[str], after: Sequence[str]) -> int:
    """Return the largest number of steps that SequenceMatcher may take to compare a range of lines.

    After each range of equal lines that it finds, SequenceMatcher examines all pairs of equal lines again.
    """
    count = Counter(after)
    return sum(count[line] for line in before) * min(len(before), len(after))


def _compared(before: Sequence[str], after: Sequence[str], gap: _Gap) -> Iterator[Pair]:
    matcher = SequenceMatcher(None, before[gap.old], after[gap.new], autojunk=False)
    for run in matcher.get_matching_blocks():
        for at in range(run.size):
            yield gap.old.start + run.a + at, gap.new.start + run.b + at


def _runs(pairs: Sequence[Pair]) -> Iterator[Match]:
    begun = 0
    for number, (at, new_at) in enumerate(pairs, start=1):
        if number == len(pairs) or pairs[number] != (at + 1, new_at + 1):
            yield Match(*pairs[begun], number - begun)
            begun = number
