"""Opens the store in the database engine that the settings select."""

from __future__ import annotations

import asyncio
from importlib.util import find_spec
from pathlib import Path

from controlplane.clock import Clock
from controlplane.store.beginning import require_store
from controlplane.store.interface import StoreError
from controlplane.store.sql_store import SqlStore


async def open_store(
    path: Path, url: str, clock: Clock, master_key: Path | None, *, must_exist: bool = False
) -> SqlStore:
    """Open the store in the PostgreSQL database at `url`. If `url` is empty, open the SQLite file.

    Raise StoreError if the store can't be opened. If the store's tables are missing or old, the tables are
    created or upgraded. If `must_exist` is true and the store is missing, no store is created.
    """
    if url:
        require_driver()
        from controlplane.store.postgres import PostgresStore  # the driver takes long to import

        return await PostgresStore.open(url, clock, must_exist=must_exist)
    from controlplane.store.sqlite import SqliteStore

    if must_exist:
        await asyncio.to_thread(require_store, path, master_key)
    return await SqliteStore.open(path, clock, master_key)


def require_driver() -> None:
    """Raise StoreError if the Python driver for PostgreSQL is not installed."""
    if find_spec("psycopg") is None:
        raise StoreError("Store.Url needs the driver of PostgreSQL: pip install 'graphward[postgresql]'")
