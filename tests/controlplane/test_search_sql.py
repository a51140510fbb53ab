"""Tests that a filter, translated to SQL, finds the matching events in a real SQLite table."""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.search.document import read_document
from controlplane.search.interface import CursorError, SearchQuery
from controlplane.search.predicates import phrase, said_by
from controlplane.search.query import FIELDS, MAX_VALUES, Between, Field, QueryError, fold, parse_filter
from controlplane.search.sql import (
    Condition,
    Key,
    bounded,
    like_pattern,
    newest_first,
    one_of,
    page_condition,
    read_cursor,
    write_cursor,
)
from tests.controlplane.search_events import (
    CASES,
    EVENTS,
    ORG,
    OTHER_ORG,
    SAMPLES,
    START_MS,
    TERMS,
    accepted,
    event,
    matches,
)


class PlainTable:
    """SQL dialect of a table for tests, which has one column for each field of an event.

    The column of a field with several values contains a JSON array. All texts are case-folded.
    """

    org, time, position = "org_id", "time_ms", "position"

    def exactly(self, field: Field, texts: Sequence[str]) -> Condition:
        if field.kind == "texts":
            return self._one_item(field, one_of("value", texts))
        return one_of(self._column(field), texts)

    def like(self, field: Field, pieces: Sequence[str]) -> Condition:
        column = "value" if field.kind == "texts" else self._column(field)
        condition = Condition(f"{column} LIKE ? ESCAPE '\\'", (like_pattern(pieces),))
        return self._one_item(field, condition) if field.kind == "texts" else condition

    def between(self, field: Field, match: Between) -> Condition:
        return bounded(self._column(field), match)

    def has(self, field: Field) -> Condition:
        return Condition(f"{self._column(field)} IS NOT NULL")

    def words(self, words: Sequence[str], *, prefix: bool) -> Condition:
        return Condition("instr(said, ?) > 0", (phrase(words, prefix=prefix),))

    def _column(self, field: Field) -> str:
        return "time_ms" if field.kind == "time" else f"of_{field.name}"

    def _one_item(self, field: Field, condition: Condition) -> Condition:
        items = f"SELECT 1 FROM json_each({self._column(field)}) WHERE {condition.sql}"
        return Condition(f"EXISTS ({items})", condition.parameters)


COLUMNS = [f"of_{field.name}" for field in FIELDS.values() if field.kind != "time"]
TABLE = PlainTable()


@pytest.fixture
def table() -> Iterator[sqlite3.Connection]:
    with closing(made_table()) as db:
        yield db


def made_table() -> sqlite3.Connection:
    db = sqlite3.connect(":memory:")
    db.execute(f"CREATE TABLE events (org_id, time_ms, position, said, {', '.join(COLUMNS)})")
    return db


def put(db: sqlite3.Connection, events: Sequence[dict[str, Any]]) -> None:
    for each in accepted(*events):
        document = read_document(each)
        values = [_stored(document.values.get(name.removeprefix("of_"))) for name in COLUMNS]
        row = (document.org_id, document.time_ms, document.position, said_by(document.values), *values)
        db.execute(f"INSERT INTO events VALUES ({', '.join('?' * len(row))})", row)


def _stored(value: Any) -> Any:
    if isinstance(value, tuple):
        return orjson.dumps([fold(item) for item in value]).decode()
    return fold(value) if isinstance(value, str) else value


def found(db: sqlite3.Connection, query: SearchQuery, before: Key | None = None) -> list[int]:
    condition = page_condition(query, TABLE, before)
    sql = f"SELECT of_seq FROM events WHERE {condition.sql} ORDER BY {newest_first(TABLE)}"
    return [number for (number,) in db.execute(sql, condition.parameters)]


@pytest.mark.parametrize(("text", "wanted"), CASES)
def test_what_a_filter_finds(table: sqlite3.Connection, text: str, wanted: list[int]) -> None:
    put(table, SAMPLES)
    assert found(table, SearchQuery((ORG,), parse_filter(text))) == wanted
    assert wanted == [made["seq"] for made in reversed(SAMPLES) if matches(parse_filter(text), made)]


@given(
    made=st.lists(EVENTS, min_size=1, max_size=12),
    filters=st.lists(st.lists(TERMS, max_size=3).map(" ".join), min_size=1, max_size=12),
)
@settings(max_examples=100, deadline=None)
def test_it_finds_what_the_filter_means(made: list[dict[str, Any]], filters: list[str]) -> None:
    events = [event(number) | changes for number, changes in enumerate(made)]
    with closing(made_table()) as table:
        put(table, events)
        for text in filters:
            try:
                wanted = parse_filter(text)
            except QueryError:
                continue
            expected = [one["seq"] for one in reversed(events) if matches(wanted, one)]
            assert found(table, SearchQuery(None, wanted)) == expected, text


def test_only_the_organisations_and_the_time_asked_for(table: sqlite3.Connection) -> None:
    put(table, [event(n, orgId=(ORG, OTHER_ORG)[n % 2]) for n in range(8)])
    assert found(table, SearchQuery((ORG,))) == [6, 4, 2, 0]
    assert found(table, SearchQuery(())) == []
    within = SearchQuery((ORG, OTHER_ORG), from_ms=START_MS + 2000, to_ms=START_MS + 5000)
    assert found(table, within) == [4, 3, 2]
    assert found(table, SearchQuery(None, from_ms=-(2**70), to_ms=2**70)) == [7, 6, 5, 4, 3, 2, 1, 0]


def test_a_page_goes_on_behind_the_key_of_the_last_event(table: sqlite3.Connection) -> None:
    put(table, [event(n, time=event(n // 3)["time"]) for n in range(7)])
    assert found(table, SearchQuery((ORG,)), (START_MS + 1000, 5)) == [3, 2, 1, 0]


def test_the_largest_filters_are_within_what_sqlite_takes(table: sqlite3.Connection) -> None:
    put(table, SAMPLES)
    for text in ("-rule:" + ",".join(["a*b"] * MAX_VALUES), "-a " * MAX_VALUES, "status:>=0 " * MAX_VALUES):
        found(table, SearchQuery((ORG,), parse_filter(text)))


def test_markers_are_written_as_the_engine_wants_them() -> None:
    condition = page_condition(SearchQuery((ORG,), parse_filter('status:403 path:"/a?b"')), TABLE)
    written = condition.numbered(lambda number, value: f"{{p{number}:{type(value).__name__}}}")
    assert (
        written == "(org_id IN ({p0:str})) AND (((of_status >= {p1:int}) AND (of_status <= {p2:int}))"
        " AND (of_path IN ({p3:str})))"
    )
    assert condition.parameters == (ORG, 403, 403, "/a?b")


@pytest.mark.parametrize("key", [(0, 0), (START_MS, 1 << 40), (-1, 5)])
def test_a_cursor_comes_back_as_it_was(key: Key) -> None:
    assert read_cursor(write_cursor(key)) == key


@pytest.mark.parametrize("cursor", ["", "x", "AAAA", "ÿ" * 11, "AAAAAAAAAAA" * 9, "'; DROP TABLE events"])
def test_a_foreign_cursor_is_refused(cursor: str) -> None:
    with pytest.raises(CursorError):
        read_cursor(cursor)
