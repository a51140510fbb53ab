"""Tests of a client connection's states: each event leads to a next state, a response and an audit event.

A situation of these tests is a state into which the test brings a client connection on real sockets. Each
test applies one event to a client connection that is in one of the states.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Final

import pytest

from proxy.server.client.connection import ClientConnection
from proxy.server.client.state import State
from proxy.server.loop.deadlines import NEVER
from tests.bytes.data_path import DataPath, UpstreamPeer, data_path, ok, read_reply, until

RULES: Final = """
version: 1
name: states
default: allow
rules:
  - id: blocked
    match: {path: ["/v1.0/blocked"]}
    verdict: block
"""
LONG: Final = 1_000_000  # bytes of a response that a client does not read at once
FOREVER: Final = 1e9  # seconds


class Situation(Enum):
    NEW = State.IDLE, "the client has sent nothing"
    IDLE = State.IDLE, "a response has ended"
    UNREAD = State.IDLE, "a response has ended, which the client does not take"
    HEAD = State.HEAD, "a part of a head is here"
    BODY = State.BODY, "the handler passes a body on"
    CONTINUE = State.BODY, "the client waits for 100 Continue, which is the upstream's to say"
    WAITING = State.WAITING, "the request is whole, and the upstream has not responded"
    DISCARD = State.DISCARD, "the response came before the body, which is dropped"
    REFUSED = State.DISCARD, "a head was refused; what follows is dropped"
    CLOSING = State.CLOSING, "the last response is written, and the client does not take it"

    @property
    def state(self) -> State:
        return self.value[0]


class Event(Enum):
    NEXT = "the next bytes come"
    LAST = "the last bytes of the request come, and another request behind them"
    MALFORMED = "bytes come that break the rules"
    END = "the client closes its sending side"
    LOSS = "the connection is lost"
    DEADLINE = "the deadline of the state passes"
    DRAIN = "the worker stops"
    FINISH = "the handler finishes"
    ABORT = "the connection is cut"
    FAULT = "the proxy has a fault"
    STALL = "the client takes nothing more"
    TAKEN = "the client takes nothing for a while, and then all"


@dataclass(frozen=True)
class Then:
    """Expected outcome of an event: the connection has the state `state`, or is closed if `state` is None.

    `received` lists the statuses of the responses that the client received after the test's event. `record`
    is the status and reason of the audit event that the proxy wrote.
    """

    state: State | None
    received: tuple[int, ...] = ()
    record: tuple[int, str] | None = None


S = Situation
E = Event
GONE: Final = Then(None)
_LEFT: Final = Then(None, record=(499, "clientAborted"))
_IDLE: Final = Then(State.IDLE)
_HEAD: Final = Then(State.HEAD)
_BODY: Final = Then(State.BODY)
_WAITING: Final = Then(State.WAITING)
_DISCARD: Final = Then(State.DISCARD)
_CLOSING: Final = Then(State.CLOSING)
_FAULT: Final = Then(None, record=(500, "internalError"))

_OUTCOMES_AT_REST: Final = {
    E.NEXT: _HEAD,
    E.LAST: _WAITING,
    E.MALFORMED: Then(State.DISCARD, (400,), (400, "malformedRequest")),
    E.END: GONE,
    E.LOSS: GONE,
    E.DEADLINE: GONE,
    E.DRAIN: GONE,
    E.ABORT: GONE,
    E.FAULT: GONE,
    E.STALL: _IDLE,
    E.TAKEN: _IDLE,
}

OUTCOMES: Final[dict[Situation, dict[Event, Then]]] = {
    S.NEW: _OUTCOMES_AT_REST,
    S.IDLE: _OUTCOMES_AT_REST,
    S.UNREAD: {
        E.NEXT: _IDLE,  # no request begins while the client does not read its response
        E.LAST: _IDLE,
        E.MALFORMED: _IDLE,
        E.LOSS: GONE,
        E.DEADLINE: GONE,
        E.DRAIN: _CLOSING,
        E.ABORT: GONE,
        E.FAULT: GONE,
    },
    S.HEAD: {
        E.NEXT: _HEAD,
        E.LAST: _WAITING,
        E.MALFORMED: Then(State.DISCARD, (400,), (400, "malformedRequest")),
        E.END: _LEFT,
        E.LOSS: _LEFT,
        E.DEADLINE: Then(State.DISCARD, (408,), (408, "requestTimeout")),
        E.DRAIN: _HEAD,
        E.ABORT: _LEFT,
        E.FAULT: _LEFT,
        E.STALL: _HEAD,
        E.TAKEN: _HEAD,
    },
    S.BODY: {
        E.NEXT: _BODY,
        E.LAST: _WAITING,
        E.MALFORMED: Then(None, (400,), (400, "malformedRequest")),
        E.END: _LEFT,
        E.LOSS: _LEFT,
        E.DEADLINE: Then(State.DISCARD, (408,), (408, "requestTimeout")),
        E.DRAIN: _BODY,
        E.FINISH: Then(State.DISCARD, (200,), (200, "default")),
        E.ABORT: _LEFT,
        E.FAULT: _FAULT,
        E.STALL: _BODY,
        E.TAKEN: _BODY,
    },
    S.CONTINUE: {
        E.NEXT: _BODY,
        E.LAST: _WAITING,
        E.MALFORMED: Then(None, (400,), (400, "malformedRequest")),
        E.END: _LEFT,
        E.LOSS: _LEFT,
        E.DEADLINE: _BODY,  # only the upstream's own deadline applies
        E.DRAIN: _BODY,
        E.FINISH: Then(State.DISCARD, (200,), (200, "default")),
        E.ABORT: _LEFT,
        E.FAULT: _FAULT,
        E.STALL: _BODY,
        E.TAKEN: _BODY,
    },
    S.WAITING: {
        E.NEXT: _WAITING,
        E.LAST: _WAITING,
        E.MALFORMED: _WAITING,  # a later request waits and is not parsed
        E.END: _LEFT,
        E.LOSS: _LEFT,
        E.DEADLINE: _WAITING,  # only the upstream's own deadline applies
        E.DRAIN: _WAITING,
        E.FINISH: Then(State.IDLE, (200,), (200, "default")),
        E.ABORT: _LEFT,
        E.FAULT: _FAULT,
        E.STALL: _WAITING,
        E.TAKEN: _WAITING,
    },
    S.DISCARD: {
        E.NEXT: _DISCARD,
        E.LAST: _WAITING,
        E.END: GONE,
        E.LOSS: GONE,
        E.DEADLINE: GONE,
        E.DRAIN: _DISCARD,
        E.ABORT: GONE,
        E.FAULT: GONE,
        E.STALL: _DISCARD,
        E.TAKEN: _DISCARD,
    },
    S.REFUSED: {
        E.NEXT: _DISCARD,
        E.LAST: _DISCARD,
        E.MALFORMED: _DISCARD,
        E.END: GONE,
        E.LOSS: GONE,
        E.DEADLINE: GONE,
        E.DRAIN: _DISCARD,
        E.ABORT: GONE,
        E.FAULT: GONE,
        E.STALL: _DISCARD,
        E.TAKEN: _DISCARD,
    },
    S.CLOSING: {
        E.NEXT: _CLOSING,
        E.LAST: _CLOSING,
        E.MALFORMED: _CLOSING,
        E.LOSS: GONE,
        E.DEADLINE: GONE,
        E.DRAIN: _CLOSING,
        E.ABORT: GONE,
        E.FAULT: GONE,
    },
}
CASES: Final = [(situation, event) for situation, row in OUTCOMES.items() for event in row]


@dataclass
class Scene:
    """One client connection in a test: the client's end, the proxy's end, and the upstream connections."""

    proxy: DataPath
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    connection: ClientConnection
    asked: asyncio.Queue[UpstreamPeer]  # upstream connections that received a request
    peer: UpstreamPeer | None = None
    bytes_of: dict[Event, bytes] = field(default_factory=dict)
    recorded: int = 0  # number of records before the event

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def until_state(self, state: State) -> None:
        await until(lambda: self.connection.state is state)

    async def round_trip(self) -> None:
        """Make one more request, and return after the proxy has processed all earlier bytes."""
        no_token = b"GET /v1.0/nobody HTTP/1.1\r\nHost: x\r\n\r\n"
        assert (await self.proxy.ask(no_token)).status == 401

    def can_send(self, *, piece: bytes, last: bytes, malformed: bytes) -> None:
        """Set the bytes that each event of the test sends to the proxy."""
        self.bytes_of = {
            E.NEXT: piece,
            E.LAST: last + self.proxy.request("/v1.0/behind"),
            E.MALFORMED: malformed,
        }


async def is_new(scene: Scene) -> None:
    request = scene.proxy.request("/v1.0/next")
    malformed = request.replace(b"Host:", b"Host :")
    scene.can_send(piece=request[:20], last=request, malformed=malformed)


async def is_idle(scene: Scene) -> None:
    await is_new(scene)
    scene.send(scene.proxy.request("/v1.0/before"))
    (await scene.asked.get()).send(ok(b"{}"))
    assert (await read_reply(scene.reader)).status == 200


async def is_unread(scene: Scene) -> None:
    await is_new(scene)
    await does_not_take(scene, b"")
    scene.connection.pause_writing()  # a transport does the same with this much output


async def is_closing(scene: Scene) -> None:
    await is_new(scene)
    await does_not_take(scene, b"Connection: close\r\n")


async def does_not_take(scene: Scene, fields: bytes) -> None:
    """Make the proxy write a response that the client does not read, until small socket buffers are full."""
    scene.writer.transport.pause_reading()  # type: ignore[attr-defined]
    transport = scene.connection.transport
    transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
    transport.set_write_buffer_limits(high=2 * LONG)
    scene.send(scene.proxy.request("/v1.0/long", fields=fields))
    (await scene.asked.get()).send(ok(b"x" * LONG))
    await until(lambda: scene.connection.state in (State.IDLE, State.CLOSING))


async def has_a_head(scene: Scene) -> None:
    request = scene.proxy.request("/v1.0/next")
    scene.send(request[:-2])
    await scene.until_state(State.HEAD)
    scene.can_send(piece=b"A: b", last=b"A: b\r\n\r\n", malformed=b"A b\r\n\r\n")


async def has_a_body(scene: Scene) -> None:
    scene.can_send(piece=b"1\r\ny\r\n", last=b"0\r\n\r\n", malformed=b"y\r\n")
    scene.send(scene.proxy.request("/v1.0/next", "POST", b"Transfer-Encoding: chunked\r\n", b"1\r\nx\r\n"))
    scene.peer = await scene.asked.get()


async def waits_for_100_continue(scene: Scene) -> None:
    scene.can_send(piece=b"1\r\ny\r\n", last=b"0\r\n\r\n", malformed=b"y\r\n")
    expecting = b"Expect: 100-continue\r\nTransfer-Encoding: chunked\r\n"
    scene.send(scene.proxy.request("/v1.0/next", "POST", expecting))
    scene.peer = await scene.asked.get()
    assert scene.connection.continue_awaited


async def waits(scene: Scene) -> None:
    await is_new(scene)
    scene.send(scene.proxy.request("/v1.0/next"))
    scene.peer = await scene.asked.get()


async def discards(scene: Scene) -> None:
    scene.can_send(piece=b"123", last=b"1234567890", malformed=b"")
    scene.send(scene.proxy.request("/v1.0/blocked", "POST", b"Content-Length: 10\r\n"))
    assert (await read_reply(scene.reader)).status == 403


async def is_refused(scene: Scene) -> None:
    await is_new(scene)
    scene.send(scene.bytes_of[E.MALFORMED])
    assert (await read_reply(scene.reader)).status == 400


BRING: Final[dict[Situation, Callable[[Scene], Awaitable[None]]]] = {
    S.NEW: is_new,
    S.IDLE: is_idle,
    S.UNREAD: is_unread,
    S.HEAD: has_a_head,
    S.BODY: has_a_body,
    S.CONTINUE: waits_for_100_continue,
    S.WAITING: waits,
    S.DISCARD: discards,
    S.REFUSED: is_refused,
    S.CLOSING: is_closing,
}


@asynccontextmanager
async def scene_in(situation: Situation, directory: Path) -> AsyncIterator[Scene]:
    asked: asyncio.Queue[UpstreamPeer] = asyncio.Queue()

    async def silent(peer: UpstreamPeer) -> None:
        while True:
            await peer.head()
            asked.put_nowait(peer)

    async with data_path(silent, directory, RULES) as proxy:
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.setblocking(False)
        await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", proxy.port))
        reader, writer = await asyncio.open_connection(sock=client)
        await until(lambda: proxy.connections)
        (connection,) = proxy.connections
        scene = Scene(proxy, reader, writer, connection, asked)
        try:
            await BRING[situation](scene)
            await scene.until_state(situation.state)
            scene.recorded = len(proxy.events())
            yield scene
        finally:
            writer.transport.abort()


async def happen(event: Event, scene: Scene) -> None:
    connection = scene.connection
    if event in scene.bytes_of:
        scene.send(scene.bytes_of[event])
    elif event is E.END:
        scene.writer.write_eof()
    elif event is E.LOSS:
        scene.writer.transport.abort()
    elif event is E.DEADLINE:
        if connection.deadline < NEVER:
            connection.on_deadline(FOREVER)
    elif event is E.DRAIN:
        scene.proxy.context.draining = True
        connection.drain()
    elif event is E.FINISH:
        assert scene.peer is not None
        scene.peer.send(ok(b"{}"))
        await until(lambda: not connection.busy)
    elif event is E.ABORT:
        connection.cut()
    elif event is E.FAULT:
        connection.fail()
    else:
        connection.pause_writing()
        if event is E.TAKEN:
            connection.resume_writing()


async def statuses(scene: Scene, count: int) -> tuple[int, ...]:
    return tuple([(await read_reply(scene.reader)).status for _ in range(count)])


def test_each_state_is_a_situation_of_the_table() -> None:
    assert {situation.state for situation in OUTCOMES} == set(State)
    assert list(OUTCOMES) == list(Situation)


@pytest.mark.parametrize(
    ("situation", "event"), CASES, ids=[f"{situation.name}-{event.name}" for situation, event in CASES]
)
async def test_an_event_in_a_state(tmp_path: Path, situation: Situation, event: Event) -> None:
    expected = OUTCOMES[situation][event]
    async with scene_in(situation, tmp_path) as scene:
        await happen(event, scene)
        await scene.round_trip()
        if expected.state is None:
            await until(lambda: scene.connection not in scene.proxy.connections)
        else:
            await until(lambda: scene.connection.state is expected.state)
        assert await statuses(scene, len(expected.received)) == expected.received
        records = [
            (each["status"], each["reason"])
            for each in scene.proxy.events()[scene.recorded :]
            if each["path"] != "/v1.0/nobody"
        ]
        assert records == ([] if expected.record is None else [expected.record])
