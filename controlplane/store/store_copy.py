"""Copy of a SQLite store into a PostgreSQL database. An interrupted copy of a store can be continued.

Large tables are copied first, in the order of their keys, in many transactions. The last key of a table in
the PostgreSQL database shows where an interrupted copy continues. The small tables are copied together in one
transaction. The table `store_copy` marks a database as unfinished, so that no control plane opens it. The
mark in `store_copy` also describes the state of the SQLite file when the copy began. An interrupted copy can
therefore continue only with the same, unchanged SQLite file.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import psycopg
from psycopg.rows import TupleRow

from controlplane.database_url import address_of
from controlplane.store.interface import StoreError
from controlplane.store.migrate import migrate
from controlplane.store.postgres_connection import numbered
from controlplane.store.postgres_database import connect, lock_number, reason
from controlplane.store.postgres_migrate import MARK, bring_up

_Target = psycopg.Connection[TupleRow]

# Tables that grow with the traffic, with the columns of their keys. No other table refers to them.
_LARGE: Final = {
    "blocks": ("position",),
    "event_digests": ("position",),
    "receipts": ("position",),
    "event_ids": ("org_id", "id"),
    "chain": ("org_id", "number"),
    "batches": ("proxy_id", "batch"),
    "heartbeats": ("proxy_id", "received_ms"),
    "metrics": ("proxy_id", "window_start"),
    "operator_log": ("position",),
}
# Tables whose rows are numbered by a sequence of PostgreSQL.
_COUNTED: Final = (
    ("operator_log", "position"),
    ("sign_in_attempts", "attempt_id"),
    ("notices", "position"),
)
# each engine maintains these tables by itself
_OWN: Final = {"schema_version", "registry_generation", "last_position"}
_ROWS_AT_ONCE: Final = {"blocks": 1_000}
_USUAL_ROWS_AT_ONCE: Final = 50_000
_COPYING: Final = lock_number("graphward store copy")
_KEY_CHECK: Final = "SELECT sealed FROM master_key_check"  # no two stores have the same
# Values of a file that do not change between two runs unless a server changes the file.
_STATE: Final = (
    "SELECT coalesce((SELECT hex(sealed) FROM master_key_check), '')"
    " || ' ' || (SELECT position FROM last_position) || ' ' || (SELECT count(*) FROM chain)"
    " || ' ' || coalesce((SELECT max(position) FROM operator_log), 0)"
    " || ' ' || coalesce((SELECT max(received_ms) FROM heartbeats), 0)"
)


@dataclass(frozen=True, slots=True)
class Progress:
    table: str
    rows: int
    of: int


Tell = Callable[[Progress], None]


def copy_rows(path: Path, url: str, tell: Tell) -> dict[str, int]:
    """Copy all rows that the PostgreSQL database lacks, and return the number of rows of each table.

    Raise StoreError if the SQLite file can't be read, or if the database has content that is not from this
    copy. The database stays marked as unfinished until `finish` is called.
    """
    migrate(path)
    with _naming(path, url), closing(_open(path)) as source, closing(connect(url)) as target:
        bring_up(target, address_of(url), is_copied=True)
        tables = _tables(source)
        _begin(source, target, tables)
        for table in (each for each in tables if each in _LARGE):
            _copy_large(source, target, table, tell)
        _copy_small(source, target, [each for each in tables if each not in _LARGE], tell)
        _set_sequences(source, target)
        return _compared(source, target, tables)


def finish(url: str) -> None:
    """Remove the mark of an unfinished copy, so that control planes can open the database."""
    with closing(connect(url)) as target:
        target.execute(f"DROP TABLE {MARK}".encode())


@contextmanager
def _naming(path: Path, url: str) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise StoreError(f"{path}: {error}") from error
    except psycopg.Error as error:
        raise StoreError(f"{address_of(url)}: {reason(error)}") from error


def _open(path: Path) -> sqlite3.Connection:
    """Open the SQLite file so that the copy reads one state of the file, independent of concurrent writes."""
    # A connection that may write removes the log next to the file when it closes.
    source = sqlite3.connect(f"file:{quote(str(path))}?mode=rw", uri=True, isolation_level=None)
    source.execute("PRAGMA query_only = 1")
    source.execute("BEGIN")
    return source


def _tables(source: sqlite3.Connection) -> list[str]:
    """Return the tables in the order of creation: each table comes after the tables that it refers to."""
    rows = source.execute("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY rowid").fetchall()
    return [name for (name,) in rows if name not in _OWN and not name.startswith("sqlite_")]


def _begin(source: sqlite3.Connection, target: _Target, tables: Sequence[str]) -> None:
    """Mark the database as unfinished, unless an earlier run of the copy has marked the database."""
    ((is_alone,),) = _fetch(target, "SELECT pg_try_advisory_lock(?)", (_COPYING,))
    if not is_alone:
        raise StoreError("another copy into this database is under way")
    ((state,),) = source.execute(_STATE).fetchall()
    if _fetch(target, "SELECT to_regclass(?)", (MARK,)) != [(None,)]:
        if _fetch(target, f"SELECT state FROM {MARK}") != [(state,)]:
            raise StoreError(
                "a copy was begun with another file, or the file was changed since: make an empty database,"
                " and copy while no control plane runs"
            )
        return
    for table in tables:
        if _fetch(target, f"SELECT 1 FROM {table} LIMIT 1"):
            if _key_check(source) and _key_check(source) == _fetch(target, _KEY_CHECK):
                raise StoreError("the database has this store already: the copy is complete")
            raise StoreError(f"the database has content already (in {table}): name an empty database")
    with target.transaction():
        target.execute(f"CREATE TABLE {MARK} (state text NOT NULL)".encode())
        _fetch(target, f"INSERT INTO {MARK} (state) VALUES (?) RETURNING 1", (state,))


def _key_check(source: sqlite3.Connection) -> list[tuple[bytes]]:
    return source.execute(_KEY_CHECK).fetchall()


def _fetch(target: _Target, sql: str, parameters: Sequence[Any] = ()) -> list[TupleRow]:
    return psycopg.RawCursor(target).execute(numbered(sql).encode(), parameters).fetchall()


def _copy_large(source: sqlite3.Connection, target: _Target, table: str, tell: Tell) -> None:
    key = ", ".join(_LARGE[table])
    descending = ", ".join(f"{each} DESC" for each in _LARGE[table])
    columns = _columns(source, table)
    places = [columns.index(each) for each in _LARGE[table]]
    (of,) = source.execute(f"SELECT count(*) FROM {table}").fetchone()
    ((copied,),) = _fetch(target, f"SELECT count(*) FROM {table}")
    last = _fetch(target, f"SELECT {key} FROM {table} ORDER BY {descending} LIMIT 1")
    after, marks = (last[0] if last else ()), ", ".join("?" * len(places))
    while True:
        tell(Progress(table, copied, of))
        behind = f"WHERE ({key}) > ({marks})" if after else ""
        rows = source.execute(
            f"SELECT {', '.join(columns)} FROM {table} {behind} ORDER BY {key} LIMIT ?",
            (*after, _ROWS_AT_ONCE.get(table, _USUAL_ROWS_AT_ONCE)),
        )
        with target.transaction():
            written, newest = _write(target, table, columns, rows)
        if newest is None:
            return
        copied += written
        after = tuple(newest[place] for place in places)


def _copy_small(source: sqlite3.Connection, target: _Target, tables: Sequence[str], tell: Tell) -> None:
    with target.transaction():
        for table in reversed(tables):
            target.execute(f"DELETE FROM {table}".encode())
        for table in tables:
            columns = _columns(source, table)
            rows = source.execute(f"SELECT {', '.join(columns)} FROM {table}")
            copied, _ = _write(target, table, columns, rows)
            tell(Progress(table, copied, copied))


def _columns(source: sqlite3.Connection, table: str) -> list[str]:
    rows = source.execute("SELECT name FROM pragma_table_info(?)", (table,)).fetchall()
    return [name for (name,) in rows]


def _write(
    target: _Target, table: str, columns: Sequence[str], rows: Iterator[tuple[Any, ...]]
) -> tuple[int, tuple[Any, ...] | None]:
    """Write the rows to the table. Return how many rows were written, and the last of these rows."""
    count, last = 0, None
    with target.cursor().copy(f"COPY {table} ({', '.join(columns)}) FROM STDIN".encode()) as copy:
        for row in rows:
            copy.write_row(row)
            count, last = count + 1, row
    return count, last


def _set_sequences(source: sqlite3.Connection, target: _Target) -> None:
    """Set the sequences of the target database.

    New rows and events then get higher numbers than the copied rows and events.
    """
    ((last,),) = source.execute("SELECT position FROM last_position").fetchall()
    _fetch(target, "SELECT setval('positions', ?, ? > 0)", (max(last, 1), last))
    for table, column in _COUNTED:
        sequence = f"pg_get_serial_sequence('{table}', '{column}')"
        _fetch(target, f"SELECT setval({sequence}, coalesce(max({column}), 0) + 1, false) FROM {table}")


def _compared(source: sqlite3.Connection, target: _Target, tables: Sequence[str]) -> dict[str, int]:
    counts = {}
    for table in tables:
        (wanted,) = source.execute(f"SELECT count(*) FROM {table}").fetchone()
        ((counts[table],),) = _fetch(target, f"SELECT count(*) FROM {table}")
        if counts[table] != wanted:
            raise StoreError(f"{table}: {counts[table]} of {wanted} rows were copied")
    return counts
