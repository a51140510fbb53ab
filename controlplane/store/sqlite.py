"""The store in one SQLite file."""

from __future__ import annotations

import asyncio
from pathlib import Path

from controlplane.clock import Clock
from controlplane.store.beginning import require_store_or_first_start
from controlplane.store.sql_store import SqlStore
from controlplane.store.sqlite_database import SqliteDatabase


class SqliteStore(SqlStore):
    @classmethod
    async def open(cls, path: Path, clock: Clock, master_key: Path | None = None) -> SqliteStore:
        """Open the SQLite file, and create or upgrade its tables if needed.

        Raise StoreError if the SQLite file can't be used. Also raise StoreError if the store is lost: its
        file is missing, but the file of the master key, or another file of the store, exists.
        """
        await asyncio.to_thread(require_store_or_first_start, path, master_key)
        database = await SqliteDatabase.open(path, clock)
        try:
            ((newest_ms,),) = await database.fetch("SELECT coalesce(max(accepted_ms), 0) FROM rate_log")
        except BaseException:  # covers an interruption too, which must not wait for a thread
            await database.close()
            raise
        clock.not_before(newest_ms)
        return cls(database, clock)
