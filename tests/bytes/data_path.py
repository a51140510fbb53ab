"""Data path of a worker on real sockets in the test's event loop, with a scripted upstream."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import argon2

from proxy.audit.record import decode, event_of, lines_of
from proxy.audit.segment import SegmentReader
from proxy.audit.spool import SpoolWriter, spool_directory
from proxy.ipc.counters import CounterPages
from proxy.policy.compile import compile_ruleset
from proxy.policy.interpretations import GRAPH
from proxy.policy.ruleset_yaml import parse_ruleset
from proxy.server.assertions.assertion_judge import AssertionJudge
from proxy.server.assertions.judge import Expectations
from proxy.server.assertions.used import UsedAssertions, used_directory
from proxy.server.callers.client_certificates import ClientCertificates
from proxy.server.callers.rulebook import Caller, Rulebook
from proxy.server.callers.token_keeper import TokenKeeper, TokenSettings
from proxy.server.client.connection import ClientConnection
from proxy.server.context import Context, Limits
from proxy.server.exchange.exchange import Exchange
from proxy.server.loop.deadlines import Deadlines
from proxy.server.loop.iteration import LoopIteration
from proxy.server.router import handler_for
from proxy.server.upstream.connection import UpstreamConnection
from proxy.server.upstream.credentials import NO_CREDENTIAL, UpstreamCredential
from proxy.server.upstream.pool import UpstreamPool
from proxy.server.upstream.settings import UpstreamSettings
from tests.patience import PATIENCE_SECONDS

UPSTREAM_TOKEN = "upstream-token-that-no-application-may-see"
CLIENT_ID = "client-1"
CLIENT_SECRET = "a secret of the application"
ORG_ID = "org-1"
SECRET_HASH = argon2.PasswordHasher(time_cost=1, memory_cost=8, parallelism=1).hash(CLIENT_SECRET)
CALLER = Caller(
    app_id="app-1",
    org_id=ORG_ID,
    client_id=CLIENT_ID,
    secret_hashes=(SECRET_HASH,),
    secret_version=1,
    ruleset_version=7,
)
TOKEN_KEY = b"k" * 32
TOKEN_SETTINGS = TokenSettings("graphward", "graphward", 3600)
TOKENS = TokenKeeper(TOKEN_SETTINGS, [TOKEN_KEY])  # issues tokens that the proxy under test accepts

ALLOW_ALL = """
version: 1
name: allow-all
default: allow
rules: []
"""

LIMITS = Limits(
    max_header_bytes=65536,
    max_header_count=128,
    max_buffered_body=1024 * 1024,
    max_filter_bytes=1024 * 1024,
    head_timeout=PATIENCE_SECONDS,
    idle_timeout=75,
    body_grace=PATIENCE_SECONDS,
    min_body_rate=240,
    upstream_wait=PATIENCE_SECONDS,
    token_lifetime=3600,
    max_staleness=0,
    max_connections=1000,
    max_connections_per_address=1000,
    max_held_bytes=64 * 1024 * 1024,
    max_failures_per_address=1000,
    max_failures_per_client=1000,
)

Script = Callable[["UpstreamPeer"], Awaitable[None]]


@dataclass
class UpstreamPeer:
    """The upstream's end of one connection from the proxy."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    number: int

    async def head(self) -> bytes:
        return await self.reader.readuntil(b"\r\n\r\n")

    async def body(self, size: int) -> bytes:
        return await self.reader.readexactly(size)

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    def abort(self) -> None:
        self.writer.transport.abort()

    def abort_with_reset(self) -> None:
        """Send a TCP reset instead of an orderly close, even if every received byte was read."""
        peer = self.writer.get_extra_info("socket")
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.abort()


@dataclass
class ScriptedUpstream:
    """A fake upstream that runs `script` for each connection and stores every received byte."""

    script: Script
    received: list[bytearray] = field(default_factory=list)
    port: int = 0
    writers: list[asyncio.StreamWriter] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen = bytearray()
        self.received.append(seen)
        self.writers.append(writer)
        feed = reader.feed_data

        def recording(data: bytes) -> None:
            seen.extend(data)
            feed(data)

        reader.feed_data = recording  # type: ignore[method-assign, assignment]
        try:
            await self.script(UpstreamPeer(reader, writer, len(self.received)))
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    @property
    def heads(self) -> list[bytes]:
        """The head of every request that the upstream received on any connection."""
        return [
            part + b"\r\n\r\n"
            for each in self.received
            for part in bytes(each).split(b"\r\n\r\n")
            if part.split(b" ", 1)[0] in (b"GET", b"POST", b"PUT", b"PATCH", b"DELETE", b"HEAD", b"OPTIONS")
        ]


def responding(*responses: bytes) -> Script:
    """Return a script that sends the next of `responses` to each request, and finally repeats the last.

    The returned script does not read the bodies of requests.
    """

    async def script(peer: UpstreamPeer) -> None:
        slot = 0
        while True:
            await peer.head()
            peer.send(responses[min(slot, len(responses) - 1)])
            slot += 1

    return script


def ok(body: bytes, *fields: bytes) -> bytes:
    lines = b"".join(each + b"\r\n" for each in (b"Content-Type: application/json", *fields))
    return b"HTTP/1.1 200 OK\r\n%bContent-Length: %d\r\n\r\n%b" % (lines, len(body), body)


@dataclass
class DataPath:
    """The proxy under test, with its scripted upstream."""

    context: Context
    port: int
    upstream: ScriptedUpstream
    retention: Path
    token: str
    asked_for_credential: list[int]
    credential_asked: asyncio.Event
    credential: UpstreamCredential

    @property
    def connections(self) -> set[ClientConnection]:
        """Open connections from applications to the proxy."""
        return {each for each in self.context.connections if isinstance(each, ClientConnection)}

    def request(
        self, target: str = "/v1.0/users", method: str = "GET", fields: bytes = b"", body: bytes = b""
    ) -> bytes:
        """Return the bytes of a request with a valid token. `fields` are complete header lines."""
        line = f"{method} {target} HTTP/1.1\r\nHost: proxy.example\r\nAuthorization: Bearer {self.token}\r\n"
        return line.encode() + fields + b"\r\n" + body

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def ask(self, *pieces: bytes) -> Reply:
        """Send the pieces of a request on a new connection, and read one response."""
        reader, writer = await self.connect()
        try:
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0)
            return await read_reply(reader)
        finally:
            writer.close()

    async def raw(self, data: bytes) -> bytes:
        """Send `data` on a new connection, and read everything until the proxy closes the connection."""
        reader, writer = await self.connect()
        writer.write(data)
        try:
            return await reader.read()
        except ConnectionResetError:
            return b""
        finally:
            writer.close()

    def events(self) -> list[dict[str, Any]]:
        """Return every audit event in the spool, oldest first."""
        found: list[dict[str, Any]] = []
        for path in sorted(spool_directory(self.retention).glob("*.seg")):
            reader = SegmentReader(path)
            if reader.header is not None:
                prefix = reader.header.id_prefix
                found += [
                    json.loads(lines_of([event_of(decode(each), prefix, 0, None)]))
                    for _, each in reader.records(1 << 30)
                ]
            reader.close()
        return found

    def use(self, ruleset: str) -> None:
        """Activate a ruleset in place of the current rules."""
        self.context.use(rulebook(ruleset, self.credential))

    def add_application(self, client_id: str, credential: UpstreamCredential) -> str:
        """Add another application to the organisation, under the same rules as the first application.

        Return its token.
        """
        book = self.context.rulebook
        caller = replace(
            book.callers[CLIENT_ID], app_id=client_id, client_id=client_id, credential=credential
        )
        self.context.use(replace(book, callers={**book.callers, client_id: caller}))
        return TOKENS.issue(caller, now=time.time(), token_id=client_id)


async def until(what: Callable[[], object]) -> None:
    """Poll until the given condition is true, because no event announces the change."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not what():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


@dataclass
class Reply:
    status: int
    head: bytes
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    def value(self, name: str) -> str | None:
        for line in self.head.split(b"\r\n")[1:]:
            key, _, value = line.partition(b":")
            if key.strip().lower() == name.lower().encode():
                return value.strip().decode()
        return None


def without_ids(reply: Reply) -> dict[str, Any]:
    """Return an error of the token endpoint without the error's time and the ids of the request."""
    body: dict[str, Any] = reply.json()
    return {name: body[name] for name in body if name not in ("timestamp", "trace_id", "correlation_id")}


async def read_reply(reader: asyncio.StreamReader, *, to_head: bool = False) -> Reply:
    head = await reader.readuntil(b"\r\n\r\n")
    status = int(head.split(b" ", 2)[1])
    reply = Reply(status, head, b"")
    length = reply.value("content-length")
    if to_head or status in (204, 304) or status < 200:
        return reply
    if reply.value("transfer-encoding") == "chunked":
        reply.body = await read_chunks(reader)
    elif length is not None:
        reply.body = await reader.readexactly(int(length))
    else:
        reply.body = await reader.read()
    return reply


async def read_chunks(reader: asyncio.StreamReader) -> bytes:
    body = b""
    while size := int(await reader.readuntil(b"\r\n"), 16):
        body += await reader.readexactly(size)
        assert await reader.readexactly(2) == b"\r\n"
    assert await reader.readexactly(2) == b"\r\n"
    return body


def rulebook(ruleset: str, credential: UpstreamCredential = NO_CREDENTIAL) -> Rulebook:
    caller = replace(CALLER, rules=compile_ruleset(parse_ruleset(ruleset)), credential=credential)
    return Rulebook({CLIENT_ID: caller}, {}, "1", loaded=True)


@contextlib.asynccontextmanager
async def data_path(
    script: Script,
    directory: Path,
    ruleset: str = ALLOW_ALL,
    *,
    rewrite_links: bool = True,
    interpretations: int = GRAPH,
    connect_timeout: float = PATIENCE_SECONDS,
    response_timeout: float = PATIENCE_SECONDS,
    max_connections: int = 8,
    max_waiting: int = 1024,
    public_base: str = "",
    asked_for_keys: Callable[[str], None] = lambda issuer: None,
    **limits: float,
) -> AsyncIterator[DataPath]:
    """Start the proxy in front of a scripted upstream, on a free loopback port."""
    loop = asyncio.get_running_loop()
    upstream = ScriptedUpstream(script)
    backend = await asyncio.start_server(upstream.serve, "127.0.0.1", 0)
    upstream.port = backend.sockets[0].getsockname()[1]
    counters = CounterPages(1).workers[0]
    retention = directory / "audit"
    retention.mkdir(exist_ok=True)
    spool = SpoolWriter(
        retention, segment_bytes=1 << 18, max_bytes=1 << 30, when_full="refuse", id_prefix=0x2A
    )
    spool.maintain()
    deadlines = Deadlines(loop)
    deadlines.start()
    asked: list[int] = []
    credential_asked = asyncio.Event()

    def ask_for_credential(generation: int) -> None:
        asked.append(generation)
        credential_asked.set()

    credential = UpstreamCredential(ask_for_credential)
    credential.renew(UPSTREAM_TOKEN, loop.time() + 3600, 1)
    iteration = LoopIteration(loop)
    pool = UpstreamPool(
        loop,
        UpstreamSettings(
            "127.0.0.1",
            upstream.port,
            None,
            connect_timeout,
            response_timeout,
            50,
            max_connections,
            max_waiting,
            65536,
        ),
        deadlines,
        counters,
        iteration,
    )
    keeper = TokenKeeper(TOKEN_SETTINGS, [TOKEN_KEY])
    executor = ThreadPoolExecutor(1)
    context = Context(
        limits=replace(LIMITS, **limits),  # type: ignore[arg-type]
        deadlines=deadlines,
        counters=counters,
        spool=spool,
        tokens=keeper,
        pool=pool,
        iteration=iteration,
        upstream_base=f"http://127.0.0.1:{upstream.port}",
        statuses_as_502=frozenset({*range(500, 503), *range(505, 600)}),
        rewrite_links=rewrite_links,
        interpretations=interpretations,
        public_base=public_base,
        contact="",
        trusted_proxies=(),
        executor=executor,
        loop=loop,
        assertions=AssertionJudge(
            Expectations(public_base, clock_skew=60.0),
            UsedAssertions(used_directory(retention)),
            asked_for_keys,
        ),
        client_certificates=ClientCertificates(None),
    )
    book = rulebook(ruleset, credential)
    context.use(book)
    server = await loop.create_server(
        lambda: ClientConnection(context, handler_for, secure=False), "127.0.0.1", 0
    )
    port = server.sockets[0].getsockname()[1]
    token = keeper.issue(book.callers[CLIENT_ID], now=time.time(), token_id="t")
    try:
        yield DataPath(context, port, upstream, retention, token, asked, credential_asked, credential)
    finally:
        server.close()
        for connection in list(context.connections):
            connection.cut()
        pool.close()
        deadlines.stop()
        backend.close()
        for writer in upstream.writers:
            writer.close()
        await asyncio.sleep(0.01)
        spool.close()
        executor.shutdown()


def silent(asked: list[UpstreamPeer]) -> Script:
    """Read one request head, add the peer to `asked`, and let the test send the response."""

    async def script(peer: UpstreamPeer) -> None:
        await peer.head()
        asked.append(peer)
        await peer.reader.read()

    return script


def upstream_of(proxy: DataPath) -> UpstreamConnection:
    """Return the one upstream connection that currently serves a request."""
    exchanges = [each._exchange for each in proxy.connections]
    calls = [each._call for each in exchanges if isinstance(each, Exchange)]
    (upstream,) = [each.upstream for each in calls if each is not None and each.upstream is not None]
    return upstream


@contextlib.asynccontextmanager
async def asking(
    tmp_path: Path, *request: Any
) -> AsyncIterator[tuple[DataPath, asyncio.StreamReader, UpstreamConnection]]:
    """Send a request to which the upstream never responds.

    Yield the proxy, the client's end of its connection, and the upstream connection that serves the request.
    """
    asked: list[UpstreamPeer] = []
    async with data_path(silent(asked), tmp_path) as proxy:
        reader, writer = await proxy.connect()
        writer.write(proxy.request(*request))
        await until(lambda: asked)
        assert not proxy.context.pool._waiting
        yield proxy, reader, upstream_of(proxy)
        writer.close()
