"""The embedded search index, which uses SQLite's FTS5 and narrow tables in its own file; see parts.py.

The file of the index is separate from the file of the store. So the index file and the store file each have
separate locks, page caches and checkpoints. Indexing never delays the acknowledgement of a batch. The index
is derived data: its file can be deleted, and the control plane rebuilds it from the store. Several processes
may write the index (server and command line), and SQLite admits one writer at a time.
"""

import asyncio
import contextlib
import logging
import os
import sqlite3
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from controlplane.search import arrivals
from controlplane.search.entries import Arrived
from controlplane.search.fair_queue import FairQueue
from controlplane.search.interface import (
    MAX_LIMIT,
    MAX_PAGE_BYTES,
    Event,
    Facets,
    Histogram,
    IndexDamagedError,
    IndexMovedError,
    IndexUnavailableError,
    SearchPage,
    SearchQuery,
)
from controlplane.search.known_event import Parsed
from controlplane.search.part_counts import count_times, count_values
from controlplane.search.part_search import Reader, bounded_query, newest, span
from controlplane.search.parts import SCHEMA, PartWriter, purge_events, telling_damage
from controlplane.search.sql import Key, read_cursor, write_cursor
from controlplane.store.interface import StoreError
from controlplane.store.migrate import what_to_do
from controlplane.store.opening import open_in_thread
from proxy.process.own_process import foreign, make_directory, make_file

T = TypeVar("T")

log = logging.getLogger(__name__)

FORMAT: Final = 12  # format of the tables and columns; a file of another format is emptied and rebuilt
_BUSY_MILLISECONDS: Final = 30_000
_CACHE_KIBIBYTES: Final = 65_536
_WAL_BYTES: Final = 64 * 1024 * 1024


class _Connection:
    """A database connection to the index, and the one thread that uses the connection."""

    def __init__(self, path: Path, store: Path | None = None) -> None:
        """Prepare a SQLite connection to the index.

        If the path `store` is given, attach the store's database to the index's connection, for reading.
        """
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="search")
        self._path = path
        self._store = store
        self._db: sqlite3.Connection
        self._reader: Reader

    async def open(self) -> None:
        work = partial(_connect, self._path, self._store)
        self._db = await open_in_thread(self._thread, work, sqlite3.Connection.close)
        self._reader = Reader(self._db)

    async def run(self, begin: str, job: Callable[..., T], *given: object) -> T:
        """Run the job in its own transaction of the index.

        Raise IndexUnavailableError if SQLite fails.
        """
        work = partial(_in_transaction, self._db, begin, job, given)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except sqlite3.Error as error:
            raise _unavailable(self._path, error) from error

    async def read(self, job: Callable[..., T], *given: object) -> T:
        """Run a search job with the index data that the connection to the index keeps between searches."""

        @telling_damage()
        def on_current(db: sqlite3.Connection) -> T:
            self._reader.begin(_incarnation(db))
            return job(self._reader, *given)

        return await self.run("BEGIN", on_current)

    async def close(self) -> None:
        """Close the connection and end the thread of the connection, even if the caller is cancelled."""
        closing = self._thread.submit(self._db.close)
        self._thread.shutdown(wait=False)
        await asyncio.wrap_future(closing)


class SqliteIndex:
    """The embedded search index, in one SQLite file.

    One connection writes events, a second connection finds events, and a third connection counts events. Each
    connection has its own thread, so no connection delays another connection.
    """

    def __init__(
        self, writer: _Connection, reader: _Connection, counter: _Connection, incarnation: str
    ) -> None:
        self._writer = writer
        self._reader = reader
        self._counter = counter
        # Queues by organisation, so that many searches and counts of one do not delay those of others.
        self._finding = FairQueue()
        self._counting = FairQueue()
        self._incarnation = incarnation
        self._part_writer = PartWriter()

    @classmethod
    async def open(cls, path: Path, store: Path) -> "SqliteIndex":
        """Open the index of a store.

        The file name of the index is derived from the file name of the store.
        """
        # A writer's transaction would also lock an attached store.
        writer, reader, counter = _Connection(path), _Connection(path, store), _Connection(path, store)
        try:
            async with AsyncExitStack() as opened:
                await asyncio.to_thread(_create_private, path)
                await writer.open()
                opened.push_async_callback(writer.close)
                for each in (reader, counter):
                    await each.open()
                    opened.push_async_callback(each.close)
                incarnation = await writer.run("BEGIN IMMEDIATE", _prepare, store)
                opened.pop_all()
        except (OSError, sqlite3.Error) as error:
            raise _unavailable(path, error) from error
        return cls(writer, reader, counter, incarnation)

    @classmethod
    async def open_or_begin(cls, path: Path, store: Path) -> "SqliteIndex":
        """Open the index, and replace a damaged index file with a new file.

        Call this method only if no other process uses the store. Another process would continue to use the
        damaged index file after this process renamed the file.
        """
        try:
            return await cls.open(path, store)
        except IndexDamagedError as error:
            aside = await asyncio.to_thread(_put_aside, path)
            log.error("moved the damaged search index to %s and started a new one: %s", aside, error)
        return await cls.open(path, store)

    async def outbox_name(self) -> str:
        return f"sqlite:{self._incarnation}"

    async def close(self) -> None:
        await self._counter.close()
        await self._reader.close()
        await self._writer.close()

    async def write(self, events: Sequence[Event], after: int = 0) -> None:
        await self._write(after, partial(arrivals.of_events, events))

    async def write_parsed(self, batches: Sequence[Parsed], after: int = 0) -> None:
        await self._write(after, partial(arrivals.of_parsed, batches))

    async def _write(self, after: int, arrive: Callable[[int], tuple[Arrived, int]]) -> None:
        """Write events to the index file, unless another process has created the index in the file again.

        If the file holds a newly created index, the next write uses that index.
        """

        def add(db: sqlite3.Connection) -> None:
            _require_known(db, self._incarnation, after)
            arrived, reached = arrive(_reached(db))
            self._part_writer.write(db, arrived)
            db.execute("UPDATE reached SET position = ?", (reached,))

        try:
            await self._change(add)
        except _AnotherIndexError as error:
            self._incarnation = error.incarnation
            raise

    async def purge(self, org_id: str, before_ms: int, limit: int, newest: int | None = None) -> int:
        return await self._change(telling_damage()(purge_events), org_id, before_ms, limit, newest)

    async def _change(self, job: Callable[..., T], *given: object) -> T:
        try:
            return await self._writer.run("BEGIN IMMEDIATE", job, *given)
        except BaseException:
            self._part_writer.forget()
            raise

    async def search(self, query: SearchQuery) -> SearchPage:
        before = None if query.cursor is None else read_cursor(query.cursor)
        work = partial(self._reader.read, _page, bounded_query(query), before)
        return await self._finding.run(query.org_ids, work)

    async def span(self, org_ids: Sequence[str] | None) -> tuple[int, int] | None:
        return await self._reader.read(span, org_ids)

    async def facets(self, query: SearchQuery, fields: Sequence[str], *, top: int = 10) -> Facets:
        work = partial(self._counter.read, count_values, bounded_query(query), fields, top)
        return await self._counting.run(query.org_ids, work)

    async def histogram(self, query: SearchQuery, interval_ms: int) -> Histogram:
        work = partial(self._counter.read, count_times, bounded_query(query), interval_ms)
        return await self._counting.run(query.org_ids, work)


def _in_transaction(
    db: sqlite3.Connection, begin: str, job: Callable[..., T], given: tuple[object, ...]
) -> T:
    db.execute(begin)
    try:
        result = job(db, *given)
        db.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):  # the transaction may be over already
            db.execute("ROLLBACK")
        raise
    return result


def _unavailable(path: Path, error: sqlite3.Error | OSError) -> IndexUnavailableError:
    if type(error) is not sqlite3.DatabaseError:  # the file is busy, full or not permitted, but not damaged
        return IndexUnavailableError(f"{path}: {error}")
    return IndexDamagedError(
        f"{path}: {error}; stop the control plane, remove this file with its -wal and -shm, and start it:"
        " the index is filled again from the store"
    )


def _put_aside(path: Path) -> Path:
    """Delete the SQLite log of the damaged index, then rename the index file.

    The main file of the damaged index is renamed last. If the renaming of the index files is interrupted, the
    next start detects the damage again.
    """
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    return path.replace(path.with_name(path.name + ".damaged"))


def _create_private(path: Path) -> None:
    """Create the index file with a private mode, which SQLite also gives to its own files (-wal, -shm).

    If the index file exists already, do not open it. If this process closed the index file, it would release
    the POSIX locks that SQLite has on the file. Without the locks, another process could remove the SQLite
    log that is in use.
    """
    make_directory(path.parent)
    try:
        os.close(make_file(path, os.O_RDWR))
    except FileExistsError:
        files = (path, *(path.with_name(path.name + each) for each in ("-wal", "-shm")))
        if problem := foreign(files):
            raise IndexUnavailableError(problem) from None


def _connect(path: Path, store: Path | None) -> sqlite3.Connection:
    db = sqlite3.connect(path, isolation_level=None)
    try:
        # FULL, because the store marks an event as indexed only when it would survive a loss of power.
        for pragma in (
            f"busy_timeout = {_BUSY_MILLISECONDS}",
            "page_size = 8192",
            "journal_mode = WAL",
            "synchronous = FULL",
            f"cache_size = -{_CACHE_KIBIBYTES}",
            f"journal_size_limit = {_WAL_BYTES}",
            "temp_store = MEMORY",
        ):
            db.execute(f"PRAGMA {pragma}")
        if store is not None:
            db.execute("ATTACH ? AS store", (str(store),))
            db.execute("PRAGMA query_only = ON")
    except BaseException:
        db.close()
        raise
    return db


def _newest_stored(store: Path) -> int:
    try:
        with contextlib.closing(sqlite3.connect(store, timeout=_BUSY_MILLISECONDS / 1000)) as db:
            ((position,),) = db.execute("SELECT position FROM last_position").fetchall()
    except sqlite3.Error as error:
        raise StoreError(f"{store}: {error}{what_to_do(error)}") from error
    return int(position)


@telling_damage()
def _prepare(db: sqlite3.Connection, store: Path) -> str:
    """Return the ID of the index in the file; each newly created index has a new ID.

    Create the tables of the index again if the file has no index of this format. If the index has events that
    the store lacks, as after the restore of a backup, also create the tables of the index again. `_prepare`
    reads the store's newest position while no other process can write the index. So the store has all events
    that are in the index when `_prepare` reads the store's newest position.
    """
    if _format(db) != FORMAT or _reached(db) > _newest_stored(store):
        if _format(db) not in (0, FORMAT):
            log.warning("the search index is from another release: rebuilding it from the store")
        _drop_all(db)
        for statement in SCHEMA:
            db.execute(statement)
        db.execute("CREATE TABLE incarnation (id TEXT NOT NULL)")
        db.execute("INSERT INTO incarnation VALUES (?)", (str(uuid.uuid4()),))
        db.execute(f"PRAGMA user_version = {FORMAT}")
    return _incarnation(db)


def _drop_all(db: sqlite3.Connection) -> None:
    """Drop the index tables, virtual tables first.

    When SQLite drops a virtual table, it also drops the table's internal tables.
    """
    order = "ORDER BY sql NOT LIKE 'CREATE VIRTUAL%'"
    names = db.execute(f"SELECT name FROM sqlite_schema WHERE type = 'table' {order}").fetchall()  # noqa: S608
    for (name,) in names:
        if not name.startswith("sqlite_"):
            db.execute(f"DROP TABLE IF EXISTS {name}")


class _AnotherIndexError(IndexMovedError):
    def __init__(self, incarnation: str, reached: int) -> None:
        super().__init__(
            f"the search index was created again and has events up to position {reached}", reached
        )
        self.incarnation = incarnation


@telling_damage()
def _require_known(db: sqlite3.Connection, known: str, after: int) -> None:
    """Raise IndexMovedError if another process rebuilt the index.

    Without `_require_known`, the writer would continue at the old index's position, and the new index would
    lack the earlier events.
    """
    if _format(db) != FORMAT:
        raise IndexUnavailableError("the search index belongs to another release of the control plane")
    incarnation, reached = _incarnation(db), _reached(db)
    if incarnation != known:
        raise _AnotherIndexError(incarnation, reached)
    if reached < after:
        raise IndexMovedError(
            f"the search index has events only up to position {reached}, and lacks events up to"
            f" position {after}",
            reached,
        )


def _format(db: sqlite3.Connection) -> int:
    ((found,),) = db.execute("PRAGMA user_version").fetchall()
    return int(found)


def _incarnation(db: sqlite3.Connection) -> str:
    ((incarnation,),) = db.execute("SELECT id FROM incarnation").fetchall()
    return str(incarnation)


def _reached(db: sqlite3.Connection) -> int:
    ((position,),) = db.execute("SELECT position FROM reached").fetchall()
    return int(position)


# -- reading ---------------------------------------------------------------------------------------


def _page(reader: Reader, query: SearchQuery, before: Key | None) -> SearchPage:
    limit = max(1, min(query.limit, MAX_LIMIT))
    bodies, found, left = newest(reader, query, limit + 1, before)
    texts: list[bytes] = []
    read = size = 0
    while read < min(limit, len(found)) and size < MAX_PAGE_BYTES:
        text = bodies.read(found[read][1])
        read += 1
        if text is not None:
            texts.append(text)
            size += len(text)
    if read < len(found):
        left = found[read - 1]
    return SearchPage(tuple(texts), None if left is None else write_cursor(left))
