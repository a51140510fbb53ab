"""Connections to the upstream and their pool: choose without I/O, then connect, send, receive.

A connection serves one exchange at a time and goes back to the pool only after a whole request and a whole
answer with nothing left over; after an abort, a time-out, an early answer or unsolicited bytes it is closed
(RFC 9112 §9).
"""

from __future__ import annotations

import asyncio
import os
import select
import socket
import ssl
from collections import deque
from dataclasses import dataclass
from typing import Final, cast

from aiohappyeyeballs import start_connection

from proxy.ipc.counters import LIMIT_ANSWER_HEAD_BYTES, UPSTREAM_OPENED, UPSTREAM_REUSED, Counters
from proxy.server.http1.response_head import AnswerHead
from proxy.server.http1.response_reader import BrokenResponse, ResponseReader, ResponseState
from proxy.server.loop.deadlines import NEVER, Deadlines
from proxy.server.loop.iteration import WAITING_BYTES, BatchedConnection, Turn

MAX_AGE_SECONDS: Final = 300.0  # a name that leads elsewhere now is followed by then, however busy we are
NEXT_ADDRESS_SECONDS: Final = 0.25  # RFC 8305 §5: one address that is silent doesn't hold up the others
STALE_SECONDS: Final = (
    5.0  # an idle connection older than this is not risked for a request that can't be repeated
)

_READING_BODY: Final = ResponseState.BODY


class UpstreamLost(Exception):
    """The upstream failed. `code` is a key of `errors.STATUS_OF`; `unanswered` says that not one byte came
    back, `unsent` that none of the request was written."""

    def __init__(self, code: str, message: str, *, unanswered: bool = False, unsent: bool = False) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.unanswered = unanswered
        self.unsent = unsent


@dataclass(frozen=True, slots=True)
class UpstreamSettings:
    """Where the upstream is and how long we wait for it (seconds)."""

    host: str
    port: int
    tls: ssl.SSLContext | None
    connect_timeout: float
    response_timeout: float
    idle_timeout: float
    max_connections: int
    max_waiting: int  # requests for which no connection is free and none may be opened
    max_header_bytes: int


class UpstreamUser:
    """One request that needs the upstream, as the pool and its connections name it."""

    __slots__ = ("repeatable", "to_head_request")

    repeatable: bool  # an idle connection may be used even if the upstream may have closed it
    to_head_request: bool  # the response has no body, whatever its head says

    def upstream_ready(self, upstream: UpstreamConnection) -> None:
        """Take a connection that is the user's own now."""
        raise NotImplementedError

    def upstream_lost(self, error: UpstreamLost) -> None:
        """End or repeat the request: the upstream failed, with or without a connection."""
        raise NotImplementedError

    def upstream_crowded(self) -> None:
        """End the request: too many users wait for a connection."""
        raise NotImplementedError

    def upstream_full(self) -> None:
        """Stop sending: the upstream takes the body more slowly than it comes."""
        raise NotImplementedError

    def upstream_drained(self) -> None:
        """Go on to send, after a pause."""
        raise NotImplementedError

    def answer_informational(self, head: AnswerHead) -> None:
        """Receive a 1xx response of the upstream."""
        raise NotImplementedError

    def answer_started(self, answer: AnswerHead, chunk: bytes, last: bool) -> None:
        """Take the head of the final response, and the first bytes of its body."""
        raise NotImplementedError

    def answer_continued(self, chunk: bytes, last: bool) -> None:
        """Take a piece of the response's body."""
        raise NotImplementedError

    def awaits_continue(self) -> bool:
        """Return True if the client waits for the upstream's 100 (Continue)."""
        raise NotImplementedError

    def fail(self) -> None:
        """End the exchange after a fault of the proxy."""
        raise NotImplementedError


class UpstreamConnection(BatchedConnection):
    """One connection to the upstream."""

    __slots__ = (
        "_early",
        "_ended",
        "_paused",
        "_pool",
        "_reader",
        "_unread",
        "closed",
        "idle_since",
        "opened_at",
        "request_done",
        "used",
        "user",
    )

    _unread: select.poll

    def __init__(self, pool: UpstreamPool) -> None:
        self._pool = pool
        self.opened_at = pool.deadlines.now
        self.deadline = NEVER
        self.idle_since = 0.0
        self.closed = False
        self._ended = False  # by the upstream's own word, with TLS its close_notify
        self.used = False
        self._reader = ResponseReader(pool.settings.max_header_bytes)
        # Per exchange
        self.user: UpstreamUser | None = None
        self.request_done = False
        self._early = False  # the answer began before the request's end was sent
        self._paused = False  # reading, since the client doesn't take what came
        self._held = b""  # a request that leaves when the loop's turn ends
        self._arrived = b""  # the beginning of an answer, until the loop's turn ends

    @property
    def fit(self) -> bool:
        """Whether another request can be sent. Bytes that the loop has not read yet, or the upstream's close,
        belong to no request: taken for the next one's answer, they would put every later answer out of
        step."""
        return not self.closed and not self.transport.is_closing() and not self._unread.poll(0)

    # From the exchange

    def serve(self, user: UpstreamUser) -> None:
        """Belongs to `user` until its answer has ended or it lets go."""
        self.user = user
        self.request_done = False
        self._early = False
        self._reader.expect(to_head_request=user.to_head_request)

    def send(self, data: bytes, *, done: bool) -> None:
        """Writes a piece of the request; `done` with the last one."""
        if self._arrived:
            self._early = True
        self.request_done = done
        self.deadline = self._pool.deadlines.now + self._pool.settings.response_timeout
        self.transport.write(data)

    def send_whole(self, data: bytes) -> None:
        """Writes a whole request."""
        self.request_done = True
        self.deadline = self._pool.deadlines.now + self._pool.settings.response_timeout
        self._held = data
        self._pool.turn.send_request(self)

    def send_held(self) -> None:
        """At the end of the loop's turn; not if the connection ends, which then tells that it is unsent."""
        held = self._held
        if held and not self.transport.is_closing():
            self._held = b""
            self.transport.write(held)

    def abandon(self) -> None:
        """The exchange wants nothing more: what is under way can't be taken back, so the connection is
        closed."""
        self.user = None
        self._held = b""
        self._arrived = b""
        self.transport.abort()

    def pause_reading(self) -> None:
        self._paused = True
        self.deadline = NEVER  # the client is slow now, not the upstream; its own deadline runs
        self.transport.pause_reading()

    def resume_reading(self) -> None:
        self._paused = False
        self.deadline = self._pool.deadlines.now + self._pool.settings.response_timeout
        self.transport.resume_reading()

    # From the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's own classes don't say that they are
        self._pool.deadlines.add(self)
        self._unread = select.poll()
        self._unread.register(self.transport.get_extra_info("socket").fileno(), select.POLLIN)

    def data_received(self, data: bytes) -> None:
        if self.user is None or self._held:
            self._close_unusable()  # bytes that nobody has asked for yet (RFC 9112 §9.2)
        elif self._reader.state is not _READING_BODY and not self._arrived and len(data) < WAITING_BYTES:
            self._arrived = data
            self._pool.turn.answer_arrived(self)
        else:
            # Together: what is beyond the end of an answer must not be taken for the next one's.
            arrived, self._arrived = self._arrived, b""
            self._take_safely(arrived + data if arrived else data)

    def _take_safely(self, data: bytes) -> None:
        user = self.user
        try:
            self._read(data)
        except Exception as error:
            self._pool.turn.report(error)
            self._fail_with(user)

    def fail(self) -> None:
        self._fail_with(self.user)

    def _fail_with(self, user: UpstreamUser | None) -> None:
        """A fault of the proxy ends the connection, and the exchange that it serves or served until now."""
        if self.user is None or self.user is user:  # else another one has it by now, which is not to blame
            self._pool.discard(self)
            self.abandon()
        if user is not None:
            user.fail()

    def eof_received(self) -> bool:
        self._ended = True
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self.closed = True
        self.take_arrived()
        self._pool.deadlines.discard(self)
        self._pool.forget(self)
        unsent = bool(self._held)
        self._held = b""
        user = self.user
        if user is None:
            return
        self.user = None
        reader = self._reader
        unanswered, began = reader.is_untouched, reader.state is _READING_BODY
        if reader.end_of_input(orderly=error is None and self._ended):
            user.answer_continued(b"", True)
        elif not began:
            user.upstream_lost(
                UpstreamLost(
                    "upstreamUnreachable",
                    "The upstream closed the connection before it answered.",
                    unanswered=unanswered and self.used,
                    unsent=unsent,
                )
            )
        else:
            user.upstream_lost(UpstreamLost("upstreamError", "The upstream's answer ended too early."))

    def pause_writing(self) -> None:
        if self.user is not None:
            self.user.upstream_full()

    def resume_writing(self) -> None:
        if self.user is not None:
            self.user.upstream_drained()

    def _on_due(self, now: float) -> None:
        user = self.user
        self.deadline = NEVER
        if user is not None and not self._owes(user):
            return  # it waits for the client as we do, whose own deadline runs
        self.abandon()
        if user is not None:
            user.upstream_lost(UpstreamLost("upstreamTimeout", "The upstream did not answer in time."))

    def _owes(self, user: UpstreamUser) -> bool:
        """Whether it is the upstream's turn: to take what is written, to ask for the body, or to answer."""
        return self.request_done or self.transport.get_write_buffer_size() > 0 or user.awaits_continue()

    # Reading

    def _read(self, data: bytes) -> None:
        user = self.user
        assert user is not None
        try:
            self._read_response(user, data)
        except BrokenResponse as error:
            self._give_up(error)

    def _read_response(self, user: UpstreamUser, data: bytes) -> None:
        reader = self._reader
        if reader.state is _READING_BODY:
            chunk, last = reader.read_body(data)
            self._piece_read(last)
            if chunk or last:
                user.answer_continued(chunk, last)
            return
        reader.feed(data)
        head = reader.next_head()
        while head is not None and head.status < 200:
            user.answer_informational(head)
            if self.user is not user:
                return
            head = reader.next_head()
        if head is not None:
            chunk, last = reader.read_body(b"")
            self._piece_read(last)
            user.answer_started(head, chunk, last)

    def _piece_read(self, last: bool) -> None:
        """Let the connection go if the response has ended, and give the upstream time for more otherwise."""
        if last:
            self._end_answer()
        else:
            self.deadline = self._pool.deadlines.now + self._pool.settings.response_timeout

    def _end_answer(self) -> None:
        self.user = None
        young = self._pool.deadlines.now - self.opened_at < MAX_AGE_SECONDS
        # What waits to be written, the upstream hasn't taken either: this was an early answer.
        whole = self.request_done and not self._early and not self.transport.get_write_buffer_size()
        if self._reader.keep_alive and whole and young and not (self.closed or self._paused):
            self.used = True
            self._pool.release(self)
        else:
            self.transport.abort()

    def _give_up(self, error: BrokenResponse) -> None:
        user = self.user
        if error.head_too_large:
            self._pool.count_large_head()
        self.abandon()
        if user is not None:
            user.upstream_lost(UpstreamLost("upstreamError", error.message))

    def _close_unusable(self) -> None:
        self._pool.discard(self)
        self.transport.abort()


class UpstreamPool:
    """The connections of one worker to its one upstream."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        settings: UpstreamSettings,
        deadlines: Deadlines,
        counters: Counters,
        turn: Turn,
    ) -> None:
        self.turn = turn
        self.settings = settings
        self.deadlines = deadlines
        self._loop = loop
        self._counters = counters.values
        self._idle: list[UpstreamConnection] = []
        self._waiting: deque[UpstreamUser] = deque()
        self._opening: set[asyncio.Task[None]] = set()
        self._open = 0
        self._closing = False

    def __repr__(self) -> str:
        return (
            f"<UpstreamPool open={self._open} idle={len(self._idle)} "
            f"opening={len(self._opening)} waiting={len(self._waiting)}>"
        )

    def count_large_head(self) -> None:
        self._counters[LIMIT_ANSWER_HEAD_BYTES] += 1

    @property
    def open_connections(self) -> int:
        return self._open

    def acquire(self, user: UpstreamUser, *, fresh: bool = False) -> None:
        """Gives `user` a connection by its `upstream_ready`, now or later, or calls its `upstream_lost`, or
        `upstream_crowded` where too many wait already."""
        idle = self._idle
        while idle and not fresh:
            upstream = idle.pop()
            if not upstream.fit:
                upstream.transport.abort()
            elif user.repeatable or self.deadlines.now - upstream.idle_since <= STALE_SECONDS:
                self._counters[UPSTREAM_REUSED] += 1
                upstream.serve(user)
                user.upstream_ready(upstream)
                return
            elif self._open >= self.settings.max_connections:
                upstream.transport.abort()  # a new one takes its place, or else nobody would make room for it
                break
            else:
                idle.append(upstream)
                break
        if self._open >= self.settings.max_connections:
            behind_others = len(self._waiting) - len(self._opening)
            if behind_others >= self.settings.max_waiting:
                user.upstream_crowded()
                return
        self._waiting.append(user)
        self._open_for_waiting()

    def withdraw(self, user: UpstreamUser) -> None:
        """`user` waits no more; a connection that was being opened for it serves the next."""
        if user in self._waiting:
            self._waiting.remove(user)

    def release(self, upstream: UpstreamConnection) -> None:
        """Takes back a connection that is fit for another exchange."""
        if self._closing or (self._waiting and upstream.used and not upstream.fit):
            upstream.transport.abort()
        elif self._waiting:
            self._hand_over(upstream)
        else:
            now = self.deadlines.now
            upstream.idle_since = now
            upstream.deadline = now + self.settings.idle_timeout
            self._idle.append(upstream)

    def discard(self, upstream: UpstreamConnection) -> None:
        if upstream in self._idle:
            self._idle.remove(upstream)

    def forget(self, upstream: UpstreamConnection) -> None:
        """A connection is gone."""
        self._open -= 1
        self.discard(upstream)
        self._open_for_waiting()

    def close(self) -> None:
        """Closes what is idle; what serves an exchange closes when that ends."""
        self._closing = True
        for task in self._opening:
            task.cancel()
        for upstream in self._idle[:]:
            upstream.transport.abort()

    def _hand_over(self, upstream: UpstreamConnection) -> None:
        user = self._waiting.popleft()
        upstream.serve(user)
        user.upstream_ready(upstream)

    def _open_for_waiting(self) -> None:
        while len(self._waiting) > len(self._opening) and self._open < self.settings.max_connections:
            self._open += 1
            task = self._loop.create_task(self._connect())
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    async def _connect(self) -> None:
        settings = self.settings
        try:
            async with asyncio.timeout(settings.connect_timeout):
                # The name is looked up for each connection; of its addresses the first that answers serves.
                found = await self._loop.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)
                connected = await start_connection(
                    found, happy_eyeballs_delay=NEXT_ADDRESS_SECONDS, loop=self._loop
                )
                connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                _, upstream = await self._loop.create_connection(
                    lambda: UpstreamConnection(self),
                    sock=connected,
                    ssl=settings.tls,
                    server_hostname=settings.host if settings.tls is not None else None,
                )
        except TimeoutError:
            self._connect_failed(UpstreamLost("upstreamTimeout", "The upstream took too long to connect to."))
        except OSError as error:  # ssl.SSLError is one
            self._connect_failed(
                UpstreamLost("upstreamUnreachable", f"The upstream can't be reached: {_why(error)}.")
            )
        else:
            self._counters[UPSTREAM_OPENED] += 1
            if upstream.closed:
                self._open += 1  # it was taken off already when the connection went
                self._connect_failed(
                    UpstreamLost("upstreamUnreachable", "The upstream closed the connection at once.")
                )
                return
            if task := asyncio.current_task():
                self._opening.discard(task)
            self.release(upstream)

    def _connect_failed(self, error: UpstreamLost) -> None:
        self._open -= 1
        if task := asyncio.current_task():
            self._opening.discard(task)
        if self._waiting:
            self._waiting.popleft().upstream_lost(error)
        self._open_for_waiting()


def _why(error: OSError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate was not accepted ({error.verify_message})"
    if isinstance(error, ssl.SSLError | socket.gaierror):
        return error.strerror or type(error).__name__
    # Without what asyncio writes around it: addresses are the operator's to know.
    return os.strerror(error.errno) if error.errno else "no connection was made"
