"""The heads that cross: what the upstream sees of the application's, and the application of the upstream's.

Names, values, case and order stay as they came; only what contracts §4 names is different.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from proxy.server.field_lines import (
    ACCEPT_ENCODING,
    AUTHORIZATION,
    BODY_DIGEST,
    CONNECTION,
    CONTENT_ENCODING,
    CONTENT_LENGTH,
    EXPECT,
    HOP_BY_HOP,
    HOST,
    LOCATION,
    TRANSFER_ENCODING,
)
from proxy.server.framing import CHUNKED, AnswerHead, RequestHead

KEPT: Final = -3  # a body as long as the upstream said, if it said so
_FRAMING: Final = frozenset({CONTENT_LENGTH, TRANSFER_ENCODING})
_NEVER_TO_CLIENT: Final = frozenset({HOP_BY_HOP, CONNECTION, TRANSFER_ENCODING})


def head_for_upstream(  # noqa: C901 - one branch a kind of field, in one pass
    head: RequestHead,
    *,
    host: bytes,
    authorization: bytes,
    readable_codings: Callable[[bytes], bytes],
    body_held: bool,
    replaced_length: int | None,
) -> bytes:
    """The application's head with Host and Authorization replaced and hop-by-hop fields dropped.

    `body_held` says that the whole body is here, so that nobody needs to be told to go on with it;
    `replaced_length` is the size of another, uncoded body that goes up instead.
    """
    nominated = head.nominated
    line = head.request_line
    parts = [line if not head.http10 else line[:-3] + b"1\r\n"]
    append = parts.append
    for field in head.fields:
        kind = field.kind
        if kind == 0:
            if nominated and field.name.lower() in nominated:
                continue
            append(field.line)
        elif kind == HOP_BY_HOP or kind == CONNECTION:
            continue
        elif kind == AUTHORIZATION:
            append(b"%b: %b\r\n" % (field.name, authorization))
        elif kind == HOST:
            append(b"%b: %b\r\n" % (field.name, host))
        elif nominated and kind not in _FRAMING and field.name.lower() in nominated:
            continue
        elif kind == ACCEPT_ENCODING:
            append(b"%b: %b\r\n" % (field.name, readable_codings(field.value)))
        elif kind == EXPECT:
            if not body_held:
                append(field.line)
        elif kind == CONTENT_LENGTH:
            append(b"%b: %d\r\n" % (field.name, head.length if replaced_length is None else replaced_length))
        elif kind == CONTENT_ENCODING and replaced_length is not None:
            continue
        else:
            append(field.line)
    if head.host is None:
        append(b"Host: %b\r\n" % host)
    append(b"\r\n")
    return b"".join(parts)


def head_for_client(  # noqa: C901 - one branch a kind of field, in one pass
    answer: AnswerHead,
    length: int,
    *,
    changed: bool,
    length_hidden: bool,
    http10: bool,
    close: bool,
    relocated: Callable[[bytes], bytes],
) -> bytes:
    """The upstream's head as the application sees it.

    `length` is the body's size, CHUNKED or KEPT; `changed` says that the body is no longer what codings and
    digests describe; `length_hidden` that its length would tell of what a filter took out.
    """
    nominated = answer.nominated
    if answer.status < 200 or answer.status == 204:
        length_hidden = True  # no body, and so no length (RFC 9110 §8.6)
    parts = [answer.status_line]
    append = parts.append
    for field in answer.fields:
        kind = field.kind
        if nominated and kind != CONTENT_LENGTH and field.name.lower() in nominated:
            continue
        if kind == 0 or (kind > LOCATION and kind != BODY_DIGEST):
            append(field.line)
        elif kind == CONTENT_LENGTH:
            if length >= 0:
                append(b"%b: %d\r\n" % (field.name, length))
                length = KEPT
            elif length == KEPT and not length_hidden:
                append(field.line)
        elif kind in _NEVER_TO_CLIENT:
            continue
        elif kind == LOCATION:
            append(b"%b: %b\r\n" % (field.name, relocated(field.value)))
        elif changed and (kind == CONTENT_ENCODING or kind == BODY_DIGEST):
            continue
        else:
            append(field.line)
    if length >= 0:
        append(b"Content-Length: %d\r\n" % length)
    elif length == CHUNKED and not http10:  # an HTTP/1.0 client reads until the close
        append(b"Transfer-Encoding: chunked\r\n")
    if close:
        append(b"Connection: close\r\n")
    append(b"\r\n")
    return b"".join(parts)
