"""Handover to another version of the proxy by exec, which keeps process ID, sockets, lock and children.

The supervisor checks the new version in a separate process, and executes the new version only if the check
succeeds. The proxy refuses no connection during a handover to another version. The old workers continue to
accept connections from the same sockets that the new workers receive.
"""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import socket
import sys
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from proxy.config import Address
from proxy.config.listening import not_listening
from proxy.config.values import parse_address
from proxy.process.own_process import foreign, foreign_above, make_directory

# A later format gets another name, and this one must still be read.
_VARIABLE: Final = "GRAPHWARD_HANDOVER_1"
_CHECK_VARIABLE: Final = "GRAPHWARD_CHECK_1"
SPARE_DESCRIPTORS: Final = 64  # descriptors for files that each process opens in addition to inherited ones


class DirectoryOwned(Exception):
    """Error because another proxy uses the retention directory, or because the directory can't be opened.

    The error's message is one line for the operator.
    """


class OldChild(msgspec.Struct, frozen=True):
    """A process that the supervisor of the previous version started."""

    name: str
    pid: int


class Handover(msgspec.Struct, frozen=True):
    """File descriptors and process IDs that stay valid across the exec of a new version."""

    lock: int
    listeners: dict[str, list[int]]  # descriptors per address, as the settings spell it
    children: list[OldChild]
    channels: list[int] = []  # the agent's ends of the channels to the workers among the children


class Own(msgspec.Struct, frozen=True):
    """Resources that the running proxy uses; the check of a new version counts them as available."""

    addresses: list[str]  # addresses that it listens on, as the settings spell them
    directory: str  # directory whose lock it holds
    workers: int = 0
    descriptors: int = 0  # number of descriptors that it keeps
    admin: str = ""  # address of its agent's listener; empty from a version that did not report it


def received(environment: MutableMapping[str, str]) -> Handover | None:
    """Return the handover data of the previous version; None at an ordinary start."""
    text = environment.pop(_VARIABLE, None)
    if text is None:
        return None
    handover = msgspec.json.decode(text, type=Handover)
    for fd in _descriptors(handover):
        os.set_inheritable(fd, False)
    return handover


def become_new_version(handover: Handover) -> None:
    """Replace the program of this process with the program of the new version.

    If exec fails, restore the previous state and raise OSError.
    """
    os.environ[_VARIABLE] = msgspec.json.encode(handover).decode()
    try:
        for fd in _descriptors(handover):
            os.set_inheritable(fd, True)
        os.execv(sys.executable, _command())  # noqa: S606 - the proxy's own command line, as it was given
    finally:
        del os.environ[_VARIABLE]
        for fd in _descriptors(handover):
            os.set_inheritable(fd, False)


def start_check(own: Own) -> int:
    """Start `--check` of the installed version and return its process ID.

    The `--check` process prints its problems to standard error. Raise OSError if the interpreter is missing
    or no process can be created.
    """
    nowhere = (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)
    environment = {**os.environ, _CHECK_VARIABLE: msgspec.json.encode(own).decode()}
    return os.posix_spawn(
        sys.executable, [*_command(), "--check"], environment, file_actions=[nowhere], setsigmask=[]
    )


def problems_of_taking_over(
    environment: Mapping[str, str],
    listen: Sequence[Address],
    admin: Address,
    workers: int,
    directory: Path,
) -> Iterator[str]:
    """Yield the problems that would follow if the running proxy handed over to a version with these settings.

    If no running proxy started this check, yield nothing. A handover to another version can't be undone.
    """
    text = environment.get(_CHECK_VARIABLE)
    if text is None:
        return
    own = msgspec.json.decode(text, type=Own)
    for address in listen:
        if str(address) not in own.addresses:
            try:
                bound(address).close()
            except OSError as error:
                yield not_listening("Proxy.Listen", address, error, Path("/proc"))
    if own.admin:
        yield from admin_problems(parse_address(own.admin), admin)
    if str(directory.resolve()) != own.directory:
        # Undelivered events, and the numbers of delivered ones, would stay in the old directory.
        yield (
            f"Audit.LocalRetentionPath: {directory}: an upgrade keeps {own.directory}; to use another path, "
            "stop the proxy, move the directory there and start it"
        )
    needed = _descriptors_needed(own, listen, workers)
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if limit != resource.RLIM_INFINITY and needed > limit:
        yield (
            f"Proxy.Workers: {workers} workers in addition to the running ones need {needed} open files, but "
            f"the limit is {limit}: choose fewer, or raise LimitNOFILE= in the unit, and stop and start it"
        )


def _descriptors_needed(own: Own, listen: Sequence[Address], workers: int) -> int:
    """Return the number of file descriptors that the supervisor, and so each child, needs after a handover.

    Each worker needs a listening socket per address, two ends of a channel, and a pipe that is open until the
    worker is ready.
    """
    adopted = min(own.workers, workers) * sum(1 for address in listen if str(address) in own.addresses)
    made = workers * len(listen) - adopted + 3 * workers
    return own.descriptors + made + SPARE_DESCRIPTORS


def bound(address: Address) -> socket.socket:
    """Return a socket that is bound to the address, without listening.

    Each worker may have a socket that is bound to the same address. Raise OSError.
    """
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind((address.host, address.port))
    except OSError:
        listener.close()
        raise
    return listener


def admin_problems(in_force: Address, wanted: Address) -> list[str]:
    """Return the reason why a new agent could not listen on `wanted` after the end of the old agent."""
    if wanted == in_force:
        return []
    try:
        try_to_bind(wanted)
    except OSError as error:
        # On the same port, an address of all interfaces conflicts with a single one. The conflict ends with
        # the old agent.
        everywhere = {"0.0.0.0", "::"} & {in_force.host, wanted.host}  # noqa: S104
        if error.errno == errno.EADDRINUSE and wanted.port == in_force.port and everywhere:
            return []
        return [not_listening("Admin.Listen", wanted, error, Path("/proc"))]
    return []


def try_to_bind(address: Address) -> None:
    """Raise OSError if another process listens on the address."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((address.host, address.port))


def own_directory(directory: Path, held: int | None) -> int:
    """Lock the retention directory against a second proxy.

    If this process already holds the lock on the directory, `held` is that lock.

    The lock is on the directory and not on a file in the directory, so it also works on a full or read-only
    disk. Only the supervisor process holds the lock. The supervisor's children close the lock, so that no
    child blocks a proxy that starts later.
    """
    try:
        make_directory(directory)
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        problem = f"{directory}: {error.strerror}"
        if isinstance(error, PermissionError):
            problem = foreign([directory]) or foreign_above(directory) or problem
        raise DirectoryOwned(f"Audit.LocalRetentionPath: {problem}") from None
    if held is not None and os.path.sameopenfile(fd, held):
        os.close(fd)
        return held
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise DirectoryOwned(
            f"Audit.LocalRetentionPath: {directory} is in use by another proxy; each proxy needs its own "
            "directory"
        ) from None
    if held is not None:
        os.close(held)
    return fd


def adopted_listeners(
    handover: Handover, addresses: Sequence[str], slots: int
) -> list[dict[str, list[socket.socket]]]:
    """Return, for each worker slot, the listening sockets from the previous version.

    If there are fewer worker slots than before, a slot gets several sockets, because connections may wait in
    each socket. The old workers keep the sockets of an address that is no longer in the settings.
    """
    shares: list[dict[str, list[socket.socket]]] = [{} for _ in range(slots)]
    for address, fds in handover.listeners.items():
        for at, fd in enumerate(fds):
            if address in addresses:
                shares[at % slots].setdefault(address, []).append(socket.socket(fileno=fd))
            else:
                os.close(fd)
    return shares


def count_kept(handover: Handover) -> int:
    """Return the number of descriptors that are open after the exec, including standard input and output."""
    return 3 + len(_descriptors(handover))


def _descriptors(handover: Handover) -> list[int]:
    listeners = (fd for fds in handover.listeners.values() for fd in fds)
    return [handover.lock, *listeners, *handover.channels]


def _command() -> list[str]:
    return [sys.executable, *sys.orig_argv[1:]]
