"""The search index in a SQLite file of its own: rows, FTS5 posting lists over them, one writer.

The file stands beside the store's and not in it: the lock, the page cache and the checkpoints of the two
don't meet, so that indexing never delays the acknowledgement of a batch; and what is derived can be deleted
and is built again from the store. Several processes may write (server and command line): SQLite lets in one
at a time.
"""

import asyncio
import base64
import contextlib
import logging
import os
import sqlite3
import struct
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Container, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

import aiosqlite
import orjson

from controlplane.search.document import Document, UnsearchableError, read_document
from controlplane.search.interface import (
    MAX_LIMIT,
    CursorError,
    Event,
    Facets,
    Histogram,
    IndexUnavailableError,
    SearchPage,
    SearchQuery,
)
from controlplane.search.query import FIELDS
from controlplane.search.sqlite_plan import (
    DELETE_TERMS,
    INSERT_EVENT,
    INSERT_TERMS,
    LEAST_KEY,
    SCHEMA,
    SLOT_BITS,
    SLOTS,
    Plan,
    column_values,
    event_row,
    event_tokens,
    plan,
    token,
    wanted_key,
)

log = logging.getLogger(__name__)

FORMAT: Final = 1  # of tables and tokens; a file of another format is emptied and built again
FACET_MATCHES: Final = 50_000
HISTOGRAM_MATCHES: Final = 500_000
_BUSY_MILLISECONDS: Final = 30_000
_CACHE_KIBIBYTES: Final = 65_536
_WAL_BYTES: Final = 64 * 1024 * 1024


class SqliteIndex:
    """One connection writes, another reads; each has its thread, so a long search delays no write."""

    def __init__(self, writer: aiosqlite.Connection, reader: aiosqlite.Connection, incarnation: str) -> None:
        self._writer = writer
        self._reader = reader
        self._writing = asyncio.Lock()
        self._incarnation = incarnation

    @classmethod
    async def open(cls, path: Path) -> "SqliteIndex":
        try:
            await asyncio.to_thread(_create_private, path)
            writer = await _connect(path)
            try:
                incarnation = await _prepare(writer)
                reader = await _connect(path)
            except BaseException:
                await writer.close()
                raise
            await reader.execute("PRAGMA query_only = ON")
        except (OSError, sqlite3.Error) as error:
            raise IndexUnavailableError(f"{path}: {error}") from error
        return cls(writer, reader, incarnation)

    async def outbox_name(self) -> str:
        return f"sqlite:{self._incarnation}"

    async def close(self) -> None:
        await self._reader.close()
        await self._writer.close()

    # -- writing --

    async def write(self, events: Sequence[Event]) -> None:
        documents = await asyncio.to_thread(_read_documents, events)
        if not documents:
            return
        async with self._transaction() as db:
            new = await _new_documents(db, documents)
            keyed = await _with_keys(db, new)
            rows, terms = await asyncio.to_thread(_rows_and_terms, keyed)
            await db.executemany(INSERT_EVENT, rows)
            await db.executemany(INSERT_TERMS, terms)

    async def purge(self, org_id: str, before_ms: int, limit: int) -> int:
        async with self._transaction() as db:
            rows = await _all(
                db,
                "SELECT e.key, e.body FROM terms t CROSS JOIN events e ON e.key = t.rowid"
                ' WHERE t.terms MATCH ? AND t.rowid < ? AND e."org" = ? ORDER BY t.rowid LIMIT ?',
                (f'"{token("o", org_id)}"', before_ms << SLOT_BITS, org_id, limit),
            )
            terms = await asyncio.to_thread(_terms_again, org_id, rows)
            await db.executemany(DELETE_TERMS, terms)
            await db.executemany("DELETE FROM events WHERE key = ?", [(key,) for key, _ in rows])
        return len(rows)

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[aiosqlite.Connection]:
        async with self._writing:
            try:
                await self._writer.execute("BEGIN IMMEDIATE")
                yield self._writer
                await self._writer.execute("COMMIT")
            except BaseException as error:
                with contextlib.suppress(sqlite3.Error):  # there may be none to roll back
                    await self._writer.execute("ROLLBACK")
                if isinstance(error, sqlite3.Error):
                    raise IndexUnavailableError(f"search index: {error}") from error
                raise

    # -- reading --

    async def search(self, query: SearchQuery) -> SearchPage:
        limit = max(1, min(query.limit, MAX_LIMIT))
        rows = await self._matches(query, "e.key, e.body", limit + 1)
        following = _cursor(rows[limit - 1][0]) if len(rows) > limit else None
        return SearchPage(tuple(body for _, body in rows[:limit]), following)

    async def facets(self, query: SearchQuery, fields: Sequence[str], *, top: int = 10) -> Facets:
        columns = ", ".join(f'e."{FIELDS[name].name}"' for name in fields)
        rows = await self._matches(query, columns, FACET_MATCHES + 1)
        counted = rows[:FACET_MATCHES]
        counts = await asyncio.to_thread(_count, counted, fields, top)
        return Facets(counts, len(counted), len(rows) <= FACET_MATCHES)

    async def histogram(self, query: SearchQuery, interval_ms: int) -> Histogram:
        sql, parameters = _select(query, "e.key AS key", HISTOGRAM_MATCHES + 1)
        # Two halves to a bucket number so that times before 1970 round down too.
        rows = await self._read(
            f"SELECT (key >> {SLOT_BITS}) - ((key >> {SLOT_BITS}) % ?1 + ?1) % ?1 AS start, count(*)"  # noqa: S608
            f" FROM ({sql}) GROUP BY start ORDER BY start",
            (interval_ms, *parameters),
        )
        total = sum(count for _, count in rows)
        return Histogram(tuple((start, count) for start, count in rows), total <= HISTOGRAM_MATCHES)

    async def _matches(self, query: SearchQuery, columns: str, limit: int) -> list[Any]:
        return await self._read(*_select(query, columns, limit))

    async def _read(self, sql: str, parameters: Iterable[object]) -> list[Any]:
        try:
            return await _all(self._reader, sql, parameters)
        except sqlite3.Error as error:
            raise IndexUnavailableError(f"search index: {error}") from error


def _create_private(path: Path) -> None:
    """SQLite gives its own files (-wal, -shm) the mode of the main one.

    A file that is there is not opened: closing it again would take away the POSIX locks that SQLite holds on
    it elsewhere in this process, and another process would remove the log under our feet.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600))


async def _connect(path: Path) -> aiosqlite.Connection:
    db = await aiosqlite.connect(path, isolation_level=None)
    try:
        # FULL: the store notes an event as indexed only once it would survive a loss of power here.
        for pragma in (
            f"busy_timeout = {_BUSY_MILLISECONDS}",
            "page_size = 8192",
            "journal_mode = WAL",
            "synchronous = FULL",
            f"cache_size = -{_CACHE_KIBIBYTES}",
            f"journal_size_limit = {_WAL_BYTES}",
            "temp_store = MEMORY",
        ):
            await db.execute(f"PRAGMA {pragma}")
    except BaseException:
        await db.close()
        raise
    return db


async def _prepare(db: aiosqlite.Connection) -> str:
    """The incarnation of the index in this file, which is made anew where there is none of this format."""
    await db.execute("BEGIN IMMEDIATE")
    ((found,),) = await _all(db, "PRAGMA user_version")
    if found != FORMAT:
        for table in ("terms", "events", "incarnation"):
            await db.execute(f"DROP TABLE IF EXISTS {table}")
        for statement in SCHEMA:
            await db.execute(statement)
        await db.execute("CREATE TABLE incarnation (id TEXT NOT NULL)")
        await db.execute("INSERT INTO incarnation VALUES (?)", (str(uuid.uuid4()),))
        await db.execute(f"PRAGMA user_version = {FORMAT}")
    await db.execute("COMMIT")
    ((incarnation,),) = await _all(db, "SELECT id FROM incarnation")
    return str(incarnation)


async def _all(db: aiosqlite.Connection, sql: str, parameters: Iterable[object] = ()) -> list[Any]:
    return list(await db.execute_fetchall(sql, tuple(parameters)))


# -- writing: what is new, under which key ---------------------------------------------------------


def _read_documents(events: Sequence[Event]) -> list[Document]:
    documents: dict[tuple[str, str], Document] = {}
    for event in events:
        try:
            document = read_document(event)
        except UnsearchableError as error:
            log.error("event at position %d is not searchable: %s", event.position, error)
            continue
        documents.setdefault((document.org_id, document.event_id), document)
    return list(documents.values())


async def _new_documents(db: aiosqlite.Connection, documents: Sequence[Document]) -> list[Document]:
    ids = orjson.dumps([document.event_id for document in documents]).decode()
    sql = 'SELECT e."org", e.id FROM events e WHERE e.id IN (SELECT value FROM json_each(?))'
    known = set(await _all(db, sql, (ids,)))
    return [document for document in documents if (document.org_id, document.event_id) not in known]


async def _with_keys(db: aiosqlite.Connection, documents: Sequence[Document]) -> list[tuple[int, Document]]:
    """Each document with a key that is free, in the order of keys, in which FTS5 takes them best."""
    wanted = [wanted_key(document) for document in documents]
    held = orjson.dumps(wanted).decode()
    found = await _all(db, "SELECT key FROM events WHERE key IN (SELECT value FROM json_each(?))", (held,))
    taken = {key for (key,) in found}
    keyed: dict[int, Document] = {}
    crowded = []
    for key, document in zip(wanted, documents, strict=True):
        if key in taken or key in keyed:
            crowded.append(document)
        else:
            keyed[key] = document
    free_after: dict[int, int] = {}
    for document in crowded:
        key = await _free_key(db, free_after.get(document.time_ms, document.time_ms << SLOT_BITS), keyed)
        keyed[key] = document
        free_after[document.time_ms] = key + 1
    return sorted(keyed.items())


async def _free_key(db: aiosqlite.Connection, least: int, keyed: Container[int]) -> int:
    """The first key from `least` on that none of its millisecond follows; a full one runs into the next."""
    sql = "SELECT max(key) FROM events WHERE key BETWEEN ? AND ?"
    while True:
        last_slot = least | SLOTS - 1
        ((greatest,),) = await _all(db, sql, (least, last_slot))
        key = least if greatest is None else int(greatest) + 1
        while key in keyed:
            key += 1
        if key <= last_slot:
            return key
        least = last_slot + 1


Rows: TypeAlias = list[tuple[object, ...]]


def _rows_and_terms(keyed: Sequence[tuple[int, Document]]) -> tuple[Rows, Rows]:
    rows = [event_row(key, document) for key, document in keyed]
    return rows, [(key, event_tokens(document)) for key, document in keyed]


@dataclass(frozen=True, slots=True)
class _Indexed:
    position: int
    org_id: str
    body: bytes


def _terms_again(org_id: str, rows: Sequence[tuple[int, bytes]]) -> Rows:
    """FTS5 holds no copy of the tokens, so it is told what to take out."""
    return [(key, event_tokens(read_document(_Indexed(0, org_id, body)))) for key, body in rows]


# -- reading ---------------------------------------------------------------------------------------


def _select(query: SearchQuery, columns: str, limit: int) -> tuple[str, list[object]]:
    made: Plan = plan(query)
    most = made.most_key if query.cursor is None else min(made.most_key, _key_before(query.cursor))
    bounds = [made.least_key, most]
    if made.match is None:
        source, key, where = "events e", "e.key", "e.key BETWEEN ? AND ?"
        given: list[object] = [*bounds]
    else:
        # CROSS JOIN: the posting lists are always the outer loop, whatever the planner believes.
        source, key = "terms t CROSS JOIN events e ON e.key = t.rowid", "t.rowid"
        where = "t.terms MATCH ? AND t.rowid BETWEEN ? AND ?"
        given = [made.match, *bounds]
    # The plan's conditions are constants with parameters: no text of a user's is in them.
    where = " AND ".join([where, *made.conditions])
    sql = f"SELECT {columns} FROM {source} WHERE {where} ORDER BY {key} DESC LIMIT ?"  # noqa: S608
    return sql, [*given, *made.parameters, limit]


def _cursor(key: int) -> str:
    return base64.urlsafe_b64encode(struct.pack(">q", key)).decode().rstrip("=")


def _key_before(cursor: str) -> int:
    try:
        (key,) = struct.unpack(">q", base64.b64decode(cursor + "=", altchars=b"-_", validate=True))
    except (ValueError, struct.error):
        raise CursorError("this cursor was not made by this index") from None
    return max(int(key) - 1, LEAST_KEY)


def _count(
    rows: Sequence[Sequence[object]], fields: Sequence[str], top: int
) -> dict[str, tuple[tuple[str, int], ...]]:
    counts = {}
    for column, name in enumerate(fields):
        values = (value for row in rows for value in column_values(FIELDS[name], row[column]))
        counts[name] = tuple(Counter(values).most_common(top))
    return counts
