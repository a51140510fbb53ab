"""Error message for a listening address in use: the setting, the address, and the program that uses it."""

import errno
import sys
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from proxy.config.values import Address

_LISTENING: Final = "0A"  # TCP_LISTEN in the kernel's tables
_NO_FAMILY: Final = (errno.EAFNOSUPPORT, errno.EPROTONOSUPPORT)


def not_listening(setting: str, address: Address, error: OSError, proc: Path) -> str:
    """Describe in one line why the proxy cannot listen on the address in a setting.

    `proc` is the directory in which the kernel shows its tables (`/proc`).
    """
    return f"{setting}: {address}{_why(setting, address, error, proc)}"


def _why(setting: str, address: Address, error: OSError, proc: Path) -> str:
    if error.errno == errno.EADDRINUSE:
        found = holder(address, proc)
        if found is None:
            found = (
                f"another program (`ss -ltnp sport = :{address.port}` names it), "
                "or Graphward is already running"
            )
        return f" is in use by {found}: end it, or change {setting}"
    if error.errno in _NO_FAMILY or (error.errno == errno.EADDRNOTAVAIL and address.host in ("::", "::1")):
        return f": this machine has no IPv6: enable it, or write an IPv4 address into {setting}"
    if error.errno == errno.EADDRNOTAVAIL:
        return f" is not an address of this machine: `ip address` lists those for {setting}"
    if error.errno == errno.EACCES:
        return f": this user may not open port {address.port}: choose one from 1024 on"
    return f": {error.strerror or error}"


def holder(address: Address, proc: Path) -> str | None:
    """Return the name of the program that already listens on the address, such as `nginx, process 4711`.

    Return None if the program is unknown. The kernel shows only to root which processes of other users own a
    socket.
    """
    sockets = {
        f"socket:[{inode}]"
        for table in ("net/tcp", "net/tcp6")
        for inode in _inodes(_read(proc / table), address)
    }
    if not sockets:
        return None
    for process in sorted(_processes(proc), key=lambda each: int(each.name)):
        if sockets & _descriptors(process):
            return f"{_read(process / 'comm').strip() or 'a program'}, process {process.name}"
    return None


def _inodes(table: str, address: Address) -> list[str]:
    rows = [line.split() for line in table.splitlines()[1:]]
    return [row[9] for row in rows if len(row) > 9 and row[3] == _LISTENING and _overlaps(row[1], address)]


def _overlaps(local: str, address: Address) -> bool:
    """Return True if a listener at `local` (as the kernel writes it) blocks a listener at `address`."""
    host, _, port = local.partition(":")
    if int(port, 16) != address.port:
        return False
    try:
        wanted = ip_address(address.host)
    except ValueError:  # a name, which may stand for several addresses
        return True
    words = [bytes.fromhex(host)[at : at + 4] for at in range(0, len(host) // 2, 4)]
    packed = b"".join(word[::-1] if sys.byteorder == "little" else word for word in words)
    return not any(packed) or not int(wanted) or packed == wanted.packed


def _processes(proc: Path) -> list[Path]:
    try:
        return [each for each in proc.iterdir() if each.name.isdigit()]
    except OSError:
        return []


def _descriptors(process: Path) -> set[str]:
    found = set()
    try:
        for each in (process / "fd").iterdir():
            found.add(str(each.readlink()))
    except OSError:  # another user's process, or one that has ended
        pass
    return found


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""
