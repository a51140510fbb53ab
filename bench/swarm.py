"""python -m bench.swarm: simulate a fleet of quiet proxies with one control plane, for some minutes.

Each proxy requests its rules and sends heartbeats, windows of metrics and batches as often as a real proxy,
on its own connection. Each simulated proxy collects events for as long as the control plane instructs it to.
A line per minute shows the processor time and memory of the control plane, how late events were stored, and
the longest wait for its health endpoint. With `--url`, the store is the PostgreSQL database at that address.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from statistics import quantiles
from typing import Final

import msgspec

from bench.events import ORG, bodies
from bench.ingest import command, ready
from bench.small_calls import HEARTBEAT, PROXIES_EACH, Connection, Sender, cpu_seconds, fill, settings_for
from controlplane.secrets import read_master_key
from proxy.wire.audit_event import rfc3339, uuid7
from proxy.wire.models import (
    AUDIT_PATH,
    HEARTBEAT_PATH,
    METRICS_PATH,
    SYNC_PATH,
    Latency,
    Metrics,
    SyncAnswer,
)
from tests.fakes.lifeline import end_with_parent

REPORT_SECONDS: Final = 60.0
SYNC_SECONDS: Final = 30.0
HEARTBEAT_SECONDS: Final = 30.0
METRICS_SECONDS: Final = 60.0
MOST_EVENTS: Final = 500  # events per batch
_numbers = count()


@dataclass
class Seen:
    """Results of the simulated proxies' calls since the last printed report."""

    late: list[float] = field(default_factory=list)  # seconds of delay of each event
    batches: int = 0
    refused: int = 0  # batches refused by the limit of batches
    put_off: int = 0  # calls refused because too many writes waited, and sent again
    calls: int = 0
    health: list[float] = field(default_factory=list)  # seconds of each health request


class QuietProxy:
    """Simulated proxy, with the reports to send next and the time when each report is due."""

    def __init__(self, sender: Sender, port: int, rate: float, seen: Seen) -> None:
        self._connection = Connection(sender)
        self._sender = sender
        self._port = port
        self._apart = 1 / rate
        self._seen = seen
        self._linger = 1.5
        self._pending: list[float] = []
        self._next_event = 0.0
        self._sent = 0

    async def run(self, start: float, end: float) -> None:
        """Run the simulated proxy until the time `end`, and then until all pending events are stored."""
        await asyncio.sleep(start)
        await self._connection.open(self._port)
        await self._sync(holds=False)
        now = time.monotonic()
        self._next_event = now + random.random() * self._apart
        self._due: list[tuple[float, float, Callable[[], Awaitable[None]]]] = [
            (now + SYNC_SECONDS, SYNC_SECONDS, self._sync),
            (now + random.random() * HEARTBEAT_SECONDS, HEARTBEAT_SECONDS, self._heartbeat),
            (now + random.random() * METRICS_SECONDS, METRICS_SECONDS, self._metrics),
        ]
        self._batch_due = self._next_event + self._linger
        while (now := time.monotonic()) < end or self._pending:
            self._collect(min(now, end))
            if self._pending and now >= self._batch_due:
                await self._batch()
            for at, (due, every, call) in enumerate(self._due):
                if now >= due:
                    self._due[at] = due + every, every, call
                    await call()
            following = min(self._batch_due, *(due for due, _, _ in self._due))
            await asyncio.sleep(max(0.0, following - time.monotonic()))

    def _collect(self, now: float) -> None:
        was_empty = not self._pending
        while self._next_event <= now:
            self._pending.append(self._next_event)
            self._next_event += self._apart
        if was_empty:
            first = self._pending[0] if self._pending else self._next_event
            self._batch_due = first + self._linger

    async def _sync(self, *, holds: bool = True) -> None:
        self._seen.calls += 1
        response = await self._connection.exchange(f"GET {SYNC_PATH}", b"", holds=holds)
        if response.status == 200:
            asked = msgspec.json.decode(response.body, type=SyncAnswer).metadata.linger
            if asked is not None:
                self._linger = max(1.5, asked.seconds, asked.orgs.get(self._sender.org_id, 0.0))

    async def _heartbeat(self) -> None:
        self._seen.calls += 1
        await self._report(HEARTBEAT_PATH, HEARTBEAT)

    async def _metrics(self) -> None:
        self._seen.calls += 1
        end_ms = time.time_ns() // 1_000_000
        metrics = Metrics(
            rfc3339(end_ms - 60_000), rfc3339(end_ms), 60, 60, 0, 0, 0, 0, 0, Latency(((1.0, 60),), 30.0, 60)
        )
        await self._report(METRICS_PATH, msgspec.json.encode(metrics))

    async def _report(self, path: str, body: bytes) -> None:
        response = await self._connection.exchange(f"POST {path}", body)
        if response.status == 503:  # The next report contains the same information.
            self._seen.put_off += 1
        else:
            assert response.status == 200, response

    async def _batch(self) -> None:
        sender, times = self._sender, self._pending[:MOST_EVENTS]
        now_ms = time.time_ns() // 1_000_000
        made = bodies(
            len(times), first=self._sent, proxy=sender.proxy_id, start_ms=now_ms - 1000 - self._sent // 2
        )
        body = b'{"batchId":"%s","events":[%s]}' % (
            uuid7(now_ms, next(_numbers)).encode(),
            b",".join(made).replace(ORG.encode(), sender.org_id.encode()),
        )
        self._seen.calls += 1
        response = await self._connection.exchange(f"POST {AUDIT_PATH}", body)
        now = time.monotonic()
        if response.status in (429, 503):
            if response.status == 429:
                self._seen.refused += 1
            else:
                self._seen.put_off += 1
            self._batch_due = now + int(response.fields["retry-after"])
            return
        assert response.status == 202, response
        self._seen.batches += 1
        self._seen.late += [now - each for each in times]
        self._sent += len(times)
        del self._pending[: len(times)]
        self._batch_due = now + self._linger


async def look_at_health(port: int, seen: Seen) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while True:
        begun = time.monotonic()
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: control\r\n\r\n")
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        await reader.readexactly(int(head.partition("content-length: ")[2].split()[0]))
        seen.health.append(time.monotonic() - begun)
        await asyncio.sleep(0.2)


def memory_mb(pid: int) -> int:
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.partition("VmRSS:")[2].split()[0]) // 1024


async def report(pid: int, seen: Seen, total: Seen) -> None:
    began, spent = time.monotonic(), cpu_seconds(pid)
    while True:
        await asyncio.sleep(REPORT_SECONDS)
        seconds, cpu = time.monotonic() - began, cpu_seconds(pid) - spent
        began, spent = began + seconds, spent + cpu
        print(
            f"{cpu / seconds:4.0%} of a core, {memory_mb(pid)} MB; {seen.calls / seconds:.0f} calls/s;"
            f" {described(seen)}",
            flush=True,
        )
        for of_total, of_minute in (
            (total.late, seen.late),
            (total.health, seen.health),
        ):
            of_total += of_minute
            of_minute.clear()
        total.batches += seen.batches
        total.refused += seen.refused
        total.put_off += seen.put_off
        seen.batches = seen.refused = seen.put_off = seen.calls = 0


def described(seen: Seen) -> str:
    marks = quantiles(seen.late, n=100) if len(seen.late) > 1 else [0.0] * 99
    return (
        f"{len(seen.late)} events in {seen.batches} batches, {seen.refused} refused,"
        f" {seen.put_off} calls put off;"
        f" late by {marks[49]:.1f} s (p50), {marks[94]:.1f} s (p95),"
        f" {max(seen.late, default=0):.1f} s at most;"
        f" health in {max(seen.health, default=0) * 1000:.0f} ms at most"
    )


async def simulated(pid: int, senders: list[Sender], given: argparse.Namespace) -> None:
    seen, total = Seen(), Seen()
    end = time.monotonic() + given.minutes * 60
    beside = [
        asyncio.create_task(look_at_health(given.port, seen)),
        asyncio.create_task(report(pid, seen, total)),
    ]
    proxies = [QuietProxy(each, given.port, given.rate, seen) for each in senders[: given.proxies]]
    began = cpu_seconds(pid)
    await asyncio.gather(*(each.run(random.random() * SYNC_SECONDS, end) for each in proxies))
    for each in beside:
        each.cancel()
    total.late += seen.late
    total.batches += seen.batches
    total.refused += seen.refused
    total.put_off += seen.put_off
    total.health += seen.health
    spent = cpu_seconds(pid) - began
    print(f"in all {spent:.0f} s of CPU, {memory_mb(pid)} MB; {described(total)}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.swarm", description=__doc__)
    parser.add_argument("--proxies", type=int, default=3000)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--rate", type=float, default=0.26, help="events per second and proxy")
    parser.add_argument(
        "--url", default="", help="URL of a PostgreSQL store instead of a file: postgresql://..."
    )
    parser.add_argument("--port", type=int, default=18735)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        config = Path(name) / "controlplane.toml"
        settings = settings_for(given.port, given.url)
        config.write_text(settings)
        read_master_key("", Path(name) / "master.key")
        senders = asyncio.run(fill(config, Path(name) / "master.key", -(-given.proxies // PROXIES_EACH)))
        with open(os.devnull, "wb") as nowhere:
            server = subprocess.Popen(command(config), stderr=nowhere, preexec_fn=end_with_parent)
        try:
            asyncio.run(ready(f"http://127.0.0.1:{given.port}"))
            asyncio.run(simulated(server.pid, senders, given))
        finally:
            server.terminate()
            server.wait()


if __name__ == "__main__":
    main()
