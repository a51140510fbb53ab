"""Tests of an upstream that breaks HTTP: its responses never look complete or reach another client.

After each faulty response, the test checks that later clients receive the responses to their own requests.
The proxy never reuses an upstream connection with leftover bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest
import uvloop

from proxy.server.exchange.exchange import Exchange
from proxy.server.upstream.connection import MAX_AGE_SECONDS
from proxy.server.upstream.pool import STALE_SECONDS
from tests.bytes.data_path import (
    UPSTREAM_TOKEN,
    DataPath,
    UpstreamPeer,
    data_path,
    ok,
    read_reply,
    responding,
)
from tests.fakes.certificates import CertificateAuthority
from tests.patience import PATIENCE_SECONDS

FORGED = ok(b'{"forged":true}')
END = b"0\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def first_then_own(
    first: Callable[[UpstreamPeer], Awaitable[None]],
) -> Callable[[UpstreamPeer], Awaitable[None]]:
    """Run `first` for requests to /v1.0/odd, and respond to other requests with their target."""

    async def script(peer: UpstreamPeer) -> None:
        while True:
            target = (await peer.head()).split(b" ")[1]
            if target == b"/v1.0/odd":
                await first(peer)
            else:
                peer.send(ok(b'{"target":"%b"}' % target))

    return script


def sending(*pieces: bytes, close: bool = False) -> Callable[[UpstreamPeer], Awaitable[None]]:
    async def first(peer: UpstreamPeer) -> None:
        for piece in pieces:
            peer.send(piece)
            await peer.writer.drain()
            await asyncio.sleep(0)
        if close:
            raise ConnectionResetError

    return first


async def strangers_get_their_own(proxy: DataPath, number: int = 3) -> None:
    for each in range(number):
        reply = await proxy.ask(proxy.request(f"/v1.0/own/{each}"))
        assert reply.json() == {"target": f"/v1.0/own/{each}"}


MALFORMED = [
    b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n" + END,
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n" + END,
    b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nhi",
    b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nhi",
    *(
        b"HTTP/1.1 200 OK\r\nContent-Length: %b\r\n\r\nhi" % value
        for value in (b"+2", b"-2", b"0x2", b"2,2", b"2 2", b"", b"2\x00", b"99999999999999999999",
                      b"1e0", b"two")
    ),
    *(
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: %b\r\n\r\n2\r\nhi\r\n0\r\n\r\n" % value
        for value in (b"gzip", b"gzip, chunked", b"chunked, chunked", b"identity", b"xchunked",
                      b"chunked;a", b"", b"\x0bchunked")
    ),
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n" + END,
    b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + END,
    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n",
    b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" * 17 + FORGED,
    b"HTTP/1.1 100 Continue\r\n\r\n" * 1000 + FORGED,
    b"HTTP/1.1 200 OK\r\nX: a\x00b\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nX: a\rb\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nX: a\nSet-Cookie: b=c\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nX: a\r\n folded\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nX : a\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nX\x00: a\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\n: a\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nno colon\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 200 O\x00K\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 200 O\x1b[31mK\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 200 O\rK\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 200 O\nK\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 200 OK\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 20 OK\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 2000 OK\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 099 OK\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 600 OK\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 999 OK\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 +20 OK\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1  200 OK\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/2.0 200 OK\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.2 200 OK\r\nContent-Length: 0\r\n\r\n",
    b"http/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
    b"ICY 200 OK\r\n\r\n",
    b"\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
    b"\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: p\r\n\r\n",
    b"\x16\x03\x01\x02\x00\r\n\r\n",
    b"\x00" * 50 + b"\r\n\r\n",
    b"SSH-2.0-x\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nX: " + b"a" * 70000 + b"\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nX: " + b"a" * 70000,
    b"HTTP/1.1 200 OK\r\n" + b"X: a\r\n" * 20000,
    b"a" * 70000,
]  # fmt: skip


@pytest.mark.parametrize("response", MALFORMED, ids=[f"{at}" for at in range(len(MALFORMED))])
async def test_a_malformed_head_is_502_and_spoils_nothing(tmp_path: Path, response: bytes) -> None:
    async with data_path(first_then_own(sending(response)), tmp_path) as proxy:
        reader, writer = await proxy.connect()
        writer.write(proxy.request("/v1.0/odd"))
        reply = await read_reply(reader)
        while reply.status < 200:
            reply = await read_reply(reader)
        assert (reply.status, reply.json()["error"]["code"]) == (502, "upstreamError")
        assert b"forged" not in reply.head + reply.body
        writer.write(proxy.request("/v1.0/after"))
        assert (await read_reply(reader)).json() == {"target": "/v1.0/after"}
        writer.close()
        await strangers_get_their_own(proxy)
        assert len(proxy.upstream.received) >= 2
        first = proxy.events()[0]
        assert (first["path"], first["status"], first["reason"]) == ("/v1.0/odd", 502, "upstreamProtocol")


BROKEN_BODIES = [
    CHUNKED + b"5\r\nhelloX\r\n" + END,
    CHUNKED + b"5\r\nhello" + END,
    CHUNKED + b"5\nhello\r\n" + END,
    CHUNKED + b"5\r\nhello\n" + END,
    CHUNKED + b"-5\r\nhello\r\n" + END,
    CHUNKED + b"+5\r\nhello\r\n" + END,
    CHUNKED + b"0x5\r\nhello\r\n" + END,
    CHUNKED + b"5_\r\nhello\r\n" + END,
    CHUNKED + b"FFFFFFFFFFFFFFFFFF\r\nhello\r\n" + END,
    CHUNKED + b"5;" + b"a" * 1000 + b"\r\nhello\r\n" + END,
    CHUNKED + b"5;a=\x00\r\nhello\r\n" + END,
    CHUNKED + b"5\r\nhello\r\n0\r\nX: \x00\r\n\r\n",
    CHUNKED + b"5\r\nhello\r\n0\r\nno colon\r\n\r\n",
    CHUNKED + b"5\r\nhello\r\n0\r\nX: " + b"a" * 10000 + b"\r\n\r\n",
    CHUNKED + b"5\r\nhello\r\n" + b"0\r\n" + b"X: a\r\n" * 3000 + b"\r\n",
    CHUNKED + b"5\r\nhello\r\n0\n\n",
    CHUNKED + b"\r\n5\r\nhello\r\n" + END,
]


@pytest.mark.parametrize("response", BROKEN_BODIES, ids=[f"{at}" for at in range(len(BROKEN_BODIES))])
@pytest.mark.parametrize("together", [True, False])
async def test_a_malformed_body_never_looks_whole(tmp_path: Path, response: bytes, together: bool) -> None:
    pieces = [response] if together else [response[: len(CHUNKED)], response[len(CHUNKED) :]]
    async with data_path(first_then_own(sending(*pieces)), tmp_path) as proxy:
        text = await proxy.raw(proxy.request("/v1.0/odd", fields=b"Connection: close\r\n"))
        assert text.startswith(b"HTTP/1.1 502 ") or not text.endswith(END)
        await strangers_get_their_own(proxy)
        first = proxy.events()[0]
        assert first["reason"] in ("upstreamProtocol", "upstreamAborted")


# Bytes left over, too few, or too many


@pytest.mark.parametrize("version", [b"1.1", b"1.0"])
async def test_a_response_cut_at_every_byte_of_its_body_never_looks_whole(
    tmp_path: Path, version: bytes
) -> None:
    body = b'{"a":"bcdefgh"}'
    whole = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n%b\r\na\r\n%b\r\n0\r\n\r\n" % (
        body[:5],
        body[5:],
    )
    start = whole.index(b"\r\n\r\n") + 4
    cut = start

    async def first(peer: UpstreamPeer) -> None:
        peer.send(whole[:cut])
        await peer.writer.drain()
        await asyncio.sleep(0.001)
        raise ConnectionResetError

    async with data_path(first_then_own(first), tmp_path) as proxy:
        for cut in range(start, len(whole)):  # noqa: B007 - `first` reads it
            reader, writer = await proxy.connect()
            text = proxy.request("/v1.0/odd").replace(b"HTTP/1.1", b"HTTP/" + version, 1)
            writer.write(text)
            reset = False
            received = b""
            try:
                while piece := await reader.read(1000):
                    received += piece
            except ConnectionResetError:
                reset = True
            writer.close()
            if version == b"1.0":  # only the end of the connection ends the response
                assert reset, received
            else:
                assert not received.endswith(END)
        await strangers_get_their_own(proxy)


CUT_BODY = b'{"a":"bcdefgh"}'
CUT_RESPONSES = {
    "sized": ok(CUT_BODY),
    "chunked": CHUNKED + b"5\r\n%b\r\na\r\n%b\r\n" % (CUT_BODY[:5], CUT_BODY[5:]) + END,
    "until close": b"HTTP/1.1 200 OK\r\n\r\n" + CUT_BODY,
}


@pytest.mark.parametrize("reset", [True, False], ids=["reset", "closed"])
@pytest.mark.parametrize("framing", CUT_RESPONSES)
async def test_a_response_cut_anywhere_is_never_taken_for_whole_and_its_event_says_so(
    tmp_path: Path, framing: str, reset: bool
) -> None:
    """The test truncates the response after each of its bytes, also within the head.

    If only the end of the connection delimits a body, an orderly close completes the body (RFC 9112 §8). For
    a body without a length or chunks, only a connection reset shows that the body was truncated.
    """
    whole = CUT_RESPONSES[framing]
    head = whole.index(b"\r\n\r\n") + 4
    cut = 0

    async def first(peer: UpstreamPeer) -> None:
        peer.send(whole[:cut])
        await peer.writer.drain()
        await asyncio.sleep(0.001)
        if reset:
            peer.abort_with_reset()
        raise ConnectionResetError

    async with data_path(first_then_own(first), tmp_path) as proxy:
        cuts = range(len(whole)) if reset or framing != "until close" else range(head)
        for cut in cuts:
            reader, writer = await proxy.connect()
            writer.write(proxy.request("/v1.0/odd"))
            if cut < head:
                reply = await read_reply(reader)
                assert reply.status == 502
                assert reply.json()["error"]["code"] in ("upstreamUnreachable", "upstreamError")
            else:
                await _never_whole(reader)
            writer.close()
        await strangers_get_their_own(proxy)
        events = [event for event in proxy.events() if event["path"] == "/v1.0/odd"]
        assert len(events) == len(cuts)
        assert {(e["status"], e["reason"]) for e in events[:head]} <= {
            (502, "upstreamUnreachable"),
            (502, "upstreamProtocol"),
        }
        assert {e["reason"] for e in events[head:]} <= {"upstreamAborted", "upstreamProtocol"}


async def _never_whole(reader: asyncio.StreamReader) -> None:
    """Assert that a client can detect the truncated response: by a 502, the framing or a connection reset."""
    try:
        reply = await read_reply(reader)
    except (asyncio.IncompleteReadError, ConnectionResetError):
        return
    assert reply.status == 502, reply


@pytest.mark.parametrize("said", [True, False])
def test_without_tls_s_farewell_a_response_that_ends_with_its_connection_is_cut(
    tmp_path: Path, said: bool
) -> None:
    """A third party can close a TCP connection, but can't send close_notify (RFC 9112 §9.8)."""
    authority = CertificateAuthority(tmp_path / "certificates")
    certificate = authority.server()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate.cert_file, certificate.key_file)

    def upstream(listener: socket.socket) -> None:
        with context.wrap_socket(listener.accept()[0], server_side=True) as tls:
            tls.recv(4096)
            tls.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\nall but the end")
            if said:
                tls.unwrap()
            else:
                with socket.socket(fileno=tls.detach()) as bare:
                    bare.shutdown(socket.SHUT_WR)
                    while bare.recv(4096):
                        pass

    async def ask() -> None:
        async with data_path(responding(ok(b"")), tmp_path) as proxy:
            pool = proxy.context.pool
            port = listener.getsockname()[1]
            pool.settings = replace(pool.settings, port=port, tls=authority.client_context())
            text = await proxy.raw(proxy.request(fields=b"Connection: close\r\n"))
            assert text.endswith(END) is said
            (event,) = proxy.events()
            assert (event["status"], event["reason"]) == (200, "default" if said else "upstreamAborted")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=upstream, args=(listener,))
        thread.start()
        uvloop.run(ask())  # the loop of the workers; the loop of other tests cannot distinguish the two
        thread.join()


async def test_a_response_before_the_whole_request_was_taken_ends_the_connection(tmp_path: Path) -> None:
    """The upstream may interpret the unread rest of the body as the next request."""
    go_on = asyncio.Event()

    async def script(peer: UpstreamPeer) -> None:
        await peer.head()
        if peer.number == 1:
            peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
            await go_on.wait()
        peer.send(ok(b'{"peer":%d}' % peer.number))
        await asyncio.Event().wait()

    async with data_path(script, tmp_path) as proxy:
        reader, writer = await proxy.connect()
        writer.write(proxy.request(method="POST", fields=b"Transfer-Encoding: chunked\r\n"))
        await writer.drain()
        unsent = 0
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not unsent:
                writer.write(b"4000\r\n" + b"x" * 0x4000 + b"\r\n")
                await writer.drain()
                await asyncio.sleep(0.001)
                unsent = unsent_to_upstream(proxy) if proxy.connections else 0
        writer.write(END)
        await asyncio.sleep(0.01)
        assert unsent_to_upstream(proxy)
        go_on.set()
        assert (await read_reply(reader)).json() == {"peer": 1}
        assert (await proxy.ask(proxy.request())).json() == {"peer": 2}
        writer.close()


def unsent_to_upstream(proxy: DataPath) -> int:
    (connection,) = proxy.connections
    exchange = connection._exchange
    assert isinstance(exchange, Exchange)
    assert exchange._call is not None
    upstream = exchange._call.upstream
    return 0 if upstream is None else upstream.transport.get_write_buffer_size()


@pytest.mark.parametrize("offset", range(0, len(FORGED), 7))
@pytest.mark.parametrize("late", [False, True])
async def test_bytes_left_over_at_any_offset_are_nobodys_response(
    tmp_path: Path, offset: int, late: bool
) -> None:
    leftover = FORGED[offset:]
    own = ok(b'{"target":"/v1.0/odd"}')
    pieces = [own, leftover] if late else [own + leftover]
    async with data_path(first_then_own(sending(*pieces)), tmp_path) as proxy:
        assert (await proxy.ask(proxy.request("/v1.0/odd"))).json() == {"target": "/v1.0/odd"}
        await strangers_get_their_own(proxy)
        assert len(proxy.upstream.received) == 2


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize(
    "response",
    [
        b"HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.1 204 No Content\r\nContent-Length: 40\r\n\r\n",
        b"HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n" + END,
        b"HTTP/1.1 304 Not Modified\r\n\r\n" + FORGED,
        b"HTTP/1.1 304 Not Modified\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n" + END,
        b"HTTP/1.1 204 No Content\r\n\r\n" + FORGED,
    ],
)
async def test_a_body_where_none_can_be_is_nobodys_response(
    tmp_path: Path, method: str, response: bytes
) -> None:
    async with data_path(first_then_own(sending(response)), tmp_path) as proxy:
        reader, writer = await proxy.connect()
        writer.write(proxy.request("/v1.0/odd", method) + proxy.request("/v1.0/next"))
        first = await read_reply(reader, to_head=True)
        assert first.status in (204, 304)
        if first.status == 204:
            assert first.value("content-length") is None
            assert first.value("transfer-encoding") is None
        assert (await read_reply(reader)).json() == {"target": "/v1.0/next"}
        writer.close()
        await strangers_get_their_own(proxy)


async def test_the_response_to_head_has_no_body_even_if_the_upstream_sends_one(tmp_path: Path) -> None:
    async with data_path(first_then_own(sending(FORGED)), tmp_path) as proxy:
        reader, writer = await proxy.connect()
        writer.write(proxy.request("/v1.0/odd", "HEAD") + proxy.request("/v1.0/next"))
        assert (await read_reply(reader, to_head=True)).status == 200
        assert (await read_reply(reader)).json() == {"target": "/v1.0/next"}
        writer.close()
        assert len(proxy.upstream.received) == 2


async def test_bytes_that_come_before_any_request_are_nobodys_response(tmp_path: Path) -> None:
    async def script(peer: UpstreamPeer) -> None:
        if peer.number == 1:
            peer.send(FORGED)  # sent as soon as the connection is open
        while True:
            target = (await peer.head()).split(b" ")[1]
            peer.send(ok(b'{"target":"%b"}' % target))

    async with data_path(script, tmp_path) as proxy:
        await proxy.ask(proxy.request("/v1.0/first"))  # the bytes look like a quick response to this request
        await asyncio.sleep(0.005)
        await strangers_get_their_own(proxy, 5)


async def test_unread_bytes_on_an_idle_connection_end_it_even_if_the_loop_has_not_seen_them(
    tmp_path: Path,
) -> None:
    async with data_path(first_then_own(sending(ok(b"{}"))), tmp_path) as proxy:
        assert (await proxy.ask(proxy.request("/v1.0/odd"))).json() == {}
        pool = proxy.context.pool
        (idle,) = pool._idle
        idle.transport.pause_reading()  # simulates an event loop that is busy with other work
        proxy.upstream.writers[0].write(FORGED)
        await proxy.upstream.writers[0].drain()
        await asyncio.sleep(0.002)
        assert not idle.is_quiet
        await strangers_get_their_own(proxy)


async def test_every_waiting_client_gets_its_own_response_over_few_connections(tmp_path: Path) -> None:
    slot = 0

    async def script(peer: UpstreamPeer) -> None:
        nonlocal slot
        while True:
            target = (await peer.head()).split(b" ")[1]
            slot += 1
            response = ok(b'{"target":"%b"}' % target)
            peer.send(response + FORGED if slot % 3 == 0 else response)
            if slot % 5 == 0:
                await peer.writer.drain()
                raise ConnectionResetError

    async with data_path(script, tmp_path, max_connections=2) as proxy:
        targets = [f"/v1.0/own/{each}" for each in range(60)]
        replies = await asyncio.gather(*(proxy.ask(proxy.request(each)) for each in targets))
        for target, reply in zip(targets, replies, strict=True):
            assert reply.status == 502 or reply.json() == {"target": target}
        assert sum(reply.status == 200 for reply in replies) > 50
        assert proxy.context.pool.open_connections <= 2


# Connections that fail, and addresses that change


async def test_a_connection_is_not_kept_for_ever_however_busy_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with data_path(first_then_own(sending(ok(b"{}"))), tmp_path) as proxy:
        await strangers_get_their_own(proxy, 3)
        assert len(proxy.upstream.received) == 1
        (kept,) = proxy.context.pool._idle
        kept.opened_at -= MAX_AGE_SECONDS
        await strangers_get_their_own(proxy, 3)
        assert len(proxy.upstream.received) == 2  # one more response on the old connection, then a new one
        assert proxy.context.pool.open_connections == 1


class Names:
    """The fake DNS name of the upstream, with the addresses to which it currently resolves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *hosts: str) -> None:
        self.hosts = hosts
        self.looked_up = 0

        async def look_up(_: asyncio.AbstractEventLoop, host: str, port: int, **__: object) -> list[object]:
            assert host == "graph.test"
            self.looked_up += 1
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, port)) for each in self.hosts]

        monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", look_up)


@contextlib.asynccontextmanager
async def elsewhere(port: int) -> AsyncIterator[None]:
    """Start the same upstream at a new address, as after a change of the address in DNS."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError):
            while await reader.readuntil(b"\r\n\r\n"):
                writer.write(ok(b'{"moved":true}'))
        writer.close()

    async with await asyncio.start_server(serve, sock=socket.create_server(("127.0.0.2", port))):
        yield


async def test_a_name_that_leads_elsewhere_is_followed_by_the_next_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with data_path(first_then_own(sending(ok(b"{}"))), tmp_path) as proxy:
        pool = proxy.context.pool
        async with elsewhere(pool.settings.port):
            names = Names(monkeypatch, "127.0.0.1")
            pool.settings = replace(pool.settings, host="graph.test")
            await strangers_get_their_own(proxy)
            names.hosts = ("127.0.0.2",)
            (kept,) = pool._idle
            kept.opened_at -= MAX_AGE_SECONDS
            await strangers_get_their_own(proxy, 1)
            assert (await proxy.ask(proxy.request())).json() == {"moved": True}
            assert names.looked_up == 2
            for each in pool._idle[:]:
                each.transport.abort()


@pytest.mark.parametrize("silent", [True, False], ids=["silent", "refusing"])
async def test_an_address_that_is_dead_leaves_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, silent: bool
) -> None:
    async with data_path(first_then_own(sending(ok(b"{}"))), tmp_path) as proxy:
        pool = proxy.context.pool
        Names(monkeypatch, "127.0.0.3", "127.0.0.1")
        with contextlib.ExitStack() as held:
            if silent:  # a listener with a full queue delays every further handshake
                dead = held.enter_context(socket.create_server(("127.0.0.3", pool.settings.port), backlog=0))
                for _ in range(4):
                    waiting = held.enter_context(socket.socket())
                    waiting.setblocking(False)
                    waiting.connect_ex(dead.getsockname())
            pool.settings = replace(pool.settings, host="graph.test")
            await strangers_get_their_own(proxy)


async def test_a_name_that_leads_nowhere_is_502(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    async with data_path(first_then_own(sending(ok(b"{}"))), tmp_path) as proxy:
        pool = proxy.context.pool
        pool.settings = replace(pool.settings, host="graph.test")
        with monkeypatch.context() as patched:
            patched.setattr(asyncio.BaseEventLoop, "getaddrinfo", unknown)
            reply = await proxy.ask(proxy.request())
        assert (reply.status, reply.json()["error"]["code"]) == (502, "upstreamUnreachable")
        pool.settings = replace(pool.settings, host="127.0.0.1")
        await strangers_get_their_own(proxy)


async def test_the_pool_counts_right_when_connections_fail(tmp_path: Path) -> None:
    async with data_path(first_then_own(sending(ok(b"{}"))), tmp_path, max_connections=2) as proxy:
        pool = proxy.context.pool
        good = pool.settings
        pool.settings = replace(good, port=1)
        replies = await asyncio.gather(*(proxy.ask(proxy.request()) for _ in range(20)))
        assert {reply.status for reply in replies} == {502}
        assert pool.open_connections == 0
        pool.settings = good
        await strangers_get_their_own(proxy)


async def test_an_upstream_that_closes_every_connection_at_once_is_502_for_each(tmp_path: Path) -> None:
    async def script(peer: UpstreamPeer) -> None:
        peer.abort()

    async with data_path(script, tmp_path, max_connections=2) as proxy:
        replies = await asyncio.gather(*(proxy.ask(proxy.request(method="POST")) for _ in range(20)))
        assert {reply.status for reply in replies} == {502}
        assert proxy.context.pool.open_connections == 0
        assert not proxy.context.pool._waiting


async def test_those_who_wait_too_long_for_a_connection_are_told_so_and_leave_the_queue(
    tmp_path: Path,
) -> None:
    async def script(peer: UpstreamPeer) -> None:
        await peer.reader.read()

    async with data_path(script, tmp_path, max_connections=1, upstream_wait=0.05) as proxy:
        _, writer = await proxy.connect()
        writer.write(proxy.request())
        while not proxy.upstream.received:  # noqa: ASYNC110 - the harness has no event for it
            await asyncio.sleep(0.001)
        reply = await proxy.ask(proxy.request())
        assert (reply.status, reply.json()["error"]["code"]) == (503, "notReady")
        assert not proxy.context.pool._waiting
        writer.close()


@pytest.mark.parametrize("cut", range(1, 40, 3))
async def test_a_post_is_never_sent_twice_wherever_the_upstream_cuts_it(tmp_path: Path, cut: int) -> None:
    body = b'{"amount":1}'

    async def script(peer: UpstreamPeer) -> None:
        if peer.number == 1:  # leaves a used connection idle
            await peer.head()
            peer.send(ok(b"{}"))
        await peer.reader.readexactly(cut)
        peer.abort()

    async with data_path(script, tmp_path) as proxy:
        assert (await proxy.ask(proxy.request())).status == 200
        fields = b"Content-Length: %d\r\n" % len(body)
        reply = await proxy.ask(proxy.request("/v1.0/pay", "POST", fields, body))
        assert reply.status == 502
        assert sum(bytes(each).count(b"POST /v1.0/pay") for each in proxy.upstream.received) == 1


async def test_the_token_of_the_upstream_stays_where_it_belongs(tmp_path: Path) -> None:
    """If an upstream sends the upstream token back, the proxy's error must not contain the token."""

    async def first(peer: UpstreamPeer) -> None:
        peer.send(b"HTTP/1.1 500 %b\r\nContent-Length: 0\r\n\r\n" % UPSTREAM_TOKEN.encode())

    async with data_path(first_then_own(first), tmp_path) as proxy:
        reply = await proxy.ask(proxy.request("/v1.0/odd"))
        assert reply.status == 502
        assert UPSTREAM_TOKEN.encode() not in reply.head + reply.body


# Header fields


@pytest.mark.parametrize(
    "name",
    [
        b"X-Mine", b"Content-Type", b"Content-Encoding", b"Location", b"request-id", b"client-request-id",
        b"Host",
        b"Content-MD5", b"Retry-After", b"ETag", b"Set-Cookie", b"Authorization", b"Expect",
        b"Accept-Encoding",
    ],
)  # fmt: skip
async def test_whatever_a_field_means_to_us_it_does_not_cross_where_connection_names_it(
    tmp_path: Path, name: bytes
) -> None:
    field = name + b": v-a-l-u-e\r\n"
    if name == b"Expect":
        field = b"Expect: 100-continue\r\n"
    response = b"HTTP/1.1 200 OK\r\nConnection: %b\r\n%bContent-Length: 2\r\n\r\n{}" % (name, field)
    async with data_path(first_then_own(sending(response)), tmp_path) as proxy:
        mine = field if name not in (b"Host", b"Authorization") else b""
        reply = await proxy.ask(
            proxy.request("/v1.0/odd", fields=b"Connection: close, " + name + b"\r\n" + mine)
        )
        assert reply.status == 200
        assert reply.value(name.decode()) is None
        received = bytes(proxy.upstream.received[0])
        assert b"v-a-l-u-e" not in received
        assert b"100-continue" not in received
        assert received.count(b"\r\nHost: 127.0.0.1:") == 1
        assert received.count(b"\r\nAuthorization: Bearer " + UPSTREAM_TOKEN.encode()) == 1


HOP_BY_HOP = (
    b"Keep-Alive", b"Proxy-Connection", b"Proxy-Authenticate", b"Proxy-Authorization", b"TE", b"Trailer",
    b"Upgrade",
    b"HTTP2-Settings",
)  # fmt: skip


@pytest.mark.parametrize("name", HOP_BY_HOP)
@pytest.mark.parametrize("spelling", [bytes, bytes.lower, bytes.upper])
async def test_no_hop_by_hop_field_crosses(
    tmp_path: Path, name: bytes, spelling: Callable[[bytes], bytes]
) -> None:
    field = spelling(name) + b": v-a-l-u-e\r\n"
    response = b"HTTP/1.1 200 OK\r\n%bContent-Length: 2\r\n\r\n{}" % field
    async with data_path(first_then_own(sending(response)), tmp_path) as proxy:
        reply = await proxy.ask(proxy.request("/v1.0/odd", fields=field))
        assert b"v-a-l-u-e" not in reply.head
        assert b"v-a-l-u-e" not in bytes(proxy.upstream.received[0])


async def test_each_status_arrives_as_the_contract_s_table_says(tmp_path: Path) -> None:
    status = 200

    async def first(peer: UpstreamPeer) -> None:
        length = b"" if status in (204, 304) else b"Content-Length: 0\r\n"
        peer.send(b"HTTP/1.1 %d Reason\r\nRetry-After: 7\r\n%b\r\n" % (status, length))

    async with data_path(first_then_own(first), tmp_path, upstream_wait=0.01) as proxy:
        for status in range(200, 600):
            reply = await proxy.ask(proxy.request("/v1.0/odd"))
            if status == 401 or (status >= 500 and status not in (503, 504)):
                assert (reply.status, reply.json()["error"]["upstreamStatus"]) == (502, status)
            else:
                assert (reply.status, reply.value("retry-after")) == (status, "7")
        events = proxy.events()
        assert [each["upstreamStatus"] for each in events] == list(range(200, 600))
        assert {each["status"] for each in events if each["status"] != each["upstreamStatus"]} == {502}


async def test_a_post_finds_a_connection_though_all_that_may_be_open_have_waited_long(tmp_path: Path) -> None:
    """An idle connection may be closed already, so a request that cannot be repeated must not use it.

    Such a request, for example a POST, needs a new connection. At the limit of open connections, the proxy
    closes an idle connection first.
    """
    both = asyncio.Barrier(2)

    async def script(peer: UpstreamPeer) -> None:
        if peer.number < 3:
            await peer.head()
            await both.wait()
            peer.send(ok(b"{}"))
        await peer.head()
        peer.send(ok(b"{}"))

    async with data_path(script, tmp_path, max_connections=2) as proxy:
        await asyncio.gather(*(proxy.ask(proxy.request()) for _ in range(2)))
        pool = proxy.context.pool
        for each in pool._idle:
            each.idle_since -= 2 * STALE_SECONDS
        reply = await proxy.ask(proxy.request("/v1.0/a", "POST", b"Content-Length: 2\r\n", b"{}"))
        assert reply.status == 200
        assert len(proxy.upstream.received) == 3
        assert pool.open_connections <= 2
