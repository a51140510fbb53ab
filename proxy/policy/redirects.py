"""Detect redirects in responses that lead the client past the proxy.

A client that follows a redirect past the proxy receives content that no filter has examined.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

from proxy.policy.origins import Address, parse_address

# The message does not name the address, which may contain a credential.
ELSEWHERE: Final = "the response redirects to another host"
UNREADABLE: Final = "unreadable"  # clients may read the host in different ways

_ODD: Final = re.compile(rb"[^\x21-\x7e]|\\")  # bytes that clients drop or replace
_NETWORK_PATH: Final = "//"  # such an address uses the scheme of the request
_SCHEME: Final = re.compile(r"[^/?#]*:")


def is_redirect(status: int) -> bool:
    """Return True if the status of a response permits a client to follow the response's Location header."""
    return 300 <= status < 400 and status != 304


def leads_elsewhere(headers: Sequence[tuple[bytes, bytes]], upstream_bases: Iterable[str]) -> bool:
    """Return True if the redirect's URL may lie outside the upstream's base URLs."""
    return host_elsewhere(headers, upstream_bases) is not None


def host_elsewhere(headers: Sequence[tuple[bytes, bytes]], upstream_bases: Iterable[str]) -> str | None:
    """Return the host of a Location if its URL may lie outside the upstream's URLs, and None otherwise."""
    locations = [value for name, value in headers if name.strip().lower() == b"location"]
    if not locations:
        return None
    bases = [found for base in upstream_bases if (found := parse_address(base)) is not None]
    for location in locations:
        if _ODD.search(location):
            return UNREADABLE
        text = location.decode("ascii")
        if not _is_upstreams(text, bases):
            return _host_of(text, bases)
    return None


def _is_upstreams(location: str, bases: list[Address]) -> bool:
    """Return True if the Location is relative, or is a URL below one of the base URLs."""
    if not location.startswith(_NETWORK_PATH) and _SCHEME.match(location) is None:
        return True
    for base in bases:
        address = _absolute(location, base)
        if address is not None and address.origin == base.origin and _is_below(address.rest, base.rest):
            return True
    return False


def _host_of(location: str, bases: list[Address]) -> str:
    """Return only the host of a Location, because the rest of the Location may contain a credential."""
    for base in bases:
        address = _absolute(location, base)
        if address is not None:
            return address.origin.shown
    return UNREADABLE


def _absolute(location: str, base: Address) -> Address | None:
    return parse_address(
        f"{base.origin.scheme}:{location}" if location.startswith(_NETWORK_PATH) else location
    )


def _is_below(rest: str, path: str) -> bool:
    path = path.rstrip("/")
    return rest.startswith(path) and rest[len(path) : len(path) + 1] in ("", "/", "?", "#")
