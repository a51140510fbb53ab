"""Log output of this process: lines on standard error."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import stat
import sys
from typing import Literal

from proxy.wire.log_handler import LineHandler
from proxy.wire.log_line import LineFormatter


class _StandardError:
    """Log output stream that never blocks, even if no program reads standard error."""

    def __init__(self) -> None:
        self._fd = self._shared = sys.stderr.fileno()
        mode = os.fstat(self._fd).st_mode
        # A pipe that is ready takes this many bytes without blocking. A file takes everything.
        self._most = sys.maxsize if stat.S_ISREG(mode) else select.PIPE_BUF
        if stat.S_ISFIFO(mode) or stat.S_ISCHR(mode):
            # Open the same pipe or terminal again. Then another writer that fills it after the check cannot
            # block this process. If the shared descriptor were non-blocking, it would be so for all processes
            # that share it.
            with contextlib.suppress(OSError):  # it belongs to another user, or there is no /proc
                own = f"/proc/self/fd/{self._fd}"
                self._fd = os.open(own, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
                self._most = sys.maxsize
        self._room = select.poll()
        self._room.register(self._fd, select.POLLOUT)

    def ready(self, seconds: float) -> bool:
        return bool(self._room.poll(seconds * 1000))

    def write(self, data: bytes) -> int:
        return os.write(self._fd, data[: self._most])

    def close(self) -> None:
        if self._fd != self._shared:
            os.close(self._fd)


def configure(level: str, style: Literal["text", "json"], process: str = "") -> None:
    """Set up the log of this process, and replace the log setup that the process inherited.

    If `process` is given, each log line contains this name of the process.
    """
    root = logging.getLogger()
    for inherited in root.handlers:
        if isinstance(inherited, LineHandler):
            inherited.close()
    handler = logging.NullHandler() if sys.stderr is None else LineHandler(_StandardError())
    handler.setFormatter(LineFormatter(style, process))
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
