"""How one version of the proxy takes another's place: by exec, with process id, sockets, lock and children.

The supervisor checks the new version in a process of its own, and only then becomes it. No connection is
refused meanwhile: the old workers go on accepting from the very sockets that their successors get.
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

# Any later format takes another name, beside which this one is still read.
_VARIABLE: Final = "GRAPHWARD_HANDOVER_1"
_CHECK_VARIABLE: Final = "GRAPHWARD_CHECK_1"
SPARE_DESCRIPTORS: Final = 64  # for what each process opens beside what it inherits


class DirectoryOwned(Exception):
    """Another proxy works in the directory, or it can't be had; the message is one line for the operator."""


class OldChild(msgspec.Struct, frozen=True):
    """A process that the supervisor before this one started."""

    name: str
    pid: int


class Handover(msgspec.Struct, frozen=True):
    """What an exec keeps, by file descriptor and process id."""

    lock: int
    listeners: dict[str, list[int]]  # per address, as the settings spell it
    children: list[OldChild]
    channels: list[int] = []  # the agent's ends of those to the workers among the children


class Own(msgspec.Struct, frozen=True):
    """What the proxy that asks for a check has already, so that it counts as free."""

    addresses: list[str]  # that it listens on, as the settings spell them
    directory: str  # that it holds the lock of
    workers: int = 0
    descriptors: int = 0  # that it keeps
    admin: str = ""  # address of its agent's listener; empty from a version that did not say it


def received(environment: MutableMapping[str, str]) -> Handover | None:
    """What the version before handed over; None at an ordinary start."""
    text = environment.pop(_VARIABLE, None)
    if text is None:
        return None
    handover = msgspec.json.decode(text, type=Handover)
    for fd in _descriptors(handover):
        os.set_inheritable(fd, False)
    return handover


def become_new_version(handover: Handover) -> None:
    """Returns only by an OSError: then everything is as it was."""
    os.environ[_VARIABLE] = msgspec.json.encode(handover).decode()
    try:
        for fd in _descriptors(handover):
            os.set_inheritable(fd, True)
        os.execv(sys.executable, _command())  # noqa: S606 - our own command line, as it was given
    finally:
        del os.environ[_VARIABLE]
        for fd in _descriptors(handover):
            os.set_inheritable(fd, False)


def start_check(own: Own) -> int:
    """The process id of `--check` by whatever version is installed now; its problems go to standard error.
    Raises OSError where there is no interpreter, or no process to be had."""
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
    """In a check for a proxy that runs: what these settings want beside what it has, and could not be had
    once it has become the new version, when there is no way back."""
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
        # Events that are still to go, and the count of those that went, would stay behind.
        yield (
            f"Audit.LocalRetentionPath: {directory}: an upgrade keeps {own.directory}; for another path, "
            "stop the proxy, move the directory there and start it"
        )
    needed = _descriptors_needed(own, listen, workers)
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if limit != resource.RLIM_INFINITY and needed > limit:
        yield (
            f"Proxy.Workers: {workers} workers beside those that run take {needed} open files, and the limit "
            f"is {limit}: choose fewer, or raise LimitNOFILE= in the unit, which takes a stop and a start"
        )


def _descriptors_needed(own: Own, listen: Sequence[Address], workers: int) -> int:
    """By a supervisor that has taken over, and so by its children: of each worker a listener for each
    address, two ends of a channel, and a pipe until it is ready."""
    adopted = min(own.workers, workers) * sum(1 for address in listen if str(address) in own.addresses)
    made = workers * len(listen) - adopted + 3 * workers
    return own.descriptors + made + SPARE_DESCRIPTORS


def bound(address: Address) -> socket.socket:
    """A socket of ours at that address, which each worker may have one of. Raises OSError."""
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
    """List the reasons why another agent could not listen there after the one before has ended."""
    if wanted == in_force:
        return []
    try:
        try_to_bind(wanted)
    except OSError as error:
        # On one port, an address of all interfaces is in the way of one of them: it ends with its agent.
        everywhere = {"0.0.0.0", "::"} & {in_force.host, wanted.host}  # noqa: S104
        if error.errno == errno.EADDRINUSE and wanted.port == in_force.port and everywhere:
            return []
        return [not_listening("Admin.Listen", wanted, error, Path("/proc"))]
    return []


def try_to_bind(address: Address) -> None:
    """Raises OSError if another process listens there."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((address.host, address.port))


def own_directory(directory: Path, held: int | None) -> int:
    """The lock that keeps a second proxy out of the directory; `held` is what this one has already.

    On the directory itself, so that neither a full nor a read-only disk stands in the way. It is of the
    supervisor alone: its children close it, so that none of them keeps a successor out.
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
            f"Audit.LocalRetentionPath: {directory} is in use by another proxy; each needs one of its own"
        ) from None
    if held is not None:
        os.close(held)
    return fd


def adopted_listeners(
    handover: Handover, addresses: Sequence[str], slots: int
) -> list[dict[str, list[socket.socket]]]:
    """Per worker slot, the sockets that were handed over; with fewer slots than before one has several, since
    connections may wait in each. Those of an address that is no longer in the settings are left to the old
    workers."""
    shares: list[dict[str, list[socket.socket]]] = [{} for _ in range(slots)]
    for address, fds in handover.listeners.items():
        for at, fd in enumerate(fds):
            if address in addresses:
                shares[at % slots].setdefault(address, []).append(socket.socket(fileno=fd))
            else:
                os.close(fd)
    return shares


def count_kept(handover: Handover) -> int:
    """How many descriptors are open after the exec, standard input and output included."""
    return 3 + len(_descriptors(handover))


def _descriptors(handover: Handover) -> list[int]:
    listeners = (fd for fds in handover.listeners.values() for fd in fds)
    return [handover.lock, *listeners, *handover.channels]


def _command() -> list[str]:
    return [sys.executable, *sys.orig_argv[1:]]
