"""python -m bench.pages: measure the time to the first byte of each console page over many events.

The stored events of the benchmark are from the last day. If the command line names a directory, the benchmark
keeps the directory, and uses it again unchanged. The benchmark requests each page several times on one
kept-alive connection. For each page, the benchmark prints the median time to the first byte of the response.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Final

import aiohttp

from bench.events import ORG, bodies
from bench.index_engines import IndexSettings, cpu_seconds
from bench.search import BATCH, LIMITS, opened
from controlplane.index_writer import IndexWriter
from controlplane.ingest import parse_batch
from controlplane.store.interface import Org
from tests.controlplane.processes import facts, server
from tests.fakes.ports import free_port

GOAL_MS: Final = 300
PASSWORD: Final = "correct horse battery staple"
_DAY_MS: Final = 24 * 3_600_000
_INDEX_BATCHES: Final = 16  # batches between two writes to the index
PAGES: Final = (
    "/",
    "/?last=7d",
    "/live",
    "/live?q=user47112*",
    "/search",
    "/search?q=verdict:block",
    "/search?q=path:*messages*",
    "/search?q=user47112*",
    "/search?q=nosuchword",
    "/apps",
    "/proxies",
    "/rulesets",
    "/orgs",
    "/stops",
    "/operators",
    "/record",
    "/audit/integrity",
)


def settings_file(directory: Path, port: int) -> Path:
    config = directory / "controlplane.toml"
    config.write_text(
        f'[ControlPlane]\nListen = "127.0.0.1:0"\n[Metrics]\nListen = []\n[Store]\nPath = "store.db"\n'
        f'[Secrets]\nMasterKeyFile = "master.key"\n[Console]\nListen = "127.0.0.1:{port}"\n',
        "utf-8",
    )
    return config


async def build(directory: Path, count: int) -> None:
    """Store and index the events, unless the store already has them."""
    async with opened(directory, IndexSettings("sqlite")) as (store, index):
        if await store.last_position():
            return
        await store.add_org(Org(ORG, "bench", "1y", 0))
        index_writer = IndexWriter(store, index)
        start_ms, every_ms = time.time_ns() // 1_000_000 - _DAY_MS, _DAY_MS / count
        for number, first in enumerate(range(0, count, BATCH)):
            events = b",".join(bodies(BATCH, first=first, start_ms=start_ms, every_ms=every_ms))
            body = b'{"batchId":"b%d","events":[%s]}' % (first, events)
            await store.commit_batch(parse_batch("proxy-1", body, time.time_ns() // 1_000_000)[0], LIMITS)
            if number % _INDEX_BATCHES == 0:
                await index_writer.drain()
        await index_writer.drain()


async def first_byte_ms(session: aiohttp.ClientSession, url: str) -> tuple[float, int]:
    begun = time.perf_counter()
    async with session.get(url) as response:
        took = (time.perf_counter() - begun) * 1000
        response.raise_for_status()
        return took, len(await response.read())


async def measure(config: Path, port: int, repeat: int) -> bool:
    """Print a line for each page with the measured time of the page.

    Return True if no page takes longer than the goal allows.
    """
    address = f"http://127.0.0.1:{port}"
    jar = aiohttp.CookieJar(unsafe=True)
    async with server(config) as running, aiohttp.ClientSession(cookie_jar=jar) as session:
        form = {"name": "bench", "password": PASSWORD}
        async with session.post(f"{address}/login", data=form, allow_redirects=False) as signed_in:
            assert signed_in.status == 303, signed_in.status
        slow = 0
        for page in PAGES:
            spent = cpu_seconds(running.process.pid)
            found = [await first_byte_ms(session, address + page) for _ in range(repeat)]
            spent = (cpu_seconds(running.process.pid) - spent) * 1000 / repeat
            took = median(ms for ms, _ in found)
            slow += took > GOAL_MS
            print(f"{took:8.1f} ms, CPU {spent:6.1f} ms  {found[0][1] / 1000:7.1f} KB  {page}", flush=True)
    print(f"{slow} of {len(PAGES)} pages took longer than {GOAL_MS} ms")
    return not slow


def add_operator(config: Path, directory: Path) -> None:
    password = directory / "password"
    password.write_text(f"{PASSWORD}\n", "utf-8")
    if not any(each["name"] == "bench" for each in facts(config, "operator", "list")["operators"]):
        facts(config, "operator", "add", "bench", "--admin", "--password-file", str(password))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.pages", description=__doc__)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument(
        "--directory",
        type=Path,
        help="directory for the files of the measurement; missing files are made, and all files are kept",
    )
    parser.add_argument("--repeat", type=int, default=7)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as passing:
        directory = given.directory or Path(passing)
        directory.mkdir(parents=True, exist_ok=True)
        port = free_port()
        config = settings_file(directory, port)
        asyncio.run(build(directory, given.events))
        add_operator(config, directory)
        asyncio.run(measure(config, port, given.repeat))


if __name__ == "__main__":
    main()
