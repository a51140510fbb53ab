"""Choice of the egress proxy for a URL, from the settings of the program and without any I/O."""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final
from urllib.parse import unquote_to_bytes, urlsplit

_EVERY_HOST: Final = "*"
_HOST_NAME: Final = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*", re.ASCII)
_PORT: Final = re.compile(r"[0-9]{1,5}", re.ASCII)
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}
_HIDDEN: Final = "********"
_WANTED: Final = "the value must be http://host:port or http://user:password@host:port"


@dataclass(frozen=True, slots=True)
class EgressProxy:
    """An HTTP proxy that opens connections to other networks on request (`CONNECT`)."""

    host: str
    port: int
    # Value of Proxy-Authorization; empty if no credentials are sent.
    authorization: str = field(default="", repr=False)
    secrets: tuple[str, ...] = field(default=(), repr=False)  # texts that no message may contain
    user: str = field(default="", repr=False)
    source: str = "Egress.ProxyUrl"  # the setting or variable that names the proxy

    def __str__(self) -> str:
        return f"{bracketed(self.host)}:{self.port}"

    @property
    def url(self) -> str:
        """URL of the egress proxy without user and password."""
        return f"http://{self}"

    def masked(self, text: str) -> str:
        """Return the text without the credentials of the egress proxy."""
        for secret in self.secrets:
            text = text.replace(secret, _HIDDEN)
        return text


@dataclass(frozen=True, slots=True)
class Bypass:
    """Hosts that the program connects to directly, without the egress proxy: one entry of `NoProxy`."""

    text: str
    hosts: str | IPv4Network | IPv6Network  # a name stands for itself and for all its subdomains
    port: int | None = None  # None means every port

    def __str__(self) -> str:
        return self.text

    def includes(self, host: str, address: IPv4Address | IPv6Address | None, port: int) -> bool:
        """Return True if the `NoProxy` entry includes the host.

        `address` is the IP address if the host is an IP address, and None if the host is a name.
        """
        if self.port is not None and self.port != port:
            return False
        if isinstance(self.hosts, str):
            return self.hosts == _EVERY_HOST or host == self.hosts or host.endswith(f".{self.hosts}")
        return address is not None and address in self.hosts


@dataclass(frozen=True, slots=True)
class Way:
    """The route to one URL (direct or through the egress proxy), and the reason for the route."""

    proxy: EgressProxy | None  # None for a direct connection
    reason: str

    def __str__(self) -> str:
        if self.proxy is None:
            return f"direct ({self.reason})"
        return f"through the egress proxy {self.proxy} ({self.reason})"


@dataclass(frozen=True, slots=True)
class Egress:
    """Egress proxy of one program, and the rules for the hosts that are reached through it."""

    proxy: EgressProxy | None = None
    bypasses: tuple[Bypass, ...] = ()
    bypass_source: str = "Egress.NoProxy"
    https_only: bool = False  # True for the variable HTTPS_PROXY, which is only for https:// addresses

    def proxy_for(self, url: str) -> EgressProxy | None:
        """Return the egress proxy for a URL; None if the connection is direct."""
        return self.way_to(url).proxy

    def way_to(self, url: str) -> Way:
        """Return the route to a URL without resolving a host name."""
        if self.proxy is None:
            every = (
                f"{self.bypass_source} has {each}" for each in self.bypasses if each.hosts == _EVERY_HOST
            )
            return Way(None, next(every, "no egress proxy is configured"))
        parts = urlsplit(url)
        host = (parts.hostname or "").rstrip(".")
        address = _address(host)
        if is_local(host, address):
            return Way(None, "loopback and link-local addresses use no egress proxy")
        if self.https_only and parts.scheme != "https":
            return Way(None, f"{self.proxy.source} is only for https:// addresses")
        port = parts.port or _DEFAULT_PORTS.get(parts.scheme, 0)
        for bypass in self.bypasses:
            if bypass.includes(host, address, port):
                return Way(None, f"{self.bypass_source} has {bypass}")
        return Way(self.proxy, self.proxy.source)


DIRECT: Final = Egress()  # no egress proxy is used


def is_local(host: str, address: IPv4Address | IPv6Address | None) -> bool:
    """Return True for a loopback or link-local host, such as a metadata service (169.254.169.254)."""
    if address is None:
        return host == "localhost" or host.endswith(".localhost")
    plain = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    address = plain or address
    return address.is_loopback or address.is_link_local


def bracketed(host: str) -> str:
    """Return a host in the form for URLs and `CONNECT`, with brackets around an IPv6 address."""
    return f"[{host}]" if ":" in host else host


def parse_proxy_url(text: str) -> str:
    """Check the address of an egress proxy in the settings.

    The error message never shows the address, because it may contain a password.
    """
    egress_proxy(text)
    return text


def egress_proxy(text: str) -> EgressProxy:
    """Return the egress proxy at an address in the settings.

    An address without a scheme is an http:// address.
    """
    spelled = text if "://" in text else f"http://{text}"
    if not spelled.isascii() or any(character <= " " for character in spelled):
        raise ValueError(f"{_WANTED} (other characters are percent-encoded)")
    try:
        parts = urlsplit(spelled)
        port = parts.port
    except ValueError:
        raise ValueError(_WANTED) from None
    if parts.scheme == "https":
        raise ValueError(f"{_WANTED}: TLS to the egress proxy itself (https://) is not supported")
    if parts.scheme != "http":
        raise ValueError(f"{_WANTED}: {parts.scheme}:// is not supported")
    if not parts.hostname or port == 0 or parts.path not in ("", "/") or parts.query or parts.fragment:
        raise ValueError(_WANTED)
    if parts.netloc.count("@") > 1:
        raise ValueError(f"{_WANTED} (in a password, @ is %40)")
    user, password = (unquote_to_bytes(part or "") for part in (parts.username, parts.password))
    if b":" in user or _has_controls(user + password):
        raise ValueError(f"{_WANTED}: the user has a colon, or the user or password has a control character")
    authorization = ""
    secrets: tuple[str, ...] = ()
    if "@" in parts.netloc:
        pair = base64.b64encode(user + b":" + password).decode()
        authorization = f"Basic {pair}"
        spellings = (pair, parts.password or "", password.decode("utf-8", "replace"))
        secrets = tuple(sorted({each for each in spellings if each}, key=len, reverse=True))
    return EgressProxy(parts.hostname, port or 80, authorization, secrets, user.decode("utf-8", "replace"))


def _has_controls(text: bytes) -> bool:
    return any(each < 0x20 or each == 0x7F for each in text)


def parse_bypass(text: str) -> Bypass:
    """Parse one entry of `NoProxy`: a name, an address, a network or `*`, each with or without a port."""
    wanted = f"the value must be a host name, an address or a network such as 10.0.0.0/8, or *, not {text!r}"
    host, port = _host_and_port(text)
    if port is not None and not 0 < port <= 65535:
        raise ValueError(wanted)
    if host == _EVERY_HOST:
        return Bypass(text, host, port)
    try:
        return Bypass(text, ip_network(host.removeprefix("[").removesuffix("]"), strict=False), port)
    except ValueError:
        name = host.removeprefix("*").removeprefix(".").removesuffix(".").lower()
    if _HOST_NAME.fullmatch(name) is None or _looks_numeric(name):
        raise ValueError(wanted)
    return Bypass(text, name, port)


def _host_and_port(text: str) -> tuple[str, int | None]:
    """Return the host and the port of a `NoProxy` entry.

    An IPv6 address with a port is written in brackets.
    """
    host, colon, port = text.rpartition(":")
    if not colon or _PORT.fullmatch(port) is None or (":" in host and not host.endswith("]")):
        return text, None
    return host, int(port)


def _looks_numeric(name: str) -> bool:
    """Return True for a text of numbers that is not an IP address, such as `10.1` or `10.0.0.300`."""
    return all(label.isdigit() for label in name.split("."))


def _address(host: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(host.partition("%")[0])
    except ValueError:
        return None
