"""Tests of an exchange's phases: the next phase after each event, or the end and the audit record.

Each test situation brings an exchange into one phase, over real sockets. Each test applies one event to an
exchange in one of the phases. The expected outcome states the client's response and the content of the audit
event.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Final, NoReturn

import pytest

from proxy.audit.segment import SegmentReader
from proxy.audit.spool import SpoolFull, SpoolWriter, spool_directory
from proxy.rules.stops import Stops
from proxy.server.exchange.exchange import Exchange, Phase
from proxy.server.exchange.upstream_call import CallState
from proxy.server.loop.deadlines import NEVER
from tests.bytes.data_path import DataPath, UpstreamPeer, data_path, ok, read_reply, responding, until

RULES: Final = """
version: 1
name: phases
default: allow
rules:
  - id: by-body
    match: {path: ["/v1.0/evaluated"], methods: [POST]}
    conditions: [{body: kind, equals: guest}]
    verdict: block
  - id: hidden
    match: {path: ["/v1.0/filtered"], methods: [GET]}
    verdict: filter
    transforms: {strip_properties: [secret]}
  - id: blocked
    match: {path: ["/v1.0/blocked"]}
    verdict: block
"""
LIMIT: Final = 1000  # bytes of a body that rules may read
TEXT: Final = b"Content-Type: text/plain\r\n"
JSON: Final = b"Content-Type: application/json\r\n"
LONG_JSON: Final = b'{"a":"' + b"x" * 300_000  # longer than the text that is buffered to keep every byte

LEFT: Final = "the client left"
CUT: Final = "no whole response"


class Situation(Enum):
    COLLECTING = Phase.COLLECTING, "a rule reads the body, which is not whole"
    BODY_TO_COME = Phase.CALLING, "the small body is not whole"
    QUEUED = Phase.CALLING, "it waits for an upstream connection"
    SENT = Phase.CALLING, "the request was sent"
    SENDING = Phase.CALLING, "the body is passed on as it comes"
    RENEWING = Phase.CALLING, "it waits for another upstream token"
    BUFFERING_FOR_RULES = Phase.BUFFERING, "a filter needs the response whole"
    BUFFERING_FOR_LINKS = Phase.BUFFERING, "a link may have to be rewritten"
    STREAMING = Phase.STREAMING, "the response is passed on as it comes"
    REWRITING = Phase.STREAMING, "links are rewritten as the response comes"
    ENDED = Phase.ENDED, "the response came before the body's end"

    @property
    def phase(self) -> Phase:
        return self.value[0]


class Event(Enum):
    CLIENT_LEAVES = "the client leaves"
    STOP = "an operator stops the application"
    FAULT = "the proxy has a fault"
    DEADLINE = "whatever deadline there is passes"
    UPSTREAM_LOST = "the upstream closes its connection"
    MALFORMED_RESPONSE = "the upstream sends nonsense"
    INTERIM = "the upstream sends 103"
    RESPONSE_BEGINS = "the head and a piece of a response come"
    RESPONSE_GOES_ON = "another piece of the response comes"
    RESPONSE_ENDS = "the last piece of the response comes"
    TOKEN_REFUSED = "the upstream responds with 401"
    SERVER_ERROR = "the upstream responds with 500"
    TOKEN_COMES = "another upstream token comes"
    CONNECTION_FREE = "an upstream connection is free"
    QUEUE_FULL = "the body ends, and no room is left in the queue for the upstream"
    BODY_GOES_ON = "another piece of the body comes"
    BODY_ENDS = "the last piece of the body comes"
    BODY_BLOCKED = "the body ends, and a rule blocks it"
    BODY_MALFORMED = "the framing of the body is invalid"
    TOO_LARGE = "more comes than rules may read"
    MEMORY_FULL = "no memory is left for what rules must read"
    SPOOL_FULL = "the response ends, and no room is left for its record"


@dataclass(frozen=True)
class Ends:
    """Expected outcome of a test in which the exchange ends with an audit event.

    `client` is the status of the response to the client, or the kind of its failure.
    """

    client: int | str
    status: int
    reason: str
    verdict: str = "allow"


@dataclass(frozen=True)
class Unrecorded:
    """Outcome of an exchange that ends and can't be recorded: the client must not get a complete response."""


@dataclass(frozen=True)
class GoesOn:
    """Expected outcome of a test in which the exchange does not end: afterwards, the exchange is in `phase`.

    The proxy has not yet written the audit event of the exchange.
    """

    phase: Phase


S = Situation
E = Event
_LEFT: Final = Ends(LEFT, 499, "clientAborted")
_STOPPED: Final = Ends(403, 403, "stopped", "block")
_FAULT: Final = Ends(CUT, 500, "internalError")
_200: Final = Ends(200, 200, "default")

_OUTCOMES_OF_A_BEGUN_RESPONSE: Final[dict[Event, Ends | Unrecorded | GoesOn]] = {
    E.CLIENT_LEAVES: replace(_LEFT, status=200),
    E.STOP: Ends(CUT, 200, "stopped"),
    E.FAULT: replace(_FAULT, status=200),
    E.DEADLINE: Ends(CUT, 200, "upstreamAborted"),
    E.UPSTREAM_LOST: Ends(CUT, 200, "upstreamAborted"),
    E.MALFORMED_RESPONSE: Ends(CUT, 200, "upstreamAborted"),
    E.RESPONSE_GOES_ON: GoesOn(Phase.STREAMING),
    E.RESPONSE_ENDS: _200,
    E.MEMORY_FULL: GoesOn(Phase.STREAMING),
    E.SPOOL_FULL: Unrecorded(),
}

OUTCOMES: Final[dict[Situation, dict[Event, Ends | Unrecorded | GoesOn]]] = {
    S.COLLECTING: {
        # nothing was decided, so the client would have received nothing
        E.CLIENT_LEAVES: replace(_LEFT, verdict="block"),
        E.STOP: _STOPPED,
        E.FAULT: replace(_FAULT, verdict="block"),
        E.DEADLINE: Ends(408, 408, "requestTimeout", "block"),
        E.BODY_GOES_ON: GoesOn(Phase.COLLECTING),
        E.BODY_ENDS: GoesOn(Phase.CALLING),
        E.BODY_BLOCKED: Ends(403, 403, "rule", "block"),
        E.BODY_MALFORMED: Ends(400, 400, "malformedRequest", "block"),
        E.TOO_LARGE: Ends(413, 413, "payloadTooLarge", "block"),
        E.MEMORY_FULL: Ends(503, 503, "overloaded", "block"),
        E.QUEUE_FULL: Ends(503, 503, "overloaded"),
    },
    S.BODY_TO_COME: {
        E.CLIENT_LEAVES: _LEFT,
        E.STOP: _STOPPED,
        E.FAULT: _FAULT,
        E.DEADLINE: Ends(408, 408, "requestTimeout"),
        E.BODY_GOES_ON: GoesOn(Phase.CALLING),
        E.BODY_ENDS: GoesOn(Phase.CALLING),
        E.QUEUE_FULL: Ends(503, 503, "overloaded"),
    },
    S.QUEUED: {
        E.CLIENT_LEAVES: _LEFT,
        E.STOP: _STOPPED,
        E.FAULT: _FAULT,
        E.DEADLINE: Ends(503, 503, "overloaded"),
        E.CONNECTION_FREE: GoesOn(Phase.CALLING),
    },
    S.SENT: {
        E.CLIENT_LEAVES: _LEFT,
        E.STOP: _STOPPED,
        E.FAULT: _FAULT,
        E.DEADLINE: Ends(504, 504, "upstreamTimeout"),
        E.UPSTREAM_LOST: Ends(502, 502, "upstreamUnreachable"),
        E.MALFORMED_RESPONSE: Ends(502, 502, "upstreamProtocol"),
        E.INTERIM: GoesOn(Phase.CALLING),
        E.RESPONSE_BEGINS: GoesOn(Phase.STREAMING),
        E.RESPONSE_ENDS: _200,
        E.TOKEN_REFUSED: GoesOn(Phase.CALLING),
        E.SERVER_ERROR: Ends(502, 502, "upstreamError"),
        E.SPOOL_FULL: Unrecorded(),
    },
    S.SENDING: {
        E.CLIENT_LEAVES: _LEFT,
        E.STOP: _STOPPED,
        E.FAULT: _FAULT,
        E.DEADLINE: Ends(408, 408, "requestTimeout"),
        E.UPSTREAM_LOST: Ends(502, 502, "upstreamUnreachable"),
        E.MALFORMED_RESPONSE: Ends(502, 502, "upstreamProtocol"),
        E.INTERIM: GoesOn(Phase.CALLING),
        E.RESPONSE_BEGINS: GoesOn(Phase.STREAMING),
        E.RESPONSE_ENDS: _200,
        E.TOKEN_REFUSED: Ends(502, 502, "upstreamUnauthorised"),  # the sent part of the body is not kept
        E.SERVER_ERROR: Ends(502, 502, "upstreamError"),
        E.BODY_GOES_ON: GoesOn(Phase.CALLING),
        E.BODY_ENDS: GoesOn(Phase.CALLING),
        E.BODY_MALFORMED: Ends(400, 400, "malformedRequest"),
    },
    S.RENEWING: {
        E.CLIENT_LEAVES: _LEFT,
        E.STOP: _STOPPED,
        E.FAULT: _FAULT,
        E.DEADLINE: Ends(502, 502, "upstreamUnauthorised"),
        E.TOKEN_COMES: GoesOn(Phase.CALLING),
    },
    S.BUFFERING_FOR_RULES: {
        E.CLIENT_LEAVES: replace(_LEFT, verdict="filter"),
        E.STOP: _STOPPED,
        E.FAULT: replace(_FAULT, verdict="filter"),
        E.DEADLINE: Ends(504, 504, "upstreamTimeout", "filter"),
        E.UPSTREAM_LOST: Ends(502, 502, "upstreamProtocol", "filter"),
        E.MALFORMED_RESPONSE: Ends(502, 502, "upstreamProtocol", "filter"),
        E.RESPONSE_GOES_ON: GoesOn(Phase.BUFFERING),
        E.RESPONSE_ENDS: Ends(200, 200, "rule", "filter"),
        E.TOO_LARGE: Ends(502, 502, "filterFailed", "filter"),
        E.MEMORY_FULL: Ends(503, 503, "overloaded", "filter"),
        E.SPOOL_FULL: Unrecorded(),
    },
    S.BUFFERING_FOR_LINKS: {
        E.CLIENT_LEAVES: _LEFT,
        E.STOP: _STOPPED,
        E.FAULT: _FAULT,
        E.DEADLINE: Ends(504, 504, "upstreamTimeout"),
        E.UPSTREAM_LOST: Ends(502, 502, "upstreamProtocol"),
        E.MALFORMED_RESPONSE: Ends(502, 502, "upstreamProtocol"),
        E.RESPONSE_GOES_ON: GoesOn(Phase.BUFFERING),
        E.RESPONSE_ENDS: _200,
        E.MEMORY_FULL: GoesOn(Phase.STREAMING),
        E.SPOOL_FULL: Unrecorded(),
    },
    S.STREAMING: _OUTCOMES_OF_A_BEGUN_RESPONSE,
    S.REWRITING: _OUTCOMES_OF_A_BEGUN_RESPONSE,
    S.ENDED: dict.fromkeys(
        (
            E.CLIENT_LEAVES,
            E.STOP,
            E.FAULT,
            E.DEADLINE,
            E.UPSTREAM_LOST,
            E.BODY_GOES_ON,
            E.BODY_ENDS,
            E.BODY_MALFORMED,
        ),
        _200,
    ),
}


@dataclass
class Scene:
    """An exchange in a test situation, with the client's end and the upstream's end."""

    proxy: DataPath
    target: str
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    asked: asyncio.Queue[UpstreamPeer]  # upstream connections that received a request
    exchange: Exchange | None = None
    peer: UpstreamPeer | None = None  # the upstream of this exchange
    occupant: UpstreamPeer | None = None  # the upstream of another exchange, which has the only connection
    next_body: bytes = b""  # next piece of a body that has begun
    last_body: bytes = b""
    next_piece: bytes = b""  # next piece of a response that has begun
    last_piece: bytes = b""
    others: list[asyncio.StreamWriter] = field(default_factory=list)
    client: int | str | None = None  # what the client received before the event

    async def send(self, *, method: str = "GET", fields: bytes = b"", body: bytes = b"") -> None:
        self.writer.write(self.proxy.request(self.target, method, fields, body))
        await until(lambda: self._found() is not None)
        self.exchange = self._found()

    def _found(self) -> Exchange | None:
        for each in self.proxy.connections:
            exchange = each._exchange
            if isinstance(exchange, Exchange) and exchange.head.target == self.target:
                return exchange
        return None

    async def until_asked(self) -> UpstreamPeer:
        self.peer = await self.asked.get()
        return self.peer

    async def until_phase(self, phase: Phase) -> None:
        exchange = self.exchange
        assert exchange is not None
        await until(lambda: exchange.phase is phase)

    def state(self) -> CallState | None:
        assert self.exchange is not None
        return None if self.exchange._call is None else self.exchange._call.state

    async def occupy(self, *, waiting: int = 0) -> None:
        """Make other requests use the only upstream connection and fill the queue for that connection."""
        for _ in range(1 + waiting):
            _, writer = await self.proxy.connect()
            writer.write(self.proxy.request("/v1.0/other"))
            self.others.append(writer)
        self.occupant = await self.asked.get()
        await until(lambda: len(self.proxy.connections) >= 1 + len(self.others))
        await self.round_trip()

    async def round_trip(self) -> None:
        """Let the proxy process all bytes sent to it so far.

        The proxy, its clients and its upstream share the event loop of the test.
        """
        no_token = b"GET /v1.0/nobody HTTP/1.1\r\nHost: x\r\n\r\n"
        assert (await self.proxy.ask(no_token)).status == 401

    async def received(self) -> int | str:
        """Read one response, and return its status if the response is complete."""
        try:
            while (reply := await read_reply(self.reader)).status < 200:
                pass
        except (asyncio.IncompleteReadError, ConnectionError):
            return CUT
        if reply.value("content-length") is None and reply.value("transfer-encoding") is None:
            return CUT
        return reply.status

    def events(self) -> list[tuple[int, str, str]]:
        return [
            (each["status"], each["reason"], each["verdict"])
            for each in self.proxy.events()
            if each["path"] == self.target
        ]


CHUNKED: Final = b"Transfer-Encoding: chunked\r\n"
RESPONSE: Final = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n"


def chunk(data: bytes, *, last: bool = False) -> bytes:
    return b"%x\r\n%b\r\n%b" % (len(data), data, b"0\r\n\r\n" if last else b"")


async def _collecting(scene: Scene) -> None:
    scene.target = "/v1.0/evaluated"
    scene.next_body, scene.last_body = chunk(b'd":"member'), chunk(b'd":"member"}', last=True)
    await scene.send(method="POST", fields=JSON + CHUNKED, body=chunk(b'{"kin'))


async def _body_to_come(scene: Scene) -> None:
    scene.next_body, scene.last_body = b"bcd", b"b" * 9
    await scene.send(method="POST", fields=TEXT + b"Content-Length: 10\r\n", body=b"a")


async def _queued(scene: Scene) -> None:
    await scene.occupy()
    await scene.send()
    await until(lambda: scene.state() is CallState.QUEUED)


async def _sent(scene: Scene) -> None:
    await scene.send()
    await scene.until_asked()


async def _sending(scene: Scene) -> None:
    scene.next_body, scene.last_body = chunk(b"b"), chunk(b"b", last=True)
    await scene.send(method="POST", fields=TEXT + CHUNKED, body=chunk(b"a"))
    await scene.until_asked()


async def _renewing(scene: Scene) -> None:
    await _sent(scene)
    assert scene.peer is not None
    scene.peer.send(b"HTTP/1.1 401 No\r\nContent-Length: 0\r\n\r\n")
    await scene.proxy.credential_asked.wait()
    await until(lambda: scene.state() is CallState.RENEWING)


async def _responded(scene: Scene, fields: bytes, first: bytes, rest: bytes = b"", last: bytes = b"") -> None:
    await _sent(scene)
    assert scene.peer is not None
    scene.next_piece, scene.last_piece = chunk(rest), chunk(last, last=True)
    scene.peer.send(RESPONSE + fields + b"\r\n" + chunk(first))


async def _buffering_for_rules(scene: Scene) -> None:
    scene.target = "/v1.0/filtered"
    await _responded(scene, JSON, b'{"secret":1,', b'"a":', b'"b":2}')


async def _buffering_for_links(scene: Scene) -> None:
    await _responded(scene, JSON, b'{"a":1,', b'"b":', b'"c":2}')


async def _streaming(scene: Scene) -> None:
    await _responded(scene, TEXT, b"a", b"b", b"c")


async def _rewriting(scene: Scene) -> None:
    await _responded(scene, JSON, LONG_JSON, b"y", b'z"}')


async def _ended(scene: Scene) -> None:
    await _sending(scene)
    assert scene.peer is not None
    scene.peer.send(ok(b"{}"))
    scene.client = await scene.received()


REACH: Final[dict[Situation, Callable[[Scene], Awaitable[None]]]] = {
    S.COLLECTING: _collecting,
    S.BODY_TO_COME: _body_to_come,
    S.QUEUED: _queued,
    S.SENT: _sent,
    S.SENDING: _sending,
    S.RENEWING: _renewing,
    S.BUFFERING_FOR_RULES: _buffering_for_rules,
    S.BUFFERING_FOR_LINKS: _buffering_for_links,
    S.STREAMING: _streaming,
    S.REWRITING: _rewriting,
    S.ENDED: _ended,
}


async def _client_leaves(scene: Scene) -> None:
    scene.client = scene.client or LEFT
    scene.writer.transport.abort()


async def _stop(scene: Scene) -> None:
    book = scene.proxy.context.rulebook
    scene.proxy.context.use(replace(book, stops=Stops(everything=True)))


async def _fault(scene: Scene) -> None:
    assert scene.exchange is not None
    scene.exchange.connection.fail()


async def _deadline(scene: Scene) -> None:
    """Run the proxy's deadline sweep as if an hour had passed."""
    later = asyncio.get_running_loop().time() + 3600
    for part in scene.proxy.context.deadlines._parts:
        for timed in list(part):
            if timed.deadline != NEVER:
                timed.on_deadline(later)


async def _from_upstream(scene: Scene, data: bytes) -> None:
    assert scene.peer is not None
    scene.peer.send(data)


async def _upstream_lost(scene: Scene) -> None:
    assert scene.peer is not None
    scene.peer.abort()


async def _token_comes(scene: Scene) -> None:
    scene.proxy.credential.renew("another", asyncio.get_running_loop().time() + 3600, 2)
    await scene.until_asked()


async def _connection_free(scene: Scene) -> None:
    assert scene.occupant is not None
    scene.occupant.send(ok(b"{}"))
    await scene.until_asked()


async def _queue_full(scene: Scene) -> None:
    await scene.occupy(waiting=1)
    scene.writer.write(scene.last_body)


async def _too_large(scene: Scene) -> None:
    if scene.peer is None:
        scene.writer.write(chunk(b"x" * LIMIT))
    else:
        scene.peer.send(chunk(b"x" * LIMIT))


async def _memory_full(scene: Scene) -> None:
    budget = scene.proxy.context.buffer_budget
    budget.limit = budget.reserved
    if scene.peer is None:
        scene.writer.write(scene.next_body)
    else:
        scene.peer.send(scene.next_piece)


def fill(spool: SpoolWriter, record: bytes) -> NoReturn:
    while True:
        spool.append("another organisation", record)


async def _spool_full(scene: Scene) -> None:
    proxy, spool = scene.proxy, scene.proxy.context.spool
    assert (await proxy.ask(proxy.request("/v1.0/blocked"))).status == 403
    records: list[bytes] = []
    for path in spool_directory(proxy.retention).glob("*.seg"):
        segment = SegmentReader(path)
        if segment.header is not None:
            records += [record for _, record in segment.records(1 << 30)]
        segment.close()
    (record,) = records
    spool._max_bytes = 0
    with pytest.raises(SpoolFull):
        fill(spool, record)
    await _response_ends(scene)


def _upstream_sends(data: bytes) -> Callable[[Scene], Awaitable[None]]:
    async def send(scene: Scene) -> None:
        await _from_upstream(scene, data)

    return send


async def _response_ends(scene: Scene) -> None:
    await _from_upstream(scene, scene.last_piece or ok(b"{}"))


async def _response_goes_on(scene: Scene) -> None:
    await _from_upstream(scene, scene.next_piece)


async def _body_goes_on(scene: Scene) -> None:
    scene.writer.write(scene.next_body)


async def _body_ends(scene: Scene) -> None:
    scene.writer.write(scene.last_body)
    if scene.exchange is not None and scene.exchange.phase is not Phase.ENDED and scene.peer is None:
        await scene.until_asked()


async def _body_blocked(scene: Scene) -> None:
    scene.writer.write(chunk(b'd":"guest"}', last=True))


async def _body_malformed(scene: Scene) -> None:
    scene.writer.write(b"no chunk\r\n")


HAPPENS: Final[dict[Event, Callable[[Scene], Awaitable[None]]]] = {
    E.CLIENT_LEAVES: _client_leaves,
    E.STOP: _stop,
    E.FAULT: _fault,
    E.DEADLINE: _deadline,
    E.UPSTREAM_LOST: _upstream_lost,
    E.MALFORMED_RESPONSE: _upstream_sends(b"nonsense\r\n\r\n"),
    E.INTERIM: _upstream_sends(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"),
    E.RESPONSE_BEGINS: _upstream_sends(RESPONSE + TEXT + b"\r\n" + chunk(b"a")),
    E.RESPONSE_GOES_ON: _response_goes_on,
    E.RESPONSE_ENDS: _response_ends,
    E.TOKEN_REFUSED: _upstream_sends(b"HTTP/1.1 401 No\r\nContent-Length: 0\r\n\r\n"),
    E.SERVER_ERROR: _upstream_sends(b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n"),
    E.TOKEN_COMES: _token_comes,
    E.CONNECTION_FREE: _connection_free,
    E.QUEUE_FULL: _queue_full,
    E.BODY_GOES_ON: _body_goes_on,
    E.BODY_ENDS: _body_ends,
    E.BODY_BLOCKED: _body_blocked,
    E.BODY_MALFORMED: _body_malformed,
    E.TOO_LARGE: _too_large,
    E.MEMORY_FULL: _memory_full,
    E.SPOOL_FULL: _spool_full,
}

# These are refused before anything is awaited, so the exchange never leaves its first phase.
REFUSED_AT_ONCE: Final[dict[str, tuple[bytes, Ends]]] = {
    "a rule blocks it": (b"GET /v1.0/blocked HTTP/1.1", Ends(403, 403, "rule", "block")),
    "its target is malformed": (b"GET /v1.0/%zz HTTP/1.1", Ends(400, 400, "malformedTarget", "block")),
    "its declared body is too large": (
        b"POST /v1.0/evaluated HTTP/1.1\r\nContent-Length: 1001",
        Ends(413, 413, "payloadTooLarge", "block"),
    ),
    "its method is overridden": (
        b"POST /v1.0/asked HTTP/1.1\r\nContent-Length: 0\r\nX-HTTP-Method-Override: DELETE",
        Ends(400, 400, "unsupported", "block"),
    ),
}


@pytest.mark.parametrize("why", REFUSED_AT_ONCE)
async def test_what_is_refused_in_its_first_phase_reaches_nobody(tmp_path: Path, why: str) -> None:
    line, outcome = REFUSED_AT_ONCE[why]
    async with data_path(responding(ok(b"{}")), tmp_path, RULES, max_buffered_body=LIMIT) as proxy:
        token = f"\r\nHost: x\r\nAuthorization: Bearer {proxy.token}\r\n\r\n".encode()
        assert (await proxy.ask(line + token)).status == outcome.client
        (event,) = proxy.events()
        assert proxy.upstream.received == []
    assert (event["status"], event["reason"], event["verdict"]) == (
        outcome.status,
        outcome.reason,
        outcome.verdict,
    )


def test_every_phase_meets_what_may_happen_at_any_time() -> None:
    at_any_time = {E.CLIENT_LEAVES, E.STOP, E.FAULT, E.DEADLINE}
    # this phase never waits for an event
    assert {each.phase for each in OUTCOMES} == set(Phase) - {Phase.EVALUATING}
    assert [each for each, outcomes in OUTCOMES.items() if not at_any_time <= set(outcomes)] == []


CELLS: Final = [
    pytest.param(situation, event, outcome, id=f"{situation.name}-{event.name}")
    for situation, outcomes in OUTCOMES.items()
    for event, outcome in outcomes.items()
]


@pytest.mark.parametrize(("situation", "event", "outcome"), CELLS)
async def test_what_becomes_of_an_exchange(
    tmp_path: Path, situation: Situation, event: Event, outcome: Ends | Unrecorded | GoesOn
) -> None:
    asked: asyncio.Queue[UpstreamPeer] = asyncio.Queue()

    async def script(peer: UpstreamPeer) -> None:
        while True:
            await peer.head()
            asked.put_nowait(peer)

    async with data_path(
        script,
        tmp_path,
        RULES,
        max_connections=1,
        max_waiting=1,
        max_buffered_body=LIMIT,
        max_filter_bytes=LIMIT,
    ) as proxy:
        scene = Scene(proxy, "/v1.0/asked", *(await proxy.connect()), asked)
        await REACH[situation](scene)
        await scene.until_phase(situation.phase)
        await HAPPENS[event](scene)
        await scene.round_trip()
        exchange = scene.exchange
        assert exchange is not None
        if isinstance(outcome, GoesOn):
            assert (exchange.phase, scene.events()) == (outcome.phase, [])
            await _client_leaves(scene)
        else:
            client = scene.client or await scene.received()
            assert client == (outcome.client if isinstance(outcome, Ends) else CUT)
        await scene.until_phase(Phase.ENDED)
        # Later events add nothing to an exchange that has ended.
        exchange.stop(Stops(everything=True))
        exchange.waited_too_long()
        exchange.client_left()
        exchange.fail()
        records = scene.events()
        assert len(records) == (0 if isinstance(outcome, Unrecorded) else 1)
        if isinstance(outcome, Ends):
            assert records == [(outcome.status, outcome.reason, outcome.verdict)]
        for writer in (scene.writer, *scene.others):
            writer.transport.abort()
        await until(lambda: not proxy.connections)
        assert proxy.context.buffer_budget.reserved == 0
        assert proxy.credential.waiting == set()
        assert not proxy.context.pool._waiting
