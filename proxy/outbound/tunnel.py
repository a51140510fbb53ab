"""TCP connections to a host, directly or through an egress proxy (`CONNECT`, RFC 9110 section 9.3.6)."""

from __future__ import annotations

import asyncio
import os
import re
import socket
from enum import Enum
from typing import Final

from aiohappyeyeballs import start_connection

from proxy.outbound.egress import EgressProxy, bracketed
from proxy.policy.redaction import shortened

NEXT_ADDRESS_SECONDS: Final = 0.25  # RFC 8305 §5: an address that does not respond must not delay the others
_MAX_HEAD_BYTES: Final = 16 * 1024  # limit of all response heads to one CONNECT
_PIECE_BYTES: Final = 4096
_LONGEST_REASON: Final = 100  # characters of a reason phrase in a message
_END_OF_HEAD: Final = b"\r\n\r\n"
_STATUS_LINE: Final = re.compile(r"HTTP/1\.[01] ([1-9][0-9]{2})(?: ([^\r\n]*))?(?:\r\n|\Z)", re.ASCII)
_GATEWAY_TIMEOUT: Final = 504
_CREDENTIALS_REQUIRED: Final = 407


class EgressProblem(Enum):
    """Reason why the proxy cannot reach a host through the egress proxy.

    An application sees the reason in the error response of the proxy.
    """

    UNREACHABLE = "the egress proxy can't be reached"
    CREDENTIALS = "the egress proxy refuses the proxy's credentials"
    REFUSED = "the egress proxy refuses to connect"
    BEYOND = "the egress proxy can't reach it"
    TIMEOUT = "the egress proxy got no connection in time"
    BROKEN = "the egress proxy did not respond as one"


def remedy(problem: EgressProblem, proxy: EgressProxy, host: str, port: int) -> str:
    """Return the remedy for the operator if the egress proxy does not reach a host."""
    exempt = f"or put {host} into Egress.NoProxy if this machine reaches it directly"
    credentials = f"put the user and the password of the egress proxy into {proxy.source}"
    if proxy.authorization:
        credentials = (
            f"correct the password in {proxy.source}: the egress proxy refuses the user {proxy.user}"
        )
    return {
        EgressProblem.UNREACHABLE: f"correct {proxy.source}, or let this machine reach the egress proxy",
        EgressProblem.CREDENTIALS: credentials,
        EgressProblem.REFUSED: f"let the egress proxy connect to {host}:{port}, {exempt}",
        EgressProblem.BEYOND: f"let the egress proxy resolve and reach {host}:{port}, {exempt}",
        EgressProblem.TIMEOUT: f"let the egress proxy reach {host}:{port}",
        EgressProblem.BROKEN: f"correct {proxy.source}: what listens there is not an HTTP proxy",
    }[problem]


class EgressFailed(Exception):
    """Error because the egress proxy opened no tunnel to the target host.

    The error's text names the egress proxy, the host and the proxy's response, for operators.
    """

    def __init__(self, problem: EgressProblem, proxy: EgressProxy, text: str) -> None:
        super().__init__(text)
        self.problem = problem
        self.proxy = proxy


async def dial(host: str, port: int, proxy: EgressProxy | None) -> socket.socket:
    """Return a socket that is connected to a host.

    Raise OSError if a direct connection fails. Raise EgressFailed if the egress proxy opens no tunnel.

    An egress proxy receives the host as a name, so this machine resolves only the egress proxy's own name.
    The caller of `dial` limits the time of the connection attempt.
    """
    loop = asyncio.get_running_loop()
    if proxy is None:
        return await _connected(loop, host, port)
    try:
        connected = await _connected(loop, proxy.host, proxy.port)
    except OSError as error:
        raise unreachable(proxy, error) from None
    try:
        await open_tunnel(connected, host, port, proxy)
    except BaseException:
        connected.close()
        raise
    return connected


async def open_tunnel(connected: socket.socket, host: str, port: int, proxy: EgressProxy) -> None:
    """Request a tunnel to a host on an open connection to the egress proxy.

    Raise EgressFailed if the egress proxy opens no tunnel.
    """
    loop = asyncio.get_running_loop()
    target = f"{bracketed(host)}:{port}"
    try:
        await loop.sock_sendall(connected, request_of(target, proxy))
        status, reason, rest = await _response(loop, connected)
    except (OSError, _NoResponse) as error:
        what = _reason(error) if isinstance(error, OSError) else str(error)
        text = f"egress proxy {proxy}: no response to CONNECT {target}: {what}"
        raise EgressFailed(EgressProblem.BROKEN, proxy, text) from None
    if not 200 <= status <= 299:
        raise refusal(proxy, target, status, reason)
    if rest:  # a client speaks first, in TLS and in HTTP, so these bytes can't be the host's
        text = f"egress proxy {proxy}: bytes after its response to CONNECT {target}"
        raise EgressFailed(EgressProblem.BROKEN, proxy, text)


def request_of(target: str, proxy: EgressProxy) -> bytes:
    """Return the CONNECT request that opens a tunnel through the egress proxy.

    The CONNECT request reaches only the egress proxy, not the target host.
    """
    lines = [f"CONNECT {target} HTTP/1.1", f"Host: {target}"]
    if proxy.authorization:
        lines.append(f"Proxy-Authorization: {proxy.authorization}")
    return "\r\n".join([*lines, "", ""]).encode("ascii")


def refusal(proxy: EgressProxy, target: str, status: int, reason: str) -> EgressFailed:
    """Return the error for an egress proxy that responds to CONNECT with a status other than 2xx."""
    shown = "".join(each for each in proxy.masked(reason) if each.isascii() and each.isprintable())
    said = f"{status} {shortened(shown.strip(), _LONGEST_REASON)}".strip()
    if status == _CREDENTIALS_REQUIRED:
        problem = EgressProblem.CREDENTIALS
    elif status == _GATEWAY_TIMEOUT:
        problem = EgressProblem.TIMEOUT
    else:
        problem = EgressProblem.BEYOND if status >= 500 else EgressProblem.REFUSED
    return EgressFailed(problem, proxy, f"egress proxy {proxy}: {said} to CONNECT {target}")


def unreachable(proxy: EgressProxy, error: OSError) -> EgressFailed:
    """Return the error for an egress proxy that can't be reached."""
    text = f"egress proxy {proxy} can't be reached: {_reason(error)}"
    return EgressFailed(EgressProblem.UNREACHABLE, proxy, text)


class _NoResponse(Exception):
    """Error because the egress proxy sent no complete HTTP response to CONNECT."""


async def _connected(loop: asyncio.AbstractEventLoop, host: str, port: int) -> socket.socket:
    """Connect to the first of a host's IP addresses that responds."""
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    connected = await start_connection(found, happy_eyeballs_delay=NEXT_ADDRESS_SECONDS, loop=loop)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connected


async def _response(loop: asyncio.AbstractEventLoop, connected: socket.socket) -> tuple[int, str, bytes]:
    """Return status and reason of the final CONNECT response, and the bytes after its header section."""
    received = b""
    read = 0
    while True:
        while _END_OF_HEAD not in received:
            if read > _MAX_HEAD_BYTES:
                raise _NoResponse(f"the egress proxy's response head is larger than {_MAX_HEAD_BYTES} bytes")
            piece = await loop.sock_recv(connected, _PIECE_BYTES)
            if not piece:
                raise _NoResponse("the egress proxy closed the connection")
            received += piece
            read += len(piece)
        head, _, received = received.partition(_END_OF_HEAD)
        match = _STATUS_LINE.match(head.decode("latin-1"))
        if match is None:
            raise _NoResponse("the response of the egress proxy is not HTTP/1.1")
        if int(match[1]) >= 200:
            return int(match[1]), match[2] or "", received


def _reason(error: OSError) -> str:
    if isinstance(error, socket.gaierror):
        return error.strerror or type(error).__name__
    return os.strerror(error.errno) if error.errno else "no connection was made"
