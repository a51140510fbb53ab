"""The store's SQLite file.

One connection writes groups of jobs, and two connections read. Each connection to the SQLite file has its own
thread.

A look-up of a row by its key takes some microseconds. A change to another thread and back takes ten times as
long as a look-up by a key. For look-ups by keys, the event loop therefore has its own database connection. A
single statement that does not look up a row by its key reads through the library aiosqlite. A job is a
function that runs in one thread, so all its SQL statements can read one state of the database. A job
therefore causes few changes of threads, and no other job runs between the statements of the job.

Every write is a job that runs inside the writer's transaction. Jobs that wait at the same time share one
commit, because each commit costs an fsync and a change of threads. If a job of the group fails, the store
rolls back only the changes of this job.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import aiosqlite

from controlplane.clock import Clock
from controlplane.store.alone import Alone
from controlplane.store.database import ALL, Job, Locks, Row
from controlplane.store.interface import StoreError
from controlplane.store.migrate import migrate, what_to_do
from controlplane.store.opening import open_in_thread
from controlplane.store.reserve import Reserve
from controlplane.store.sqlite_connection import SQLITE, SqliteConnection
from controlplane.store.waiting import WaitingWrites
from proxy.process.own_process import foreign, foreign_above, make_directory, make_file

T = TypeVar("T")

# Long enough for a backup or a command next to a server, short enough that a request gets its 503.
_BUSY_TIMEOUT_SECONDS: Final = 20
# Jobs of one commit. With more of them, the first would wait too long for its response.
_MOST_TOGETHER: Final = 256
_MOST_BYTES_TOGETHER: Final = 4 * 1024 * 1024
# While several jobs arrive at a time, the next group is collected for this time, because a commit costs the
# same for many jobs.
_GATHERING_SECONDS: Final = 0.01
_PRAGMAS: Final = ("PRAGMA synchronous = FULL", "PRAGMA foreign_keys = ON", "PRAGMA trusted_schema = OFF")
_DISK_FULL: Final = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE}
_ROWS_AT_ONCE: Final = 64  # rows that a cursor fetches in one change of threads
_READ_ONLY: Final = "PRAGMA query_only = ON"
_NEVER_WAIT: Final = "PRAGMA busy_timeout = 0"  # a wait would block the event loop


@dataclass(frozen=True, slots=True)
class _Waiting:
    job: Job[Any]
    even_if_full: bool
    size: int
    done: asyncio.Future[Any]


@dataclass(frozen=True, slots=True)
class _Opened:
    writer: SqliteConnection
    reader: SqliteConnection
    statements: sqlite3.Connection
    glances: sqlite3.Connection


class SqliteDatabase:
    dialect = SQLITE
    is_shared = False

    def __init__(
        self,
        path: Path,
        writer: SqliteConnection,
        reader: SqliteConnection,
        statements: aiosqlite.Connection,
        glances: sqlite3.Connection,
        write_thread: ThreadPoolExecutor,
    ) -> None:
        self._path = path
        self._writer = writer
        self._reader = reader
        self._statements = statements
        self._glances = glances
        self._reserve = Reserve(path)
        self._write_thread = write_thread
        self._read_thread = ThreadPoolExecutor(1, thread_name_prefix="store-reader")
        self._queue: asyncio.Queue[_Waiting] = asyncio.Queue()
        self._waiting = WaitingWrites()
        self._writing = asyncio.create_task(self._write_loop(), name="store writer")

    @classmethod
    async def open(cls, path: Path, clock: Clock) -> SqliteDatabase:
        thread = ThreadPoolExecutor(1, thread_name_prefix="store-writer")
        opened = await open_in_thread(thread, partial(_open, path, clock), _close)
        statements = aiosqlite.Connection(lambda: opened.statements, iter_chunk_size=_ROWS_AT_ONCE)
        try:
            await statements
        except BaseException:
            thread.submit(_close, opened)
            thread.shutdown(wait=False)
            raise
        return cls(path, opened.writer, opened.reader, statements, opened.glances, thread)

    def join(self) -> Alone:
        return Alone(self._path)

    async def close(self) -> None:
        """Wait for the queued jobs, then close all connections to the file.

        Close the connections even if the caller is cancelled during the wait.
        """
        try:
            await self._queue.join()
        finally:
            self._writing.cancel()
            self._write_thread.shutdown()
            self._read_thread.shutdown()
            self._writer.raw.close()
            self._reader.raw.close()
            self._glances.close()
            await self._statements.close()
            await asyncio.gather(self._writing, return_exceptions=True)

    async def fetch(self, sql: str, parameters: Sequence[Any] = ()) -> list[Row]:
        """Run one SQL statement, and return all of its rows."""
        with self._naming_the_file():
            return [tuple(row) for row in await self._statements.execute_fetchall(sql, parameters)]

    async def glance(self, sql: str, parameters: Sequence[Any] = ()) -> list[Row]:
        try:
            return self._glances.execute(sql, parameters).fetchall()
        except sqlite3.Error:  # another process has the file locked for a moment, or the file fails
            return await self.fetch(sql, parameters)

    async def read(self, job: Job[T]) -> T:
        """Run a job of several statements that all read the same state of the database."""
        loop = asyncio.get_running_loop()
        with self._naming_the_file():
            return await loop.run_in_executor(self._read_thread, _read, self._reader, job)

    async def write(self, job: Job[T], locks: Locks, size: int = 0) -> T:
        return await self._write(job, size, even_if_full=False)

    async def write_even_if_full(self, job: Job[T], locks: Locks) -> T:
        return await self._write(job, 0, even_if_full=True)

    async def settled(self) -> int:
        return ALL  # the writer gives out positions in the order of its commits

    async def newest_position(self) -> int:
        ((position,),) = await self.fetch("SELECT position FROM last_position")
        return int(position)

    async def _write(self, job: Job[T], size: int, *, even_if_full: bool) -> T:
        with self._waiting.one(size), self._naming_the_file():
            waiting = _Waiting(job, even_if_full, size, asyncio.get_running_loop().create_future())
            self._queue.put_nowait(waiting)
            result: T = await waiting.done
        return result

    @contextmanager
    def _naming_the_file(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise StoreError(f"{self._path}: {error}{what_to_do(error)}") from error

    async def _write_loop(self) -> None:
        loop = asyncio.get_running_loop()
        had_company = False
        while True:
            group = [await self._queue.get()]
            if had_company and self._queue.qsize() < _MOST_TOGETHER:
                await asyncio.sleep(_GATHERING_SECONDS)
            size = group[0].size
            while len(group) < _MOST_TOGETHER and size < _MOST_BYTES_TOGETHER and not self._queue.empty():
                group.append(self._queue.get_nowait())
                size += group[-1].size
            had_company = len(group) > 1
            wanted = [waiting for waiting in group if not waiting.done.cancelled()]
            try:
                _response(wanted, await loop.run_in_executor(self._write_thread, self._commit, wanted))
            finally:
                for _ in group:
                    self._queue.task_done()

    def _commit(self, group: Sequence[_Waiting]) -> list[Any]:
        """Commit a group of jobs together, and return the result of each job.

        If the disk is full, the store runs again only the jobs that must succeed even on a full disk.
        """
        results = _commit(self._writer, [waiting.job for waiting in group])
        if not any(map(_is_full, results)):
            self._reserve.fill()
            return results
        again = [at for at, waiting in enumerate(group) if waiting.even_if_full and _is_full(results[at])]
        while again:
            for at, result in zip(again, _commit(self._writer, [group[at].job for at in again]), strict=True):
                results[at] = result
            again = [at for at in again if _is_full(results[at])]
            if again and not self._reserve.release():
                break
        return results


def _response(group: Iterable[_Waiting], results: Iterable[Any]) -> None:
    for waiting, result in zip(group, results, strict=True):
        if waiting.done.cancelled():
            continue
        if isinstance(result, Exception):
            waiting.done.set_exception(result)
        else:
            waiting.done.set_result(result)


def _read(connection: SqliteConnection, job: Job[T]) -> T:
    connection.raw.execute("BEGIN")
    try:
        return job(connection)
    finally:
        connection.raw.execute("COMMIT")


def _commit(connection: SqliteConnection, jobs: Sequence[Job[Any]]) -> list[Any]:
    """Return the outcome of each job: the job's result, or the exception that rolled the job back.

    The first attempt runs all jobs in one transaction and sets no savepoints, because jobs seldom fail.
    Without savepoints, a commit takes a tenth less time. If a job of the group fails, the store runs all jobs
    of the group again, each job with its own savepoint.
    """
    results = _attempt(connection, jobs, _run_bare)
    if len(jobs) > 1 and isinstance(results, Exception):
        results = _attempt(connection, jobs, _run)
    return [results] * len(jobs) if isinstance(results, Exception) else results


def _attempt(
    connection: SqliteConnection, jobs: Sequence[Job[Any]], run: Callable[[SqliteConnection, Job[Any]], Any]
) -> list[Any] | Exception:
    """Return the outcomes of jobs in one transaction, or the exception that ended the transaction."""
    try:
        connection.begin()
        results = [run(connection, job) for job in jobs]
        connection.commit()
    except Exception as error:
        with suppress(sqlite3.Error):  # the first error is the one to report
            if connection.raw.in_transaction:
                connection.raw.execute("ROLLBACK")
        return error
    return results


def _run_bare(connection: SqliteConnection, job: Job[Any]) -> Any:
    return job(connection)


def _run(connection: SqliteConnection, job: Job[Any]) -> Any:
    raw, position = connection.raw, connection.position
    raw.execute("SAVEPOINT job")
    try:
        result = job(connection)
    except Exception as error:
        # SQLite has rolled back the whole transaction (disk full), so the group fails
        if not raw.in_transaction:
            raise
        raw.execute("ROLLBACK TO job")
        connection.position = position
        result = error
    raw.execute("RELEASE job")
    return result


def _is_full(result: object) -> bool:
    return isinstance(result, sqlite3.Error) and getattr(result, "sqlite_errorcode", None) in _DISK_FULL


def _make_private(path: Path) -> None:
    """Make the SQLite file with a private file mode, which SQLite also gives to its -wal and -shm files.

    The file gets its private mode before SQLite makes the -wal and -shm files, so these files are private
    too. If the SQLite file exists, this function does not open the file. To close the SQLite file would
    release all POSIX locks that this process has on the file. If this process lost the locks, another process
    could delete the SQLite log that the connections write.
    """
    try:
        make_directory(path.parent)
        os.close(make_file(path, os.O_RDWR))
    except FileExistsError:
        beside = [path.with_name(path.name + each) for each in ("-wal", "-shm")]
        if problem := foreign([path, *beside]):
            raise StoreError(problem) from None
    except OSError as error:
        owner = foreign_above(path, os.W_OK | os.X_OK)  # a file can be made in a directory that can't be read
        raise StoreError(f"{path}: {error.strerror}{'' if owner is None else f'; {owner}'}") from None


def _open(path: Path, clock: Clock) -> _Opened:
    _make_private(path)
    migrate(path)
    with ExitStack() as undo:
        writer, reader, statements, glances = (undo.enter_context(closing(_connect(path))) for _ in range(4))
        for each in (reader, statements, glances):
            each.execute(_READ_ONLY)
        glances.execute(_NEVER_WAIT)
        undo.pop_all()
    jobs = SqliteConnection(writer, clock), SqliteConnection(reader, clock)
    return _Opened(*jobs, statements, glances)


def _close(opened: _Opened) -> None:
    for each in (opened.writer.raw, opened.reader.raw, opened.statements, opened.glances):
        each.close()


def _connect(path: Path) -> sqlite3.Connection:
    # Opened in one thread and used in another, never in two at once.
    connection = sqlite3.connect(
        path, isolation_level=None, timeout=_BUSY_TIMEOUT_SECONDS, check_same_thread=False
    )
    for pragma in _PRAGMAS:
        connection.execute(pragma)
    return connection
