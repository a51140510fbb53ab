"""Checks of one host that the settings name: host name, ports, certificate and clock."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import math
import os
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from functools import lru_cache
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from proxy.agent import cures
from proxy.config.tls import client_tls
from proxy.outbound.egress import EgressProxy, Way
from proxy.outbound.tunnel import EgressFailed, EgressProblem, dial, remedy
from proxy.wire.finding import Finding

_CONNECT_SECONDS: Final = 5.0
_RESPONSE_SECONDS: Final = 5.0
_MOST_ADDRESSES: Final = 8
_MAX_HEAD: Final = 65536
EXPIRES_SOON_DAYS: Final = 14
tls_context: Final = lru_cache(maxsize=4)(client_tls)  # reading the system's authorities takes 25 ms


@dataclass(frozen=True, slots=True)
class Host:
    name: str  # name in findings
    key: str  # name of the setting with the address
    url: str
    ca_key: str
    ca_file: Path | None
    # Path to request; the Date of the response shows the host's clock. No credential is sent.
    path: str = "/"
    way: Way = field(default=Way(None, ""))

    @property
    def place(self) -> cures.Place:
        return cures.place_of(self.url, self.key, self.ca_key)

    @property
    def hostname(self) -> str:
        return self.place.hostname

    @property
    def port(self) -> int:
        return self.place.port

    @property
    def is_tls(self) -> bool:
        return self.url.startswith("https://")


@dataclass(slots=True)
class Visit:
    """Results of the `--doctor` checks for one host."""

    host: Host
    findings: list[Finding] = field(default_factory=list)
    reached: bool = False  # True once TLS is open
    skew: float | None = None  # seconds that its clock is ahead of this machine's clock


async def visit(host: Host, clock: Callable[[], float] = time.time) -> Visit:
    found = Visit(host)
    if host.way.proxy is not None:
        connection = await _tunnelled(found, host.way.proxy)
    else:
        addresses = await _resolve(found)
        responding = await _connect(found, addresses)
        connection = None if responding is None else await _handshake(found, responding)
    if connection is None:
        return found
    found.reached = True
    reader, writer = connection
    try:
        async with asyncio.timeout(_RESPONSE_SECONDS):
            found.skew = await _skew(host, reader, writer, clock)
    except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        pass  # the host may refuse clients without a credential; another check covers that
    finally:
        writer.transport.abort()
    return found


async def _tunnelled(
    found: Visit, proxy: EgressProxy
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
    """Connect to the host through the egress proxy. The egress proxy resolves the host's name."""
    host = found.host
    name = f"{host.name}: egress"
    try:
        async with asyncio.timeout(_CONNECT_SECONDS):
            connected = await dial(host.hostname, host.port, proxy)
    except EgressFailed as failed:
        fix = remedy(failed.problem, proxy, host.hostname, host.port)
        found.findings.append(Finding(name, "fail", str(failed), fix))
        return None
    except TimeoutError:
        what = f"egress proxy {proxy}: no connection within {_CONNECT_SECONDS:g} s"
        fix = remedy(EgressProblem.TIMEOUT, proxy, host.hostname, host.port)
        found.findings.append(Finding(name, "fail", what, fix))
        return None
    what = f"{host.hostname}:{host.port} is reached {host.way}"
    found.findings.append(Finding(name, "ok", what))
    return await _handshake(found, connected)


async def _resolve(found: Visit) -> list[str]:
    host = found.host
    with contextlib.suppress(ValueError):
        return [str(ipaddress.ip_address(host.hostname))]
    try:
        responses = await asyncio.get_running_loop().getaddrinfo(
            host.hostname, host.port, type=socket.SOCK_STREAM
        )
    except OSError as error:
        what = f"{host.hostname} does not resolve: {error.strerror or error}"
        found.findings.append(Finding(f"{host.name}: name", "fail", what, cures.of_name(host.place)))
        return []
    addresses = list(dict.fromkeys(str(response[4][0]) for response in responses))
    found.findings.append(
        Finding(f"{host.name}: name", "ok", f"{host.hostname} is {', '.join(addresses[:_MOST_ADDRESSES])}")
    )
    return addresses


async def _connect(found: Visit, addresses: list[str]) -> str | None:
    """Return the host's first address that accepts a connection."""
    if not addresses:
        return None
    host, tried = found.host, addresses[:_MOST_ADDRESSES]
    problems = await asyncio.gather(*(_no_connection(address, host.port) for address in tried))
    silent = [f"{address} ({problem})" for address, problem in zip(tried, problems, strict=True) if problem]
    name, port = f"{host.name}: connection", host.port
    if len(silent) == len(tried):
        refused = any("refused" in each for each in silent)
        fix = cures.of_refused_connection(host.place) if refused else cures.of_silence(host.place)
        found.findings.append(
            Finding(name, "fail", f"port {port} does not respond: {', '.join(silent)}", fix)
        )
        return None
    if silent:
        what = f"port {port} does not respond at {', '.join(silent)}"
        fix = "take that address out of DNS, or let this machine reach it"
        found.findings.append(Finding(name, "warn", what, fix))
    else:
        found.findings.append(Finding(name, "ok", f"port {port} accepts connections"))
    return next(address for address, problem in zip(tried, problems, strict=True) if not problem)


async def _no_connection(address: str, port: int) -> str:
    """Return the reason why the connection to the address failed; empty if the connection succeeded."""
    try:
        async with asyncio.timeout(_CONNECT_SECONDS):
            _, writer = await asyncio.open_connection(address, port)
    except TimeoutError:
        return f"silent for {_CONNECT_SECONDS:g} s"
    except OSError as error:
        return (os.strerror(error.errno) if error.errno else str(error)).lower()
    writer.transport.abort()
    return ""


async def _handshake(
    found: Visit, end: str | socket.socket
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
    """Open a TLS connection to the host, either at one of its addresses or through a tunnel."""
    host = found.host
    name = f"{host.name}: TLS"
    context = None
    try:
        context = tls_context(host.ca_file) if host.is_tls else None
        async with asyncio.timeout(_CONNECT_SECONDS):
            connection = await _opened(host, end, context)
    except ssl.SSLCertVerificationError as error:
        found.findings.append(await asyncio.to_thread(_refused, host, end, error))
        return None
    except (OSError, TimeoutError) as error:  # SSLError is an OSError
        reason = getattr(error, "reason", None) or str(error) or "timed out"
        fix = cures.of_handshake(host.place)
        found.findings.append(Finding(name, "fail", f"no TLS handshake: {reason}", fix))
        return None
    if context is not None:
        found.findings.append(_certificate(host, connection[1]))
    return connection


async def _opened(
    host: Host, end: str | socket.socket, context: ssl.SSLContext | None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    name = host.hostname if context else None
    if isinstance(end, str):
        return await asyncio.open_connection(end, host.port, ssl=context, server_hostname=name)
    return await asyncio.open_connection(sock=end, ssl=context, server_hostname=name)


def _certificate(host: Host, writer: asyncio.StreamWriter) -> Finding:
    name = f"{host.name}: TLS"
    ends = ssl.cert_time_to_seconds(writer.get_extra_info("peercert")["notAfter"])
    days = math.floor((ends - time.time()) / 86400)
    when = time.strftime("%Y-%m-%d", time.gmtime(ends))
    if days < EXPIRES_SOON_DAYS:
        fix = f"renew the certificate of {host.hostname} before {when}"
        return Finding(name, "warn", f"the certificate expires in {days} days, on {when}", fix)
    return Finding(name, "ok", f"the certificate is valid until {when}")


def _refused(host: Host, end: str | socket.socket, error: ssl.SSLCertVerificationError) -> Finding:
    """Return the finding, with the remedy, for a host whose TLS certificate was refused."""
    is_known = isinstance(end, str) and cures.is_another_name(error)
    names = _names(host, str(end)) if is_known else ""
    fix = cures.of_certificate(host.place, error, names)
    return Finding(f"{host.name}: TLS", "fail", f"the certificate is refused: {error.verify_message}", fix)


def _names(host: Host, address: str) -> str:
    """Return the names in the TLS certificate that the host presents.

    The function does not verify the certificate, because the diagnostic report only shows the names in it.
    """
    from cryptography import x509

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with (
            socket.create_connection((address, host.port), timeout=_CONNECT_SECONDS) as plain,
            context.wrap_socket(plain, server_hostname=host.hostname) as secured,
        ):
            shown = x509.load_der_x509_certificate(secured.getpeercert(binary_form=True) or b"")
        names = shown.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        return ", ".join(str(each.value) for each in names)
    except (OSError, ValueError, x509.ExtensionNotFound):
        return ""


async def _skew(
    host: Host, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, clock: Callable[[], float]
) -> float | None:
    asked = clock()
    writer.write(
        f"GET {host.path} HTTP/1.1\r\nHost: {urlsplit(host.url).netloc}\r\nUser-Agent: graphward-doctor\r\n"
        "Accept: */*\r\nConnection: close\r\n\r\n".encode("ascii")
    )
    head = (await reader.readuntil(b"\r\n\r\n"))[:_MAX_HEAD].decode("latin-1")
    between = (asked + clock()) / 2
    for line in head.split("\r\n")[1:]:
        name, _, value = line.partition(":")
        if name.lower() == "date":
            try:
                # Date has whole seconds (RFC 9110 §5.6.7), so use the middle of the second.
                return parsedate_to_datetime(value.strip()).timestamp() + 0.5 - between
            except (ValueError, TypeError):
                return None
    return None
