"""The store's PostgreSQL database: threads with one connection each, and locks for several writers.

Each write job is one transaction. A write job first acquires its locks. Each statement of a job reads the
rows that are committed when the statement begins (READ COMMITTED). If two jobs could change the same rows,
the later job waits until the earlier job releases its lock. So a job that reads rows before it writes is as
correct as in a database with a single writer. Jobs of one process that need the same lock wait without using
a thread. So an organisation with many waiting jobs does not use up the threads that the jobs of other
organisations need.

A job runs again only if none of its changes can have been committed. If the database connection is lost
during the commit, the caller gets a StoreError. The proxy then sends the batch again, and the batch ID shows
whether the batch is stored already.

Positions of events come from a sequence, so a transaction may commit after another transaction with higher
positions. A reader of events in the order of positions must not read past the uncommitted positions. Every
transaction that takes event positions first acquires a shared lock (the positions lock), and holds the lock
until the transaction ends. A reader of events first reads the last position that the sequence gave out. Then
the reader reads the list of the transactions that hold the positions lock. When the reader of events reads
this list, each transaction that took one of these positions either holds the positions lock or has ended.
After all transactions in the list have ended, all events up to the last position are committed and visible to
new readers. This last position is called the settled position. A reader of events does not wait for
transactions that took no event positions, or for transactions in other databases of the server.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from hashlib import sha256
from typing import Any, Final, TypeVar

import psycopg
from psycopg import errors
from psycopg.pq import TransactionStatus
from psycopg.rows import TupleRow

from controlplane.database_url import NAME_AUTHORITY, address_of, is_authority_unknown
from controlplane.store.database import Job, Lock, Locks, Row
from controlplane.store.interface import NoStoreYet, StoreError
from controlplane.store.postgres_connection import (
    POSITIONS_LOCKS,
    POSTGRES,
    PostgresConnection,
    prepare,
)
from controlplane.store.postgres_migrate import bring_up, has_tables
from controlplane.store.postgres_peers import PostgresPeers
from controlplane.store.postgres_session import conninfo, setting_up
from controlplane.store.waiting import WaitingWrites

T = TypeVar("T")

_WRITERS: Final = 10  # threads, each with a connection
_READERS: Final = 6
_ATTEMPTS: Final = 3
_SETTLE_SECONDS: Final = 0.25  # a transaction that is about to end needs less time
_SETTLE_STEP_SECONDS: Final = 0.002
_SESSION: Final = {
    "lock_timeout": "20s",  # shorter than the time that a proxy waits for its response
    "idle_in_transaction_session_timeout": "60s",  # limit for the locks of a host that vanished
}
# Errors that end a transaction without a fault of its job. The next attempt may succeed.
_AGAIN: Final = (errors.SerializationFailure, errors.DeadlockDetected, errors.ReadOnlySqlTransaction)
_BEGIN_WRITE: Final = b"BEGIN ISOLATION LEVEL READ COMMITTED"
_BEGIN_READ: Final = b"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
_GIVEN: Final = b"SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM positions"
_HOLDERS: Final = (
    "SELECT virtualtransaction FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1"
    " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    " AND (CAST(classid AS bigint) << 32) | CAST(objid AS bigint) = $1"
)


def lock_number(name: str) -> int:
    return int.from_bytes(sha256(name.encode()).digest()[:8], "big", signed=True)


def connect(url: str) -> psycopg.Connection[TupleRow]:
    raw = psycopg.connect(conninfo(url), autocommit=True)
    try:
        _set_up(raw)
    except BaseException:
        raw.close()
        raise
    return raw


def _set_up(raw: psycopg.Connection[TupleRow]) -> None:
    prepare(raw)
    raw.execute(setting_up(**_SESSION))
    # Acknowledged data must be on disk, even if the role's own settings allow less.
    raw.execute(
        "SELECT set_config('synchronous_commit', 'on', false)"
        " WHERE current_setting('synchronous_commit') = 'off'"
    )


def bring_up_at(url: str, *, must_exist: bool = False) -> None:
    """Create or upgrade the tables of the store in the PostgreSQL database.

    Raise StoreError if the upgrade fails, or if the tables must exist and the database has no tables.
    """
    try:
        with connect(url) as raw:
            if must_exist and not has_tables(raw):
                raise NoStoreYet(address_of(url))
            bring_up(raw, address_of(url))
    except psycopg.Error as error:
        raise _as_store_error(address_of(url), error) from error


class ConnectionThreads:
    """Threads that each keep a connection to PostgreSQL, and replace the connection if it is lost."""

    def __init__(self, url: str, count: int, name: str) -> None:
        self._url = url
        self._executor = ThreadPoolExecutor(count, thread_name_prefix=name)
        self._own = threading.local()
        self._opened: set[psycopg.Connection[TupleRow]] = set()

    async def run(self, work: Callable[[psycopg.Connection[TupleRow]], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, self._with_connection, work)

    def _with_connection(self, work: Callable[[psycopg.Connection[TupleRow]], T]) -> T:
        for attempt in range(1, _ATTEMPTS + 1):
            raw = self._connection()
            try:
                return work(raw)
            except _AGAIN as error:
                if isinstance(error, errors.ReadOnlySqlTransaction):
                    raw.close()  # the server is a standby now, because another one has taken over
                if attempt == _ATTEMPTS:
                    raise
            except psycopg.OperationalError as error:
                if not _is_lost(raw, error) or attempt == _ATTEMPTS:
                    raise
                raw.close()
        raise AssertionError

    def _connection(self) -> psycopg.Connection[TupleRow]:
        raw: psycopg.Connection[TupleRow] | None = getattr(self._own, "raw", None)
        if raw is not None and not raw.closed:
            return raw
        new = self._own.raw = connect(self._url)
        self._opened = {each for each in self._opened if not each.closed} | {new}
        return new

    async def close(self) -> None:
        await asyncio.to_thread(self._executor.shutdown)
        for raw in self._opened:
            raw.close()


class _Uncertain(Exception):
    """Error because the connection was lost while a transaction was committed."""


class PostgresDatabase:
    dialect = POSTGRES
    is_shared = True

    def __init__(self, url: str) -> None:
        self._url = url
        self.address = address_of(url)
        self._writers = ConnectionThreads(url, _WRITERS, "store-writer")
        self._readers = ConnectionThreads(url, _READERS, "store-reader")
        self._waiting = WaitingWrites()
        self._idle = asyncio.Event()
        self._idle.set()
        self._turns: dict[str, tuple[asyncio.Lock, int]] = {}
        self._settling = _Settling()
        self._settled = 0
        self._look_turn = asyncio.Lock()
        self._looks_begun = self._looks_ended = 0

    @classmethod
    async def open(cls, url: str, *, must_exist: bool = False) -> PostgresDatabase:
        """Connect to the PostgreSQL database, and create or upgrade the store's tables if needed.

        Raise StoreError if the connection or the upgrade fails, or if the tables must exist and the database
        has no tables.
        """
        await asyncio.to_thread(bring_up_at, url, must_exist=must_exist)
        return cls(url)

    def join(self) -> PostgresPeers:
        return PostgresPeers(conninfo(self._url), lock_number("graphward leader"))

    async def close(self) -> None:
        try:
            await self._idle.wait()
        finally:
            await self._writers.close()
            await self._readers.close()

    async def fetch(self, sql: str, parameters: Sequence[Any] = ()) -> list[Row]:
        def job(raw: psycopg.Connection[TupleRow]) -> list[Row]:
            return PostgresConnection(raw).rows(sql, parameters)

        with self._naming_the_server():
            return await self._readers.run(job)

    async def glance(self, sql: str, parameters: Sequence[Any] = ()) -> list[Row]:
        return await self.fetch(sql, parameters)

    async def read(self, job: Job[T]) -> T:
        with self._naming_the_server():
            return await self._readers.run(partial(_read, job))

    async def write(self, job: Job[T], locks: Locks, size: int = 0) -> T:
        with self._waiting.one(size):
            self._idle.clear()
            try:
                async with self._turn(locks):
                    with self._naming_the_server():
                        return await self._writers.run(partial(_write, job, locks))
            finally:
                if self._waiting.count == 1:  # only this caller waits
                    self._idle.set()

    async def write_even_if_full(self, job: Job[T], locks: Locks) -> T:
        return await self.write(job, locks)

    async def settled(self) -> int:
        """Return the settled position: all events up to that position are committed and visible to readers.

        Only one thread at a time queries the database for the position up to which all events are committed.
        If callers wait while another thread reads this position, the callers share the result of the next
        read.
        """
        begun = self._looks_begun
        async with self._look_turn:
            if self._looks_ended <= begun:
                self._looks_begun += 1
                with self._naming_the_server():
                    self._settled = await self._readers.run(self._settling.position)
                self._looks_ended = self._looks_begun
            return self._settled

    async def newest_position(self) -> int:
        settled = await self.settled()
        rows = await self.fetch(
            "SELECT position + count - 1 FROM blocks WHERE position <= ? ORDER BY position DESC LIMIT 1",
            (settled,),
        )
        return int(rows[0][0]) if rows else settled

    @asynccontextmanager
    async def _turn(self, locks: Locks) -> AsyncIterator[None]:
        """Wait, without using a thread, for earlier jobs of this process that use one of the locks."""
        async with AsyncExitStack() as held:
            for lock in locks:
                if lock.mode == "alone":
                    await held.enter_async_context(self._turn_of(lock))
            yield

    @asynccontextmanager
    async def _turn_of(self, lock: Lock) -> AsyncIterator[None]:
        turn, users = self._turns.get(lock.name, (asyncio.Lock(), 0))
        self._turns[lock.name] = turn, users + 1
        try:
            async with turn:
                yield
        finally:
            users = self._turns[lock.name][1] - 1
            if users:
                self._turns[lock.name] = turn, users
            else:
                del self._turns[lock.name]

    @contextmanager
    def _naming_the_server(self) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            raise _as_store_error(self.address, error) from error
        except _Uncertain as error:
            raise StoreError(
                f"{self.address}: the connection was lost during a commit, which may have succeeded: {error}"
            ) from error


def _as_store_error(address: str, error: psycopg.Error) -> StoreError:
    why = reason(error)
    cure = NAME_AUTHORITY.format("the URL") if is_authority_unknown(why) else ""
    return StoreError(f"{address}: {why}; {cure}" if cure else f"{address}: {why}")


def reason(error: psycopg.Error) -> str:
    """Return the first line of a PostgreSQL error.

    The PostgreSQL driver writes no password into the first line of an error.
    """
    text = (error.diag.message_primary or str(error)).strip().partition("\n")[0]
    return text or type(error).__name__


def _read(job: Job[T], raw: psycopg.Connection[TupleRow]) -> T:
    raw.execute(_BEGIN_READ)
    try:
        return job(PostgresConnection(raw))
    finally:
        _end(raw)


def _write(job: Job[T], locks: Locks, raw: psycopg.Connection[TupleRow]) -> T:
    commits = False
    try:
        with raw.pipeline() as pipeline:
            raw.execute(_BEGIN_WRITE)
            connection = PostgresConnection(raw, pipeline)
            connection.lock([(lock_number(lock.name), lock.mode == "shared") for lock in locks])
            result = job(connection)
            commits = True
            raw.execute(b"COMMIT")
    except psycopg.OperationalError as error:
        if commits and _is_lost(raw, error):
            raise _Uncertain(str(error).strip().partition("\n")[0]) from error
        raise
    finally:
        _end(raw)
    return result


def _is_lost(raw: psycopg.Connection[TupleRow], error: psycopg.OperationalError) -> bool:
    """Return whether the error ended the connection to PostgreSQL.

    The server may send an error before it closes the connection.
    """
    return raw.closed or (error.sqlstate or "").startswith("57P")


def _end(raw: psycopg.Connection[TupleRow]) -> None:
    """End the transaction on the connection, and roll back its uncommitted changes."""
    if not raw.closed and raw.info.transaction_status != TransactionStatus.IDLE:
        try:
            raw.execute(b"ROLLBACK")
        except psycopg.Error:
            raw.close()  # closing it also ends the transaction


class _Settling:
    """Position up to which all audit events are committed, and open transactions that took event positions.

    A new reader of the database sees all audit events up to the position that the method `position` returns.
    """

    def __init__(self) -> None:
        self._position = 0
        self._given = 0
        self._holders: frozenset[str] = frozenset()  # the transactions with a position up to `_given`

    def position(self, raw: psycopg.Connection[TupleRow]) -> int:
        """Return the settled position: a new reader sees all events up to this position.

        Wait a moment for the transactions that have taken positions for events: such transactions end soon.
        """
        ends = time.monotonic() + _SETTLE_SECONDS
        wanted = self._look(raw)
        while self._position < wanted and time.monotonic() < ends:
            time.sleep(_SETTLE_STEP_SECONDS)
            self._look(raw)
        return self._position

    def _look(self, raw: psycopg.Connection[TupleRow]) -> int:
        """Return the last event position that any transaction had taken before `_look` was called."""
        ((given,),) = raw.execute(_GIVEN).fetchall()
        rows = psycopg.RawCursor(raw).execute(_HOLDERS, (POSITIONS_LOCKS[0],)).fetchall()
        holders = frozenset(holder for (holder,) in rows)
        if holders.isdisjoint(self._holders):
            self._position = max(self._position, self._given)
            self._given, self._holders = int(given), holders
        if not holders:
            self._position = max(self._position, int(given))
        return int(given)
