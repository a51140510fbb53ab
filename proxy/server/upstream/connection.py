"""One upstream connection: send a request, read its response, and then serve the next request.

An upstream connection serves one user, that is one request, at a time. The connection returns to its pool
only if the request and the response are complete and no bytes are left over. After an abort, a time-out, an
early response or unsolicited bytes, the connection is closed (RFC 9112 §9).
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

# longest life, so that a changed DNS record takes effect even under constant load
MAX_AGE_SECONDS: Final = 300.0


class Sending(Enum):
    """Progress of the request that an upstream connection sends."""

    IDLE = "idle"  # nothing of the request was sent
    QUEUED = "queued"  # the whole request is sent when the loop iteration ends
    BODY = "body"  # its head was sent, and its last byte was not
    DONE = "done"  # its last byte was sent
    LATE = "late"  # its last byte was sent, but the response began before that


class Link(Enum):
    """State of an upstream connection."""

    OPEN = "open"
    HALF_CLOSED = "half-closed"  # the upstream ended its side, with TLS by close_notify
    CLOSED = "closed"


# Final names, because interpreted Python reads an enum's member slowly.
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
    """Error because the upstream failed. `code` is a key of `errors.STATUS_OF`.

    `without_response` means that no byte of a response was received. `unsent` means that no byte of the
    request was written.
    """

    def __init__(
        self, code: str, message: str, *, without_response: bool = False, unsent: bool = False
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.without_response = without_response
        self.unsent = unsent


class UpstreamUser:
    """Interface that a request offers to the pool and the upstream connections."""

    __slots__ = ("repeatable", "to_head_request")

    repeatable: bool  # an idle connection may be used even if the upstream may have closed it
    to_head_request: bool  # the response has no body, no matter what its head says

    def upstream_ready(self, upstream: UpstreamConnection) -> None:
        """Send the request on the upstream connection that the pool has just assigned to the request."""
        raise NotImplementedError

    def upstream_lost(self, error: UpstreamLost) -> None:
        """End or repeat the request, because the upstream failed or the pool could not open a connection."""
        raise NotImplementedError

    def upstream_queue_full(self) -> None:
        """End the request, because too many requests wait for an upstream connection."""
        raise NotImplementedError

    def upstream_full(self) -> None:
        """Stop sending the request body, because the body arrives faster than the upstream reads."""
        raise NotImplementedError

    def upstream_drained(self) -> None:
        """Continue to send the request body after a pause."""
        raise NotImplementedError

    def response_informational(self, head: ResponseHead) -> None:
        """Process a 1xx response of the upstream."""
        raise NotImplementedError

    def response_started(self, response: ResponseHead, chunk: bytes, last: bool) -> None:
        """Process the head of the upstream's final response, and the first bytes of its body."""
        raise NotImplementedError

    def response_continued(self, chunk: bytes, last: bool) -> None:
        """Process a piece of the body of the upstream's response."""
        raise NotImplementedError

    def awaits_continue(self) -> bool:
        """Return True if the client waits for the response 100 (Continue) of the upstream."""
        raise NotImplementedError

    def fail(self) -> None:
        """End the exchange after a fault of the proxy."""
        raise NotImplementedError


class ConnectionOwner:
    """Interface through which upstream connections use the connection pool."""

    __slots__ = ("deadlines", "iteration", "settings")

    settings: UpstreamSettings
    deadlines: Deadlines
    iteration: LoopIteration

    def release(self, upstream: UpstreamConnection) -> None:
        """Take back an upstream connection that can serve another request."""
        raise NotImplementedError

    def discard(self, upstream: UpstreamConnection) -> None:
        """Do not assign this upstream connection to another user, because the connection can't be reused."""
        raise NotImplementedError

    def forget(self, upstream: UpstreamConnection) -> None:
        """Stop counting an upstream connection, because it is closed."""
        raise NotImplementedError

    def count_large_head(self) -> None:
        """Count a response whose head reached the size limit."""
        raise NotImplementedError


class UpstreamConnection(BatchedConnection):
    """A connection to the upstream."""

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
        self.adopted = False  # its owner received it open, and stops counting it when it closes
        self.used = False  # a response has ended on it
        self._link = _OPEN
        self._sending = _IDLE
        self._reader = ResponseReader(owner.settings.max_header_bytes)
        self._paused = False  # reading is paused, because the client does not read what arrived
        self._queued_output = b""
        self._arrived = b""
        self.user: UpstreamUser | None = None

    def __repr__(self) -> str:
        request, response = self._sending.value, self._reader.state.value
        return f"<UpstreamConnection {self._link.value} request={request} response={response}>"

    @property
    def closed(self) -> bool:
        """True if the transport has reported the end of the connection."""
        return self._link is _CLOSED

    @property
    def reusable(self) -> bool:
        """True if the connection can carry another request.

        A connection is reusable after the last request and its response have ended, if none of their bytes
        wait in a buffer.
        """
        return (
            self._reader.state is _ENDED
            and self._reader.keep_alive
            and self._sending is _DONE
            # Unsent output means that the upstream responded early and did not read the whole request.
            and not self.transport.get_write_buffer_size()
            and self._owner.deadlines.now - self.opened_at < MAX_AGE_SECONDS
            and self._link is not _CLOSED
            and not self._paused
        )

    @property
    def is_quiet(self) -> bool:
        """True if the connection is open and no unread bytes have arrived.

        The pool checks `is_quiet` before each use of the connection. Unread bytes, or a close by the
        upstream, are not the response to any request. If the proxy took unread bytes for the next response,
        it would assign every later response to the wrong request.
        """
        return self._link is not _CLOSED and not self.transport.is_closing() and not self._unread.poll(0)

    # Calls of the user, and of the owner on its behalf

    def serve(self, user: UpstreamUser) -> None:
        """Serve the exchange `user` until its response has ended, or until a call of `abandon`."""
        self.user = user
        self._sending = _IDLE
        self._reader.expect(to_head_request=user.to_head_request)

    def send(self, data: bytes, *, done: bool) -> None:
        """Write a piece of an HTTP request to the upstream.

        `done` is True for the last piece of the request.
        """
        if not done:
            self._sending = _BODY
        elif self._arrived or self._reader.state is not _AWAITED:
            self._sending = _LATE
        else:
            self._sending = _DONE
        self._await_upstream()
        self.transport.write(data)

    def send_whole(self, data: bytes) -> None:
        """Queue a complete request.

        The connection sends the request at the end of the event loop iteration.
        """
        self._sending = _QUEUED
        self._await_upstream()
        self._queued_output = data
        self._owner.iteration.send_request(self)

    def send_queued(self) -> None:
        """Send a queued request to the upstream.

        If the connection is closing, the request is not sent. The unsent request is reported after the
        connection is lost.
        """
        if self._sending is _QUEUED and not self.transport.is_closing():
            queued, self._queued_output = self._queued_output, b""
            self._sending = _DONE
            self.transport.write(queued)

    def abandon(self) -> None:
        """Close the connection, because its user needs no response and a request can't be recalled."""
        self.user = None
        self._sending = _IDLE
        self._queued_output = b""
        self._arrived = b""
        self.transport.abort()

    def pause_reading(self) -> None:
        """Stop reading the response until `resume_reading`, because the client is slow.

        While the proxy does not read the response, only the deadline of the slow client's connection applies.
        """
        self._paused = True
        self.deadline = NEVER
        self.transport.pause_reading()

    def resume_reading(self) -> None:
        """Resume reading the response, and restart the deadline of the upstream."""
        self._paused = False
        self._await_upstream()
        self.transport.resume_reading()

    def _await_upstream(self) -> None:
        if not self._paused:  # while reading is paused, the proxy waits for the client
            self.deadline = self._owner.deadlines.now + self._owner.settings.response_timeout

    # Calls of the transport and the loop iteration

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # cast, because uvloop's classes do not derive from asyncio.Transport
        self.transport = cast(asyncio.Transport, transport)
        self._owner.deadlines.add(self)
        self._unread = select.poll()
        self._unread.register(self.transport.get_extra_info("socket").fileno(), select.POLLIN)

    def data_received(self, data: bytes) -> None:
        if self.user is None or self._sending is _QUEUED:
            self._close_unusable()  # unsolicited bytes (RFC 9112 §9.2)
        elif self._reader.state is not _READING_BODY and not self._arrived and len(data) < WAITING_BYTES:
            self._arrived = data
            self._owner.iteration.response_arrived(self)
        else:
            # Read together, so that bytes after the end of a response are not taken for the next response.
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
        """End the exchange of `user` and close the upstream connection, after a fault in the proxy's code.

        If another exchange now uses the upstream connection, leave the connection open.
        """
        # the exchange of another user is not affected by the fault
        if self.user is None or self.user is user:
            self._owner.discard(self)
            self.abandon()
        if user is not None:
            user.fail()

    def eof_received(self) -> bool:
        self._link = _HALF_CLOSED
        if self.transport.get_write_buffer_size():
            self.transport.abort()  # an upstream that has ended its side reads no more of the request
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
            return  # the proxy waits for the client, which has its own deadline
        self.abandon()
        if user is not None:
            user.upstream_lost(UpstreamLost("upstreamTimeout", "The upstream did not respond in time."))

    def _owes(self, user: UpstreamUser) -> bool:
        """Return True if the proxy waits for the upstream to read, to request the body, or to respond."""
        return (
            (self._sending is not _IDLE and self._sending is not _BODY)
            or self.transport.get_write_buffer_size() > 0
            or user.awaits_continue()
        )

    # Reading of responses

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
        """Release the connection if the response has ended.

        If more of the response follows, restart the upstream's deadline.
        """
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
