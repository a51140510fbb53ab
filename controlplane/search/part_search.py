"""Searches the parts of the embedded index for the newest matching events, within a time limit.

FTS5 finds candidates. The row of an event in the index is enough to evaluate most terms of a search filter.
If a search term compares a value that the index row lacks, the search reads the full event.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice, zip_longest
from typing import Any, Final, TypeAlias

from controlplane.search.bodies import Bodies
from controlplane.search.entries import Codes
from controlplane.search.interface import SearchQuery
from controlplane.search.part_terms import (
    RowDialect,
    Tokens,
    Untold,
    is_one_word,
    names_of,
    request_tokens,
    tokens_of,
)
from controlplane.search.parts import Part, among, key_of, mask, part_of, read_codes, read_parts, time_column
from controlplane.search.predicates import all_hold
from controlplane.search.query import Term
from controlplane.search.sql import (
    LEAST_MS,
    MOST_MS,
    NOTHING,
    Condition,
    Key,
    all_of,
    term_condition,
)

SECONDS: Final = 2.0  # time limit of one search while others wait
_AGAIN_SECONDS: Final = 0.1  # pause before the next check whether a search may end
_END: Final[Key] = (1 << 62, 0)
_MOST_CODES: Final = 500_000  # number of dictionary values that a connection caches
# rows are read without tokens if at least one in this many events belongs to the organisations
_SHARE: Final = 4


_Row: TypeAlias = tuple[Part, tuple[Any, ...]]  # key and columns of a match


# if a token finds at most this many events of a part, FTS5 is queried for that token alone
_FEW: Final = 1000


class OutOfTime(Exception):
    """Error for a search that takes longer than its time limit.

    The search has not examined the events whose keys are smaller than `left`.
    """

    def __init__(self, left: Key) -> None:
        super().__init__(left)
        self.left = left


class TimeLimit:
    """Time limit of a search. The search checks the time limit for each index part and each event.

    The search checks the time limit for each event, because the text of one event may be very long.
    """

    def __init__(
        self,
        seconds: float,
        may_end: Callable[[Key], bool] = lambda left: True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Set the time limit of a search, in seconds.

        After the time limit, the search ends as soon as `may_end` returns True.
        """
        self._may_end = may_end
        self._clock = clock
        self._ends = clock() + seconds

    def look(self, left: Key) -> None:
        """Raise OutOfTime if the time limit is reached and the search may end at the key `left`.

        The key of an event is its time and position. The search goes from new events to old events, so its
        next page continues with events that have smaller keys than `left`.
        """
        if self._clock() < self._ends:
            return
        if self._may_end(left):
            raise OutOfTime(left)
        self._ends = self._clock() + _AGAIN_SECONDS


class Reader:
    """State of a database connection, which the next searches on the connection use again."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self.db = db
        self._codes: dict[int, Codes] = {}
        self._incarnation = ""

    def codes(self, part: int) -> Codes:
        codes = self._codes.setdefault(part, Codes())
        read_codes(self.db, part, codes)
        return codes

    def begin(self, incarnation: str) -> None:
        """Discard the cached dictionaries of an earlier search index.

        If the cache of dictionaries is large, discard all cached dictionaries.
        """
        if (
            incarnation != self._incarnation
            or sum(each.newest for each in self._codes.values()) > _MOST_CODES
        ):
            self._codes.clear()
            self._incarnation = incarnation

    def orgs(self, org_ids: Sequence[str] | None) -> dict[int, str]:
        rows = self.db.execute("SELECT org, org_id FROM orgs").fetchall()
        return {org: org_id for org, org_id in rows if org_ids is None or org_id in org_ids}


class Search:
    """A search query that runs on the parts of the index in turn."""

    def __init__(self, reader: Reader, query: SearchQuery, before: Key | None = None) -> None:
        self._reader = reader
        self._query = query
        self._before = before
        self.orgs = reader.orgs(query.org_ids)
        self.parts = [part for part in read_parts(reader.db, [*self.orgs]) if self._may_have(part)]
        self.bodies = Bodies(reader.db)
        self._named: list[Key] | None = None
        if ids := [text for term in query.filter.terms for text in names_of(term)]:
            named = self.bodies.named(self.orgs.values(), ids)
            self._named = [(document.time_ms, document.position) for document in named]

    def codes(self, part: Part) -> Codes:
        return self._reader.codes(part.number)

    def matches(
        self, part: Part, columns: Sequence[str], limit: int, look: Callable[[Key], None]
    ) -> Iterator[tuple[Any, ...]]:
        """Yield the index key and the columns of each matching event in one part of the index, newest first.

        Before each event that the method reads, it calls `look`, which enforces the time limit.
        """
        source, told, asked = self._asked_of(part)
        if NOTHING in told:
            return
        condition = all_of(told)
        sql = (
            f"SELECT key, org, {', '.join(['key', *columns])} FROM {source.table} WHERE {condition.sql}"  # noqa: S608
            f" ORDER BY {source.order} DESC LIMIT {-1 if asked else limit}"
        )
        for key, org, *row in self._reader.db.execute(sql, condition.parameters):
            if not asked or self._holds(asked, part, key, org, look):
                yield tuple(row)

    def _holds(self, asked: list[Term], part: Part, key: int, org: int, look: Callable[[Key], None]) -> bool:
        time_ms, position = part.key(key)
        look((time_ms, position + 1))
        return all_hold(asked, self.bodies.document(self.orgs[org], position, time_ms))

    def _may_have(self, part: Part) -> bool:
        first, last = self._bounds(part)
        return first <= last

    def _bounds(self, part: Part) -> tuple[int, int]:
        """Return the least and the greatest index key that a matching event in the part may have."""
        first, last = part.least, part.most
        if self._query.from_ms is not None:
            first = max(first, key_of(self._query.from_ms, 0))
        if self._query.to_ms is not None:
            last = min(last, key_of(self._query.to_ms - 1, mask()))
        if self._before is not None:
            last = min(last, part.last_before(self._before))
        return first, last

    def _asked_of(self, part: Part) -> tuple[_Source, list[Condition], list[Term]]:
        """Return a table of possible matches, SQL conditions on its rows, and the terms that SQL can't test.

        The returned search terms can be tested only on the texts of the events.
        """
        codes = self._reader.codes(part.number)
        source, told, is_by_tokens = self._source(part, codes)
        if self._query.org_ids is not None:
            told.append(among("org", [*self.orgs]))
        dialect = RowDialect(part.number, codes, self.orgs)
        told += dialect.times(self._query.from_ms, self._query.to_ms)
        asked = []
        for term in self._query.filter.terms:
            if is_by_tokens and is_one_word(term):
                continue
            try:
                told.append(term_condition(term, dialect))
            except Untold:
                asked.append(term)
        return source, told, asked

    def _source(self, part: Part, codes: Codes) -> tuple[_Source, list[Condition], bool]:
        """Return a table of events in an index part that may match, and the SQL conditions on its rows.

        The third returned value is True if the full-text index (FTS5) selects these events. The value is
        False if only the index keys of the events select them.
        """
        rows, words = f"rows_{part.number}", f"words_{part.number}"
        between = self._bounds(part)
        if self._named is not None:
            keys = among("key", self._named_keys(part))
            return _Source(rows, "key"), [keys, Condition("key BETWEEN ? AND ?", between)], False
        tokens = tokens_of(self._query.filter.terms, codes)
        is_rare = sum(part.orgs.values()) * _SHARE < part.total
        orgs = [*part.orgs] if is_rare or tokens.excluded else []
        if rare := self._rare(part, tokens):
            tokens, orgs = tokens.led_by(rare), []
        expression = tokens.expression(orgs)
        if not expression:
            return _Source(rows, "key"), [Condition("key BETWEEN ? AND ?", between)], False
        match = Condition(f"{words} MATCH ? AND {words}.rowid BETWEEN ? AND ?", (expression, *between))
        return _Source(f"{words} CROSS JOIN {rows} ON key = {words}.rowid", f"{words}.rowid"), [match], True

    def _rare(self, part: Part, tokens: Tokens) -> str:
        """Return the FTS5 expression of the query's rarest token, or an empty text if none is rare.

        To match a token, FTS5 reads every index entry of the token. A search for a token that many events
        contain takes long, so the search starts with a token that few events contain. A token is rare if at
        most `_FEW` events of the index part contain the token.
        """
        if len(tokens.required) + len(tokens.excluded) < 2:
            return ""
        words = f"words_{part.number}"
        sql = f"SELECT count(*) FROM (SELECT 1 FROM {words} WHERE {words} MATCH ? LIMIT {_FEW + 1})"  # noqa: S608
        found: dict[str, int] = {}
        for expression in tokens.required:
            ((found[expression],),) = self._reader.db.execute(sql, (expression,)).fetchall()
        rarest = min(found, key=found.__getitem__, default="")
        return rarest if rarest and found[rarest] <= _FEW else ""

    def _named_keys(self, part: Part) -> list[int]:
        """Return the index keys of the events whose event ID or request ID is one of the requested IDs."""
        keys = [key_of(*key) for key in self._named or () if part_of(key[1]) == part.number]
        sql = f"SELECT rowid FROM words_{part.number} WHERE words_{part.number} MATCH ?"  # noqa: S608 - a number
        for expression in filter(None, map(request_tokens, self._query.filter.terms)):
            keys += [key for (key,) in self._reader.db.execute(sql, (expression,))]
        return keys


@dataclass(frozen=True, slots=True)
class _Source:
    table: str
    order: str


def bounded_query(query: SearchQuery) -> SearchQuery:
    """Return the search query with its times limited to the range of numbers that SQLite accepts."""
    from_ms = None if query.from_ms is None else min(max(query.from_ms, LEAST_MS), MOST_MS)
    to_ms = None if query.to_ms is None else min(max(query.to_ms, LEAST_MS), MOST_MS)
    return replace(query, from_ms=from_ms, to_ms=to_ms)


def newest(
    reader: Reader, query: SearchQuery, limit: int, before: Key | None = None
) -> tuple[Bodies, list[Key], Key | None]:
    """Return a reader of event texts, the keys of the newest matches, and the key of the next page.

    The key of the next page is None if the search finished within its time limit. A search continues after
    its time limit until it has examined at least one event, so that paging comes to an end.
    """
    search = Search(reader, query, before)
    rows, left = newest_rows(search, (), limit, before or _END)
    return search.bodies, [part.key(key) for part, (key,) in rows], left


def newest_rows(
    search: Search, columns: Sequence[str], limit: int, begin: Key = _END
) -> tuple[list[_Row], Key | None]:
    """Return the newest matching events as rows of key and columns.

    The second returned value is the key from which the next search can continue, if the search reached its
    time limit.
    """
    parts = search.parts
    begin = min(begin, parts[0].end) if parts else begin
    time_limit = TimeLimit(SECONDS, lambda left: left < begin)
    found: list[_Row] = []
    for part, following in zip_longest(parts, parts[1:]):
        if len(found) == limit and _order(found[-1]) >= part.end:
            break
        after = following.end if following else (-1, 0)
        new: list[_Row] = []
        try:
            time_limit.look(part.end)
            matches = search.matches(part, columns, limit, partial(_look, time_limit, after))
            new += ((part, row) for row in islice(matches, limit))
        except OutOfTime as over:
            found = [each for each in _merged(found, new) if _order(each) >= over.left]
            return found[:limit], over.left
        found = _merged(found, new)[:limit]
    return found, None


def _look(time_limit: TimeLimit, after: Key, left: Key) -> None:
    """Raise OutOfTime if the time limit of the search is reached.

    `after` is greater than every event key in the next part of the index. If `left` is smaller than `after`,
    the next page continues at `after`, because the search has not yet examined the next part.
    """
    time_limit.look(max(left, after))


def _merged(found: list[_Row], new: list[_Row]) -> list[_Row]:
    if not found or not new or _order(found[-1]) > _order(new[0]):
        return found + new
    return sorted(found + new, key=_order, reverse=True)


def _order(each: _Row) -> Key:
    part, (key, *_) = each
    return part.key(key)


def span(reader: Reader, org_ids: Sequence[str] | None) -> tuple[int, int] | None:
    """Return the times of the oldest and newest events of the organisations in the search index."""
    spans = []
    for part in read_parts(reader.db, [*reader.orgs(org_ids)]):
        sql = f"SELECT {time_column()} FROM rows_{part.number} WHERE key IN (?, ?)"  # noqa: S608 - a number
        spans += [time_ms for (time_ms,) in reader.db.execute(sql, (part.least, part.most))]
    return (min(spans), max(spans)) if spans else None
