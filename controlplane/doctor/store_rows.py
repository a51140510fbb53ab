"""Open the store (SQLite or PostgreSQL) read-only for a check, with time limits for its queries."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager

from controlplane.clock import SystemClock
from controlplane.doctor.opened import opened
from controlplane.settings import StoreSettings
from controlplane.store.database import Connection
from controlplane.store.open_store import require_driver
from controlplane.store.sqlite_connection import SqliteConnection


class Unreadable(Exception):
    """Error because the store can't be read.

    The text of an Unreadable error says why the store can't be read.
    """


@contextmanager
def store_rows(settings: StoreSettings) -> Iterator[Connection]:
    """Yield a read-only connection to the store.

    Raise Unreadable if the store can't be read, or StoreError if the database driver is not installed.
    """
    if settings.url:
        with _postgres_rows(settings.url) as connection:
            yield connection
        return
    try:
        with opened(settings.path) as raw:
            yield SqliteConnection(raw, SystemClock())
    except sqlite3.Error as error:
        raise Unreadable(str(error)) from error


@contextmanager
def _postgres_rows(url: str) -> Iterator[Connection]:
    require_driver()
    import psycopg

    from controlplane.store.postgres_connection import PostgresConnection
    from controlplane.store.postgres_database import connect, reason

    try:
        with closing(connect(url)) as raw:
            raw.execute("SET statement_timeout = '10s'")
            raw.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            yield PostgresConnection(raw)
    except psycopg.Error as error:
        raise Unreadable(reason(error)) from error
