"""Ports, and how many files this machine lets the proxy open. Only looked at: nothing is bound or locked."""

from __future__ import annotations

import ipaddress
import os
import resource
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from proxy.config import Address
from proxy.settings import Settings
from proxy.wire.finding import Finding

_LISTENING: Final = "0A"
_ENOUGH_FILES: Final = 1024
_Ip = ipaddress.IPv4Address | ipaddress.IPv6Address


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
    listening = list(_listening())
    listeners = [("Proxy.Listen", each) for each in settings.proxy.listen]
    return [
        _port(key, each, listening, running)
        for key, each in [*listeners, ("Admin.Listen", settings.admin.listen)]
    ]


def _port(key: str, address: Address, listening: list[tuple[_Ip, int]], running: bool) -> Finding:
    if not address.port:
        return Finding(key, "ok", f"{address}: the kernel chooses a port")
    try:
        ip = ipaddress.ip_address("127.0.0.1" if address.host == "localhost" else address.host)
    except ValueError:
        return Finding(key, "fail", f"{address}: not an address", f"write a numeric address into {key}")
    taken = any(port == address.port and _meet(ip, other) for other, port in listening)
    if running:
        if taken:
            return Finding(key, "ok", f"{address} is open, by the proxy that runs")
        return Finding(
            key, "fail", f"{address}: a proxy runs, and nobody listens there", "see its log, and /readyz"
        )
    if taken:
        fix = f"end what listens there (`ss -ltnp sport = :{address.port}`), or change {key}"
        return Finding(key, "fail", f"{address} is in use by another program", fix)
    return _free(key, address, ip)


def _free(key: str, address: Address, ip: _Ip) -> Finding:
    first = _first_unprivileged()
    if address.port < first and os.geteuid() != 0:
        fix = f"choose a port from {first} on, or give the proxy CAP_NET_BIND_SERVICE"
        return Finding(key, "fail", f"{address}: this user may not open port {address.port}", fix)
    family = socket.AF_INET6 if ip.version == 6 else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((str(ip), 0))  # any port: only whether the address is this machine's
        except OSError as error:
            fix = f"write an address of this machine into {key} (`ip address`)"
            return Finding(key, "fail", f"{address}: {error.strerror}", fix)
    return Finding(key, "ok", f"{address} is free")


def _first_unprivileged() -> int:
    try:
        return int(Path("/proc/sys/net/ipv4/ip_unprivileged_port_start").read_text("ascii"))
    except (OSError, ValueError):
        return 1024


def _meet(one: _Ip, other: _Ip) -> bool:
    """Whether a listener on one keeps the other from listening."""
    if one.is_unspecified or other.is_unspecified:
        return one.version == other.version or (other if other.is_unspecified else one).version == 6
    return one == other


def _listening() -> Iterator[tuple[_Ip, int]]:
    for name in ("tcp", "tcp6"):
        try:
            lines = Path(f"/proc/net/{name}").read_text("ascii").splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            _, local, _, state, *_ = line.split()
            if state == _LISTENING:
                host, _, port = local.partition(":")
                yield _address(bytes.fromhex(host)), int(port, 16)


def _address(raw: bytes) -> _Ip:
    """The kernel writes each 32 bits as a number of this machine."""
    swapped = b"".join(raw[at : at + 4][::-1] for at in range(0, len(raw), 4))
    return ipaddress.ip_address(swapped)


def open_files(settings: Settings) -> list[Finding]:
    """A worker raises its own limit to the hard one."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    needed = settings.proxy.max_connections + settings.upstream.max_connections + _ENOUGH_FILES
    if hard != resource.RLIM_INFINITY and hard < needed:
        what = f"a worker may open {hard} files, and Proxy.MaxConnections takes {needed}"
        fix = (
            f"LimitNOFILE={max(needed, 65536)} in the unit (`ulimit -Hn` in a shell), or fewer MaxConnections"
        )
        return [Finding("open files", "warn", what, fix)]
    most = "any number of" if hard == resource.RLIM_INFINITY else str(hard)
    return [Finding("open files", "ok", f"a worker may open {most} files, and needs {needed} at most")]
