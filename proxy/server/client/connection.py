"""The client side of HTTP/1.1: exchanges one at a time, keep-alive, pipelining and deadlines.

A pipelined request waits as unparsed bytes until the preceding exchange on its connection has ended.
Responses therefore have the order of the requests, and a request after a malformed request is never parsed.

After the refusal of a request whose body was not read, the connection reads and discards the rest of the
body, within limits. The proxy therefore cannot parse the rest of a refused request's body as the next request
(RFC 9112 §9.3, §9.6).
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

PIPELINE_BYTES: Final = 64 * 1024  # bytes of pipelined requests to buffer before the connection stops reading
LINGER_BYTES: Final = 256 * 1024  # bytes of a refused body to discard before closing the connection
# bytes of a body to copy behind its head, because two buffers cost more than the copy
COPIED_BYTES: Final = 16 * 1024
# chunk lines of a body to parse per loop iteration, which take some milliseconds
CHUNK_LINES_PER_ITERATION: Final = 2000
REQUESTS_PER_ITERATION: Final = 16  # pipelined requests to begin before other connections are served

_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)  # SO_LINGER with a time of 0
_ORDERLY_CLOSE: Final = struct.pack("ii", 0, 0)  # SO_LINGER off


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
    """A client connection of an application."""

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

    _fields: RequestFields  # fields of the latest request; its head belongs to its exchange
    _gate: ReadGate
    _pace: Pace

    def __init__(
        self, context: Context, handler_for: HandlerFor, *, secure: bool, admission: Admission | None = None
    ) -> None:
        """Prepare the object for a client connection before the connection is established.

        The callable `handler_for` makes a handler for each request. `admission` is given if the connection
        was already counted against the limits.
        """
        # State of the connection
        self.made = False
        self._admission = admission
        self._context = context
        self._handler_for = handler_for
        self.scheme = b"https" if secure else b"http"
        self.client_ip = ""
        self._thumbprint: str | None = None  # thumbprint of the client's certificate, after it was read
        self.deadline = NEVER
        self._arrived = b""  # start of a request, kept until the loop iteration ends
        limits = context.limits
        self._reader = RequestReader(
            max_head_bytes=limits.max_header_bytes, max_fields=limits.max_header_count
        )
        self._serving = False
        self._keep_alive = _PERSIST
        self._queued_output = b""  # a response to send when the loop iteration ends
        # State of the request
        self._exchange: RequestHandler | None = None
        self._http10 = False
        self._discarded = 0  # bytes of the request that arrived after the response

    def __repr__(self) -> str:
        return f"<ClientConnection {self._pace.state.value if self.made else 'not connected'}>"

    @property
    def state(self) -> State:
        """State of the client connection, after it is established."""
        return self._pace.state

    @property
    def write_paused(self) -> bool:
        """True while the client reads the response more slowly than the proxy writes the response."""
        return self._pace.write_paused

    @property
    def continue_awaited(self) -> bool:
        """True while the client waits for 100 (Continue) before it sends the request body."""
        return self._pace.continue_awaited

    @property
    def thumbprint(self) -> str:
        """Thumbprint (`x5t#S256`) of the client's TLS certificate, or NO_CERTIFICATE.

        The thumbprint of the client certificate is the same for all requests of a connection, even if the TLS
        session was resumed.
        """
        if self._thumbprint is None:
            secured = self.transport.get_extra_info("ssl_object")
            shown = None if secured is None else secured.getpeercert(binary_form=True)
            self._thumbprint = NO_CERTIFICATE if shown is None else thumbprint_of(shown)
        return self._thumbprint

    # Calls of the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # cast, because uvloop's classes do not derive from asyncio.Transport
        self.transport = cast(asyncio.Transport, transport)
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
        """Abort the connection and end the current exchange, after a fault of the proxy."""
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
        """Treat the end of the client's stream as the end of the connection.

        A server cannot distinguish a client that closed the connection from a client that closed only its
        sending side. No HTTP library of an application closes only the sending side of its connection. A
        client that closes its sending side counts as gone, so the audit trail does not claim a response that
        nobody read.
        """
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

    # Parsing of heads

    def _serve_pending(self) -> None:
        """Begin pending requests one after another, until one is in progress or no complete head is left."""
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
        """Stop reading while more than PIPELINE_BYTES of pipelined requests are buffered."""
        if self._reader.waiting > PIPELINE_BYTES and self._pace.state is not _HEAD:
            self._gate.shut(PIPELINE_FULL)
        else:
            self._gate.open(PIPELINE_FULL)

    def _may_begin(self) -> bool:
        # Begin no request while earlier responses wait for the client, or they would pile up without limit.
        pace = self._pace
        may_begin = (pace.state is _IDLE or pace.state is _HEAD) and not pace.write_paused
        return may_begin and self._reader.waiting > 0

    def _begin_request(self) -> bool:
        """Process the first pending request of the client connection.

        Return False if the request must wait, or if the proxy refuses the request.
        """
        self.send_queued()
        if self.write_paused:
            return False  # the client has not read the previous response
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

    # Reading of bodies

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
            # discard what follows, because a reset on close would destroy the response
            self._reader.discard()
            self._exchange.refuse(
                Refusal("badRequest", f"The body is malformed: {error}.", "malformedRequest", close=True)
            )
        else:
            self._close_transport()

    def _discard(self, size: int, last: bool) -> None:
        """Discard `size` bytes of a body whose request already has its response.

        `last` is True if the passed bytes end the request body.
        """
        self._discarded += size
        if last and self._keep_alive is _PERSIST and not self._context.draining:
            self._pace.enter(_IDLE)
        elif last or self._discarded >= LINGER_BYTES:
            self._close_transport()

    def _check_reader(self, now: float) -> None:
        """Abort the connection if the client reads more slowly than the minimum rate of a body."""
        unsent = self.transport.get_write_buffer_size()
        if self._pace.reader_is_slow(now, unsent):
            if unsent:  # otherwise the client only failed to respond to close_notify
                self._context.counters.values[LIMIT_SLOW_READERS] += 1
            self.cut()

    def _cut_soon(self) -> None:
        # Called later, because this can run during a write on this or another connection.
        self._context.loop.call_soon(self.cut)

    def _check_body_rate(self, now: float) -> None:
        exchange = self._exchange
        if exchange is not None and self._pace.body_is_slow(now):
            self._context.counters.values[LIMIT_BODY_RATE] += 1
            refusal = Refusal("requestTimeout", "The body came too slowly.", "requestTimeout", close=True)
            exchange.refuse(refusal)

    # Calls of the exchange

    def wait_until(self, deadline: float) -> None:
        """Call the handler's `waited_too_long` at `deadline`, a time in monotonic seconds.

        While the client reads its response slowly, the deadline for slow readers replaces the handler's
        deadline.
        """
        self._pace.wait_until(deadline)

    def write(self, data: bytes) -> None:
        self.send_queued()
        self.transport.write(data)

    def write_response(self, head: bytes, body: bytes) -> None:
        """Write a complete response to the client."""
        self.send_queued()
        if len(body) < COPIED_BYTES:
            self._queued_output = head + body
            self._context.iteration.send_response(self)
        else:
            self.transport.writelines((head, body))

    def write_framed(self, before: bytes, chunk: bytes, behind: bytes) -> None:
        """Write a piece of the response body, with the framing bytes before and after the piece."""
        self.send_queued()
        if len(chunk) < COPIED_BYTES:
            self.transport.write(before + chunk + behind)
        else:
            self.transport.writelines((before, chunk, behind))

    def write_continue(self) -> None:
        """Send 100 (Continue) to a client that waits for 100 (Continue) (RFC 9110 §10.1.1)."""
        self.send_queued()
        self.transport.write(responses.CONTINUE)
        self.body_continued()

    def body_continued(self) -> None:
        """Record that the client received 100 (Continue), or sends the body without waiting for 100."""
        self._pace.body_continued()

    def persists(self) -> bool:
        """Return True if the connection can carry one more request after the current response.

        The response head announces the result to the client (RFC 9112 §9.6). After the first result False,
        the result stays False, because the head may contain `Connection: close`.
        """
        if self._keep_alive is _PERSIST and not self._may_persist():
            self._keep_alive = _LAST
        return self._keep_alive is _PERSIST

    def _may_persist(self) -> bool:
        if self._pace.state is _CLOSING or not self._fields.keep_alive or self._context.draining:
            return False
        # A body that has not arrived may never be complete. A small body with a declared length is read to
        # its end.
        remaining = self._reader.body_remaining
        return remaining == 0 or (0 < remaining <= LINGER_BYTES and not self._fields.expect_continue)

    def exchange_done(self, *, close: bool = False) -> None:
        """Record that the exchange has written its response completely."""
        self._exchange = None
        if close or not self.persists():
            self._keep_alive = _LAST
        if self._pace.state is _BODY:
            # Closing with unread bytes would reset the connection and destroy the response.
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
        """Close the connection after its output is sent; abort the connection if the client does not read."""
        self._pace.enter(_CLOSING)
        self.send_queued()
        self.transport.close()

    def _close_after_last_words(self) -> None:
        """Close only the sending side now; close the rest when the client closes, or after LINGER_SECONDS.

        If the proxy closed the connection at once while the client still sends, a reset would destroy the
        response (RFC 9112 §9.6).
        """
        self._keep_alive = _LAST
        self._reader.discard()
        self._gate.open(PIPELINE_FULL)
        if not self.transport.can_write_eof():
            self._close_transport()
            return
        self.transport.write_eof()
        self._begin_discarding()

    def abort(self, *, reset: bool = False) -> None:
        """Abort the connection, so that a client cannot mistake an unfinished response for a complete one.

        Pass `reset=True` if the client recognises the end of the response only by the end of the connection.
        """
        self.send_queued()  # output of the previous exchange
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
        """Choose if the connection ends with a TCP reset; the choice applies even if the process is killed.

        A response that ends with the connection must not look complete before its audit event is stored.
        """
        if not self.transport.is_closing():
            self._set_linger(_RESET_ON_CLOSE if reset else _ORDERLY_CLOSE)

    def _set_linger(self, option: bytes) -> None:
        peer: socket.socket = self.transport.get_extra_info("socket")
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, option)

    def pause_body(self) -> None:
        """Stop reading the request body until `resume_body` is called."""
        self._gate.shut(HANDLER)
        self._pace.body_paused()

    def resume_body(self) -> None:
        """Resume reading the request body.

        After this call, the proxy measures again how fast the request body arrives.
        """
        self._gate.open(HANDLER)
        self._pace.body_resumed()

    def count_unauthenticated(self, refusal: Refusal) -> None:
        self._context.counters.values[UNAUTHENTICATED] += 1
        logger.info("rejected a request without a valid token from %s: %s", self.client_ip, refusal.message)

    @property
    def busy(self) -> bool:
        return self._exchange is not None

    @property
    def record_bytes(self) -> int:
        """Approximate number of bytes that the records of the current exchange take in the spool."""
        return 0 if self._exchange is None else self._exchange.record_bytes

    def host_for(self, head: RequestHead) -> bytes:
        """Return the host by which the application reached the proxy.

        The returned host is the Host header field of the request. For an HTTP/1.0 request without Host, the
        function returns the local address of the connection.
        """
        if head.fields.host:
            return head.fields.host
        host, port, *_ = self.transport.get_extra_info("sockname")
        return str(Address(host, port)).encode()

    # Stop of the worker or of an application

    def stop(self, stops: Stops) -> None:
        """End the current exchange of the connection if an emergency stop applies to its application.

        The connection of an application with an emergency stop may stay open.
        """
        if self._exchange is not None:
            self._exchange.stop(stops)

    def drain(self) -> None:
        """Close the connection now if it is idle, or after its response, because the worker stops.

        A connection on which a request head is arriving is busy, not idle. The proxy serves the arriving
        request if the request's head is complete in time.
        """
        self.take_arrived()
        if self._pace.state is _IDLE or self._pace.state is _CLOSING:
            self._close_transport()
            self._pace.hurry()

    def cut(self) -> None:
        """Abort the connection, because the time to drain is over."""
        exchange = self._exchange
        self.abort(reset=exchange is not None and self._http10)
        if exchange is not None:
            exchange.client_left()

    def record_unfinished(self) -> None:
        """Write the audit records of the current exchange, because the worker ends now."""
        if self._exchange is not None:
            self._exchange.client_left()

    # Private helpers

    def _yield_to_others(self) -> None:
        """Stop reading until the next loop iteration, because uvloop reads as long as data arrives."""
        self._gate.shut(YIELD)
        self._context.loop.call_soon(self._gate.open, YIELD)

    def _shed(self, limit: int) -> None:
        """Refuse at once, without allocating memory, a client connection that exceeds a connection limit."""
        self._context.counters.values[limit] += 1
        self.transport.write(no_room_for_connection(self._context))
        self._close_after_last_words()

    def _refuse_head(self, error: MalformedHead) -> None:
        """Refuse the request with the malformed head, of which only a part may have arrived."""
        response = refuse_head(self._context, error, self._reader.head_so_far(), self.client_ip)
        if response is None:
            self.abort()
            return
        self.write(response)
        self._close_after_last_words()
