"""Running control planes that share a store.

The store uses the clock of the database to find the control planes that run.
"""

from __future__ import annotations

from typing import Final

from controlplane.store.database import NO_LOCKS, Connection, Database
from controlplane.store.interface import Instance, RunningInstance

LEASE_MS: Final = 30_000  # an instance without a sign of life for this time counts as dead
_FORGOTTEN_MS: Final = 24 * 3_600_000


class InstanceTables:
    _database: Database

    async def note_instance(self, instance: Instance) -> int:
        def job(connection: Connection) -> int:
            now = connection.steady_ms()
            connection.run(
                "INSERT INTO instances"
                " (instance_id, name, version, started_ms, seen_ms, leads, witnessed_ms)"
                " VALUES (?1, ?2, ?3, ?4, ?4, ?5, ?6) ON CONFLICT (instance_id) DO UPDATE SET"
                " seen_ms = excluded.seen_ms, leads = excluded.leads, witnessed_ms = excluded.witnessed_ms",
                (
                    *(instance.instance_id, instance.name, instance.version, now),
                    *(int(instance.leads), instance.witnessed_ms),
                ),
            )
            connection.run("DELETE FROM instances WHERE seen_ms <= ?", (now - _FORGOTTEN_MS,))
            if not self._database.is_shared:  # if the store is not shared, all others have ended
                connection.run("DELETE FROM instances WHERE instance_id <> ?", (instance.instance_id,))
            return now

        return await self._database.write(job, NO_LOCKS)

    async def remove_instance(self, instance_id: str) -> None:
        def job(connection: Connection) -> None:
            connection.run("DELETE FROM instances WHERE instance_id = ?", (instance_id,))

        await self._database.write(job, NO_LOCKS)

    async def running_instances(self) -> list[RunningInstance]:
        return await self._database.read(running_instances)


def running_instances(connection: Connection) -> list[RunningInstance]:
    rows = connection.rows(
        "SELECT instance_id, name, version, leads, witnessed_ms, started_ms, seen_ms FROM instances"
        " WHERE seen_ms > ? ORDER BY started_ms, instance_id",
        (connection.steady_ms() - LEASE_MS,),
    )
    return [
        RunningInstance(Instance(instance_id, name, version, bool(leads), witnessed_ms), started_ms, seen_ms)
        for instance_id, name, version, leads, witnessed_ms, started_ms, seen_ms in rows
    ]
