"""Checks of this machine: the ports of the proxy, and the proxy's limit of open files."""

from __future__ import annotations

import errno
import os
import resource
import socket
import struct
from pathlib import Path
from typing import Final

from proxy.config import Address
from proxy.config.listening import holder
from proxy.startup.settings import Settings
from proxy.wire.finding import Finding

_LISTENING: Final = "0A"  # state of a listening socket in /proc/net/tcp
_OTHER_FILES: Final = 1024  # descriptors for logs, spool and channels


def supervisor_of(retention: Path) -> int | None:
    """Return the process ID of the proxy that uses the retention directory; None if no proxy uses it.

    A running proxy holds a lock on its retention directory. The function only reads the kernel's list of
    locks, because even a short attempt to lock the directory could stop a proxy from starting.
    """
    try:
        stat = retention.stat()
        locks = Path("/proc/locks").read_text("ascii")
    except OSError:
        return None
    wanted = f"{os.major(stat.st_dev):02x}:{os.minor(stat.st_dev):02x}:{stat.st_ino}"
    for line in locks.splitlines():
        _, kind, _, _, pid, file, *_ = line.split()
        if (kind, file) == ("FLOCK", wanted):
            return int(pid)
    return None


def ports(settings: Settings, *, supervisor: int | None) -> list[Finding]:
    """Check the listening ports of the proxy.

    `supervisor` is the process ID of the running proxy, or None if no proxy runs.
    """
    running = supervisor is not None
    found = [_port("Proxy.Listen", each, running=running) for each in settings.proxy.listen]
    found.append(_port("Admin.Listen", settings.admin.listen, running=running))
    if supervisor is not None:
        found += [_shared(each) for each in settings.proxy.listen if _is_shared(each, supervisor)]
    return found


def _shared(address: Address) -> Finding:
    what = f"{address}: another process listens there too, and serves some of the requests by its own rules"
    fix = f"end it (`ss -ltnp sport = :{address.port}`), unless it is about to end"
    return Finding("Proxy.Listen", "fail", what, fix)


def _is_shared(address: Address, supervisor: int) -> bool:
    """Return True if processes of other programs also receive connections that clients make to the address.

    The supervisor also holds the listening sockets of its workers open. Return False if the processes of
    another user can't be examined.
    """
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        packed = socket.inet_pton(family, address.host)
        own = {os.readlink(each) for each in Path(f"/proc/{supervisor}/fd").iterdir()}
        table = Path("/proc/net/tcp6" if family is socket.AF_INET6 else "/proc/net/tcp").read_text("ascii")
    except OSError:
        return False
    words = struct.unpack(f"={len(packed) // 4}I", packed)
    local = "".join(f"{word:08X}" for word in words) + f":{address.port:04X}"
    rows = [line.split() for line in table.splitlines()[1:]]
    listening = {f"socket:[{row[9]}]" for row in rows if (row[1], row[3]) == (local, _LISTENING)}
    return bool(listening & own and listening - own)


def _port(key: str, address: Address, *, running: bool) -> Finding:
    if not address.port:
        return Finding(key, "ok", f"{address}: the kernel chooses a port")
    problem = _bound(address)
    if problem is None or problem.errno != errno.EADDRINUSE:
        if running:
            what = f"{address}: a proxy runs, but no process listens there"
            return Finding(key, "fail", what, "see its log, and /readyz")
        if problem is None:
            return Finding(key, "ok", f"{address} is free")
        if problem.errno == errno.EACCES:
            fix = "choose a port from 1024 on, or give the proxy CAP_NET_BIND_SERVICE"
            return Finding(key, "fail", f"{address}: this user may not open port {address.port}", fix)
        fix = f"write an address of this machine into {key} (`ip address`)"
        return Finding(key, "fail", f"{address}: {problem.strerror}", fix)
    if running:
        return Finding(key, "ok", f"{address} is open, by the running proxy")
    fix = f"end the process that listens there (`ss -ltnp sport = :{address.port}`), or change {key}"
    found = holder(address, Path("/proc")) or "another program"
    return Finding(key, "fail", f"{address} is in use by {found}", fix)


def _bound(address: Address) -> OSError | None:
    """Return the error of an attempt to bind the address; None if the attempt succeeds.

    The function binds the socket for a moment, but does not listen on the socket. Another process can listen
    while the socket is bound, because the socket sets SO_REUSEADDR too.
    """
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address.host, address.port))
        except OSError as error:
            return error
    return None


def open_files(settings: Settings) -> list[Finding]:
    """Check the limit of open files of the proxy's processes.

    A worker process raises its own limit of open files to the hard limit.
    """
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    needed = settings.proxy.max_connections + settings.upstream.max_connections + _OTHER_FILES
    if hard != resource.RLIM_INFINITY and hard < needed:
        what = f"a worker may open {hard} files, but Proxy.MaxConnections needs {needed}"
        fix = (
            f"LimitNOFILE={max(needed, 65536)} in the unit (`ulimit -Hn` in a shell), or fewer MaxConnections"
        )
        return [Finding("open files", "warn", what, fix)]
    most = "any number of" if hard == resource.RLIM_INFINITY else str(hard)
    return [Finding("open files", "ok", f"a worker may open {most} files, and needs {needed} at most")]
