"""Gives log lines to an outlet, and loses what it has no room for: no process waits for who reads its log."""

from __future__ import annotations

import logging
from typing import Final, Protocol

_PATIENCE_SECONDS: Final = 0.25  # for a reader that is only slow; whoever isn't there gets it once


class Outlet(Protocol):
    def ready(self, seconds: float) -> bool:
        """Whether it takes something now, or within that time."""

    def write(self, data: bytes) -> int:
        """How many bytes it took. Raises OSError: BlockingIOError where that is none, for now."""

    def close(self) -> None: ...


class LineHandler(logging.Handler):
    """A line that was begun is ended before the next; how many were lost in between is a line of its own."""

    def __init__(self, outlet: Outlet) -> None:
        super().__init__()
        self._outlet = outlet
        self._rest = b""  # of what was begun
        self._lost = 0
        self._patient = True

    def emit(self, record: logging.LogRecord) -> None:
        self.flush()
        if self._rest:
            self._lost += 1
            return
        try:
            line = self._line(record)
        except Exception:
            self.handleError(record)
            return
        if self._lost:
            line = self._line(_of_lost(self._lost)) + line
            self._lost = 0
        self._rest = self._write(line)

    def flush(self) -> None:
        if self._rest:
            self._rest = self._write(self._rest)

    def close(self) -> None:
        super().close()
        self._outlet.close()

    def _line(self, record: logging.LogRecord) -> bytes:
        return f"{self.format(record)}\n".encode(errors="backslashreplace")

    def _write(self, data: bytes) -> bytes:
        """What is left of it."""
        while data:
            if not self._outlet.ready(_PATIENCE_SECONDS if self._patient else 0):
                self._patient = False
                return data
            try:
                data = data[self._outlet.write(data) :]
            except BlockingIOError:
                self._patient = False
                return data
            except OSError:
                return b""  # the reader is gone, or the disk is full: there is nobody to tell
            self._patient = True
        return b""


def _of_lost(count: int) -> logging.LogRecord:
    message = "%d lines before this one are lost: nobody read the log"
    return logging.LogRecord(__name__, logging.WARNING, "", 0, message, (count,), None)
