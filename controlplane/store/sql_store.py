"""A store that combines all tables, in SQLite or in PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from controlplane.clock import Clock
from controlplane.store.audit import AuditTables
from controlplane.store.credential_tables import CredentialTables
from controlplane.store.database import REGISTRY, Connection, Database
from controlplane.store.enrolment import EnrolmentTables
from controlplane.store.fleet_tables import tally_of_proxies
from controlplane.store.in_transaction import InTransaction, finished
from controlplane.store.instances import InstanceTables
from controlplane.store.interface import Peers, Store, Tally
from controlplane.store.list_tables import ListTables
from controlplane.store.notices import NoticeTables
from controlplane.store.operators import OperatorTables
from controlplane.store.proposals import ProposalTables
from controlplane.store.proxy_keys import KeyTables
from controlplane.store.registry import RegistryTables
from controlplane.store.schemas import SchemaTables
from controlplane.store.sign_ins import SignInTables
from controlplane.store.sinks import SinkTables
from controlplane.store.tombstones import TombstoneTables
from controlplane.store.usage_tables import UsageTables

T = TypeVar("T")


class SqlStore(
    AuditTables,
    RegistryTables,
    CredentialTables,
    KeyTables,
    EnrolmentTables,
    ProposalTables,
    SchemaTables,
    ListTables,
    OperatorTables,
    SignInTables,
    UsageTables,
    InstanceTables,
    TombstoneTables,
    SinkTables,
    NoticeTables,
):
    def __init__(self, database: Database, clock: Clock) -> None:
        super().__init__(database, clock)
        RegistryTables.__init__(self, database, clock)  # only these classes have state of their own
        KeyTables.__init__(self, database, clock)
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

    async def together(self, work: Callable[[Store], Coroutine[Any, Any, T]]) -> T:
        def job(connection: Connection) -> T:
            return finished(work(SqlStore(InTransaction(connection), self._clock)))

        return await self._database.write_even_if_full(job, REGISTRY)

    async def close(self) -> None:
        await self._database.close()
