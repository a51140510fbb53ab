"""Room on the store's disk that is kept back, so that a full disk can't keep operators from stopping anybody.

A file of zeros beside the database. A write that must succeed on a full disk cuts a piece off it and is tried
again at once, before anybody else takes that room; once there is plenty again, the file gets its size back.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

from proxy.process.own_process import make_file

SIZE: Final = 8 * 1024 * 1024  # some hundred operations, each of them three commits to the log
_PIECE: Final = 64 * 1024
_PLENTY: Final = 4 * SIZE  # what has to be free beside it, so that it is not what fills a disk


def missing_bytes(database: Path) -> int:
    """Bytes by which the reserve of the database of that path is short of its full size."""
    try:
        return max(0, SIZE - _reserve_of(database).stat(follow_symlinks=False).st_size)
    except OSError:
        return SIZE


def _reserve_of(database: Path) -> Path:
    return database.with_name(database.name + ".reserve")


class Reserve:
    """Of the database of that path. Never an OSError: without a reserve all is as it would be without one."""

    def __init__(self, database: Path) -> None:
        self._path = _reserve_of(database)

    def fill(self) -> None:
        """To its full size if it is short of it and there is plenty of room."""
        with contextlib.suppress(OSError):
            if self._size() == SIZE:
                return
            disk = os.statvfs(self._path.parent)
            if disk.f_bavail * disk.f_frsize < _PLENTY:
                return
            try:
                fd = make_file(self._path, os.O_RDWR)
            except FileExistsError:
                fd = os.open(self._path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                os.posix_fallocate(fd, 0, SIZE)
            finally:
                os.close(fd)

    def release(self) -> bool:
        """Gives a piece of it back to the disk; False if there is none left."""
        with contextlib.suppress(OSError):
            if size := self._size():
                os.truncate(self._path, max(0, size - _PIECE))
                return True
        return False

    def _size(self) -> int:
        try:
            return self._path.stat(follow_symlinks=False).st_size
        except FileNotFoundError:
            return 0
