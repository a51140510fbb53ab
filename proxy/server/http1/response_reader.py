"""Read the responses of the upstream on one connection, in the order of its requests (RFC 9112 §4, §6.3).

The module `response_reader` does no input or output.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from proxy.server.errors import MalformedBody, MalformedHead
from proxy.server.http1.body_reader import UNTIL_CLOSE, BodyReader
from proxy.server.http1.response_head import ResponseHead, parse_response_head

MAX_INFORMATIONAL: Final = 16  # 1xx responses before one final response; more is a flood


class ResponseState(Enum):
    """State of the current or last response on the connection."""

    IDLE = "idle"  # no response is due
    AWAITED = "awaited"  # a response is due, and no byte of its final head has arrived
    HEAD = "head"  # a part of a head has arrived
    BODY = "body"  # the final head is parsed, and the body has not ended
    ENDED = "ended"  # no further response is due
    BROKEN = "broken"  # it cannot be parsed, and no other response can follow on this connection


# Final names, because interpreted Python reads an enum's member slowly.
_IDLE: Final = ResponseState.IDLE
_AWAITED: Final = ResponseState.AWAITED
_HEAD: Final = ResponseState.HEAD
_BODY: Final = ResponseState.BODY
_ENDED: Final = ResponseState.ENDED
_BROKEN: Final = ResponseState.BROKEN


class BrokenResponse(Exception):
    """Error because the upstream's response cannot be parsed.

    `message` is a sentence for the developer of the application.

    `head_too_large` means that the head exceeds its size limit.
    """

    def __init__(self, message: str, *, head_too_large: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.head_too_large = head_too_large


class ResponseReader:
    """Reader of the consecutive responses on one upstream connection.

    Call the reader's method `expect` when a response to a request is due. Pass bytes to `feed` and get heads
    from `next_head` until the final head is parsed. Informational heads come before the final head. After the
    final response head, pass the received bytes to `read_body`.
    """

    __slots__ = (
        "_body",
        "_buffer",
        "_framed_interim",
        "_informational",
        "_max_head_bytes",
        "_scanned",
        "_to_head_request",
        "keep_alive",
        "state",
    )

    def __init__(self, max_head_bytes: int) -> None:
        self._max_head_bytes = max_head_bytes
        self._buffer = b""  # bytes that are not parsed yet
        self._scanned = 0  # number of these bytes that cannot begin the end of a head
        self._informational = 0
        self._framed_interim = False  # a 1xx response had a length, so its end is ambiguous
        self._to_head_request = False
        self._body = BodyReader()
        self.state = _IDLE
        self.keep_alive = False  # another response can follow after this one

    def __repr__(self) -> str:
        return f"<ResponseReader {self.state.value}>"

    @property
    def is_untouched(self) -> bool:
        """True if the upstream owes a response and has not sent the first byte of it."""
        return self.state is _AWAITED and self._informational == 0

    def expect(self, *, to_head_request: bool) -> None:
        """Expect a response to the next request on this connection.

        A response to a HEAD request has no body, even if the response head announces a body.
        """
        self._to_head_request = to_head_request
        self._informational = 0
        self._framed_interim = False
        self.state = _AWAITED

    def feed(self, data: bytes) -> None:
        """Store received bytes until `next_head` parses them."""
        self._buffer = self._buffer + data if self._buffer else data

    def next_head(self) -> ResponseHead | None:
        """Return the next response head of the connection.

        Return None if the response head is incomplete. Raise BrokenResponse if the response head is
        malformed.

        After the head of an informational response, a further response head follows. After the head of a
        final response, the response body follows.
        """
        buffer = self._buffer
        end = buffer.find(b"\r\n\r\n", self._scanned) + 4
        if (end if end >= 4 else len(buffer)) > self._max_head_bytes:
            self.state = _BROKEN
            raise BrokenResponse("The head of the upstream's response is too large.", head_too_large=True)
        if end < 4:
            if buffer:
                self._scanned = max(0, len(buffer) - 3)
                self.state = _HEAD
            return None
        try:
            head = parse_response_head(buffer[:end], to_head_request=self._to_head_request)
        except MalformedHead as error:
            self.state = _BROKEN
            message = f"The head of the upstream's response is malformed: {error}."
            raise BrokenResponse(message) from error
        self._buffer = buffer[end:]
        self._scanned = 0
        if head.status < 200:
            self._count_informational(head)
        else:
            self.keep_alive = head.keep_alive and not self._framed_interim
            self._body.begin(head.length)
            self.state = _BODY
        return head

    def read_body(self, data: bytes) -> tuple[bytes, bool]:
        """Return the body bytes in `data` and in earlier input.

        The second value of the returned pair is True if the response has ended.

        The earlier input consists of bytes that `feed` received after the response head and did not use.

        Raise BrokenResponse if the body is malformed.
        """
        if self._buffer:
            # avoids a sum, which is a copy in compiled code
            data = self._buffer + data if data else self._buffer
            self._buffer = b""
        body = self._body
        try:
            content, ended = body.read(data)
        except MalformedBody as error:
            self.state = _BROKEN
            raise BrokenResponse(f"The upstream's response is malformed: {error}.") from error
        if ended:
            self.state = _ENDED
            if body.take_rest():
                self.keep_alive = False  # bytes after a response belong to no request (RFC 9112 §9.2)
        return content, ended

    def end_of_input(self, *, orderly: bool) -> bool:
        """Return True if the response ends when the upstream closes the connection.

        `orderly` is True if the upstream closed the connection in the regular way. If `orderly` is false, an
        attacker may have closed the connection (RFC 9112 §9.8).
        """
        whole = self.state is _BODY and self._body.remaining == UNTIL_CLOSE and orderly
        self.state = _ENDED if whole else _BROKEN
        self.keep_alive = False
        return whole

    def _count_informational(self, head: ResponseHead) -> None:
        self._informational += 1
        fields = head.fields
        if fields.content_length is not None or fields.length_at is not None or fields.chunked:
            self._framed_interim = True  # RFC 9110 §8.6, RFC 9112 §6.1: no server may send this
        if head.status == 101 or self._informational > MAX_INFORMATIONAL:
            self.state = _BROKEN
            raise BrokenResponse("The upstream responded with an unexpected interim status.")
        self.state = _AWAITED
