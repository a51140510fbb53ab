"""Tests of how failed sign-ins are counted in a sliding window, by name and by local or shared network."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from controlplane.admin import attempts
from controlplane.admin.attempts import Attempts, AttemptsInMemory, AttemptsInStore
from controlplane.store import sign_ins
from controlplane.store.open_store import open_store
from controlplane.store.sql_store import SqlStore
from tests.controlplane.plane import FakeClock


@pytest.fixture(params=["in memory", "in SQLite", "in PostgreSQL"])
async def counted(
    request: pytest.FixtureRequest, tmp_path: Path, clock: FakeClock
) -> AsyncIterator[Attempts]:
    if request.param == "in memory":
        yield AttemptsInMemory(clock)
        return
    url = request.getfixturevalue("postgres_url") if request.param == "in PostgreSQL" else ""
    store = await open_store(tmp_path / "store.db", url, clock, None)
    yield AttemptsInStore(store)
    await store.close()


async def test_a_success_makes_up_for_what_one_failed_before(counted: Attempts, clock: FakeClock) -> None:
    for _ in range(20):
        for _ in range(4):
            assert await counted.begin("ada", "192.0.2.1") == 0
        await counted.forgive("ada", "192.0.2.1")
        clock.advance(seconds=300)


async def test_the_wait_is_true_to_the_second(counted: Attempts, clock: FakeClock) -> None:
    for _ in range(5):
        assert await counted.begin("ada", "192.0.2.1") == 0
        clock.advance(seconds=10)
    assert await counted.begin("ADA", "192.0.2.1") == 850
    clock.advance(seconds=849)
    assert await counted.begin("ada", "192.0.2.1") == 1
    clock.advance(seconds=1)
    assert await counted.begin("ada", "192.0.2.1") == 0


async def test_half_an_ipv6_address_is_one_network(counted: Attempts) -> None:
    waits = [await counted.begin("ada", f"2001:db8::{number:x}") for number in range(6)]
    assert [wait > 0 for wait in waits] == [False] * 5 + [True]
    assert await counted.begin("ada", "2001:db8:0:1::1") == 0


async def test_a_name_is_not_guessed_from_everywhere(counted: Attempts) -> None:
    waits = [await counted.begin("ada", f"192.0.2.{number}") for number in range(51)]
    assert [wait > 0 for wait in waits] == [False] * 50 + [True]
    assert await counted.begin("alan", "192.0.2.200") == 0


async def test_a_sign_in_that_names_nobody_is_limited_by_its_address(counted: Attempts) -> None:
    for _ in range(3):
        assert await counted.begin(None, "192.0.2.1") == 0
        await counted.forgive(None, "192.0.2.1")
    waits = [await counted.begin(None, "192.0.2.1") for _ in range(21)]
    assert [wait > 0 for wait in waits] == [False] * 20 + [True]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "_MOST_OF_NAME", 6)
    monkeypatch.setattr(attempts, "_MOST_REMEMBERED", 10)
    monkeypatch.setattr(sign_ins, "_MOST_ROWS", {"name IS NOT NULL": 10, "name IS NULL": 10})
    monkeypatch.setattr(sign_ins, "_ROWS_BETWEEN_PURGES", 1)


@pytest.mark.usefixtures("small")
async def test_attempts_without_a_name_push_no_name_out(counted: Attempts) -> None:
    for number in range(6):
        assert await counted.begin("ada", f"192.0.2.{number}") == 0
    for number in range(20):
        assert await counted.begin(None, f"198.51.100.{number}") == 0
    assert await counted.begin("ada", "192.0.2.200") > 0


async def test_two_control_planes_count_together(either_store: SqlStore) -> None:
    one, other = AttemptsInStore(either_store), AttemptsInStore(either_store)
    waits = [await each.begin("ada", "192.0.2.1") for each in (one, other) * 3]
    assert [wait > 0 for wait in waits] == [False] * 5 + [True]


async def test_strangers_fill_no_memory(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "_MOST_REMEMBERED", 30)
    counted = AttemptsInMemory(clock)
    for number in range(1000):
        await counted.begin(f"name-{number}", f"198.51.100.{number}")
    assert [len(each.entries) for each in counted._failed.values()] == [30] * 3


async def test_strangers_fill_no_table(
    either_store: SqlStore, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sign_ins, "_MOST_ROWS", {"name IS NOT NULL": 20, "name IS NULL": 10})
    monkeypatch.setattr(sign_ins, "_ROWS_BETWEEN_PURGES", 10)
    counted = AttemptsInStore(either_store)
    for number in range(100):
        await counted.begin(f"name-{number}" if number % 2 else None, f"198.51.100.{number}")
    assert 30 <= await _rows(either_store) < 40
    clock.advance(seconds=900)
    await counted.begin("ada", "192.0.2.1")
    assert await _rows(either_store) == 1


async def test_who_must_wait_makes_the_store_write_nothing(
    either_store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = AttemptsInStore(either_store)
    for _ in range(5):
        assert await counted.begin("ada", "192.0.2.1") == 0
    with monkeypatch.context() as patched:
        patched.setattr(either_store._database, "write", None)
        assert await counted.begin("ada", "192.0.2.1") > 0


async def test_who_must_wait_pushes_nothing_out_of_memory_and_fills_none(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempts, "_MOST_REMEMBERED", 60)
    counted = AttemptsInMemory(clock)
    for _ in range(5):
        assert await counted.begin("ada", "192.0.2.1") == 0
    waits = [await counted.begin(f"{number}-{chr(0x390) * 16_000}", "192.0.2.2") for number in range(500)]
    assert [wait > 0 for wait in waits] == [False] * 20 + [True] * 480
    assert await counted.begin("ada", "192.0.2.1") > 0
    assert sum(len(repr(each.entries)) for each in counted._failed.values()) < 60 * 2000


async def _rows(either_store: SqlStore) -> int:
    rows = await either_store._database.fetch("SELECT count(*) FROM sign_in_attempts")
    return int(rows[0][0])
