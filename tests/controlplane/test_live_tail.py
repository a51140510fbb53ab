"""Tests of the live tail: readers that reconnect or lag get each event once and in order."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from typing import Any

import pytest

from controlplane import live_tail as tail_module
from controlplane.ingest import parse_batch
from controlplane.live_tail import CutOff, Listener, LiveTail, TooManyListeners
from controlplane.search.document import Document
from controlplane.store.interface import RateLimits, StoredEvent
from controlplane.store.sql_store import SqlStore
from tests.controlplane.plane import NOON_MS, event
from tests.patience import PATIENCE_SECONDS

NEVER = 3600.0
LIMITS = RateLimits(1 << 30, 1 << 30)


@pytest.fixture
def store(either_store: SqlStore) -> SqlStore:
    return either_store


@pytest.fixture
def tail(store: SqlStore) -> LiveTail:
    """Return a live tail that reads the store only when a test wakes it."""
    return LiveTail(store, poll_seconds=NEVER)


async def keep(store: SqlStore, first: int, count: int, org: str = "acme", **members: Any) -> None:
    events = [event(org, number, **members) for number in range(first, first + count)]
    body = json.dumps({"batchId": f"{org} {first}", "events": events}).encode()
    await store.commit_batch(parse_batch("proxy-1", body, NOON_MS)[0], LIMITS)


def everything(document: Document) -> bool:
    return True


async def take(listener: Listener, count: int) -> list[int]:
    """Return the sequence numbers of the next `count` events.

    Fail if fewer or more than `count` events arrive.
    """
    taken: list[int] = []
    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(taken) < count:
            taken += [json.loads(given.body)["seq"] for given in await listener.next()]
    assert len(taken) == count
    return taken


async def served(*listeners: Listener) -> None:
    """Wait until the shared reader task has delivered its events to the given listeners."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not all(each.is_served for each in listeners):  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0)


async def test_what_is_stored_from_now_on_comes_when_it_is_stored(store: SqlStore, tail: LiveTail) -> None:
    await keep(store, 0, 3)
    async with tail.listener("ada", everything, None) as listener:
        waiting = asyncio.create_task(take(listener, 2))
        await asyncio.sleep(0)
        await keep(store, 3, 2)
        tail.wake()
        assert await waiting == [3, 4]
        assert not listener.has_gap


async def test_only_what_is_wanted_comes(store: SqlStore, tail: LiveTail) -> None:
    async with tail.listener("ada", lambda made: made.org_id == "beta", None) as listener:
        await keep(store, 0, 5, "acme")
        await keep(store, 5, 2, "beta")
        tail.wake()
        assert await take(listener, 2) == [5, 6]


async def test_who_comes_back_gets_each_event_once(store: SqlStore, tail: LiveTail) -> None:
    """A reader that reconnects often gets each event once, while a second reader stays connected."""
    got: list[int] = []
    position: int | None = 0
    async with tail.listener("beside", everything, 0) as other:
        for first in range(0, 90, 30):
            await keep(store, first, 10)
            tail.wake()
            async with tail.listener("ada", everything, position) as listener:
                assert not listener.has_gap
                got += await take(listener, 20 if first else 10)
                await keep(store, first + 10, 10)
                tail.wake()
                got += await take(listener, 10)
                position = listener.position
            await keep(store, first + 20, 10)
            tail.wake()
        assert got == list(range(80))
        assert await take(other, 90) == list(range(90))


async def test_nothing_is_lost_between_catching_up_and_being_served(
    store: SqlStore, tail: LiveTail, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tail_module, "_AT_ONCE", 3)
    total = 120

    async def keep_on() -> None:
        for first in range(0, total, 4):
            await keep(store, first, 4)
            tail.wake()

    async def listen(after: int) -> list[int]:
        async with tail.listener(f"from {after}", everything, after) as listener:
            return await take(listener, total - after)

    async with asyncio.TaskGroup() as group:
        group.create_task(keep_on())
        listening = []
        for _ in range(6):
            await asyncio.sleep(0.01)
            after = await store.last_position()
            listening.append((after, group.create_task(listen(after))))
            listening.append((0, group.create_task(listen(0))))
    for after, task in listening:
        assert task.result() == list(range(after, total))


async def test_who_takes_nothing_is_cut_off_and_misses_nothing_when_it_comes_back(
    store: SqlStore, tail: LiveTail, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tail_module, "MOST_WAITING", 10)
    async with (
        tail.listener("slow", everything, None) as slow,
        tail.listener("quick", everything, None) as quick,
    ):
        ready = [asyncio.create_task(take(each, 1)) for each in (slow, quick)]
        await served(slow, quick)
        await keep(store, 0, 1)
        tail.wake()
        await asyncio.gather(*ready)
        got = [0]
        for first in (1, 7, 13):
            await keep(store, first, 6)
            tail.wake()
            assert await take(quick, 6) == list(range(first, first + 6))
        got += await take(slow, 6)
        with pytest.raises(CutOff):
            await slow.next()
        left_off = slow.position
    async with tail.listener("slow", everything, left_off) as again:
        got += await take(again, 12)
    assert got == list(range(19))


async def test_who_was_away_for_too_long_is_told_of_the_gap(
    store: SqlStore, tail: LiveTail, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tail_module, "MOST_BEHIND", 5)
    await keep(store, 0, 20)
    async with tail.listener("ada", everything, 3) as listener:
        assert listener.has_gap
        assert await take(listener, 5) == [15, 16, 17, 18, 19]
    # A position that this store never reached belongs to another store, for example one before a restore.
    async with tail.listener("ada", everything, 99) as listener:
        assert listener.has_gap
        assert listener.position == 20


async def test_purged_events_are_stepped_over(store: SqlStore, tail: LiveTail) -> None:
    await keep(store, 0, 5)
    async with tail.listener("beside", everything, 0) as beside:
        await take(beside, 5)
        assert await store.purge_events("acme", 1 << 60, 100) == 5
        async with tail.listener("ada", everything, 2) as listener:
            waiting = asyncio.create_task(take(listener, 1))
            await asyncio.sleep(0)
            await keep(store, 5, 1)
            tail.wake()
            assert await waiting == [5]


async def test_what_is_stored_while_one_looks_at_what_was_purged_is_not_passed_over(
    store: SqlStore, tail: LiveTail, monkeypatch: pytest.MonkeyPatch
) -> None:
    await keep(store, 0, 5)
    async with tail.listener("beside", everything, 0) as beside:
        await take(beside, 5)
        assert await store.purge_events("acme", 1 << 60, 100) == 5
        read = store.events_after
        came = []

        async def slow(position: int, limit: int) -> list[StoredEvent]:
            found = await read(position, limit)
            if position == 2:
                await keep(store, 5, 1)
                tail.wake()
                came.append(await take(beside, 1))
            return found

        monkeypatch.setattr(store, "events_after", slow)
        async with tail.listener("ada", everything, 2) as listener:
            assert await take(listener, 1) == [5]
        assert came == [[5]]


async def test_one_can_not_take_the_room_of_all(tail: LiveTail) -> None:
    async with AsyncExitStack() as stack:
        for _ in range(tail_module.MOST_OF_ONE):
            await stack.enter_async_context(tail.listener("ada", everything, None))
        with pytest.raises(TooManyListeners, match="ada"):
            await stack.enter_async_context(tail.listener("ada", everything, None))
        await stack.enter_async_context(tail.listener("alan", everything, None))
    async with tail.listener("ada", everything, None):
        pass


async def test_one_organisation_can_not_take_the_room_of_all(tail: LiveTail) -> None:
    """Readers of one organisation cannot use all reader slots (promise 17 of docs/explain/reliability.md)."""
    async with AsyncExitStack() as stack:
        for number in range(tail_module.MOST_OF_THE_SAME):
            following = tail.listener(f"operator-{number}", everything, None, ("acme",))
            await stack.enter_async_context(following)
        with pytest.raises(TooManyListeners, match="the same organisations"):
            await stack.enter_async_context(tail.listener("another", everything, None, ("acme",)))
        for org_ids in (("beta",), ("acme", "beta"), None):
            await stack.enter_async_context(tail.listener("alan", everything, None, org_ids))


async def test_there_is_an_end_to_listeners(tail: LiveTail, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail_module, "MOST_LISTENERS", 2)
    async with tail.listener("a", everything, None), tail.listener("b", everything, None):
        with pytest.raises(TooManyListeners):
            await tail.listener("c", everything, None).__aenter__()


async def test_a_store_that_can_not_be_read_ends_the_listening_and_is_tried_again(
    store: SqlStore, tail: LiveTail, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with tail.listener("ada", everything, None) as listener:
        waiting = asyncio.create_task(listener.next())
        await served(listener)
        with monkeypatch.context() as broken:
            broken.setattr(store, "events_after", None)
            await keep(store, 0, 1)  # not earlier: the tail may poll by itself
            tail.wake()
            with pytest.raises(CutOff, match="events can't be read"):
                await waiting
            async with tail.listener("alan", everything, 0) as other:
                with pytest.raises(CutOff, match="events can't be read"):  # while the reader catches up
                    await other.next()
        async with tail.listener("alan", everything, 0) as other:
            assert await take(other, 1) == [0]
