"""All tables of the store, on either engine."""

from __future__ import annotations

from controlplane.clock import Clock
from controlplane.store.audit import AuditTables
from controlplane.store.database import Connection, Database
from controlplane.store.interface import ProxyTally, Tally
from controlplane.store.losses import all_losses_of
from controlplane.store.operators import OperatorTables
from controlplane.store.registry import RegistryTables
from controlplane.store.schemas import SchemaTables


class SqlStore(AuditTables, RegistryTables, SchemaTables, OperatorTables):
    def __init__(self, database: Database, clock: Clock) -> None:
        super().__init__(database, clock)
        OperatorTables.__init__(self, database, clock)  # which hold something of their own

    async def ping(self) -> None:
        await self._database.fetch("SELECT 1 FROM orgs LIMIT 1")

    async def tally(self) -> Tally:
        def job(connection: Connection) -> Tally:
            (position,) = connection.row("SELECT position FROM last_position")
            rows = connection.rows(
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
            (broken,) = connection.row("SELECT count(*) FROM chain_checks WHERE misfit IS NOT NULL")
            return Tally(position, proxies, broken)

        return await self._database.read(job)

    async def close(self) -> None:
        await self._database.close()
