"""A control plane on real sockets and files, with a fake clock and a test proxy with its own signing code."""

from __future__ import annotations

import hashlib
import hmac
import io
import json
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from argon2 import PasswordHasher
from multidict import CIMultiDict

from controlplane.app import Addresses, running
from controlplane.clock import Clock
from controlplane.live_tail import LiveTail
from controlplane.master_key import open_vault
from controlplane.operations.context import OperationContext
from controlplane.retention import WitnessedTime
from controlplane.search.interface import SearchIndex
from controlplane.secrets import Vault
from controlplane.settings import Settings, read_settings
from controlplane.store.interface import Retention, Store
from controlplane.store.open_store import open_store
from controlplane.store.sql_store import SqlStore
from tests.controlplane.inventory import Inventory
from tests.controlplane.new_store import put_new_store
from tests.fakes.clock import NOON_MS as NOON_MS
from tests.fakes.clock import FakeClock as FakeClock

SYNC = "/api/v1/agent/sync"
HEARTBEAT = "/api/v1/agent/heartbeat"
AUDIT = "/api/v1/agent/audit"
METRICS = "/api/v1/agent/metrics"

CHEAP = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)

RULESET = (
    "version: 1\nname: {name}\nrules:\n  - id: r1\n    match: {{path: [/v1.0/users]}}\n    verdict: allow\n"
)


@dataclass(frozen=True)
class Response:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        return str(self.json["error"]["code"])


@dataclass
class ProxyClient:
    """A proxy that signs as the specification says, without any code of the product."""

    session: aiohttp.ClientSession
    base_url: str
    clock: Clock
    proxy_id: str
    api_key: str
    hmac_secret: str
    org_ids: list[str] = field(default_factory=list)

    def signature(self, timestamp: str, body: bytes) -> str:
        return hmac.new(
            self.hmac_secret.encode(), timestamp.encode() + b"." + body, hashlib.sha256
        ).hexdigest()

    def headers(self, body: bytes, timestamp: str | None = None) -> CIMultiDict[str]:
        timestamp = timestamp or str(self.clock.wall_ms() // 1000)
        return CIMultiDict(
            {
                "X-Api-Key": self.api_key,
                "X-Timestamp": timestamp,
                "X-Hmac-Signature": self.signature(timestamp, body),
            }
        )

    async def send(
        self,
        path: str,
        body: bytes = b"",
        *,
        timestamp: str | None = None,
        headers: Mapping[str, str] | None = None,
        method: str | None = None,
        data: Any = None,
    ) -> Response:
        """Send a signed request to the control plane.

        `headers` replaces the signing headers, and `data` replaces the signed body.
        """
        method = method or ("GET" if path == SYNC else "POST")
        sent = self.headers(body, timestamp) if headers is None else headers
        payload = data if data is not None else body
        if isinstance(payload, bytes):
            payload = io.BytesIO(payload) if payload else None
        async with self.session.request(method, self.base_url + path, data=payload, headers=sent) as response:
            return Response(response.status, response.headers, await response.read())

    async def audit(self, batch: Mapping[str, Any]) -> Response:
        return await self.send(AUDIT, json.dumps(batch).encode())

    async def sync(self, etag: str | None = None) -> Response:
        headers = self.headers(b"")
        if etag is not None:
            headers["If-None-Match"] = etag
        return await self.send(SYNC, headers=headers)


class Plane:
    """A running control plane, with methods for the actions of an operator."""

    def __init__(
        self,
        settings: Settings,
        clock: FakeClock,
        addresses: Addresses,
        session: aiohttp.ClientSession,
        store: SqlStore,
    ) -> None:
        self.settings = settings
        self.clock = clock
        self.base_url = addresses.agent_api[0]
        self.console_url = addresses.console[0] if addresses.console else ""
        self.session = session
        self.store = store
        self.inventory = Inventory(context_of(self))

    async def org(self, name: str, retention: Retention = "base") -> str:
        return (await self.inventory.add_org(name, retention)).org_id

    async def proxy(self, name: str, *orgs: str) -> ProxyClient:
        minted = await self.inventory.add_proxy(name, orgs)
        return ProxyClient(
            self.session,
            self.base_url,
            self.clock,
            minted.proxy_id,
            minted.api_key,
            minted.hmac_secret,
            [(await self.inventory.org(org)).org_id for org in orgs],
        )

    async def ruleset(self, org: str, name: str, text: str | None = None) -> str:
        text = text or RULESET.format(name=name)
        return (await self.inventory.apply_ruleset(org, name, 1, text)).ruleset_id

    async def stored(self) -> list[tuple[str, dict[str, Any]]]:
        """Return every event in the store, with its organisation."""
        events = await self.store.events_after(0, 1_000_000)
        return [(event.org_id, json.loads(event.body)) for event in events]


def context_of(plane: Plane) -> OperationContext:
    """Return the context that a command on the store's host gives to its operations."""

    async def vault() -> Vault:
        return await open_vault(plane.settings.secrets, plane.store)

    async def index() -> SearchIndex:
        raise AssertionError("no test of this context searches")

    return OperationContext(plane.settings, plane.store, plane.clock, vault, index, LiveTail(plane.store))


def write_settings(folder: Path, **sections: str) -> Path:
    lines = ['[ControlPlane]\nListen = "127.0.0.1:0"', '[Secrets]\nMasterKeyFile = "var/master.key"']
    usual = {"Metrics": "Listen = []", "Console": 'Listen = "127.0.0.1:0"'}
    usual["Store"] = 'Path = "var/controlplane.db"'
    lines += [f"[{name}]\n{text}" for name, text in {**usual, **sections}.items()]
    path = folder / "controlplane.toml"
    path.write_text("\n".join(lines))
    return path


async def agreed_with(store: Store, ms: int) -> WitnessedTime:
    """Return a `WitnessedTime` in which each proxy in use has confirmed that the time is `ms`."""
    witnessed = WitnessedTime()
    for proxy_id in await store.hands_of_proxies():
        witnessed.agree(proxy_id, ms)
    return witnessed


@asynccontextmanager
async def started(folder: Path, clock: FakeClock, **sections: str) -> AsyncIterator[Plane]:
    """Start the control plane, and stop it at the end of the test.

    A second start in the same folder uses the data of the first start.
    """
    settings = read_settings(write_settings(folder, **sections), {})
    if not settings.store.url:
        await put_new_store(settings.store.path)
    async with running(settings, clock) as addresses, aiohttp.ClientSession(auto_decompress=False) as session:
        operator = await open_store(settings.store.path, settings.store.url, clock, None)
        try:
            yield Plane(settings, clock, addresses, session, operator)
        finally:
            await operator.close()


def event(org_id: str, number: int, **members: Any) -> dict[str, Any]:
    return {
        "id": f"event-{number}",
        "time": "2026-11-21T04:25:58.123Z",
        "orgId": org_id,
        "method": "GET",
        "path": "/v1.0/users",
        "status": 200,
        "verdict": "allow",
        "seq": number,
        **members,
    }


def batch(batch_id: str, org_id: str, numbers: Iterable[int]) -> dict[str, Any]:
    return {"batchId": batch_id, "events": [event(org_id, number) for number in numbers]}
