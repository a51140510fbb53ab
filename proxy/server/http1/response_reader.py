"""Responses of the upstream on one connection, read in the order of its requests (RFC 9112 §4, §6.3).

Pure: bytes in, heads and pieces of bodies out.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from proxy.server.errors import MalformedBody, MalformedHead
from proxy.server.http1.body_reader import UNTIL_CLOSE, BodyReader
from proxy.server.http1.response_head import ResponseHead, parse_response_head

MAX_INFORMATIONAL: Final = 16  # 1xx responses before one final response; more is a flood


class ResponseState(Enum):
    """States of the response that is read, or that was read last."""

    IDLE = "idle"  # no response is due
    AWAITED = "awaited"  # one is due, and no byte of its final head is here
    HEAD = "head"  # a part of a head is here
    BODY = "body"  # the final head is read, and the body has not ended
    ENDED = "ended"  # no further response is due
    BROKEN = "broken"  # it can't be read, and no other can be on this connection


# Final names: the interpreted form reads an enum's member slowly.
_IDLE: Final = ResponseState.IDLE
_AWAITED: Final = ResponseState.AWAITED
_HEAD: Final = ResponseState.HEAD
_BODY: Final = ResponseState.BODY
_ENDED: Final = ResponseState.ENDED
_BROKEN: Final = ResponseState.BROKEN


class BrokenResponse(Exception):
    """A response that can't be read. `message` is a sentence for the application; `head_too_large` says that
    the limit of a head's size is the reason."""

    def __init__(self, message: str, *, head_too_large: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.head_too_large = head_too_large


class ResponseReader:
    """Reads the responses of one connection, one after the other.

    `expect` says that a response is due. Until its final head is read, bytes go to `feed` and heads come out
    of `next_head`, informational ones first; from then on bytes go to `read_body`.
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
        self._buffer = b""  # bytes that are not read yet
        self._scanned = 0  # how many of them can't begin the end of a head
        self._informational = 0
        self._framed_interim = False  # a 1xx response had a length, so that its end is a matter of opinion
        self._to_head_request = False
        self._body = BodyReader()
        self.state = _IDLE
        self.keep_alive = False  # whether another response can follow, as soon as this one has ended

    def __repr__(self) -> str:
        return f"<ResponseReader {self.state.value}>"

    @property
    def is_untouched(self) -> bool:
        """Return True if a response is due and not one byte came, not even of an informational one."""
        return self.state is _AWAITED and self._informational == 0

    def expect(self, *, to_head_request: bool) -> None:
        """Expect a response. One to a HEAD request has no body, whatever its head says."""
        self._to_head_request = to_head_request
        self._informational = 0
        self._framed_interim = False
        self.state = _AWAITED

    def feed(self, data: bytes) -> None:
        """Take bytes of which `next_head` reads heads."""
        self._buffer = self._buffer + data if self._buffer else data

    def next_head(self) -> ResponseHead | None:
        """Return the next head, or None if it is not whole. After an informational head another one follows;
        after a final one the body does. Raise BrokenResponse."""
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
        """Return the content in `data` and in what is left of `feed`, and whether the response has ended.
        Raise BrokenResponse."""
        if self._buffer:
            data = self._buffer + data if data else self._buffer  # compiled, a sum is a copy
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
                self.keep_alive = False  # bytes behind a response belong to no request (RFC 9112 §9.2)
        return content, ended

    def end_of_input(self, *, orderly: bool) -> bool:
        """Return True if the end of the connection is the end of the response. `orderly` says that the
        upstream itself ended the connection: otherwise anybody between may have cut it (RFC 9112 §9.8)."""
        whole = self.state is _BODY and self._body.remaining == UNTIL_CLOSE and orderly
        self.state = _ENDED if whole else _BROKEN
        self.keep_alive = False
        return whole

    def _count_informational(self, head: ResponseHead) -> None:
        self._informational += 1
        fields = head.fields
        if fields.content_length is not None or fields.length_at is not None or fields.chunked:
            self._framed_interim = True  # RFC 9110 §8.6, RFC 9112 §6.1: no server may send that
        if head.status == 101 or self._informational > MAX_INFORMATIONAL:
            self.state = _BROKEN
            raise BrokenResponse("The upstream responded with an unexpected interim status.")
        self.state = _AWAITED
