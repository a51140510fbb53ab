"""Tests of applications' HTTP clients over TLS: keep-alive, content codings, uploads and downloads."""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import pytest
import requests

from tests.fakes.graph import pattern_bytes
from tests.fakes.system import System
from tests.process.proxy_parts import client_of, events, until, whole_system

pytestmark = pytest.mark.process

UPLOAD = b"".join(pattern_bytes(300_000))
UPLOAD_SHA256 = hashlib.sha256(UPLOAD).hexdigest()
DOWNLOAD_SHA256 = hashlib.sha256(b"".join(pattern_bytes(2_000_000))).hexdigest()


@pytest.fixture
async def system(tmp_path: Path) -> AsyncIterator[System]:
    async with whole_system(tmp_path) as running:
        yield running


@pytest.fixture
async def token(system: System) -> str:
    async with client_of(system) as client:
        return client.token


def pieces() -> Iterator[bytes]:
    for start in range(0, len(UPLOAD), 7000):
        yield UPLOAD[start : start + 7000]


async def pieces_later() -> AsyncIterator[bytes]:
    for piece in pieces():
        await asyncio.sleep(0)
        yield piece


def check(users: Any, uploaded: Any, digest: str) -> None:
    assert users["value"][0]["displayName"] == "Ada Lovelace"
    assert users["@odata.nextLink"].startswith("https://127.0.0.1:")
    assert uploaded == {"bytes": len(UPLOAD), "sha256": UPLOAD_SHA256}
    assert digest == DOWNLOAD_SHA256


async def test_requests(system: System, token: str) -> None:
    def use() -> None:
        with requests.Session() as session:
            session.trust_env = False  # otherwise the certificate bundle from the environment would win
            session.verify = str(system.authority.ca_file)
            session.headers["Authorization"] = f"Bearer {token}"
            page = session.get(f"{system.proxy_url}/v1.0/users?$top=2")
            assert page.headers.get("Content-Encoding") in (None, "gzip")
            uploaded = session.put(f"{system.proxy_url}/v1.0/upload/a", data=pieces())  # a body in chunks
            assert session.put(f"{system.proxy_url}/v1.0/upload/a", data=UPLOAD).json() == uploaded.json()
            for query in ("", "?chunked"):
                digest = hashlib.sha256()
                with session.get(f"{system.proxy_url}/v1.0/bytes/2000000{query}", stream=True) as response:
                    for piece in response.iter_content(10_000):
                        digest.update(piece)
            check(page.json(), uploaded.json(), digest.hexdigest())
            following = session.get(page.json()["@odata.nextLink"])  # page two comes through the proxy
            assert following.status_code == 200
            assert following.json()["value"]

    await asyncio.to_thread(use)
    await all_recorded(system, 6)


async def test_httpx(system: System, token: str) -> None:
    headers = {"Authorization": f"Bearer {token}", "Accept-Encoding": "gzip, deflate, br"}
    async with httpx.AsyncClient(
        verify=system.client_context(), headers=headers, base_url=system.proxy_url
    ) as session:
        page = await session.get("/v1.0/users?$top=2")
        uploaded = await session.put("/v1.0/upload/a", content=pieces_later())
        digest = hashlib.sha256()
        async with session.stream("GET", "/v1.0/bytes/2000000") as response:
            async for piece in response.aiter_bytes():
                digest.update(piece)
        check(page.json(), uploaded.json(), digest.hexdigest())
        # A gzip response without a rewritten link keeps its coding.
        example = await session.get("/v1.0/users/ada@contoso.com?$expand=manager")
        assert example.headers["content-encoding"] == "gzip"
        assert example.json()["manager"]["displayName"] == "Alan Turing"
        together = await asyncio.gather(*(session.get(f"/v1.0/echo/{at}") for at in range(30)))
        assert {each.status_code for each in together} == {200}
    await all_recorded(system, 34)


async def test_aiohttp(system: System, token: str) -> None:
    headers = {"Authorization": f"Bearer {token}"}
    connector = aiohttp.TCPConnector(ssl=system.client_context(), limit=1)
    async with aiohttp.ClientSession(system.proxy_url, headers=headers, connector=connector) as session:
        async with session.get("/v1.0/users?$top=2") as response:
            page = await response.json()
        async with session.put("/v1.0/upload/a", data=pieces_later()) as response:
            uploaded = await response.json()
        async with session.put("/v1.0/upload/a", data=UPLOAD, expect100=True) as response:
            assert await response.json() == uploaded
        digest = hashlib.sha256()
        async with session.get("/v1.0/bytes/2000000?chunked") as response:
            async for piece in response.content.iter_any():
                digest.update(piece)
        check(page, uploaded, digest.hexdigest())
    await all_recorded(system, 4)


async def curl(system: System, token: str, *arguments: str) -> bytes:
    process = await asyncio.create_subprocess_exec(
        *("curl", "--silent", "--show-error", "--noproxy", "*", "--max-time", "20"),
        *("--cacert", str(system.authority.ca_file), "-H", f"Authorization: Bearer {token}"),
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    assert process.returncode == 0, err
    return out


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
async def test_curl(system: System, token: str, tmp_path: Path) -> None:
    url = system.proxy_url
    file = tmp_path / "upload"
    file.write_bytes(UPLOAD)
    page = json.loads(await curl(system, token, "--compressed", f"{url}/v1.0/users?$top=2"))
    upload = ("-T", str(file), f"{url}/v1.0/upload/a")
    expecting = await curl(system, token, "--verbose", "--stderr", "-", "-H", "Expect: 100-continue", *upload)
    assert b"HTTP/1.1 100" in expecting
    assert UPLOAD_SHA256.encode() in expecting
    chunked = await curl(system, token, "-H", "Transfer-Encoding: chunked", *upload)
    download = await curl(system, token, f"{url}/v1.0/bytes/2000000")
    check(page, json.loads(chunked), hashlib.sha256(download).hexdigest())
    # Several requests on one connection; curl prints how many it opened for each.
    urls = [f"{url}/v1.0/echo/{at}" for at in range(5)]
    opened = await curl(system, token, "-o", "/dev/null", "-w", "%{num_connects} ", *_each(urls))
    assert opened.split() == [b"1", b"0", b"0", b"0", b"0"]
    refused = await curl(system, token, "-w", "%{http_code}", f"{url}/v1.0/secrets/1")
    assert refused.endswith(b"403")
    # A client that sent Expect does not send a body that is refused.
    refused = await curl(
        system, token, "-w", "%{http_code} %{size_upload}", "-H", "Expect: 100-continue",
        *("-T", str(file), f"{url}/v1.0/secrets/1"),
    )  # fmt: skip
    assert refused.endswith(b"403 0")
    await all_recorded(system, 11)


def _each(urls: list[str]) -> Iterator[str]:
    yield urls[0]
    for url in urls[1:]:
        yield from ("-o", "/dev/null", url)


async def all_recorded(system: System, count: int) -> None:
    """Check that the control plane has exactly one event for each request."""

    def passed() -> int:
        return sum(1 for event in events(system) if event["path"].startswith("/v1.0/"))

    await until(lambda: passed() >= count)
    assert passed() == count
