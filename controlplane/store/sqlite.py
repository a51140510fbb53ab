"""The store in one SQLite file."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

from controlplane.clock import Clock
from controlplane.store.beginning import require_store_or_first_start
from controlplane.store.database import Database, all_rows, one_row
from controlplane.store.interface import ProxyTally, Tally
from controlplane.store.losses import all_losses_of
from controlplane.store.sqlite_audit import AuditTables
from controlplane.store.sqlite_operators import OperatorTables
from controlplane.store.sqlite_registry import RegistryTables
from controlplane.store.sqlite_schemas import SchemaTables


class SqliteStore(AuditTables, RegistryTables, SchemaTables, OperatorTables):
    def __init__(self, database: Database, clock: Clock) -> None:
        super().__init__(database, clock)
        OperatorTables.__init__(self, database, clock)  # which hold something of their own

    @classmethod
    async def open(cls, path: Path, clock: Clock, master_key: Path | None = None) -> SqliteStore:
        """Open the file, and make or upgrade it if needed. Raise StoreError if it can't be used, or if it is
        lost while the file of the master key, or another file that belongs to it, is there."""
        await asyncio.to_thread(require_store_or_first_start, path, master_key)
        database = await Database.open(path)
        try:
            ((newest_ms,),) = await database.fetch("SELECT coalesce(max(accepted_ms), 0) FROM rate_log")
        except BaseException:  # also an interruption, which must find no thread to wait for
            await database.close()
            raise
        clock.not_before(newest_ms)
        return cls(database, clock)

    async def ping(self) -> None:
        await self._database.fetch("SELECT 1 FROM orgs LIMIT 1")

    async def tally(self) -> Tally:
        def job(connection: sqlite3.Connection) -> Tally:
            (position,) = one_row(connection, "SELECT position FROM last_position")
            rows = all_rows(
                connection,
                "SELECT proxy_id, name, enabled, coalesce(last_seen_ms, created_ms),"
                " coalesce((SELECT sum(last - first + 1) FROM sequence_gaps AS g"
                " WHERE g.proxy_id = p.proxy_id), 0)"
                " + coalesce((SELECT sum(unlisted) FROM sequences AS s WHERE s.proxy_id = p.proxy_id), 0),"
                " coalesce((SELECT sum(repeated) FROM sequences AS s WHERE s.proxy_id = p.proxy_id), 0),"
                " coalesce((SELECT sum(count) FROM reused_batch_ids AS r WHERE r.proxy_id = p.proxy_id), 0)"
                " FROM proxies AS p",
            )
            proxies = tuple(
                ProxyTally(
                    *(name, bool(enabled), seen_ms, missing, repeated),
                    *(all_losses_of(connection, proxy_id), reused),
                )
                for proxy_id, name, enabled, seen_ms, missing, repeated, reused in rows
            )
            (broken,) = one_row(connection, "SELECT count(*) FROM chain_checks WHERE misfit IS NOT NULL")
            return Tally(position, proxies, broken)

        return await self._database.read(job)

    async def close(self) -> None:
        await self._database.close()
