"""Build the forwarded heads: requests for the upstream and responses for the application.

The names, values, case and order of header fields stay as they arrived. docs/reference/token-endpoint.md
lists all exceptions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from proxy.server.http1.body_reader import CHUNKED
from proxy.server.http1.field_lines import (
    ACCEPT_ENCODING,
    AUTHORIZATION,
    BODY_DIGEST,
    CONDITIONAL,
    CONTENT_ENCODING,
    CONTENT_LENGTH,
    EXPECT,
    HOST,
    LOCATION,
    RANGE,
    TRANSFER_ENCODING,
)
from proxy.server.http1.request_head import RequestFields, RequestHead, UpstreamForm
from proxy.server.http1.response_head import ResponseHead

_OF_THE_BODY: Final = frozenset({CONTENT_ENCODING, BODY_DIGEST})
KEPT: Final = -3  # keeps the length that the upstream declared, if it did


def head_for_upstream(
    head: RequestHead,
    *,
    host: bytes,
    authorization: bytes,
    readable_codings: Callable[[bytes], bytes],
    body_held: bool,
    replaced_length: int | None,
    whole: bool,
    unconditional: bool,
    read: bool,
) -> bytes:
    """Return the application's request head with a new Host and Authorization and no hop-by-hop fields.

    - `body_held`: the whole request body has arrived, so the proxy does not forward Expect.
    - `replaced_length`: the size of a body without content coding that replaces the application's body
      upstream.
    - `whole`: request the whole response, even if the application requests a range. RFC 9110 §14.2 lets any
      server ignore a range.
    - `unconditional`: request the response even if the resource has not changed.
    - `read`: the proxy may have to read the response, so request only content codings that the proxy can
      decode.
    """
    fields = head.fields
    form = fields.upstream_form
    if (
        form is None
        or form.authorization is not authorization
        or form.host is not host
        or form.read is not read
        or replaced_length is not None
        or whole
        or unconditional
    ):
        form = _upstream_form(
            fields,
            host,
            authorization,
            readable_codings if read else None,
            body_held,
            replaced_length,
            whole,
            unconditional,
        )
        if replaced_length is None and not (whole or unconditional or fields.expect_continue):
            fields.upstream_form = form
    if form.id_between:
        return b"".join((head.request_line, form.before, head.client_request_id or b"", form.after))
    return head.request_line + form.before


def _upstream_form(
    fields: RequestFields,
    host: bytes,
    authorization: bytes,
    readable_codings: Callable[[bytes], bytes] | None,
    body_held: bool,
    replaced_length: int | None,
    whole: bool,
    unconditional: bool,
) -> UpstreamForm:
    before = b""
    id_between = False
    lines: list[bytes] = []
    for at, field in enumerate(fields.lines):
        kind = field.kind
        line = field.relayed
        if kind == AUTHORIZATION:
            line = b"%b: %b\r\n" % (field.name, authorization)
        elif kind == HOST:
            line = b"%b: %b\r\n" % (field.name, host)
        elif kind == TRANSFER_ENCODING:
            line = field.line
        elif kind == CONTENT_LENGTH:
            length = fields.length if replaced_length is None else replaced_length
            line = b"%b: %d\r\n" % (field.name, length)
        elif fields.is_listed_in_connection(field):
            continue
        elif kind == ACCEPT_ENCODING and readable_codings is not None:
            line = b"%b: %b\r\n" % (field.name, readable_codings(field.value))
        elif kind == EXPECT and (body_held or not fields.expect_continue):
            # done by the proxy, or without meaning in HTTP/1.0 (RFC 9110 §10.1.1)
            continue
        elif (
            (kind in _OF_THE_BODY and replaced_length is not None)
            or (kind == RANGE and whole)
            or (kind == CONDITIONAL and unconditional)
        ):
            continue
        if at == fields.id_at:
            before = b"%b%b: " % (b"".join(lines), field.name)
            id_between = True
            lines = [b"\r\n"]
        else:
            lines.append(line)
    if fields.host is None:
        lines.append(b"Host: %b\r\n" % host)
    lines.append(b"\r\n")
    rest = b"".join(lines)
    before, after = (before, rest) if id_between else (rest, b"")
    return UpstreamForm(host, authorization, readable_codings is not None, id_between, before, after)


def head_for_client(  # noqa: C901 - one branch a kind of field, in one pass
    response: ResponseHead,
    length: int,
    *,
    changed: bool,
    length_hidden: bool,
    http10: bool,
    close: bool,
    relocated: Callable[[bytes], bytes],
) -> bytes:
    """Return the upstream's response head in the form that the application receives.

    `length` is the size of the response body in bytes, or one of the constants CHUNKED and KEPT. KEPT keeps
    the length that the upstream declared. `changed` means that content codings and digests no longer describe
    the body. `length_hidden` means that the length of the body would reveal that a filter removed something.
    """
    fields = response.fields
    same_length = length == KEPT or 0 <= length == response.length
    if fields.plain and same_length and not changed and not length_hidden:
        pieces = fields.relayed.copy()
        for at, which in fields.values_at:
            pieces[at] = response.values[which]
        pieces.append(b"Connection: close\r\n\r\n" if close else b"\r\n")
        return b"".join(pieces)
    listed = fields.listed
    if response.status < 200 or response.status == 204:
        length_hidden = True  # no body, and so no length (RFC 9110 §8.6)
    parts = [fields.status_line]
    append = parts.append
    for field in response.lines:
        kind = field.kind
        if listed and kind != CONTENT_LENGTH and field.name.lower() in listed:
            continue
        if kind == CONTENT_LENGTH:
            if length >= 0:
                append(b"%b: %d\r\n" % (field.name, length))
                length = KEPT
            elif length == KEPT and not length_hidden:
                append(field.line)
        elif kind == LOCATION:
            append(b"%b: %b\r\n" % (field.name, relocated(field.value)))
        elif changed and (kind == CONTENT_ENCODING or kind == BODY_DIGEST):
            continue
        else:
            append(field.relayed)
    if length >= 0:
        append(b"Content-Length: %d\r\n" % length)
    elif length == CHUNKED and not http10:  # an HTTP/1.0 client reads until the close
        append(b"Transfer-Encoding: chunked\r\n")
    if close:
        append(b"Connection: close\r\n")
    append(b"\r\n")
    return b"".join(parts)
