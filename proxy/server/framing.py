"""What an HTTP/1.1 head means and where its message ends (RFC 9112 §6); everything else is refused.

Pure: bytes in, values out. httptools splits a head into fields and refuses most of what the grammar
refuses; this module adds what it leaves to its user: one unambiguous request line, one valid Host, one way
to delimit the body, and which fields belong to this connection alone (RFC 9110 §7.6.1).
"""

from __future__ import annotations

import re
from typing import Final

import httptools

from proxy.server.errors import MalformedBody, MalformedHead

MAX_CHUNK_LINE: Final = 256  # chunk-size and extensions; real senders need under 20 bytes
MAX_TRAILER_BYTES: Final = 8192

# What a field name means to us. 0 is an ordinary end-to-end field.
HOP_BY_HOP: Final = 1
CONNECTION: Final = 2
HOST: Final = 3
AUTHORIZATION: Final = 4
CONTENT_LENGTH: Final = 5
TRANSFER_ENCODING: Final = 6
EXPECT: Final = 7
ACCEPT_ENCODING: Final = 8
CLIENT_REQUEST_ID: Final = 9
METHOD_OVERRIDE: Final = 10
CONTENT_TYPE: Final = 11
CONTENT_ENCODING: Final = 12
LOCATION: Final = 13
REQUEST_ID: Final = 14
BODY_DIGEST: Final = 15
FORWARDED_FOR: Final = 16

_KIND_OF: Final[dict[bytes, int]] = {
    b"keep-alive": HOP_BY_HOP,
    b"proxy-connection": HOP_BY_HOP,
    b"proxy-authenticate": HOP_BY_HOP,
    b"proxy-authorization": HOP_BY_HOP,
    b"te": HOP_BY_HOP,
    b"trailer": HOP_BY_HOP,
    b"upgrade": HOP_BY_HOP,
    b"http2-settings": HOP_BY_HOP,
    b"connection": CONNECTION,
    b"host": HOST,
    b"authorization": AUTHORIZATION,
    b"content-length": CONTENT_LENGTH,
    b"transfer-encoding": TRANSFER_ENCODING,
    b"expect": EXPECT,
    b"accept-encoding": ACCEPT_ENCODING,
    b"client-request-id": CLIENT_REQUEST_ID,
    b"x-http-method-override": METHOD_OVERRIDE,
    b"x-http-method": METHOD_OVERRIDE,
    b"x-method-override": METHOD_OVERRIDE,
    b"content-type": CONTENT_TYPE,
    b"content-encoding": CONTENT_ENCODING,
    b"location": LOCATION,
    b"content-location": LOCATION,
    b"operation-location": LOCATION,
    b"request-id": REQUEST_ID,
    b"content-md5": BODY_DIGEST,
    b"digest": BODY_DIGEST,
    b"content-digest": BODY_DIGEST,
    b"repr-digest": BODY_DIGEST,
    b"x-forwarded-for": FORWARDED_FOR,
}
_KIND_CACHE_SIZE: Final = 1024

_METHOD: Final = re.compile(rb"[A-Z-]+")
_HOST: Final = re.compile(rb"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::[0-9]{0,5})?")
_CONTROL: Final = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_DIGITS: Final = re.compile(rb"[0-9]{1,18}")
_CHUNK_LINE: Final = re.compile(
    rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[ \t]*[!#$%&'*+.^_`|~0-9A-Za-z-]+"
    rb'(?:=(?:[!#$%&\'*+.^_`|~0-9A-Za-z-]+|"(?:[\t !#-\[\]-~\x80-\xff]|\\[\t -~\x80-\xff])*"))?[ \t]*)*'
)
_TRAILER_LINE: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t -~\x80-\xff]*")

Headers = list[tuple[bytes, bytes]]


class FieldKinds:
    """Field name in any spelling to its kind, remembered per spelling so that a known one costs one look-
    up."""

    __slots__ = ("_seen",)

    def __init__(self) -> None:
        self._seen: dict[bytes, int] = {}

    def __call__(self, name: bytes) -> int:
        kind = self._seen.get(name)
        if kind is None:
            kind = _KIND_OF.get(name.lower(), 0)
            if len(self._seen) < _KIND_CACHE_SIZE:
                self._seen[name] = kind
        return kind


kind_of: Final = FieldKinds()


class _RequestFields:
    """The callbacks of one httptools request parser."""

    __slots__ = ("headers", "url")

    def __init__(self) -> None:
        self.headers: Headers = []
        self.url = b""

    def on_url(self, url: bytes) -> None:
        self.url = url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name, value))


class RequestHead:
    """One request's head, judged. `length` is the body's size, or -1 for a chunked body."""

    __slots__ = (
        "accept_encoding",
        "authorization",
        "client_request_id",
        "content_encoding",
        "content_type",
        "expect_continue",
        "forwarded_for",
        "headers",
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

    def __init__(self, method: str, target: str, request_line: bytes, headers: Headers, size: int) -> None:
        self.method = method
        self.target = target
        self.request_line = request_line
        self.headers = headers
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


_NOTHING_NOMINATED: Final[frozenset[bytes]] = frozenset()


class RequestParser:
    """Parses the heads of one connection, one whole head at a time."""

    __slots__ = ("_fields", "_parser")

    def __init__(self) -> None:
        self._fields = _RequestFields()
        self._parser = httptools.HttpRequestParser(self._fields)

    def parse(self, head: bytes) -> RequestHead:
        """`head` ends with its empty line. Raises MalformedHead."""
        fields = self._fields
        headers: Headers = []
        fields.headers = headers
        fields.url = b""
        try:
            self._parser.feed_data(head)
        except httptools.HttpParserUpgrade:
            self.renew()  # an Upgrade that we don't offer is ignored (RFC 9110 §7.8)
        except httptools.HttpParserError as error:
            raise MalformedHead(str(error)) from None
        method = self._method(head)
        url = fields.url
        line = head[: len(method) + len(url) + 12]
        if line == b"%b %b HTTP/1.1\r\n" % (method, url):
            http10 = False
        elif line == b"%b %b HTTP/1.0\r\n" % (method, url):
            http10 = True
        else:
            raise MalformedHead("the request line is not 'METHOD TARGET HTTP/1.1'")
        if url[:1] != b"/":
            raise MalformedHead("the target must be a path on this server")
        request = RequestHead(method.decode("ascii"), url.decode("ascii"), line, headers, len(head))
        request.http10 = http10
        _judge_request_fields(request)
        if request.length:
            self.renew()  # the parser now waits for a body that it will not be shown
        return request

    def renew(self) -> None:
        self._parser = httptools.HttpRequestParser(self._fields)

    def _method(self, head: bytes) -> bytes:
        method = head.partition(b" ")[0]
        if not _METHOD.fullmatch(method):  # httptools skips line ends before the method
            raise MalformedHead("the request line does not begin with a method")
        if method == b"CONNECT" or method == b"TRACE":
            # TRACE would send the upstream credential back to the application.
            raise MalformedHead(f"{method.decode()} is not served here", "methodNotAllowed")
        return method


def _judge_request_fields(request: RequestHead) -> None:  # noqa: C901 - one branch a field, in one pass
    content_length: bytes | None = None
    transfer_encoding: bytes | None = None
    connection: bytes | None = None
    seen_kinds = 0
    for name, value in request.headers:
        kind = kind_of(name)
        if kind < CONNECTION:
            continue
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
        if len(_known_hosts) < _KIND_CACHE_SIZE:
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
        if len(_known_connections) < _KIND_CACHE_SIZE:
            _known_connections[connection] = known
    return known


class _AnswerFields:
    """The callbacks of one httptools response parser."""

    __slots__ = ("headers",)

    def __init__(self) -> None:
        self.headers: Headers = []

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name, value))


UNTIL_CLOSE: Final = -2
CHUNKED: Final = -1


class AnswerHead:
    """One upstream answer's head. `length` is the body's size, CHUNKED or UNTIL_CLOSE."""

    __slots__ = (
        "content_encoding",
        "content_type",
        "has_location",
        "headers",
        "keep_alive",
        "length",
        "nominated",
        "request_id",
        "status",
        "status_line",
    )

    def __init__(self, status: int, status_line: bytes, headers: Headers) -> None:
        self.status = status
        self.status_line = status_line
        self.headers = headers
        self.length = UNTIL_CLOSE
        self.keep_alive = True
        self.content_type: bytes | None = None
        self.content_encoding: bytes | None = None
        self.request_id: bytes | None = None
        self.has_location = False
        self.nominated: frozenset[bytes] = _NOTHING_NOMINATED


def parse_answer_head(head: bytes, *, to_head_request: bool) -> AnswerHead:
    """Parses the head of an upstream answer that ends with its empty line. Raises MalformedHead."""
    fields = _AnswerFields()
    parser = httptools.HttpResponseParser(fields)
    try:
        parser.feed_data(head)
    except httptools.HttpParserUpgrade:
        pass
    except httptools.HttpParserError as error:
        raise MalformedHead(str(error)) from None
    version = head[:9]
    if version != b"HTTP/1.1 " and version != b"HTTP/1.0 ":
        raise MalformedHead("the answer is not HTTP/1.1")
    line = head[9 : head.index(b"\r\n") + 2]
    if _CONTROL.search(line, 0, len(line) - 2):
        raise MalformedHead("the answer's reason phrase has control characters")
    status = parser.get_status_code()
    if not 100 <= status <= 599:
        raise MalformedHead("the answer's status is not one of HTTP's")
    answer = AnswerHead(status, b"HTTP/1.1 " + line, fields.headers)
    _judge_answer_fields(answer, http10=version == b"HTTP/1.0 ", to_head_request=to_head_request)
    return answer


def _judge_answer_fields(  # noqa: C901 - one branch a field, in one pass
    answer: AnswerHead, *, http10: bool, to_head_request: bool
) -> None:
    content_length: bytes | None = None
    chunked = False
    connection: bytes | None = None
    for name, value in answer.headers:
        kind = kind_of(name)
        if kind < CONNECTION:
            continue
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
