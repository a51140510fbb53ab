"""Tests of clients and upstreams that fail at the worst moment: counts and audit events stay correct."""

from __future__ import annotations

import asyncio
import gzip
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from proxy.audit.segment import SegmentReader
from proxy.audit.spool import spool_directory
from proxy.server.client.connection import ClientConnection
from proxy.server.client.state import State
from proxy.server.upstream.connection import UpstreamConnection
from tests.bytes.data_path import (
    DataPath,
    UpstreamPeer,
    data_path,
    ok,
    read_reply,
    responding,
    silent,
    until,
)
from tests.patience import PATIENCE_SECONDS

TEXT = b"Content-Type: text/plain\r\nContent-Length: %d\r\n"


async def settled(proxy: DataPath) -> None:
    await until(lambda: not proxy.context.in_flight())
    pool = proxy.context.pool
    assert proxy.context.buffer_budget.reserved == 0
    await until(lambda: pool._open == len(pool._idle))


def only_connection(proxy: DataPath) -> ClientConnection:
    (connection,) = proxy.connections
    return connection


async def test_the_rest_of_an_upload_is_not_kept_once_the_response_is_whole(tmp_path: Path) -> None:
    words = "".join(random.choices("abcdefgh", k=100))
    text = f'{{"a": "{words}", "value": [{"0," * 18_000_000}0]}}'
    packed = gzip.compress(text.encode())
    asked: list[UpstreamPeer] = []
    async with data_path(silent(asked), tmp_path) as proxy:
        _, writer = await asyncio.open_connection("127.0.0.1", proxy.port, limit=1024)
        writer.write(proxy.request("/v1.0/x", "POST", TEXT % 50_000_000, b"x"))
        await until(lambda: asked)
        asked[0].send(ok(packed, b"Content-Encoding: gzip"))
        await until(lambda: bool(proxy.connections) and only_connection(proxy).write_paused)
        exchange: Any = only_connection(proxy)._exchange
        before = exchange.pending.request_bytes
        writer.write(b"y" * 4_000_000)
        await until(lambda: exchange.pending.request_bytes >= before + 2_000_000)
        assert sum(map(len, exchange.body._pieces)) < 1_000_000
        writer.transport.abort()
        await settled(proxy)


async def test_a_draining_worker_closes_a_connection_whose_refused_body_has_ended(tmp_path: Path) -> None:
    async with data_path(responding(ok(b"{}")), tmp_path) as proxy:
        reader, writer = await proxy.connect()
        writer.write(b"POST /v1.0/x HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n12345")
        assert (await read_reply(reader)).status == 401
        connection = only_connection(proxy)
        assert connection.state is State.DISCARD
        proxy.context.draining = True
        connection.drain()
        writer.write(b"67890")
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert await reader.read() == b""
        writer.close()


async def test_a_slow_reader_that_still_uploads_is_not_the_upstream_s_fault(tmp_path: Path) -> None:
    asked: list[UpstreamPeer] = []
    body = b"z" * 30_000_000
    async with data_path(silent(asked), tmp_path, response_timeout=1) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port, limit=1024)
        writer.write(proxy.request("/v1.0/x", "POST", TEXT % 100_000, b"x" * 50_000))
        await until(lambda: asked)
        asked[0].send(b"HTTP/1.1 200 OK\r\n" + TEXT % len(body) + b"\r\n" + body)
        await until(lambda: bool(proxy.connections) and only_connection(proxy).write_paused)
        exchange: Any = only_connection(proxy)._exchange
        writer.write(b"x" * 50_000)
        await until(lambda: exchange.body.whole)
        upstream: UpstreamConnection = exchange._call.upstream
        assert upstream.deadline == float("inf")  # the client has its own deadline
        assert len((await read_reply(reader)).body) == len(body)
        await settled(proxy)
        writer.close()


async def test_a_malformed_body_gets_its_response_though_more_follows(tmp_path: Path) -> None:
    asked: list[UpstreamPeer] = []
    async with data_path(silent(asked), tmp_path) as proxy:
        reader, writer = await proxy.connect()
        chunked = b"Content-Type: text/plain\r\nTransfer-Encoding: chunked\r\n"
        writer.write(proxy.request("/v1.0/x", "POST", chunked, b"5\r\nhello\r\n"))
        await until(lambda: asked)
        writer.write(b"nonsense\r\n" + b"x" * 100_000)
        assert (await read_reply(reader)).status == 400
        writer.write(b"x" * 100_000)
        writer.write_eof()
        assert await reader.read() == b""  # a normal end, and not a reset
        await settled(proxy)
        writer.close()


async def test_an_upstream_that_ends_its_response_without_taking_the_upload(tmp_path: Path) -> None:
    done = asyncio.Event()
    opened: list[UpstreamConnection] = []

    async def script(peer: UpstreamPeer) -> None:
        await peer.head()
        transport: Any = peer.writer.transport
        transport.pause_reading()
        await until(lambda: any(each.transport.get_write_buffer_size() for each in opened))
        peer.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\nhello")
        peer.writer.write_eof()
        await done.wait()

    async with data_path(script, tmp_path, response_timeout=2) as proxy:
        reader, writer = await proxy.connect()
        writer.write(proxy.request("/v1.0/x", "POST", TEXT % 50_000_000, b"x"))

        def call() -> Any:
            exchange: Any = only_connection(proxy)._exchange if proxy.connections else None
            return None if exchange is None else exchange._call

        await until(lambda: call() is not None and call().upstream is not None)
        opened.append(call().upstream)
        writer.write(b"x" * 20_000_000)
        try:
            assert (await read_reply(reader)).body.endswith(b"hello")
        finally:
            done.set()
            writer.transport.abort()
        await settled(proxy)


@pytest.mark.parametrize("method", ["__init__", "connection_made"])
async def test_a_connect_that_times_out_at_the_last_moment_is_counted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    original = getattr(UpstreamConnection, method)

    def slow(self: UpstreamConnection, *arguments: Any) -> None:
        time.sleep(0.3)  # the event loop is busy with other work until after the connect timeout
        original(self, *arguments)

    async with data_path(responding(ok(b"{}")), tmp_path, connect_timeout=0.2) as proxy:
        try:
            monkeypatch.setattr(UpstreamConnection, method, slow)
        except TypeError:
            pytest.skip("a compiled class can't be changed")
        await proxy.ask(proxy.request())
        monkeypatch.undo()
        await settled(proxy)


@pytest.mark.parametrize("field", [b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n"])
async def test_no_connection_is_reused_after_an_interim_response_with_a_length(
    tmp_path: Path, field: bytes
) -> None:
    response = b"HTTP/1.1 103 Early Hints\r\n" + field + b"\r\n" + ok(b"{}")
    async with data_path(responding(response), tmp_path) as proxy:
        reader, writer = await proxy.connect()
        writer.write(proxy.request())
        interim = await read_reply(reader)
        assert (interim.status, interim.value("content-length"), interim.value("transfer-encoding")) == (
            103,
            None,
            None,
        )
        assert (await read_reply(reader)).status == 200
        await until(lambda: proxy.context.pool._open == 0)
        writer.close()


async def test_a_kill_before_the_event_leaves_no_whole_response_to_an_http_1_0_client(tmp_path: Path) -> None:
    """An HTTP/1.0 response ends with its connection, so killing the process must reset the connection."""
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.bytes.endless_response", str(tmp_path), stdout=subprocess.PIPE
    )
    assert child.stdout is not None
    try:
        port, token = (await child.stdout.readline()).split()
        reader, writer = await asyncio.open_connection("127.0.0.1", int(port))
        writer.write(b"GET /v1.0/x HTTP/1.0\r\nAuthorization: Bearer %b\r\n\r\n" % token)
        await reader.readuntil(b"\r\n\r\n")
        assert await reader.readexactly(5) == b"hello"
    finally:
        child.send_signal(signal.SIGKILL)
        await child.wait()
    records = []
    for path in spool_directory(tmp_path / "audit").glob("*.seg"):
        segment = SegmentReader(path)
        if segment.header is not None:
            records += list(segment.records(1 << 30))
        segment.close()
    assert records == []
    with pytest.raises(ConnectionResetError):
        await reader.read()
    writer.close()
