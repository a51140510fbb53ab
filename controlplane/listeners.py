"""Binds the listening sockets of all settings sections before the control plane opens the store."""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from controlplane.connections import HANDSHAKE_SECONDS
from controlplane.settings import ConsoleSettings, ControlPlaneSettings, Settings
from proxy.config import Address
from proxy.config.listening import not_listening
from proxy.config.tls import server_tls

BACKLOG: Final = 1024  # connections that wait to be accepted
_NOT_HERE: Final = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)

_Protocol = Callable[[], asyncio.BaseProtocol]


class Listeners:
    """Listening sockets, each under the name of the setting that contains its address.

    Raise OSError with one line that names the setting, the address, and the program that uses the address.
    """

    def __init__(self, settings: Settings, stack: ExitStack) -> None:
        self._tls = {
            "ControlPlane.Listen": _tls("ControlPlane", settings.control_plane),
            "Console.Listen": _tls("Console", settings.console),
            "Metrics.Listen": None,
        }
        wanted = {
            "ControlPlane.Listen": settings.control_plane.listen,
            "Console.Listen": settings.console.listen,
            "Metrics.Listen": settings.metrics.listen,
        }
        self._sockets = {key: _bound(key, listen, stack) for key, listen in wanted.items()}

    def listen(self) -> None:
        """Start to listen on all bound addresses. If one address fails, listen on no address.

        Client connections wait in the kernel until a call of `serve` accepts them.

        If a second program starts at the same time, it can take the address between the calls of bind and
        listen.
        """
        for key, pairs in self._sockets.items():
            for address, each in pairs:
                try:
                    each.listen(BACKLOG)
                except OSError as error:
                    raise OSError(not_listening(key, address, error, Path("/proc"))) from None

    async def serve(self, key: str, protocol: _Protocol) -> list[asyncio.Server]:
        """Accept connections on the listening sockets of a setting."""
        tls = self._tls[key]
        loop = asyncio.get_running_loop()
        return [
            await loop.create_server(
                protocol,
                sock=each,
                ssl=tls,
                ssl_handshake_timeout=HANDSHAKE_SECONDS if tls else None,
                backlog=BACKLOG,
            )
            for _, each in self._sockets[key]
        ]

    def urls(self, key: str) -> list[str]:
        """Return a listener's URLs for clients, with the ports that the kernel chose."""
        scheme = "http" if self._tls[key] is None else "https"
        names = [each.getsockname()[:2] for _, each in self._sockets[key]]
        return [f"{scheme}://{Address(host, port)}" for host, port in names]


def _bound(key: str, listen: Sequence[Address], stack: ExitStack) -> list[tuple[Address, socket.socket]]:
    pairs = []
    for address in listen:
        try:
            sockets = _of_address(address)
        except OSError as error:
            raise OSError(not_listening(key, address, error, Path("/proc"))) from None
        for each in sockets:
            stack.callback(each.close)
            pairs.append((address, each))
    return pairs


def _of_address(address: Address) -> list[socket.socket]:
    """Return the bound sockets of an address in the settings.

    A host name may have several addresses. If this machine can bind one address of the host name, ignore the
    other addresses that do not belong to this machine.
    """
    found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    sockets: list[socket.socket] = []
    absent: OSError | None = None
    with ExitStack() as undo:
        for family, _, _, _, place in dict.fromkeys(found):
            try:
                sockets.append(undo.enter_context(_socket(socket.AddressFamily(family), place)))
            except OSError as error:
                if error.errno not in _NOT_HERE:
                    raise
                absent = error
        if absent is not None and not sockets:
            raise absent
        undo.pop_all()
    return sockets


def _socket(family: socket.AddressFamily, place: object) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family is socket.AF_INET6:  # An IPv6 socket would also bind IPv4's port.
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.setblocking(False)
        made.bind(place)  # type: ignore[arg-type]  # address in the form of getaddrinfo
    except OSError:
        made.close()
        raise
    return made


def _tls(section: str, settings: ControlPlaneSettings | ConsoleSettings) -> ssl.SSLContext | None:
    if settings.cert_file is None or settings.key_file is None:
        return None
    try:
        return server_tls(settings.cert_file, settings.key_file)
    except ssl.SSLError as error:
        raise OSError(f"{section}.CertFile: not usable: {error.reason or 'not PEM'}") from None
    except OSError as error:
        raise OSError(f"{section}.CertFile, KeyFile: {error.strerror}") from None
