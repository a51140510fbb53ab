"""Tests of several changes in one transaction: the store makes all changes or no change."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from controlplane.store.interface import AlreadyExists, Org, Store
from controlplane.store.sql_store import SqlStore
from tests.fakes.clock import NOON_MS

ACME = Org("org-1", "acme", "base", NOON_MS)
BOREAL = Org("org-2", "boreal", "base", NOON_MS)


async def names(store: Store) -> list[str]:
    return [org.name for org in await store.orgs()]


async def test_changes_happen_together_or_not_at_all(either_store: SqlStore) -> None:
    async def add_both(store: Store) -> list[str]:
        await store.add_org(ACME)
        await store.add_org(BOREAL)
        return await names(store)

    async def add_one_twice(store: Store) -> None:
        await store.set_retention(ACME.org_id, "7y")
        await store.add_org(replace(BOREAL, org_id="org-3"))

    assert await either_store.together(add_both) == ["acme", "boreal"]
    with pytest.raises(AlreadyExists, match="boreal"):
        await either_store.together(add_one_twice)
    assert [org.retention for org in await either_store.orgs()] == ["base", "base"]


async def test_work_that_waits_for_something_else_changes_nothing(either_store: SqlStore) -> None:
    async def wait(store: Store) -> None:
        await store.add_org(ACME)
        await asyncio.sleep(0)

    with pytest.raises(AssertionError, match="must not wait"):
        await either_store.together(wait)
    assert await names(either_store) == []


async def test_two_works_at_once_read_what_the_other_wrote(either_store: SqlStore) -> None:
    async def add_next(store: Store) -> str:
        name = f"org-{len(await store.orgs())}"
        await store.add_org(Org(name, name, "base", NOON_MS))
        return name

    made = await asyncio.gather(*(either_store.together(add_next) for _ in range(8)))
    assert sorted(made) == [f"org-{number}" for number in range(8)]
