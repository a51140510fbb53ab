"""One connection to the upstream: a request is sent, its response is read, and another request may follow.

A connection serves one user at a time. Its owner gets it back only after a whole request and a whole response
with nothing left over; after an abort, a time-out, an early response or unsolicited bytes it is closed
(RFC 9112 §9).
"""

from __future__ import annotations

import asyncio
import select
from enum import Enum
from typing import Final, cast

from proxy.server.http1.response_head import ResponseHead
from proxy.server.http1.response_reader import BrokenResponse, ResponseReader, ResponseState
from proxy.server.loop.deadlines import NEVER, Deadlines
from proxy.server.loop.iteration import WAITING_BYTES, BatchedConnection, LoopIteration
from proxy.server.upstream.settings import UpstreamSettings

MAX_AGE_SECONDS: Final = 300.0  # a name that leads elsewhere now is followed by then, however busy we are


class Sending(Enum):
    """States of the request that a connection sends."""

    IDLE = "idle"  # nothing of it was sent
    QUEUED = "queued"  # all of it leaves when the loop iteration ends
    BODY = "body"  # its head has left, and its last byte has not
    DONE = "done"  # its last byte has left
    LATE = "late"  # its last byte has left, but the response began before


class Link(Enum):
    """States of the connection itself."""

    OPEN = "open"
    HALF_CLOSED = "half-closed"  # the upstream sends no more, by its own word: with TLS its close_notify
    CLOSED = "closed"


# Final names: the interpreted form reads an enum's member slowly.
_IDLE: Final = Sending.IDLE
_QUEUED: Final = Sending.QUEUED
_BODY: Final = Sending.BODY
_DONE: Final = Sending.DONE
_LATE: Final = Sending.LATE

_OPEN: Final = Link.OPEN
_HALF_CLOSED: Final = Link.HALF_CLOSED
_CLOSED: Final = Link.CLOSED

_AWAITED: Final = ResponseState.AWAITED
_READING_BODY: Final = ResponseState.BODY
_ENDED: Final = ResponseState.ENDED


class UpstreamLost(Exception):
    """The upstream failed. `code` is a key of `errors.STATUS_OF`; `without a response` says that not one byte
    came back, `unsent` that none of the request was written."""

    def __init__(
        self, code: str, message: str, *, without_response: bool = False, unsent: bool = False
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.without_response = without_response
        self.unsent = unsent


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

    def upstream_queue_full(self) -> None:
        """End the request: too many users wait for a connection."""
        raise NotImplementedError

    def upstream_full(self) -> None:
        """Stop sending: the upstream takes the body more slowly than it comes."""
        raise NotImplementedError

    def upstream_drained(self) -> None:
        """Go on to send, after a pause."""
        raise NotImplementedError

    def response_informational(self, head: ResponseHead) -> None:
        """Receive a 1xx response of the upstream."""
        raise NotImplementedError

    def response_started(self, response: ResponseHead, chunk: bytes, last: bool) -> None:
        """Take the head of the final response, and the first bytes of its body."""
        raise NotImplementedError

    def response_continued(self, chunk: bytes, last: bool) -> None:
        """Take a piece of the response's body."""
        raise NotImplementedError

    def awaits_continue(self) -> bool:
        """Return True if the client waits for the upstream's 100 (Continue)."""
        raise NotImplementedError

    def fail(self) -> None:
        """End the exchange after a fault of the proxy."""
        raise NotImplementedError


class ConnectionOwner:
    """Owner of upstream connections, as each of them names it: the pool."""

    __slots__ = ("deadlines", "iteration", "settings")

    settings: UpstreamSettings
    deadlines: Deadlines
    iteration: LoopIteration

    def release(self, upstream: UpstreamConnection) -> None:
        """Take back a connection that can serve another user."""
        raise NotImplementedError

    def discard(self, upstream: UpstreamConnection) -> None:
        """Offer a connection to nobody: it can't be used."""
        raise NotImplementedError

    def forget(self, upstream: UpstreamConnection) -> None:
        """Count a connection no longer: it is closed."""
        raise NotImplementedError

    def count_large_head(self) -> None:
        """Count a response that reached the limit of a head's size."""
        raise NotImplementedError


class UpstreamConnection(BatchedConnection):
    """One connection to the upstream."""

    __slots__ = (
        "_link",
        "_owner",
        "_paused",
        "_reader",
        "_sending",
        "_unread",
        "adopted",
        "idle_since",
        "opened_at",
        "used",
        "user",
    )

    _unread: select.poll

    def __init__(self, owner: ConnectionOwner) -> None:
        self._owner = owner
        self.opened_at = owner.deadlines.now
        self.idle_since = 0.0
        self.deadline = NEVER
        self.adopted = False  # its owner was given it open, and counts it off when it closes
        self.used = False  # a response has ended on it
        self._link = _OPEN
        self._sending = _IDLE
        self._reader = ResponseReader(owner.settings.max_header_bytes)
        self._paused = False  # reading, because the client doesn't take what came
        self._queued_output = b""
        self._arrived = b""
        self.user: UpstreamUser | None = None

    def __repr__(self) -> str:
        request, response = self._sending.value, self._reader.state.value
        return f"<UpstreamConnection {self._link.value} request={request} response={response}>"

    @property
    def closed(self) -> bool:
        """Return True if the transport has reported the end of the connection."""
        return self._link is _CLOSED

    @property
    def reusable(self) -> bool:
        """Return True if another request can follow: the last one and its response have ended, and nothing of
        either is left over."""
        return (
            self._reader.state is _ENDED
            and self._reader.keep_alive
            and self._sending is _DONE
            # The upstream has not taken either what waits to be written: this was an early response.
            and not self.transport.get_write_buffer_size()
            and self._owner.deadlines.now - self.opened_at < MAX_AGE_SECONDS
            and self._link is not _CLOSED
            and not self._paused
        )

    @property
    def is_quiet(self) -> bool:
        """Return True if the connection is open and nothing waits to be read, which the owner looks at before
        each further use. Bytes that the loop has not read yet, or the upstream's close, belong to no request:
        taken for the next response, they would put every later response out of step."""
        return self._link is not _CLOSED and not self.transport.is_closing() and not self._unread.poll(0)

    # Called by the user, and by the owner for it

    def serve(self, user: UpstreamUser) -> None:
        """Belong to `user` until its response has ended or `abandon`."""
        self.user = user
        self._sending = _IDLE
        self._reader.expect(to_head_request=user.to_head_request)

    def send(self, data: bytes, *, done: bool) -> None:
        """Write a piece of the request; `done` with the last one."""
        if not done:
            self._sending = _BODY
        elif self._arrived or self._reader.state is not _AWAITED:
            self._sending = _LATE
        else:
            self._sending = _DONE
        self._await_upstream()
        self.transport.write(data)

    def send_whole(self, data: bytes) -> None:
        """Write a whole request when the loop iteration ends."""
        self._sending = _QUEUED
        self._await_upstream()
        self._queued_output = data
        self._owner.iteration.send_request(self)

    def send_queued(self) -> None:
        """Send a queued request, unless the connection ends: then its loss reports that it is unsent."""
        if self._sending is _QUEUED and not self.transport.is_closing():
            queued, self._queued_output = self._queued_output, b""
            self._sending = _DONE
            self.transport.write(queued)

    def abandon(self) -> None:
        """Close the connection: its user wants nothing more, and what is under way can't be taken back."""
        self.user = None
        self._sending = _IDLE
        self._queued_output = b""
        self._arrived = b""
        self.transport.abort()

    def pause_reading(self) -> None:
        """Read no more until `resume_reading`, because the client is slow. Its own deadline runs."""
        self._paused = True
        self.deadline = NEVER
        self.transport.pause_reading()

    def resume_reading(self) -> None:
        """Read again, and give the upstream its time from now on."""
        self._paused = False
        self._await_upstream()
        self.transport.resume_reading()

    def _await_upstream(self) -> None:
        if not self._paused:  # else the client is the one to act
            self.deadline = self._owner.deadlines.now + self._owner.settings.response_timeout

    # Called by the transport and the loop iteration

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's own classes don't say that they are
        self._owner.deadlines.add(self)
        self._unread = select.poll()
        self._unread.register(self.transport.get_extra_info("socket").fileno(), select.POLLIN)

    def data_received(self, data: bytes) -> None:
        if self.user is None or self._sending is _QUEUED:
            self._close_unusable()  # bytes that nobody has asked for yet (RFC 9112 §9.2)
        elif self._reader.state is not _READING_BODY and not self._arrived and len(data) < WAITING_BYTES:
            self._arrived = data
            self._owner.iteration.response_arrived(self)
        else:
            # Together: bytes behind the end of a response must not be taken for the next one's.
            arrived, self._arrived = self._arrived, b""
            self._take_safely(arrived + data if arrived else data)

    def _take_safely(self, data: bytes) -> None:
        user = self.user
        try:
            self._read(data)
        except Exception as error:
            self._owner.iteration.report(error)
            self._fail_with(user)

    def fail(self) -> None:
        self._fail_with(self.user)

    def _fail_with(self, user: UpstreamUser | None) -> None:
        """End the connection after a fault of the proxy, and the exchange of `user`, which it served."""
        if self.user is None or self.user is user:  # another user's exchange has no part in the fault
            self._owner.discard(self)
            self.abandon()
        if user is not None:
            user.fail()

    def eof_received(self) -> bool:
        self._link = _HALF_CLOSED
        if self.transport.get_write_buffer_size():
            self.transport.abort()  # an upstream that has ended its response takes no more of the request
        return False

    def connection_lost(self, error: Exception | None) -> None:
        orderly = error is None and self._link is _HALF_CLOSED
        self._link = _CLOSED
        self.take_arrived()
        self._owner.deadlines.discard(self)
        self._owner.forget(self)
        unsent = self._sending is _QUEUED
        self._sending = _IDLE
        self._queued_output = b""
        user = self.user
        if user is None:
            return
        self.user = None
        reader = self._reader
        without_response, began = reader.is_untouched, reader.state is _READING_BODY
        if reader.end_of_input(orderly=orderly):
            user.response_continued(b"", True)
        elif not began:
            user.upstream_lost(
                UpstreamLost(
                    "upstreamUnreachable",
                    "The upstream closed the connection before it responded.",
                    without_response=without_response and self.used,
                    unsent=unsent,
                )
            )
        else:
            user.upstream_lost(UpstreamLost("upstreamError", "The upstream's response ended too early."))

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
            return  # it waits for the client, whose own deadline runs
        self.abandon()
        if user is not None:
            user.upstream_lost(UpstreamLost("upstreamTimeout", "The upstream did not respond in time."))

    def _owes(self, user: UpstreamUser) -> bool:
        """Return True if the upstream is the one to act: take what is written, ask for the body, respond."""
        return (
            (self._sending is not _IDLE and self._sending is not _BODY)
            or self.transport.get_write_buffer_size() > 0
            or user.awaits_continue()
        )

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
                user.response_continued(chunk, last)
            return
        reader.feed(data)
        head = reader.next_head()
        while head is not None and head.status < 200:
            user.response_informational(head)
            if self.user is not user:
                return
            head = reader.next_head()
        if head is not None:
            chunk, last = reader.read_body(b"")
            self._piece_read(last)
            user.response_started(head, chunk, last)

    def _piece_read(self, last: bool) -> None:
        """Let the connection go if the response has ended, and give the upstream time for more otherwise."""
        if last:
            self._end_response()
        else:
            self._await_upstream()

    def _end_response(self) -> None:
        self.user = None
        if self.reusable:
            self.used = True
            self._owner.release(self)
        else:
            self.transport.abort()

    def _give_up(self, error: BrokenResponse) -> None:
        user = self.user
        if error.head_too_large:
            self._owner.count_large_head()
        self.abandon()
        if user is not None:
            user.upstream_lost(UpstreamLost("upstreamError", error.message))

    def _close_unusable(self) -> None:
        self._owner.discard(self)
        self.transport.abort()
