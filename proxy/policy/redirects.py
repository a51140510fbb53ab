"""Redirects that lead past the proxy: a client that follows one receives content that no filter has read."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

ELSEWHERE: Final = "it redirects to another host"  # the address may hold a credential: no message names it

_ODD: Final = re.compile(rb"[^\x21-\x7e]|\\")  # bytes that clients drop, or read as something else
_ABSOLUTE: Final = re.compile(rb"(?:https?:)?//([^/?#]*)(.*)", re.IGNORECASE)
_SCHEME: Final = re.compile(rb"[^/?#]*:")
_DEFAULT_PORT: Final = re.compile(rb":(?:443|80)\Z")


def is_redirect(status: int) -> bool:
    """Return True if a client may follow the Location of a response with this status."""
    return 300 <= status < 400 and status != 304


def leads_elsewhere(headers: Sequence[tuple[bytes, bytes]], upstream_bases: Iterable[str]) -> bool:
    """Return True if a redirect has a Location that is not surely below one of the upstream's addresses."""
    locations = [value for name, value in headers if name.strip().lower() == b"location"]
    if not locations:
        return False
    bases = [_host_and_path(base.encode("ascii")) for base in upstream_bases]
    return not all(_is_upstreams(location, bases) for location in locations)


def _is_upstreams(location: bytes, bases: list[tuple[bytes, bytes]]) -> bool:
    """Return True if the address is relative, or below one of the bases."""
    if _ODD.search(location):
        return False
    absolute = _ABSOLUTE.match(location)
    if absolute is None:
        return _SCHEME.match(location) is None
    host, rest = _plain_host(absolute[1]), absolute[2]
    return any(host == own and _is_below(rest, path) for own, path in bases)


def _is_below(rest: bytes, path: bytes) -> bool:
    return rest.startswith(path) and rest[len(path) : len(path) + 1] in (b"", b"/", b"?", b"#")


def _host_and_path(base: bytes) -> tuple[bytes, bytes]:
    host, slash, path = base.partition(b"://")[2].partition(b"/")
    return _plain_host(host), (slash + path).rstrip(b"/")


def _plain_host(host: bytes) -> bytes:
    """Return the host in small letters, without a default port."""
    return _DEFAULT_PORT.sub(b"", host.lower())
