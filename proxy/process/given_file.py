"""Read a secret, key or certificate file from the settings, without waiting for another process."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import PurePath
from typing import Final

_READING: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC


def read_given_file(path: PurePath) -> bytes:
    """Return the content of a regular file.

    Raise OSError if the file at the given path can't be read. If the path names a pipe or a device, the file
    is refused, because reading a pipe or a device may never end.
    """
    with open(path, "rb", opener=lambda name, _: os.open(name, _READING)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "the path is not a regular file", str(path))
        return file.read()
