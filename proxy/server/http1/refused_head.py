"""Parse a refused request head, to find the sending application, the method and the target.

A head with one fault is refused as a whole, but its Authorization field can still identify the application.
So the audit event of the refused request can name the application that sent the request head. The facts that
this module parses never affect a forwarded request. The module `refused_head` does no input or output.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from proxy.policy.redaction import shortened
from proxy.server.http1.field_lines import joined
from proxy.wire.trace_context import trace_of

_LONGEST_METHOD: Final = 64  # characters of an event's method; registered methods have at most 17
_UNREADABLE: Final = "-"  # replaces a method or target that the request line does not have

# Every place that a server might take for the start of an Authorization field.
_ANY_AUTHORIZATION: Final = re.compile(rb"[\r\n][ \t]*authorization[ \t]*:", re.IGNORECASE)
_AUTHORIZATION: Final = re.compile(rb"\r\nauthorization:([^\r\n]*)\r\n(?![ \t])", re.IGNORECASE)
_CLIENT_REQUEST_ID: Final = re.compile(rb"\r\nclient-request-id:([^\r\n]*)\r\n", re.IGNORECASE)
_FORWARDED_FOR: Final = re.compile(rb"\r\nx-forwarded-for:([^\r\n]*)(?=\r\n)", re.IGNORECASE)
_TRACEPARENT: Final = re.compile(rb"\r\ntraceparent:([^\r\n]*)(?=\r\n)", re.IGNORECASE)
_NOT_VISIBLE: Final = re.compile(rb"[^!-~]")
_USER_INFORMATION: Final = re.compile(rb"\A([^/?#]*//)[^/?#]*@")


class RefusedHead(NamedTuple):
    """Known facts of a refused request head.

    `authorization` is None unless exactly one Authorization field was received completely. `target` is ASCII:
    other bytes, control characters and spaces are written as %XX.
    """

    method: str
    target: str
    authorization: bytes | None
    client_request_id: bytes | None
    forwarded_for: bytes | None
    trace: str | None


def read_refused_head(received: bytes) -> RefusedHead:
    """Parse the received part of a request's header section, beginning with the request line.

    The received part of the head may end anywhere and may break any rule of HTTP.
    """
    section, end, _ = received.partition(b"\r\n\r\n")
    section += end
    method, target = _method_and_target(section.partition(b"\r\n")[0])
    client_request_id = _CLIENT_REQUEST_ID.search(section)
    forwarded_for: bytes | None = None
    for value in _FORWARDED_FOR.findall(section):
        forwarded_for = joined(forwarded_for, value.strip(b" \t"))
    traceparents = _TRACEPARENT.findall(section)
    return RefusedHead(
        shortened(_spelled(method), _LONGEST_METHOD),
        _spelled(_USER_INFORMATION.sub(rb"\1***@", target)),
        _authorization(section),
        None if client_request_id is None else client_request_id[1].strip(b" \t"),
        forwarded_for,
        trace_of(traceparents[0]) if len(traceparents) == 1 else None,
    )


def _authorization(section: bytes) -> bytes | None:
    """Return the value of the only Authorization field.

    Return None if the header section may contain a second Authorization field, or if that field is folded
    over lines.
    """
    if len(_ANY_AUTHORIZATION.findall(section)) != 1:
        return None
    found = _AUTHORIZATION.search(section)
    return None if found is None else found[1].strip(b" \t")


def _method_and_target(line: bytes) -> tuple[bytes, bytes]:
    method, *rest = line.split(None, 1) or [b""]
    *target, last = rest[0].rsplit(None, 1) if rest else [b""]
    if last.upper().startswith(b"HTTP/"):
        return method, target[0] if target else b""
    return method, rest[0] if rest else b""


def _spelled(text: bytes) -> str:
    spelled = _NOT_VISIBLE.sub(lambda found: b"%%%02X" % found[0][0], text)
    return spelled.decode("ascii") or _UNREADABLE
