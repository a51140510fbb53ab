"""The body of a request on its way: passed on, kept for a repetition, or collected for rules.

Pure: bytes in, bytes out. The exchange decides which of these it is.
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

REPEAT_BYTES: Final = 64 * 1024  # a body up to this size is kept until the upstream has accepted our token


class BodyMode(Enum):
    """What becomes of the pieces of a body."""

    STREAM = "stream"  # each is passed on; those that come before the upstream connection wait for it
    REPEATABLE = "repeatable"  # all are kept, so that the request can be sent once more
    COLLECTED = "collected"  # all are kept for rules to read
    REPLACED = "replaced"  # another body is sent: a batch without the sub-requests that were refused


# Final names: the interpreted form reads an enum's member slowly.
_STREAM: Final = BodyMode.STREAM
_REPEATABLE: Final = BodyMode.REPEATABLE
_COLLECTED: Final = BodyMode.COLLECTED
_REPLACED: Final = BodyMode.REPLACED


class RequestBody:
    """The body of one request. `length` is its declared length, negative if it is chunked."""

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
        """Return True if no piece is given up when it is sent."""
        return self.mode is not _STREAM

    @property
    def repeatable(self) -> bool:
        """Return True if the body is whole and kept, so that the request can be sent once more."""
        return self.whole and (self.mode is not _STREAM or self.length == 0)

    @property
    def replaced_length(self) -> int | None:
        """Length of the body that is sent in place of this one, or None."""
        return sum(map(len, self._pieces)) if self.mode is _REPLACED else None

    def collect(self) -> None:
        """Keep every piece for rules to read."""
        self.mode = _COLLECTED

    def pass_on(self) -> None:
        """Pass on the collected pieces and those to come, unless the body is whole."""
        if not self.whole:
            self.mode = _STREAM

    def keep_if_small(self, *, awaited: bool) -> bool:
        """Keep every piece from now on if the body is small. Return False if it is not, or if it is kept
        already. `awaited` means that the client waits to be asked for it."""
        if self.mode is not _STREAM or not 0 < self.length <= REPEAT_BYTES or awaited:
            return False
        self.mode = _REPEATABLE
        return True

    def replaced_by(self, body: bytes) -> RequestBody:
        """Return the body to send instead of this one, which may be NO_BODY and so belong to others too."""
        other = RequestBody(self.length)
        other.mode = _REPLACED
        other.whole = self.whole
        other._pieces = [body]
        return other

    def add(self, piece: bytes) -> None:
        """Keep a piece, at least until the upstream connection is there."""
        self._pieces.append(piece)

    def take_for_upstream(self) -> bytes:
        """Return the pieces that are here, framed for the upstream, and give up those that are not kept."""
        body = b"".join(self._pieces)
        if self.mode is _STREAM:
            self._pieces = []
        return self.framed(body)

    def framed(self, piece: bytes) -> bytes:
        """Frame a piece for the upstream: the last one if the body is whole."""
        return piece if self.length >= 0 else framed_chunk(piece, self.whole)

    def readable(self, head: RequestHead, limit: int) -> bytes:
        """Return the body as rules read it, without its content codings. Raises Refusal if it is not in
        UTF-8, cannot be decompressed, or is longer than `limit` bytes decompressed."""
        body = _decompressed(b"".join(self._pieces), head.fields.content_encoding, limit)
        for name, value in head.headers:
            if name.lower() == b"content-type" and not is_utf8(value.decode("latin-1"), body):
                raise Refusal("badRequest", "A rule reads bodies in UTF-8 alone.", "malformedRequest")
        return body


NO_BODY: Final = RequestBody(0)  # of every request without one


def body_too_large() -> Refusal:
    """Return the refusal of a body that is larger than a rule may read."""
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
        raise Refusal("badRequest", f"A rule can't read the body: {error}.", "malformedRequest") from None
