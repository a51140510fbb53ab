"""Parse a request head and find where the request ends (RFC 9112 §6).

The parser refuses every ambiguous head. httptools checks each field (`field_lines`) and the method. This
module checks the rest of a head: one unambiguous request line, one valid Host, one way to delimit the body,
and the fields that belong only to this connection (RFC 9110 §7.6.1). The module `request_head` does no input
or output.

An application sends the same fields with every request, except `client-request-id`. The proxy therefore
caches the parsed fields, except `client-request-id`, for each set of field lines. The gain:
`bench/test_head.py`.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

import httptools

from proxy.policy.bounded_memo import BoundedMemo, WhenFull
from proxy.server.errors import MalformedHead
from proxy.server.http1.body_reader import CHUNKED
from proxy.server.http1.field_lines import (
    AUTHORIZATION,
    CLIENT_REQUEST_ID,
    CONDITIONAL,
    CONNECTION,
    CONTENT_ENCODING,
    CONTENT_LENGTH,
    CONTENT_TYPE,
    EXPECT,
    FORWARDED_FOR,
    HOST,
    METHOD_OVERRIDE,
    MOST_REMEMBERED_LINES,
    ONLY_CHUNKED,
    RANGE,
    TRACEPARENT,
    TRANSFER_ENCODING,
    Field,
    Headers,
    Layout,
    VaryingLines,
    field_lines,
    joined,
    length_of,
    listed_fields,
)
from proxy.server.http1.request_line import HOST_AND_PORT, absolute_form, method_not_allowed, unknown_method
from proxy.wire.trace_context import trace_of

_MOST_SPELLINGS: Final = 512  # spellings of a header section that are remembered
_LONGEST_SPELLING: Final = 4096  # bytes of a spelling; SDKs need about 1,000

_REQUEST_LINE: Final = re.compile(rb"([A-Z-]+) (/[!-~]*) HTTP/1\.([01])\r\n")
_OF_OUR_OWN: Final = frozenset({AUTHORIZATION, HOST, TRANSFER_ENCODING, CONTENT_LENGTH})
_VARYING: Final = VaryingLines((b"client-request-id",))  # spelled as every SDK spells it


class UpstreamForm(NamedTuple):
    """Header fields in the form that the upstream receives.

    `read` is True if the request accepts only content codings that the proxy can decode. `id_between` is True
    if the value of `client-request-id` must be inserted between `before` and `after`.
    """

    host: bytes
    authorization: bytes
    read: bool
    id_between: bool
    before: bytes
    after: bytes


class RequestFields:
    """Checked header fields of a request.

    `length` is the size of the request body, or -1 for a chunked body.
    """

    __slots__ = (
        "authorization",
        "client_request_id",
        "conditional",
        "content_encoding",
        "content_type",
        "expect_continue",
        "forwarded_for",
        "host",
        "id_at",
        "id_pair_at",
        "keep_alive",
        "layout",
        "length",
        "lines",
        "listed",
        "method_override",
        "pairs",
        "ranged",
        "traceparent",
        "upstream_form",
    )

    def __init__(self, lines: list[Field], id_at: int | None) -> None:
        self.lines = lines
        # index of the line whose value differs between requests, and so is not stored here
        self.id_at = id_at
        self.keep_alive = True
        self.length = 0
        self.expect_continue = False
        self.authorization: bytes | None = None
        self.host: bytes | None = None
        self.client_request_id: bytes | None = None
        self.content_type: bytes | None = None
        self.content_encoding: bytes | None = None
        self.method_override: bytes | None = None
        self.forwarded_for: bytes | None = None
        self.traceparent: bytes | None = None  # empty, and so invalid, if there are several
        self.conditional = False  # a response may state that nothing has changed
        self.ranged = False  # only a range of the response is requested
        self.listed: frozenset[bytes] = frozenset()
        self.layout: Layout | None = None  # layout of the last such head, if it is remembered
        self.upstream_form: UpstreamForm | None = None  # remembered by `forwarded_headers`
        self.pairs: Headers | None = None  # names and values for rules, after a rule has read them
        # index of the pair in `pairs` whose value differs between requests
        self.id_pair_at: int | None = None

    def is_listed_in_connection(self, field: Field) -> bool:
        """Return True if Connection lists this header field, and the proxy does not set the field itself."""
        return field.kind not in _OF_OUR_OWN and field.name.lower() in self.listed

    def stays_here(self, field: Field) -> bool:
        """Return True if the proxy does not forward this header field to the upstream."""
        return (not field.relayed and field.kind not in _OF_OUR_OWN) or self.is_listed_in_connection(field)

    def seen_by_rules(self, client_request_id: bytes | None) -> Headers:
        """Return the header fields that the upstream receives.

        Only the header fields that the upstream receives may affect a verdict.
        """
        pairs = self.pairs
        if pairs is None:
            seen = [field for field in self.lines if not self.stays_here(field)]
            pairs = self.pairs = [field.pair for field in seen]
            if self.id_at is not None and self.lines[self.id_at] in seen:
                self.id_pair_at = seen.index(self.lines[self.id_at])
        at = self.id_pair_at
        if at is not None:
            pairs = pairs.copy()
            pairs[at] = (pairs[at][0], client_request_id or b"")
        return pairs


class RequestHead:
    """Validated head of one HTTP request. `request_line` has the form that the upstream receives."""

    __slots__ = ("client_request_id", "fields", "http10", "method", "request_line", "target")

    def __init__(
        self,
        method: str,
        target: str,
        request_line: bytes,
        fields: RequestFields,
        client_request_id: bytes | None,
        http10: bool,
    ) -> None:
        self.method = method
        self.target = target
        self.request_line = request_line
        self.fields = fields
        self.client_request_id = client_request_id
        self.http10 = http10

    @property
    def trace(self) -> str | None:
        """The caller's trace ID, span ID and flags, if the request has one valid `traceparent`."""
        value = self.fields.traceparent
        return None if value is None else trace_of(value)

    @property
    def headers(self) -> Headers:
        """Names and values of the header fields, in the form that rules evaluate."""
        return self.fields.seen_by_rules(self.client_request_id)


_known_fields: Final[BoundedMemo[bytes, RequestFields]] = BoundedMemo(
    _MOST_SPELLINGS, _LONGEST_SPELLING, WhenFull.CLEAR
)
_known_methods: Final[dict[bytes, str]] = {}


def parse_request_head(head: bytes, last: RequestFields | None = None) -> RequestHead:
    """Parse and check a request head. Raise MalformedHead if the head is not valid.

    `head` ends with the empty line after the header section. `last` contains the header fields of the
    connection's previous request. A client usually sends the same header fields in each request of a
    connection, so the function can use `last` again.
    """
    line = _REQUEST_LINE.match(head)
    if line is None:
        return _parse_absolute_form(head)
    method, target, minor = line.groups()
    name = _known_methods.get(method) or _evaluated_method(method)
    end = line.end()
    if minor == b"0":
        fields = _read_fields(head[end - 2 :], None, http10=True)
        request_line = b"%b %b HTTP/1.1\r\n" % (method, target)
        own_id = fields.client_request_id
        return RequestHead(name, target.decode(), request_line, fields, own_id, http10=True)
    section = head[end - 2 :]
    fields, values = _fields_and_values(section, last)
    own_id = fields.client_request_id if fields.id_at is None else values[0]
    return RequestHead(name, target.decode(), head[:end], fields, own_id, http10=False)


def _parse_absolute_form(head: bytes) -> RequestHead:
    """Parse a head whose target is an absolute URL of the proxy (RFC 9112 §3.2.2).

    The path of the URL becomes the request target. The proxy has no list of its own host names, so the Host
    field may contain any name of the proxy. A client must send the same host in the Host field and in the
    request target (RFC 9112 §3.2). A request with different hosts in its Host field and its request target is
    therefore ambiguous.
    """
    line, _, section = head.partition(b"\r\n")
    absolute = absolute_form(line)
    parsed = parse_request_head(b"%b\r\n%b" % (absolute.line, section))
    host = parsed.fields.host
    if host is None:  # HTTP/1.0: the target has what a Host field would
        return parse_request_head(b"%b\r\nHost: %b\r\n%b" % (absolute.line, absolute.authority, section))
    if not absolute.is_same_host(host):
        raise MalformedHead(
            "the target and the Host field name different hosts; send the proxy's host in both",
            reason="malformedTarget",
        )
    return parsed


def _fields_and_values(section: bytes, last: RequestFields | None) -> tuple[RequestFields, list[bytes]]:
    if last is not None and last.layout is not None:
        values = last.layout.values_if_same(section)
        if values is not None:
            return last, values
    layout = _VARYING.layout(section)
    known = _known_fields.entries.get(layout.spelling)
    if known is None:
        known = _remembered(section, layout)
    else:
        known.layout = layout
    return known, layout.values(section)


def _remembered(section: bytes, layout: Layout) -> RequestFields:
    places = list(layout.lines(section))
    if len(places) > 1:  # no real client sends two ids
        return _read_fields(section, None, http10=False)
    fields = _read_fields(section, places[0] if places else None, http10=False)
    if fields.id_at is not None:
        fields.lines[fields.id_at] = fields.lines[fields.id_at].holding(b"")
        fields.client_request_id = None
    if len(fields.lines) <= MOST_REMEMBERED_LINES and _known_fields.keep(layout.spelling, fields):
        fields.layout = layout
    return fields


def _read_fields(section: bytes, id_at: int | None, *, http10: bool) -> RequestFields:
    """Return the fields of a header section.

    `section` begins with the CRLF at the end of the request line.
    """
    fields = RequestFields(field_lines.read(section.split(b"\r\n")[1:-2]), id_at)
    _check_fields(fields, http10=http10)
    return fields


def _evaluated_method(method: bytes) -> str:
    """Return the request method in the form that rules evaluate.

    The parser httptools has already rejected a method that does not exist.
    """
    if method == b"CONNECT" or method == b"TRACE":
        raise method_not_allowed(method)
    if method == b"PRI":
        raise MalformedHead("the proxy does not support HTTP/2; use HTTP/1.1", reason="unsupported")
    try:
        httptools.HttpRequestParser(_NoCallbacks()).feed_data(method + b" / HTTP/1.1\r\n\r\n")
    except httptools.HttpParserError:
        raise unknown_method(method) from None
    name = _known_methods[method] = method.decode()
    return name


class _NoCallbacks:
    """Receiver for httptools without callbacks, because the proxy uses httptools only to check the input."""


def _check_fields(fields: RequestFields, *, http10: bool) -> None:  # noqa: C901 - one branch a field, in one pass
    content_length: bytes | None = None
    transfer_encoding: bytes | None = None
    connection: bytes | None = None
    seen_kinds = 0
    for field in fields.lines:
        kind = field.kind
        if kind < CONNECTION:
            continue
        value = field.value
        if kind == AUTHORIZATION:
            if fields.authorization is not None:
                raise MalformedHead("several Authorization fields")
            fields.authorization = value.strip(b" \t")
        elif kind == HOST:
            if fields.host is not None:
                raise MalformedHead("several Host fields")
            fields.host = value.strip(b" \t")
        elif kind == CONNECTION:
            connection = joined(connection, value)
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
                raise MalformedHead(
                    "the only supported value of the Expect field is 100-continue", "expectationFailed"
                )
            fields.expect_continue = not http10
        elif kind == METHOD_OVERRIDE:
            if fields.method_override not in (None, value):
                raise MalformedHead("the method override fields contradict each other")
            fields.method_override = value
        elif kind == CLIENT_REQUEST_ID:
            fields.client_request_id = value
        elif kind == RANGE:
            fields.ranged = True
        elif kind == CONDITIONAL:
            fields.conditional = True
        elif kind == CONTENT_TYPE:
            fields.content_type = value
        elif kind == CONTENT_ENCODING:
            fields.content_encoding = joined(fields.content_encoding, value)
        elif kind == FORWARDED_FOR:
            fields.forwarded_for = joined(fields.forwarded_for, value)
        elif kind == TRACEPARENT:
            fields.traceparent = value if fields.traceparent is None else b""
        seen_kinds |= 1 << kind
    _check_host(fields.host, http10=http10)
    fields.length = _body_length(content_length, transfer_encoding, http10=http10)
    if connection is not None:
        fields.listed = listed_fields(connection)
        if b"expect" in fields.listed:
            fields.expect_continue = False  # the upstream does not receive the field
        if b"content-encoding" in fields.listed:
            fields.content_encoding = None  # no later step decodes the body
    # HTTP/1.0 keep-alive is an extension that no client here needs.
    fields.keep_alive = not http10 and b"close" not in fields.listed


def _check_host(host: bytes | None, *, http10: bool) -> None:
    if host is None:
        if not http10:
            raise MalformedHead("an HTTP/1.1 request needs a Host field")
    elif not HOST_AND_PORT.fullmatch(host):
        raise MalformedHead(_fault_of_host(host))


def _fault_of_host(host: bytes) -> str:
    if not host:
        return "the Host field is empty"
    if b"," in host:
        return "the Host field names several hosts"
    if b"@" in host:
        return "the Host field contains user information; it takes a host and a port"
    if not host.isascii():
        return "the Host field contains a byte beyond ASCII; write an international name in its xn-- form"
    if b"/" in host or b"?" in host or b"#" in host:
        return "the Host field contains more than a host and a port"
    return "the Host field is not a host, or its port is not a number of at most five digits"


def _body_length(length: bytes | None, coding: bytes | None, *, http10: bool) -> int:
    """Return the length of a request body (RFC 9112 §6.3).

    The parser refuses a head with both Content-Length and Transfer-Encoding, or with a transfer coding other
    than chunked.
    """
    if coding is not None:
        if length is not None:
            raise MalformedHead("Content-Length and Transfer-Encoding contradict each other")
        if coding.strip(b" \t").lower() != b"chunked":
            raise MalformedHead(ONLY_CHUNKED)
        if http10:
            raise MalformedHead("Transfer-Encoding needs HTTP/1.1 in the request line")
        return CHUNKED
    return 0 if length is None else length_of(length)
