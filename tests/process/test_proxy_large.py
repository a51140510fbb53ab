"""Tests that a worker passes on bodies of any length with little memory, even if a peer is slow."""

from __future__ import annotations

import asyncio
import hashlib
import io
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from tests.fakes.graph import pattern_bytes
from tests.fakes.system import System
from tests.process.proxy_parts import LONG, client_of, processes, rss_kib, whole_system

pytestmark = [pytest.mark.process, pytest.mark.timeout(1800 if LONG else 300)]

SIZE = (1000 if LONG else 100) * 1000 * 1000  # bytes of each of two uploads and two downloads
MAY_GROW_KIB = 12 * 1024


async def body() -> AsyncIterator[bytes]:
    for piece in pattern_bytes(SIZE):
        yield piece


def digest_of_pattern() -> str:
    digest = hashlib.sha256()
    for piece in pattern_bytes(SIZE):
        digest.update(piece)
    return digest.hexdigest()


class Peak:
    """Watches a worker process, and keeps the highest memory use of all samples."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self.kib = rss_kib(pid)

    async def watch(self) -> None:
        while True:
            self.kib = max(self.kib, rss_kib(self._pid))
            await asyncio.sleep(0.05)


async def a_session(system: System) -> tuple[aiohttp.ClientSession, Peak]:
    """Start a client session, and return the session with the memory of the only worker after warm-up."""
    async with client_of(system) as client:
        token = client.token
    connector = aiohttp.TCPConnector(ssl=system.client_context(), limit=1)
    session = aiohttp.ClientSession(
        system.proxy_url,
        headers={"Authorization": f"Bearer {token}"},
        connector=connector,
        timeout=aiohttp.ClientTimeout(total=None),
    )
    for _ in range(3):
        async with session.get("/v1.0/bytes/3000000") as response:
            await response.read()
        async with session.put("/v1.0/upload/a", data=io.BytesIO(b"x" * 3_000_000)) as response:
            assert response.status == 201
    return session, Peak(processes(system)["worker-0"])


async def test_large_bodies_in_both_directions(tmp_path: Path) -> None:
    expected = await asyncio.to_thread(digest_of_pattern)
    async with whole_system(tmp_path, workers=1) as system:
        session, peak = await a_session(system)
        before = peak.kib
        watching = asyncio.create_task(peak.watch())
        async with session:
            for headers in ({"Content-Length": str(SIZE)}, {}):  # one body with a length, one in chunks
                async with session.put("/v1.0/upload/a", data=body(), headers=headers) as response:
                    assert await response.json() == {"bytes": SIZE, "sha256": expected}
            for query in ("", "?chunked"):
                digest = hashlib.sha256()
                async with session.get(f"/v1.0/bytes/{SIZE}{query}") as response:
                    assert response.status == 200
                    async for piece in response.content.iter_any():
                        digest.update(piece)
                assert digest.hexdigest() == expected
        watching.cancel()
        print(f"{SIZE} bytes, four times: {before} KiB, {peak.kib} KiB at the most")
        assert peak.kib - before < MAY_GROW_KIB


async def test_a_reader_that_stops_makes_nothing_pile_up(tmp_path: Path) -> None:
    async with whole_system(tmp_path, workers=1) as system:
        session, peak = await a_session(system)
        before = peak.kib
        watching = asyncio.create_task(peak.watch())
        async with session, client_of(system) as client, session.get(f"/v1.0/bytes/{SIZE}") as response:
            await response.content.readexactly(100_000)
            assert response.connection is not None
            assert response.connection.transport is not None
            response.connection.transport.pause_reading()
            await asyncio.sleep(3)
            assert (await client.get("/v1.0/echo/1")).status == 200  # others are served at the same time
            response.connection.transport.resume_reading()
            await response.content.readexactly(SIZE - 100_000)
        watching.cancel()
        print(f"a reader that stops: {before} KiB, {peak.kib} KiB at the most")
        assert peak.kib - before < MAY_GROW_KIB
