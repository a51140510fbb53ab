"""Tests of the event ranges that the store's outbox gives to a search index, on both database engines."""

from __future__ import annotations

import asyncio

from controlplane.store.interface import GivenOut
from controlplane.store.sql_store import SqlStore


async def test_a_range_is_given_out_again_as_it_was_until_it_is_finished(either_store: SqlStore) -> None:
    first = GivenOut(0, 10, "first")
    assert await either_store.give_out("index", first) == first
    assert await either_store.give_out("index", GivenOut(0, 15, "another")) == first
    assert await either_store.give_out("other", GivenOut(0, 15, "other")) == GivenOut(0, 15, "other")
    await either_store.finish("index", first)
    assert await either_store.outbox_position("index") == 10
    assert await either_store.give_out("index", GivenOut(0, 15, "late")) is None
    following = GivenOut(10, 15, "following")
    assert await either_store.give_out("index", following) == following


async def test_processes_that_ask_at_once_are_given_one_range(either_store: SqlStore) -> None:
    wanted = [GivenOut(0, 10 + number, f"token {number}") for number in range(8)]
    given = await asyncio.gather(*(either_store.give_out("index", each) for each in wanted))
    assert given.count(given[0]) == 8
    assert given[0] in wanted


async def test_a_slow_process_that_finishes_late_moves_nothing_back(either_store: SqlStore) -> None:
    first, second = GivenOut(0, 10, "first"), GivenOut(10, 20, "second")
    for given in (first, second):
        assert await either_store.give_out("index", given) == given
        await either_store.finish("index", given)
    third = GivenOut(20, 30, "third")
    assert await either_store.give_out("index", third) == third
    await either_store.finish("index", first)
    assert await either_store.outbox_position("index") == 20
    assert await either_store.give_out("index", GivenOut(20, 40, "another")) == third


async def test_what_an_index_has_lost_is_given_out_under_a_new_token(either_store: SqlStore) -> None:
    first, second = GivenOut(0, 10, "first"), GivenOut(10, 20, "second")
    assert await either_store.give_out("index", first) == first
    await either_store.finish("index", first)
    assert await either_store.give_out("index", second) == second
    await either_store.go_back("index", 4)
    assert await either_store.give_out("index", GivenOut(10, 20, "again")) is None
    again = GivenOut(4, 20, "again")
    assert await either_store.give_out("index", again) == again
