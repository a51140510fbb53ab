"""What this process keeps to itself: its memory, which holds secrets, and the files that it makes."""

from __future__ import annotations

import ctypes
import os
import pwd
import resource
from contextlib import suppress
from pathlib import Path
from typing import Final

_PR_SET_DUMPABLE: Final = 4


def keep_to_itself() -> None:
    """No core dump, and no other process of the same user looks into memory, environment or descriptors of
    this process or its children; root still does. Files are made for their owner alone."""
    os.umask(0o077)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # The limit doesn't hold where dumps are piped into a program (core(5)); this does, and for ptrace(2) too.
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0)


def make_directory(path: Path) -> None:
    """Make a directory and its parents, for their owner alone. Raises OSError.

    If root makes them, each gets the owner of the directory that it lies in: a command that root types must
    leave nothing that the service, which runs as another user, can't open.
    """
    if path.is_dir():
        return
    make_directory(path.parent)
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
        _give_to_owner_of(path.parent, path)


def make_file(path: Path, flags: int) -> int:
    """Open a new file (mode 0600), which gets the owner of its directory if root makes it. Raises OSError."""
    descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    _give_to_owner_of(path.parent, descriptor)
    return descriptor


def _give_to_owner_of(directory: Path, made: Path | int) -> None:
    if os.geteuid() == 0:
        with suppress(OSError):  # root without CAP_CHOWN, or a file system without owners
            above = directory.stat()
            os.chown(made, above.st_uid, above.st_gid)


def not_ours(*paths: Path) -> str | None:
    """Name the first file that exists and may not be read and written here, its owner, and what to type."""
    for path in paths:
        with suppress(FileNotFoundError):  # SQLite's -wal and -shm go when another process closes the file
            if not os.access(path, os.R_OK | os.W_OK) and not _has_another_cause(path):
                user, owner = _user(os.geteuid()), _user(path.stat().st_uid)
                return f"{path} belongs to {owner}, and this process runs as {user}: chown {user} {path}"
    return None


def of_directory(path: Path) -> str:
    """Return the end of an error about a file that can't be made: the directory's owner, and what to type."""
    folder = next(each for each in path.absolute().parents if each.exists())
    if os.access(folder, os.W_OK | os.X_OK) or _has_another_cause(folder):
        return ""
    user = _user(os.geteuid())
    owner = _user(folder.stat().st_uid)
    return f"; {folder} belongs to {owner}, and this process runs as {user}: chown {user} {folder}"


def _has_another_cause(path: Path) -> bool:
    """Return True if a new owner would not help: it is this user's, or its file system is read-only."""
    return path.stat().st_uid == os.geteuid() or bool(os.statvfs(path).f_flag & os.ST_RDONLY)


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)
