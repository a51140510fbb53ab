"""Origin of an absolute URL in a normal form of scheme, host and port."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

_DEFAULT_PORTS: Final = {"https": "443", "http": "80"}
# The form of RFC 3986 §3.2. Addresses of any other form may lead to another server.
_ORIGIN: Final = re.compile(
    r"((?i:https?))://([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::([0-9]{1,8}))?(?=[/?#]|\Z)"
)


class Origin(NamedTuple):
    """Scheme, host and port of a URL in normal form."""

    scheme: str
    host: str
    port: str

    @property
    def shown(self) -> str:
        """Host as messages show it, with the port unless the port is the default of the scheme."""
        return self.host if self.port == _DEFAULT_PORTS[self.scheme] else f"{self.host}:{self.port}"


class Address(NamedTuple):
    """An absolute URL, split into its origin and the rest."""

    origin: Origin
    rest: str


def parse_address(text: str) -> Address | None:
    """Parse an absolute URL. Return None if a URL does not identify its server unambiguously."""
    found = _ORIGIN.match(text)
    if found is None:
        return None
    scheme = found[1].lower()
    # The dot at the end of a host name stands for the root (RFC 3986 §3.2.2).
    host = found[2].lower().removesuffix(".")
    port = (found[3] or _DEFAULT_PORTS[scheme]).lstrip("0")
    return Address(Origin(scheme, host, port), text[found.end() :])
