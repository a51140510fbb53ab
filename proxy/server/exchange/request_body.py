"""Buffer of a request body, which the proxy streams, collects for rules, or keeps to send it again.

The module `request_body` does no input or output. The exchange chooses the `BodyMode` of a request body.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from proxy.server.content.charset import is_utf8
from proxy.server.content.content_coding import (
    ContentCodingError,
    DecompressedTooLarge,
    decode,
    split_codings,
)
from proxy.server.errors import Refusal
from proxy.server.http1.chunked import framed_chunk
from proxy.server.http1.request_head import RequestHead

REPEAT_BYTES: Final = 64 * 1024  # bytes of a body to keep until the upstream has accepted the proxy's token


class BodyMode(Enum):
    """Mode in which the proxy handles the pieces of a request body."""

    STREAM = "stream"  # each piece is passed on; pieces that precede the upstream connection wait for it
    REPEATABLE = "repeatable"  # all pieces are kept, so that the request can be sent again
    COLLECTED = "collected"  # all pieces are kept for rules to read
    REPLACED = "replaced"  # another body is sent: a batch without the refused sub-requests


# Final names, because interpreted Python reads an enum's member slowly.
_STREAM: Final = BodyMode.STREAM
_REPEATABLE: Final = BodyMode.REPEATABLE
_COLLECTED: Final = BodyMode.COLLECTED
_REPLACED: Final = BodyMode.REPLACED


class RequestBody:
    """Body of one HTTP request.

    `length` is the declared length of the body in bytes, or negative if the body is chunked.
    """

    __slots__ = ("_pieces", "length", "mode", "whole")

    def __init__(self, length: int) -> None:
        self.length = length
        self.mode = _STREAM
        self.whole = length == 0  # its last byte has arrived
        self._pieces: list[bytes] = []

    def __repr__(self) -> str:
        return f"<RequestBody {self.mode.value}{' whole' if self.whole else ''}>"

    @property
    def kept(self) -> bool:
        """True if the proxy keeps every piece of the body after sending the piece."""
        return self.mode is not _STREAM

    @property
    def repeatable(self) -> bool:
        """True if the body is complete and kept, so that the request can be sent again."""
        return self.whole and (self.mode is not _STREAM or self.length == 0)

    @property
    def replaced_length(self) -> int | None:
        """Length of the body that the proxy sends in place of the client's body; None without such a body."""
        return sum(map(len, self._pieces)) if self.mode is _REPLACED else None

    def collect(self) -> None:
        """Keep every piece of the body for rules to read."""
        self.mode = _COLLECTED

    def pass_on(self) -> None:
        """Switch a collected body to streaming, unless it is complete.

        The proxy then passes on the collected pieces and each later piece of the body.
        """
        if not self.whole:
            self.mode = _STREAM

    def keep_if_small(self, *, awaited: bool) -> bool:
        """Keep every further piece of a small body, so that the proxy can repeat the request.

        Return False, and change nothing, if the body is too large or is already kept. `awaited` is True if
        the client waits for the response 100 (Continue).
        """
        if self.mode is not _STREAM or not 0 < self.length <= REPEAT_BYTES or awaited:
            return False
        self.mode = _REPEATABLE
        return True

    def replaced_by(self, body: bytes) -> RequestBody:
        """Return the body to send upstream instead of the client's body.

        The client's body is not changed, because it may be the shared NO_BODY.
        """
        other = RequestBody(self.length)
        other.mode = _REPLACED
        other.whole = self.whole
        other._pieces = [body]
        return other

    def add(self, piece: bytes) -> None:
        """Store a piece of the request body, at least until an upstream connection is available."""
        self._pieces.append(piece)

    def take_for_upstream(self) -> bytes:
        """Return the body pieces that have arrived, framed for the upstream.

        Release the returned pieces, unless the proxy keeps all pieces of the body.
        """
        body = b"".join(self._pieces)
        if self.mode is _STREAM:
            self._pieces = []
        return self.framed(body)

    def framed(self, piece: bytes) -> bytes:
        """Frame a piece of the request body for the upstream.

        After the last byte of the request body, the framed piece also contains the last chunk.
        """
        return piece if self.length >= 0 else framed_chunk(piece, self.whole)

    def readable(self, head: RequestHead, limit: int) -> bytes:
        """Return the request body in the form that rules read: without its content codings.

        Raise Refusal if the body is not in UTF-8 or cannot be decompressed. Raise Refusal also if the
        decompressed body is longer than `limit` bytes.
        """
        body = _decompressed(b"".join(self._pieces), head.fields.content_encoding, limit)
        for name, value in head.headers:
            if name.lower() == b"content-type" and not is_utf8(value.decode("latin-1"), body):
                raise Refusal(
                    "badRequest",
                    "The request body must be in UTF-8, because a rule reads it.",
                    "malformedRequest",
                )
        return body


NO_BODY: Final = RequestBody(0)  # shared by all requests without a body


def body_too_large() -> Refusal:
    """Return the refusal of a request whose body is too large for the rules to read."""
    return Refusal(
        "payloadTooLarge", "The body is larger than a rule may read.", "payloadTooLarge", close=True
    )


def _decompressed(body: bytes, coding: bytes | None, limit: int) -> bytes:
    if coding is None:
        return body
    try:
        return decode(body, split_codings(coding), limit=limit)
    except DecompressedTooLarge:
        raise body_too_large() from None
    except ContentCodingError as error:
        raise Refusal(
            "badRequest", f"A rule can't read the request body: {error}.", "malformedRequest"
        ) from None
