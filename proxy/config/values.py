"""Parsers of values in settings: addresses, URLs, networks.

The message of a ValueError says which values are allowed.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from urllib.parse import urlsplit

_SECRET_NAME = re.compile(r"[0-9A-Za-z-]{1,127}", re.ASCII)
_PORT = re.compile(r"[0-9]{1,9}", re.ASCII)
_NAME = re.compile(r"[A-Za-z][0-9A-Za-z-]{0,31}", re.ASCII)
_HOST = re.compile(r"[A-Za-z0-9_.:%-]+", re.ASCII)
_DEFAULT_PORT = {"https": re.compile(r":(?:0*443)?\Z"), "http": re.compile(r":(?:0*80)?\Z")}


@dataclass(frozen=True, slots=True)
class Address:
    """Address on which the proxy listens. If the port is 0, the kernel chooses a free port."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """Return True if only this machine can reach the listening address."""
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def number_text(value: float) -> str:
    """Return the number as text, without an exponent if it is a whole number."""
    return str(int(value)) if math.isfinite(value) and value == int(value) else f"{value:.15g}"


def parse_address(text: str) -> Address:
    host, colon, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    host = host[1:-1] if bracketed else host
    well_formed = colon and _HOST.fullmatch(host) and _PORT.fullmatch(port) and bracketed == (":" in host)
    if well_formed and int(port) > 65535:
        raise ValueError(f"the value must be host:port with a port up to 65535, not {text!r}")
    if not well_formed:
        raise ValueError(f"the value must be host:port such as 127.0.0.1:8080 or [::1]:8080, not {text!r}")
    return Address(host, int(port))


def parse_url(text: str) -> str:
    """Return an http or https base URL, without trailing slash and default port (RFC 3986 §6.2.3).

    Callers append paths to the base URL, and recognise links that begin with the base URL.
    """
    if "@" in text:  # The message must not show the text, because a password may contain any characters.
        raise ValueError(
            "the value must be an http:// or https:// address without user and password (in a path, @ is %40)"
        )
    wanted = f"the value must be an http:// or https:// address, not {text!r}"
    if not text.isascii() or any(character <= " " for character in text):
        raise ValueError(wanted)
    try:
        parts = urlsplit(text)
        good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        good = False
    if not good:
        raise ValueError(wanted)
    if "?" in text or "#" in text:
        raise ValueError(f"the value must not have a query or fragment, but is {text!r}")
    scheme, _, rest = text.partition("://")
    netloc = _DEFAULT_PORT[parts.scheme].sub("", parts.netloc)
    return f"{scheme}://{netloc}{rest[len(parts.netloc) :]}".rstrip("/")


def parse_origin(text: str) -> str:
    """Return a URL that consists of scheme, host and port only."""
    url = parse_url(text)
    if urlsplit(url).path:
        raise ValueError(f"the value must be scheme, host and port without a path, not {text!r}")
    return url


def parse_vault_url(text: str) -> str:
    """Return the URL of a key vault."""
    url = parse_origin(text)
    if not url.startswith("https://"):
        raise ValueError(f"the value must be an https:// address, not {text!r}: secrets are sent to it")
    return url


def parse_secret_name(text: str) -> str:
    """Return the name of a secret in a key vault."""
    if _SECRET_NAME.fullmatch(text) is None:
        raise ValueError(f"the value must be 1 to 127 letters, digits and hyphens, not {text!r}")
    return text


def parse_name(text: str) -> str:
    """Return the name of a table in an array of settings.

    Other settings, logs and metrics refer to the table of settings by this name.
    """
    if _NAME.fullmatch(text) is None:
        raise ValueError(
            f"the value must be a letter, then at most 31 letters, digits and hyphens, not {text!r}"
        )
    return text


def parse_network(text: str) -> IPv4Network | IPv6Network:
    try:
        return ip_network(text)
    except ValueError:
        raise ValueError(
            f"the value must be an address or network such as 10.0.0.0/8, not {text!r}"
        ) from None
