"""Decode a chunked body strictly, and find its end (RFC 9112 §7.1).

The module `chunked` does no input or output.
"""

from __future__ import annotations

import re
from typing import Final

from proxy.server.errors import MalformedBody

_CHUNK_END: Final = b"\r\n"
_LAST_CHUNK: Final = b"0\r\n\r\n"
_END_WITH_LAST_CHUNK: Final = _CHUNK_END + _LAST_CHUNK

MAX_CHUNK_LINE: Final = 256  # bytes of chunk size and extensions; real senders need under 20
MAX_TRAILER_BYTES: Final = 8192

_CHUNK_LINE: Final = re.compile(
    rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[ \t]*[!#$%&'*+.^_`|~0-9A-Za-z-]+"
    rb'(?:=(?:[!#$%&\'*+.^_`|~0-9A-Za-z-]+|"(?:[\t !#-\[\]-~\x80-\xff]|\\[\t -~\x80-\xff])*"))?[ \t]*)*'
)
_TRAILER_LINE: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t -~\x80-\xff]*")


def chunk_frame(size: int, last: bool) -> tuple[bytes, bytes]:
    """Return the bytes before and after a chunk of `size` bytes; the last chunk ends the body."""
    if size:
        return b"%x\r\n" % size, _END_WITH_LAST_CHUNK if last else _CHUNK_END
    return b"", _LAST_CHUNK if last else b""


def framed_chunk(chunk: bytes, last: bool) -> bytes:
    """Return a chunk with its framing bytes."""
    before, behind = chunk_frame(len(chunk), last)
    return b"%b%b%b" % (before, chunk, behind)


class ChunkedDecoder:
    """Strict decoder of a chunked body (RFC 9112 §7.1).

    Trailer fields of a chunked body are checked and discarded.
    """

    __slots__ = ("_line", "_remaining", "_state", "_trailer_bytes", "done", "excess", "lines", "rest")

    _SIZE: Final = 0
    _DATA: Final = 1
    _DATA_END: Final = 2
    _TRAILER: Final = 3

    def __init__(self) -> None:
        self._state = self._SIZE
        self._remaining = 0
        self._line = b""
        self._trailer_bytes = 0
        self.done = False
        self.excess = 0  # bytes of framing beyond those of content
        self.lines = 0  # lines of framing, which cost more than the content between them
        self.rest = b""  # bytes after the end of the body, when `done`

    def feed(self, data: bytes) -> bytes:
        """Return the payload of the chunks in `data`, without the framing.

        Raise MalformedBody if a chunk is malformed.
        """
        payload: list[bytes] = []
        position = 0
        size = len(data)
        while position < size:
            if self._state == self._DATA:
                # avoids a slice, which is a copy in compiled code
                whole = position == 0 and size <= self._remaining
                piece = data if whole else data[position : position + self._remaining]
                payload.append(piece)
                position += len(piece)
                self._remaining -= len(piece)
                if self._remaining == 0:
                    self._state = self._DATA_END
                continue
            end = data.find(b"\n", position)
            part = data[position:] if end < 0 else data[position : end + 1]
            self._line += part
            position += len(part)
            if len(self._line) > MAX_CHUNK_LINE and self._state != self._TRAILER:
                raise MalformedBody("a chunk's size line is too long")
            if end < 0:
                if self._state == self._TRAILER and len(self._line) > MAX_TRAILER_BYTES:
                    raise MalformedBody("the trailer section is too large")
                break
            line, self._line = self._line, b""
            self._take_line(line)
            if self.done:
                self.rest = data[position:]
                break
        content = payload[0] if len(payload) == 1 else b"".join(payload)
        self.excess = max(0, self.excess + position - 2 * len(content))
        return content

    def _take_line(self, line: bytes) -> None:
        if line[-2:] != b"\r\n":
            raise MalformedBody("a line of the chunked body does not end with CRLF")
        self.lines += 1
        content = line[:-2]
        if self._state == self._SIZE:
            match = _CHUNK_LINE.fullmatch(content)
            if match is None:
                raise MalformedBody("a chunk's size line is malformed")
            self._remaining = int(match[1], 16)
            self._state = self._DATA if self._remaining else self._TRAILER
        elif self._state == self._DATA_END:
            if content:
                raise MalformedBody("a chunk of the body is longer than its size line says")
            self._state = self._SIZE
        elif not content:
            self.done = True
        else:
            self._trailer_bytes += len(line)
            if self._trailer_bytes > MAX_TRAILER_BYTES:
                raise MalformedBody("the trailer section is too large")
            if not _TRAILER_LINE.fullmatch(content):
                raise MalformedBody("a line of the trailer section is not a header field")
