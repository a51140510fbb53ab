"""Reserved space on the store's disk, so that an emergency stop works even if the disk is full.

The reserve is a file of zeros next to the database. If the disk is full and a write must succeed, the store
makes the reserve file 64 KiB smaller. The store then repeats the failed write at once, before another process
can use the freed space. When the disk has plenty of space again, the store extends the reserve's file to its
full size.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

from proxy.process.own_process import make_file

# bytes for some hundred operations, each of which makes three commits to the log
SIZE: Final = 8 * 1024 * 1024
_PIECE: Final = 64 * 1024
# bytes that must be free in addition, so that the reserve does not fill the disk itself
_PLENTY: Final = 4 * SIZE


def missing_bytes(database: Path) -> int:
    """Return the number of bytes by which the reserve file of a database is smaller than `SIZE`."""
    try:
        return max(0, SIZE - _reserve_of(database).stat(follow_symlinks=False).st_size)
    except OSError:
        return SIZE


def _reserve_of(database: Path) -> Path:
    return database.with_name(database.name + ".reserve")


class Reserve:
    """The reserved space for the database file at `database`.

    The methods of the disk reserve never raise OSError: if the reserve's file is missing, the store works
    without a reserve.
    """

    def __init__(self, database: Path) -> None:
        self._path = _reserve_of(database)

    def fill(self) -> None:
        """Extend the reserve to its full size if its file is shorter and the disk has enough space."""
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
        """Shorten the reserve's file by one piece, so that the disk has free space.

        Return False if the reserve is empty.
        """
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
