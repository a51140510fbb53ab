"""Numbered migrations of a PostgreSQL database, each in its own transaction.

The database allows only one process at a time to run the migrations.
"""

from __future__ import annotations

from typing import Final

import psycopg
from psycopg.rows import TupleRow

from controlplane.store.interface import StoreError
from controlplane.store.migrate import read_migrations, require_usable

MIGRATIONS_LOCK: Final = 0x6772617068776172  # "graphwar" in ASCII
MARK: Final = "store_copy"  # table of a database whose copy is unfinished
_LEAST_VERSION: Final = 140_000


def migrations() -> list[tuple[int, str, str]]:
    return read_migrations("migrations/postgres")


def has_tables(raw: psycopg.Connection[TupleRow]) -> bool:
    return raw.execute("SELECT to_regclass('schema_version')").fetchone() != (None,)


def bring_up(raw: psycopg.Connection[TupleRow], address: str, *, is_copied: bool = False) -> None:
    """Upgrade the tables of a PostgreSQL database from any earlier release to this release.

    An empty database gets all tables of this release. Raise StoreError if the database contains an unfinished
    copy of a store, unless the caller is the copying command.
    """
    if not is_copied and raw.execute("SELECT to_regclass(%s)", (MARK,)).fetchone() != (None,):
        raise StoreError(f"{address}: a copy into the database is not finished: run `store copy` again")
    if raw.info.server_version < _LEAST_VERSION:
        raise StoreError(
            f"{address}: PostgreSQL 14 or later is needed, not {raw.info.server_version // 10_000}"
        )
    encoding = raw.info.parameter_status("server_encoding")
    if encoding != "UTF8":
        raise StoreError(f"{address}: the database must have the encoding UTF8, but it has {encoding}")
    if not _lacking(raw, address):
        return  # a role without the right to make tables is enough
    raw.execute("SET lock_timeout = 0")  # another control plane may migrate for a long time
    raw.execute("SELECT pg_advisory_lock(%s)", (MIGRATIONS_LOCK,))
    raw.execute(
        "CREATE TABLE IF NOT EXISTS schema_version"
        ' (version bigint PRIMARY KEY, name text COLLATE "C" NOT NULL)'
    )
    for number, name, script in _lacking(raw, address):
        with raw.transaction():
            raw.execute(script.encode())
            raw.execute("INSERT INTO schema_version (version, name) VALUES (%s, %s)", (number, name))


def _lacking(raw: psycopg.Connection[TupleRow], address: str) -> list[tuple[int, str, str]]:
    """Return the migrations of this release that the database lacks.

    Raise DatabaseTooNew if a later release wrote the database.
    """
    known = migrations()
    if not has_tables(raw):
        return known
    applied: dict[int, str] = dict(raw.execute("SELECT version, name FROM schema_version").fetchall())
    require_usable(address, applied, known[-1][0])
    return [each for each in known if each[0] not in applied]
