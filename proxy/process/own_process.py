"""What this process keeps to itself, memory and files; their owner, and how many it may open."""

from __future__ import annotations

import ctypes
import os
import pwd
import resource
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

_PR_SET_DUMPABLE: Final = 4
_WHOLE_DIRECTORY: Final = os.R_OK | os.W_OK | os.X_OK


def keep_to_itself() -> None:
    """No core dump, and no other process of the same user looks into memory, environment or descriptors of
    this process or its children; root still does. Files are made for their owner alone."""
    os.umask(0o077)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # The limit doesn't hold where dumps are piped into a program (core(5)); this does, and for ptrace(2) too.
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0)


def raise_open_files() -> None:
    """As far as it may, for this process and its children: each client is a descriptor, and each worker takes
    several of the supervisor's. Select can't wait for those beyond 1023; poll can."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def mode_if_open(path: Path) -> str:
    """Return the mode of a file that other users can reach, and "" if it is missing or for this user alone.

    A file of root that this process reads as a member of its group is for this user alone: Kubernetes gives
    Secrets to a pod so.
    """
    try:
        about = path.stat()
    except OSError:
        return ""
    others = about.st_mode & 0o077
    if about.st_uid == 0 != os.geteuid() and about.st_gid in {os.getegid(), *os.getgroups()}:
        others &= ~0o040
    return f"{about.st_mode & 0o777:04o}" if others else ""


def make_directory(path: Path) -> None:
    """Make a directory and its parents, for their owner alone. Raises OSError.

    If root makes them, each gets the owner of the directory that it lies in: a start by root must leave
    nothing that the service, which runs as another user, can't open.
    """
    if path.is_dir():
        return
    make_directory(path.parent)
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            give_to_owner_of(path.parent, descriptor)
        finally:
            os.close(descriptor)


def problem_of_directory(path: Path) -> str:
    """Describe why files can't be made in a directory, or in the nearest one above it that exists; empty if
    they can."""
    nearest = next(each for each in (path, *path.absolute().parents) if each.exists())
    if not nearest.is_dir():
        return f"{nearest} is not a directory"
    return "" if os.access(nearest, os.W_OK | os.X_OK) else f"{nearest} is not writable"


def make_file(path: Path, flags: int) -> int:
    """Open a new file (mode 0600), which gets the owner of its directory if root makes it. Raises OSError."""
    descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    give_to_owner_of(path.parent, descriptor)
    return descriptor


def give_to_owner_of(directory: Path, descriptor: int) -> None:
    """If root opened a file to write it, give it the owner and the group of the directory that it lies in."""
    if os.geteuid() == 0:
        with suppress(OSError):  # root without CAP_CHOWN, or a file system without owners
            above, now = directory.stat(), os.fstat(descriptor)
            if (now.st_uid, now.st_gid) != (above.st_uid, above.st_gid):
                os.fchown(descriptor, above.st_uid, above.st_gid)


def foreign(paths: Iterable[Path], *, below: Path | None = None) -> str | None:
    """Name the first path that this user may not read and write, its owner, and what to type.

    `below`: the directory to give to this user with all that it holds, instead of the path alone.
    """
    for path in paths:
        if not os.access(path.parent, os.X_OK):
            return foreign_above(path)
        needed = _WHOLE_DIRECTORY if path.is_dir() else os.R_OK | os.W_OK
        with suppress(FileNotFoundError):  # a spool file or SQLite's -wal may go at any time
            if problem := _denied(path, needed, below):
                return problem
    return None


def foreign_above(path: Path, needed: int = _WHOLE_DIRECTORY) -> str | None:
    """Check the nearest existing directory above a path as `foreign` does. `needed`: bits of `os.access`.

    If a directory on the way can't be entered, check that one: what is below it can't be found out.
    """
    parents = path.absolute().parents
    nearest = parents[-1]
    for each in reversed(parents):
        if not each.exists():
            break
        nearest = each
        if not os.access(each, os.X_OK):
            break
    return _denied(nearest, needed, None)


def _denied(path: Path, needed: int, below: Path | None) -> str | None:
    if os.access(path, needed) or _has_another_cause(path):
        return None
    user, owner = _user(os.geteuid()), _user(path.stat().st_uid)
    fix = f"chown {user} {path}" if below is None else f"chown -R {user} {below}"
    return f"{path} belongs to {owner}, and this process runs as {user}: {fix}"


def _has_another_cause(path: Path) -> bool:
    """Return True if a new owner would not help: it is this user's, or its file system is read-only."""
    return path.stat().st_uid == os.geteuid() or bool(os.statvfs(path).f_flag & os.ST_RDONLY)


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)
