"""Pure: which lines two texts have in common, found in a time that can be known beforehand.

Lines that either text has just once, as ids of rules are, hold the texts together. What lies between them is
mostly short; to compare that with care takes, in the worst case, the cube of its length.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from difflib import Match, SequenceMatcher
from typing import Final

_MOST_WORK: Final = 20_000_000  # about a second
Pair = tuple[int, int]  # places of one and the same line in either text


def same_lines(before: Sequence[str], after: Sequence[str]) -> list[Match] | None:
    """Runs of lines in their order, as SequenceMatcher has them; None where it would take too long."""
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
    gaps: list[_Gap] = field(default_factory=list)  # that are still to be compared


def _look_between(before: Sequence[str], after: Sequence[str], found: _Found) -> None:
    """Fills in the lines that hold the texts together with those next to them, and the gaps between."""
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
    """Of the lines that either text has once, as many as keep their order."""
    count, new_count = Counter(before), Counter(after)
    place = {line: at for at, line in enumerate(after)}
    once = [(at, place[line]) for at, line in enumerate(before) if count[line] == new_count[line] == 1]
    ends: list[int] = []  # of the runs of each length, those that end first: where, and with which pair
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
    """What SequenceMatcher may have to do: it looks at all pairs of equal lines again for each run of
    them."""
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
