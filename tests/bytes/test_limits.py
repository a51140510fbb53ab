"""Tests of the limits that prevent one client from using the resources of all clients.

Each limit refuses requests early, states when to retry, is counted, and releases its reservations.
"""

from __future__ import annotations

import asyncio
import gzip
import ipaddress
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from proxy.ipc import counters as c
from proxy.server.client.connection import ClientConnection
from proxy.server.client.pace import SLOW_READER_SECONDS
from proxy.server.client_limits import MAX_KEYS, WINDOW_SECONDS, Failures, network_of
from proxy.server.loop.buffer_budget import BufferBudget
from proxy.server.router import handler_for
from tests.bytes.data_path import (
    CLIENT_ID,
    CLIENT_SECRET,
    DataPath,
    Reply,
    UpstreamPeer,
    data_path,
    ok,
    read_reply,
    responding,
    rulebook,
    until,
)
from tests.patience import PATIENCE_SECONDS

READING_RULES = """
version: 1
name: reading
default: allow
rules:
  - id: kind
    match: {path: ["/v1.0/evaluated"]}
    conditions: [{body: kind, equals: guest}]
    verdict: block
  - id: less
    match: {path: ["/v1.0/less"]}
    verdict: filter
    transforms: {strip_properties: [secret]}
"""
LOAD_BALANCER = (ipaddress.ip_network("127.0.0.1/32"),)


def counted(proxy: DataPath, index: int) -> int:
    return proxy.context.counters.values[index]


def said_to_wait(reply: Reply) -> None:
    assert (reply.status, reply.json()["error"]["code"]) == (503, "notReady")
    assert int(reply.value("retry-after") or 0) >= 1


# Connections of one address


async def test_one_address_has_no_more_connections_than_its_share(tmp_path: Path) -> None:
    async with data_path(responding(ok(b"{}")), tmp_path, max_connections_per_address=2) as proxy:
        kept = [await proxy.connect() for _ in range(2)]
        await until(lambda: len(proxy.context.connections) == 2)
        said_to_wait(await proxy.ask(proxy.request()))
        assert proxy.upstream.received == []
        assert counted(proxy, c.LIMIT_ADDRESS_CONNECTIONS) == 1
        reader, writer = kept[0]  # its open connections are still served
        writer.write(proxy.request())
        assert (await read_reply(reader)).status == 200
        writer.close()
        await until(lambda: len(proxy.context.connections) == 1)
        assert (await proxy.ask(proxy.request())).status == 200
        kept[1][1].close()
        await until(lambda: not proxy.context.connections)
        assert len(proxy.context.addresses) == 0


async def test_a_load_balancer_s_connections_are_those_of_many(tmp_path: Path) -> None:
    async with data_path(responding(ok(b"{}")), tmp_path, max_connections_per_address=1) as proxy:
        proxy.context.trusted_proxies = LOAD_BALANCER
        kept = [await proxy.connect() for _ in range(3)]
        assert (await proxy.ask(proxy.request())).status == 200
        for _, writer in kept:
            writer.close()


IP_RULES = """
version: 1
name: from-inside
default: block
rules:
  - {id: inside, match: {path: ["/**"]}, ip: {in: [127.0.0.0/8]}, verdict: allow}
"""


@pytest.mark.parametrize(
    ("forwarded", "client_ip"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("127.0.0.1, 192.0.2.1:50012", "192.0.2.1"),
        ("127.0.0.9, [2001:db8::7]:443", "2001:db8::7"),
        ("[2001:db8::7]", "2001:db8::7"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("192.0.2.1, ::ffff:127.0.0.1", "192.0.2.1"),
        ("unknown", None),
        ("192.0.2.1, _hidden, 127.0.0.1", None),
        ("", None),
    ],
)
@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
async def test_whoever_comes_through_a_load_balancer_is_evaluated_by_his_own_address(
    tmp_path: Path, family: socket.AddressFamily, forwarded: str, client_ip: str | None
) -> None:
    async with data_path(responding(ok(b"{}")), tmp_path, IP_RULES) as proxy:
        proxy.context.trusted_proxies = LOAD_BALANCER
        listening = (
            socket.create_server(("::", 0), family=family, dualstack_ipv6=True)
            if family == socket.AF_INET6
            else socket.create_server(("127.0.0.1", 0))
        )
        server = await asyncio.get_running_loop().create_server(
            lambda: ClientConnection(proxy.context, handler_for, secure=False), sock=listening
        )
        async with server:
            proxy.port = listening.getsockname()[1]
            assert (await proxy.ask(proxy.request())).status == 200
            reply = await proxy.ask(proxy.request(fields=b"X-Forwarded-For: %b\r\n" % forwarded.encode()))
            assert reply.status == 403
            assert [event["clientIp"] for event in proxy.events()] == ["127.0.0.1", client_ip]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("192.0.2.1", "192.0.2.1", True),
        ("192.0.2.1", "192.0.2.2", False),
        ("2001:db8::1", "2001:db8::ffff:1", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("fe80::1%eth0", "fe80::2%eth1", True),
        ("::ffff:192.0.2.1", "192.0.2.1", True),
        ("::ffff:192.0.2.1", "::ffff:192.0.2.2", False),
    ],
)
def test_what_counts_as_one_address(one: str, other: str, same: bool) -> None:
    assert (network_of(one) == network_of(other)) is same


# Attempts to get a token


class CountingExecutor(Executor):
    """Executor that counts the secret comparisons that it runs."""

    def __init__(self, inner: Executor) -> None:
        self._inner = inner
        self.comparisons = 0

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.comparisons += 1
        return self._inner.submit(fn, *args, **kwargs)


def watched(proxy: DataPath) -> CountingExecutor:
    executor = CountingExecutor(proxy.context.executor)
    proxy.context.executor = executor
    return executor


async def ask_for_token(proxy: DataPath, secret: str, client: str = CLIENT_ID, of: str = "") -> Reply:
    form = {"grant_type": "client_credentials", "client_id": client, "client_secret": secret}
    body = urlencode(form).encode()
    head = b"POST /proxy/token HTTP/1.1\r\nHost: p\r\nContent-Type: application/x-www-form-urlencoded\r\n"
    if of:
        head += b"X-Forwarded-For: %b\r\n" % of.encode()
    return await proxy.ask(head + b"Content-Length: %d\r\n\r\n%b" % (len(body), body))


def is_rate_limited(reply: Reply) -> None:
    assert (reply.status, reply.json()["error"]) == (429, "temporarily_unavailable")
    assert 1 <= int(reply.value("retry-after") or 0) <= WINDOW_SECONDS
    assert reply.value("cache-control") == "no-store"


async def test_an_address_that_fails_too_often_waits_and_costs_no_comparison(tmp_path: Path) -> None:
    async with data_path(responding(ok(b"{}")), tmp_path, max_failures_per_address=3) as proxy:
        executor = watched(proxy)
        for guess in ("a", "b"):
            assert (await ask_for_token(proxy, guess)).status == 401
        assert (await ask_for_token(proxy, "c", client="nobody")).status == 401
        for client in (CLIENT_ID, "nobody", "another"):
            is_rate_limited(await ask_for_token(proxy, "d", client=client))
        is_rate_limited(await ask_for_token(proxy, CLIENT_SECRET))
        assert executor.comparisons == 3
        assert counted(proxy, c.LIMIT_TOKEN_FAILURES) == 4
        refused = [event for event in proxy.events() if event["reason"] == "tooManyFailures"]
        assert [(event["status"], event["clientId"]) for event in refused] == [(429, CLIENT_ID)] * 2
        proxy.context.deadlines.stop()  # the next tick, an eighth of a second later, would correct it
        proxy.context.deadlines.now += WINDOW_SECONDS
        assert (await ask_for_token(proxy, CLIENT_SECRET)).status == 200


async def test_of_many_behind_a_load_balancer_only_the_one_that_failed_waits(tmp_path: Path) -> None:
    async with data_path(responding(ok(b"{}")), tmp_path, max_failures_per_address=1) as proxy:
        proxy.context.trusted_proxies = LOAD_BALANCER
        assert (await ask_for_token(proxy, "x", of="192.0.2.1")).status == 401
        is_rate_limited(await ask_for_token(proxy, CLIENT_SECRET, of="192.0.2.1"))
        is_rate_limited(await ask_for_token(proxy, CLIENT_SECRET, of="192.0.2.9, 192.0.2.1"))
        assert (await ask_for_token(proxy, CLIENT_SECRET, of="192.0.2.2")).status == 200


async def test_who_is_no_load_balancer_can_not_borrow_another_address(tmp_path: Path) -> None:
    async with data_path(responding(ok(b"{}")), tmp_path, max_failures_per_address=2) as proxy:
        for last in range(2):
            assert (await ask_for_token(proxy, "x", of=f"192.0.2.{last}")).status == 401
        is_rate_limited(await ask_for_token(proxy, "x", of="192.0.2.77"))


async def test_a_client_that_many_addresses_guess_at_waits_too(tmp_path: Path) -> None:
    async with data_path(responding(ok(b"{}")), tmp_path, max_failures_per_client=3) as proxy:
        proxy.context.trusted_proxies = LOAD_BALANCER
        executor = watched(proxy)
        for last in range(3):
            assert (await ask_for_token(proxy, "x", of=f"192.0.2.{last}")).status == 401
        is_rate_limited(await ask_for_token(proxy, "x", of="192.0.2.99"))
        assert executor.comparisons == 3
        assert (await ask_for_token(proxy, "x", "another", of="192.0.2.99")).status == 401


async def test_guessing_does_not_lock_out_the_application_itself(tmp_path: Path) -> None:
    """The proxy remembers a correct secret, also when rules change, and does not compare it again."""
    async with data_path(
        responding(ok(b"{}")), tmp_path, max_failures_per_client=1, max_failures_per_address=1
    ) as proxy:
        assert (await ask_for_token(proxy, CLIENT_SECRET)).status == 200
        proxy.use(READING_RULES)
        assert (await ask_for_token(proxy, "guess")).status == 401
        is_rate_limited(await ask_for_token(proxy, "guess"))
        assert (await ask_for_token(proxy, CLIENT_SECRET)).status == 200


async def test_a_secret_that_was_right_is_not_once_its_hash_is_gone(tmp_path: Path) -> None:
    async with data_path(responding(ok(b"{}")), tmp_path) as proxy:
        assert (await ask_for_token(proxy, CLIENT_SECRET)).status == 200
        book = rulebook(READING_RULES)
        object.__setattr__(book.callers[CLIENT_ID], "secret_hashes", ())
        proxy.context.use(book)
        assert (await ask_for_token(proxy, CLIENT_SECRET)).status == 401


async def test_a_failure_counts_though_nobody_waits_for_the_response(tmp_path: Path) -> None:
    async with data_path(responding(ok(b"{}")), tmp_path, max_failures_per_address=1) as proxy:
        body = urlencode(
            {"grant_type": "client_credentials", "client_id": CLIENT_ID, "client_secret": "x"}
        ).encode()
        go_on = threading.Event()
        proxy.context.executor.submit(go_on.wait)  # it has one thread
        _, writer = await proxy.connect()
        writer.write(
            b"POST /proxy/token HTTP/1.1\r\nHost: p\r\nContent-Type: application/x-www-form-urlencoded\r\n"
            b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
        )
        await until(lambda: proxy.context.verifying)
        writer.transport.abort()
        await until(lambda: not proxy.context.connections)
        go_on.set()
        await until(lambda: not proxy.context.verifying)
        is_rate_limited(await ask_for_token(proxy, CLIENT_SECRET))


async def test_a_comparison_that_a_stop_takes_off_the_queue_is_no_failure(tmp_path: Path) -> None:
    faults: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, fault: faults.append(fault))
    async with data_path(responding(ok(b"{}")), tmp_path) as proxy:
        go_on = threading.Event()
        proxy.context.executor.submit(go_on.wait)
        asking = asyncio.ensure_future(ask_for_token(proxy, "guess"))
        await until(lambda: proxy.context.verifying)
        proxy.context.executor.shutdown(wait=False, cancel_futures=True)
        await until(lambda: not proxy.context.verifying)
        go_on.set()
        assert len(proxy.context.failures_of_address) == 0
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
    assert faults == []


def test_failures_are_forgotten_with_their_window_and_beyond_their_number() -> None:
    failures = Failures(2)
    failures.add("a", 100.0)
    assert failures.wait("a", 100.0) == 0
    failures.add("a", 130.0)
    assert failures.wait("a", 130.0) == 30
    assert failures.wait("a", 159.1) == 1
    assert failures.wait("a", 160.0) == 0
    failures.add("a", 160.0)
    assert failures.wait("a", 160.0) == 0
    for each in range(MAX_KEYS + 10):
        failures.add(f"k{each}", 161.0)
    assert len(failures) == MAX_KEYS


# Memory for buffering


def chunked(*pieces: bytes) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


async def test_bodies_that_rules_read_are_held_within_one_limit_for_all(tmp_path: Path) -> None:
    script = responding(ok(b"{}"))
    async with data_path(script, tmp_path, READING_RULES, max_held_bytes=1_000_000) as proxy:
        fields = b"Content-Length: 900000\r\n"
        first_reader, first = await proxy.connect()
        first.write(proxy.request("/v1.0/evaluated", "POST", fields, b'{"kind":"x"}'.ljust(700_000)))
        await until(lambda: proxy.context.buffer_budget.reserved >= 700_000)
        body = b'{"kind":"y"}'.ljust(900_000)
        said_to_wait(await proxy.ask(proxy.request("/v1.0/evaluated", "POST", fields, body)))
        assert counted(proxy, c.LIMIT_HELD_BYTES) >= 1
        assert proxy.upstream.heads == []
        first.write(b" " * 200_000)
        assert (await read_reply(first_reader)).status == 200
        assert proxy.context.buffer_budget.reserved == 0
        assert (await proxy.ask(proxy.request("/v1.0/evaluated", "POST", fields, body))).status == 200
        assert {event["reason"] for event in proxy.events()} == {"overloaded", "default"}
        first.close()


async def test_what_needs_no_reading_passes_while_no_more_can_be_held(tmp_path: Path) -> None:
    async with data_path(responding(ok(b"{}")), tmp_path, READING_RULES, max_held_bytes=1) as proxy:
        assert (await proxy.ask(proxy.request())).status == 200
        assert (
            await proxy.ask(proxy.request("/v1.0/a", "POST", b"Content-Length: 2\r\n", b"{}"))
        ).status == 200


async def test_a_client_that_leaves_gives_back_what_it_held(tmp_path: Path) -> None:
    async with data_path(responding(ok(b"{}")), tmp_path, READING_RULES) as proxy:
        _, writer = await proxy.connect()
        writer.write(proxy.request("/v1.0/evaluated", "POST", b"Content-Length: 900000\r\n", b" " * 500_000))
        await until(lambda: proxy.context.buffer_budget.reserved == 500_000)
        writer.transport.abort()
        await until(lambda: proxy.context.buffer_budget.reserved == 0)


@pytest.mark.parametrize("target", ["/v1.0/less", "/v1.0/linked"])
async def test_a_response_that_is_held_counts_until_it_is_sent(tmp_path: Path, target: str) -> None:
    go_on = asyncio.Event()
    held = b'{"secret":1,"a":"%b"' % (b"x" * 100_000)

    async def script(peer: UpstreamPeer) -> None:
        await peer.head()
        peer.send(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100030\r\n\r\n" + held
        )
        await go_on.wait()
        peer.send(b"}".rjust(100_030 - len(held)))

    async with data_path(script, tmp_path, READING_RULES) as proxy:
        asking = asyncio.ensure_future(proxy.ask(proxy.request(target)))
        await until(lambda: proxy.context.buffer_budget.reserved >= len(held))
        go_on.set()
        reply = await asking
        assert (reply.status, b"secret" in reply.body) == (200, target == "/v1.0/linked")
        assert proxy.context.buffer_budget.reserved == 0


@pytest.mark.parametrize(("target", "status"), [("/v1.0/less", 503), ("/v1.0/linked", 200)])
async def test_a_response_that_can_not_be_held_is_withheld_if_rules_must_read_it(
    tmp_path: Path, target: str, status: int
) -> None:
    """If rules need not read the response, the proxy rewrites links while the response arrives."""

    async def script(peer: UpstreamPeer) -> None:
        await peer.head()
        peer.send(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
        for piece in (b'{"secret":1,', b'"a":2', b"}"):
            peer.send(b"%x\r\n%b\r\n" % (len(piece), piece))
            await peer.writer.drain()
            await asyncio.sleep(0.01)  # so that the pieces arrive separately
        peer.send(b"0\r\n\r\n")

    async with data_path(script, tmp_path, READING_RULES, max_held_bytes=1) as proxy:
        reply = await proxy.ask(proxy.request(target))
        assert reply.status == status
        assert (b'"secret":1' in reply.body) is (status == 200)
        assert proxy.context.buffer_budget.reserved == 0
        assert counted(proxy, c.LIMIT_HELD_BYTES) >= 1


async def test_what_unfolds_too_far_is_counted_and_has_its_own_status(tmp_path: Path) -> None:
    bomb = gzip.compress(b'{"a":"%b"}' % (b"x" * 3_000_000))
    coded = b"Content-Encoding: gzip\r\nContent-Length: %d\r\n" % len(bomb)
    async with data_path(responding(ok(bomb, b"Content-Encoding: gzip")), tmp_path, READING_RULES) as proxy:
        reply = await proxy.ask(proxy.request("/v1.0/less"))
        assert (reply.status, reply.json()["error"]["code"]) == (502, "filterFailed")
        assert counted(proxy, c.LIMIT_FILTER_BYTES) == 1
        reply = await proxy.ask(proxy.request("/v1.0/evaluated", "POST", coded, bomb))
        assert (reply.status, reply.json()["error"]["code"]) == (413, "payloadTooLarge")
        assert counted(proxy, c.LIMIT_BODY_BYTES) == 1


# Readers that read nothing, or little


async def small_window(stack: AsyncExitStack, proxy: DataPath, request: bytes) -> socket.socket:
    """Open a client that has sent a request, and accepts a few kilobytes before the proxy has to wait."""
    loop = asyncio.get_running_loop()
    client = stack.enter_context(socket.socket())
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
    client.setblocking(False)
    await loop.sock_connect(client, ("127.0.0.1", proxy.port))
    await loop.sock_sendall(client, request)
    return client


def reading(
    response: bytes, directory: Path, held: int = 64_000_000
) -> AbstractAsyncContextManager[DataPath]:
    """Return a script that sends responses too large for the kernel's socket buffers."""
    return data_path(
        responding(response), directory, READING_RULES, max_filter_bytes=32_000_000, max_held_bytes=held
    )


async def test_of_slow_readers_the_longest_slow_is_cut_where_memory_ends(tmp_path: Path) -> None:
    response = ok(b'{"a":"%b"}' % (b"x" * 7_900_000))
    async with AsyncExitStack() as stack:
        proxy = await stack.enter_async_context(reading(response, tmp_path, held=20_000_000))
        clients: list[socket.socket] = []
        while len(clients) < 8:
            clients.append(await small_window(stack, proxy, proxy.request("/v1.0/less")))
            await until(lambda: len(proxy.events()) == len(clients))
        await until(lambda: counted(proxy, c.LIMIT_SLOW_READERS))
        budget = proxy.context.buffer_budget
        assert budget.unsent <= budget.limit
        await until(lambda: unsent(proxy) <= budget.limit)
        assert (await proxy.ask(proxy.request())).status == 200
        received = bytearray()
        while len(received) < len(response):
            receiving = asyncio.get_running_loop().sock_recv(clients[-1], 1 << 20)
            part = await asyncio.wait_for(receiving, PATIENCE_SECONDS)
            assert part, "the newest was cut"
            received += part
        for client in clients:
            client.close()
        await until(lambda: not proxy.context.connections)
        assert (budget.unsent, budget.reserved) == (0, 0)


def unsent(proxy: DataPath) -> int:
    return sum(each.transport.get_write_buffer_size() for each in proxy.connections)


def test_readers_are_cut_longest_slow_first() -> None:
    budget = BufferBudget(100)
    cut: list[str] = []

    def slow(name: str, size: int) -> int:
        return budget.slow(name, size, lambda: cut.append(name))

    assert [slow("a", 40), slow("b", 40)] == [0, 0]
    budget.forget("a")
    assert (slow("c", 40), slow("d", 60)) == (0, 1)
    assert cut == ["b"]
    assert slow("d", 50) == 0  # a reader that is slow again counts once
    assert budget.unsent == 90
    assert slow("e", 1000) == 3  # one that exceeds the limit alone is also aborted
    assert (cut, budget.unsent) == (["b", "c", "d", "e"], 0)


def pass_time(proxy: DataPath, seconds: float) -> None:
    """Run the proxy's deadline sweep as if `seconds` had passed."""
    now = asyncio.get_running_loop().time() + seconds
    for part in proxy.context.deadlines._parts:
        for timed in list(part):
            if timed.deadline <= now:
                timed.on_deadline(now)


async def test_a_reader_that_is_slow_but_fast_enough_is_not_cut(tmp_path: Path) -> None:
    response = ok(b'{"a":"%b"}' % (b"x" * 24_000_000))
    async with AsyncExitStack() as stack:
        proxy = await stack.enter_async_context(reading(response, tmp_path))
        client = await small_window(stack, proxy, proxy.request("/v1.0/less"))
        await until(lambda: any(each.write_paused for each in proxy.connections))
        (served,) = proxy.connections
        received = 0
        for slot in range(1, 4):
            before = served.transport.get_write_buffer_size()
            while before - served.transport.get_write_buffer_size() < 60 * 240:
                receiving = asyncio.get_running_loop().sock_recv(client, 65536)
                part = await asyncio.wait_for(receiving, PATIENCE_SECONDS)
                assert part, (slot, received)
                received += len(part)
            pass_time(proxy, slot * SLOW_READER_SECONDS + 1)
            assert served in proxy.context.connections
        pass_time(proxy, 4 * SLOW_READER_SECONDS + 2)  # it has read nothing in this time
        await until(lambda: not proxy.context.connections)
        assert counted(proxy, c.LIMIT_SLOW_READERS) == 1
        client.close()


# Connections to the upstream


async def test_where_too_many_wait_for_the_upstream_the_next_is_told_at_once(tmp_path: Path) -> None:
    go_on = asyncio.Event()

    async def script(peer: UpstreamPeer) -> None:
        while True:
            await peer.head()
            await go_on.wait()
            peer.send(ok(b"{}"))

    async with data_path(script, tmp_path, max_connections=2, max_waiting=3, upstream_wait=60) as proxy:
        asking = [asyncio.ensure_future(proxy.ask(proxy.request(f"/v1.0/{each}"))) for each in range(5)]
        await until(lambda: len(proxy.context.pool._waiting) == 3)
        said_to_wait(await asyncio.wait_for(proxy.ask(proxy.request("/v1.0/late")), PATIENCE_SECONDS))
        assert counted(proxy, c.LIMIT_UPSTREAM_WAITING) == 1
        go_on.set()
        assert [(await each).status for each in asking] == [200] * 5
        assert not any(b"/late" in head for head in proxy.upstream.heads)
        (event,) = [each for each in proxy.events() if each["path"] == "/v1.0/late"]
        assert (event["status"], event["reason"]) == (503, "overloaded")


async def test_a_small_body_that_drips_keeps_no_upstream_connection_waiting(tmp_path: Path) -> None:
    async def script(peer: UpstreamPeer) -> None:
        while True:
            head = await peer.head()
            if b"POST" in head:
                assert await peer.body(4) == b"abcd"
            peer.send(ok(b"{}"))

    async with data_path(script, tmp_path, max_connections=1) as proxy:
        reader, writer = await proxy.connect()
        writer.write(proxy.request("/v1.0/slow", "POST", b"Content-Length: 4\r\n", b"a"))
        await until(lambda: any(each.busy for each in proxy.context.connections))
        assert (await proxy.ask(proxy.request())).status == 200
        for letter in (b"b", b"c", b"d"):
            assert not any(b"POST" in head for head in proxy.upstream.heads)
            writer.write(letter)
            await asyncio.sleep(0.01)
        assert (await read_reply(reader)).status == 200
        writer.close()


async def test_who_waits_in_vain_is_told_so_and_counted(tmp_path: Path) -> None:
    async def script(peer: UpstreamPeer) -> None:
        await peer.head()
        await asyncio.Event().wait()

    async with data_path(script, tmp_path, max_connections=1, upstream_wait=0.05) as proxy:
        first = asyncio.ensure_future(proxy.ask(proxy.request("/v1.0/first")))
        await until(lambda: proxy.upstream.heads)
        said_to_wait(await asyncio.wait_for(proxy.ask(proxy.request("/v1.0/second")), PATIENCE_SECONDS))
        assert counted(proxy, c.LIMIT_UPSTREAM_CONNECTIONS) == 1
        first.cancel()


async def test_a_response_s_head_that_is_too_large_is_counted(tmp_path: Path) -> None:
    response = ok(b"{}", b"X: " + b"x" * 70_000)
    async with data_path(responding(response), tmp_path) as proxy:
        reply = await proxy.ask(proxy.request())
        assert (reply.status, reply.json()["error"]["code"]) == (502, "upstreamError")
        assert counted(proxy, c.LIMIT_RESPONSE_HEAD_BYTES) == 1
