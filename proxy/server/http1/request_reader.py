"""Read the requests of one client connection (RFC 9112 §2.2, §6), within limits.

The module `request_reader` does no input or output.
"""

from __future__ import annotations

from typing import Final

from proxy.server.errors import MalformedHead
from proxy.server.http1.body_reader import UNTIL_CLOSE, BodyReader
from proxy.server.http1.request_head import RequestFields, RequestHead, parse_request_head

# bytes of chunk framing beyond the content; no real client needs that many
EXCESS_FRAMING_BYTES: Final = 256 * 1024

_TLS_HANDSHAKE: Final = b"\x16"  # the first byte of a TLS handshake record (RFC 8446 §5.1)


class HeadTooLong(MalformedHead):
    """Error because a request head has more bytes than the limit allows."""

    def __init__(self) -> None:
        super().__init__("the request head is too large", "headersTooLarge")


class TooManyFields(MalformedHead):
    """Error because a request head has more header fields than the limit allows."""

    def __init__(self) -> None:
        super().__init__("the request has too many header fields", "headersTooLarge")


class RequestReader:
    """Reader of the requests of one connection, one after another.

    Pass received bytes to `feed`, and get each request head from `next_head`. If the request has a body,
    first pass the result of `take_waiting` to `read_body`, and then each piece of received bytes. If a piece
    also has bytes after the end of the body, `RequestReader` stores these bytes for the next request.
    """

    __slots__ = ("_begins_at", "_body", "_fields", "_max_fields", "_max_head_bytes", "_scanned", "_waiting")

    def __init__(self, *, max_head_bytes: int, max_fields: int) -> None:
        self._max_head_bytes = max_head_bytes
        self._max_fields = max_fields
        self._waiting = b""  # the latest bytes, of which those before the next request are read
        self._begins_at = 0  # position in these bytes where the next request begins
        self._scanned = 0  # position where the search for the end of a head continues
        self._fields: RequestFields | None = None  # fields of the previous request
        self._body: BodyReader | None = None  # created for the first request that has a body

    def __repr__(self) -> str:
        return f"<RequestReader waiting={self.waiting} {self._body!r}>"

    @property
    def waiting(self) -> int:
        """Number of received bytes that are not parsed yet."""
        return len(self._waiting) - self._begins_at

    @property
    def body_remaining(self) -> int:
        """Number of body bytes that have not arrived, or CHUNKED or UNTIL_CLOSE; 0 if no body is expected."""
        return 0 if self._body is None else self._body.remaining

    def feed(self, data: bytes) -> None:
        """Store received bytes of request heads. The caller must not pass bytes of a request body."""
        if not self._waiting:
            self._waiting = data
            return
        # Needed only if a head arrives in pieces, or if requests are pipelined.
        self._waiting = self._waiting[self._begins_at :] + data
        self._scanned = max(0, self._scanned - self._begins_at)
        self._begins_at = 0

    def next_head(self) -> RequestHead | None:
        """Return the head of the next request. Return None if the head is incomplete.

        After this method returned None, the buffer contains only the incomplete head. Raise MalformedHead if
        the head breaks RFC 9112 or a limit; `head_so_far` then returns its bytes.
        """
        data = self._waiting
        start = self._begins_at
        if data[start : start + 2] == b"\r\n":
            start += 2  # an empty line before a request is ignored (RFC 9112 §2.2)
            if start == len(data):
                self._keep_from(start)
                return None
            self._begins_at = start
        end = data.find(b"\r\n\r\n", max(start, self._scanned)) + 4
        whole = end >= 4
        if (end if whole else len(data)) - start > self._max_head_bytes:
            raise HeadTooLong()
        if not whole:
            self._await_rest_of_head()
            return None
        head = parse_request_head(data[start:end], self._fields)
        fields = head.fields
        if len(fields.lines) > self._max_fields:
            raise TooManyFields()
        self._keep_from(end)
        self._scanned = 0
        self._fields = fields
        if fields.length or self._body is not None:
            self._expect_body(fields.length)
        return head

    def head_so_far(self) -> bytes:
        """Return the bytes of a request head that is incomplete or was refused."""
        data = self._waiting
        end = data.find(b"\r\n\r\n", self._begins_at) + 4
        return data[self._begins_at : end if end >= 4 else len(data)]

    def take_waiting(self) -> bytes:
        """Return the received bytes that follow the current request head, and clear the buffer.

        The returned bytes are the start of the body of the current request.
        """
        waiting = self._waiting[self._begins_at :]
        self._keep_from(len(self._waiting))
        return waiting

    def read_body(self, data: bytes) -> tuple[bytes, bool]:
        """Return the body content in `data`, and whether the body has ended.

        Bytes after the end of the body are stored for the next head.

        Raise MalformedBody if the chunks break RFC 9112 §7.1 or have more framing than content.
        """
        body = self._body
        assert body is not None
        content, ended = body.read(data)
        if ended:
            self._waiting = body.take_rest()
        return content, ended

    def chunk_lines_exceed(self, limit: int) -> bool:
        """Return True if over `limit` chunk framing lines were read since this method last returned True."""
        return self._body is not None and self._body.lines_exceed(limit)

    def discard(self) -> None:
        """Discard the buffered bytes, and treat all later bytes as a body that never ends."""
        self._keep_from(len(self._waiting))
        self._scanned = 0
        self._expect_body(UNTIL_CLOSE)

    def _expect_body(self, length: int) -> None:
        if self._body is None:
            self._body = BodyReader(excess_limit=EXCESS_FRAMING_BYTES)
        self._body.begin(length)

    def _keep_from(self, place: int) -> None:
        if place == len(self._waiting):
            self._waiting = b""
            self._begins_at = 0
        else:
            # the following bytes stay in place, because copying them for each request would be quadratic
            self._begins_at = place

    def _await_rest_of_head(self) -> None:
        data = self._waiting
        start = self._begins_at
        if data[start : start + 1] == _TLS_HANDSHAKE:
            # No head begins with this byte. A client that waits for the server's handshake is refused at
            # once.
            raise MalformedHead("the client begins a TLS handshake, but this listener has no TLS")
        if start:
            data = self._waiting = data[start:]
            self._begins_at = 0
        self._scanned = max(0, len(data) - 3)
