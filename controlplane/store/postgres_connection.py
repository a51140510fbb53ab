"""A connection to PostgreSQL in the form in which the store's jobs use it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Final, cast

import psycopg
from psycopg.errors import UniqueViolation
from psycopg.rows import TupleRow
from psycopg.types.numeric import Int8BinaryDumper, Int8Dumper, NumericBinaryLoader
from psycopg.types.string import BytesBinaryDumper, StrDumper

from controlplane.store.database import Dialect, NotUnique, Row

# Numbers of locks. Transactions that took positions share the first. They hold the second while they take
# positions.
POSITIONS_LOCKS: Final = (0x67777000, 0x67777001)
_PARAMETER: Final = re.compile(r"\?(\d*)")
_INSERTED: Final = re.compile(r"(?<=VALUES )\([?, ]+\)$")
_INSERTED_AT_ONCE: Final = 50  # rows of one statement
_ROWS_AT_ONCE: Final = 64
_NOW: Final = "CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint)"

POSTGRES: Final = Dialect(
    among="= ANY (?)",
    texts="(SELECT number - 1 AS key, value FROM unnest(CAST(? AS text[]))"
    " WITH ORDINALITY AS each (value, number)) AS each",
    elements="json_array_elements_text(CAST({} AS json)) AS each (value)",
    octets="octet_length({})",
    listed=list,
)


@lru_cache(maxsize=1024)
def numbered(sql: str) -> str:
    """Return the SQL statement with PostgreSQL's parameter markers, such as `$1` for `?1`.

    A `?` without a number gets the highest parameter number to its left plus one: `?2 = ?` becomes `$2 = $3`.
    """
    highest = 0

    def number(found: re.Match[str]) -> str:
        nonlocal highest
        this = int(found[1] or highest + 1)
        highest = max(highest, this)
        return f"${this}"

    return _PARAMETER.sub(number, sql)


class _BoolDumper(Int8BinaryDumper):
    """Converter for PostgreSQL that sends a boolean as a number. In SQLite, booleans are numbers too."""

    def dump(self, obj: object) -> bytes:
        return bytes(super().dump(int(cast(bool, obj))) or b"")


class _TextDumper(StrDumper):
    """Converter that sends a text to PostgreSQL, with a mark in place of each NUL character.

    The names and IDs that the store keeps never contain a NUL character.
    """

    def dump(self, obj: str) -> Any:
        return super().dump(obj.replace("\0", "\ufffd") if "\0" in obj else obj)


class _WholeNumberLoader(NumericBinaryLoader):
    """Converter for PostgreSQL that reads a sum of whole numbers as an int."""

    def load(self, data: Any) -> int:  # type: ignore[override]
        return int(super().load(data))


def prepare(raw: psycopg.Connection[TupleRow]) -> None:
    """Make conversions between Python and PostgreSQL values work like those of SQLite values."""
    for kind, dumper in (
        (int, Int8Dumper),  # a list goes as text
        (int, Int8BinaryDumper),
        (bool, _BoolDumper),
        (str, _TextDumper),
        (bytes, BytesBinaryDumper),
    ):
        raw.adapters.register_dumper(kind, dumper)
    raw.adapters.register_loader("numeric", _WholeNumberLoader)


class PostgresConnection:
    """A PostgreSQL connection within one transaction, in the form in which a job of the store uses it.

    A transaction that writes sends its SQL statements in a pipeline. The methods `run` and `many` of the
    connection do not wait for the result of a statement. A job waits only when it needs a result or commits
    the transaction. The transaction that stores a batch of events therefore needs few round trips to the
    database server.
    """

    dialect = POSTGRES

    def __init__(self, raw: psycopg.Connection[TupleRow], pipeline: psycopg.Pipeline | None = None) -> None:
        self.raw = raw
        self._pipeline = pipeline
        self._now: psycopg.RawCursor[TupleRow] | None = None
        self._cursors = 0

    def lock(self, numbers: Sequence[tuple[int, bool]]) -> None:
        """Acquire database locks in the order of `numbers`.

        The boolean of a lock is True if the lock is acquired in shared mode.

        After the SQL statement has acquired the locks, it reads the time of the database.
        """
        taken = (f"pg_advisory_xact_lock{'_shared' if shared else ''}(?)" for _, shared in numbers)
        self._now = self._execute(
            f"SELECT {', '.join((*taken, _NOW))}",
            [number for number, _ in numbers],
        )

    def rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[Row]:
        return self._execute(sql, parameters).fetchall()

    def row(self, sql: str, parameters: Sequence[Any] = ()) -> Any:
        return self._execute(sql, parameters).fetchone()

    @contextmanager
    def each(self, sql: str, parameters: Sequence[Any] = ()) -> Iterator[Iterable[Row]]:
        self._cursors += 1
        cursor = psycopg.RawServerCursor(self.raw, f"each{self._cursors}")
        try:
            cursor.itersize = _ROWS_AT_ONCE
            cursor.execute(numbered(sql).encode(), parameters, binary=True)
            yield cursor
        finally:
            _close(cursor)

    def run(self, sql: str, parameters: Sequence[Any] = ()) -> None:
        self._execute(sql, parameters)

    def add(self, sql: str, parameters: Sequence[Any] = ()) -> None:
        try:
            self.count(sql, parameters)
        except UniqueViolation as error:
            raise NotUnique(str(error)) from None

    def count(self, sql: str, parameters: Sequence[Any] = ()) -> int:
        cursor = self._execute(sql, parameters)
        if self._pipeline is not None:
            self._pipeline.sync()
        return cursor.rowcount

    def many(self, sql: str, parameters: Iterable[Sequence[Any]]) -> None:
        rows = list(parameters)
        inserted = _INSERTED.search(sql)
        at_once = _INSERTED_AT_ONCE if inserted else 1
        for first in range(0, len(rows), at_once):
            some = rows[first : first + at_once]
            further = f", {inserted[0]}" * (len(some) - 1) if inserted else ""
            self._execute(f"{sql}{further}", [value for row in some for value in row])

    def first_position(self, count: int) -> int:
        return int(self.row("SELECT take_positions(?, ?, ?)", (count, *POSITIONS_LOCKS))[0])

    def positions_used(self, last: int) -> None:
        """Do nothing, because the sequence in PostgreSQL never returns the same position twice."""

    def steady_ms(self) -> int:
        now, self._now = self._now or self._execute(f"SELECT {_NOW}", ()), None
        return int((now.fetchone() or (0,))[-1])

    def shared_ms(self) -> int:
        return self.steady_ms()

    @contextmanager
    def damaged_text(self) -> Iterator[None]:
        """Do nothing, because PostgreSQL refuses to store text that is not UTF-8."""
        yield

    def _execute(self, sql: str, parameters: Sequence[Any]) -> psycopg.RawCursor[TupleRow]:
        return psycopg.RawCursor(self.raw).execute(numbered(sql).encode(), parameters, binary=True)


def _close(cursor: psycopg.RawServerCursor[TupleRow]) -> None:
    """Close a cursor of the server, even if its connection was lost.

    psycopg leaves the cursor open if `CLOSE` fails. If the connection is lost, a second call of the cursor's
    `close` only marks the cursor as closed.
    """
    try:
        cursor.close()
    except psycopg.Error:
        cursor.close()
        raise
