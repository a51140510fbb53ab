"""Find the end of a message body (RFC 9112 §6.3): by length, last chunk or close of the connection.

The module `body_reader` does no input or output. The proxy reads the bodies of requests and of responses with
`BodyReader`.
"""

from __future__ import annotations

from typing import Final

from proxy.server.errors import MalformedBody
from proxy.server.http1.chunked import ChunkedDecoder

CHUNKED: Final = -1  # used instead of a length: the body ends at its last chunk
UNTIL_CLOSE: Final = -2  # used instead of a length: the body ends when the connection closes


class BodyReader:
    """Reader of the message bodies that arrive on one connection, one after another.

    A new body reader expects no body until its method `begin` is called. `remaining` is the number of bytes
    of the body that are missing, or CHUNKED or UNTIL_CLOSE if the size is unknown. `remaining` is 0 as soon
    as the message body has ended.
    """

    __slots__ = ("_chunks", "_excess_limit", "_rest", "remaining")

    def __init__(self, *, excess_limit: int | None = None) -> None:
        """Set the limit for the framing bytes of chunked bodies.

        In a chunked body, framing bytes may exceed content bytes by at most `excess_limit`.
        """
        self._excess_limit = excess_limit
        self._chunks: ChunkedDecoder | None = None
        self._rest = b""
        self.remaining = 0

    def __repr__(self) -> str:
        remaining = {CHUNKED: "chunked", UNTIL_CLOSE: "until the close"}.get(self.remaining, self.remaining)
        return f"<BodyReader remaining={remaining}>"

    def begin(self, length: int) -> None:
        """Expect a body of `length` bytes, or of unknown size (CHUNKED or UNTIL_CLOSE)."""
        self.remaining = length
        self._rest = b""
        self._chunks = ChunkedDecoder() if length == CHUNKED else None

    def end(self) -> None:
        """Expect no further bytes of the current body."""
        self.remaining = 0
        self._chunks = None

    def read(self, data: bytes) -> tuple[bytes, bool]:
        """Return the body content in `data`, and True if the body has ended.

        Bytes after the end of the body stay in the buffer, and `take_rest` returns them. Raise MalformedBody
        if the chunks break RFC 9112 §7.1, or if their framing bytes exceed the limit.
        """
        remaining = self.remaining
        if remaining < 0:
            return self._read_chunks(data) if remaining == CHUNKED else (data, False)
        if len(data) > remaining:
            self._rest = data[remaining:]
            data = data[:remaining]
        remaining -= len(data)
        self.remaining = remaining
        return data, remaining == 0

    def take_rest(self) -> bytes:
        """Return the bytes that follow the end of the body, and remove these bytes from the buffer."""
        rest, self._rest = self._rest, b""
        return rest

    def lines_exceed(self, limit: int) -> bool:
        """Return True if more than `limit` framing lines were read since this method last returned True."""
        chunks = self._chunks
        if chunks is None or chunks.lines <= limit:
            return False
        chunks.lines = 0
        return True

    def _read_chunks(self, data: bytes) -> tuple[bytes, bool]:
        chunks = self._chunks
        assert chunks is not None
        content = chunks.feed(data)
        limit = self._excess_limit
        if limit is not None and chunks.excess > limit:
            raise MalformedBody("the chunked body has more bytes of framing than of content")
        if chunks.done:
            self.remaining = 0
            self._rest = chunks.rest
        return content, chunks.done
