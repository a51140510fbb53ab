"""Tests of slow, vanishing and disorderly clients.

The audit events of badly behaved clients are correct, and other clients are not affected.
"""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from proxy.server.client import connection as connection_module
from proxy.server.client.pace import SLOW_READER_SECONDS
from proxy.server.client.read_gate import HANDLER
from proxy.server.exchange.exchange import Exchange
from tests.bytes.data_path import DataPath, UpstreamPeer, data_path, ok, read_reply, responding, until
from tests.patience import PATIENCE_SECONDS

RULES = """
version: 1
name: clients
default: allow
rules:
  - {id: never, match: {path: ["/v1.0/blocked/**"]}, verdict: block}
  - id: kind
    match: {path: ["/v1.0/evaluated"]}
    conditions: [{body: kind, equals: guest}]
    verdict: block
"""

RECEIVED_AT_ONCE = 256 * 1024  # bytes that the event loop reads at once from one connection
LARGE = b"x" * 12_000_000
LARGE_RESPONSE = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(LARGE), LARGE)


def pass_time(proxy: DataPath, seconds: float) -> None:
    """Run the proxy's deadline sweep as if `seconds` had passed."""
    deadlines = proxy.context.deadlines
    now = asyncio.get_running_loop().time() + seconds
    for part in deadlines._parts:
        for timed in list(part):
            if timed.deadline <= now:
                timed.on_deadline(now)


# Clients that read nothing


async def small_window(proxy: DataPath) -> socket.socket:
    """Open a connection whose receiver accepts only a few kilobytes before its sender has to wait."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.setblocking(False)
    await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", proxy.port))
    return client


@pytest.mark.parametrize("fields", [b"", b"Connection: close\r\n"])
async def test_a_client_that_takes_nothing_of_a_whole_response_is_cut(tmp_path: Path, fields: bytes) -> None:
    held = ok(b'{"a":"%b"}' % LARGE[:900_000])  # buffered whole, so that the exchange has ended
    async with data_path(responding(held), tmp_path) as proxy:
        client = await small_window(proxy)
        await asyncio.get_running_loop().sock_sendall(client, proxy.request(fields=fields))
        await until(lambda: proxy.events())
        pass_time(proxy, SLOW_READER_SECONDS + proxy.context.limits.idle_timeout)
        await until(lambda: not proxy.context.connections)
        client.close()


async def test_a_client_that_takes_nothing_of_a_streaming_response_is_cut_with_its_upstream(
    tmp_path: Path,
) -> None:
    async with data_path(responding(LARGE_RESPONSE), tmp_path) as proxy:
        client = await small_window(proxy)
        await asyncio.get_running_loop().sock_sendall(client, proxy.request())
        await until(lambda: any(each.write_paused for each in proxy.connections))
        pass_time(proxy, SLOW_READER_SECONDS + 1)
        await until(lambda: not proxy.context.connections)
        await until(lambda: proxy.context.pool.open_connections == 0)
        (event,) = proxy.events()
        assert (event["status"], event["reason"]) == (200, "clientAborted")
        client.close()


async def test_responses_do_not_pile_up_for_a_client_that_pipelines_and_reads_nothing(tmp_path: Path) -> None:
    body = b'{"a":"%b"}' % LARGE[:200_000]
    async with data_path(responding(ok(body)), tmp_path) as proxy:
        client = await small_window(proxy)
        await asyncio.get_running_loop().sock_sendall(client, proxy.request() * 40)
        await until(lambda: any(each.write_paused for each in proxy.connections))
        (served,) = proxy.connections
        await asyncio.sleep(0.02)
        assert len(proxy.events()) < 40
        assert served.transport.get_write_buffer_size() < 1_000_000
        received = 0
        while received < 40 * len(body):
            received += len(await asyncio.get_running_loop().sock_recv(client, 1 << 20))
        client.close()


async def both_ends_small(proxy: DataPath) -> tuple[socket.socket, connection_module.ClientConnection]:
    """Return both ends of a connection: the client's socket and the proxy's end.

    The small buffers of the connection soon block the proxy's output.
    """
    client = await small_window(proxy)
    await until(lambda: proxy.connections)
    (served,) = proxy.connections
    served.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
    return client, served


async def take(client: socket.socket, size: int) -> bytes:
    """Read at least `size` bytes from the client's socket."""
    taken = b""
    while len(taken) < size:
        taken += await asyncio.get_running_loop().sock_recv(client, 1 << 16)
    return taken


@pytest.mark.parametrize("small_responses", range(3, 9))
async def test_a_large_response_does_not_pile_up_behind_small_ones_that_wait(
    tmp_path: Path, small_responses: int
) -> None:
    small = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 15000\r\n\r\n" + b"x" * 15000

    async def script(peer: UpstreamPeer) -> None:
        if (await peer.head()).startswith(b"GET /v1.0/large "):
            peer.send(LARGE_RESPONSE)
            await peer.writer.drain()
        else:
            peer.send(small)  # closes after it, so that the next request waits for a connection

    async with data_path(script, tmp_path) as proxy:
        client, served = await both_ends_small(proxy)
        requests = proxy.request("/v1.0/small") * small_responses + proxy.request("/v1.0/large")
        await asyncio.get_running_loop().sock_sendall(client, requests)
        await until(lambda: served.write_paused)
        await asyncio.sleep(0.05)
        assert served.transport.get_write_buffer_size() < 1_000_000
        client.close()


async def test_a_client_that_reads_again_does_not_hurry_an_upstream_that_takes_no_body(
    tmp_path: Path,
) -> None:
    responded = asyncio.Event()

    async def early(peer: UpstreamPeer) -> None:
        await peer.head()
        await responded.wait()
        peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n" + b"x" * 300_000)
        await asyncio.Event().wait()  # the rest of the body is never read

    async with data_path(early, tmp_path) as proxy:
        loop = asyncio.get_running_loop()
        client, served = await both_ends_small(proxy)
        await loop.sock_sendall(client, proxy.request(method="POST", fields=b"Content-Length: 12000000\r\n"))
        sending = asyncio.create_task(loop.sock_sendall(client, LARGE))
        await until(lambda: served._gate.is_shut_by(HANDLER))  # because of the upstream
        responded.set()
        await until(lambda: served.write_paused)
        await take(client, 300_000)
        assert not served.write_paused
        await asyncio.sleep(0.05)
        exchange = served._exchange
        assert isinstance(exchange, Exchange)
        assert exchange._call is not None
        assert exchange._call.upstream is not None
        assert exchange._call.upstream.transport.get_write_buffer_size() < 1_000_000
        sending.cancel()
        client.close()


async def test_a_client_that_reads_again_does_not_end_the_wait_for_a_new_token(tmp_path: Path) -> None:
    hints = (b"HTTP/1.1 103 Early Hints\r\nLink: " + b"l" * 20_000 + b"\r\n\r\n") * 12
    refused = b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n"
    async with data_path(responding(hints + refused), tmp_path, upstream_wait=1) as proxy:
        client, served = await both_ends_small(proxy)
        await asyncio.get_running_loop().sock_sendall(client, proxy.request())
        await until(lambda: served.write_paused)
        await take(client, len(hints))
        await proxy.credential_asked.wait()
        await until(lambda: not served.write_paused)
        pass_time(proxy, 2)
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert b"HTTP/1.1 502" in await take(client, 1)
        client.close()


async def test_many_pipelined_refusals_leave_the_others_their_turn(tmp_path: Path) -> None:
    async with data_path(responding(ok(b"{}")), tmp_path, RULES) as proxy:
        reader, writer = await proxy.connect()
        writer.write(proxy.request("/v1.0/blocked/x") * 300)
        iterations = 0
        while len(proxy.events()) < 300:
            iterations += 1
            await asyncio.sleep(0)
        assert iterations > 300 // connection_module.REQUESTS_PER_ITERATION
        for _ in range(300):
            assert (await read_reply(reader)).status == 403
        writer.close()


async def test_who_pipelines_without_a_pause_is_read_no_further_than_requests_wait(tmp_path: Path) -> None:
    """The proxy refuses pipelined requests one by one.

    One client with many pipelined requests delays other clients by at most one loop iteration.
    """
    request = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
    count = 60_000
    most = 0
    async with data_path(responding(ok(b"{}")), tmp_path, RULES) as proxy:
        reader, writer = await proxy.connect()
        writer.write(request * count)
        for responded in range(count):
            assert (await read_reply(reader)).status == 401
            most = max([most, *(each._reader.waiting for each in proxy.connections)])
            if responded == 100:
                assert (await proxy.ask(proxy.request())).status == 200
                assert requests_wait(proxy), "all was served before anybody else"
        assert most <= connection_module.PIPELINE_BYTES + RECEIVED_AT_ONCE
        writer.write(proxy.request())  # the client continues normally
        assert (await read_reply(reader)).status == 200
        writer.close()


def requests_wait(proxy: DataPath) -> bool:
    return any(each._reader.waiting for each in proxy.connections)


async def test_pipelined_requests_with_bodies_are_read_no_further_either(tmp_path: Path) -> None:
    request = b"POST /v1.0/x HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc"
    most = 0
    async with data_path(responding(ok(b"{}")), tmp_path, RULES) as proxy:
        reader, writer = await proxy.connect()
        writer.write(request * 20_000)
        for _ in range(20_000):
            assert (await read_reply(reader)).status == 401
            most = max([most, *(each._reader.waiting for each in proxy.connections)])
        assert most <= connection_module.PIPELINE_BYTES + RECEIVED_AT_ONCE
        writer.close()


async def test_a_large_upload_behind_many_requests_comes_whole(tmp_path: Path) -> None:
    size = 3_000_000

    async def script(peer: UpstreamPeer) -> None:
        while True:
            head = await peer.head()
            if head.startswith(b"PUT"):
                assert await peer.body(size) == b"x" * size
            peer.send(ok(b"{}"))

    async with data_path(script, tmp_path, RULES) as proxy:
        reader, writer = await proxy.connect()
        upload = proxy.request("/v1.0/a", "PUT", b"Content-Length: %d\r\n" % size, b"x" * size)
        writer.write(proxy.request("/v1.0/b") * 1000 + upload + proxy.request("/v1.0/c") * 1000)
        for _ in range(2001):
            assert (await read_reply(reader)).status == 200
        writer.close()


# Clients that leave


@pytest.mark.parametrize("way", ["close", "half", "reset"])
async def test_a_client_that_closes_either_way_before_its_response_is_taken_to_have_left(
    tmp_path: Path, way: str
) -> None:
    came, left = asyncio.Event(), asyncio.Event()

    async def script(peer: UpstreamPeer) -> None:
        await peer.head()
        came.set()
        await peer.reader.read()
        left.set()

    async with data_path(script, tmp_path) as proxy:
        _, writer = await proxy.connect()
        writer.write(proxy.request(method="POST"))
        await came.wait()
        if way == "close":
            writer.close()
        elif way == "half":
            writer.write_eof()
        else:
            writer.transport.abort()
        await left.wait()
        (event,) = proxy.events()
        assert (event["status"], event["reason"]) == (499, "clientAborted")
        assert proxy.context.pool.open_connections == 0
        writer.close()


async def test_a_response_that_is_ready_reaches_a_client_that_has_closed_its_sending_side(
    tmp_path: Path,
) -> None:
    async with data_path(responding(ok(b"{}")), tmp_path, RULES) as proxy:
        reader, writer = await proxy.connect()
        writer.write(proxy.request("/v1.0/blocked/x"))
        writer.write_eof()
        assert (await read_reply(reader)).status == 403
        assert await reader.read() == b""
        writer.close()


async def test_a_client_that_leaves_the_queue_for_a_connection_leaves_no_trace_there(tmp_path: Path) -> None:
    async def script(peer: UpstreamPeer) -> None:
        await peer.reader.read()

    async with data_path(script, tmp_path, max_connections=1) as proxy:
        _, first = await proxy.connect()
        first.write(proxy.request("/v1.0/first"))
        await until(lambda: proxy.upstream.received and proxy.upstream.received[0])
        _, second = await proxy.connect()
        second.write(proxy.request("/v1.0/second"))
        await until(lambda: proxy.context.pool._waiting)
        second.close()
        await until(lambda: not proxy.context.pool._waiting)
        first.close()
        await until(lambda: len(proxy.events()) == 2)
        assert b"second" not in b"".join(bytes(each) for each in proxy.upstream.received)


# Requests with Expect: 100-continue


EXPECTING = b"Expect: 100-continue\r\nContent-Length: 16\r\n"


@pytest.mark.parametrize("target", ["/v1.0/blocked/x", "/v1.0/%00"])
async def test_a_refusal_comes_in_place_of_100_continue_and_closes(tmp_path: Path, target: str) -> None:
    async with data_path(responding(ok(b"{}")), tmp_path, RULES) as proxy:
        reader, writer = await proxy.connect()
        writer.write(proxy.request(target, "POST", EXPECTING))
        reply = await read_reply(reader)
        assert reply.status in (400, 403)
        assert reply.value("connection") == "close"
        writer.write(b'{"kind":"guest"}')  # a client that does not wait for it
        assert await reader.read() == b""
        assert proxy.upstream.received == []
        writer.close()


async def test_a_body_that_is_evaluated_is_asked_for_at_once_and_refused_before_the_upstream(
    tmp_path: Path,
) -> None:
    async with data_path(responding(ok(b"{}")), tmp_path, RULES) as proxy:
        reader, writer = await proxy.connect()
        writer.write(proxy.request("/v1.0/evaluated", "POST", EXPECTING))
        assert (await read_reply(reader)).status == 100
        writer.write(b'{"kind":"guest"}')
        reply = await read_reply(reader)
        assert (reply.status, reply.value("connection")) == (403, None)
        assert proxy.upstream.received == []
        writer.write(proxy.request())
        assert (await read_reply(reader)).status == 200
        writer.close()


async def test_time_that_the_upstream_takes_for_100_continue_is_not_the_client_s(tmp_path: Path) -> None:
    go_on = asyncio.Event()

    async def script(peer: UpstreamPeer) -> None:
        await peer.head()
        await go_on.wait()
        peer.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        await peer.body(16)
        peer.send(ok(b"{}"))

    async with data_path(script, tmp_path, body_grace=2, response_timeout=60) as proxy:
        reader, writer = await proxy.connect()
        writer.write(proxy.request("/v1.0/a", "POST", EXPECTING))
        await until(lambda: proxy.upstream.heads)
        pass_time(proxy, 10)
        go_on.set()
        assert (await read_reply(reader)).status == 100
        writer.write(b"x" * 16)
        assert (await read_reply(reader)).status == 200
        writer.close()


async def test_after_100_continue_the_client_s_time_runs(tmp_path: Path) -> None:
    async def script(peer: UpstreamPeer) -> None:
        await peer.head()
        peer.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        await peer.reader.read()

    async with data_path(script, tmp_path, body_grace=2, response_timeout=60) as proxy:
        reader, writer = await proxy.connect()
        writer.write(proxy.request("/v1.0/a", "POST", EXPECTING))
        assert (await read_reply(reader)).status == 100
        pass_time(proxy, 10)
        assert (await read_reply(reader)).status == 408
        writer.close()


async def test_a_final_response_in_place_of_100_continue_ends_both_connections(tmp_path: Path) -> None:
    refusal = b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n"
    async with data_path(responding(refusal), tmp_path) as proxy:
        reader, writer = await proxy.connect()
        writer.write(proxy.request("/v1.0/a", "PUT", EXPECTING))
        reply = await read_reply(reader)
        assert (reply.status, reply.value("connection")) == (413, "close")
        await until(lambda: proxy.context.pool.open_connections == 0)
        writer.close()


# Slow request bodies


async def test_a_body_that_drips_is_cut_however_often_a_byte_comes(tmp_path: Path) -> None:
    async with data_path(responding(ok(b"{}")), tmp_path, RULES, body_grace=2) as proxy:
        reader, writer = await proxy.connect()
        writer.write(proxy.request("/v1.0/evaluated", "POST", b"Content-Length: 10000\r\n"))
        await until(lambda: any(each.busy for each in proxy.context.connections))
        for second in range(10):
            writer.write(b"x")
            await asyncio.sleep(0.002)
            pass_time(proxy, 3 + second)
            if proxy.events():
                break
        assert (await read_reply(reader)).status == 408
        (event,) = proxy.events()
        assert (event["status"], event["reason"]) == (408, "requestTimeout")
        writer.close()


async def test_a_chunked_body_of_tiny_chunks_passes_as_fast_as_it_comes(tmp_path: Path) -> None:
    async def script(peer: UpstreamPeer) -> None:
        await peer.head()
        await peer.reader.readuntil(b"0\r\n\r\n")
        peer.send(ok(b"{}"))

    async with data_path(script, tmp_path) as proxy:
        head = proxy.request("/v1.0/a", "PUT", b"Transfer-Encoding: chunked\r\n")
        assert (await proxy.ask(head + b"1\r\nx\r\n" * 20_000 + b"0\r\n\r\n")).status == 200


async def test_chunks_that_are_more_framing_than_content_are_refused(tmp_path: Path) -> None:
    """The proxy refuses a body of very small chunks.

    Each chunk of a body costs the proxy as much work as thousands of body bytes.
    """
    async with data_path(responding(ok(b"{}")), tmp_path) as proxy:
        head = proxy.request("/v1.0/a", "PUT", b"Transfer-Encoding: chunked\r\n")
        assert (await proxy.ask(head + b"1\r\nx\r\n" * 70_000 + b"0\r\n\r\n")).status == 400
        (event,) = proxy.events()
        assert event["reason"] == "malformedRequest"


# Keep-alive and close


@pytest.mark.parametrize(
    ("request_text", "status"),
    [
        (("/v1.0/blocked/x", "GET", b"", b""), 403),
        (("/v1.0/%00", "GET", b"", b""), 400),
        (("/v1.0/blocked/x", "POST", b"Content-Length: 5\r\n", b"hello"), 403),
        (("/v1.0/evaluated", "POST", b"Content-Length: 5\r\n", b"hello"), 400),
        (("/v1.0/$batch", "POST", b"Content-Length: 5\r\n", b"hello"), 400),
        (("/proxy/token", "GET", b"", b""), 405),
        (("/proxy/token", "POST", b"Content-Length: 5\r\n", b"hello"), 400),
    ],
)
async def test_a_refusal_keeps_the_connection_where_it_is_clear_what_comes_next(
    tmp_path: Path, request_text: tuple[str, str, bytes, bytes], status: int
) -> None:
    async with data_path(responding(ok(b'{"next":1}')), tmp_path, RULES) as proxy:
        reader, writer = await proxy.connect()
        writer.write(proxy.request(*request_text) + proxy.request())
        assert (await read_reply(reader)).status == status
        assert (await read_reply(reader)).json() == {"next": 1}
        writer.close()


@pytest.mark.parametrize("target", ["/v1.0/blocked/x", "/proxy/token", "/v1.0/%00", "/v1.0/a"])
async def test_a_response_to_head_never_has_a_body(tmp_path: Path, target: str) -> None:
    async with data_path(
        responding(b"HTTP/1.1 500 E\r\nContent-Length: 9\r\n\r\n"), tmp_path, RULES
    ) as proxy:
        reader, writer = await proxy.connect()
        writer.write(proxy.request(target, "HEAD") * 2)
        for _ in range(2):
            assert (await read_reply(reader, to_head=True)).status >= 400
        writer.close()


@pytest.mark.parametrize("option", [b"close", b"Close", b"x, close", b"keep-alive, close"])
async def test_connection_close_is_responded_with_close_and_nothing_after_it_is_read(
    tmp_path: Path, option: bytes
) -> None:
    async with data_path(responding(ok(b"{}")), tmp_path) as proxy:
        text = await proxy.raw(
            proxy.request(fields=b"Connection: " + option + b"\r\n") + proxy.request("/v1.0/b")
        )
        assert text.count(b"HTTP/1.1 200 OK") == 1
        assert b"\r\nConnection: close\r\n" in text
        assert len(proxy.upstream.heads) == 1


async def test_a_draining_proxy_says_close_and_finishes_what_it_has_begun(tmp_path: Path) -> None:
    go_on = asyncio.Event()

    async def script(peer: UpstreamPeer) -> None:
        await peer.head()
        await go_on.wait()
        peer.send(ok(b"{}"))

    async with data_path(script, tmp_path) as proxy:
        reader, writer = await proxy.connect()
        writer.write(proxy.request())
        await until(lambda: proxy.upstream.heads)
        proxy.context.draining = True
        for each in list(proxy.context.connections):
            each.drain()
        go_on.set()
        reply = await read_reply(reader)
        assert (reply.status, reply.value("connection")) == (200, "close")
        assert await reader.read() == b""
        writer.close()


async def test_one_connection_too_many_is_told_so(tmp_path: Path) -> None:
    async with data_path(responding(ok(b"{}")), tmp_path, max_connections=8) as proxy:
        object.__setattr__(proxy.context.limits, "max_connections", 1)
        _, first = await proxy.connect()
        await until(lambda: proxy.context.connections)
        reply = await proxy.ask(proxy.request())
        assert (reply.status, reply.value("retry-after"), reply.value("connection")) == (503, "1", "close")
        error = reply.json()["error"]
        assert (error["code"], set(error)) == ("notReady", {"code", "message", "innerError"})
        first.close()


# Events that cannot be stored


CHUNKED_RESPONSE = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"


@pytest.mark.parametrize(
    "response", [ok(b"{}"), LARGE_RESPONSE, CHUNKED_RESPONSE], ids=["sized", "large", "chunked"]
)
@pytest.mark.parametrize("target", ["/v1.0/a", "/v1.0/blocked/x"])
async def test_a_response_whose_event_cannot_be_stored_is_never_completed(
    tmp_path: Path, response: bytes, target: str
) -> None:
    async with data_path(responding(response), tmp_path, RULES) as proxy:
        spool = proxy.context.spool
        while spool._prepared:
            spool._prepared.popleft().release()
        # no byte is free, but the counters do not show it
        spool._end, spool._reserved = spool._offset, -(1 << 20)
        spool._max_bytes = 0  # no segment can be prepared either
        assert spool.ready
        text = await proxy.raw(proxy.request(target))
        whole = len(text.partition(b"\r\n\r\n")[2]) >= len(response.partition(b"\r\n\r\n")[2])
        assert not text or not whole
        assert not text.endswith(b"0\r\n\r\n")


async def test_a_response_that_said_close_is_the_last_though_the_body_comes_whole_after_all(
    tmp_path: Path,
) -> None:
    """The proxy processes no request after a response with `Connection: close` (RFC 9112 §9.6)."""

    async def script(peer: UpstreamPeer) -> None:
        await peer.head()
        peer.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n")
        await peer.reader.readuntil(b"0\r\n\r\n")
        peer.send(b"0\r\n\r\n")
        await peer.reader.read()

    async with data_path(script, tmp_path, RULES) as proxy:
        reader, writer = await proxy.connect()
        chunked = b"Transfer-Encoding: chunked\r\n"
        writer.write(proxy.request("/v1.0/a", "POST", chunked, b"3\r\nabc\r\n"))
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"Connection: close" in head
        writer.write(b"0\r\n\r\n" + proxy.request("/v1.0/b"))
        assert await reader.read() == b"0\r\n\r\n"
        assert len(proxy.upstream.heads) == 1
        writer.close()


async def test_a_client_that_pauses_within_its_body_is_not_the_upstream_s_fault(tmp_path: Path) -> None:
    """A pause in a request body is allowed if the average rate of the whole body is high enough."""

    async def script(peer: UpstreamPeer) -> None:
        await peer.head()
        await peer.body(200_000)
        peer.send(ok(b"{}"))

    async with data_path(script, tmp_path, RULES, response_timeout=20, body_grace=5) as proxy:
        reader, writer = await proxy.connect()
        writer.write(proxy.request("/v1.0/a", "PUT", b"Content-Length: 200000\r\n", b"x" * 150_000))
        await until(lambda: proxy.upstream.received and len(proxy.upstream.received[0]) > 150_000)
        pass_time(proxy, 60)
        writer.write(b"x" * 50_000)
        assert (await read_reply(reader)).status == 200
        writer.write(proxy.request("/v1.0/a", "PUT", b"Content-Length: 200000\r\n", b"x" * 1000))
        await until(lambda: len(proxy.upstream.heads) == 2)
        pass_time(proxy, 60)
        assert (await read_reply(reader)).status == 408
        writer.close()


async def test_empty_lines_between_requests_start_no_clock(tmp_path: Path) -> None:
    """The proxy ignores empty lines before a request (RFC 9112 §2.2)."""
    async with data_path(responding(ok(b"{}")), tmp_path, RULES, head_timeout=15, idle_timeout=75) as proxy:
        reader, writer = await proxy.connect()
        writer.write(proxy.request())
        assert (await read_reply(reader)).status == 200
        writer.write(b"\r\n")
        await proxy.ask(proxy.request())  # ensures that the line has arrived
        pass_time(proxy, 30)
        writer.write(proxy.request())
        assert (await read_reply(reader)).status == 200
        writer.close()
