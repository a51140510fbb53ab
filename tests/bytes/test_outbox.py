"""What one turn of the event loop writes leaves when it ends, and no answer gets to the wrong request."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from proxy.server.connection import ClientConnection
from proxy.server.outbox import MOST_TOGETHER, Outbox
from proxy.server.upstream import UpstreamConnection
from tests.bytes.data_path import DataPath, UpstreamPeer, answering, data_path, ok, read_reply

BLOCK_SECRETS = """
version: 1
name: no-secrets
default: allow
rules:
  - id: secrets
    match: {path: ["/v1.0/secrets"]}
    verdict: block
"""


class Piece:
    def __init__(self, sent: list[str], name: str) -> None:
        self._sent = sent
        self._name = name

    def send_held(self) -> None:
        self._sent.append(self._name)


class Failing:
    def send_held(self) -> None:
        raise RuntimeError("this connection is not well")


async def test_pieces_leave_in_their_order_when_the_turn_ends() -> None:
    sent: list[str] = []
    outbox = Outbox(asyncio.get_running_loop())
    outbox.add(Piece(sent, "first"))
    outbox.add(Piece(sent, "second"))
    assert not sent
    await asyncio.sleep(0)
    assert sent == ["first", "second"]


async def test_many_pieces_do_not_wait_for_the_turns_end() -> None:
    sent: list[str] = []
    outbox = Outbox(asyncio.get_running_loop())
    for number in range(MOST_TOGETHER):
        assert not sent
        outbox.add(Piece(sent, str(number)))
    assert len(sent) == MOST_TOGETHER


async def test_a_connection_that_fails_keeps_no_other_from_sending() -> None:
    sent: list[str] = []
    outbox = Outbox(asyncio.get_running_loop())
    failures: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
    outbox.add(Piece(sent, "before"))
    outbox.add(Failing())
    outbox.add(Piece(sent, "behind"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert sent == ["before", "behind"]
    assert len(failures) == 1


def idle_upstream(proxy: DataPath) -> UpstreamConnection:
    (upstream,) = proxy.context.pool._idle
    return upstream


def client_of(proxy: DataPath) -> ClientConnection:
    (connection,) = proxy.connections
    return connection


def a_forged_answer(upstream: UpstreamConnection) -> None:
    upstream.data_received(ok(b'{"forged":true}'))


def a_close(upstream: UpstreamConnection) -> None:
    assert not upstream.eof_received()
    upstream.transport.close()  # what a transport does at that word


def a_reset(upstream: UpstreamConnection) -> None:
    upstream.transport.abort()  # what a transport does with one


@pytest.mark.parametrize("surprise", [a_forged_answer, a_close, a_reset])
@pytest.mark.parametrize(
    ("method", "body"), [("GET", b""), ("POST", b'{"displayName":"new"}')], ids=["GET", "POST"]
)
async def test_what_comes_before_the_request_has_left_is_not_taken_for_its_answer(
    tmp_path: Path, surprise: Callable[[UpstreamConnection], None], method: str, body: bytes
) -> None:
    async with data_path(answering(ok(b'{"number":1}'), ok(b'{"number":2}')), tmp_path) as proxy:
        reader, writer = await proxy.connect()
        writer.write(proxy.request())
        await read_reply(reader)
        # In one turn: the request is read, and its connection has a surprise before it is sent.
        length = b"Content-Length: %d\r\n" % len(body) if body else b""
        upstream = idle_upstream(proxy)
        client_of(proxy).data_received(proxy.request("/v1.0/next", method, length, body))
        surprise(upstream)
        reply = await read_reply(reader)
        # Another connection served it, though a POST may not be sent twice: the first never had it.
        assert reply.json() == {"number": 1}
        assert b"/v1.0/next" not in proxy.upstream.received[0]
        assert proxy.upstream.received[1].count(b"/v1.0/next") == 1
        assert proxy.upstream.received[1].endswith(b"\r\n\r\n" + body)
        writer.close()


async def test_a_request_whose_client_leaves_before_it_is_sent_is_not_sent(tmp_path: Path) -> None:
    async with data_path(answering(ok(b"{}")), tmp_path) as proxy:
        reader, writer = await proxy.connect()
        writer.write(proxy.request())
        await read_reply(reader)
        connection = client_of(proxy)
        connection.data_received(proxy.request("/v1.0/never", "POST", b"Content-Length: 2\r\n", b"{}"))
        connection.cut()
        assert await reader.read() == b""
        await proxy.ask(proxy.request("/v1.0/later"))
        assert b"/v1.0/never" not in b"".join(bytes(each) for each in proxy.upstream.received)
        assert [event["reason"] for event in proxy.events()] == ["default", "clientAborted", "default"]
        writer.close()


async def test_answers_of_one_turn_keep_their_order(tmp_path: Path) -> None:
    async def at_once(peer: UpstreamPeer) -> None:
        while True:
            await peer.head()
            peer.send(ok(b'{"value":[]}'))

    async with data_path(at_once, tmp_path, BLOCK_SECRETS) as proxy:
        # The answer from upstream, a refusal by a rule and that of a malformed head fall into one turn.
        pipelined = proxy.request("/v1.0/users") + proxy.request("/v1.0/secrets") + b"NONSENSE\r\n\r\n"
        raw = await proxy.raw(pipelined)
        assert re.findall(rb"HTTP/1\.1 ([0-9]+)", raw) == [b"200", b"403", b"400"]


async def test_an_answer_is_sent_before_a_client_that_half_closes_is_let_go(tmp_path: Path) -> None:
    async with data_path(answering(ok(b"{}")), tmp_path, BLOCK_SECRETS) as proxy:
        reader, writer = await proxy.connect()
        writer.write(proxy.request("/v1.0/secrets"))
        await read_reply(reader)
        connection = client_of(proxy)
        connection.data_received(proxy.request("/v1.0/secrets"))  # its answer is held
        assert not connection.eof_received()
        connection._transport.close()  # what a transport does at that word
        assert (await read_reply(reader)).status == 403
        writer.close()
