"""Search for the newest matches in PostgreSQL within a time limit.

The search first sends PostgreSQL one query over all events, because an index may quickly find the matches if
they are few. If the query over all events takes too long, the search continues in steps: each step reads a
limited number of events, newest first. If the time limit ends the search, the search returns the time and the
position of the last event that it has read. A next search can continue from there.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final, TypeAlias

import psycopg
from psycopg import errors
from psycopg.rows import TupleRow

from controlplane.search.interface import SearchQuery
from controlplane.search.postgresql_table import TABLE, PostgresDialect, bound
from controlplane.search.query import EVERYTHING
from controlplane.search.sql import Condition, Key, all_of, newest_first, page_condition

Connection = psycopg.Connection[TupleRow]
Row: TypeAlias = tuple[Any, ...]  # organisation, time, position and size of a match

WHOLE_SECONDS: Final = 1.0  # time limit of the whole query
WALK_SECONDS: Final = 1.0  # time limit of reading one event after the other
_LEAST_SECONDS: Final = 0.1  # time limit of the first events, so that each page advances
_ONE_SECONDS: Final = 10.0  # time limit of a single event
_QUICK_SECONDS: Final = 0.1  # a step that takes less time is followed by a larger one
_FIRST: Final = 500  # number of events of the first step
_MOST: Final = 100_000  # number of events of one step
_DIALECT: Final = PostgresDialect()
# These settings force PostgreSQL to use the index in the order of pages.
_IN_ORDER: Final = (
    "SELECT set_config('enable_bitmapscan', 'off', true), set_config('enable_seqscan', 'off', true),"
    " set_config('enable_sort', 'off', true)"
)


def newest(
    raw: Connection, query: SearchQuery, limit: int, before: Key | None
) -> tuple[list[Row], Key | None]:
    """Return the newest events that match the query.

    If the search stopped at its time limit, also return the key of the position from which a next search can
    continue to older events.
    """
    try:
        with limited(raw, WHOLE_SECONDS):
            return _matches(raw, query, limit, before), None
    except errors.QueryCanceled:
        return walk(raw, query, limit, before)


def walk(
    raw: Connection, query: SearchQuery, limit: int, before: Key | None = None
) -> tuple[list[Row], Key | None]:
    """Search in steps for the newest events that match a query, and return these events.

    Each step reads a limited number of events, newest first. The search stops at its time limit.
    """
    rows(raw, _IN_ORDER)
    ends = time.monotonic() + WALK_SECONDS
    found: list[Row] = []
    left, step = before, _FIRST
    while len(found) < limit:
        begun = time.monotonic()
        if begun >= ends and left != before:
            break
        try:
            with limited(raw, max(ends - begun, _LEAST_SECONDS) if step > 1 else _ONE_SECONDS):
                last = _last_of(raw, query, step, left)
                found += _matches(raw, query, limit - len(found), left, last)
        except errors.QueryCanceled:
            if left != before:
                break
            if step == 1:
                raise
            step = max(1, step // 8)
            continue
        if last is None:
            return found, None
        left = last
        if time.monotonic() - begun < _QUICK_SECONDS:
            step = min(4 * step, _MOST)
    return found, left


@contextmanager
def limited(raw: Connection, seconds: float) -> Iterator[None]:
    """Let the server cancel a statement that runs longer than `seconds`.

    If the server cancels the statement, the driver raises QueryCanceled.
    """
    with raw.transaction():
        rows(raw, "SELECT set_config('statement_timeout', $1, true)", (str(int(seconds * 1000)),))
        yield
        raw.execute(b"SET LOCAL statement_timeout TO DEFAULT")


def rows(raw: Connection, sql: str, parameters: Sequence[object] = ()) -> list[Row]:
    return psycopg.RawCursor(raw).execute(sql.encode(), parameters).fetchall()


def _matches(
    raw: Connection, query: SearchQuery, limit: int, before: Key | None, last: Key | None = None
) -> list[Row]:
    """Return the newest matches that are older than `before`, back to the key `last` if it is given."""
    condition = page_condition(query, _DIALECT, before)
    if last is not None:
        condition = all_of([Condition("(time, position) >= (?, ?)", last), condition])
    newest = f"SELECT org, time, position, size FROM {TABLE} WHERE {bound(condition)}"
    newest += f" ORDER BY {newest_first(_DIALECT)} LIMIT {limit}"
    return rows(raw, newest, condition.parameters)


def _last_of(raw: Connection, query: SearchQuery, step: int, before: Key | None) -> Key | None:
    """Return the time and position of the last event that a search step of `step` events reads.

    Return None if fewer than `step` events remain in the index.
    """
    org_ids = query.org_ids if query.org_ids is not None and len(query.org_ids) == 1 else None
    condition = page_condition(replace(query, org_ids=org_ids, filter=EVERYTHING), _DIALECT, before)
    keys = f"SELECT time, position FROM {TABLE} WHERE {bound(condition)}"
    found = rows(
        raw, f"{keys} ORDER BY {newest_first(_DIALECT)} OFFSET {step - 1} LIMIT 1", condition.parameters
    )
    return (int(found[0][0]), int(found[0][1])) if found else None
