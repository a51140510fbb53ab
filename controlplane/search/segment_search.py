"""The newest matches over all segments: newest segment first, and none that can't hold one any more."""

from __future__ import annotations

import math
import sqlite3
import time
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Final, NamedTuple, TypeAlias

import orjson

from controlplane.search.bodies import Bodies
from controlplane.search.column import Column, full
from controlplane.search.document import Document
from controlplane.search.interface import SearchQuery
from controlplane.search.matching import matches
from controlplane.search.predicates import said_in
from controlplane.search.query import WORD_CHARS, FieldTerm, Term
from controlplane.search.segment import PART
from controlplane.search.segment_files import (
    BLOCK,
    WORDLESS,
    blocks_with,
    read_block,
    read_column,
    read_numbers,
)

Key: TypeAlias = tuple[int, int]  # an event's time and position, by which all are ordered

SECONDS: Final = 2.0  # that one search may look for its matches, while others wait
_AGAIN_SECONDS: Final = 0.1  # until it is asked once more whether a search may end
# Times beyond which there are none: what SQLite takes for a number.
_LEAST: Final = -(1 << 62)
_MOST: Final = 1 << 62
_END: Final[Key] = (_MOST, 0)
_FEW_STRETCHES: Final = 2  # are searched before another word is looked up


class OutOfTime(Exception):
    """What is looked for takes longer than it may."""


class TimeLimit:
    """Looked at with each block of a segment that is read, some two thousand events, and whenever one event
    is asked: it may have as much text as thousands of others."""

    def __init__(
        self,
        seconds: float,
        may_end: Callable[[], bool] = lambda: True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Once the time is over, it ends as soon as it may."""
        self._may_end = may_end
        self._clock = clock
        self._ends = clock() + seconds

    def look(self) -> None:
        """Raises OutOfTime."""
        if self._clock() >= self._ends:
            self.lift()
            if self._may_end():
                raise OutOfTime
            self._ends = self._clock() + _AGAIN_SECONDS

    def lift(self) -> None:
        self._ends = math.inf


class Found(NamedTuple):
    """A match; of two, the newer is the greater."""

    time_ms: int
    position: int
    org_id: str


class Newest(NamedTuple):
    """The newest matches, newest first; and, if the time was over, what older events go on before."""

    found: list[Found]
    left: Key | None


class _Progress:
    """How far a page has come: segments lie over each other in time, and only what is newer than all that is
    left of each can be known."""

    def __init__(self, segments: Iterator[StoredSegment], begin: Key) -> None:
        self._segments = segments
        self._at = self._following = next(segments, None)
        self._begin = begin if self._at is None else min(begin, self._at.end)

    def next(self) -> StoredSegment | None:
        self._at, self._following = self._following, next(self._segments, None)
        return self._at

    def left(self) -> Key:
        """What the events come before that are still to be looked at."""
        left = [self._at.left()] if self._at else []
        return max([*left, self._following.end] if self._following else left)

    def is_made(self) -> bool:
        return self.left() < self._begin


def newest(
    db: sqlite3.Connection, query: SearchQuery, limit: int, bodies: Bodies, before: Key | None = None
) -> Newest:
    """`before`: only those older than this time and position. It takes longer than it may only where no event
    could be told of until then, so that pages come to an end."""
    from_ms, to_ms = bounds(query)
    if before is not None:
        to_ms = min(to_ms, before[0] + 1)
    time_limit = TimeLimit(SECONDS, lambda: progress.is_made())
    segments = stored_segments(db, bodies, query.org_ids, from_ms, to_ms, time_limit)
    progress = _Progress(segments, min((to_ms, 0), before or _END))
    terms = sorted(query.filter.terms, key=by_cost)
    found: list[Found] = []
    while (stored := progress.next()) is not None:
        if len(found) == limit and found[-1].time_ms > stored.most_ms:
            break
        new: list[Found] = []
        try:
            for match in islice(_matches(terms, stored, from_ms, to_ms, before), limit):
                if len(found) == limit and match < found[-1]:
                    break
                new.append(match)
        except OutOfTime:
            left = progress.left()
            newer = (each for each in (*found, *new) if (each.time_ms, each.position) >= left)
            return Newest(sorted(newer, reverse=True)[:limit], left)
        found = sorted([*found, *new], reverse=True)[:limit]
    return Newest(found, None)


def _matches(
    terms: Sequence[Term], stored: StoredSegment, from_ms: int, to_ms: int, before: Key | None
) -> Iterator[Found]:
    first, end = stored.between(from_ms, to_ms)
    if before is not None:
        end = stored.before(before, end)
    if first < end:
        yield from map(stored.found, matches(terms, stored, first, end))


def bounds(query: SearchQuery) -> tuple[int, int]:
    from_ms = _LEAST if query.from_ms is None else max(query.from_ms, _LEAST)
    return from_ms, _MOST if query.to_ms is None else min(query.to_ms, _MOST)


def stored_segments(
    db: sqlite3.Connection,
    bodies: Bodies,
    org_ids: Sequence[str] | None,
    from_ms: int,
    to_ms: int,
    limit: TimeLimit | None = None,
) -> Iterator[StoredSegment]:
    """Those that may have events of these organisations between these times, by their newest ones."""
    rows = db.execute(
        "SELECT s.segment, o.org_id, s.least_ms, s.most_ms, s.count FROM segments s"
        " JOIN orgs o ON o.org = s.org"
        " WHERE (?1 IS NULL OR o.org_id IN (SELECT value FROM json_each(?1)))"
        " AND s.most_ms >= ?2 AND s.least_ms < ?3 ORDER BY s.most_ms DESC",
        (_listed(org_ids), from_ms, to_ms),
    ).fetchall()
    return (StoredSegment(db, bodies, limit, *row) for row in rows)


def span(db: sqlite3.Connection, org_ids: Sequence[str] | None) -> tuple[int, int] | None:
    """The times of the oldest and of the newest event of these organisations."""
    ((least_ms, most_ms),) = db.execute(
        "SELECT min(s.least_ms), max(s.most_ms) FROM segments s JOIN orgs o ON o.org = s.org"
        " WHERE ?1 IS NULL OR o.org_id IN (SELECT value FROM json_each(?1))",
        (_listed(org_ids),),
    ).fetchall()
    return None if least_ms is None else (least_ms, most_ms)


def _listed(org_ids: Sequence[str] | None) -> str | None:
    return None if org_ids is None else orjson.dumps(org_ids).decode()


def by_cost(term: Term) -> bool:
    return not (isinstance(term, FieldTerm) and term.field.kind == "time")


def _rarest_first(words: Sequence[str], prefix: bool) -> list[tuple[str, bool]]:
    """Each word once, and whether it may go on: long words are rare ones, mostly."""
    going_on = {(word, prefix and number == len(words)) for number, word in enumerate(words, 1)}
    return sorted(going_on, key=lambda each: len(each[0]), reverse=True)


class StoredSegment:
    """A segment in the file, read as far as a search asks for it."""

    def __init__(
        self, db: sqlite3.Connection, bodies: Bodies, limit: TimeLimit | None,
        number: int, org_id: str, least_ms: int, most_ms: int, count: int,
    ) -> None:  # fmt: skip
        self._db = db
        self._bodies = bodies
        self._limit = limit
        self._number = number
        self.least_ms = least_ms
        self._numbers_number = -1
        self._numbers_held: list[array[int]]
        self._block_number = -1
        self._block_held: tuple[array[int], bytes]
        self._asked = count  # the ordinal down to which events were looked at, from the newest on
        self._said_ordinal = -1
        self._said_held: str
        self.org_id = org_id
        self.most_ms = most_ms
        self.count = count

    def _block(self, number: int) -> tuple[array[int], bytes]:
        if number != self._block_number:
            self._look_at_limit()
            self._block_held = read_block(self._db, self._number, number)
            self._block_number = number
        return self._block_held

    def _numbers(self, ordinal: int) -> tuple[int, int]:
        """The event's time and position."""
        number, within = divmod(ordinal, BLOCK)
        if number != self._numbers_number:
            self._look_at_limit()
            self._numbers_held = read_numbers(self._db, self._number, number)
            self._numbers_number = number
        times, positions = self._numbers_held
        return times[within], positions[within]

    def _look_at_limit(self) -> None:
        if self._limit is not None:
            self._limit.look()

    def _ask(self, ordinal: int) -> None:
        self._look_at_limit()
        self._asked = ordinal

    @property
    def end(self) -> Key:
        """What all its events come before."""
        return self.most_ms + 1, 0

    def left(self) -> Key:
        """What the events come before that are still to be looked at."""
        if self._asked == self.count:
            return self.end
        time_ms, position = self._numbers(self._asked)
        return time_ms, position + 1

    def time(self, ordinal: int) -> int:
        return self._numbers(ordinal)[0]

    def column(self, name: str) -> Column:
        self._look_at_limit()
        return read_column(self._db, self._number, name)

    def between(self, from_ms: int | None, to_ms: int | None) -> tuple[int, int]:
        first = 0 if from_ms is None or from_ms <= self.least_ms else self._first_from(from_ms)
        end = self.count if to_ms is None or to_ms > self.most_ms else self._first_from(to_ms)
        return first, end

    def _first_from(self, time_ms: int) -> int:
        return bisect_left(range(self.count), time_ms, key=self.time)

    def before(self, key: tuple[int, int], end: int) -> int:
        """The first ordinal up to `end` that is not older than this time and position."""
        if key[0] > self.most_ms:
            return end
        return bisect_left(range(end), key, key=self._numbers)

    def found(self, ordinal: int) -> Found:
        return Found(*self._numbers(ordinal), self.org_id)

    def where(self, words: Sequence[str], *, prefix: bool) -> int:
        if self.count <= WORDLESS:
            return full(self.count)
        left = set(range(-(-self.count // BLOCK)))
        for word, goes_on in _rarest_first(words, prefix):
            blocks = blocks_with(self._db, self._number, word[:WORD_CHARS].encode(), prefix=goes_on)
            left = left if blocks is None else left & blocks
            if not left:
                return 0
            if len(left) <= _FEW_STRETCHES:
                break
        flags = bytearray(self.count)
        for block in left:
            first, end = block * BLOCK, min((block + 1) * BLOCK, self.count)
            flags[first:end] = b"\1" * (end - first)
        return int.from_bytes(flags, "little")

    def line(self, ordinal: int) -> str:
        self._ask(ordinal)
        lines, text = self._block(ordinal // BLOCK)
        within = ordinal % BLOCK
        return text[lines[within] : lines[within + 1] - 1].decode()

    def said(self, ordinal: int) -> str:
        if ordinal != self._said_ordinal:
            self._said_held = said_in(self.line(ordinal).split(PART)[-2:])
            self._said_ordinal = ordinal
        self._ask(ordinal)
        return self._said_held

    def lines_with(self, needle: bytes, flags: bytes) -> Iterator[int]:
        for number in reversed(range(-(-self.count // BLOCK))):
            first = number * BLOCK
            if flags.find(1, first, first + BLOCK) < 0:
                continue
            self._asked = min(self._asked, first + BLOCK)
            lines, text = self._block(number)
            found = []
            at = text.find(needle)
            while at >= 0:
                within = bisect_right(lines, at) - 1
                if flags[first + within]:
                    found.append(first + within)
                at = text.find(needle, lines[within + 1])
            yield from reversed(found)

    def document(self, ordinal: int) -> Document:
        self._ask(ordinal)
        time_ms, position = self._numbers(ordinal)
        return self._bodies.document(self.org_id, position, time_ms)
