"""A connection to SQLite in the form in which the store's jobs use it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from typing import Any, Final

import msgspec

from controlplane.clock import Clock
from controlplane.store.database import Dialect, NotUnique, Row


def _listed(values: Sequence[str]) -> str:
    return msgspec.json.encode(values).decode()


SQLITE: Final = Dialect(
    among="IN (SELECT value FROM json_each(?))",
    texts="json_each(?)",
    elements="json_each({})",
    octets="length(CAST({} AS BLOB))",
    listed=_listed,
)


class SqliteConnection:
    dialect = SQLITE

    def __init__(self, raw: sqlite3.Connection, clock: Clock) -> None:
        self.raw = raw
        self.steady_ms = clock.steady_ms
        self.shared_ms = clock.wall_ms  # only programs of this host open the file
        # newest position that this transaction gave out; None: it gave out none
        self.position: int | None = None

    def rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[Row]:
        return self.raw.execute(sql, parameters).fetchall()

    def row(self, sql: str, parameters: Sequence[Any] = ()) -> Any:
        return self.raw.execute(sql, parameters).fetchone()

    def each(self, sql: str, parameters: Sequence[Any] = ()) -> AbstractContextManager[Iterable[Row]]:
        return closing(self.raw.execute(sql, parameters))

    def run(self, sql: str, parameters: Sequence[Any] = ()) -> None:
        self.raw.execute(sql, parameters)

    def add(self, sql: str, parameters: Sequence[Any] = ()) -> None:
        try:
            self.raw.execute(sql, parameters)
        except sqlite3.IntegrityError as error:
            if error.sqlite_errorcode == sqlite3.SQLITE_CONSTRAINT_UNIQUE:
                raise NotUnique(str(error)) from None
            raise

    def count(self, sql: str, parameters: Sequence[Any] = ()) -> int:
        return self.raw.execute(sql, parameters).rowcount

    def many(self, sql: str, parameters: Iterable[Sequence[Any]]) -> None:
        self.raw.executemany(sql, parameters)

    def first_position(self, count: int) -> int:
        if self.position is None:
            self.position = int(self.row("SELECT position FROM last_position")[0])
        return self.position + 1

    def positions_used(self, last: int) -> None:
        self.position = last

    def begin(self) -> None:
        self.position = None
        self.raw.execute("BEGIN IMMEDIATE")

    def commit(self) -> None:
        if self.position is not None:
            self.run("UPDATE last_position SET position = ?", (self.position,))
        self.raw.execute("COMMIT")

    @contextmanager
    def damaged_text(self) -> Iterator[None]:
        """Decode text, and write each byte that is not valid UTF-8 as an escape.

        A text with an escaped byte does not match any link of the audit chain.

        If invalid bytes were not escaped, SQLite would raise an error, and a verification of the audit chain
        could not find the changed byte.
        """
        self.raw.text_factory = lambda text: text.decode("utf-8", "backslashreplace")
        try:
            yield
        finally:
            self.raw.text_factory = str
