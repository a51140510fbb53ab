"""Tests of several control planes that share one store: which control planes run, lead and end."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from controlplane.app import running
from controlplane.doctor.control_planes import finding_on
from controlplane.leader import lead
from controlplane.presence import Presence
from controlplane.retention import Retention, WitnessedTime
from controlplane.secrets import MasterKeyError
from controlplane.settings import read_settings
from controlplane.store.instances import LEASE_MS
from controlplane.store.interface import (
    Instance,
    LogQuery,
    NewLogLine,
    Org,
    RunningInstance,
    StoreError,
)
from controlplane.store.open_store import open_store
from controlplane.store.sql_store import SqlStore
from tests.controlplane.plane import FakeClock, Plane, started, write_settings
from tests.controlplane.test_admin import Browser, operator

LINE = NewLogLine("ada", "192.0.2.1", "app.bind", "{}")

postgres_database = pytest.importorskip("controlplane.store.postgres_database")


@dataclass(frozen=True)
class TwoStores:
    """One database, with a store object for each of two control planes."""

    first: SqlStore
    second: SqlStore


@pytest.fixture
async def two(postgres_url: str, tmp_path: Path, clock: FakeClock) -> AsyncIterator[TwoStores]:
    async with AsyncExitStack() as stack:
        opened = []
        for name in ("first", "second"):
            store = await open_store(tmp_path, postgres_url, clock, None)
            stack.push_async_callback(store.close)
            store.use_as(name)
            await store.note_instance(Instance(name, f"host-{name} 1", "1.0"))
            opened.append(store)
        yield TwoStores(*opened)


async def under_way(store: SqlStore) -> list[bool]:
    return [line.under_way for line in await store.operator_log(LogQuery(limit=9))]


async def test_what_another_control_plane_does_is_under_way_until_that_one_has_died(
    two: TwoStores, clock: FakeClock
) -> None:
    position = await two.first.begin_log_line(LINE)
    assert await under_way(two.second) == await under_way(two.first) == [True]
    clock.advance(seconds=LEASE_MS / 1000)
    await two.second.note_instance(Instance("second", "host-second 1", "1.0"))
    assert await under_way(two.second) == [False]
    assert [each.instance.name for each in await two.second.running_instances()] == ["host-second 1"]

    await two.first.note_instance(Instance("first", "host-first 1", "1.0"))  # it was delayed, and not dead
    assert await under_way(two.second) == [True]
    await two.first.end_log_line(position, "done", ())
    assert await under_way(two.second) == [False]


async def test_a_line_of_a_control_plane_that_stopped_is_cut_short_at_once(two: TwoStores) -> None:
    await two.first.begin_log_line(LINE)
    await two.first.remove_instance("first")
    assert await under_way(two.second) == [False]


async def test_a_file_of_sqlite_is_for_one_control_plane(plane: Plane, tmp_path: Path) -> None:
    settings = read_settings(write_settings(tmp_path), {})
    with pytest.raises(StoreError, match="in use by another control plane, and SQLite allows only one"):
        async with running(settings, plane.clock):
            raise AssertionError
    (only,) = await plane.store.running_instances()
    assert only.instance.leads


async def test_a_file_may_lie_behind_a_link(tmp_path: Path, clock: FakeClock) -> None:
    (tmp_path / "var").mkdir(mode=0o700)
    (tmp_path / "disk.db").touch(mode=0o600)
    (tmp_path / "var" / "controlplane.db").symlink_to(tmp_path / "disk.db")
    async with started(tmp_path, clock) as plane:
        assert await plane.org("acme")


@pytest.fixture
async def planes(postgres_url: str, tmp_path: Path, clock: FakeClock) -> AsyncIterator[list[Plane]]:
    """Start two control planes on one database; both have the same master key."""
    first, second = (tmp_path / name / "var" for name in ("first", "second"))
    first.parent.mkdir()
    second.mkdir(parents=True, mode=0o700)
    async with AsyncExitStack() as stack:
        opened = [await stack.enter_async_context(started(first.parent, clock, **at(postgres_url)))]
        shutil.copy(first / "master.key", second)
        opened.append(await stack.enter_async_context(started(second.parent, clock, **at(postgres_url))))
        yield opened


def at(url: str) -> dict[str, str]:
    return {"Store": f'Url = "{url}"', "SearchIndex": f'Kind = "postgresql"\nUrl = "{url}"'}


async def test_failed_sign_ins_at_two_control_planes_are_counted_together(planes: list[Plane]) -> None:
    await operator(planes[0], "ada", {"*": "admin"})
    browsers = [Browser(plane.session, plane.console_url) for plane in planes]
    guesses = [(await browser.sign_in("ada", "wrong")).status for browser in browsers * 3]
    assert guesses == [401] * 5 + [429]
    assert {(await browser.sign_in("ada")).status for browser in browsers} == {429}


async def test_a_control_plane_with_another_master_key_is_refused(
    planes: list[Plane], postgres_url: str, tmp_path: Path, clock: FakeClock
) -> None:
    (tmp_path / "third" / "var").mkdir(parents=True, mode=0o700)
    with pytest.raises(MasterKeyError, match="is missing, but the store has secrets"):
        async with started(tmp_path / "third", clock, **at(postgres_url)):
            raise AssertionError
    (tmp_path / "third" / "var" / "master.key").write_text(f"{bytes(32).hex()}\n")
    with pytest.raises(MasterKeyError, match=r"master\.key: "):
        async with started(tmp_path / "third", clock, **at(postgres_url)):
            raise AssertionError


def sign(name: str, leads: bool, seen_ms: int) -> RunningInstance:
    return RunningInstance(Instance(name, name, "1.0", leads), 0, seen_ms)


@pytest.mark.parametrize(
    ("signs", "status", "said"),
    [
        ([sign("a", True, 99_000), sign("b", False, 95_000)], "ok", "2 run: a (leads); b"),
        # The leader was killed, and another control plane took over at once.
        (
            [sign("a", True, 88_000), sign("b", True, 89_000)],
            "ok",
            "1 runs: b (leads); a (last sign 12 s ago)",
        ),
        # No control plane took over.
        (
            [sign("a", True, 80_000), sign("b", False, 99_000)],
            "warn",
            "1 runs: b; a (last sign 20 s ago); none",
        ),
    ],
)
def test_doctor_names_one_leader(signs: list[RunningInstance], status: str, said: str) -> None:
    found = finding_on(signs, 100_000)
    assert (found.status, found.found[: len(said)]) == (status, said)


class Lease:
    """Fake peers with which a test decides when a control plane leads."""

    def __init__(self) -> None:
        self._leading, self._not_leading = asyncio.Event(), asyncio.Event()

    @property
    def leads(self) -> bool:
        return self._leading.is_set()

    def change(self, leads: bool) -> None:
        begun, ended = (self._leading, self._not_leading)
        (begun if leads else ended).set()
        (ended if leads else begun).clear()

    async def until_leading(self) -> None:
        await self._leading.wait()

    async def until_not_leading(self) -> None:
        await self._not_leading.wait()

    def announce(self) -> None:
        raise AssertionError

    async def run(self, on_events: object) -> None:
        raise AssertionError

    async def close(self) -> None:
        raise AssertionError


async def test_jobs_run_while_a_control_plane_leads() -> None:
    lease, begun, ended = Lease(), asyncio.Semaphore(0), asyncio.Semaphore(0)

    async def job() -> None:
        begun.release()
        try:
            await asyncio.Event().wait()
        finally:
            ended.release()

    leading = asyncio.create_task(lead(lease, lambda: [asyncio.create_task(job())]))
    for _ in range(2):
        lease.change(leads=True)
        await begun.acquire()
        lease.change(leads=False)
        await ended.acquire()
    lease.change(leads=True)
    await begun.acquire()
    leading.cancel()
    await ended.acquire()


async def test_a_control_plane_that_stopped_leaves_no_note(
    two: TwoStores, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that a stopped control plane leaves no presence record, even if its last write is slow."""
    written, has_begun, may_go_on = postgres_database._write, threading.Event(), threading.Event()

    def delayed(*given: Any) -> Any:
        monkeypatch.setattr(postgres_database, "_write", written)
        has_begun.set()
        assert may_go_on.wait(10)
        return written(*given)

    lease = Lease()
    lease.change(leads=True)
    presence = Presence(two.first, clock, lease, WitnessedTime())
    await presence.begin()
    run = asyncio.create_task(presence.run())
    await asyncio.sleep(0)
    monkeypatch.setattr(postgres_database, "_write", delayed)
    lease.change(leads=False)
    assert await asyncio.to_thread(has_begun.wait, 10)
    run.cancel()
    ending = asyncio.create_task(presence.end())
    await asyncio.wait([ending], timeout=0.1)  # the removal is not delayed
    may_go_on.set()
    await ending
    names = [each.instance.name for each in await two.second.running_instances()]
    assert names == ["host-first 1", "host-second 1"]


async def test_the_leader_purges_by_the_time_that_any_control_plane_witnessed(two: TwoStores) -> None:
    await two.first.add_org(Org("acme", "acme", "base", 1))
    await two.second.note_instance(Instance("second", "host-second 1", "1.0", witnessed_ms=1_000_000_000_000))
    seen: list[int] = []

    class Index:
        async def purge(self, org_id: str, before_ms: int, limit: int, newest: int | None = None) -> int:
            seen.append(before_ms)
            return 0

    clock = FakeClock()
    retention = Retention(two.first, Index(), clock, WitnessedTime(), 60)
    await retention.purge()
    assert seen == [1_000_000_000_000 - 30 * 86_400_000]
    ahead = Instance("second", "host-second 1", "1.0", witnessed_ms=clock.wall + 463 * 86_400_000)
    await two.second.note_instance(ahead)  # a proxy agreed with a clock that is wrong
    await retention.purge()
    clock.wall += 463 * 86_400_000  # even if the host of the leader has the same wrong clock
    await retention.purge()
    assert seen[1:] == [clock.steady - 30 * 86_400_000] * 2  # the clock of the database bounds both
