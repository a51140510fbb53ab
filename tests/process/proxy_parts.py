"""Helpers for tests of the whole proxy: the proxy's processes, a recording client, and the arrived events."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sqlite3
import ssl
import urllib.error
import urllib.request
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

import pytest

from tests.controlplane.processes import events_in
from tests.fakes.system import CODE, System
from tests.patience import PATIENCE_SECONDS

LONG: Final = os.environ.get("GRAPHWARD_LONG") == "1"
RULES: Final = """\
version: 1
name: {name}
default: {default}
rules:
  - id: no-secrets
    match: {{path: ["/v1.0/secrets/**"]}}
    verdict: block
"""
LIMITS: Final = {"Audit__RateLimitOrg": "100000", "Audit__RateLimitProxy": "100000"}


def rules_file(directory: Path, name: str = "open", default: str = "allow") -> Path:
    file = directory / f"{name}.yaml"
    file.write_text(RULES.format(name=name, default=default), "utf-8")
    return file


@asynccontextmanager
async def whole_system(
    directory: Path,
    *,
    workers: int = 2,
    environment: Mapping[str, str] | None = None,
    proxy_code: Path = CODE,
) -> AsyncIterator[System]:
    system = System(
        directory,
        {"app": rules_file(directory)},
        workers=workers,
        proxy_environment=environment,
        control_plane_environment=LIMITS,
        proxy_code=proxy_code,
    )
    async with system:
        yield system


async def until(condition: Callable[[], object], seconds: float = PATIENCE_SECONDS) -> None:
    """Poll the condition until it is true, because another process changes its value."""
    try:
        async with asyncio.timeout(seconds):
            while not await asyncio.to_thread(condition):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
    except TimeoutError:
        pytest.fail(f"not so within {seconds} s: {condition}")


# Processes


def processes(system: System, kind: str = "") -> dict[str, int]:
    """Return the process ids of the supervisor's children by name: "worker-0", "worker-1", "agent".

    During a reload, an old and a new process have the same name, and the newest process is returned.
    """
    supervisor = system.proxy.process.pid
    found: dict[str, int] = {}
    with contextlib.suppress(OSError):
        for pid in Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split():
            with contextlib.suppress(OSError):
                name = Path(f"/proc/{pid}/comm").read_text().strip().removeprefix("gw-")
                if name.startswith(kind) and name.startswith(("worker", "agent")):
                    found[name] = int(pid)
    return found


def rss_kib(pid: int) -> int:
    """Return the private memory of a process in KiB, without the mapped spool."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1])
    raise AssertionError("no RssAnon")


def alive(pid: int) -> bool:
    return _living_group(pid) is not None


def _living_group(pid: int | str) -> int | None:
    """Return the process group of a process that is alive, or None."""
    try:
        state, _, group = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:3]
    except OSError:
        return None
    return None if state == "Z" else int(group)


def lives(group: int) -> bool:
    """Return whether a process of the group is alive, even if the process has not set its name yet.

    Each process of the proxy has the listening sockets.
    """
    return any(_living_group(pid) == group for pid in os.listdir("/proc") if pid.isdigit())


async def kill_all(system: System) -> None:
    """Kill all processes of the proxy at the same moment."""
    group = system.proxy.process.pid
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)
    await system.proxy.process.wait()
    await until(lambda: not lives(group))


async def kill_control_plane(system: System) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(system.control_plane.process.pid, signal.SIGKILL)
    await system.control_plane.process.wait()


def get(url: str, context: ssl.SSLContext | None = None, **headers: str) -> tuple[int, bytes]:
    """Send one GET request on a new connection."""
    request = urllib.request.Request(url, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS, context=context) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def readiness(system: System) -> dict[str, Any]:
    try:
        status, body = get(f"{system.admin_url}/readyz")
    except OSError as error:
        return {"ready": False, "status": 0, "reasons": [str(error)], "checks": {}}
    return {**json.loads(body), "status": status}


def metrics(system: System) -> dict[str, float]:
    status, body = get(f"{system.admin_url}/metrics")
    assert status == 200
    lines = [line.rpartition(" ") for line in body.decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in lines}


def log_of(system: System) -> str:
    return system.proxy.log.read_text("utf-8", "replace")


# Events at the control plane


@contextlib.contextmanager
def store_of(system: System) -> Iterator[sqlite3.Connection]:
    """Open the store of the system's control plane, and close it at the end."""
    path = system.directory / "controlplane.db"
    with contextlib.closing(sqlite3.connect(path, timeout=PATIENCE_SECONDS)) as store:
        yield store


def events(system: System) -> list[dict[str, Any]]:
    """Return every event that the control plane stored, in the order of arrival."""
    with store_of(system) as store:
        return events_in(store)


def stored_paths(system: System) -> set[str]:
    with store_of(system) as store:
        return {event["path"] for event in events_in(store)}


def assert_no_gap(found: list[dict[str, Any]]) -> None:
    """Assert that the only organisation's sequence numbers run from 1 without gap or duplicate."""
    assert sorted(event["seq"] for event in found) == list(range(1, len(found) + 1))


# A client


class Closed(Exception):
    """Error because the connection ended before the response was complete.

    `idle` is True if a reused connection ended before any byte arrived, which HTTP allows a server at any
    time (RFC 9112 §9.3.1).
    """

    def __init__(self, *, idle: bool) -> None:
        super().__init__("idle" if idle else "within a response")
        self.idle = idle


@dataclass(slots=True)
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes


class Client:
    """Plain HTTP/1.1 client with one persistent connection at a time, and without hidden retries."""

    def __init__(self, system: System, context: ssl.SSLContext, token: str = "") -> None:
        self._port = int(system.proxy_url.rpartition(":")[2])
        self._context = context
        self.token = token
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._used = False
        self.connects = 0

    async def authenticate(self, system: System) -> None:
        app = system.applications["app"]
        form = urlencode(
            {
                "grant_type": "client_credentials",
                "client_id": app.client_id,
                "client_secret": app.client_secret,
            }
        ).encode()
        head = (
            f"POST /proxy/token HTTP/1.1\r\nHost: 127.0.0.1:{self._port}\r\nContent-Length: {len(form)}\r\n"
            "Content-Type: application/x-www-form-urlencoded\r\n\r\n"
        )
        reply = await self.exchange(head.encode() + form)
        assert reply.status == 200, reply.body
        self.token = json.loads(reply.body)["access_token"]

    async def get(self, target: str) -> Reply:
        head = f"GET {target} HTTP/1.1\r\nHost: 127.0.0.1:{self._port}\r\nAuthorization: Bearer {self.token}"
        return await self.exchange(head.encode() + b"\r\n\r\n")

    async def exchange(self, request: bytes) -> Reply:
        reader, writer = await self.connected()
        first = b""
        try:
            writer.write(request)
            first = await reader.read(1)
            if not first:
                raise ConnectionResetError
            reply = await self._read(first, reader)
        except (ConnectionError, asyncio.IncompleteReadError, ssl.SSLError):
            self.close()
            raise Closed(idle=self._used and not first) from None
        self._used = True
        if reply.headers.get("connection", "").lower() == "close":
            self.close()
        return reply

    async def connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._reader is None or self._writer is None:
            self._reader, self._writer = await asyncio.open_connection(
                "127.0.0.1", self._port, ssl=self._context, limit=1 << 20
            )
            self.connects += 1
            self._used = False
        return self._reader, self._writer

    def close(self) -> None:
        if self._writer is not None:
            self._writer.transport.abort()
        self._reader = self._writer = None

    async def _read(self, first: bytes, reader: asyncio.StreamReader) -> Reply:
        head = (first + await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        line, *fields = head[:-4].split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (each.partition(":") for each in fields)}
        status = int(line.split(" ")[1])
        if "chunked" in headers.get("transfer-encoding", ""):
            body = b""
            while size := int((await reader.readuntil(b"\r\n"))[:-2], 16):
                body += (await reader.readexactly(size + 2))[:-2]
            await reader.readexactly(2)
        else:
            body = await reader.readexactly(int(headers.get("content-length", "0")))
        return Reply(status, headers, body)


@asynccontextmanager
async def client_of(system: System) -> AsyncIterator[Client]:
    client = Client(system, system.client_context())
    await client.authenticate(system)
    try:
        yield client
    finally:
        client.close()


@dataclass
class Load:
    """Clients that send requests, each with a new path, until they are stopped.

    Each client pauses after each response, so that two processors are left for the servers.
    """

    system: System
    clients: int = 8
    pause: float = 0.01  # seconds between a response and the next request of the same client
    kept: bool = True  # reuse connections; otherwise open one for each request
    responded: dict[str, int] = field(default_factory=dict)  # path -> status, of completed responses
    served: int = 0  # number of these with status 200
    idle_closes: int = 0
    refused_connects: int = 0
    broken: list[str] = field(default_factory=list)  # violations of HTTP
    connections: int = 0

    async def __aenter__(self) -> Load:
        async with client_of(self.system) as first:
            self._token = first.token
        self._context = self.system.client_context()
        self._stopped = False
        self._tasks = [asyncio.create_task(self._ask()) for _ in range(self.clients)]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stopped = True
        await asyncio.wait_for(asyncio.gather(*self._tasks), PATIENCE_SECONDS)

    def statuses(self) -> set[int]:
        return set(self.responded.values())

    async def responses(self, count: int) -> None:
        """Wait until the clients have received `count` more responses."""
        target = len(self.responded) + count
        async with asyncio.timeout(PATIENCE_SECONDS):
            while len(self.responded) < target:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    async def _ask(self) -> None:
        client = Client(self.system, self._context, self._token)
        while not self._stopped:
            path = f"/v1.0/echo/{uuid.uuid4()}"
            try:
                await client.connected()
            except OSError:
                self.refused_connects += 1
                await asyncio.sleep(0.02)
                continue
            try:
                reply = await client.get(path)
            except Closed as closed:
                if closed.idle:
                    self.idle_closes += 1
                else:
                    self.broken.append(path)
                continue
            self.responded[path] = reply.status
            self.served += reply.status == 200
            if not self.kept:
                client.close()
            # Pause after a 503, in place of the Retry-After that a real client would follow.
            await asyncio.sleep(0.05 if reply.status == 503 else self.pause)
        self.connections += client.connects
        client.close()


async def status_becomes(client: Client, target: str, status: int) -> None:
    """Send requests on one connection until the response has the status.

    The sync interval in these tests is one second, and jitter only makes the interval shorter.
    """
    async with asyncio.timeout(PATIENCE_SECONDS):
        while (await client.get(target)).status != status:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
