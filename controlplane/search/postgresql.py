"""The search index in PostgreSQL, for installations that run no other engine."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, TypeVar

import psycopg
from psycopg import errors
from psycopg.rows import TupleRow

from controlplane.database_url import address_of
from controlplane.search.document import Document, UnsearchableError, read_document
from controlplane.search.fair_queue import FairQueue
from controlplane.search.interface import (
    MAX_LIMIT,
    MAX_PAGE_BYTES,
    Event,
    Facets,
    Histogram,
    IndexMovedError,
    IndexUnavailableError,
    SearchPage,
    SearchQuery,
)
from controlplane.search.known_event import Parsed
from controlplane.search.postgresql_table import (
    COLUMNS,
    FORMAT,
    SCHEMA,
    STATE,
    TABLE,
    PostgresDialect,
    bound,
    row_of,
)
from controlplane.search.query import FIELDS
from controlplane.search.sql import (
    Condition,
    Key,
    all_of,
    any_of,
    newest_first,
    one_of,
    page_condition,
    read_cursor,
    write_cursor,
)
from controlplane.store.interface import MOST_AHEAD_MS, StoredEvent
from controlplane.store.postgres_database import ConnectionThreads, lock_number

T = TypeVar("T")
Connection = psycopg.Connection[TupleRow]

log = logging.getLogger(__name__)

COUNTED_MATCHES: Final = 50_000  # newest matches that facets count, and a histogram that takes too long
_HISTOGRAM_SECONDS: Final = 2.0
_READERS: Final = 4  # threads that find pages, each with a connection
_MAKING: Final = lock_number("graphward search index")
_DIALECT: Final = PostgresDialect()


class PostgresIndex:
    """Three tables of a database, which may be the store's own."""

    def __init__(self, url: str) -> None:
        self._where = address_of(url)
        self._writer = ConnectionThreads(url, 1, "search-writer")
        self._readers = ConnectionThreads(url, _READERS, "search-reader")
        self._counter = ConnectionThreads(url, 1, "search-counter")
        self._counting = FairQueue()  # counts of one organisation delay another by one at most
        self._incarnation: str | None = None

    def __repr__(self) -> str:
        return f"<PostgresIndex {self._where}>"

    async def close(self) -> None:
        for threads in (self._counter, self._readers, self._writer):
            await threads.close()

    async def outbox_name(self) -> str:
        if self._incarnation is None:
            self._incarnation = await self._run(self._writer, _prepare)
        return f"postgresql:{self._incarnation}"

    async def write(self, events: Sequence[Event], after: int = 0) -> None:
        await self.outbox_name()
        known = self._incarnation
        try:
            await self._run(self._writer, partial(_write, known, events, after))
        except _AnotherIndexError as error:
            self._incarnation = error.incarnation
            raise

    async def write_parsed(self, batches: Sequence[Parsed], after: int = 0) -> None:
        events = [
            StoredEvent(position, batch.org_id, bytes(body))
            for batch in batches
            for position, body in enumerate(batch.bodies, batch.position)
        ]
        await self.write(events, after)

    async def purge(self, org_id: str, before_ms: int, limit: int, newest: int | None = None) -> int:
        await self.outbox_name()
        due = all_of([one_of("org", [org_id]), _due(before_ms, newest)])
        return await self._run(self._writer, partial(_purge, due, limit))

    async def search(self, query: SearchQuery) -> SearchPage:
        before = None if query.cursor is None else read_cursor(query.cursor)
        await self.outbox_name()
        return await self._run(self._readers, partial(_page, query, before))

    async def span(self, org_ids: Sequence[str] | None) -> tuple[int, int] | None:
        await self.outbox_name()
        return await self._run(self._readers, partial(_span, org_ids))

    async def facets(self, query: SearchQuery, fields: Sequence[str], *, top: int = 10) -> Facets:
        await self.outbox_name()
        async with self._counting.of(query.org_ids):
            return await self._run(self._counter, partial(_facets, query, fields, top))

    async def histogram(self, query: SearchQuery, interval_ms: int) -> Histogram:
        await self.outbox_name()
        async with self._counting.of(query.org_ids):
            return await self._run(self._counter, partial(_histogram, query, interval_ms))

    async def _run(self, threads: ConnectionThreads, job: Callable[[Connection], T]) -> T:
        """Return the job's result. It runs in a transaction of its own."""
        try:
            return await threads.run(partial(_in_transaction, job))
        except errors.UndefinedTable as error:
            self._incarnation = None  # made again, and filled from the start
            raise self._unavailable(error) from error
        except psycopg.Error as error:
            raise self._unavailable(error) from error

    def _unavailable(self, error: psycopg.Error) -> IndexUnavailableError:
        text = (error.diag.message_primary or str(error)).strip().partition("\n")[0]
        return IndexUnavailableError(f"search index at {self._where}: {text or type(error).__name__}")


class _AnotherIndexError(IndexMovedError):
    def __init__(self, incarnation: str, reached: int) -> None:
        super().__init__(f"search index: it was made again and has events up to {reached}", reached)
        self.incarnation = incarnation


def _in_transaction(job: Callable[[Connection], T], raw: Connection) -> T:
    with raw.transaction():
        return job(raw)


def _rows(raw: Connection, sql: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
    return psycopg.RawCursor(raw).execute(sql.encode(), parameters).fetchall()


# -- writing ---------------------------------------------------------------------------------------


def _prepare(raw: Connection) -> str:
    """Return the incarnation of the tables, which are made if there are none of this format."""
    _rows(raw, f"SELECT pg_advisory_xact_lock({_MAKING})")
    ((is_there,),) = _rows(raw, f"SELECT to_regclass('{STATE}') IS NOT NULL")
    if is_there:
        state = _rows(raw, f"SELECT format, incarnation FROM {STATE}")
        if state and state[0][0] == FORMAT:
            return str(state[0][1])
    for statement in (f"DROP TABLE IF EXISTS {STATE}", f"DROP TABLE IF EXISTS {TABLE}", *SCHEMA):
        raw.execute(statement.encode())
    incarnation = str(uuid.uuid4())
    psycopg.RawCursor(raw).execute(f"INSERT INTO {STATE} VALUES ($1, $2, 0)".encode(), (FORMAT, incarnation))
    return incarnation


def _write(known: str | None, events: Sequence[Event], after: int, raw: Connection) -> None:
    """Add the events that are not there. The state's row is locked, so that writers take turns."""
    state = _rows(raw, f"SELECT format, incarnation, reached FROM {STATE} FOR UPDATE")
    if not state or state[0][0] != FORMAT:
        raise IndexUnavailableError("search index: another release has taken it")
    _, incarnation, reached = state[0]
    if incarnation != known:
        raise _AnotherIndexError(str(incarnation), int(reached))
    if reached < after:
        raise IndexMovedError(f"search index: it has events up to {reached} and not to {after}", int(reached))
    documents = _documents(events)
    _add_known(raw, [document for document in documents if document.position <= reached])
    _add_new(raw, [document for document in documents if document.position > reached])
    newest = max((event.position for event in events), default=0)
    psycopg.RawCursor(raw).execute(f"UPDATE {STATE} SET reached = greatest(reached, $1)".encode(), (newest,))


def _documents(events: Sequence[Event]) -> list[Document]:
    documents: dict[tuple[str, str], Document] = {}
    for event in events:
        try:
            document = read_document(event)
        except UnsearchableError as error:
            log.error("event at position %d is not searchable: %s", event.position, error)
            continue
        documents.setdefault((document.org_id, document.event_id), document)
    return [*documents.values()]


def _add_new(raw: Connection, documents: Sequence[Document]) -> None:
    if not documents:
        return
    into = f"COPY {TABLE} ({', '.join(COLUMNS)}) FROM STDIN"
    with raw.cursor() as cursor, cursor.copy(into.encode()) as copy:
        for document in documents:
            copy.write_row(row_of(document))


def _add_known(raw: Connection, documents: Sequence[Document]) -> None:
    """Add those that are not there yet, of events that the index had reached before."""
    values = ", ".join("CAST(%s AS tsvector)" if column == "terms" else "%s" for column in COLUMNS)
    into = f"INSERT INTO {TABLE} ({', '.join(COLUMNS)}) VALUES ({values}) ON CONFLICT DO NOTHING"
    with raw.cursor() as cursor:
        cursor.executemany(into.encode(), [row_of(document) for document in documents])


def _purge(due: Condition, limit: int, raw: Connection) -> int:
    oldest = f"SELECT ctid FROM {TABLE} WHERE {bound(due)} ORDER BY time LIMIT ${len(due.parameters) + 1}"
    statement = f"DELETE FROM {TABLE} WHERE ctid = ANY (ARRAY({oldest}))"
    return psycopg.RawCursor(raw).execute(statement.encode(), (*due.parameters, limit)).rowcount


def _due(before_ms: int, newest: int | None) -> Condition:
    """Return the condition that holds for events past their retention."""
    older = Condition("time < ?", (before_ms,))
    if newest is None:
        return older
    ahead = Condition("time > ?", (before_ms + MOST_AHEAD_MS,))
    return all_of([Condition("position <= ?", (newest,)), any_of([older, ahead])])


# -- reading ---------------------------------------------------------------------------------------


def _page(query: SearchQuery, before: Key | None, raw: Connection) -> SearchPage:
    limit = max(1, min(query.limit, MAX_LIMIT))
    condition = page_condition(query, _DIALECT, before)
    newest = f"SELECT org, time, position, size FROM {TABLE} WHERE {bound(condition)}"
    newest += f" ORDER BY {newest_first(_DIALECT)} LIMIT {limit + 1}"
    rows = _rows(raw, newest, condition.parameters)
    read = size = 0
    while read < min(limit, len(rows)) and size < MAX_PAGE_BYTES:
        size += int(rows[read][3])
        read += 1
    following = None if read == len(rows) else write_cursor((rows[read - 1][1], rows[read - 1][2]))
    return SearchPage(_bodies(raw, [row[:3] for row in rows[:read]]), following)


def _bodies(raw: Connection, keys: Sequence[tuple[Any, ...]]) -> tuple[bytes, ...]:
    """The events' own texts, which are read only of those that a page has."""
    if not keys:
        return ()
    listed = (
        "unnest(CAST($1 AS text[]), CAST($2 AS bigint[]), CAST($3 AS bigint[])) AS each (org, time, position)"
    )
    rows = _rows(
        raw,
        f"SELECT org, time, position, body FROM {TABLE} JOIN {listed} USING (org, time, position)",
        [list(column) for column in zip(*keys, strict=True)],
    )
    bodies = {row[:3]: bytes(row[3]) for row in rows}
    return tuple(bodies[key] for key in keys if key in bodies)


def _span(org_ids: Sequence[str] | None, raw: Connection) -> tuple[int, int] | None:
    condition = page_condition(SearchQuery(None if org_ids is None else tuple(org_ids)), _DIALECT)
    ends = f"SELECT min(time), max(time) FROM {TABLE} WHERE {bound(condition)}"
    ((least, most),) = _rows(raw, ends, condition.parameters)
    return None if least is None else (int(least), int(most))


def _newest(columns: str, query: SearchQuery) -> tuple[str, tuple[object, ...]]:
    condition = page_condition(query, _DIALECT)
    newest = f"SELECT {columns} FROM {TABLE} WHERE {bound(condition)} ORDER BY {newest_first(_DIALECT)}"
    return f"{newest} LIMIT {COUNTED_MATCHES}", condition.parameters


def _facets(query: SearchQuery, fields: Sequence[str], top: int, raw: Connection) -> Facets:
    newest, values = _newest(", ".join(dict.fromkeys(("position", *fields))), query)
    pairs = [f"SELECT {len(fields)} AS number, '' AS value"]  # one of each event, to count them
    for number, name in enumerate(fields):
        value = f"unnest(newest.{name})" if FIELDS[name].kind == "texts" else f"CAST(newest.{name} AS text)"
        pairs.append(f"SELECT {number}, {value}")
    counts = (
        'SELECT number, min(value COLLATE "C") AS spelling, count(*) AS matches, row_number() OVER'
        ' (PARTITION BY number ORDER BY count(*) DESC, min(value COLLATE "C")) AS place'
        f" FROM ({newest}) AS newest CROSS JOIN LATERAL ({' UNION ALL '.join(pairs)}) AS each"
        ' WHERE value IS NOT NULL GROUP BY number, lower(value COLLATE "C")'
    )
    rows = _rows(
        raw,
        f"SELECT number, spelling, matches FROM ({counts}) AS counts WHERE place <= ${len(values) + 1}"
        " ORDER BY number, place",
        (*values, top),
    )
    found: dict[str, list[tuple[str, int]]] = {name: [] for name in fields}
    counted = 0
    for number, spelling, matches in rows:
        if number == len(fields):
            counted = int(matches)
        else:
            found[fields[number]].append((str(spelling), int(matches)))
    return Facets({name: tuple(each) for name, each in found.items()}, counted, counted < COUNTED_MATCHES)


def _histogram(query: SearchQuery, interval_ms: int, raw: Connection) -> Histogram:
    condition = page_condition(query, _DIALECT)
    every = f"SELECT time FROM {TABLE} WHERE {bound(condition)}"
    try:
        with raw.transaction():
            raw.execute(f"SET LOCAL statement_timeout = {int(_HISTOGRAM_SECONDS * 1000)}".encode())
            return Histogram(_buckets(raw, every, condition.parameters, interval_ms), complete=True)
    except errors.QueryCanceled:
        return Histogram(_buckets(raw, *_newest("time", query), interval_ms), complete=False)


def _buckets(
    raw: Connection, source: str, values: Sequence[object], interval_ms: int
) -> tuple[tuple[int, int], ...]:
    interval = f"${len(values) + 1}"
    rows = _rows(
        raw,
        f"SELECT time - mod(mod(time, {interval}) + {interval}, {interval}) AS start, count(*)"
        f" FROM ({source}) AS matches GROUP BY start ORDER BY start",
        (*values, interval_ms),
    )
    return tuple((int(start), int(count)) for start, count in rows)
