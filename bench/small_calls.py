"""python -m bench.small_calls: measure a control plane's processor time for each small call of a fleet.

The store contains a fleet: organisations with ten applications and some proxies each. Eight simulated proxies
send the calls at the same time, each on its own connection. The benchmark counts the server's processor time
until the server is idle again. So the processor time of a batch includes the write to the search index, which
happens later.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count, cycle
from pathlib import Path
from typing import Final

from bench.events import ORG, bodies
from bench.ingest import SETTINGS, UNLIMITED, command, ready
from controlplane.clock import SystemClock
from controlplane.master_key import open_vault
from controlplane.secrets import Vault, digest, read_master_key
from controlplane.settings import read_settings
from controlplane.store.interface import App, AppSecret, Org, Proxy, Ruleset, Store
from controlplane.store.open_store import open_store
from proxy.wire.audit_event import uuid7
from proxy.wire.models import AUDIT_PATH, HEARTBEAT_PATH, SYNC_PATH
from proxy.wire.signing import sign
from tests.fakes.lifeline import end_with_parent

AT_ONCE: Final = 8
PROXIES_EACH: Final = 8
APPS_EACH: Final = 10
RULES: Final = (
    "name: bench\ndefault: block\nrules:\n  - {id: r1, match: {path: /v1.0/users}, verdict: allow}\n"
)
HEARTBEAT: Final = (
    b'{"version":"1.0","uptimeSeconds":1,"loadedRules":1,"syncVersion":"1","checks":{"upstream":{"status":"ok",'
    b'"detail":""}},"lastSeq":{},"auditPending":0,"oldestPendingSeconds":0}'
)
SHARED_INDEX: Final = '[SearchIndex]\nKind = "postgresql"\n'
_numbers = count()


@dataclass(frozen=True, slots=True)
class Sender:
    """Simulated proxy that sends calls and counts their sequence numbers."""

    proxy_id: str
    org_id: str
    api_key: str
    secret: bytes
    seqs: Iterator[int]


@dataclass(frozen=True, slots=True)
class Call:
    """Call that a load generator repeats: the first line of the request head, and the request body."""

    line: str
    body: Callable[[Sender], bytes]
    status: int


def batch_of(size: int) -> Callable[[Sender], bytes]:
    def body(sender: Sender) -> bytes:
        now_ms = time.time_ns() // 1_000_000
        first = next(sender.seqs) * size
        events = b",".join(bodies(size, first=first, proxy=sender.proxy_id, start_ms=now_ms - first // 2))
        batch_id = uuid7(now_ms, next(_numbers))
        return b'{"batchId":"%s","events":[%s]}' % (
            batch_id.encode(), events.replace(ORG.encode(), sender.org_id.encode()),
        )  # fmt: skip

    return body


def settings_for(port: int, url: str) -> str:
    """Return settings of a control plane as TOML text.

    The store is the PostgreSQL database at `url`, or a file if `url` is empty.
    """
    settings = SETTINGS.format(port=port)
    if not url:
        return settings
    return settings.replace('Path = "store.db"', f'Url = "{url}"') + SHARED_INDEX


async def fill(path: Path, key_file: Path, orgs: int) -> list[Sender]:
    clock = SystemClock()
    settings = read_settings(path)
    store = await open_store(settings.store.path, settings.store.url, clock, None)
    senders = []
    try:
        vault = await open_vault(settings.secrets, store)
        for number in range(orgs):
            senders += await add_org(store, vault, clock.wall_ms(), number)
    finally:
        await store.close()
    return senders


async def add_org(store: Store, vault: Vault, now_ms: int, number: int) -> list[Sender]:
    org_id, ruleset_id = uuid7(now_ms, number), uuid7(now_ms, number + (1 << 40))
    await store.add_org(Org(org_id, f"org-{number}", "base", now_ms))
    await store.apply_ruleset(Ruleset(ruleset_id, org_id, "bench", 1, 1, now_ms), RULES, None, None)
    for each in range(APPS_EACH):
        app_id = f"app-{number}-{each}"
        secrets = (AppSecret(1, "$argon2id$v=19$m=19456,t=2,p=1$c2FsdHNhbHQ$" + "a" * 43, None),)
        await store.add_app(App(app_id, org_id, app_id, app_id, ruleset_id, "bench", True, now_ms, secrets))
    senders = []
    for each in range(PROXIES_EACH):
        proxy_id = uuid7(now_ms, number << 8 | each)
        sender = Sender(proxy_id, org_id, f"key-{number}-{each}", b"s" * 32, count())
        sealed = vault.seal(proxy_id, sender.secret.decode())
        added = Proxy(proxy_id, f"proxy-{number}-{each}", True, now_ms, None, 1, (org_id,))
        await store.add_proxy(added, digest(sender.api_key), sealed)
        senders.append(sender)
    return senders


@dataclass(frozen=True, slots=True)
class Response:
    """Response of the control plane to a call. Names and values of the header fields are in lower case."""

    status: int
    fields: dict[str, str]
    body: bytes


class Connection:
    """Kept-alive connection of one proxy, with only the parts of HTTP that calls to a control plane need."""

    def __init__(self, sender: Sender) -> None:
        self.sender = sender
        self.etag = ""

    async def open(self, port: int) -> None:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", port)

    async def send(self, call: Call) -> None:
        response = await self.exchange(call.line, call.body(self.sender), holds=call.status == 304)
        assert response.status == call.status, response

    async def exchange(self, line: str, body: bytes, *, holds: bool = False) -> Response:
        """Send a call to the control plane and return its response.

        If `holds` is True, the simulated proxy has the newest rules, and its call sends the ETag of these
        rules.
        """
        sender, stamp = self.sender, str(int(time.time()))
        held = f"If-None-Match: {self.etag}\r\n" if holds else ""
        self._writer.write(
            f"{line} HTTP/1.1\r\nHost: control\r\n"
            f"X-Api-Key: {sender.api_key}\r\nX-Timestamp: {stamp}\r\n"
            f"X-Hmac-Signature: {sign(sender.secret, stamp, body)}\r\nAccept: application/json\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n{held}\r\n".encode()
            + body
        )
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode()
        fields = dict(line.split(": ", 1) for line in head.lower().split("\r\n")[1:-2])
        answer = await self._reader.readexactly(int(fields.get("content-length", 0)))
        self.etag = next(
            (line[6:] for line in head.split("\r\n") if line.lower().startswith("etag: ")), self.etag
        )
        return Response(int(head.split()[1]), fields, answer)


CALLS: Final = {
    "sync, unchanged (304)": Call(f"GET {SYNC_PATH}", lambda sender: b"", 304),
    "heartbeat": Call(f"POST {HEARTBEAT_PATH}", lambda sender: HEARTBEAT, 200),
    **{f"batch of {size}": Call(f"POST {AUDIT_PATH}", batch_of(size), 202) for size in (1, 2, 8, 50)},
}
CHANGED: Final = Call(f"GET {SYNC_PATH}", lambda sender: b"", 200)


async def send_all(pid: int, port: int, senders: list[Sender], calls: int, call: Call) -> float:
    """Return the server's processor time for all calls of the senders."""
    left = iter(range(calls))
    shares = [[Connection(each) for each in senders[number::AT_ONCE][:20]] for number in range(AT_ONCE)]

    async def open_all(share: list[Connection]) -> None:
        for each in share:
            await each.open(port)
            await each.send(CHANGED)

    async def one(share: list[Connection]) -> None:
        for each in cycle(share):
            if next(left, None) is None:
                return
            await each.send(call)

    await asyncio.gather(*map(open_all, shares))
    before = settled(pid)
    await asyncio.gather(*map(one, shares))
    return settled(pid) - before


def cpu_seconds(pid: int) -> float:
    """Return the processor time of all threads of a process."""
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(each.read_text().split()[0]) for each in tasks) / 1e9


def settled(pid: int) -> float:
    """Wait until the process is idle, and return its processor time."""
    while True:
        before = cpu_seconds(pid)
        time.sleep(1.2)
        if cpu_seconds(pid) - before < 0.005:
            return cpu_seconds(pid)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.small_calls", description=__doc__)
    parser.add_argument("--calls", type=int, default=4000, help="number of calls per kind and run")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--orgs", type=int, default=50)
    parser.add_argument("--port", type=int, default=18734)
    parser.add_argument(
        "--url", default="", help="URL of a PostgreSQL store instead of a file: postgresql://..."
    )
    parser.add_argument("--only", default="", help="only kinds of calls whose name contains this text")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        config = Path(name) / "controlplane.toml"
        config.write_text(settings_for(given.port, given.url) + UNLIMITED)
        read_master_key("", Path(name) / "master.key")
        senders = asyncio.run(fill(config, Path(name) / "master.key", given.orgs))
        server = subprocess.Popen(command(config), stderr=subprocess.DEVNULL, preexec_fn=end_with_parent)
        try:
            asyncio.run(ready(f"http://127.0.0.1:{given.port}"))
            for kind, call in CALLS.items():
                if given.only in kind:
                    print(f"{kind}: {cost(server.pid, senders, call, given):.3f} ms", flush=True)
        finally:
            server.terminate()
            server.wait()


def cost(pid: int, senders: list[Sender], call: Call, given: argparse.Namespace) -> float:
    """Return milliseconds of processor time for one call, as the median of all runs."""
    took: list[float] = []
    for _ in range(given.runs):
        spent = asyncio.run(send_all(pid, given.port, senders, given.calls, call))
        took.append(spent / given.calls * 1000)
    return statistics.median(took)


if __name__ == "__main__":
    main()
