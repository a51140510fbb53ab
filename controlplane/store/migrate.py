"""Numbered migrations of the store. Each migration runs once, in order, in its own transaction.

While control planes are upgraded one by one, a control plane of the previous release uses the new database
schema. So a migration only adds tables, columns with a default, or indexes. To remove a column or table, one
release stops using it, and only the next release removes it. If a program that was built for schema version
18 can still use the database after a migration, the migration's file name says so: `0019_what.from_18.sql`.
The database stores the names of its migrations. A program refuses a database whose schema version is newer
than its own. It accepts the database only if the file names of all newer migrations allow this version.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Final

from controlplane.store.interface import StoreError

_RUNS_FROM: Final = re.compile(r"\.from_(\d+)\.sql")


class DatabaseTooNew(StoreError):
    """Error because a later release of Graphward wrote the store."""


def migrate(path: Path) -> None:
    """Upgrade the SQLite file from any earlier release to this release.

    A new SQLite file gets all tables of this release.
    """
    if path.is_dir():  # a container makes a directory for a mounted file that is missing
        raise StoreError(f"{path} is a directory: Store.Path must name a file")
    connection = sqlite3.connect(path, timeout=30, isolation_level=None)
    try:
        applied = _applied(connection, path)  # read before the first byte of the file is changed
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        for number, name, script in _migrations():
            if number not in applied:
                _apply(connection, number, name, script)
    except sqlite3.DatabaseError as error:
        raise StoreError(f"{path}: {error}{what_to_do(error)}") from error
    finally:
        connection.close()


def _migrations() -> list[tuple[int, str, str]]:
    return read_migrations("migrations")


@cache
def read_migrations(folder: str) -> list[tuple[int, str, str]]:
    """Return the number, name and script of each migration in a folder of this package."""
    found = [each for each in files("controlplane.store").joinpath(folder).iterdir() if each.is_file()]
    found.sort(key=lambda each: each.name)
    return [(int(each.name.partition("_")[0]), each.name, each.read_text("utf-8")) for each in found]


def refusal(applied: Mapping[int, str], known: int) -> str | None:
    """Return why a program of schema `known` can't use the given migrations, or None if it can use them."""
    newer = {number: name for number, name in applied.items() if number > known}
    for name in newer.values():
        least = _RUNS_FROM.search(name)
        if least is None or int(least[1]) > known:
            return f"written by a newer release (schema {max(newer)}; this program supports {known})"
    return None


def require_usable(what: str, applied: Mapping[int, str], known: int) -> None:
    """Raise DatabaseTooNew if a program of schema `known` can't use a database with the given migrations."""
    why = refusal(applied, known)
    if why is not None:
        raise DatabaseTooNew(f"{what}: {why}; upgrade the program or restore a backup of this release")


def _apply(connection: sqlite3.Connection, number: int, name: str, script: str) -> None:
    # IMMEDIATE: if two programs start at once, the second waits here and then finds the migration applied.
    connection.execute("BEGIN IMMEDIATE")
    try:
        connection.execute(
            "CREATE TABLE IF NOT EXISTS schema_version"
            " (version INTEGER PRIMARY KEY, name TEXT NOT NULL) STRICT"
        )
        if connection.execute("SELECT 1 FROM schema_version WHERE version = ?", (number,)).fetchone() is None:
            for statement in _statements(script):
                connection.execute(statement)
            connection.execute("INSERT INTO schema_version VALUES (?, ?)", (number, name))
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _statements(script: str) -> list[str]:
    """Return the SQL statements of a migration script one by one.

    SQLite's `executescript` would commit the open transaction.
    """
    statements, current = [], ""
    for line in script.splitlines(keepends=True):
        current += line
        if sqlite3.complete_statement(current):
            statements.append(current)
            current = ""
    return statements


def what_to_do(error: sqlite3.Error) -> str:
    """Return advice for the operator if the SQLite file is at fault, or else an empty text."""
    # the file is busy, full or not permitted, but not damaged
    if isinstance(error, sqlite3.OperationalError):
        return ""
    return "; restore a backup, and remove the -wal and -shm files next to it"


def newest_known() -> int:
    """Return the number of the newest database schema that this release makes."""
    return _migrations()[-1][0]


def _applied(connection: sqlite3.Connection, path: Path) -> dict[int, str]:
    """Return the number and the name of each migration that the SQLite file has.

    Raise DatabaseTooNew if a newer release wrote the SQLite file.
    """
    if connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'schema_version'").fetchone() is None:
        return {}
    applied = dict(connection.execute("SELECT version, name FROM schema_version").fetchall())
    require_usable(str(path), applied, newest_known())
    return applied
