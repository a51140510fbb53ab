"""Parse an upstream response head and find where the response ends (RFC 9112 §6). Refuse invalid heads.

httptools checks each field (`field_lines`). The module `response_head` checks the status line and conflicts
between header fields. The module `response_head` does no input or output.

The response heads of a service differ only in a few values. So the proxy parses each spelling of the
unchanging parts of a head only once, and remembers the result. `bench/test_head.py` measures the time that
these remembered parse results save.
"""

from __future__ import annotations

import re
from typing import Final

from proxy.policy.bounded_memo import BoundedMemo, WhenFull
from proxy.server.errors import MalformedHead
from proxy.server.http1.body_reader import CHUNKED, UNTIL_CLOSE
from proxy.server.http1.field_lines import (
    CONNECTION,
    CONTENT_ENCODING,
    CONTENT_LENGTH,
    CONTENT_TYPE,
    LOCATION,
    MOST_REMEMBERED_LINES,
    REQUEST_ID,
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

_MOST_SPELLINGS: Final = 256  # spellings of a head that are remembered
_LONGEST_SPELLING: Final = 4096  # bytes of a spelling; heads of Graph need about 600

_STATUS_LINE: Final = re.compile(rb"HTTP/1\.([01]) ([1-5][0-9]{2}(?: [\t -~\x80-\xff]*)?)")

# Names as services spell them.
_VARYING: Final = VaryingLines((b"Content-Length", b"Date", b"request-id", b"client-request-id"))


class ResponseFields:
    """Parsed fields that are common to all response heads that differ only in values such as `Date`."""

    __slots__ = (
        "chunked",
        "content_encoding",
        "content_length",
        "content_type",
        "cut",
        "id_at",
        "keep_alive",
        "length_at",
        "lines",
        "listed",
        "plain",
        "relayed",
        "request_id",
        "status",
        "status_line",
        "values_at",
    )

    def __init__(self, status: int, status_line: bytes, lines: list[Field], cut: dict[int, int]) -> None:
        self.status = status
        self.status_line = status_line
        self.lines = lines
        self.cut = cut  # index of the varying value by line; the values are not stored here
        self.length_at: int | None = None  # its index among the varying values
        self.id_at: int | None = None
        self.keep_alive = True
        self.chunked = False
        self.content_length: bytes | None = None
        self.content_type: bytes | None = None
        self.content_encoding: bytes | None = None
        self.request_id: bytes | None = None
        self.listed: frozenset[bytes] = frozenset()
        self.plain = True  # every field is either forwarded unchanged or left out
        self.relayed: list[bytes] = []  # the forwarded head, if plain, in pieces around the values
        self.values_at: list[tuple[int, int]] = []  # index of the value by index of its piece


class ResponseHead:
    """Head of an upstream response. `length` is the size of the response body, CHUNKED or UNTIL_CLOSE."""

    __slots__ = ("fields", "keep_alive", "length", "request_id", "status", "values")

    def __init__(
        self,
        fields: ResponseFields,
        values: list[bytes],
        length: int,
        keep_alive: bool,
        request_id: bytes | None,
    ) -> None:
        self.fields = fields
        self.values = values
        self.status = fields.status
        self.length = length
        self.keep_alive = keep_alive
        self.request_id = request_id

    @property
    def lines(self) -> list[Field]:
        lines = self.fields.lines.copy()
        for at, which in self.fields.cut.items():
            lines[at] = lines[at].holding(self.values[which])
        return lines

    @property
    def headers(self) -> Headers:
        """Names and values of the header fields, in the form that rules evaluate."""
        return [field.pair for field in self.lines]


_known_fields: Final[BoundedMemo[bytes, ResponseFields]] = BoundedMemo(
    _MOST_SPELLINGS, _LONGEST_SPELLING, WhenFull.CLEAR
)
# The last head, by size.
_by_size: Final[BoundedMemo[int, tuple[Layout, ResponseFields]]] = BoundedMemo(
    _MOST_SPELLINGS, None, WhenFull.CLEAR
)


def parse_response_head(head: bytes, *, to_head_request: bool) -> ResponseHead:
    """Return the parsed head of an upstream response.

    `head` ends with the empty line after the header section.

    Raise MalformedHead if the head is not valid.
    """
    fields, values = _fields_and_values(head)
    content_length = fields.content_length if fields.length_at is None else values[fields.length_at]
    request_id = fields.request_id if fields.id_at is None else values[fields.id_at]
    keep_alive = fields.keep_alive
    status = fields.status
    said = None if content_length is None else length_of(content_length)
    # In the order of RFC 9112 §6.3.
    if to_head_request or status == 304:
        length = 0
    elif status < 200 or status == 204:
        length = 0
        if fields.chunked or (content_length or b"0").rstrip(b" \t") != b"0":
            keep_alive = False  # a body is not allowed here, so it is unknown whether one follows
    elif fields.chunked:
        length = CHUNKED
    else:
        length = UNTIL_CLOSE if said is None else said
    return ResponseHead(fields, values, length, keep_alive, request_id)


def _fields_and_values(head: bytes) -> tuple[ResponseFields, list[bytes]]:
    last = _by_size.entries.get(len(head))
    if last is not None:
        values = last[0].values_if_same(head)
        if values is not None:
            return last[1], values
    layout = _VARYING.layout(head)
    fields = _known_fields.entries.get(layout.spelling)
    if fields is None:
        fields = _remembered(head, layout)
    elif len(head) <= _LONGEST_SPELLING:
        _by_size.keep(len(head), (layout, fields))
    return fields, layout.values(head)


def _remembered(head: bytes, layout: Layout) -> ResponseFields:
    status_line, *lines = head.split(b"\r\n")[:-2]
    status, own_status_line, http10 = _evaluated_status_line(status_line)
    fields = ResponseFields(status, own_status_line, field_lines.read(lines), layout.lines(head))
    _check_fields(fields, http10=http10)
    _arrange(fields)
    _leave_values_out(fields)
    kept = len(lines) <= MOST_REMEMBERED_LINES and _known_fields.keep(layout.spelling, fields)
    # all other heads were forgotten, so their sizes are obsolete
    if kept and len(_known_fields.entries) == 1:
        _by_size.entries.clear()
    return fields


def _leave_values_out(fields: ResponseFields) -> None:
    for at in fields.cut:
        fields.lines[at] = fields.lines[at].holding(b"")
    if fields.length_at is not None:
        fields.content_length = None
    if fields.id_at is not None:
        fields.request_id = None


def _evaluated_status_line(line: bytes) -> tuple[int, bytes, bool]:
    parts = _STATUS_LINE.fullmatch(line)
    if parts is None:
        raise MalformedHead("the status line is not valid in HTTP/1.1")
    return int(parts[2][:3]), b"HTTP/1.1 %b\r\n" % parts[2], parts[1] == b"0"


def _check_fields(fields: ResponseFields, *, http10: bool) -> None:  # noqa: C901 - one branch a field, in one pass
    connection: bytes | None = None
    for at, field in enumerate(fields.lines):
        kind = field.kind
        value = field.value
        if kind == CONTENT_LENGTH:
            if fields.content_length is not None:
                raise MalformedHead("several Content-Length fields")
            fields.content_length = value
            fields.length_at = fields.cut.get(at)
        elif kind == TRANSFER_ENCODING:
            if fields.chunked or http10 or value.strip(b" \t").lower() != b"chunked":
                raise MalformedHead("the only supported transfer coding is chunked, applied once")
            fields.chunked = True
        elif kind == CONNECTION:
            connection = joined(connection, value)
        elif kind == CONTENT_TYPE:
            fields.content_type = value
        elif kind == CONTENT_ENCODING:
            fields.content_encoding = joined(fields.content_encoding, value)
        elif kind == REQUEST_ID:
            fields.request_id = value
            fields.id_at = fields.cut.get(at)
        elif kind == LOCATION:
            fields.plain = False
    if fields.chunked and fields.content_length is not None:
        raise MalformedHead("Content-Length and Transfer-Encoding contradict each other")
    if connection is not None:
        fields.listed = listed_fields(connection)
    fields.keep_alive = not http10 and b"close" not in fields.listed
    if fields.listed or ((fields.status < 200 or fields.status == 204) and fields.content_length is not None):
        fields.plain = False


def _arrange(fields: ResponseFields) -> None:
    """Build the forwarded form of a head in which each field is forwarded unchanged or left out."""
    piece = fields.status_line
    for at, field in enumerate(fields.lines):
        which = fields.cut.get(at)
        if which is None or not field.relayed:
            piece += field.relayed
            continue
        fields.relayed += [piece + field.name + b": ", b""]
        fields.values_at.append((len(fields.relayed) - 1, which))
        piece = b"\r\n"
    fields.relayed.append(piece)
