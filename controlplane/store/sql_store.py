"""All tables of the store, on either engine."""

from __future__ import annotations

from controlplane.clock import Clock
from controlplane.store.audit import AuditTables
from controlplane.store.database import Connection, Database
from controlplane.store.fleet_tables import tally_of_proxies
from controlplane.store.instances import InstanceTables
from controlplane.store.interface import Peers, Tally
from controlplane.store.list_tables import ListTables
from controlplane.store.operators import OperatorTables
from controlplane.store.registry import RegistryTables
from controlplane.store.schemas import SchemaTables
from controlplane.store.sign_ins import SignInTables


class SqlStore(
    AuditTables,
    RegistryTables,
    SchemaTables,
    ListTables,
    OperatorTables,
    SignInTables,
    InstanceTables,
):
    def __init__(self, database: Database, clock: Clock) -> None:
        super().__init__(database, clock)
        RegistryTables.__init__(self, database, clock)  # which hold something of their own
        OperatorTables.__init__(self, database, clock)

    @property
    def is_shared(self) -> bool:
        return self._database.is_shared

    def join(self) -> Peers:
        return self._database.join()

    async def ping(self) -> None:
        await self._database.fetch("SELECT 1 FROM orgs LIMIT 1")

    async def tally(self, most: int) -> Tally:
        position = await self._database.newest_position()

        def job(connection: Connection) -> Tally:
            (broken,) = connection.row("SELECT count(*) FROM chain_checks WHERE misfit IS NOT NULL")
            return Tally(position, tally_of_proxies(connection, most), broken)

        return await self._database.read(job)

    async def close(self) -> None:
        await self._database.close()
