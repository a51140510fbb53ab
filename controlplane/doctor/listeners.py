"""Check the addresses of the listeners: each is free, or the running server listens on it."""

from __future__ import annotations

import errno
import http.client
import resource
import socket
import ssl
from pathlib import Path
from typing import Final

from controlplane.settings import Settings
from proxy.config import Address
from proxy.config.listening import holder
from proxy.wire.finding import Finding

_TIMEOUT_SECONDS: Final = 5.0
_ENOUGH_FILES: Final = 4096


def listeners(settings: Settings) -> list[Finding]:
    own = [("ControlPlane.Listen", each) for each in settings.control_plane.listen]
    others = [("Console.Listen", each) for each in settings.console.listen]
    others += [("Metrics.Listen", each) for each in settings.metrics.listen]
    is_tls = settings.control_plane.cert_file is not None
    running = any(_is_ours(address, is_tls=is_tls) for _, address in own if address.port)
    return [_listener(key, address, running=running) for key, address in [*own, *others]]


def _listener(key: str, address: Address, *, running: bool) -> Finding:
    if not address.port:
        return Finding(key, "ok", f"{address}: the kernel chooses a port")
    problem = _bound(address)
    if problem is None:
        if running:
            what = f"{address}: the server runs, but does not listen there"
            return Finding(key, "warn", what, "if the setting changed after its start, restart the server")
        return Finding(key, "ok", f"{address} is free")
    if problem.errno == errno.EADDRINUSE:
        if running:
            return Finding(key, "ok", f"the running server listens on {address}")
        fix = f"stop the program that listens there (`ss -ltnp sport = :{address.port}`), or change {key}"
        found = holder(address, Path("/proc")) or "another program"
        return Finding(key, "fail", f"{address} is in use by {found}", fix)
    fix = f"set {key} to an address of this machine and a port that the server's user is allowed to open"
    return Finding(key, "fail", f"{address}: {problem.strerror}", fix)


def _bound(address: Address) -> OSError | None:
    """Return the error of a bind to the address, or None if the bind succeeds.

    The socket is bound for a moment, but never listens, so it does not block other programs for long.
    """
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address.host, address.port))
        except OSError as error:
            return error
    return None


def _is_ours(address: Address, *, is_tls: bool) -> bool:
    """Return True if the server that listens at the address is a control plane.

    The check of the listeners does not verify the control plane's certificate.
    """
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address.host, address.host)  # noqa: S104
    connection: http.client.HTTPConnection
    if is_tls:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        connection = http.client.HTTPSConnection(
            host, address.port, timeout=_TIMEOUT_SECONDS, context=context
        )
    else:
        connection = http.client.HTTPConnection(host, address.port, timeout=_TIMEOUT_SECONDS)
    try:
        connection.request("GET", "/healthz")
        response = connection.getresponse()
        return response.status == 200 and b'"status"' in response.read(1000)
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def open_files() -> list[Finding]:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard != resource.RLIM_INFINITY and hard < _ENOUGH_FILES:
        what = f"the server can open only {hard} files, which limits the number of connections"
        return [
            Finding("open files", "warn", what, "set LimitNOFILE=65536 in the unit (`ulimit -Hn` in a shell)")
        ]
    most = "any number of" if hard == resource.RLIM_INFINITY else str(hard)
    return [Finding("open files", "ok", f"the server can open {most} files")]
