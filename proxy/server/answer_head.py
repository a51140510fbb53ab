"""What an upstream answer's head means and where the answer ends (RFC 9112 §6); everything else is refused.

Pure: bytes in, values out. httptools judges each field (`field_lines`); this module judges what it leaves to
its user.
"""

from __future__ import annotations

import re
from typing import Final

from proxy.server.errors import MalformedHead
from proxy.server.field_lines import (
    CONNECTION,
    CONTENT_ENCODING,
    CONTENT_LENGTH,
    CONTENT_TYPE,
    LOCATION,
    REQUEST_ID,
    TRANSFER_ENCODING,
    Field,
    Headers,
    field_lines,
    nominated_fields,
)

_MAX_REMEMBERED: Final = 1024  # status lines; more are judged anew
_STATUS_LINE: Final = re.compile(rb"HTTP/1\.([01]) ([1-5][0-9]{2}(?: [\t -~\x80-\xff]*)?)")
_DIGITS: Final = re.compile(rb"[0-9]{1,18}")

_NOTHING: Final[frozenset[bytes]] = frozenset()

UNTIL_CLOSE: Final = -2
CHUNKED: Final = -1


class AnswerHead:
    """One upstream answer's head. `length` is the body's size, CHUNKED or UNTIL_CLOSE."""

    __slots__ = (
        "content_encoding",
        "content_type",
        "fields",
        "keep_alive",
        "length",
        "nominated",
        "plain",
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
        self.nominated: frozenset[bytes] = _NOTHING
        self.plain = True  # no field needs more than to be written on or left out

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
    _judge_fields(answer, http10=http10, to_head_request=to_head_request)
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


def _judge_fields(  # noqa: C901 - one branch a field, in one pass
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
            answer.plain = False
    if connection is not None:
        answer.nominated = nominated_fields(connection)
        answer.plain = answer.plain and not answer.nominated
    answer.keep_alive = not http10 and b"close" not in answer.nominated
    if chunked and content_length is not None:
        raise MalformedHead("Content-Length and Transfer-Encoding contradict each other")
    answer.length = _body_length(answer.status, content_length, chunked, to_head_request)
    if answer.status < 200 or answer.status == 204:
        answer.plain = answer.plain and content_length is None  # there is no body, and so no length
        if chunked or content_length not in (None, b"0"):
            answer.keep_alive = False  # whether a body follows that can't be there is anyone's guess


def _body_length(status: int, content_length: bytes | None, chunked: bool, to_head_request: bool) -> int:
    """RFC 9112 §6.3, in its order."""
    if content_length is not None and not _DIGITS.fullmatch(content_length):
        raise MalformedHead("Content-Length is not a number")
    if to_head_request or status < 200 or status == 204 or status == 304:
        return 0
    if chunked:
        return CHUNKED
    return UNTIL_CLOSE if content_length is None else int(content_length)
