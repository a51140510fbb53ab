"""The interface between the store's tables and a database: jobs, locks, and SQL that all engines share.

A database job is a plain function that reads or writes the database. The database interface runs all
statements of a job in the same thread. A job that writes runs in one transaction: if the job fails, none of
its changes stay. A write job must name its locks, and reads the database only while it holds these locks. A
database engine that allows only one writer at a time needs no locks. A database engine with several writers
acquires a job's locks before the job runs, and holds these locks until the job's transaction ends.

SQL that runs on all database engines may use `?` or `?1` for parameters, `ON CONFLICT` with column names,
`CASE` and `RETURNING`. A boolean is a number in the database, so a condition is `enabled = 1`. `Dialect`
contains the SQL that differs between database engines. SQL that runs on all database
engines must not use JSON functions, row numbers or collations. To compare names without regard to letter
case, SQL that runs on all database engines calls the SQL function `lower`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeVar

from controlplane.store.interface import Peers, StoreError

T = TypeVar("T")
Row = tuple[Any, ...]
ALL: Final = (1 << 63) - 1  # LIMIT that includes all rows


class NotUnique(StoreError):
    """Error because a row cannot be added: a row with the same key exists."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """SQL conditions with a list as parameter, which differ between database engines."""

    among: str  # follows an expression: equal to one text of a parameter that `listed` made
    texts: str  # table with `key` (0, 1, 2, ...) and `value`: the texts of a parameter that `listed` made
    elements: str  # table with `value`: the texts of a JSON array; {} stands for the column that has it
    octets: str  # number of bytes of a text in UTF-8; {} stands for the text
    listed: Callable[[Sequence[str]], object]


class Connection(Protocol):
    """A database connection inside a transaction, on which a job runs its statements."""

    @property
    def dialect(self) -> Dialect: ...
    def rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[Row]: ...
    def row(self, sql: str, parameters: Sequence[Any] = ()) -> Any:
        """Return the first row of the result, or None if the result is empty."""

    def each(self, sql: str, parameters: Sequence[Any] = ()) -> AbstractContextManager[Iterable[Row]]:
        """Yield the rows of a statement one by one, within a `with`.

        If the caller stops early, the remaining rows are not read.
        """

    def run(self, sql: str, parameters: Sequence[Any] = ()) -> None: ...
    def add(self, sql: str, parameters: Sequence[Any] = ()) -> None:
        """Insert a row, or raise NotUnique if its key exists."""

    def count(self, sql: str, parameters: Sequence[Any] = ()) -> int:
        """Run the statement and return the number of rows that it changed."""

    def many(self, sql: str, parameters: Iterable[Sequence[Any]]) -> None:
        """Run the statement once for each row of parameters."""

    def first_position(self, count: int) -> int:
        """Return the first of `count` consecutive positions for new events.

        No two jobs get the same position.
        """

    def positions_used(self, last: int) -> None:
        """Record the last event position that this job used.

        Positions that this job reserved and did not use may be assigned again.
        """

    def steady_ms(self) -> int:
        """Return the time by which rate limits and time windows are measured, in Unix milliseconds."""

    def shared_ms(self) -> int:
        """Return the Unix time in ms by a clock that all processes that use the database share."""

    def damaged_text(self) -> AbstractContextManager[None]:
        """Return a context in which invalid UTF-8 from the database becomes escapes and raises no error.

        An event text with such escapes differs from the original text. So the text does not match its link of
        the audit chain, and a verification finds the damage.
        """


Job = Callable[[Connection], T]


class Lock(NamedTuple):
    """Name of a database lock, and the mode in which a job holds the lock.

    One write job holds the lock alone, or several jobs that only read the locked data share the lock.
    """

    name: str
    mode: Literal["alone", "shared"] = "alone"


Locks = tuple[Lock, ...]

NO_LOCKS: Final[Locks] = ()  # enough if no other job reads these rows before it writes
REGISTRY: Final[Locks] = (Lock("registry"),)  # also protects operators
READ_REGISTRY: Final[Locks] = (Lock("registry", "shared"),)


def of_org(org_id: str) -> Locks:
    """Return the lock on an organisation's audit chain and event blocks."""
    return (Lock(f"org {org_id}"),)


def of_proxy(proxy_id: str) -> Locks:
    """Return the lock on the data that a proxy has reported to the control plane."""
    return (Lock(f"proxy {proxy_id}"),)


class Database(Protocol):
    @property
    def dialect(self) -> Dialect: ...
    @property
    def is_shared(self) -> bool:
        """Return True if several control planes may use the database at the same time."""

    def join(self) -> Peers:
        """Join the group of control planes that share the database.

        Raise StoreError if the database does not allow several control planes.
        """

    async def fetch(self, sql: str, parameters: Sequence[Any] = ()) -> list[Row]:
        """Run one statement that reads, and return all of its rows."""

    async def glance(self, sql: str, parameters: Sequence[Any] = ()) -> list[Row]:
        """Run a statement that finds few rows by a key, and return the rows as fast as possible."""

    async def read(self, job: Job[T]) -> T:
        """Run a job whose statements all read the same state of the database."""

    async def write(self, job: Job[T], locks: Locks, size: int = 0) -> T:
        """Run the job, and return the job's result as soon as its changes are durable.

        Raise StoreBusy if too many jobs wait for the database. If a job may keep many bytes in memory, `size`
        is the number of these bytes. A job acquires its locks in the given order: the lock of an organisation
        before the lock of a proxy.
        """

    async def write_even_if_full(self, job: Job[T], locks: Locks) -> T:
        """Run a job that writes an operator's changes, or data for proxies, even if the disk is full."""

    async def settled(self) -> int:
        """Return a position below which the store will never add another event."""

    async def newest_position(self) -> int:
        """Return the position of the newest event that a reader of the database can see.

        If retention has purged the newest event, the returned position may be higher than the position of the
        last stored event.
        """

    async def close(self) -> None:
        """Wait for the queued jobs, then close all connections."""


def is_text(value: str) -> bool:
    """Return whether a row of the database can contain the text.

    The text must not contain a lone surrogate, which UTF-8 cannot encode, or NUL, which PostgreSQL cannot
    store.
    """
    if value.isascii():
        return "\0" not in value
    return not any(each == "\0" or "\ud800" <= each <= "\udfff" for each in value)
