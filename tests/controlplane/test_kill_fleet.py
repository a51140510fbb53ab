"""Tests that kill two control planes on one PostgreSQL, and the database itself, under load."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any, Final

import aiohttp
import pytest

from controlplane.clock import SystemClock
from controlplane.integrity import walk
from controlplane.live_tail import LiveTail
from controlplane.master_key import open_vault
from controlplane.operations.context import OperationContext
from controlplane.search.interface import SearchIndex
from controlplane.secrets import Vault, hash_password
from controlplane.settings import read_settings
from controlplane.store.interface import Operator, StoreError
from tests.controlplane.inventory import Inventory
from tests.controlplane.plane import AUDIT, ProxyClient, event, write_settings
from tests.controlplane.test_admin import PASSWORD, Browser
from tests.fakes import commands
from tests.fakes.ports import free_port
from tests.fakes.postgres import PostgresServer
from tests.patience import PATIENCE_SECONDS
from tests.process.proxy_parts import LONG

pytest.importorskip("psycopg")

from controlplane.store.postgres import PostgresStore

pytestmark = [pytest.mark.process, pytest.mark.timeout(660 if LONG else 300)]

OF_PROXY, OF_ORG = 60, 100  # batches a minute, the defaults
EVENTS: Final = 3  # events per batch
ROUNDS = 30 if LONG else 3
KILL_EVERY = 60  # acknowledged batches between kills
MINUTE_MS: Final = 60_000
PAUSE_SECONDS: Final = 1.0  # between two batches that exceed the rate limits
# A tail that only polls shows each batch five seconds after the batch before: six batches in 25 seconds.
SIX_BATCHES_SECONDS: Final = 15.0


async def eventually(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            if await holds():
                return
            await asyncio.sleep(0.05)


@dataclass
class ControlPlane:
    config: Path
    agents: int  # ports of its agents
    console: int
    log: IO[bytes]
    process: commands.Server | None = None

    def start(self) -> None:
        self.process = commands.Server("--config", str(self.config), environment={}, log=self.log)

    async def kill(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        await self.process.wait()

    async def stop(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        assert await self.process.wait() == 0

    async def status(self, session: aiohttp.ClientSession, path: str) -> int:
        """Return the status of the response, or 0 if there is no response."""
        try:
            async with session.get(f"http://127.0.0.1:{self.agents}{path}") as response:
                return response.status
        except aiohttp.ClientError:
            return 0

    async def until_ready(self, session: aiohttp.ClientSession) -> None:
        await eventually(lambda: self.is_ready(session))

    async def is_ready(self, session: aiohttp.ClientSession) -> bool:
        return await self.status(session, "/readyz") == 200


@asynccontextmanager
async def one_address(ports: Sequence[int]) -> AsyncIterator[str]:
    """Run a load balancer that sends each connection to any port that accepts it."""
    chance = random.Random(1)

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            for port in chance.sample(ports, len(ports)):
                with suppress(OSError):
                    from_there, to_there = await asyncio.open_connection("127.0.0.1", port)
                    await asyncio.gather(_copy(reader, to_there), _copy(from_there, writer))
                    return
        finally:
            writer.close()

    server = await asyncio.start_server(forward, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while piece := await reader.read(65536):
            writer.write(piece)
            await writer.drain()
    writer.close()


@dataclass
class Fleet:
    planes: list[ControlPlane]
    session: aiohttp.ClientSession  # opens a connection for each request
    agents_url: str
    console_url: str
    store: PostgresStore
    vault: Vault
    inventory: Inventory
    proxies: list[ProxyClient] = field(default_factory=list)

    async def add_org(self, name: str, proxies: int) -> None:
        org = await self.inventory.add_org(name, "base")
        for number in range(proxies):
            made = await self.inventory.add_proxy(f"{name}-{number}", [name])
            secrets = made.proxy_id, made.api_key, made.hmac_secret
            self.proxies.append(
                ProxyClient(self.session, self.agents_url, SystemClock(), *secrets, org_ids=[org.org_id])
            )


@pytest.fixture
async def fleet(postgres: PostgresServer, tmp_path: Path) -> AsyncIterator[Fleet]:
    async with AsyncExitStack() as stack:
        url = stack.enter_context(postgres.new_database("killed"))
        planes = []
        for number in range(2):
            agents, console = free_port(), free_port()
            folder = tmp_path / str(number)
            folder.mkdir()
            config = write_settings(
                folder,
                Store=f'Url = "{url}"',
                SearchIndex=f'Kind = "postgresql"\nUrl = "{url}"',
                Console=f'Listen = "127.0.0.1:{console}"',
            )
            text = config.read_text().replace('Listen = "127.0.0.1:0"', f'Listen = "127.0.0.1:{agents}"', 1)
            config.write_text(text.replace("var/master.key", str(tmp_path / "master.key")))
            log = stack.enter_context((folder / "log").open("w+b"))
            planes.append(ControlPlane(config, agents, console, log))
        connector = aiohttp.TCPConnector(force_close=True, limit=0)
        session = await stack.enter_async_context(
            aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar())
        )
        settings = read_settings(planes[0].config, {})
        store = await PostgresStore.open(url, SystemClock())
        stack.push_async_callback(store.close)
        vault = await open_vault(settings.secrets, store)
        for plane in planes:
            plane.start()
            stack.push_async_callback(plane.kill)
        for plane in planes:
            await plane.until_ready(session)

        async def opened() -> Vault:
            return vault

        async def index() -> SearchIndex:
            raise AssertionError

        context = OperationContext(settings, store, SystemClock(), opened, index, LiveTail(store))
        yield Fleet(
            planes,
            session,
            await stack.enter_async_context(one_address([plane.agents for plane in planes])),
            await stack.enter_async_context(one_address([plane.console for plane in planes])),
            store,
            vault,
            Inventory(context),
        )


@dataclass
class Load:
    """Proxies that send one batch after another, and repeat each batch until it is accepted or refused."""

    chance: random.Random
    acknowledged: dict[str, list[str]] = field(default_factory=dict)  # events of each proxy, in order
    batches: int = 0
    is_over: asyncio.Event = field(default_factory=asyncio.Event)  # set when no more kills follow
    more: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def send_all(self, proxy: ProxyClient) -> None:
        """Send more batches of audit events than the rate limits allow."""
        for number in itertools.count():
            if number >= OF_PROXY + 4 and self.is_over.is_set():
                return
            if not await self.send(proxy, str(number)) and number >= OF_PROXY + 4:
                with suppress(TimeoutError):
                    async with asyncio.timeout(PAUSE_SECONDS):
                        await self.is_over.wait()

    async def send(self, proxy: ProxyClient, name: str) -> bool:
        """Send one batch with events that continue the sequence of the accepted events.

        Return True if the control plane accepts the batch.
        """
        events = self.acknowledged.setdefault(proxy.proxy_id, [])
        ids = [f"{proxy.proxy_id}-{len(events) + each + 1}" for each in range(EVENTS)]
        body = self._body(proxy, f"{proxy.proxy_id}-{name}", ids, len(events) + 1)
        is_accepted = await self._is_accepted(proxy, body)
        if is_accepted:
            events += ids
            await self._note()
        return is_accepted

    async def _note(self) -> None:
        async with self.more:
            self.batches += 1
            self.more.notify_all()

    async def until(self, batches: int) -> None:
        async with self.more:
            await self.more.wait_for(lambda: self.batches >= batches)

    def _body(self, proxy: ProxyClient, batch_id: str, ids: Sequence[str], first: int) -> bytes:
        now = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime())
        events = [event(proxy.org_ids[0], first + at, id=id_, time=now) for at, id_ in enumerate(ids)]
        return json.dumps({"batchId": batch_id, "events": events}).encode()

    async def _is_accepted(self, proxy: ProxyClient, body: bytes) -> bool:
        """Send a batch to the address of both control planes, and sometimes send it twice at once.

        A load balancer chooses the control plane for each copy. Return True if a control plane accepts the
        batch.
        """
        copies = 2 if self.chance.random() < 0.3 else 1
        statuses = await asyncio.gather(*(self._status(proxy, body) for _ in range(copies)))
        return 202 in statuses

    async def _status(self, proxy: ProxyClient, body: bytes) -> int:
        while True:
            with suppress(aiohttp.ClientError):
                response = await proxy.send(AUDIT, body)
                if response.status in (202, 429):
                    return response.status
                assert (response.status, response.headers["Retry-After"]) in ((503, "1"), (503, "5"))
            await asyncio.sleep(0.05)


async def follow(store: PostgresStore, seen: list[int]) -> None:
    """Read the store's events in the order of their positions, as the live tail does."""
    while True:
        try:
            events = await store.events_after(seen[-1] if seen else 0, 500)
        except StoreError:
            events = []
        seen += [each.position for each in events]
        if not events:
            await asyncio.sleep(0.02)


async def use_console(browser: Browser, statuses: Counter[int]) -> None:
    while True:
        try:
            statuses[(await browser.send("GET", "/session")).status] += 1
        except aiohttp.ClientError:
            statuses[0] += 1
        await asyncio.sleep(0.05)


async def kill_in_turn(fleet: Fleet, load: Load, postgres: PostgresServer) -> None:
    """Kill one control plane after every `KILL_EVERY` acknowledged batches, and kill the database once."""
    for number in range(ROUNDS):
        await load.until(KILL_EVERY * (number + 1))
        plane = load.chance.choice(fleet.planes)
        await plane.kill()
        if number == 1:
            await lose_database(fleet, postgres)
        plane.start()
        await plane.until_ready(fleet.session)


async def lose_database(fleet: Fleet, postgres: PostgresServer) -> None:
    (other,) = [each for each in fleet.planes if await each.is_ready(fleet.session)]
    await asyncio.to_thread(postgres.kill)
    assert await other.status(fleet.session, "/readyz") == 503
    assert await other.status(fleet.session, "/healthz") == 200
    postgres.start()  # PostgreSQL ends with the thread that started it
    await other.until_ready(fleet.session)


async def test_kills_lose_no_acknowledged_batch_double_none_and_sign_nobody_out(
    fleet: Fleet, postgres: PostgresServer
) -> None:
    for number in range(4):
        await fleet.add_org(f"pair-{number}", proxies=2)
    for number in range(2):
        await fleet.add_org(f"alone-{number}", proxies=1)
    hashed = hash_password(PASSWORD)
    await fleet.store.add_operator(Operator("id-of-ada", "ada", hashed, True, 1, {"*": "admin"}))
    browser = Browser(fleet.session, fleet.console_url)
    assert (await browser.sign_in("ada")).status == 200

    load, seen, statuses = Load(random.Random(7)), list[int](), Counter[int]()
    await _tail_shows_events_of_the_other(fleet, browser, load)
    beside = [
        asyncio.create_task(follow(fleet.store, seen)),
        asyncio.create_task(use_console(browser, statuses)),
    ]
    sending = asyncio.gather(*(load.send_all(proxy) for proxy in fleet.proxies))
    async with asyncio.timeout(600 if LONG else 240):
        await kill_in_turn(fleet, load, postgres)
        load.is_over.set()
        await sending
    assert all(not each.done() for each in beside)
    events = await fleet.store.events_after(0, 1_000_000)
    await eventually(lambda: _is_at(seen, len(events)))
    for each in beside:
        each.cancel()

    # Each acknowledged event is stored once, and no other event is stored.
    stored = Counter(json.loads(each.body)["id"] for each in events)
    assert stored == Counter(id_ for ids in load.acknowledged.values() for id_ in ids)
    assert max(stored.values()) == 1
    # No event appeared at a position that the reader had passed.
    assert seen == [each.position for each in events]
    # All sessions are still valid.
    assert statuses[200] > 0
    assert not statuses.keys() - {200, 503, 0}
    # Another control plane continues the search index.
    assert Counter(await _found(browser)) == stored
    await _check_proxies(fleet, load)
    await _check_limits(fleet)
    for org in await fleet.store.orgs():
        async for at in walk(fleet.vault, fleet.store, org.org_id, None):
            assert at.misfit is None
    for plane in fleet.planes:
        await plane.stop()


async def _tail_shows_events_of_the_other(fleet: Fleet, browser: Browser, load: Load) -> None:
    """Check that a live tail shows new events without delay, although it polls the store every 5 s."""
    first, second = fleet.planes
    url, headers = f"http://127.0.0.1:{first.console}/admin/v1/audit/tail", {"Cookie": browser.cookie}
    async with fleet.session.get(url, headers=headers) as response:
        await response.content.readuntil(b"\n\n")
        proxy = replace(fleet.proxies[0], base_url=f"http://127.0.0.1:{second.agents}")
        async with asyncio.timeout(SIX_BATCHES_SECONDS):
            for number in range(6):
                assert await load.send(proxy, f"tail-{number}")
                last = load.acknowledged[proxy.proxy_id][-1].encode()
                while last not in await response.content.readuntil(b"\n\n"):
                    pass


async def _is_at(seen: Sequence[int], count: int) -> bool:
    return len(seen) >= count


async def _found(browser: Browser) -> list[str]:
    found: list[str] = []
    following: str | None = ""
    while following is not None:
        response = await browser.send("GET", f"/audit/events?limit=1000{following}")
        assert response.status == 200
        page = response.json
        following = None if page["next"] is None else f"&cursor={page['next']}"
        assert not page["behind"]
        found += [each["id"] for each in page["events"]]
    return found


async def _check_proxies(fleet: Fleet, load: Load) -> None:
    """Check that no sequence number is missing or was stored twice."""
    for proxy in fleet.proxies:
        (state,) = await fleet.store.sequences(proxy.proxy_id, 10)
        assert state.highest == len(load.acknowledged[proxy.proxy_id])
        assert (state.gaps, state.unlisted, state.repeated) == ((), 0, 0)


async def _check_limits(fleet: Fleet) -> None:
    """Check that the batches accepted in a minute never exceeded the limits, and reached the limits once."""
    rows: list[Any] = await fleet.store._database.fetch(
        "SELECT b.accepted_ms, b.proxy_id, p.org_id FROM batches AS b"
        " JOIN proxy_orgs AS p ON p.proxy_id = b.proxy_id ORDER BY b.accepted_ms"
    )
    times = [time_ms for time_ms, _, _ in rows]
    of_proxy = {proxy.proxy_id: [t for t, p, _ in rows if p == proxy.proxy_id] for proxy in fleet.proxies}
    of_org = {org.org_id: [t for t, _, o in rows if o == org.org_id] for org in await fleet.store.orgs()}
    assert max(map(_most_in_a_minute, of_proxy.values())) <= OF_PROXY
    assert max(map(_most_in_a_minute, of_org.values())) <= OF_ORG
    if times[-1] - times[0] < MINUTE_MS:
        assert sorted(map(len, of_org.values())) == [OF_PROXY] * 2 + [OF_ORG] * 4


def _most_in_a_minute(times: Sequence[int]) -> int:
    return max(sum(begin <= each < begin + MINUTE_MS for each in times) for begin in times)
