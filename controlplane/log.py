"""Where the control plane's log lines go, and what libraries say that must not stand there."""

from __future__ import annotations

import logging
import sys
from typing import Literal

from proxy.wire.log_line import LineFormatter


class _BadRequestIsNoFault(logging.Filter):
    """aiohttp logs malformed HTTP as an error with its traceback; here it is a line of debug at most."""

    def filter(self, record: logging.LogRecord) -> bool:
        from aiohttp.http_exceptions import HttpProcessingError

        error = record.exc_info[1] if record.exc_info else None
        if not isinstance(error, HttpProcessingError):
            return True
        record.exc_info = None
        record.levelno, record.levelname = logging.DEBUG, "DEBUG"
        record.msg, record.args = "malformed HTTP refused: %s", (type(error).__name__,)
        return logging.getLogger(record.name).isEnabledFor(logging.DEBUG)


def configure(level: str, style: Literal["text", "json"]) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter(style))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    logging.getLogger("aiosqlite").setLevel(logging.WARNING)  # its debug lines hold whole statements
    logging.getLogger("aiohttp.server").addFilter(_BadRequestIsNoFault())
