"""Database interface that runs all jobs in one open transaction, which commits their changes together."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from controlplane.store.database import Connection, Dialect, Job, Locks, Row
from controlplane.store.interface import Peers

T = TypeVar("T")


class InTransaction:
    """Runs each job at once on the connection of the transaction, which the caller begins and ends."""

    is_shared = False

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @property
    def dialect(self) -> Dialect:
        return self._connection.dialect

    def join(self) -> Peers:
        raise AssertionError("code in a database transaction must not join the other control planes")

    async def fetch(self, sql: str, parameters: Sequence[Any] = ()) -> list[Row]:
        return self._connection.rows(sql, parameters)

    async def glance(self, sql: str, parameters: Sequence[Any] = ()) -> list[Row]:
        return self._connection.rows(sql, parameters)

    async def read(self, job: Job[T]) -> T:
        return job(self._connection)

    async def write(self, job: Job[T], locks: Locks, size: int = 0) -> T:
        return job(self._connection)

    async def write_even_if_full(self, job: Job[T], locks: Locks) -> T:
        return job(self._connection)

    async def settled(self) -> int:
        raise AssertionError("a transaction can't read events")

    async def newest_position(self) -> int:
        raise AssertionError("a transaction can't read events")

    async def close(self) -> None:
        """Do nothing, because the caller ends the transaction."""


def finished(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end, without an event loop.

    The coroutine must not wait for anything, because a database transaction runs in a thread without an event
    loop.
    """
    try:
        work.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    work.close()
    raise AssertionError("code in a database transaction must not wait")
