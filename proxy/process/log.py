"""Where this process's log lines go: standard error."""

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
    """Never waits for its reader."""

    def __init__(self) -> None:
        self._fd = self._shared = sys.stderr.fileno()
        mode = os.fstat(self._fd).st_mode
        # What is ready takes so much without waiting, and a file takes everything.
        self._most = sys.maxsize if stat.S_ISREG(mode) else select.PIPE_BUF
        if stat.S_ISFIFO(mode) or stat.S_ISCHR(mode):
            # The same pipe or terminal, opened once more: nobody who fills it after we have looked makes us
            # wait. Made non-blocking itself, it would be so for all who share it.
            with contextlib.suppress(OSError):  # another user's, or no /proc
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
    """Set up the log of this process in place of what it inherited. Lines name `process` if it is given."""
    root = logging.getLogger()
    for inherited in root.handlers:
        if isinstance(inherited, LineHandler):
            inherited.close()
    handler = logging.NullHandler() if sys.stderr is None else LineHandler(_StandardError())
    handler.setFormatter(LineFormatter(style, process))
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
