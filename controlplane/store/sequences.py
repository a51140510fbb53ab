"""Received sequence numbers, stored as the highest number and the gaps below it.

The functions in this module do no input or output.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from controlplane.store.interface import Gap


def ranges(numbers: Iterable[int]) -> list[Gap]:
    """Return the sequence numbers as ranges without a gap, in ascending order."""
    distinct = set(numbers)
    if distinct and max(distinct) - min(distinct) == len(distinct) - 1:  # the usual case: consecutive numbers
        return [Gap(min(distinct), max(distinct))]
    found: list[Gap] = []
    for number in sorted(distinct):
        if found and number == found[-1].last + 1:
            found[-1] = Gap(found[-1].first, number)
        else:
            found.append(Gap(number, number))
    return found


def fold(highest: int, gaps: Sequence[Gap], came: Sequence[Gap]) -> tuple[int, list[Gap]]:
    """Return the highest sequence number and the remaining gaps, after the numbers in `came` have arrived.

    Both lists, `gaps` and `came`, contain their ranges in ascending order.
    """
    gaps = list(gaps)
    for each in came:
        if each.first > highest + 1:
            gaps.append(Gap(highest + 1, each.first - 1))
        highest = max(highest, each.last)
    return highest, list(_without(gaps, came))


def size(gaps: Iterable[Gap]) -> int:
    """Return the total count of sequence numbers in the ranges."""
    return sum(gap.last - gap.first + 1 for gap in gaps)


def _without(gaps: Iterable[Gap], came: Sequence[Gap]) -> Iterable[Gap]:
    index = 0
    for gap in gaps:
        first = gap.first
        while index < len(came) and came[index].last < first:
            index += 1
        reach = index
        while reach < len(came) and came[reach].first <= gap.last:
            if came[reach].first > first:
                yield Gap(first, came[reach].first - 1)
            first = max(first, came[reach].last + 1)
            reach += 1
        if first <= gap.last:
            yield Gap(first, gap.last)
