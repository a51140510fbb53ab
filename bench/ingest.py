"""python -m bench.ingest: measure how many events per second and core the control plane ingests.

The benchmark starts a control plane by its usual command. Several proxies at the same time send signed
batches of 500 events to the control plane. The control plane's limits are high enough for the load of the
measurement. The benchmark counts the control plane's CPU seconds until the last response (202, so the batch
is on disk), and until a search finds every event.
"""

import argparse
import asyncio
import json
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from statistics import median
from typing import Any

import aiohttp

from bench.events import ORG, batch
from bench.index_engines import ENGINES, IndexSettings, cpu_seconds, engine
from proxy.wire.models import AUDIT_PATH
from proxy.wire.signing import API_KEY_HEADER, SIGNATURE_HEADER, TIMESTAMP_HEADER, sign
from tests.fakes.lifeline import end_with_parent

BATCH = 500
PROXIES = 4
SETTINGS = """
[ControlPlane]
Listen = "127.0.0.1:{port}"
[Console]
Listen = []
[Store]
Path = "store.db"
[Secrets]
MasterKeyFile = "master.key"
[Metrics]
Listen = []
"""
UNLIMITED = """
[Audit]
RateLimitOrg = 1000000
RateLimitProxy = 1000000
"""
NO_INDEX = """
[SearchIndex]
Kind = "clickhouse"
Url = "http://127.0.0.1:9"
"""


def command(config: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "controlplane", "--config", str(config), *arguments]


def facts(config: Path, *arguments: str) -> Any:
    done = subprocess.run(command(config, *arguments, "--json"), check=True, capture_output=True)
    return json.loads(done.stdout)


def indexed(config: Path) -> int:
    """Return how many events a search index contains, computed from its position in the store."""
    with closing(sqlite3.connect(config.parent / "store.db", timeout=30)) as store:
        ((count,),) = store.execute("SELECT coalesce(max(position), 0) FROM outbox_cursor").fetchall()
    return int(count)


async def send(session: aiohttp.ClientSession, url: str, keys: Any, bodies: list[bytes]) -> None:
    for body in bodies:
        timestamp = str(int(time.time()))
        headers = {
            API_KEY_HEADER: keys["apiKey"],
            TIMESTAMP_HEADER: timestamp,
            SIGNATURE_HEADER: sign(keys["hmacSecret"].encode(), timestamp, body),
        }
        async with session.post(url, data=body, headers=headers) as response:
            assert response.status == 202, await response.text()


async def send_all(address: str, keys: list[Any], shares: list[list[bytes]]) -> None:
    async with aiohttp.ClientSession() as session:
        await asyncio.gather(
            *(send(session, address + AUDIT_PATH, *each) for each in zip(keys, shares, strict=True))
        )


async def ready(address: str) -> None:
    async with aiohttp.ClientSession() as session:
        for _ in range(100):
            try:
                async with session.get(address + "/healthz"):
                    return
            except aiohttp.ClientError:
                await asyncio.sleep(0.1)


def one_run(
    directory: Path, port: int, count: int, settings: IndexSettings | None
) -> tuple[float, float, float, float]:
    """Return the CPU seconds and elapsed seconds of one run, each counted to two points in time.

    The first two numbers count to the last response. The last two numbers count until a search finds all
    events.
    """
    config = directory / "controlplane.toml"
    config.write_text(
        SETTINGS.format(port=port) + UNLIMITED + (NO_INDEX if settings is None else settings.section)
    )
    org = facts(config, "org", "add", "bench")["orgId"]
    keys = [facts(config, "proxy", "add", f"p{number}", "--org", org) for number in range(PROXIES)]
    shares: list[list[bytes]] = [[] for _ in keys]
    for number in range(count // BATCH):
        made = batch(f"b{number}", BATCH, first=number * BATCH, proxy=keys[number % PROXIES]["proxyId"])
        shares[number % PROXIES].append(made.replace(ORG.encode(), org.encode()))
    address = f"http://127.0.0.1:{port}"
    server = subprocess.Popen(command(config), stderr=subprocess.DEVNULL, preexec_fn=end_with_parent)
    try:
        asyncio.run(ready(address))
        begun, spent = time.monotonic(), cpu_seconds(server.pid)
        asyncio.run(send_all(address, keys, shares))
        accepted = cpu_seconds(server.pid) - spent, time.monotonic() - begun
        while settings and indexed(config) < count // BATCH * BATCH:
            time.sleep(0.05)
        return *accepted, cpu_seconds(server.pid) - spent, time.monotonic() - begun
    finally:
        server.terminate()
        server.wait()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.ingest", description=__doc__)
    parser.add_argument("--events", type=int, default=200_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument(
        "--without-index",
        action="store_true",
        help="make the index unreachable, to measure only the cost of accepting",
    )
    parser.add_argument("--port", type=int, default=18731)
    parser.add_argument("--engine", choices=ENGINES, default="sqlite", help="database of the search index")
    given = parser.parse_args()
    totals = []
    for _ in range(given.runs):
        with tempfile.TemporaryDirectory() as name, engine(given.engine, Path(name)) as settings:
            spent = cpu_seconds(settings.process) if settings.process else 0.0
            index = None if given.without_index else settings
            cpu, wall, cpu_all, wall_all = one_run(Path(name), given.port, given.events, index)
            if settings.process:
                spent = cpu_seconds(settings.process) - spent
                print(f"{settings.kind}: {spent / given.events * 1e6:.1f} µs of its CPU an event")
        totals.append(given.events / cpu_all)
        print(
            f"to the last 202: {cpu / given.events * 1e6:.1f} µs of CPU an event,"
            f" {given.events / wall:,.0f}/s; searchable: {cpu_all / given.events * 1e6:.1f} µs,"
            f" {given.events / wall_all:,.0f}/s"
        )
    what = "durable" if given.without_index else "durable and searchable"
    print(f"{what}: {median(totals):,.0f} events a second and core (median of {given.runs})")


if __name__ == "__main__":
    main()
