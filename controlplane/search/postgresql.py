"""The search index in PostgreSQL, for installations that run no other database engine."""

from __future__ import annotations

import logging
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, TypeVar

import psycopg
from psycopg import errors

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
from controlplane.search.postgresql_newest import Connection, Row, limited, newest, rows, walk
from controlplane.search.postgresql_table import (
    COLUMNS,
    FORMAT,
    SCHEMA,
    STATE,
    TABLE,
    PostgresDialect,
    add_columns,
    bound,
    row_of,
)
from controlplane.search.query import FIELDS
from controlplane.search.sql import (
    COUNTED_MATCHES,
    Condition,
    Key,
    all_of,
    newest_first,
    one_of,
    page_condition,
    past_retention,
    read_cursor,
    write_cursor,
)
from controlplane.store.interface import StoredEvent
from controlplane.store.postgres_database import ConnectionThreads, lock_number

T = TypeVar("T")

log = logging.getLogger(__name__)

_COUNT_SECONDS: Final = 2.0  # time limit of the whole count; then a walk finds the matches to count
_READERS: Final = 4  # threads that find pages, each with a connection
_MAKING: Final = lock_number("graphward search index")
_DIALECT: Final = PostgresDialect()


class PostgresIndex:
    """The search index in three tables of a PostgreSQL database, which may be the store's own database."""

    def __init__(self, url: str) -> None:
        self._where = address_of(url)
        self._writer = ConnectionThreads(url, 1, "search-writer")
        self._readers = ConnectionThreads(url, _READERS, "search-reader")
        self._counter = ConnectionThreads(url, 1, "search-counter")
        # Many searches and counts of one organisation do not delay those of another.
        self._finding = FairQueue(_READERS)
        self._counting = FairQueue()
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
        due = all_of([one_of("org", [org_id]), past_retention(before_ms, newest)])
        return await self._run(self._writer, partial(_purge, due, limit))

    async def search(self, query: SearchQuery) -> SearchPage:
        before = None if query.cursor is None else read_cursor(query.cursor)
        await self.outbox_name()
        work = partial(self._run, self._readers, partial(_page, query, before))
        return await self._finding.run(query.org_ids, work)

    async def span(self, org_ids: Sequence[str] | None) -> tuple[int, int] | None:
        await self.outbox_name()
        key = None if org_ids is None else tuple(org_ids)
        return await self._finding.run(key, partial(self._run, self._readers, partial(_span, org_ids)))

    async def facets(self, query: SearchQuery, fields: Sequence[str], *, top: int = 10) -> Facets:
        await self.outbox_name()
        work = partial(self._run, self._counter, partial(_facets, query, fields, top))
        return await self._counting.run(query.org_ids, work)

    async def histogram(self, query: SearchQuery, interval_ms: int) -> Histogram:
        await self.outbox_name()
        work = partial(self._run, self._counter, partial(_histogram, query, interval_ms))
        return await self._counting.run(query.org_ids, work)

    async def _run(self, threads: ConnectionThreads, job: Callable[[Connection], T]) -> T:
        """Run the job in its own transaction, and return its result."""
        try:
            return await threads.run(partial(_in_transaction, job))
        except errors.UndefinedTable as error:
            self._incarnation = None  # the tables were made again, and are filled from the start
            raise self._unavailable(error) from error
        except psycopg.Error as error:
            raise self._unavailable(error) from error

    def _unavailable(self, error: psycopg.Error) -> IndexUnavailableError:
        text = (error.diag.message_primary or str(error)).strip().partition("\n")[0]
        return IndexUnavailableError(f"search index at {self._where}: {text or type(error).__name__}")


class _AnotherIndexError(IndexMovedError):
    def __init__(self, incarnation: str, reached: int) -> None:
        super().__init__(
            f"the search index was created again and has events up to position {reached}", reached
        )
        self.incarnation = incarnation


def _in_transaction(job: Callable[[Connection], T], raw: Connection) -> T:
    with raw.transaction():
        return job(raw)


# -- writing ---------------------------------------------------------------------------------------


def _prepare(raw: Connection) -> str:
    """Return the incarnation ID of the index tables, which is new each time that the tables are created.

    If the database has no index tables of the current format, create the tables.
    """
    rows(raw, f"SELECT pg_advisory_xact_lock({_MAKING})")
    ((is_there,),) = rows(raw, f"SELECT to_regclass('{STATE}') IS NOT NULL")
    if is_there:
        state = rows(raw, f"SELECT format, incarnation FROM {STATE}")
        if state and state[0][0] == FORMAT:
            _add_columns(raw)
            return str(state[0][1])
    for statement in (f"DROP TABLE IF EXISTS {STATE}", f"DROP TABLE IF EXISTS {TABLE}", *SCHEMA):
        raw.execute(statement.encode())
    incarnation = str(uuid.uuid4())
    psycopg.RawCursor(raw).execute(f"INSERT INTO {STATE} VALUES ($1, $2, 0)".encode(), (FORMAT, incarnation))
    return incarnation


def _add_columns(raw: Connection) -> None:
    columns = rows(
        raw, f"SELECT attname FROM pg_attribute WHERE attrelid = to_regclass('{TABLE}') AND attnum > 0"
    )
    for statement in add_columns({str(name) for (name,) in columns}):
        raw.execute(statement.encode())


def _write(known: str | None, events: Sequence[Event], after: int, raw: Connection) -> None:
    """Add the given events that the index does not have yet.

    The transaction locks the row with the index state, so that only one writer at a time changes the index.
    """
    state = rows(raw, f"SELECT format, incarnation, reached FROM {STATE} FOR UPDATE")
    if not state or state[0][0] != FORMAT:
        raise IndexUnavailableError("the search index belongs to another release of the control plane")
    _, incarnation, reached = state[0]
    if incarnation != known:
        raise _AnotherIndexError(str(incarnation), int(reached))
    if reached < after:
        raise IndexMovedError(
            f"the search index has events only up to position {reached}, and lacks events up to"
            f" position {after}",
            int(reached),
        )
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
    """Add events to the index at positions that the index had already passed without storing these events."""
    values = ", ".join("CAST(%s AS tsvector)" if column == "terms" else "%s" for column in COLUMNS)
    into = f"INSERT INTO {TABLE} ({', '.join(COLUMNS)}) VALUES ({values}) ON CONFLICT DO NOTHING"
    with raw.cursor() as cursor:
        cursor.executemany(into.encode(), [row_of(document) for document in documents])


def _purge(due: Condition, limit: int, raw: Connection) -> int:
    oldest = f"SELECT ctid FROM {TABLE} WHERE {bound(due)} ORDER BY time LIMIT ${len(due.parameters) + 1}"
    statement = f"DELETE FROM {TABLE} WHERE ctid = ANY (ARRAY({oldest}))"
    return psycopg.RawCursor(raw).execute(statement.encode(), (*due.parameters, limit)).rowcount


# -- reading ---------------------------------------------------------------------------------------


_AMONG: Final = (
    f"FROM {TABLE} JOIN unnest(CAST($1 AS text[]), CAST($2 AS bigint[]), CAST($3 AS bigint[]))"
    " AS each (org, time, position) USING (org, time, position)"
)


def _page(query: SearchQuery, before: Key | None, raw: Connection) -> SearchPage:
    limit = max(1, min(query.limit, MAX_LIMIT))
    found, left = newest(raw, query, limit + 1, before)
    read = size = 0
    while read < min(limit, len(found)) and size < MAX_PAGE_BYTES:
        size += int(found[read][3])
        read += 1
    if read < len(found):
        left = found[read - 1][1], found[read - 1][2]
    return SearchPage(_bodies(raw, found[:read]), None if left is None else write_cursor(left))


def _bodies(raw: Connection, found: Sequence[Row]) -> tuple[bytes, ...]:
    """Return the JSON texts of the audit events that the found rows name.

    The query reads the texts only of the found events, which fill one page.
    """
    texts = rows(raw, f"SELECT org, time, position, body {_AMONG}", _keys(found)) if found else []
    bodies = {row[:3]: bytes(row[3]) for row in texts}
    return tuple(bodies[row[:3]] for row in found if row[:3] in bodies)


def _keys(found: Sequence[Row]) -> tuple[list[object], ...]:
    """Return the parameters of the SQL query part `_AMONG`."""
    return tuple([row[column] for row in found] for column in range(3))


def _span(org_ids: Sequence[str] | None, raw: Connection) -> tuple[int, int] | None:
    ends = f"SELECT min(time) AS least, max(time) AS most FROM {TABLE}"
    if org_ids is None:
        ((least, most),) = rows(raw, ends)
    else:  # the index finds the first and last time of one organisation, but not of several
        orgs = "unnest(CAST($1 AS text[])) AS each (id)"
        of_each = f"{orgs} CROSS JOIN LATERAL ({ends} WHERE org = each.id) AS ends"
        ((least, most),) = rows(raw, f"SELECT min(least), max(most) FROM {of_each}", ([*org_ids],))
    return None if least is None else (int(least), int(most))


def _facets(query: SearchQuery, fields: Sequence[str], top: int, raw: Connection) -> Facets:
    columns = ", ".join(dict.fromkeys(("position", *fields)))
    condition = page_condition(query, _DIALECT)
    every = f"SELECT {columns} FROM {TABLE} WHERE {bound(condition)} ORDER BY {newest_first(_DIALECT)}"
    try:
        with limited(raw, _COUNT_SECONDS):
            return _counted(raw, f"{every} LIMIT {COUNTED_MATCHES}", condition.parameters, fields, top)
    except errors.QueryCanceled:
        found, left = walk(raw, query, COUNTED_MATCHES)
    facets = _counted(raw, f"SELECT {columns} {_AMONG}", _keys(found), fields, top)
    return replace(facets, complete=facets.complete and left is None)


def _counted(
    raw: Connection, source: str, values: Sequence[object], fields: Sequence[str], top: int
) -> Facets:
    pairs = [f"SELECT {len(fields)} AS number, '' AS value"]  # one value of each event, to count the events
    for number, name in enumerate(fields):
        value = f"unnest(newest.{name})" if FIELDS[name].kind == "texts" else f"CAST(newest.{name} AS text)"
        pairs.append(f"SELECT {number}, {value}")
    counts = (
        'SELECT number, min(value COLLATE "C") AS spelling, count(*) AS matches, row_number() OVER'
        ' (PARTITION BY number ORDER BY count(*) DESC, min(value COLLATE "C")) AS place'
        f" FROM ({source}) AS newest CROSS JOIN LATERAL ({' UNION ALL '.join(pairs)}) AS each"
        ' WHERE value IS NOT NULL GROUP BY number, lower(value COLLATE "C")'
    )
    listed = rows(
        raw,
        f"SELECT number, spelling, matches FROM ({counts}) AS counts WHERE place <= ${len(values) + 1}"
        " ORDER BY number, place",
        (*values, top),
    )
    found: dict[str, list[tuple[str, int]]] = {name: [] for name in fields}
    counted = 0
    for number, spelling, matches in listed:
        if number == len(fields):
            counted = int(matches)
        else:
            found[fields[number]].append((str(spelling), int(matches)))
    return Facets({name: tuple(each) for name, each in found.items()}, counted, counted < COUNTED_MATCHES)


def _histogram(query: SearchQuery, interval_ms: int, raw: Connection) -> Histogram:
    condition = page_condition(query, _DIALECT)
    every = f"SELECT time FROM {TABLE} WHERE {bound(condition)}"
    try:
        with limited(raw, _COUNT_SECONDS):
            return Histogram(_buckets(raw, every, condition.parameters, interval_ms), complete=True)
    except errors.QueryCanceled:
        found, left = walk(raw, query, COUNTED_MATCHES)
    starts = Counter(int(row[1]) // interval_ms * interval_ms for row in found)
    is_complete = left is None and len(found) < COUNTED_MATCHES
    return Histogram(tuple(sorted(starts.items())), is_complete)


def _buckets(
    raw: Connection, source: str, values: Sequence[object], interval_ms: int
) -> tuple[tuple[int, int], ...]:
    interval = f"${len(values) + 1}"
    counts = rows(
        raw,
        f"SELECT time - mod(mod(time, {interval}) + {interval}, {interval}) AS start, count(*)"
        f" FROM ({source}) AS matches GROUP BY start ORDER BY start",
        (*values, interval_ms),
    )
    return tuple((int(start), int(count)) for start, count in counts)
