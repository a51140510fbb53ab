"""Counters of the events that match a search, by field value and by time.

The counters use counts that the index stores, or read the newest matching events.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import nsmallest
from itertools import takewhile
from typing import Any, Final

from controlplane.search.document import Value
from controlplane.search.entries import CODED, NUMBERS, Codes
from controlplane.search.interface import Facets, Histogram, SearchQuery
from controlplane.search.part_search import Reader, Search, newest_rows
from controlplane.search.parts import HOUR_MS, MINUTE_MS, ROLLED, Part, among, read_parts, time_column
from controlplane.search.query import FieldTerm, Term, TextTerm, fold
from controlplane.search.sql import LEAST_MS, MOST_MS, Condition, all_of, negated

MATCHES: Final = 50_000  # number of matches that are counted row by row
# Number of paths that are read because they are as frequent as the last one of a facet. Text order then
# selects.
_MOST_TIED: Final = 1_000

_Rows = Sequence[tuple[Part, tuple[Any, ...]]]


def count_values(reader: Reader, query: SearchQuery, fields: Sequence[str], top: int) -> Facets:
    split = _split(query, HOUR_MS)
    if split is None or not _only_of(query, {"verdict"}) or not {"org", *ROLLED}.issuperset(fields):
        counts, counted, is_complete = _values_of_rows(reader, query, fields, top)
    else:
        counts, counted = _kept_values(reader, query, fields, split)
        is_complete = True
        for edge in split.edges:
            of_edge, more, is_whole = _values_of_rows(reader, edge, fields, top)
            counts = {name: counts[name] + of_edge[name] for name in fields}
            counted, is_complete = counted + more, is_complete and is_whole
    return Facets({name: _most(counts[name], top) for name in fields}, counted, is_complete)


def count_times(reader: Reader, query: SearchQuery, interval_ms: int) -> Histogram:
    unit = _unit(query, interval_ms)
    split = _split(query, unit) if unit else None
    if unit is None or split is None:
        counts, is_complete = _times_of_rows(reader, query, interval_ms)
    else:
        counts, is_complete = _kept_times(reader, query, unit, split, interval_ms), True
        for edge in split.edges:
            of_edge, is_whole = _times_of_rows(reader, edge, interval_ms)
            counts, is_complete = counts + of_edge, is_complete and is_whole
    return Histogram(tuple(sorted(counts.items())), is_complete)


# -- row by row ------------------------------------------------------------------------------------


def _values_of_rows(
    reader: Reader, query: SearchQuery, fields: Sequence[str], top: int
) -> tuple[dict[str, Counter[str]], int, bool]:
    search = Search(reader, query)
    columns = [name for name in fields if name in CODED or name in NUMBERS or name == "path"]
    rows, left = newest_rows(search, ("org", *columns), MATCHES + 1)
    counted = rows[:MATCHES]
    counts = {name: _texts_of(search, counted, name, columns, top) for name in fields}
    return counts, len(counted), left is None and len(rows) <= MATCHES


def _times_of_rows(reader: Reader, query: SearchQuery, interval_ms: int) -> tuple[Counter[int], bool]:
    rows, left = newest_rows(Search(reader, query), (time_column(),), MATCHES + 1)
    counts = Counter(row[1] // interval_ms * interval_ms for _, row in rows[:MATCHES])
    return counts, left is None and len(rows) <= MATCHES


def _texts_of(search: Search, rows: _Rows, name: str, columns: Sequence[str], top: int) -> Counter[str]:
    if name == "org":
        return Counter(search.orgs[row[1]] for _, row in rows)
    if name not in columns:
        return Counter(text for each in rows for text in _texts(_document_value(search, each, name)))
    at = columns.index(name) + 2
    if name in NUMBERS:
        return Counter(str(row[at]) for _, row in rows if row[at] is not None)
    if name == "path":
        return _paths(search, rows, at, top)
    parts = {part.number: part for part, _ in rows}
    counts: Counter[str] = Counter()
    for (number, code), times in Counter((part.number, row[at]) for part, row in rows).items():
        for text in () if code is None else _texts(search.codes(parts[number]).value(code)):
            counts[text] += times
    return counts


def _paths(search: Search, rows: _Rows, at: int, top: int) -> Counter[str]:
    """Count the most frequent paths among the matching events.

    Paths are compared in the same way as in event filters. If events spell a value differently, the result
    shows the spelling in one of the events.
    """
    by_digest = Counter(row[at] for _, row in rows if row[at] is not None)
    seen = {row[at]: (part, row) for part, row in rows}
    named: Counter[str] = Counter()
    ranked = by_digest.most_common(top + _MOST_TIED)
    least = ranked[:top][-1][1] if ranked else 0
    for digest, times in takewhile(lambda each: each[1] >= least, ranked):
        path = _document_value(search, seen[digest], "path")
        if path is not None:
            named[str(path)] += times
    return named


def _document_value(search: Search, found: tuple[Part, tuple[Any, ...]], name: str) -> Value:
    part, (key, org, *_) = found
    time_ms, position = part.key(key)
    return search.bodies.document(search.orgs[org], position, time_ms).values.get(name)


def _texts(value: Value) -> tuple[str, ...]:
    if value is None:
        return ()
    return value if isinstance(value, tuple) else (str(value),)


def _most(counts: Counter[str], top: int) -> tuple[tuple[str, int], ...]:
    """Return the most frequent values of a field, with their counts.

    Values of a field are compared in the same way as in event filters. If events spell a value differently,
    the result shows the spelling in one of the events.
    """
    merged: Counter[str] = Counter()
    spelled: dict[str, str] = {}
    for text, times in counts.items():
        folded = fold(text)
        merged[folded] += times
        spelled[folded] = min(text, spelled.get(folded, text))
    found = ((spelled[folded], times) for folded, times in merged.items())
    return tuple(nsmallest(top, found, key=lambda each: (-each[1], each[0])))


# -- from the stored counts ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Split:
    """A time span, divided into full time units with stored counts and an incomplete unit at each end."""

    first: int
    end: int
    edges: tuple[SearchQuery, ...]


def _split(query: SearchQuery, unit: int) -> _Split | None:
    """Return the query's time span, divided into full units, or None if the span contains no full unit."""
    first = LEAST_MS if query.from_ms is None else -(-query.from_ms // unit) * unit
    end = MOST_MS if query.to_ms is None else query.to_ms // unit * unit
    if first >= end:
        return None
    edges = []
    if query.from_ms is not None and query.from_ms < first:
        edges.append(replace(query, to_ms=first))
    if query.to_ms is not None and query.to_ms > end:
        edges.append(replace(query, from_ms=end))
    return _Split(first, end, tuple(edges))


def _unit(query: SearchQuery, interval_ms: int) -> int | None:
    """Return the time unit whose stored counts can be added up to the interval, or None if no unit fits."""
    if interval_ms % HOUR_MS == 0 and _kept_field(query) is not None:
        return HOUR_MS
    return MINUTE_MS if interval_ms % MINUTE_MS == 0 and _only_of(query, {"verdict"}) else None


def _kept_field(query: SearchQuery) -> str | None:
    """Return the field whose stored counts are enough to count the events that match the filter.

    Each stored count counts the events with one verdict and one value of a field.
    """
    names = {_name(term) for term in query.filter.terms} - {"verdict"}
    if len(names) > 1 or not names.issubset(ROLLED):
        return None
    return next(iter(names), "verdict")


def _only_of(query: SearchQuery, names: set[str]) -> bool:
    return all(_name(term) in names for term in query.filter.terms)


def _name(term: Term) -> str:
    return "" if isinstance(term, TextTerm) else term.field.name


def _kept_values(
    reader: Reader, query: SearchQuery, fields: Sequence[str], split: _Split
) -> tuple[dict[str, Counter[str]], int]:
    unit = 0 if query.from_ms is None and query.to_ms is None else HOUR_MS
    counts: dict[str, Counter[str]] = {name: Counter() for name in fields}
    counted = 0
    orgs = reader.orgs(query.org_ids)
    for part in read_parts(reader.db, [*orgs]):
        codes = reader.codes(part.number)
        for name in dict.fromkeys((*fields, "verdict")):
            field, group = ("verdict", "org") if name == "org" else (name, "value")
            for key, times in _kept(reader, part, codes, query, (field, unit), split, group):
                counted += times if name == "verdict" else 0
                if name == "org":
                    counts[name][orgs[key]] += times
                elif name in counts and key:
                    counts[name].update(dict.fromkeys(_texts(codes.value(key)), times))
    return {name: +several for name, several in counts.items()}, counted


def _kept_times(
    reader: Reader, query: SearchQuery, unit: int, split: _Split, interval_ms: int
) -> Counter[int]:
    counts: Counter[int] = Counter()
    field = _kept_field(query) or "verdict"
    for part in read_parts(reader.db, [*reader.orgs(query.org_ids)]):
        codes = reader.codes(part.number)
        for start, times in _kept(reader, part, codes, query, (field, unit), split, "start"):
            counts[start // interval_ms * interval_ms] += times
    return +counts


def _kept(
    reader: Reader, part: Part, codes: Codes, query: SearchQuery, kept: tuple[str, int], split: _Split,
    group: str,
) -> Iterator[tuple[int, int]]:  # fmt: skip
    """Yield sums of the stored counts of one field and time unit, grouped by a column."""
    field, unit = kept
    conditions = [
        among("org", [*part.orgs]),
        Condition("field = ? AND unit = ?", (ROLLED.index(field), unit)),
    ]
    if unit:
        conditions.append(Condition("start >= ? AND start < ?", (split.first, split.end)))
    conditions += (_of_term(term, codes) for term in query.filter.terms)
    condition = all_of(conditions)
    sql = f"SELECT {group}, sum(count) FROM counts_{part.number} WHERE {condition.sql} GROUP BY {group}"  # noqa: S608
    return reader.db.execute(sql, condition.parameters)


def _of_term(term: Term, codes: Codes) -> Condition:
    assert not isinstance(term, TextTerm)
    column = "verdict" if term.field.name == "verdict" else "value"
    held = among(column, codes.matching(term)) if isinstance(term, FieldTerm) else Condition(f"{column} <> 0")
    return negated(held) if term.negated else held
