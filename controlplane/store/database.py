"""The interface between the tables of the store and a database: jobs, locks, and SQL that engines share.

A job is a plain function that runs in a thread from its beginning to its end. A write job runs in one
transaction: if it fails, nothing of it stays. It names the locks under which it reads before it writes. An
engine with one writer needs no locks. Another engine takes them before the job runs and holds them until the
transaction ends.

The shared SQL has `?` or `?1` for parameters, `ON CONFLICT` with its columns, `CASE` and `RETURNING`. A
boolean is a number, so a condition is `enabled = 1`. `Dialect` has what engines spell differently. The
shared SQL has no functions of JSON, no row numbers and no collations: `lower` compares names that differ
only in case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeVar

from controlplane.store.interface import Peers, StoreError

T = TypeVar("T")
Row = tuple[Any, ...]
ALL: Final = (1 << 63) - 1  # LIMIT that leaves no row out


class NotUnique(StoreError):
    """A row with this key is there already."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """SQL for lists, which the engines spell in their own ways."""

    among: str  # after an expression: equal to one text of a parameter that `listed` made
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
        """Return the first row, or None if there is no row."""

    def each(self, sql: str, parameters: Sequence[Any] = ()) -> AbstractContextManager[Iterable[Row]]:
        """Give rows one by one, within a `with`; a caller that stops early leaves the others unread."""

    def run(self, sql: str, parameters: Sequence[Any] = ()) -> None: ...
    def add(self, sql: str, parameters: Sequence[Any] = ()) -> None:
        """Insert a row, or raise NotUnique if its key is taken."""

    def count(self, sql: str, parameters: Sequence[Any] = ()) -> int:
        """Run the statement and return the number of rows that it changed."""

    def many(self, sql: str, parameters: Iterable[Sequence[Any]]) -> None:
        """Run the statement once for each of the sequences."""

    def first_position(self, count: int) -> int:
        """Return the first of so many positions for new events, which nobody else gets."""

    def positions_used(self, last: int) -> None:
        """Note the last of the positions that events got; those after it may be given again."""

    def steady_ms(self) -> int:
        """Return the time that windows and limits are measured with, in Unix milliseconds."""

    def shared_ms(self) -> int:
        """Return the time of the one clock that all programs of this database have, in Unix milliseconds."""

    def damaged_text(self) -> AbstractContextManager[None]:
        """Read text that is not UTF-8 as another text, which fits no link of a chain, instead of failing."""


Job = Callable[[Connection], T]


class Lock(NamedTuple):
    """Name of something that a write job has to itself, or shares with other jobs that only read it."""

    name: str
    mode: Literal["alone", "shared"] = "alone"


Locks = tuple[Lock, ...]

NO_LOCKS: Final[Locks] = ()  # enough if no other job reads these rows before it writes
REGISTRY: Final[Locks] = (Lock("registry"),)  # operators too
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
        """Return whether several control planes may use it at once."""

    def join(self) -> Peers:
        """Join the control planes that share it, or raise StoreError if it can't be shared."""

    async def fetch(self, sql: str, parameters: Sequence[Any] = ()) -> list[Row]:
        """Return all rows of one statement that reads."""

    async def glance(self, sql: str, parameters: Sequence[Any] = ()) -> list[Row]:
        """Return the few rows that a statement finds by a key, in the least time that the engine needs."""

    async def read(self, job: Job[T]) -> T:
        """Run several statements over one state of the database."""

    async def write(self, job: Job[T], locks: Locks, size: int = 0) -> T:
        """Return the result of the job once it is durable. Raise StoreBusy if too many jobs wait.

        `size` is the number of bytes that the job keeps in memory, if it may be large.
        Several locks are taken in the order in which they are given: an organisation before a proxy.
        """

    async def write_even_if_full(self, job: Job[T], locks: Locks) -> T:
        """Write what operators do, and what proxies must receive of it, even if the disk is full."""

    async def settled(self) -> int:
        """Return a position up to which a reader sees every event that there will ever be."""

    async def newest_position(self) -> int:
        """Return the position of the newest event that a reader sees, or a later one if it is purged."""

    async def close(self) -> None:
        """Wait for the jobs that were given, then close all connections."""


def is_text(value: str) -> bool:
    """Return whether a row can hold the value: UTF-8 has no lone surrogates, and PostgreSQL no NUL."""
    if value.isascii():
        return "\0" not in value
    return not any(each == "\0" or "\ud800" <= each <= "\udfff" for each in value)
