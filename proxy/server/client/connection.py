"""The client's side of HTTP/1.1: bytes in, exchanges out, one at a time; keep-alive, pipelining, deadlines.

Pipelined requests wait as bytes until the exchange before them has ended, so their responses can't change
order and a request behind a malformed one is never read. After a refusal whose body was not read, the rest
of the body is read and dropped within bounds, so that what follows can't be taken for a request (RFC 9112
§9.3, §9.6).
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections.abc import Callable
from typing import Final, cast

from proxy.config import Address
from proxy.ipc.counters import (
    BAD_REQUESTS,
    CONNECTIONS_ACCEPTED,
    CONNECTIONS_OPEN,
    LIMIT_BODY_RATE,
    LIMIT_HEAD_TIMEOUT,
    LIMIT_IDLE_TIMEOUT,
    LIMIT_SLOW_READERS,
    UNAUTHENTICATED,
)
from proxy.rules.stops import Stops
from proxy.server.callers.client_certificates import NO_CERTIFICATE, thumbprint_of
from proxy.server.client.admission import Admission, admit
from proxy.server.client.handler import RequestHandler
from proxy.server.client.pace import Pace
from proxy.server.client.read_gate import HANDLER, PIPELINE_FULL, YIELD, ReadGate
from proxy.server.client.refused_request import (
    no_room_for_connection,
    record_unfinished_head,
    refuse_head,
)
from proxy.server.client.state import KeepAlive, State
from proxy.server.context import Context, OpenConnection, plain_address
from proxy.server.errors import MalformedBody, MalformedHead, Refusal
from proxy.server.http1 import own_responses as responses
from proxy.server.http1.request_head import RequestFields, RequestHead
from proxy.server.http1.request_reader import RequestReader
from proxy.server.loop.deadlines import NEVER
from proxy.server.loop.iteration import WAITING_BYTES

logger = logging.getLogger(__name__)

PIPELINE_BYTES: Final = 64 * 1024  # of requests that wait for their turn, before reading stops
LINGER_BYTES: Final = 256 * 1024  # of a refused body that are read and dropped before the connection is cut
COPIED_BYTES: Final = 16 * 1024  # of a body behind its head: two buffers cost more than copying these
CHUNK_LINES_PER_ITERATION: Final = 2000  # of a body: some milliseconds
REQUESTS_PER_ITERATION: Final = 16  # pipelined ones begun before the other connections are served

_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)  # SO_LINGER with no time
_ORDERLY_CLOSE: Final = struct.pack("ii", 0, 0)  # no SO_LINGER


_PERSIST: Final = KeepAlive.PERSIST
_LAST: Final = KeepAlive.LAST
_IDLE: Final = State.IDLE
_HEAD: Final = State.HEAD
_BODY: Final = State.BODY
_WAITING: Final = State.WAITING
_DISCARD: Final = State.DISCARD
_CLOSING: Final = State.CLOSING

HandlerFor = Callable[[Context, "ClientConnection", RequestHead], RequestHandler]


class ClientConnection(OpenConnection):
    """One connection of an application."""

    __slots__ = (
        "_admission",
        "_context",
        "_discarded",
        "_exchange",
        "_fields",
        "_gate",
        "_handler_for",
        "_http10",
        "_keep_alive",
        "_pace",
        "_reader",
        "_serving",
        "_thumbprint",
        "client_ip",
        "made",
        "scheme",
    )

    _fields: RequestFields  # the latest request's; its head goes with its exchange
    _gate: ReadGate
    _pace: Pace

    def __init__(
        self, context: Context, handler_for: HandlerFor, *, secure: bool, admission: Admission | None = None
    ) -> None:
        """`handler_for` makes the handler of each request. `admission` is given if the connection was counted
        before it is made."""
        # Per connection
        self.made = False
        self._admission = admission
        self._context = context
        self._handler_for = handler_for
        self.scheme = b"https" if secure else b"http"
        self.client_ip = ""
        self._thumbprint: str | None = None  # thumbprint of the client's certificate, once it was read
        self.deadline = NEVER
        self._arrived = b""  # the beginning of a request, until the loop iteration ends
        limits = context.limits
        self._reader = RequestReader(
            max_head_bytes=limits.max_header_bytes, max_fields=limits.max_header_count
        )
        self._serving = False
        self._keep_alive = _PERSIST
        self._queued_output = b""  # a response that leaves when the loop iteration ends
        # Per request
        self._exchange: RequestHandler | None = None
        self._http10 = False
        self._discarded = 0  # bytes that came behind the response

    def __repr__(self) -> str:
        return f"<ClientConnection {self._pace.state.value if self.made else 'not connected'}>"

    @property
    def state(self) -> State:
        """The state of the connection, once it is made."""
        return self._pace.state

    @property
    def write_paused(self) -> bool:
        """Return True while the client takes its response more slowly than it comes."""
        return self._pace.write_paused

    @property
    def continue_awaited(self) -> bool:
        """Return True while the client holds its body back until it is asked for it."""
        return self._pace.continue_awaited

    @property
    def thumbprint(self) -> str:
        """`x5t#S256` of the client's TLS certificate, or NO_CERTIFICATE. It is the same for all requests of a
        connection, whose session may be a resumed one."""
        if self._thumbprint is None:
            secured = self.transport.get_extra_info("ssl_object")
            shown = None if secured is None else secured.getpeercert(binary_form=True)
            self._thumbprint = NO_CERTIFICATE if shown is None else thumbprint_of(shown)
        return self._thumbprint

    # From the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's own classes don't say that they are
        self._gate = ReadGate(self.transport)
        self._pace = Pace(self, self._gate, self._context.deadlines, self._context.limits)
        peer = self.transport.get_extra_info("peername")
        address = str(peer[0]) if peer else ""
        self.client_ip = plain_address(address)
        self.made = True
        context = self._context
        admission = self._admission
        if admission is None:
            admission = self._admission = admit(context, address)
        context.deadlines.add(self)
        context.connections.add(self)
        context.counters.values[CONNECTIONS_ACCEPTED] += 1
        context.counters.values[CONNECTIONS_OPEN] = len(context.connections)
        if admission.refused_by is not None:
            self._shed(admission.refused_by)

    def data_received(self, data: bytes) -> None:
        waits = self._exchange is None and not self._arrived and not self._reader.waiting
        if waits and len(data) < WAITING_BYTES:
            self._arrived = data
            self._context.iteration.request_arrived(self)
        else:
            arrived, self._arrived = self._arrived, b""
            self._take_safely(arrived + data if arrived else data)

    def _take_safely(self, data: bytes) -> None:
        try:
            self._take(data)
        except Exception as error:
            self._context.iteration.report(error)
            self.fail()

    def fail(self) -> None:
        """A fault of the proxy ends the connection, and the exchange under way."""
        exchange = self._exchange
        self.abort(reset=exchange is not None and self._http10)
        if exchange is not None:
            exchange.fail()

    def _take(self, data: bytes) -> None:
        state = self._pace.state
        if state is _IDLE or state is _HEAD or state is _WAITING:
            self._reader.feed(data)
        elif state is not _CLOSING:
            self._read_body(data)
        self._serve_pending()

    def eof_received(self) -> bool:
        """A client that has closed can't be known from one that has only closed its sending side, which no
        application's library does: whoever waits for a response is taken to have left, so that the audit
        trail doesn't claim a response that nobody read."""
        self.take_arrived()
        self.send_queued()
        if self._exchange is not None:
            self.cut()
        return False

    def connection_lost(self, error: Exception | None) -> None:
        context = self._context
        context.deadlines.discard(self)
        context.connections.discard(self)
        context.buffer_budget.forget(self)
        if self._admission is not None:
            self._admission.end(context)
        context.counters.values[CONNECTIONS_OPEN] = len(context.connections)
        if self._pace.state is _HEAD:
            record_unfinished_head(self._context, self._reader.head_so_far(), self.client_ip)
        self._pace.enter(_CLOSING)
        self._pace.stop()
        self._arrived = b""
        self._queued_output = b""
        exchange = self._exchange
        if exchange is not None:
            self._exchange = None
            exchange.client_left()

    def pause_writing(self) -> None:
        context = self._context
        unsent = self.transport.get_write_buffer_size()
        self._pace.response_stalled(unsent)
        cuts = context.buffer_budget.slow(self, unsent, self._cut_soon)
        context.counters.values[LIMIT_SLOW_READERS] += cuts
        if self._exchange is not None:
            self._exchange.pause_response()

    def resume_writing(self) -> None:
        self._context.buffer_budget.forget(self)
        self._pace.response_taken()
        if self._exchange is not None:
            self._exchange.resume_response()
        elif self._pace.state is _IDLE:
            self._serve_pending()

    def _on_due(self, now: float) -> None:
        pace = self._pace
        if pace.write_paused or self.transport.is_closing():
            self._check_reader(now)
        elif pace.state is _IDLE:
            self._context.counters.values[LIMIT_IDLE_TIMEOUT] += 1
            self._close_transport()
        elif pace.state is _HEAD:
            self._context.counters.values[LIMIT_HEAD_TIMEOUT] += 1
            fault = MalformedHead("the request head took too long", "requestTimeout")
            self._refuse_head(fault)
        elif pace.body_is_due():
            self._check_body_rate(now)
        elif self._exchange is not None:
            pace.wait_until(NEVER)
            self._exchange.waited_too_long()
        else:
            self._close_transport()

    # Reading heads

    def _serve_pending(self) -> None:
        """Begins one request after the other until one is under way or no whole head is left."""
        if self._serving or not self._reader.waiting:
            return
        self._serving = True
        left = REQUESTS_PER_ITERATION
        while self._may_begin() and self._begin_request():
            left -= 1
            if not left and self._may_begin():
                self._context.loop.call_soon(self._take_safely, b"")
                break
        self._serving = False
        if self._reader.waiting > PIPELINE_BYTES or self._gate.is_shut_by(PIPELINE_FULL):
            self._bound_pipeline()

    def _bound_pipeline(self) -> None:
        """Stop reading while as many bytes of pipelined requests wait as may."""
        if self._reader.waiting > PIPELINE_BYTES and self._pace.state is not _HEAD:
            self._gate.shut(PIPELINE_FULL)
        else:
            self._gate.open(PIPELINE_FULL)

    def _may_begin(self) -> bool:
        # Not while the responses before wait for the client: they would pile up without an end.
        pace = self._pace
        may_begin = (pace.state is _IDLE or pace.state is _HEAD) and not pace.write_paused
        return may_begin and self._reader.waiting > 0

    def _begin_request(self) -> bool:
        """Begins the first pending request. False where it has to wait, or is refused."""
        self.send_queued()
        if self.write_paused:
            return False  # the client doesn't take the response before
        reader = self._reader
        try:
            head = reader.next_head()
        except MalformedHead as error:
            self._refuse_head(error)
            return False
        if head is not None:
            self._start(head)
        elif reader.waiting and self._pace.state is not _HEAD:
            self._pace.enter(_HEAD)
        return head is not None

    def _start(self, head: RequestHead) -> None:
        fields = self._fields = head.fields
        self._http10 = head.http10
        exchange = self._exchange = self._handler_for(self._context, self, head)
        pace = self._pace
        if fields.length:
            pace.continue_awaited = fields.expect_continue
            pace.enter(_BODY)
        else:
            pace.enter(_WAITING)
        exchange.begin()
        if self._reader.waiting and (pace.state is _BODY or pace.state is _DISCARD):
            self._read_body(self._reader.take_waiting())

    # Reading bodies

    def _read_body(self, data: bytes) -> None:
        self._pace.body_arrived(len(data))
        reader = self._reader
        try:
            chunk, last = reader.read_body(data)
        except MalformedBody as error:
            self._body_malformed(error)
            return
        if reader.chunk_lines_exceed(CHUNK_LINES_PER_ITERATION):
            self._yield_to_others()
        exchange = self._exchange
        if exchange is not None:
            if last:
                self._pace.enter(_WAITING)
            if chunk or last:
                exchange.request_body(chunk, last)
        else:
            self._discard(len(data), last)

    def _body_malformed(self, error: MalformedBody) -> None:
        self._keep_alive = _LAST
        self._context.counters.values[BAD_REQUESTS] += 1
        if self._exchange is not None:
            self._reader.discard()  # drop what follows: a reset would take the response along
            self._exchange.refuse(
                Refusal("badRequest", f"The body is malformed: {error}.", "malformedRequest", close=True)
            )
        else:
            self._close_transport()

    def _discard(self, size: int, last: bool) -> None:
        """Drop `size` bytes of a body whose request has its response. `last` ends the body."""
        self._discarded += size
        if last and self._keep_alive is _PERSIST and not self._context.draining:
            self._pace.enter(_IDLE)
        elif last or self._discarded >= LINGER_BYTES:
            self._close_transport()

    def _check_reader(self, now: float) -> None:
        """Whether the client takes what was written, at the rate that its own bodies must have."""
        unsent = self.transport.get_write_buffer_size()
        if self._pace.reader_is_slow(now, unsent):
            if unsent:  # else it left TLS's close_notify without a response
                self._context.counters.values[LIMIT_SLOW_READERS] += 1
            self.cut()

    def _cut_soon(self) -> None:
        # Not at once: this may be asked for amid a write, of this or another connection.
        self._context.loop.call_soon(self.cut)

    def _check_body_rate(self, now: float) -> None:
        exchange = self._exchange
        if exchange is not None and self._pace.body_is_slow(now):
            self._context.counters.values[LIMIT_BODY_RATE] += 1
            refusal = Refusal("requestTimeout", "The body came too slowly.", "requestTimeout", close=True)
            exchange.refuse(refusal)

    # From the exchange

    def wait_until(self, deadline: float) -> None:
        """Call the handler's `waited_too_long` at `deadline`, monotonic seconds. The time that the client has
        to take its response goes first."""
        self._pace.wait_until(deadline)

    def write(self, data: bytes) -> None:
        self.send_queued()
        self.transport.write(data)

    def write_response(self, head: bytes, body: bytes) -> None:
        """A whole response."""
        self.send_queued()
        if len(body) < COPIED_BYTES:
            self._queued_output = head + body
            self._context.iteration.send_response(self)
        else:
            self.transport.writelines((head, body))

    def write_framed(self, before: bytes, chunk: bytes, behind: bytes) -> None:
        """A piece of a response's body between what frames it."""
        self.send_queued()
        if len(chunk) < COPIED_BYTES:
            self.transport.write(before + chunk + behind)
        else:
            self.transport.writelines((before, chunk, behind))

    def write_continue(self) -> None:
        """Asks for a body that the client holds back (RFC 9110 §10.1.1)."""
        self.send_queued()
        self.transport.write(responses.CONTINUE)
        self.body_continued()

    def body_continued(self) -> None:
        """The client was asked for the body, or sends it unasked."""
        self._pace.body_continued()

    def persists(self) -> bool:
        """Whether the connection can carry another request after this response, whose head says so: what it
        said stays true, whatever comes of the body meanwhile (RFC 9112 §9.6)."""
        if self._keep_alive is _PERSIST and not self._may_persist():
            self._keep_alive = _LAST
        return self._keep_alive is _PERSIST

    def _may_persist(self) -> bool:
        if self._pace.state is _CLOSING or not self._fields.keep_alive or self._context.draining:
            return False
        # A body that isn't here yet may never come whole; a small sized one is read to its end.
        remaining = self._reader.body_remaining
        return remaining == 0 or (0 < remaining <= LINGER_BYTES and not self._fields.expect_continue)

    def exchange_done(self, *, close: bool = False) -> None:
        """The exchange has written its whole response."""
        self._exchange = None
        if close or not self.persists():
            self._keep_alive = _LAST
        if self._pace.state is _BODY:
            # To close on unread bytes would reset the connection and take the response along.
            self._begin_discarding()
        elif self._keep_alive is _LAST:
            self._close_transport()
            return
        else:
            self._pace.enter(_IDLE)
        self._gate.open(HANDLER)
        self._serve_pending()

    def _begin_discarding(self) -> None:
        self._discarded = 0
        self._pace.enter(_DISCARD)

    def _close_transport(self) -> None:
        """Closes when what was written has gone out; a client that takes none of it is cut in the end."""
        self._pace.enter(_CLOSING)
        self.send_queued()
        self.transport.close()

    def _close_after_last_words(self) -> None:
        """Closes the sending side now, the whole when the client does or after a while: a reset on account
        of what it still sends would take our response along (RFC 9112 §9.6)."""
        self._keep_alive = _LAST
        self._reader.discard()
        self._gate.open(PIPELINE_FULL)
        if not self.transport.can_write_eof():
            self._close_transport()
            return
        self.transport.write_eof()
        self._begin_discarding()

    def abort(self, *, reset: bool = False) -> None:
        """Cuts the connection, so that an unfinished response can't be taken for a whole one; with a `reset`
        where the response has no other end than the connection's."""
        self.send_queued()  # of the exchange before
        self._arrived = b""
        self._exchange = None
        unfinished = self._pace.state is _HEAD
        self._pace.enter(_CLOSING)
        if reset:
            self._set_linger(_RESET_ON_CLOSE)
        self.transport.abort()
        if unfinished:
            record_unfinished_head(self._context, self._reader.head_so_far(), self.client_ip)

    def reset_on_loss(self, reset: bool) -> None:
        """Make every close of the connection a reset, a killed process's too, or an orderly close again.

        A response that only the connection's end completes must not look whole before its event is stored."""
        if not self.transport.is_closing():
            self._set_linger(_RESET_ON_CLOSE if reset else _ORDERLY_CLOSE)

    def _set_linger(self, option: bytes) -> None:
        peer: socket.socket = self.transport.get_extra_info("socket")
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, option)

    def pause_body(self) -> None:
        """Stop reading the body until `resume_body`."""
        self._gate.shut(HANDLER)
        self._pace.body_paused()

    def resume_body(self) -> None:
        """Read the body again. Its rate counts from now on."""
        self._gate.open(HANDLER)
        self._pace.body_resumed()

    def count_unauthenticated(self, refusal: Refusal) -> None:
        self._context.counters.values[UNAUTHENTICATED] += 1
        logger.info("request without a valid token from %s: %s", self.client_ip, refusal.message)

    @property
    def busy(self) -> bool:
        return self._exchange is not None

    @property
    def record_bytes(self) -> int:
        """About what the records of the exchange under way will take of the spool."""
        return 0 if self._exchange is None else self._exchange.record_bytes

    def host_for(self, head: RequestHead) -> bytes:
        """Where the application reached us: as it says itself, or else, before HTTP/1.1, this end."""
        if head.fields.host:
            return head.fields.host
        host, port, *_ = self.transport.get_extra_info("sockname")
        return str(Address(host, port)).encode()

    # Stopping

    def stop(self, stops: Stops) -> None:
        """What is under way for an application that is stopped ends now; the connection may stay."""
        if self._exchange is not None:
            self._exchange.stop(stops)

    def drain(self) -> None:
        """The worker stops: an idle connection closes now, a busy one after its response. A connection on
        which a head is arriving is busy: its request is served if the head is complete in time."""
        self.take_arrived()
        if self._pace.state is _IDLE or self._pace.state is _CLOSING:
            self._close_transport()
            self._pace.hurry()

    def cut(self) -> None:
        """The drain's time is over."""
        exchange = self._exchange
        self.abort(reset=exchange is not None and self._http10)
        if exchange is not None:
            exchange.client_left()

    def record_unfinished(self) -> None:
        """The worker ends now."""
        if self._exchange is not None:
            self._exchange.client_left()

    # Own means

    def _yield_to_others(self) -> None:
        """Read no further in this loop iteration: uvloop reads a socket again and again while it is ready."""
        self._gate.shut(YIELD)
        self._context.loop.call_soon(self._gate.open, YIELD)

    def _shed(self, limit: int) -> None:
        """More connections than this worker may hold: say so early, at no cost in memory."""
        self._context.counters.values[limit] += 1
        self.transport.write(no_room_for_connection(self._context))
        self._close_after_last_words()

    def _refuse_head(self, error: MalformedHead) -> None:
        """Refuse the request whose head is read, as far as it came."""
        response = refuse_head(self._context, error, self._reader.head_so_far(), self.client_ip)
        if response is None:
            self.abort()
            return
        self.write(response)
        self._close_after_last_words()
