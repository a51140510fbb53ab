"""Tests of one loop iteration: the proxy processes all input, and sends output at the iteration's end.

The proxy sends each response to the client that sent the corresponding request.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from proxy.server.client.connection import ClientConnection
from proxy.server.client.state import State
from proxy.server.loop.iteration import MOST_TOGETHER
from proxy.server.upstream.connection import UpstreamConnection
from tests.bytes.data_path import (
    DataPath,
    UpstreamPeer,
    asking,
    data_path,
    ok,
    read_reply,
    responding,
    until,
    upstream_of,
)

BLOCK_SECRETS = """
version: 1
name: no-secrets
default: allow
rules:
  - id: secrets
    match: {path: ["/v1.0/secrets"]}
    verdict: block
"""


async def test_what_one_iteration_reads_is_taken_when_it_ends(tmp_path: Path) -> None:
    async with data_path(responding(ok(b"{}")), tmp_path, BLOCK_SECRETS) as proxy:
        reader, writer = await proxy.connect()
        writer.write(proxy.request("/v1.0/secrets"))
        await read_reply(reader)
        connection = client_of(proxy)
        request = proxy.request("/v1.0/secrets")
        connection.data_received(request[:100])
        connection.data_received(request[100:] + request[:50])
        connection.data_received(request[50:])
        assert len(proxy.events()) == 3  # a request that arrives in pieces is not delayed further
        connection.data_received(request)
        assert len(proxy.events()) == 3
        await asyncio.sleep(0)
        assert len(proxy.events()) == 4
        for _ in range(3):
            assert (await read_reply(reader)).status == 403
        writer.close()


async def test_many_requests_do_not_wait_for_the_iterations_end(tmp_path: Path) -> None:
    async with data_path(responding(ok(b"{}")), tmp_path, BLOCK_SECRETS) as proxy:
        clients = [await proxy.connect() for _ in range(MOST_TOGETHER)]
        await until(lambda: len(proxy.connections) == MOST_TOGETHER)
        for number, connection in enumerate(proxy.connections):
            assert not proxy.events(), f"taken after {number}"
            connection.data_received(proxy.request("/v1.0/secrets"))
        assert len(proxy.events()) == MOST_TOGETHER
        assert not any(each._queued_output for each in proxy.connections)  # all output is sent
        for reader, writer in clients:
            assert (await read_reply(reader)).status == 403
            writer.close()


class BrokenTransport(asyncio.Transport):
    def __init__(self, whole: asyncio.Transport) -> None:
        self._whole = whole

    def write(self, data: bytes | bytearray | memoryview) -> None:
        raise RuntimeError("this connection is not well")

    def abort(self) -> None:
        self._whole.abort()

    def close(self) -> None:
        self._whole.close()


async def test_a_connection_that_fails_is_closed_and_disturbs_no_other(tmp_path: Path) -> None:
    failures: list[dict[str, object]] = []
    async with data_path(responding(ok(b"{}")), tmp_path, BLOCK_SECRETS) as proxy:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
        clients = [await proxy.connect() for _ in range(3)]
        await until(lambda: len(proxy.connections) == len(clients))
        by_port = {each.transport.get_extra_info("peername")[1]: each for each in proxy.connections}
        served = [by_port[writer.get_extra_info("sockname")[1]] for _, writer in clients]
        served[1].transport = BrokenTransport(served[1].transport)
        for connection in served:
            connection.data_received(proxy.request("/v1.0/secrets"))
        assert (await read_reply(clients[0][0])).status == 403
        assert await clients[1][0].read() == b""
        assert (await read_reply(clients[2][0])).status == 403
        for _, writer in clients:
            writer.close()
    assert len(failures) == 1


async def test_a_request_that_has_arrived_is_served_by_a_worker_that_stops(tmp_path: Path) -> None:
    async with data_path(responding(ok(b"{}")), tmp_path) as proxy:
        reader, writer = await proxy.connect()
        writer.write(proxy.request())
        await read_reply(reader)
        connection = client_of(proxy)
        connection.data_received(proxy.request())
        proxy.context.draining = True
        connection.drain()
        reply = await read_reply(reader)
        assert (reply.status, reply.value("connection")) == (200, "close")
        writer.close()


async def test_a_request_that_has_arrived_is_in_time(tmp_path: Path) -> None:
    async with data_path(responding(ok(b"{}")), tmp_path) as proxy:
        reader, writer = await proxy.connect()
        writer.write(proxy.request())
        await read_reply(reader)
        connection = client_of(proxy)
        connection.data_received(proxy.request())
        connection.on_deadline(connection.deadline)  # deadline of the idle connection
        assert (await read_reply(reader)).status == 200
        writer.close()


@pytest.mark.parametrize("drop", [b"\r\n", b"GET /v1.0/us"])
async def test_what_arrives_without_being_a_request_renews_no_deadline(tmp_path: Path, drop: bytes) -> None:
    async with data_path(responding(ok(b"{}")), tmp_path) as proxy:
        reader, writer = await proxy.connect()
        writer.write(proxy.request())
        await read_reply(reader)
        connection = client_of(proxy)
        due = connection.deadline
        if len(drop) > len(b"\r\n"):
            connection.data_received(b"\r\n" + drop)
            proxy.context.iteration.take()  # the head's own deadline applies from here
            due = connection.deadline
        connection.data_received(drop)
        connection.on_deadline(due)
        assert connection.transport.is_closing() or connection.state in (State.DISCARD, State.CLOSING)
        writer.close()


async def test_an_upstream_that_drips_its_head_renews_no_deadline(tmp_path: Path) -> None:
    async with asking(tmp_path) as (proxy, reader, upstream):
        upstream.data_received(b"HTTP/1.1 ")
        upstream.on_deadline(upstream.deadline)
        assert [event["status"] for event in proxy.events()] == [504]
        assert (await read_reply(reader)).status == 504


async def test_a_failure_stops_no_drain(tmp_path: Path) -> None:
    failures: list[dict[str, object]] = []
    async with data_path(responding(ok(b"{}")), tmp_path) as proxy:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
        reader, writer = await proxy.connect()
        await until(lambda: proxy.connections)
        connection = client_of(proxy)
        connection.transport = BrokenTransport(connection.transport)
        connection.data_received(b"NONSENSE\r\n\r\n")
        connection.drain()
        assert await reader.read() == b""
        writer.close()
    assert len(failures) == 1


async def test_a_connection_that_responded_early_serves_nobody_else(tmp_path: Path) -> None:
    chunked = b"Transfer-Encoding: chunked\r\n"
    async with asking(tmp_path, "/v1.0/upload", "POST", chunked, b"1\r\nx\r\n") as (proxy, reader, upstream):
        connection = client_of(proxy)
        # In one loop iteration, the response arrives first, and then the end of the request.
        upstream.data_received(b"HTTP/1.1 413 Payload Too Large\r\nContent-Length: 0\r\n\r\n")
        connection.data_received(b"0\r\n\r\n")
        assert (await read_reply(reader)).status == 413
        await until(lambda: upstream.closed)
        assert not proxy.context.pool._idle


async def test_a_connection_on_which_reading_rests_serves_nobody_else(tmp_path: Path) -> None:
    async with asking(tmp_path) as (proxy, _, upstream):
        connection = client_of(proxy)
        connection.transport.set_write_buffer_limits(high=0)
        upstream.data_received(b"HTTP/1.1 103 Early Hints\r\nLink: <%b>\r\n\r\n" % (b"x" * 60_000))
        for _ in range(200):  # more than the socket buffers hold
            connection.write(b"HTTP/1.1 103 Early Hints\r\nLink: <%b>\r\n\r\n" % (b"x" * 60_000))
        assert connection.write_paused
        upstream.data_received(ok(b"{}"))
        proxy.context.iteration.end()
        await until(lambda: upstream.closed)
        assert not proxy.context.pool._idle


async def test_a_client_that_leaves_right_behind_its_request_leaves_an_event(tmp_path: Path) -> None:
    async with data_path(responding(ok(b"{}")), tmp_path) as proxy:
        _, writer = await proxy.connect()
        await until(lambda: proxy.connections)
        connection = client_of(proxy)
        connection.data_received(proxy.request())
        connection.eof_received()
        assert [event["reason"] for event in proxy.events()] == ["clientAborted"]
        writer.close()


async def test_a_response_that_has_arrived_is_in_time(tmp_path: Path) -> None:
    async with asking(tmp_path) as (_, reader, upstream):
        upstream.data_received(ok(b"{}"))
        upstream.on_deadline(upstream.deadline)
        assert (await read_reply(reader)).status == 200


async def test_what_follows_a_response_in_the_same_iteration_is_not_the_next_ones(tmp_path: Path) -> None:
    async def second_only(peer: UpstreamPeer) -> None:
        await peer.head()
        if peer.number == 2:
            peer.send(ok(b'{"mine":true}'))
        asked.append(peer)
        await peer.reader.read()

    asked: list[UpstreamPeer] = []
    async with data_path(second_only, tmp_path, max_connections=1) as proxy:
        first, second = [await proxy.connect() for _ in range(2)]
        first[1].write(proxy.request("/v1.0/first"))
        await until(lambda: asked)
        upload = proxy.request("/v1.0/second", "POST", b"Transfer-Encoding: chunked\r\n", b"1\r\nx\r\n")
        second[1].write(upload)
        await until(lambda: proxy.context.pool._waiting)
        upstream = upstream_of(proxy)
        upstream.data_received(ok(b"{}"))
        upstream.data_received(ok(b'{"forged":true}'))
        assert (await read_reply(first[0])).json() == {}
        second[1].write(b"0\r\n\r\n")
        assert (await read_reply(second[0])).json() == {"mine": True}
        for _, writer in (first, second):
            writer.close()


def idle_upstream(proxy: DataPath) -> UpstreamConnection:
    (upstream,) = proxy.context.pool._idle
    return upstream


def client_of(proxy: DataPath) -> ClientConnection:
    (connection,) = proxy.connections
    return connection


def a_forged_response(upstream: UpstreamConnection) -> None:
    upstream.data_received(ok(b'{"forged":true}'))


def a_close(upstream: UpstreamConnection) -> None:
    assert not upstream.eof_received()
    upstream.transport.close()  # a transport does the same when the peer closes


def a_reset(upstream: UpstreamConnection) -> None:
    upstream.transport.abort()  # a transport does the same after an error


@pytest.mark.parametrize("surprise", [a_forged_response, a_close, a_reset])
@pytest.mark.parametrize(
    ("method", "body"), [("GET", b""), ("POST", b'{"displayName":"new"}')], ids=["GET", "POST"]
)
async def test_what_comes_before_the_request_has_left_is_not_taken_for_its_response(
    tmp_path: Path, surprise: Callable[[UpstreamConnection], None], method: str, body: bytes
) -> None:
    async with data_path(responding(ok(b'{"number":1}'), ok(b'{"number":2}')), tmp_path) as proxy:
        reader, writer = await proxy.connect()
        writer.write(proxy.request())
        await read_reply(reader)
        # In one loop iteration, the request is read, and its connection has an event before the request is
        # sent.
        length = b"Content-Length: %d\r\n" % len(body) if body else b""
        upstream = idle_upstream(proxy)
        client_of(proxy).data_received(proxy.request("/v1.0/next", method, length, body))
        proxy.context.iteration.take()
        surprise(upstream)
        reply = await read_reply(reader)
        # Another connection served it. A POST may not be sent twice, but the first connection never sent it.
        assert reply.json() == {"number": 1}
        assert b"/v1.0/next" not in proxy.upstream.received[0]
        assert proxy.upstream.received[1].count(b"/v1.0/next") == 1
        assert proxy.upstream.received[1].endswith(b"\r\n\r\n" + body)
        writer.close()


async def test_a_request_whose_client_leaves_before_it_is_sent_is_not_sent(tmp_path: Path) -> None:
    async with data_path(responding(ok(b"{}")), tmp_path) as proxy:
        reader, writer = await proxy.connect()
        writer.write(proxy.request())
        await read_reply(reader)
        connection = client_of(proxy)
        connection.data_received(proxy.request("/v1.0/never", "POST", b"Content-Length: 2\r\n", b"{}"))
        proxy.context.iteration.take()
        connection.cut()
        assert await reader.read() == b""
        await proxy.ask(proxy.request("/v1.0/later"))
        assert b"/v1.0/never" not in b"".join(bytes(each) for each in proxy.upstream.received)
        assert [event["reason"] for event in proxy.events()] == ["default", "clientAborted", "default"]
        writer.close()


async def test_responses_of_one_iteration_keep_their_order(tmp_path: Path) -> None:
    async def at_once(peer: UpstreamPeer) -> None:
        while True:
            await peer.head()
            peer.send(ok(b'{"value":[]}'))

    async with data_path(at_once, tmp_path, BLOCK_SECRETS) as proxy:
        # The upstream's response, a block by a rule and the refusal of a malformed head share one iteration.
        pipelined = proxy.request("/v1.0/users") + proxy.request("/v1.0/secrets") + b"NONSENSE\r\n\r\n"
        raw = await proxy.raw(pipelined)
        assert re.findall(rb"HTTP/1\.1 ([0-9]+)", raw) == [b"200", b"403", b"400"]


async def test_a_response_is_sent_before_a_client_that_half_closes_is_let_go(tmp_path: Path) -> None:
    async with data_path(responding(ok(b"{}")), tmp_path, BLOCK_SECRETS) as proxy:
        reader, writer = await proxy.connect()
        writer.write(proxy.request("/v1.0/secrets"))
        await read_reply(reader)
        connection = client_of(proxy)
        connection.data_received(proxy.request("/v1.0/secrets"))
        proxy.context.iteration.take()  # its response is queued
        assert not connection.eof_received()
        connection.transport.close()  # a transport does the same when the peer closes
        assert (await read_reply(reader)).status == 403
        writer.close()
