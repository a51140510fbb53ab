"""Matches counted by value and by time over all segments, whole columns at once where that is certain."""

from __future__ import annotations

import sqlite3
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from itertools import compress
from typing import Final

from controlplane.search.bodies import Bodies
from controlplane.search.column import Column, full
from controlplane.search.document import Value
from controlplane.search.interface import Facets, Histogram, SearchQuery
from controlplane.search.matching import LINE_FIELDS, mask_of
from controlplane.search.query import fold
from controlplane.search.segment import ABSENT, PART, on_one_line
from controlplane.search.segment_search import (
    SECONDS,
    OutOfTime,
    StoredSegment,
    TimeLimit,
    bounds,
    by_cost,
    stored_segments,
)

FACET_MATCHES: Final = 50_000
# Looked at one by one; what columns tell costs next to nothing.
HISTOGRAM_MATCHES: Final = 50_000
_FEW: Final = 128  # matches in a segment that are quicker read than its columns
_MANY_BUCKETS: Final = 256  # in one segment, beyond which each match is asked for its time


@dataclass(frozen=True, slots=True)
class _Matches:
    """Of one segment, one byte for each event as a number; and whether columns were enough to tell."""

    segment: StoredSegment
    mask: int
    number: int
    is_certain: bool

    def flags(self) -> bytes:
        return self.mask.to_bytes(self.segment.count, "little")

    def ordinals(self) -> Iterator[int]:
        return compress(range(self.segment.count), self.flags())

    def since(self, time_ms: int) -> _Matches:
        if time_ms <= self.segment.least_ms:
            return self
        first, _ = self.segment.between(time_ms, None)
        mask = self.mask >> 8 * first << 8 * first
        return _Matches(self.segment, mask, mask.bit_count(), self.is_certain)


def count_values(db: sqlite3.Connection, query: SearchQuery, fields: Sequence[str], top: int) -> Facets:
    limit = TimeLimit(SECONDS)
    found, is_complete = _newest(db, query, Bodies(db), limit, FACET_MATCHES, certain_count=True)
    counts = _Counts(fields)
    for matches in found:
        counts.add(matches)
    return Facets(counts.most(top), sum(matches.number for matches in found), is_complete)


def count_times(db: sqlite3.Connection, query: SearchQuery, interval_ms: int) -> Histogram:
    limit = TimeLimit(SECONDS)
    found, is_complete = _newest(db, query, Bodies(db), limit, HISTOGRAM_MATCHES, certain_count=False)
    counts: Counter[int] = Counter()
    for matches in found:
        counts.update(dict(_by_time(matches, interval_ms)))
    return Histogram(tuple(sorted(counts.items())), is_complete)


# -- the newest matches ----------------------------------------------------------------------------


def _newest(
    db: sqlite3.Connection,
    query: SearchQuery,
    bodies: Bodies,
    limit: TimeLimit,
    most: int,
    *,
    certain_count: bool,
) -> tuple[list[_Matches], bool]:
    """The newest matches, about `most` or as far as the time goes, and whether that is all of them. Those
    that columns tell for certain count towards `most` only if that is asked."""
    from_ms, to_ms = bounds(query)
    terms = sorted(query.filter.terms, key=by_cost)
    found: list[_Matches] = []
    for segment in stored_segments(db, bodies, query.org_ids, from_ms, to_ms, limit):
        try:
            if _count(found, segment.most_ms, certain_count) > most:
                break
            first, end = segment.between(from_ms, to_ms)
            if first < end:
                mask, is_certain = mask_of(terms, segment, first, end, most + 1)
                if mask:
                    found.append(_Matches(segment, mask, mask.bit_count(), is_certain))
        except OutOfTime:
            limit.lift()  # what is found is counted in any case
            newer = (each.since(segment.most_ms + 1) for each in found)
            return [each for each in newer if each.mask], False
    limit.lift()
    if _count(found, from_ms, certain_count) > most:
        return _cut(found, most, certain_count), False
    return found, True


def _count(found: Iterable[_Matches], since_ms: int, certain_count: bool) -> int:
    counted = (each for each in found if certain_count or not each.is_certain)
    return sum(each.since(since_ms).number for each in counted if each.segment.most_ms >= since_ms)


def _cut(found: Sequence[_Matches], most: int, certain_count: bool) -> list[_Matches]:
    """The newest milliseconds, as long as they have no more than `most` between them; one at least."""
    low = min(matches.segment.least_ms for matches in found)
    high = max(matches.segment.most_ms for matches in found) + 1
    ms = range(low, high)
    since_ms = low + bisect_left(ms, True, key=lambda ms: _count(found, ms, certain_count) <= most)
    if not _count(found, since_ms, certain_count):
        since_ms -= 1
    cut = (each.since(since_ms) for each in found if each.segment.most_ms >= since_ms)
    return [matches for matches in cut if matches.mask]


# -- by value --------------------------------------------------------------------------------------


class _Counts:
    """Paths and queries count as filters compare them, and are spelled as one of their events has them, or
    folded where retention has taken that event from the store already."""

    def __init__(self, fields: Sequence[str]) -> None:
        self._by_field: dict[str, Counter[str]] = {name: Counter() for name in fields}
        self._seen: dict[tuple[str, str], tuple[StoredSegment, int]] = {}

    def add(self, matches: _Matches) -> None:
        if matches.number <= _FEW:
            self._add_documents(matches, self._by_field)
            return
        unknown = []
        for name, counts in self._by_field.items():
            if name == "org":
                counts[matches.segment.org_id] += matches.number
            elif name in LINE_FIELDS:
                self._add_lines(matches, name)
            elif not _add_column(matches, name, counts):
                unknown.append(name)
        if unknown:
            self._add_documents(matches, unknown)

    def _add_documents(self, matches: _Matches, fields: Collection[str]) -> None:
        for ordinal in matches.ordinals():
            values = matches.segment.document(ordinal).values
            for name in fields:
                for text in _texts(values.get(name)):
                    if name in LINE_FIELDS:
                        self._add_line(name, fold(on_one_line(text)), matches.segment, ordinal)
                    else:
                        self._by_field[name][text] += 1

    def _add_lines(self, matches: _Matches, name: str) -> None:
        part = LINE_FIELDS[name]
        for ordinal in matches.ordinals():
            text = matches.segment.line(ordinal).split(PART)[part]
            if text != ABSENT:
                self._add_line(name, text, matches.segment, ordinal)

    def _add_line(self, name: str, text: str, segment: StoredSegment, ordinal: int) -> None:
        self._by_field[name][text] += 1
        self._seen.setdefault((name, text), (segment, ordinal))

    def most(self, top: int) -> dict[str, tuple[tuple[str, int], ...]]:
        return {name: tuple(self._most(name, counts, top)) for name, counts in self._by_field.items()}

    def _most(self, name: str, counts: Counter[str], top: int) -> Iterator[tuple[str, int]]:
        for text, times in nsmallest(top, counts.items(), key=lambda each: (-each[1], each[0])):
            if name in LINE_FIELDS:
                segment, ordinal = self._seen[name, text]
                yield str(segment.document(ordinal).values.get(name, text)), times
            else:
                yield text, times


def _add_column(matches: _Matches, name: str, counts: Counter[str]) -> bool:
    """Whether the column has the values."""
    column = matches.segment.column(name)
    if column.form != "values":
        return False
    values = column.values
    for code, times in _codes(column, matches).items():
        for text in _texts(values[code]):
            counts[text] += times
    return True


def _codes(column: Column, matches: _Matches) -> Counter[int]:
    if not column.planes:
        return Counter({0: matches.number})
    flags = matches.flags()
    if len(column.planes) == 1:
        return Counter(compress(column.planes[0], flags))
    pairs = Counter(compress(zip(*column.planes, strict=True), flags))
    return Counter({low | high << 8: times for (low, high), times in pairs.items()})


def _texts(value: Value) -> tuple[str, ...]:
    if value is None:
        return ()
    return value if isinstance(value, tuple) else (str(value),)


# -- by time ---------------------------------------------------------------------------------------


def _by_time(matches: _Matches, interval_ms: int) -> Iterator[tuple[int, int]]:
    segment = matches.segment
    first = segment.least_ms // interval_ms
    last = segment.most_ms // interval_ms
    if last - first > _MANY_BUCKETS:
        times = map(segment.time, matches.ordinals())
        yield from Counter(time // interval_ms * interval_ms for time in times).items()
        return
    for bucket in range(first, last + 1):
        start, end = segment.between(bucket * interval_ms, (bucket + 1) * interval_ms)
        number = (matches.mask >> 8 * start & full(end - start)).bit_count()
        if number:
            yield bucket * interval_ms, number
