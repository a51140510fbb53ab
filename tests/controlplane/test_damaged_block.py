"""Tests of a damaged block of events: its organisation loses these events, and no other event is lost."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from controlplane.index_writer import IndexWriter
from controlplane.ingest import parse_batch
from controlplane.live_tail import LiveTail
from controlplane.retention import Retention
from controlplane.search.interface import SearchQuery
from controlplane.search.sqlite_index import SqliteIndex
from controlplane.store.database import NO_LOCKS, Connection
from controlplane.store.interface import Misfit, NewBatch, Org, Proxy, RateLimits, Reached, Stored, StoreError
from controlplane.store.sql_store import SqlStore
from controlplane.store.sqlite import SqliteStore
from tests.controlplane.plane import NOON_MS, FakeClock, agreed_with, event

DAMAGED, WHOLE = "org-a", "org-b"  # retention begins with the first one
LIMITS = RateLimits(1000, 1000)
KEY = bytes(32)


def new(org: str, *numbers: int) -> NewBatch:
    events = [event(org, number) for number in numbers]
    body = json.dumps({"batchId": f"{org} {numbers}", "events": events}).encode()
    return parse_batch("proxy-1", body, NOON_MS)[0]


async def fill(store: SqlStore, body: bytes) -> None:
    """Store events 1 and 2 of an organisation in a damaged block, and two events in undamaged blocks.

    The undamaged blocks contain event 3 of the organisation with the damaged block, and event 4 of another
    organisation.
    """
    store.sign_links(KEY)
    for org in (DAMAGED, WHOLE):
        await store.add_org(Org(org, org, "base", 1))
    for batch in (new(DAMAGED, 1, 2), new(DAMAGED, 3), new(WHOLE, 4)):
        await store.commit_batch(batch, LIMITS)

    def damage(connection: Connection) -> None:
        connection.run("UPDATE blocks SET body = ? WHERE position = 1", (body,))

    await store._database.write(damage, NO_LOCKS)


def seqs(bodies: list[bytes]) -> list[int]:
    return [json.loads(body)["seq"] for body in bodies]


class NoIndex:
    async def purge(self, org_id: str, before_ms: int, limit: int, newest: int | None = None) -> int:
        return 0


async def retention_of(store: SqlStore, clock: FakeClock) -> Retention:
    await store.add_proxy(Proxy("proxy-1", "edge", True, 1, None, 1, (WHOLE,)), b"key", b"sealed")
    await store.add_heartbeat("proxy-1", "{}")
    return Retention(store, NoIndex(), clock, await agreed_with(store, clock.wall), 60)


async def misfit(store: SqlStore, org: str) -> Misfit | None:
    head = await store.chain_head(org)
    assert head is not None
    return (await store.walk_chain(org, Reached(), head.newest.record.number, KEY))[1]


async def test_search_finds_all_others(
    tmp_path: Path, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "store.db"
    store = await SqliteStore.open(path, clock)
    await fill(store, b"\x01not deflated")
    index = await SqliteIndex.open(tmp_path / "search.sqlite", path)
    writer = IndexWriter(store, index)
    await writer.catch_up(10)
    assert not writer.is_behind
    assert (writer.left_out, writer.position) == (2, 4)
    assert f"organisation {DAMAGED}: the block of events at positions 1 to 2 is damaged" in caplog.text
    found = (await index.search(SearchQuery((WHOLE, DAMAGED)))).events
    assert sorted(seqs([*found])) == [3, 4]
    await index.close()
    await store.close()


async def test_readers_of_the_store_get_past_it(either_store: SqlStore) -> None:
    store = either_store
    await fill(store, b'[{"id":')
    tail = LiveTail(store)
    async with tail.listener("ada", lambda _: True, 0) as listener:
        assert seqs([each.body for each in await listener.next()]) == [3, 4]
    assert seqs((await store.blocks_between(DAMAGED, 0, 2 * NOON_MS, None)).events) == [3]
    with pytest.raises(StoreError, match=f"position 1 of organisation {DAMAGED} is damaged"):
        await store.event(DAMAGED, "event-1")


async def test_a_batch_that_comes_again_finds_other_content(either_store: SqlStore) -> None:
    await fill(either_store, b"\x01not deflated")
    again = replace(new(DAMAGED, 1, 2), batch_id="again")
    outcome = await either_store.commit_batch(again, LIMITS)
    assert isinstance(outcome, Stored)


async def test_retention_purges_it_and_leaves_a_proof(either_store: SqlStore, clock: FakeClock) -> None:
    store = either_store
    await fill(store, b"\x01not deflated")
    clock.advance(hours=24 * 40)
    retention = await retention_of(store, clock)
    assert await retention.purge() == 4
    assert retention.problem is None
    found = await misfit(store, DAMAGED)
    assert found is not None
    assert (found.what, found.position) == ("changed", 1)
    assert await misfit(store, WHOLE) is None


async def test_retention_of_one_organisation_fails_alone(
    either_store: SqlStore, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(either_store, b"\x01not deflated")
    clock.advance(hours=24 * 40)
    purge = either_store.purge_events

    async def failing(org_id: str, before_ms: int, limit: int) -> int:
        if org_id == DAMAGED:
            raise StoreError("a bad page")
        return await purge(org_id, before_ms, limit)

    monkeypatch.setattr(either_store, "purge_events", failing)
    retention = await retention_of(either_store, clock)
    assert await retention.purge() == 1
    assert retention.problem == f"{DAMAGED}: a bad page"
