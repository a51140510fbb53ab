"""Protect memory and files of this process, set their owner, and raise its limit of open files."""

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
    """Disable core dumps, and keep other processes of the same user from accessing the current process.

    Unless they run as root, other processes cannot read the memory, environment or descriptors of this
    process and its children. New files of this process are accessible only to their owner.
    """
    os.umask(0o077)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # The limit has no effect if dumps are piped into a program (core(5)). This call has, and it covers
    # ptrace(2).
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0)


def raise_open_files() -> None:
    """Raise the limit of open files as far as allowed, for this process and its children.

    Each client connection needs one file descriptor, and each worker needs several file descriptors in the
    supervisor. `select` cannot wait for file descriptors above 1023, but `poll` can.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def mode_if_open(path: Path) -> str:
    """Return the mode of a file if other users can access the file.

    Return "" if the file is missing, or if no other user can access the file.

    A file of root that this process reads as a member of its group counts as private, because Kubernetes
    gives Secrets to a pod that way.
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
    """Make a directory and its missing parents, accessible only to their owner.

    Raise OSError if the directory, or a parent directory, cannot be made.

    If root makes the directories, each new directory gets the owner of its parent directory. If root starts
    the program, the program must leave no file that the service's own user cannot open later.
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
    """Return the reason why no file can be made in a directory, or "" if a file can be made.

    If the directory is missing, check the nearest parent that exists.
    """
    nearest = next(each for each in (path, *path.absolute().parents) if each.exists())
    if not nearest.is_dir():
        return f"{nearest} is not a directory"
    return "" if os.access(nearest, os.W_OK | os.X_OK) else f"{nearest} is not writable"


def make_file(path: Path, flags: int) -> int:
    """Open a new file with mode 0600.

    If root opens the new file, the file gets the owner of its directory.
    """
    descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    give_to_owner_of(path.parent, descriptor)
    return descriptor


def give_to_owner_of(directory: Path, descriptor: int) -> None:
    """If root opened a file to write it, change the file's owner and group to those of its directory."""
    if os.geteuid() == 0:
        with suppress(OSError):  # root without CAP_CHOWN, or a file system without owners
            above, now = directory.stat(), os.fstat(descriptor)
            if (now.st_uid, now.st_gid) != (above.st_uid, above.st_gid):
                os.fchown(descriptor, above.st_uid, above.st_gid)


def foreign(paths: Iterable[Path], *, below: Path | None = None) -> str | None:
    """Return the first path that the current user may not use, the path's owner, and a command that helps.

    `below` is a directory: the command makes the current user the owner of everything in this directory. If
    `below` is not given, the command changes the owner of the path only.
    """
    for path in paths:
        if not os.access(path.parent, os.X_OK):
            return foreign_above(path)
        needed = _WHOLE_DIRECTORY if path.is_dir() else os.R_OK | os.W_OK
        with suppress(FileNotFoundError):  # a spool file or SQLite's -wal may vanish at any time
            if problem := _denied(path, needed, below):
                return problem
    return None


def foreign_above(path: Path, needed: int = _WHOLE_DIRECTORY) -> str | None:
    """Apply the checks of the function `foreign` to the nearest existing directory above a path.

    `needed` holds the bits of `os.access` for the required permissions. If a directory above the path cannot
    be entered, the function checks that directory, because paths below it are invisible.
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
    """Return True if the path would stay inaccessible even with a new owner.

    A change of the owner does not help if the current user already owns the path, or if the file system is
    read-only.
    """
    return path.stat().st_uid == os.geteuid() or bool(os.statvfs(path).f_flag & os.ST_RDONLY)


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)
