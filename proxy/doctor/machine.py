"""Ports, and how many files this machine lets the proxy open."""

from __future__ import annotations

import errno
import os
import resource
import socket
from pathlib import Path
from typing import Final

from proxy.config import Address
from proxy.settings import Settings
from proxy.wire.finding import Finding

_OTHER_FILES: Final = 1024  # logs, spool, channels


def is_running(retention: Path) -> bool:
    """Whether a proxy works in that directory: it holds a lock on it, which is read rather than tried for,
    since a lock that we held for a moment would keep one out that starts in it."""
    try:
        stat = retention.stat()
        locks = Path("/proc/locks").read_text("ascii")
    except OSError:
        return False
    wanted = f"{os.major(stat.st_dev):02x}:{os.minor(stat.st_dev):02x}:{stat.st_ino}"
    return any("FLOCK" in line and wanted in line.split() for line in locks.splitlines())


def ports(settings: Settings, *, running: bool) -> list[Finding]:
    listeners = [("Proxy.Listen", each) for each in settings.proxy.listen]
    return [
        _port(key, each, running=running)
        for key, each in [*listeners, ("Admin.Listen", settings.admin.listen)]
    ]


def _port(key: str, address: Address, *, running: bool) -> Finding:
    if not address.port:
        return Finding(key, "ok", f"{address}: the kernel chooses a port")
    problem = _bound(address)
    if problem is None or problem.errno != errno.EADDRINUSE:
        if running:
            what = f"{address}: a proxy runs, and nobody listens there"
            return Finding(key, "fail", what, "see its log, and /readyz")
        if problem is None:
            return Finding(key, "ok", f"{address} is free")
        if problem.errno == errno.EACCES:
            fix = "choose a port from 1024 on, or give the proxy CAP_NET_BIND_SERVICE"
            return Finding(key, "fail", f"{address}: this user may not open port {address.port}", fix)
        fix = f"write an address of this machine into {key} (`ip address`)"
        return Finding(key, "fail", f"{address}: {problem.strerror}", fix)
    if running:
        return Finding(key, "ok", f"{address} is open, by the proxy that runs")
    fix = f"end what listens there (`ss -ltnp sport = :{address.port}`), or change {key}"
    return Finding(key, "fail", f"{address} is in use by another program", fix)


def _bound(address: Address) -> OSError | None:
    """Why it can't be bound. For a moment it is, but never listened on: that keeps nobody from doing both,
    since whoever listens says SO_REUSEADDR too."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address.host, address.port))
        except OSError as error:
            return error
    return None


def open_files(settings: Settings) -> list[Finding]:
    """A worker raises its own limit to the hard one."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    needed = settings.proxy.max_connections + settings.upstream.max_connections + _OTHER_FILES
    if hard != resource.RLIM_INFINITY and hard < needed:
        what = f"a worker may open {hard} files, and Proxy.MaxConnections takes {needed}"
        fix = (
            f"LimitNOFILE={max(needed, 65536)} in the unit (`ulimit -Hn` in a shell), or fewer MaxConnections"
        )
        return [Finding("open files", "warn", what, fix)]
    most = "any number of" if hard == resource.RLIM_INFINITY else str(hard)
    return [Finding("open files", "ok", f"a worker may open {most} files, and needs {needed} at most")]
