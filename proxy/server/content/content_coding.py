"""Decode the content codings of HTTP messages (RFC 9110 §8.4), within a limit of the output size."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Protocol

import brotli

MAX_CODINGS = 3  # no real sender nests more; each one multiplies the decompressed size of a small body
MAX_GZIP_MEMBERS = 1024  # each needs a new window; real concatenations have a few
PIECE = 65536

_DECODABLE = frozenset({"gzip", "x-gzip", "deflate", "br", "identity"})


class ContentCodingError(ValueError):
    """Error because a content coding is unknown, data is damaged or truncated, or the output is too large."""


class DecompressedTooLarge(ContentCodingError):
    """Error because the decompressed output is larger than allowed."""


class _Stage(Protocol):
    """Decoder of one content coding.

    After a call of `step`, call `step` with b"" until `pending` is false.
    """

    pending: bool
    finished: bool

    def step(self, data: bytes) -> bytes: ...


class _Gzip:
    """Decoder of gzip (RFC 1952): a series of members, each a deflate stream with its checksum and length."""

    def __init__(self) -> None:
        self.pending = False
        self.finished = False
        self._members = 0
        self._rest = b""
        self._member = zlib.decompressobj(wbits=31)

    def step(self, data: bytes) -> bytes:
        data = self._rest + data if self._rest else data
        if self.finished and data:
            self._next_member()
        try:
            output = self._member.decompress(data, PIECE)
        except zlib.error as error:
            raise ContentCodingError("damaged gzip data") from error
        self.finished = self._member.eof
        self._rest = self._member.unused_data if self.finished else self._member.unconsumed_tail
        self.pending = bool(self._rest) or (not self.finished and len(output) == PIECE)
        return output

    def _next_member(self) -> None:
        self._members += 1
        if self._members >= MAX_GZIP_MEMBERS:
            raise ContentCodingError("the gzip data consists of too many gzip members")
        self._member = zlib.decompressobj(wbits=31)
        self.finished = False


class _Deflate:
    """Decoder of deflate (RFC 9110 §8.4.1.2): zlib format, or deflate without a zlib header."""

    def __init__(self) -> None:
        self.pending = False
        self.finished = False
        self._stream: zlib._Decompress | None = None
        self._rest = b""

    def step(self, data: bytes) -> bytes:
        data = self._rest + data if self._rest else data
        if self._stream is None:
            in_zlib = _has_zlib_header(data)
            if len(data) < 2 or (in_zlib and len(data) < 5):
                self._rest = data
                return b""
            if in_zlib and _begins_stored_block(data):
                raise ContentCodingError("ambiguous deflate data")
            self._stream = zlib.decompressobj(wbits=15 if in_zlib else -15)
        if self.finished and data:
            raise ContentCodingError("the body has bytes after the end of its deflate data")
        try:
            output = self._stream.decompress(data, PIECE)
        except zlib.error as error:
            raise ContentCodingError("damaged deflate data") from error
        self.finished = self._stream.eof
        if self._stream.unused_data:
            raise ContentCodingError("the body has bytes after the end of its deflate data")
        self._rest = self._stream.unconsumed_tail
        self.pending = not self.finished and (bool(self._rest) or len(output) == PIECE)
        return output


def _has_zlib_header(data: bytes) -> bool:
    """Return True for a zlib header (RFC 1950 §2.2): method 8, window up to 32 KiB, check value."""
    return len(data) > 1 and data[0] & 0x0F == 8 and data[0] >> 4 <= 7 and (data[0] << 8 | data[1]) % 31 == 0


def _begins_stored_block(data: bytes) -> bool:
    """Return True if data with a zlib header is also a valid deflate stream without a header.

    Such data begins like a stored deflate block (RFC 1951 §3.2.4): with type bits, a length, and the
    complement of the length.
    """
    return data[1] ^ data[3] == 0xFF and data[2] ^ data[4] == 0xFF


class _Brotli:
    """Decoder of Brotli (RFC 7932).

    The brotli library rejects bytes after the end of the compressed data. The brotli library may exceed the
    output limit by one block.
    """

    def __init__(self) -> None:
        self.pending = False
        self.finished = False
        self._rest = b""
        self._stream = brotli.Decompressor()

    def step(self, data: bytes) -> bytes:
        if self.finished:
            if data:
                raise ContentCodingError("the body has bytes after the end of its br data")
            return b""
        data, self._rest = self._rest + data, b""
        if not self._stream.can_accept_more_data():
            data, self._rest = b"", data  # the library takes no input before its output is read
        try:
            output: bytes = self._stream.process(data, output_buffer_limit=PIECE)
        except brotli.error as error:
            raise ContentCodingError("damaged br data") from error
        self.finished = self._stream.is_finished()
        if self.finished and self._rest:
            raise ContentCodingError("the body has bytes after the end of its br data")
        more = len(output) >= PIECE or not self._stream.can_accept_more_data()
        self.pending = not self.finished and (more or bool(self._rest))
        return output


def _stage(coding: str) -> _Stage | None:
    name = coding.strip(" \t").lower()
    if name in ("gzip", "x-gzip"):
        return _Gzip()
    if name == "deflate":
        return _Deflate()
    if name == "br":
        return _Brotli()
    if name == "identity":
        return None
    raise ContentCodingError("unknown content coding")


class StreamDecoder:
    """Decoder for the content codings of a body that arrives in chunks.

    The decoder returns its output in pieces of limited size.

    Each call of `feed` returns about 64 KiB of output at most, and for Brotli one block more. While `pending`
    is true, more output is available without further input: call `feed(b"")` again. The output of each
    content coding, not only of the last, must not exceed `limit`. A decompression bomb in an inner coding
    therefore costs no more than a bomb in the outer coding.
    """

    def __init__(self, codings: Sequence[str], *, limit: int | None = None) -> None:
        if len(codings) > MAX_CODINGS:
            raise ContentCodingError("the body has too many content codings")
        # listed in the order in which they were applied
        stages = [_stage(coding) for coding in reversed(codings)]
        self._stages = [stage for stage in stages if stage is not None]
        self._sizes = [0] * len(self._stages)
        self._limit = limit
        self._started = False

    @property
    def pending(self) -> bool:
        return any(stage.pending for stage in self._stages)

    def feed(self, chunk: bytes) -> bytes:
        if chunk:
            self._started = True
        data = chunk
        # A stage with pending output runs first, so that earlier stages do not pile up more input for it.
        busy = [index for index, stage in enumerate(self._stages) if stage.pending]
        first = busy[-1] if busy and not chunk else 0
        for index in range(first, len(self._stages)):
            stage = self._stages[index]
            if data or stage.pending:
                data = stage.step(data)
                self._sizes[index] += len(data)
                if self._limit is not None and self._sizes[index] > self._limit:
                    raise DecompressedTooLarge("the body decompresses to more bytes than the limit allows")
        return data

    def finish(self) -> bytes:
        """End the decoding of a body.

        Before the call of `finish`, the caller must have read all decoded output.

        Raise ContentCodingError if the compressed data is truncated.
        """
        if self.pending:
            raise ContentCodingError("the decoder was finished before all decoded bytes were read")
        if self._started and not all(stage.finished for stage in self._stages):
            raise ContentCodingError("truncated data")
        return b""


def decode(body: bytes, codings: Sequence[str], *, limit: int) -> bytes:
    """Return the body after all content codings are removed.

    `codings` is in the order of Content-Encoding, so the coding that was applied first comes first.
    """
    if len(body) > limit:
        raise DecompressedTooLarge("the body is larger than the limit")
    decoder = StreamDecoder(codings, limit=limit)
    pieces: list[bytes] = []
    for start in range(0, len(body), PIECE):
        pieces.append(decoder.feed(body[start : start + PIECE]))
        while decoder.pending:
            pieces.append(decoder.feed(b""))
    decoder.finish()
    return b"".join(pieces)


def split_codings(content_encoding: bytes) -> list[str]:
    """Return the content codings in a Content-Encoding value, first the coding that was applied first."""
    names = (name.strip(" \t").lower() for name in content_encoding.decode("latin-1").split(","))
    return [name for name in names if name]


def acceptable(accept_encoding: str) -> str:
    """Return an Accept-Encoding value (RFC 9110 §12.5.3) without the codings that the proxy cannot decode.

    The names of the remaining codings keep their spelling.
    """
    elements = [element.strip(" \t") for element in accept_encoding.split(",")]
    kept = [element for element in elements if element.split(";", 1)[0].rstrip(" \t").lower() in _DECODABLE]
    if len(kept) == len(elements):
        return accept_encoding
    return ", ".join(kept) or "identity"
