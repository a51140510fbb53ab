"""Store of the audit chains: newest links, verification, and the result of the last verification."""

from __future__ import annotations

import msgspec

from controlplane.clock import Clock
from controlplane.store.archive_slices import archive_range, chained_blocks, links_between, orgs_between
from controlplane.store.chain import Link
from controlplane.store.chain_table import Chain, head, links_after
from controlplane.store.chain_walk import mismatch_at_end, walk
from controlplane.store.database import NO_LOCKS, Connection, Database, of_org
from controlplane.store.interface import (
    ArchiveRange,
    ChainCheck,
    ChainedLink,
    ChainHead,
    LinkSpan,
    Misfit,
    Purges,
    Reached,
)


class ChainTables:
    _database: Database
    _clock: Clock
    _chain_key: bytes | None = None

    def sign_links(self, key: bytes) -> None:
        """Sign all new links of the audit chains from now on."""
        self._chain_key = key

    def _chain(self) -> Chain:
        return Chain(self._chain_key, self._clock.wall_ms())

    async def adopt_blocks(self, org_id: str) -> int:
        """Add to the audit chain the next blocks of events that an earlier release stored without a chain.

        Return the number of events in the added blocks.
        """
        return await self._database.write(
            lambda connection: self._chain().adopt(connection, org_id), of_org(org_id)
        )

    async def chained_orgs(self) -> list[str]:
        """Return the IDs of all organisations that have an audit chain.

        The table `orgs` may lack an organisation that has an audit chain.
        """
        rows = await self._database.fetch("SELECT DISTINCT org_id FROM chain ORDER BY org_id")
        return [org_id for (org_id,) in rows]

    async def chain_head(self, org_id: str) -> ChainHead | None:
        def job(connection: Connection) -> ChainHead | None:
            newest = head(connection, org_id)
            return None if newest is None else _as_head(connection, newest)

        return await self._database.read(job)

    async def chain_link(self, org_id: str, number: int) -> Link | None:
        def job(connection: Connection) -> Link | None:
            return next(iter(links_after(connection, org_id, number - 1, 1)), None)

        found = await self._database.read(job)
        return found if found is not None and found.record.number == number else None

    async def chain_receipts(self, org_id: str, after: int, last: int) -> tuple[int, int] | None:
        """Return the receipt times of the first and last block of events in a range of chain links."""
        said = (
            "SELECT chained_ms FROM chain"
            " WHERE org_id = ? AND number > ? AND number <= ? AND kind <> 'purge' ORDER BY number"
        )

        def job(connection: Connection) -> tuple[int, int] | None:
            first = connection.row(f"{said} LIMIT 1", (org_id, after, last))
            newest = connection.row(f"{said} DESC LIMIT 1", (org_id, after, last))
            return None if first is None or newest is None else (int(first[0]), int(newest[0]))

        return await self._database.read(job)

    async def chain_purges(self, org_id: str) -> Purges | None:
        """Return the times of all purges in the organisation's audit chain; None if nothing was purged."""
        ((last_ms, received_ms),) = await self._database.fetch(
            "SELECT max(purges.chained_ms), max(blocks.chained_ms) FROM chain AS purges"
            " LEFT JOIN chain AS blocks ON blocks.org_id = purges.org_id"
            " AND blocks.position = purges.position AND blocks.kind <> 'purge'"
            " WHERE purges.org_id = ? AND purges.kind = 'purge'",
            (org_id,),
        )
        return None if last_ms is None else Purges(last_ms, last_ms if received_ms is None else received_ms)

    async def chain_has(self, org_id: str, link: bytes) -> bool:
        rows = await self._database.fetch(
            "SELECT 1 FROM chain WHERE org_id = ? AND link = ? LIMIT 1", (org_id, link)
        )
        return bool(rows)

    async def archive_range(self, after: int) -> ArchiveRange | None:
        settled = await self._database.settled()
        return await self._database.read(lambda connection: archive_range(connection, after, settled))

    async def orgs_between(self, after: int, upto: int) -> list[str]:
        return await self._database.read(lambda connection: orgs_between(connection, after, upto))

    async def links_between(self, org_id: str, after: int, upto: int) -> LinkSpan:
        return await self._database.read(lambda connection: links_between(connection, org_id, after, upto))

    async def chained_blocks(self, org_id: str, span: LinkSpan) -> list[ChainedLink]:
        return await self._database.read(lambda connection: chained_blocks(connection, org_id, span))

    async def walk_chain(
        self, org_id: str, reached: Reached, last: int, key: bytes
    ) -> tuple[Reached, Misfit | None]:
        return await self._database.read(lambda connection: walk(connection, org_id, reached, last, key))

    async def mismatch_at_chain_end(self, org_id: str) -> Misfit | None:
        return await self._database.read(lambda connection: mismatch_at_end(connection, org_id))

    async def note_chain_check(self, org_id: str, check: ChainCheck) -> None:
        misfit = None if check.misfit is None else msgspec.json.encode(check.misfit).decode()
        row = (org_id, check.checked_ms, check.links, check.events, misfit)

        def job(connection: Connection) -> None:
            connection.run(
                "INSERT INTO chain_checks (org_id, checked_ms, links, events, misfit) VALUES (?, ?, ?, ?, ?)"
                " ON CONFLICT (org_id) DO UPDATE SET checked_ms = excluded.checked_ms,"
                " links = excluded.links, events = excluded.events, misfit = excluded.misfit",
                row,
            )

        await self._database.write(job, NO_LOCKS)

    async def chain_check(self, org_id: str) -> ChainCheck | None:
        rows = await self._database.fetch(
            "SELECT checked_ms, links, events, misfit FROM chain_checks WHERE org_id = ?", (org_id,)
        )
        for checked_ms, links, events, misfit in rows:
            found = None if misfit is None else msgspec.json.decode(misfit, type=Misfit)
            return ChainCheck(checked_ms, links, events, found)
        return None


def _as_head(connection: Connection, newest: Link) -> ChainHead:
    org_id = newest.record.org_id
    events, purged = connection.row(
        "SELECT coalesce(sum(count) FILTER (WHERE kind <> 'purge'), 0),"
        " coalesce(sum(count) FILTER (WHERE kind = 'purge'), 0) FROM chain WHERE org_id = ?",
        (org_id,),
    )
    return ChainHead(newest, events, purged)
