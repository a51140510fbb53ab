"""What an HTTP/1.1 head means and where its message ends (RFC 9112 §6); everything else is refused.

Pure: bytes in, values out. httptools judges each field (`field_lines`) and method; this module judges what
it leaves to its user: one unambiguous request line, one valid Host, one way to delimit the body, and which
fields belong to this connection alone (RFC 9110 §7.6.1).
"""

from __future__ import annotations

import re
from typing import Final

import httptools

from proxy.server.errors import MalformedBody, MalformedHead
from proxy.server.field_lines import (
    ACCEPT_ENCODING,
    AUTHORIZATION,
    CLIENT_REQUEST_ID,
    CONNECTION,
    CONTENT_ENCODING,
    CONTENT_LENGTH,
    CONTENT_TYPE,
    EXPECT,
    FORWARDED_FOR,
    HOST,
    LOCATION,
    METHOD_OVERRIDE,
    REQUEST_ID,
    TRANSFER_ENCODING,
    Field,
    Headers,
    field_lines,
)

MAX_CHUNK_LINE: Final = 256  # chunk-size and extensions; real senders need under 20 bytes
MAX_TRAILER_BYTES: Final = 8192

_MAX_REMEMBERED: Final = 1024  # of each small cache below; more are worked out anew

_REQUEST_LINE: Final = re.compile(rb"([A-Z-]+) (/[!-~]*) HTTP/1\.([01])")
_STATUS_LINE: Final = re.compile(rb"HTTP/1\.([01]) ([1-5][0-9]{2}(?: [\t -~\x80-\xff]*)?)")
_HOST: Final = re.compile(rb"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::[0-9]{0,5})?")
_DIGITS: Final = re.compile(rb"[0-9]{1,18}")
_CHUNK_LINE: Final = re.compile(
    rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[ \t]*[!#$%&'*+.^_`|~0-9A-Za-z-]+"
    rb'(?:=(?:[!#$%&\'*+.^_`|~0-9A-Za-z-]+|"(?:[\t !#-\[\]-~\x80-\xff]|\\[\t -~\x80-\xff])*"))?[ \t]*)*'
)
_TRAILER_LINE: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t -~\x80-\xff]*")


class RequestHead:
    """One request's head, judged. `length` is the body's size, or -1 for a chunked body."""

    __slots__ = (
        "accept_encoding",
        "authorization",
        "client_request_id",
        "content_encoding",
        "content_type",
        "expect_continue",
        "fields",
        "forwarded_for",
        "host",
        "http10",
        "keep_alive",
        "length",
        "method",
        "method_override",
        "nominated",
        "request_line",
        "size",
        "target",
    )

    def __init__(self, method: str, target: str, request_line: bytes, fields: list[Field], size: int) -> None:
        self.method = method
        self.target = target
        self.request_line = request_line
        self.fields = fields
        self.size = size
        self.http10 = False
        self.keep_alive = True
        self.length = 0
        self.expect_continue = False
        self.authorization: bytes | None = None
        self.host: bytes | None = None
        self.accept_encoding: bytes | None = None
        self.client_request_id: bytes | None = None
        self.content_type: bytes | None = None
        self.content_encoding: bytes | None = None
        self.method_override: bytes | None = None
        self.forwarded_for: bytes | None = None
        self.nominated: frozenset[bytes] = _NOTHING_NOMINATED

    @property
    def headers(self) -> Headers:
        """Names and values, as rules see them."""
        return [field.pair for field in self.fields]


_NOTHING_NOMINATED: Final[frozenset[bytes]] = frozenset()


def parse_request_head(head: bytes) -> RequestHead:
    """`head` ends with its empty line. Raises MalformedHead."""
    lines = head.split(b"\r\n")
    line = lines[0]
    parts = _REQUEST_LINE.fullmatch(line)
    if parts is None:
        raise _malformed_line(line)
    method, target, minor = parts.groups()
    if method not in _known_methods:
        _judge_method(method)
    fields = field_lines.read(lines[1:-2])
    request = RequestHead(method.decode("ascii"), target.decode("ascii"), line + b"\r\n", fields, len(head))
    request.http10 = minor == b"0"
    _judge_request_fields(request)
    return request


_known_methods: set[bytes] = set()


def _judge_method(method: bytes) -> None:
    """httptools knows the methods that there are."""
    if method == b"CONNECT" or method == b"TRACE":
        # TRACE would send the upstream credential back to the application.
        raise MalformedHead(f"{method.decode()} is not served here", "methodNotAllowed")
    if method == b"PRI":
        raise MalformedHead("HTTP/2 is not served here")
    try:
        httptools.HttpRequestParser(_NoCallbacks()).feed_data(method + b" / HTTP/1.1\r\n\r\n")
    except httptools.HttpParserError as error:
        raise MalformedHead(str(error)) from None
    _known_methods.add(method)


class _NoCallbacks:
    """For a parser that is only asked whether it accepts."""


def _malformed_line(line: bytes) -> MalformedHead:
    if line.startswith((b"CONNECT ", b"TRACE ")):
        return MalformedHead("CONNECT and TRACE are not served here", "methodNotAllowed")
    return MalformedHead("the request line is not 'METHOD /TARGET HTTP/1.1'")


def _judge_request_fields(request: RequestHead) -> None:  # noqa: C901 - one branch a field, in one pass
    content_length: bytes | None = None
    transfer_encoding: bytes | None = None
    connection: bytes | None = None
    seen_kinds = 0
    for field in request.fields:
        kind = field.kind
        if kind < CONNECTION:
            continue
        value = field.value
        if kind == AUTHORIZATION:
            if request.authorization is not None:
                raise MalformedHead("several Authorization fields")
            request.authorization = value.strip(b" \t")
        elif kind == HOST:
            if request.host is not None:
                raise MalformedHead("several Host fields")
            request.host = value.strip(b" \t")
        elif kind == CONNECTION:
            connection = value if connection is None else connection + b"," + value
        elif kind == ACCEPT_ENCODING:
            request.accept_encoding = (
                value if request.accept_encoding is None else request.accept_encoding + b", " + value
            )
        elif kind == CONTENT_LENGTH:
            if content_length is not None:
                raise MalformedHead("several Content-Length fields")
            content_length = value
        elif kind == TRANSFER_ENCODING:
            if transfer_encoding is not None:
                raise MalformedHead("several Transfer-Encoding fields")
            transfer_encoding = value
        elif kind == EXPECT:
            if value.strip(b" \t").lower() != b"100-continue" or seen_kinds & (1 << EXPECT):
                raise MalformedHead("the only expectation served is 100-continue", "expectationFailed")
            request.expect_continue = not request.http10
        elif kind == METHOD_OVERRIDE:
            if request.method_override not in (None, value):
                raise MalformedHead("contradicting method override fields")
            request.method_override = value
        elif kind == CLIENT_REQUEST_ID:
            request.client_request_id = value
        elif kind == CONTENT_TYPE:
            request.content_type = value
        elif kind == CONTENT_ENCODING:
            request.content_encoding = (
                value if request.content_encoding is None else request.content_encoding + b"," + value
            )
        elif kind == FORWARDED_FOR:
            request.forwarded_for = (
                value if request.forwarded_for is None else request.forwarded_for + b"," + value
            )
        seen_kinds |= 1 << kind
    _judge_host(request)
    _judge_body_framing(request, content_length, transfer_encoding)
    _judge_persistence(request, connection)


_known_hosts: set[bytes] = set()


def _judge_host(request: RequestHead) -> None:
    host = request.host
    if host is None:
        if not request.http10:
            raise MalformedHead("HTTP/1.1 needs a Host field")
    elif host not in _known_hosts:
        if not _HOST.fullmatch(host):
            raise MalformedHead("the Host field is not a host")
        if len(_known_hosts) < _MAX_REMEMBERED:
            _known_hosts.add(host)


def _judge_body_framing(request: RequestHead, length: bytes | None, coding: bytes | None) -> None:
    """RFC 9112 §6.3; both fields together, or any coding but chunked, is refused rather than resolved."""
    if coding is not None:
        if length is not None:
            raise MalformedHead("Content-Length and Transfer-Encoding contradict each other")
        if request.http10 or coding.strip(b" \t").lower() != b"chunked":
            raise MalformedHead("the only transfer coding served is chunked")
        request.length = -1
    elif length is not None:
        digits = length.rstrip(b" \t")
        if not _DIGITS.fullmatch(digits):
            raise MalformedHead("Content-Length is not a number")
        request.length = int(digits)


def _judge_persistence(request: RequestHead, connection: bytes | None) -> None:
    if request.http10:
        request.keep_alive = False  # HTTP/1.0 persistence is an extension that no client here needs
    if connection is not None:
        options = nominated_fields(connection)
        if options:
            if b"close" in options:
                request.keep_alive = False
            request.nominated = options


_known_connections: dict[bytes, frozenset[bytes]] = {
    b"keep-alive": _NOTHING_NOMINATED,
    b"Keep-Alive": _NOTHING_NOMINATED,
}


def nominated_fields(connection: bytes) -> frozenset[bytes]:
    """Lower-case names that a Connection value nominates (RFC 9110 §7.6.1)."""
    known = _known_connections.get(connection)
    if known is None:
        known = frozenset(option.strip(b" \t").lower() for option in connection.split(b","))
        known -= {b"", b"keep-alive"}
        if len(_known_connections) < _MAX_REMEMBERED:
            _known_connections[connection] = known
    return known


UNTIL_CLOSE: Final = -2
CHUNKED: Final = -1


class AnswerHead:
    """One upstream answer's head. `length` is the body's size, CHUNKED or UNTIL_CLOSE."""

    __slots__ = (
        "content_encoding",
        "content_type",
        "fields",
        "has_location",
        "keep_alive",
        "length",
        "nominated",
        "request_id",
        "status",
        "status_line",
    )

    def __init__(self, status: int, status_line: bytes, fields: list[Field]) -> None:
        self.status = status
        self.status_line = status_line
        self.fields = fields
        self.length = UNTIL_CLOSE
        self.keep_alive = True
        self.content_type: bytes | None = None
        self.content_encoding: bytes | None = None
        self.request_id: bytes | None = None
        self.has_location = False
        self.nominated: frozenset[bytes] = _NOTHING_NOMINATED

    @property
    def headers(self) -> Headers:
        """Names and values, as rules see them."""
        return [field.pair for field in self.fields]


def parse_answer_head(head: bytes, *, to_head_request: bool) -> AnswerHead:
    """Parses the head of an upstream answer that ends with its empty line. Raises MalformedHead."""
    lines = head.split(b"\r\n")
    known = _known_status_lines.get(lines[0])
    if known is None:
        known = _judge_status_line(lines[0])
    status, status_line, http10 = known
    answer = AnswerHead(status, status_line, field_lines.read(lines[1:-2]))
    _judge_answer_fields(answer, http10=http10, to_head_request=to_head_request)
    return answer


_known_status_lines: dict[bytes, tuple[int, bytes, bool]] = {}


def _judge_status_line(line: bytes) -> tuple[int, bytes, bool]:
    parts = _STATUS_LINE.fullmatch(line)
    if parts is None:
        raise MalformedHead("the status line is not one of HTTP/1.1")
    known = (int(parts[2][:3]), b"HTTP/1.1 %b\r\n" % parts[2], parts[1] == b"0")
    if len(_known_status_lines) < _MAX_REMEMBERED:
        _known_status_lines[line] = known
    return known


def _judge_answer_fields(  # noqa: C901 - one branch a field, in one pass
    answer: AnswerHead, *, http10: bool, to_head_request: bool
) -> None:
    content_length: bytes | None = None
    chunked = False
    connection: bytes | None = None
    for field in answer.fields:
        kind = field.kind
        if kind < CONNECTION:
            continue
        value = field.value
        if kind == CONTENT_LENGTH:
            if content_length is not None:
                raise MalformedHead("several Content-Length fields")
            content_length = value.rstrip(b" \t")
        elif kind == TRANSFER_ENCODING:
            if chunked or http10 or value.strip(b" \t").lower() != b"chunked":
                raise MalformedHead("the only transfer coding understood is chunked, once")
            chunked = True
        elif kind == CONNECTION:
            connection = value if connection is None else connection + b"," + value
        elif kind == CONTENT_TYPE:
            answer.content_type = value
        elif kind == CONTENT_ENCODING:
            answer.content_encoding = (
                value if answer.content_encoding is None else answer.content_encoding + b"," + value
            )
        elif kind == REQUEST_ID:
            answer.request_id = value
        elif kind == LOCATION:
            answer.has_location = True
    if connection is not None:
        answer.nominated = nominated_fields(connection)
    answer.keep_alive = not http10 and b"close" not in answer.nominated
    if chunked and content_length is not None:
        raise MalformedHead("Content-Length and Transfer-Encoding contradict each other")
    answer.length = _answer_length(answer.status, content_length, chunked, to_head_request)
    if (answer.status < 200 or answer.status == 204) and (chunked or content_length not in (None, b"0")):
        answer.keep_alive = False  # whether a body follows that can't be there is anyone's guess


def _answer_length(status: int, content_length: bytes | None, chunked: bool, to_head_request: bool) -> int:
    """RFC 9112 §6.3, in its order."""
    if content_length is not None and not _DIGITS.fullmatch(content_length):
        raise MalformedHead("Content-Length is not a number")
    if to_head_request or status < 200 or status == 204 or status == 304:
        return 0
    if chunked:
        return CHUNKED
    return UNTIL_CLOSE if content_length is None else int(content_length)


class ChunkedDecoder:
    """Decodes a chunked body (RFC 9112 §7.1), strictly; trailers are checked and dropped."""

    __slots__ = ("_line", "_remaining", "_state", "_trailer_bytes", "done", "rest")

    _SIZE, _DATA, _DATA_END, _TRAILER = range(4)

    def __init__(self) -> None:
        self._state = self._SIZE
        self._remaining = 0
        self._line = b""
        self._trailer_bytes = 0
        self.done = False
        self.rest = b""  # bytes after the body's end, once `done`

    def feed(self, data: bytes) -> bytes:
        """Returns the payload in `data` without its framing. Raises MalformedBody."""
        payload: list[bytes] = []
        position = 0
        size = len(data)
        while position < size:
            if self._state == self._DATA:
                piece = data[position : position + self._remaining]
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
        return payload[0] if len(payload) == 1 else b"".join(payload)

    def _take_line(self, line: bytes) -> None:
        if line[-2:] != b"\r\n":
            raise MalformedBody("a line of the chunked body does not end with CRLF")
        content = line[:-2]
        if self._state == self._SIZE:
            match = _CHUNK_LINE.fullmatch(content)
            if match is None:
                raise MalformedBody("a chunk's size line is malformed")
            self._remaining = int(match[1], 16)
            self._state = self._DATA if self._remaining else self._TRAILER
        elif self._state == self._DATA_END:
            if content:
                raise MalformedBody("a chunk is longer than its size")
            self._state = self._SIZE
        elif not content:
            self.done = True
        else:
            self._trailer_bytes += len(line)
            if self._trailer_bytes > MAX_TRAILER_BYTES or not _TRAILER_LINE.fullmatch(content):
                raise MalformedBody("the trailer section is malformed or too large")
