"""Numbered migrations: each in a transaction of its own, applied once, in order.

While servers are replaced one by one, a server of the release before runs on the new schema. So a migration
only adds: tables, columns with a default, indexes. A release stops using a column or table first, and the
release after it removes it. A migration that a program of schema 18 can run on says so in its name, which
the database keeps: `0019_what.from_18.sql`. A program refuses a newer schema unless every migration after
its own says so.
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
    """The file was written by a later release than this one."""


def migrate(path: Path) -> None:
    """Bring the file up to this release, from whichever one wrote it; a new file gets everything."""
    if path.is_dir():  # as a container makes for a missing file that is mounted
        raise StoreError(f"{path} is a directory: Store.Path must name a file")
    connection = sqlite3.connect(path, timeout=30, isolation_level=None)
    try:
        applied = _applied(connection, path)  # before the first byte of it is changed
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
    """Return number, name and script of each migration in a folder of this package."""
    found = [each for each in files("controlplane.store").joinpath(folder).iterdir() if each.is_file()]
    found.sort(key=lambda each: each.name)
    return [(int(each.name.partition("_")[0]), each.name, each.read_text("utf-8")) for each in found]


def refusal(applied: Mapping[int, str], known: int) -> str | None:
    """Return the reason if a program of schema `known` can't run on the migrations applied, else None."""
    newer = {number: name for number, name in applied.items() if number > known}
    for name in newer.values():
        least = _RUNS_FROM.search(name)
        if least is None or int(least[1]) > known:
            return f"written by a newer release (schema {max(newer)}, this program knows {known})"
    return None


def require_usable(what: str, applied: Mapping[int, str], known: int) -> None:
    """Raise DatabaseTooNew if a program of schema `known` can't run on the migrations applied."""
    why = refusal(applied, known)
    if why is not None:
        raise DatabaseTooNew(f"{what}: {why}; upgrade the program or restore a backup of this release")


def _apply(connection: sqlite3.Connection, number: int, name: str, script: str) -> None:
    # IMMEDIATE: of two programs that start at once, the second waits here and then finds the work done.
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
    """The script's statements one by one: `executescript` would commit the transaction that we are in."""
    statements, current = [], ""
    for line in script.splitlines(keepends=True):
        current += line
        if sqlite3.complete_statement(current):
            statements.append(current)
            current = ""
    return statements


def what_to_do(error: sqlite3.Error) -> str:
    """For the operator, where the file itself is at fault."""
    if isinstance(error, sqlite3.OperationalError):  # busy, full, not permitted: nothing of the file is wrong
        return ""
    return "; restore a backup, with the -wal and -shm files beside it removed"


def newest_known() -> int:
    """The schema that this release makes."""
    return _migrations()[-1][0]


def _applied(connection: sqlite3.Connection, path: Path) -> dict[int, str]:
    """Return number and name of each migration that the file has. Refuse a file of a newer release."""
    if connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'schema_version'").fetchone() is None:
        return {}
    applied = dict(connection.execute("SELECT version, name FROM schema_version").fetchall())
    require_usable(str(path), applied, newest_known())
    return applied
