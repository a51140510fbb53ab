"""The interface between the tables of the store and a database: jobs, locks, and SQL that engines share.

A job is a plain function that runs in a thread from its beginning to its end. A write job runs in one
transaction: if the job fails, none of its changes stay. It names the locks under which it reads before it
writes. An engine with one writer needs no locks. Other engines acquire the locks before the job runs and hold
them until the transaction ends.

The shared SQL has `?` or `?1` for parameters, `ON CONFLICT` with its columns, `CASE` and `RETURNING`. A
boolean is a number, so a condition is `enabled = 1`. `Dialect` has the spellings that differ between engines.
The shared SQL has no functions of JSON, no row numbers and no collations. It compares names that differ only
in case with `lower`.
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
    """A row with this key exists already."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """SQL for lists, which the engines spell differently."""

    among: str  # follows an expression: equal to one text of a parameter that `listed` made
    texts: str  # table with `key` (0, 1, 2, ...) and `value`: the texts of a parameter that `listed` made
    elements: str  # table with `value`: the texts of a JSON array; {} stands for the column that has it
    octets: str  # number of bytes of a text in UTF-8; {} stands for the text
    listed: Callable[[Sequence[str]], object]


class Connection(Protocol):
    """A transaction, as a job sees it."""

    @property
    def dialect(self) -> Dialect: ...
    def rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[Row]: ...
    def row(self, sql: str, parameters: Sequence[Any] = ()) -> Any:
        """Return the first row, or None without one."""

    def each(self, sql: str, parameters: Sequence[Any] = ()) -> AbstractContextManager[Iterable[Row]]:
        """Yield rows one by one, within a `with`.

        A caller that stops early leaves the other rows unread.
        """

    def run(self, sql: str, parameters: Sequence[Any] = ()) -> None: ...
    def add(self, sql: str, parameters: Sequence[Any] = ()) -> None:
        """Insert a row, or raise NotUnique if its key exists."""

    def count(self, sql: str, parameters: Sequence[Any] = ()) -> int:
        """Run the statement and return the number of rows that it changed."""

    def many(self, sql: str, parameters: Iterable[Sequence[Any]]) -> None:
        """Run the statement once for each of the sequences."""

    def first_position(self, count: int) -> int:
        """Return the first of so many positions for new events, which no other job gets."""

    def positions_used(self, last: int) -> None:
        """Store the last position that events got.

        Later positions may be assigned again.
        """

    def steady_ms(self) -> int:
        """Return the time by which windows and limits are measured, in Unix milliseconds."""

    def shared_ms(self) -> int:
        """Return the time of the one clock that all programs of this database share, in Unix milliseconds."""

    def damaged_text(self) -> AbstractContextManager[None]:
        """Read text that is not UTF-8 as another text instead of failing.

        That text matches no link of a chain.
        """


Job = Callable[[Connection], T]


class Lock(NamedTuple):
    """Name of a lock that a write job holds alone, or shares with other jobs that only read."""

    name: str
    mode: Literal["alone", "shared"] = "alone"


Locks = tuple[Lock, ...]

NO_LOCKS: Final[Locks] = ()  # enough if no other job reads these rows before it writes
REGISTRY: Final[Locks] = (Lock("registry"),)  # also protects operators
READ_REGISTRY: Final[Locks] = (Lock("registry", "shared"),)


def of_org(org_id: str) -> Locks:
    """Lock the chain of an organisation and its blocks of events."""
    return (Lock(f"org {org_id}"),)


def of_proxy(proxy_id: str) -> Locks:
    """Lock what a proxy reported."""
    return (Lock(f"proxy {proxy_id}"),)


class Database(Protocol):
    @property
    def dialect(self) -> Dialect: ...
    @property
    def is_shared(self) -> bool:
        """Return whether several control planes may use the database at once."""

    def join(self) -> Peers:
        """Join the control planes that share the database.

        Raise StoreError if it can't be shared.
        """

    async def fetch(self, sql: str, parameters: Sequence[Any] = ()) -> list[Row]:
        """Return all rows of one statement that reads."""

    async def glance(self, sql: str, parameters: Sequence[Any] = ()) -> list[Row]:
        """Return the few rows that a statement finds by a key, as fast as the engine can."""

    async def read(self, job: Job[T]) -> T:
        """Run several statements on one state of the database."""

    async def write(self, job: Job[T], locks: Locks, size: int = 0) -> T:
        """Return the result of the job once it is durable.

        Raise StoreBusy if too many jobs wait. `size` is the number of bytes that the job keeps in memory, if
        it may be large. Several locks are acquired in the given order: an organisation before a proxy.
        """

    async def write_even_if_full(self, job: Job[T], locks: Locks) -> T:
        """Write changes of operators, or data that proxies must receive, even if the disk is full."""

    async def settled(self) -> int:
        """Return a position below which no event can be added any more."""

    async def newest_position(self) -> int:
        """Return the position of the newest event that a reader sees.

        If that event is purged, the result may be a later position.
        """

    async def close(self) -> None:
        """Wait for the queued jobs, then close all connections."""


def is_text(value: str) -> bool:
    """Return whether a row can hold the value.

    UTF-8 has no lone surrogates, and PostgreSQL no NUL.
    """
    if value.isascii():
        return "\0" not in value
    return not any(each == "\0" or "\ud800" <= each <= "\udfff" for each in value)
