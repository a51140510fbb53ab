"""Tests with thousands of slow connections at once: a few normal connections are served throughout.

The proxy uses no more memory than the connections themselves need.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Final
from urllib.parse import urlencode

import pytest

from tests.fakes.system import ROOT, System
from tests.patience import PATIENCE_SECONDS
from tests.process.proxy_parts import LIMITS, LONG, get, processes, rss_kib, rules_file, until

pytestmark = pytest.mark.process

SLOW: Final = 10_000 if LONG else 1_000
GOOD_REQUESTS: Final = 2_000 if LONG else 200
KIB_OF_A_CONNECTION: Final = 48  # KiB in user space: heads, bodies and begun responses included
KINDS: Final = ("head", "idle", "body", "reader")


class PlainSystem(System):
    """A test system without TLS for applications, because 10,000 handshakes would mostly test OpenSSL."""

    @property
    def proxy_url(self) -> str:
        return super().proxy_url.replace("https:", "http:")

    def _proxy_settings(self, keys: Mapping[str, str]) -> str:
        lines = super()._proxy_settings(keys).splitlines(keepends=True)
        return "".join(line for line in lines if not line.startswith(("CertFile", "KeyFile")))


@pytest.fixture(autouse=True)
def many_descriptors() -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard < 2 * SLOW:
        pytest.skip(f"only {hard} descriptors here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


@contextlib.asynccontextmanager
async def plain_system(directory: Path, **settings: str) -> AsyncIterator[System]:
    system = PlainSystem(
        directory,
        {"app": rules_file(directory)},
        workers=2,
        proxy_environment={"Proxy__MaxConnectionsPerAddress": "20000", **settings},
        control_plane_environment=LIMITS,
    )
    async with system:
        yield system


def address(system: System) -> tuple[str, int]:
    host, _, port = system.proxy_url.removeprefix("http://").partition(":")
    return host, int(port)


async def token_of(system: System) -> str:
    app = system.applications["app"]
    form = {
        "grant_type": "client_credentials",
        "client_id": app.client_id,
        "client_secret": app.client_secret,
    }
    body = urlencode(form)
    head = (
        "POST /proxy/token HTTP/1.1\r\nHost: p\r\nContent-Type: application/x-www-form-urlencoded\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    response = await exchanged(system, (head + body).encode())
    return response.partition(b'"access_token":"')[2].partition(b'"')[0].decode()


async def exchanged(system: System, request: bytes) -> bytes:
    """Send bytes on a new connection to the proxy.

    Return all bytes that the proxy sends on the connection.
    """
    reader, writer = await asyncio.open_connection(*address(system))
    try:
        writer.write(request)
        return await reader.read()
    finally:
        writer.close()


def good_request(token: str, number: int) -> bytes:
    return (
        f"GET /v1.0/echo/{number} HTTP/1.1\r\nHost: p\r\nAuthorization: Bearer {token}\r\n"
        "Connection: close\r\n\r\n"
    ).encode()


def opening(kind: str, token: str) -> bytes:
    """Return the bytes that a slow connection sends at once, before it continues with single bytes."""
    authorised = f"Host: p\r\nAuthorization: Bearer {token}\r\n"
    if kind == "head":
        return b"GET /v1.0/echo HTTP/1.1\r\nHost: p\r\nX-Drip: "
    if kind == "body":
        return f"POST /v1.0/echo HTTP/1.1\r\n{authorised}Content-Length: 60000\r\n\r\n".encode()
    if kind == "reader":
        return f"GET /v1.0/users HTTP/1.1\r\n{authorised}\r\n".encode() * 40
    return b""


class SlowConnections:
    """Many slow connections to the proxy, with the same number of connections for each kind of slow client.

    After their first bytes, the clients send single bytes or nothing, and no client reads a response.
    """

    def __init__(self, system: System, token: str, count: int) -> None:
        self._address = address(system)
        self._token = token
        self._count = count
        self._sockets: list[tuple[str, socket.socket]] = []

    async def __aenter__(self) -> SlowConnections:
        loop = asyncio.get_running_loop()
        for number in range(self._count):
            kind = KINDS[number % len(KINDS)]
            each = socket.socket()
            each.setblocking(False)
            self._sockets.append((kind, each))
            await loop.sock_connect(each, self._address)
            if opening(kind, self._token):
                await loop.sock_sendall(each, opening(kind, self._token))
        self._dripping = asyncio.create_task(self._drip())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._dripping.cancel()
        await asyncio.gather(self._dripping, return_exceptions=True)
        for _kind, each in self._sockets:
            each.close()

    async def _drip(self) -> None:
        while True:
            for number, (kind, each) in enumerate(self._sockets):
                if kind in ("head", "body"):
                    with contextlib.suppress(OSError):  # the proxy has aborted it
                        each.send(b"a")
                if number % 100 == 0:
                    await asyncio.sleep(0)
            await asyncio.sleep(1)


def no_reader_is_served(system: System) -> bool:
    """Return True if the proxy responds to no new request within half a second."""
    before = metric(system, "graphward_requests_total")
    time.sleep(0.5)
    return metric(system, "graphward_requests_total") == before


def connections_open(system: System) -> int:
    return metric(system, "graphward_connections_open")


def metric(system: System, name: str) -> int:
    text = get(f"{system.admin_url}/metrics")[1].decode()
    (line,) = [each for each in text.splitlines() if each.startswith(f"{name} ")]
    return int(float(line.split()[1]))


async def good_ones(system: System, token: str, count: int) -> list[float]:
    """Send `count` consecutive requests, and return the duration of each in seconds."""
    seconds = []
    for number in range(count):
        began = time.perf_counter()
        response = await exchanged(system, good_request(token, number))
        seconds.append(time.perf_counter() - began)
        assert response.startswith(b"HTTP/1.1 200 "), response[:200]
        assert f"/v1.0/echo/{number}".encode() in response
    return seconds


async def test_slow_connections_do_not_hold_up_good_ones(tmp_path: Path) -> None:
    until_ready = {"Proxy__HeadTimeoutSeconds": "600", "Proxy__BodyGraceSeconds": "600"}
    async with plain_system(tmp_path, **until_ready) as system:
        token = await token_of(system)
        alone = await good_ones(system, token, GOOD_REQUESTS)
        workers = processes(system, "worker")
        before = sum(rss_kib(pid) for pid in workers.values())
        async with SlowConnections(system, token, SLOW):
            await until(lambda: connections_open(system) >= SLOW)
            await until(lambda: no_reader_is_served(system), 120)
            beside = await good_ones(system, token, GOOD_REQUESTS)
            # The proxy may have aborted connections of clients that did not read for a minute.
            assert connections_open(system) >= SLOW * 3 // 4
            grown = sum(rss_kib(pid) for pid in workers.values()) - before
            assert grown < SLOW * KIB_OF_A_CONNECTION
            assert processes(system, "worker") == workers
        await until(lambda: connections_open(system) < 10)
        await until(lambda: metric(system, "graphward_requests_in_flight") == 0)
    print(f"\n{SLOW} slow connections: {grown / SLOW:.1f} KiB each")
    for name, seconds in (("alone", alone), ("beside them", beside)):
        ranked = sorted(seconds)
        median, late = statistics.median(ranked), ranked[int(len(ranked) * 0.99)]
        print(f"good requests {name}: median {median * 1000:.1f} ms, p99 {late * 1000:.1f} ms")


async def test_the_slow_are_cut_and_the_reason_is_counted(tmp_path: Path) -> None:
    hasty = {
        "Proxy__HeadTimeoutSeconds": "3",
        "Proxy__BodyGraceSeconds": "3",
        "Proxy__IdleTimeoutSeconds": "3",
    }
    async with plain_system(tmp_path, **hasty) as system:
        token = await token_of(system)
        async with SlowConnections(system, token, 100):
            await until(lambda: metric(system, "graphward_limit_head_timeout_total") >= 25)
            await until(lambda: metric(system, "graphward_limit_body_rate_total") >= 25)
            await until(lambda: metric(system, "graphward_limit_idle_timeout_total") >= 25)
            await good_ones(system, token, 10)


async def test_one_address_s_flood_leaves_room_for_its_own_limit_only(tmp_path: Path) -> None:
    async with plain_system(tmp_path, Proxy__MaxConnectionsPerAddress="50", Proxy__Workers="1") as system:
        token = await token_of(system)
        async with SlowConnections(system, token, 300):
            await until(lambda: metric(system, "graphward_limit_address_connections_total") >= 250)
            response = await exchanged(system, good_request(token, 1))
            assert response.startswith(b"HTTP/1.1 503 ")
            assert b"Retry-After: 1" in response
        await until(lambda: connections_open(system) < 10)
        await good_ones(system, token, 10)


HELD_MIB: Final = 32
BATCH_BYTES: Final = 4_000_000


async def test_bodies_beyond_the_limit_cost_no_memory(tmp_path: Path) -> None:
    """The clients send ten times the memory limit: excess requests get 503, and the memory is released."""
    settings = {"Proxy__MaxHeldBytes": str(HELD_MIB << 20), "Proxy__Workers": "1"}
    async with plain_system(tmp_path, **settings) as system:
        token = await token_of(system)
        (worker,) = processes(system, "worker").values()
        before = rss_kib(worker)
        request = (
            f"POST /v1.0/$batch HTTP/1.1\r\nHost: p\r\nAuthorization: Bearer {token}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {BATCH_BYTES}\r\n\r\n"
        ).encode() + b" " * (BATCH_BYTES - 1)
        asking = [asyncio.create_task(first_line(system, request)) for _ in range(80)]
        refused = 0
        for responded in asyncio.as_completed(asking):
            line = await responded
            assert line in (b"HTTP/1.1 503 Service Unavailable\r\n", b""), line
            refused += 1
            # the others, seven or more, are buffered and wait for their last byte
            if refused == len(asking) - 8:
                break
        assert metric(system, "graphward_limit_held_bytes_total") >= refused
        assert rss_kib(worker) - before < (HELD_MIB + 32) * 1024
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
        await until(lambda: connections_open(system) == 0)
        await good_ones(system, token, 10)


async def first_line(system: System, request: bytes) -> bytes:
    """Return the first line of the response, or an empty text if the connection closed during the upload."""
    reader, writer = await asyncio.open_connection(*address(system))
    try:
        writer.write(request)
        return await reader.readline()
    except ConnectionError:
        return b""
    finally:
        writer.transport.abort()


DESCRIPTORS: Final = """
import os, resource, sys
from pathlib import Path
resource.setrlimit(resource.RLIMIT_NOFILE, (2000, 4000))
from proxy.startup.settings import load
from proxy.worker.main import _affordable_connections
print(_affordable_connections(load(Path(sys.argv[1]), {})))
"""
SETTINGS: Final = """
Agent = {ApiKey = "a", HmacSecret = "b"}
RuleSync = {SaasBaseUrl = "http://127.0.0.1:9"}
Credentials = {Provider = "static", AccessToken = "c"}
"""


@pytest.mark.parametrize(("wanted", "affordable"), [(20_000, 2000 - 256 - 128), (1000, 1000)])
def test_a_worker_has_no_more_connections_than_descriptors(
    tmp_path: Path, wanted: int, affordable: int
) -> None:
    """Each worker reserves some file descriptors for upstream connections."""
    file = tmp_path / "proxy.toml"
    file.write_text(f"{SETTINGS}Proxy = {{MaxConnections = {wanted}}}\n", "utf-8")
    command = [sys.executable, "-c", DESCRIPTORS, str(file)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=True
    )
    assert done.stdout.split() == [str(affordable)]
    assert ("1616 of 20000 client connections" in done.stderr) is (wanted > affordable)
