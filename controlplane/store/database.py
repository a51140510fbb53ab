"""One SQLite file: one connection that writes, in groups, and one that reads.

Every write is a job that runs inside the writer's transaction. Jobs that wait together commit together: a
commit costs one fsync however many it holds. A job that fails is rolled back to where it began and fails
alone.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import aiosqlite

from controlplane.store.interface import StoreBusy, StoreError
from controlplane.store.migrate import migrate

T = TypeVar("T")
Job = Callable[[aiosqlite.Connection], Awaitable[T]]

# Long enough for a backup or a command beside a server, short enough that a request gets its 503.
_BUSY_TIMEOUT_SECONDS: Final = 20
# What waits for the disk waits in memory: at the largest batch this is some 600 MB, at the usual one 40 MB.
_MOST_WAITING: Final = 128
_MOST_TOGETHER: Final = 64


@dataclass(frozen=True, slots=True)
class _Waiting:
    job: Job[Any]
    done: asyncio.Future[Any]


class Database:
    def __init__(self, writer: aiosqlite.Connection, reader: aiosqlite.Connection) -> None:
        self._writer = writer
        self._reader = reader
        self._reading = asyncio.Lock()
        self._queue: asyncio.Queue[_Waiting] = asyncio.Queue(_MOST_WAITING)
        self._writing = asyncio.create_task(self._write_loop(), name="store writer")

    @classmethod
    async def open(cls, path: Path) -> Database:
        _make_private(path)
        await asyncio.to_thread(migrate, path)
        async with AsyncExitStack() as connections:  # an open one would keep the process from ending
            writer, reader = await _connect(path, connections), await _connect(path, connections)
            await reader.execute("PRAGMA query_only = ON")
            connections.pop_all()
        return cls(writer, reader)

    async def close(self) -> None:
        await self._queue.join()
        self._writing.cancel()
        await asyncio.gather(self._writing, return_exceptions=True)
        await self._writer.close()
        await self._reader.close()

    async def fetch(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """All rows of one statement."""
        return list(await self._reader.execute_fetchall(sql, parameters))  # type: ignore[arg-type]

    async def read(self, job: Job[T]) -> T:
        """Several statements over one state of the database."""
        async with self._reading:
            await self._reader.execute("BEGIN")
            try:
                return await job(self._reader)
            finally:
                await self._reader.execute("COMMIT")

    async def write(self, job: Job[T]) -> T:
        """Run `job` in a transaction; its result once it is on disk. StoreBusy if too much waits."""
        waiting = _Waiting(job, asyncio.get_running_loop().create_future())
        try:
            self._queue.put_nowait(waiting)
        except asyncio.QueueFull:
            raise StoreBusy("too many writes are waiting for the disk") from None
        result: T = await waiting.done
        return result

    async def _write_loop(self) -> None:
        while True:
            group = [await self._queue.get()]
            while len(group) < _MOST_TOGETHER and not self._queue.empty():
                group.append(self._queue.get_nowait())
            try:
                await self._commit(group)
            finally:
                for _ in group:
                    self._queue.task_done()

    async def _commit(self, group: list[_Waiting]) -> None:
        try:
            await self._writer.execute("BEGIN IMMEDIATE")
            wanted = [waiting for waiting in group if not waiting.done.cancelled()]
            results = [(waiting, await self._run(waiting.job)) for waiting in wanted]
            await self._writer.execute("COMMIT")
        except Exception as error:
            await self._roll_back()
            results = [(waiting, _as_store_error(error)) for waiting in group]
        for waiting, result in results:
            if waiting.done.cancelled():
                continue
            if isinstance(result, Exception):
                waiting.done.set_exception(result)
            else:
                waiting.done.set_result(result)

    async def _run(self, job: Job[Any]) -> Any:
        """The job's result, or the exception that it raised and after which nothing of it is left."""
        await self._writer.execute("SAVEPOINT job")
        try:
            result = await job(self._writer)
        except Exception as error:
            if (
                not self._writer.in_transaction
            ):  # SQLite has given up all of it (disk full): so does the group
                raise
            await self._writer.execute("ROLLBACK TO job")
            result = _as_store_error(error)
        await self._writer.execute("RELEASE job")
        return result

    async def _roll_back(self) -> None:
        with suppress(sqlite3.Error):  # what brought us here is the error to tell
            if self._writer.in_transaction:
                await self._writer.execute("ROLLBACK")


async def one_row(connection: aiosqlite.Connection, sql: str, parameters: Sequence[Any] = ()) -> Any:
    """The first row, None where there is none."""
    rows = list(await connection.execute_fetchall(sql, parameters))
    return rows[0] if rows else None


def _as_store_error(error: Exception) -> Exception:
    return StoreError(f"the store failed: {error}") if isinstance(error, sqlite3.Error) else error


def _make_private(path: Path) -> None:
    """SQLite gives its -wal and -shm files the mode of the database, so it is set before there is one.

    An existing file isn't opened: closing it again would drop this process's POSIX locks on it, and another
    process could then delete the log that our connections write.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        return
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror}") from None


async def _connect(path: Path, open_ones: AsyncExitStack) -> aiosqlite.Connection:
    connection = await open_ones.enter_async_context(
        aiosqlite.connect(path, isolation_level=None, timeout=_BUSY_TIMEOUT_SECONDS)
    )
    for pragma in ("synchronous = FULL", "foreign_keys = ON", "trusted_schema = OFF"):
        await connection.execute(f"PRAGMA {pragma}")
    return connection
