"""Parse header field lines, once per spelling, because an SDK sends the same lines with every request.

httptools checks each new line. The parser remembers each accepted line by its bytes, with the parsed field
and the forwarded form of the line. Each field line is checked alone, because RFC 9112 §5 gives each field
line its own grammar. Conflicts between lines, such as two lengths, are checked in `request_head` and
`response_head`. The gain: `bench/test_head.py`.
"""

from __future__ import annotations

import re
from typing import Final

import httptools

from proxy.policy.bounded_memo import BoundedMemo, WhenFull
from proxy.policy.unsupported_requests import names_method_override
from proxy.server.errors import MalformedHead

# Meaning of a field name for the proxy. 0 is an ordinary end-to-end field.
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
RANGE: Final = 17
TRACEPARENT: Final = 18
CONDITIONAL: Final = 19

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
    b"content-type": CONTENT_TYPE,
    b"content-encoding": CONTENT_ENCODING,
    b"location": LOCATION,
    b"content-location": LOCATION,
    b"operation-location": LOCATION,
    b"link": LOCATION,
    b"request-id": REQUEST_ID,
    b"content-md5": BODY_DIGEST,
    b"digest": BODY_DIGEST,
    b"content-digest": BODY_DIGEST,
    b"repr-digest": BODY_DIGEST,
    b"x-forwarded-for": FORWARDED_FOR,
    b"range": RANGE,
    b"if-range": RANGE,
    b"traceparent": TRACEPARENT,
    b"if-none-match": CONDITIONAL,
    b"if-modified-since": CONDITIONAL,
}

_OF_ONE_CONNECTION: Final = frozenset({HOP_BY_HOP, CONNECTION, TRANSFER_ENCODING})

_MOST_LINES: Final = 4096  # lines that are remembered, and names in a separate memo
_LONGEST_LINE: Final = 2048  # bytes of a line; proxy tokens have about 500
_LONGEST_NAME: Final = 64  # bytes of a name
MOST_REMEMBERED_LINES: Final = 64  # remembered lines of one head; SDKs need about 15, and services about 20

Headers = list[tuple[bytes, bytes]]


class Field:
    """A parsed HTTP header field.

    `line` is the forwarded form of the field; `relayed` is empty for a hop-by-hop field.
    """

    __slots__ = ("kind", "line", "name", "relayed", "value")

    def __init__(self, name: bytes, value: bytes, kind: int, line: bytes) -> None:
        self.name = name
        self.value = value
        self.kind = kind
        self.line = line
        self.relayed = b"" if kind in _OF_ONE_CONNECTION else line

    @property
    def pair(self) -> tuple[bytes, bytes]:
        """Name and value of the header field, in the form that rules evaluate."""
        return self.name, self.value

    def holding(self, value: bytes) -> Field:
        """Return a copy of this header field with the value `value`, and with a line that has this value."""
        return Field(self.name, value, self.kind, b"%b: %b\r\n" % (self.name, value))


class _Callbacks:
    __slots__ = ("headers",)

    def __init__(self) -> None:
        self.headers: Headers = []

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name, value))


class FieldLines:
    """Parser of header field lines whose line ends are already removed."""

    __slots__ = ("_kinds", "_known")

    def __init__(self) -> None:
        self._known: BoundedMemo[bytes, Field] = BoundedMemo(_MOST_LINES, _LONGEST_LINE, WhenFull.CLEAR)
        # Names that httptools has accepted, in their spelling.
        self._kinds: BoundedMemo[bytes, int] = BoundedMemo(_MOST_LINES, _LONGEST_NAME, WhenFull.CLEAR)

    def read(self, lines: list[bytes]) -> list[Field]:
        """Return the header fields that the lines contain. Raise MalformedHead if a line is malformed."""
        fields = list(map(self._known.entries.get, lines))
        if None in fields:
            self._read_new(lines, fields)
        return fields  # type: ignore[return-value]  # no None is left

    def _read_new(self, lines: list[bytes], fields: list[Field | None]) -> None:
        for at, field in enumerate(fields):
            if field is None:
                line = lines[at]
                # The common case: a known name, and a value that needs no further check.
                name, _, value = line.partition(b": ")
                kind = self._kinds.entries.get(name)
                if kind is not None and PLAIN_VALUE.fullmatch(value):
                    field = Field(name, value, kind, line + b"\r\n")
                else:
                    field = self._of_new_name(line)
                fields[at] = field
                if field.kind not in _EVER_NEW:
                    self._known.keep(line, field)

    def _of_new_name(self, line: bytes) -> Field:
        name, value = _parsed(line)
        kind = METHOD_OVERRIDE if names_method_override(name) else _KIND_OF.get(name.lower(), 0)
        self._kinds.keep(name, kind)
        return Field(name, value, kind, b"%b: %b\r\n" % (name, value))


_EVER_NEW: Final = frozenset({CLIENT_REQUEST_ID, REQUEST_ID, TRACEPARENT})

# It begins and ends with a visible character (RFC 9110 §5.5), so nothing must be trimmed.
PLAIN_VALUE: Final = re.compile(rb"[!-~\x80-\xff](?:[\t -~\x80-\xff]*[!-~\x80-\xff])?")


def _parsed(line: bytes) -> tuple[bytes, bytes]:
    callbacks = _Callbacks()
    try:
        httptools.HttpRequestParser(callbacks).feed_data(b"GET / HTTP/1.1\r\n%b\r\n\r\n" % line)
    except httptools.HttpParserError as error:
        raise MalformedHead(_fault(line) or str(error)) from None
    if len(callbacks.headers) != 1:
        raise MalformedHead(_fault(line) or "a line of the header section is not a header field")
    return callbacks.headers[0]


_NAME: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110 §5.1
_VALUE: Final = re.compile(rb"[\t -~\x80-\xff]*")


def _fault(line: bytes) -> str | None:
    """Return the fault of a line that httptools refuses, in words for the sender."""
    if line[:1] in (b" ", b"\t"):
        return "a line of the header section begins with a space; send each header field on one line"
    name, colon, value = line.partition(b":")
    if not colon:
        return "a line of the header section has no colon, so it is not a header field"
    if not name:
        return "a header field has no name"
    if name != name.rstrip(b" \t"):
        return "a header field has a space between its name and the colon"
    if not _NAME.fullmatch(name):
        return "the name of a header field contains a character that is not allowed in one (RFC 9110 §5.1)"
    shown = name[:_LONGEST_NAME].decode("ascii")
    if b"\r" in value or b"\n" in value:
        return f"the value of header field {shown} contains a bare CR or LF"
    if not _VALUE.fullmatch(value):
        return f"the value of header field {shown} contains a control character"
    if name.lower() == b"content-length":
        return _fault_of_length(value.strip(b" \t"))
    if name.lower() == b"transfer-encoding":
        return ONLY_CHUNKED
    return None


ONLY_CHUNKED: Final = "the only supported transfer coding is chunked"


def _fault_of_length(value: bytes) -> str:
    if not value:
        return "Content-Length is empty"
    if b"," in value:
        return "Content-Length has several values; send one"
    if value.isdigit():
        return f"Content-Length has more than {_MAX_DIGITS} digits"
    return "Content-Length is not a number of decimal digits"


field_lines: Final = FieldLines()


# Change every character that a value may not contain. Comparing the result takes a third of the time of a
# pattern.
_WITHOUT_CONTROLS: Final = bytes(
    char ^ 0x80 if (char < 0x20 and char != 0x09) or char == 0x7F else char for char in range(0x100)
)
_SPACE: Final = 0x20


class VaryingLines:
    """Find the values of the fields `names`, which differ between the heads that one sender sends.

    A line matches if it spells a name exactly as `names` does, and if its value is empty or begins with a
    visible character. Two heads are compared without the values of their matching lines. Two heads that
    differ only in these values count as equal.
    """

    __slots__ = ("_pattern",)

    def __init__(self, names: tuple[bytes, ...]) -> None:
        self._pattern = re.compile(
            rb"(\r\n(?:" + b"|".join(names) + rb"): )(|[!-~\x80-\xff][\t -~\x80-\xff]*)(?=\r\n)"
        )

    def layout(self, head: bytes) -> Layout:
        """Return the positions of the field values that vary, in the HTTP header section `head`."""
        return Layout(head, [found.span(2) for found in self._pattern.finditer(head)])


class Layout:
    """Positions of the values that vary between heads which are otherwise the same, byte for byte."""

    __slots__ = ("_around", "_size", "_spans", "spelling")

    def __init__(self, head: bytes, spans: list[tuple[int, int]]) -> None:
        self._size = len(head)
        self._spans = spans
        self._around: list[tuple[int, int, bytes]] = []  # start, end and the bytes between them
        done = 0
        for start, end in [*spans, (len(head), len(head))]:
            self._around.append((done, start, head[done:start]))
            done = end
        self.spelling = b"".join([piece for _, _, piece in self._around])

    def values(self, head: bytes) -> list[bytes]:
        """Return the field values that vary in `head`.

        This layout must have been made from the same `head`.
        """
        return [head[start:end] for start, end in self._spans]

    def values_if_same(self, head: bytes) -> list[bytes] | None:
        """Return the field values that vary in `head`, if all its other bytes are the same as in this layout.

        Return None if the length or other bytes of the head are different, or if a value is not valid.
        """
        if len(head) != self._size:
            return None
        for start, end, piece in self._around:
            if head[start:end] != piece:
                return None
        values = self.values(head)
        for value in values:
            if value and value[0] <= _SPACE:
                return None
        together = b"".join(values)
        return values if together.translate(_WITHOUT_CONTROLS) == together else None

    def lines(self, head: bytes) -> dict[int, int]:
        """Map the number of each header line that has a varying value to the index of the value in `values`.

        The first line after the start line has the number 0.
        """
        return {head.count(b"\r\n", 0, start) - 1: which for which, (start, _) in enumerate(self._spans)}


_MAX_DIGITS: Final = 18
_DIGITS: Final = re.compile(rb"[0-9]{1,%d}" % _MAX_DIGITS)


def length_of(content_length: bytes) -> int:
    """Return the number in a Content-Length value. Raise MalformedHead if the value is not a valid length."""
    if len(content_length) <= _MAX_DIGITS and content_length.isdigit():
        return int(content_length)
    digits = content_length.rstrip(b" \t")
    if not _DIGITS.fullmatch(digits):
        raise MalformedHead(_fault_of_length(digits))
    return int(digits)


def joined(before: bytes | None, value: bytes) -> bytes:
    """Join two lines of a list field into one line with the same meaning (RFC 9110 §5.3)."""
    return value if before is None else before + b", " + value


_MOST_CONNECTIONS: Final = 1024  # values of the header field that are remembered
_LONGEST_CONNECTION: Final = 256  # bytes of such a value
_known_connections: Final[BoundedMemo[bytes, frozenset[bytes]]] = BoundedMemo(
    _MOST_CONNECTIONS, _LONGEST_CONNECTION, WhenFull.KEEP
)


def listed_fields(connection: bytes) -> frozenset[bytes]:
    """Return the lower-case field names that a Connection value lists (RFC 9110 §7.6.1)."""
    known = _known_connections.entries.get(connection)
    if known is None:
        known = frozenset(option.strip(b" \t").lower() for option in connection.split(b","))
        known -= {b"", b"keep-alive"}
        _known_connections.keep(connection, known)
    return known
