"""Log of the control plane: lines of libraries that must not appear as they are."""

from __future__ import annotations

import logging
from typing import Literal

from proxy.process import log


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
    """Set up the log of the control plane."""
    log.configure(level, style)
    logging.getLogger("aiosqlite").setLevel(logging.WARNING)  # its debug lines hold whole statements
    logging.getLogger("psycopg").setLevel(logging.ERROR)  # what it warns of reaches its caller too
    logging.getLogger("aiohttp.server").addFilter(_BadRequestIsNoFault())
