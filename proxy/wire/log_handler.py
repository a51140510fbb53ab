"""Write log lines to an output such as standard error, and drop the lines that the output has no room for.

A process never blocks, even if nobody reads its log.
"""

from __future__ import annotations

import logging
from typing import Final, Protocol

_PATIENCE_SECONDS: Final = 0.25  # wait for a slow reader; a reader that let it pass is not waited for again


class Outlet(Protocol):
    def ready(self, seconds: float) -> bool:
        """Return whether the log outlet can take bytes now or within the given number of seconds."""

    def write(self, data: bytes) -> int:
        """Write bytes to the log outlet, and return how many bytes were written.

        Raise BlockingIOError if the log outlet can take no bytes now, or another OSError if the outlet is
        broken.
        """

    def close(self) -> None: ...


class LineHandler(logging.Handler):
    """A log handler that completes each line before it begins the next line.

    If the handler drops log lines, it later logs the number of dropped lines.
    """

    def __init__(self, outlet: Outlet) -> None:
        super().__init__()
        self._outlet = outlet
        self._rest = b""  # rest of a line that is partly written
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
        """Write the data to the log outlet, and return the bytes that are left."""
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
                return b""  # the reader is gone, or the disk is full: no place is left to report it
            self._patient = True
        return b""


def _of_lost(count: int) -> logging.LogRecord:
    message = "dropped %d lines before this one: the log was not read in time"
    return logging.LogRecord(__name__, logging.WARNING, "", 0, message, (count,), None)
