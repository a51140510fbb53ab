"""The store in one SQLite file."""

from __future__ import annotations

from pathlib import Path

from controlplane.clock import Clock
from controlplane.store.database import Database
from controlplane.store.interface import StoreError
from controlplane.store.sqlite_audit import AuditTables
from controlplane.store.sqlite_registry import RegistryTables


class SqliteStore(AuditTables, RegistryTables):
    @classmethod
    async def open(cls, path: Path, clock: Clock) -> SqliteStore:
        """Open the file, making or upgrading it where needed; StoreError if it can't be used."""
        database = await Database.open(path)
        try:
            ((newest_ms,),) = await database.fetch("SELECT coalesce(max(accepted_ms), 0) FROM rate_log")
        except StoreError:
            await database.close()
            raise
        clock.not_before(newest_ms)
        return cls(database, clock)

    async def ping(self) -> None:
        await self._database.fetch("SELECT 1 FROM orgs LIMIT 1")

    async def close(self) -> None:
        await self._database.close()
