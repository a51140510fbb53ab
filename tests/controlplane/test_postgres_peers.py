"""Tests of control planes that share a PostgreSQL database: one leads, and another takes over from it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from controlplane.store.interface import Instance, Peers
from tests.controlplane.plane import FakeClock
from tests.fakes.postgres import PostgresServer
from tests.patience import PATIENCE_SECONDS

psycopg = pytest.importorskip("psycopg")

from controlplane.store import postgres_peers  # noqa: E402
from controlplane.store.postgres import PostgresStore  # noqa: E402


@dataclass
class Member:
    peers: Peers
    run: asyncio.Task[None]
    woken: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))

    async def leave(self) -> None:
        self.run.cancel()
        await asyncio.gather(self.run, return_exceptions=True)


Join = Callable[[], Member]


@pytest.fixture
async def join(postgres_url: str, clock: FakeClock) -> AsyncIterator[Join]:
    store = await PostgresStore.open(postgres_url, clock)
    members: list[Member] = []

    def joined() -> Member:
        peers = store.join()
        woken = asyncio.Semaphore(0)
        members.append(Member(peers, asyncio.create_task(peers.run(woken.release)), woken))
        return members[-1]

    yield joined
    for member in members:
        await member.leave()
    await store.close()


@asynccontextmanager
async def soon() -> AsyncIterator[None]:
    async with asyncio.timeout(PATIENCE_SECONDS):
        yield


async def test_one_leads_and_another_takes_over_when_it_ends(join: Join) -> None:
    async with soon():
        first = join()
        await first.peers.until_leading()
        second = join()
        await second.woken.acquire()  # it has a session
        second.peers.announce()
        await first.woken.acquire()
        assert (first.peers.leads, second.peers.leads) == (True, False)
        await first.leave()
        assert not first.peers.leads
        await second.peers.until_leading()


async def test_who_loses_its_session_leads_no_more(join: Join, postgres: PostgresServer) -> None:
    async with soon():
        first = join()
        await first.peers.until_leading()
        await asyncio.to_thread(postgres.end_sessions, "migrated")
        await first.peers.until_not_leading()
        await first.peers.until_leading()


async def test_who_stalls_leads_no_more(join: Join, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that hangs closes no connection, so PostgreSQL must release the lock of the process."""
    async with soon():
        with monkeypatch.context() as patched:
            patched.setattr(postgres_peers, "_STALLED_MS", 500)
            patched.setattr(postgres_peers, "_LOOK_SECONDS", 60)
            first = join()
            await first.peers.until_leading()
        second = join()
        await second.peers.until_leading()
        await first.peers.until_not_leading()


async def test_the_server_looks_within_ten_seconds_if_a_host_vanished(
    postgres: PostgresServer, postgres_url: str, clock: FakeClock
) -> None:
    """PostgreSQL must not keep the sessions of a vanished host, with locks and slots, for two hours."""
    store = await PostgresStore.open(postgres.url_over_tcp("migrated"), clock)
    peers = store.join()
    run = asyncio.create_task(peers.run(lambda: None))
    try:
        async with soon():
            await peers.until_leading()
            await store.note_instance(Instance("one", "one", "1.0"))
            await store.running_instances()
            waits = keepalives(postgres.port)
            while {timer for timer, _ in waits} != {"02"}:  # until no data is in flight
                await asyncio.sleep(0.01)
                waits = keepalives(postgres.port)
        # The first one leads, the second writes, the third reads.
        assert [seconds <= 10 for _, seconds in waits] == [True] * 3
    finally:
        await Member(peers, run).leave()
        await store.close()


def keepalives(port: int) -> list[tuple[str, float]]:
    """Return the timer (02: keepalive) of each PostgreSQL connection, and the seconds left on the timer."""
    found = []
    for line in Path("/proc/net/tcp").read_text("ascii").splitlines()[1:]:
        _, local, _, state, _, timer, *_ = line.split()
        if local.endswith(f":{port:04X}") and state == "01":
            active, _, ticks = timer.partition(":")
            found.append((active, int(ticks, 16) / os.sysconf("SC_CLK_TCK")))
    return found


async def test_events_of_another_control_plane_are_announced_at_once(
    join: Join, postgres: PostgresServer
) -> None:
    async with soon():
        first, second = join(), join()
        await first.woken.acquire()
        await second.woken.acquire()
        for _ in range(2):
            first.peers.announce()
            first.peers.announce()
            await second.woken.acquire()
        await asyncio.to_thread(postgres.end_sessions, "migrated")
        await second.woken.acquire()  # events may have been missed
        while True:  # the other control plane may have no session yet
            first.peers.announce()
            try:
                async with asyncio.timeout(0.5):
                    await second.woken.acquire()
                break
            except TimeoutError:
                continue
