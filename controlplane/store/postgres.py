"""The store in a PostgreSQL database."""

from __future__ import annotations

from controlplane.clock import Clock
from controlplane.store.postgres_database import PostgresDatabase
from controlplane.store.sql_store import SqlStore


class PostgresStore(SqlStore):
    @classmethod
    async def open(cls, url: str, clock: Clock, *, must_exist: bool = False) -> PostgresStore:
        """Connect to the PostgreSQL database, and create or upgrade the store's tables if needed.

        Raise StoreError if the database can't be used, or if `must_exist` is True and the database has no
        store tables.
        """
        return cls(await PostgresDatabase.open(url, must_exist=must_exist), clock)
