"""Tests that the caches of header facts never change a result, and that they stay small."""

from __future__ import annotations

import asyncio
import random
import re
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from proxy.policy.redaction import without_secrets
from proxy.server.errors import MalformedHead
from proxy.server.http1 import field_lines, request_head
from proxy.server.http1 import forwarded_headers as heads
from proxy.server.http1 import response_head as answer_head
from proxy.server.http1.body_reader import CHUNKED
from proxy.server.http1.request_head import RequestFields, parse_request_head
from proxy.server.http1.response_head import parse_response_head
from proxy.server.upstream.credentials import UpstreamCredential
from tests.bytes.data_path import UpstreamPeer, data_path, ok, read_reply, responding

NAMES = (
    *("client-request-id", "Client-Request-Id", "client-request-id ", "x-client-request-id", "request-id"),
    *("Authorization", "Host", "Connection", "connection", "Content-Length", "content-length", "Date"),
    *("Transfer-Encoding", "Expect", "TE", "Accept-Encoding", "X-HTTP-Method", "Content-Type", "Accept"),
    *("Location", "Keep-Alive", "Content-Encoding", "X-Forwarded-For"),
)
SEPARATORS = (": ",) * 6 + (":", ":  ", ":\t", " : ", "")
VALUES = (
    *("", "a", "b", "0", "5", "05", "5 ", "5\t", "-5", "5, 5", "\xe9", "a b", " ", "\x00", "a\x01", "a\r"),
    *("close", "Client-Request-Id", "client-request-id, date", "content-length", "authorization"),
    "a\nb: c",
    *("chunked", "Chunked ", "gzip, chunked", "100-continue", "proxy.example", "Bearer x", "gzip, zstd"),
    *("a\r\n client-request-id: b", "a\r\nclient-request-id: b", "GET", "DELETE", "http://graph.example/x"),
)  # fmt: skip
REQUEST_LINES = (*("GET /a HTTP/1.1",) * 4, "POST /b?c HTTP/1.1", "GET /a HTTP/1.0", "HEAD / HTTP/1.1")
STATUS_LINES = (
    *("HTTP/1.1 200 OK",) * 4,
    *("HTTP/1.1 204 No Content", "HTTP/1.1 304", "HTTP/1.0 200 OK", "HTTP/1.1 100 Go on", "HTTP/1.1 404 x"),
)  # fmt: skip
CREDENTIALS = (b"Bearer upstream-1", b"Bearer upstream-2")
TWO_IDS = 2
SHORTEST = 10


@pytest.fixture(autouse=True)
def nothing_remembered() -> Iterator[None]:
    with memory_free():
        yield


@contextmanager
def memory_free(*, uncut: bool = False) -> Iterator[None]:
    """Run a block of a test with empty caches of header facts in the proxy.

    If `uncut` is True, the cache key of a head includes all header values, even values that vary with each
    request.
    """
    with pytest.MonkeyPatch.context() as patch:
        for module in (request_head, answer_head):
            patch.setattr(module._known_fields, "entries", {})
            if uncut:
                patch.setattr(module._VARYING, "_pattern", re.compile(b"(?!)"))
        patch.setattr(answer_head._by_size, "entries", {})
        patch.setattr(field_lines._known_connections, "entries", {})
        patch.setattr(field_lines.field_lines._known, "entries", {})
        patch.setattr(field_lines.field_lines._kinds, "entries", {})
        yield


def random_fields(chance: random.Random, start: str) -> bytes:
    lines = [chance.choice(NAMES) + chance.choice(SEPARATORS) + chance.choice(VALUES) for _ in range(3)]
    lines[chance.randrange(3)] = f"client-request-id: {chance.choice(VALUES)}"
    if chance.random() < 0.9:
        lines.insert(0, "Host: h")
    return "\r\n".join([start, *lines[: chance.randrange(5)], "", ""]).encode("latin-1")


def one_like(head: bytes, chance: random.Random) -> bytes:
    """Return a head of equal length that differs from `head` in at most one byte, or an empty head."""
    if len(head) < SHORTEST or chance.random() < 0.4:
        return b""
    at = chance.randrange(len(head) - len(b"\r\n\r\n"))
    return (
        head[:at] + chance.choice((b"a", b"Z", b"5", b" ", b"\t", b"\r", b"\n", b"\0", b":")) + head[at + 1 :]
    )


def meaning_of_request(
    head: bytes, authorization: bytes, before: list[RequestFields] | None = None
) -> object:
    """Return all facts about the request that other modules read, and the head that is sent upstream."""
    try:
        parsed = parse_request_head(head, before[-1] if before else None)
    except MalformedHead:  # the parser may name another of several faults
        return None
    fields = parsed.fields
    if before is not None:
        before.append(fields)
    upstream = heads.head_for_upstream(
        parsed,
        host=b"graph.example",
        authorization=authorization,
        readable_codings=bytes.upper,
        body_held=False,
        replaced_length=None,
        whole=False,
        unconditional=False,
        read=True,
    )
    several_ids = sum(name.lower() == b"client-request-id" for name, _ in parsed.headers) >= TWO_IDS
    return (
        (parsed.method, parsed.target, parsed.http10, parsed.headers, upstream),
        None if several_ids else parsed.client_request_id,
        (fields.keep_alive, fields.length, fields.expect_continue, fields.authorization, fields.host),
        (fields.content_type, fields.content_encoding, fields.method_override, fields.forwarded_for),
        fields.listed,
    )


def meaning_of_response(head: bytes, *, to_head: bool, **changes: Any) -> object:
    try:
        parsed = parse_response_head(head, to_head_request=to_head)
    except MalformedHead:  # the parser may name another of several faults
        return None
    kept = {"length": heads.KEPT, "changed": False, "length_hidden": False, "http10": False, "close": False}
    return (
        (parsed.status, parsed.length, parsed.keep_alive, parsed.request_id, parsed.headers),
        (parsed.fields.content_type, parsed.fields.content_encoding, parsed.fields.listed),
        heads.head_for_client(parsed, relocated=bytes.upper, **{**kept, **changes}),
    )


def test_a_request_means_the_same_whatever_came_before_it() -> None:
    chance = random.Random(8)
    before: list[RequestFields] = []  # fields of earlier requests on this connection
    head = b""
    for _ in range(20_000):
        head = one_like(head, chance) or random_fields(chance, chance.choice(REQUEST_LINES))
        credential = chance.choice(CREDENTIALS)
        found = meaning_of_request(head, credential, before)
        with memory_free(uncut=True):
            assert found == meaning_of_request(head, credential), head


def test_a_response_means_the_same_whatever_came_before_it() -> None:
    chance = random.Random(9)
    changes: tuple[dict[str, Any], ...] = ({}, {"length": 7, "changed": True}, {"length": 5}, {"close": True})
    changes += ({"length": CHUNKED}, {"length_hidden": True})
    head = b""
    for _ in range(20_000):
        head = one_like(head, chance) or random_fields(chance, chance.choice(STATUS_LINES))
        to_head, change = chance.random() < 0.2, chance.choice(changes)
        found = meaning_of_response(head, to_head=to_head, **change)
        with memory_free(uncut=True):
            assert found == meaning_of_response(head, to_head=to_head, **change), (head, to_head, change)


def request_with(field: bytes) -> None:
    parse_request_head(b"GET / HTTP/1.1\r\nHost: h\r\n" + field + b"\r\n\r\n")


def read_response_with(field: bytes) -> None:
    parse_response_head(b"HTTP/1.1 200 OK\r\n" + field + b"\r\n\r\n", to_head_request=False)


HOSTILE: dict[str, Callable[[int], bytes]] = {
    "long ids": lambda at: b"x%d: y\r\nclient-request-id: " % at + b"i" * 60_000,
    "long names": lambda at: b"x%d" % at + b"n" * 60_000 + b": y",
    "long values": lambda at: b"x: %d" % at + b"v" * 60_000,
    "many lines": lambda at: b"\r\n".join(b"%x%x:" % (at, each) for each in range(500)),
    "many listed": lambda at: b"Connection: " + b",".join(b"%x%x" % (at, each) for each in range(5000)),
}


@pytest.mark.parametrize("hostile", HOSTILE)
@pytest.mark.parametrize("read", [request_with, read_response_with])
def test_hostile_heads_leave_little_behind(read: Callable[[bytes], None], hostile: str) -> None:
    tracemalloc.start()
    try:
        for at in range(30):
            read(HOSTILE[hostile](at))
        left, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert left < 1_500_000


@pytest.mark.parametrize(
    ("query", "recorded"),
    [
        ("sig=x&code=y&Sig=z", "sig=***&code=***&Sig=***"),
        ("a=b&my_api-key=1&myApiKey=2=3&x", "a=b&my_api-key=1&myApiKey=***&x"),
        ("&&client_secret=&password", "&&client_secret=***&password"),
        ("design=x&codes=y&=z", "design=x&codes=y&=z"),
        ("password" * 8_000 + "&code=1", "password" * 8_000 + "&code=***"),
    ],
)
def test_secrets_of_a_query_are_masked_in_one_pass(query: str, recorded: str) -> None:
    assert without_secrets(query) == recorded


async def test_long_values_that_an_application_chooses_leave_little_behind(tmp_path: Path) -> None:
    async with data_path(responding(ok(b"{}")), tmp_path) as proxy:
        for at in range(100):
            proxy.context.readable_codings(b"gzip;x=%d" % at + b"a" * 50_000)
            proxy.context.rewriter(b"http", b"h%d" % at + b"a" * 50_000)
        assert not proxy.context._codings.entries
        assert not proxy.context._rewriters.entries


async def test_each_request_goes_up_with_its_own_id_host_and_identity(tmp_path: Path) -> None:
    """Two applications send heads that differ only in ids, while both applications' tokens are renewed."""
    chance = random.Random(3)
    other = UpstreamCredential(lambda generation: None)
    async with data_path(responding(ok(b"{}")), tmp_path, max_connections=1) as proxy:
        now = proxy.context.loop.time()
        other.renew("other-0", now + 3600, 0)
        tokens = (proxy.token, proxy.add_application("client-2", other))
        credentials = (proxy.credential, other)
        streams = [await proxy.connect() for _ in range(2)]
        expected: list[bytes] = []
        for slot in range(300):
            which = chance.randrange(2)
            if chance.random() < 0.2:
                credentials[which].renew(f"upstream-{which}-{slot}", now + 3600, slot + 2)
            own_id = chance.choice((b"client-request-id: %d\r\n" % slot, b"client-request-id: \r\n", b""))
            listed = chance.choice((b"", b"", b"Connection: client-request-id\r\n"))
            reader, writer = streams[which]
            line = b"GET /v1.0/%d HTTP/1.1\r\n" % (slot % 7)
            bearer = b"Authorization: Bearer " + tokens[which].encode() + b"\r\n"
            writer.write(line + b"Host: p%d\r\n" % which + own_id + bearer + listed + b"X: y\r\n\r\n")
            assert (await read_reply(reader)).status == 200
            host = b"Host: 127.0.0.1:%d\r\n" % proxy.upstream.port
            credential = b"Authorization: " + credentials[which].authorization + b"\r\n"
            expected.append(line + host + (b"" if listed else own_id) + credential + b"X: y\r\n\r\n")
        assert proxy.upstream.heads == expected
        for _, writer in streams:
            writer.close()


@pytest.mark.parametrize("renewed", [True, False])
async def test_a_token_that_ends_while_a_request_waits_does_not_go_up(tmp_path: Path, renewed: bool) -> None:
    arrived, response = asyncio.Event(), asyncio.Event()

    async def script(peer: UpstreamPeer) -> None:
        while True:
            await peer.head()
            arrived.set()
            await response.wait()
            peer.send(ok(b"{}"))

    async with data_path(script, tmp_path, max_connections=1) as proxy:
        first = asyncio.create_task(proxy.ask(proxy.request("/v1.0/first")))
        await arrived.wait()
        second = asyncio.create_task(proxy.ask(proxy.request("/v1.0/second")))
        while not proxy.context.pool._waiting:  # noqa: ASYNC110 - no event announces this
            await asyncio.sleep(0)
        now = proxy.context.loop.time()
        proxy.credential.expires_at = now - 1
        if renewed:
            proxy.credential.renew("newer", now + 3600, 2)
        response.set()
        statuses = [(await each).status for each in (first, second)]
        assert statuses == [200, 200 if renewed else 503]
        assert [b"Bearer newer" in head for head in proxy.upstream.heads] == [False, True][: 1 + renewed]
