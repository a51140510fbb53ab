"""Logging of the control plane, including filters for the log lines of libraries."""

from __future__ import annotations

import logging
from typing import Literal

from proxy.process import log


class _BadRequestIsNoFault(logging.Filter):
    """Filter that replaces aiohttp's tracebacks about malformed HTTP requests with one debug line."""

    def filter(self, record: logging.LogRecord) -> bool:
        from aiohttp.http_exceptions import HttpProcessingError

        error = record.exc_info[1] if record.exc_info else None
        if not isinstance(error, HttpProcessingError):
            return True
        record.exc_info = None
        record.levelno, record.levelname = logging.DEBUG, "DEBUG"
        record.msg, record.args = "refused malformed HTTP: %s", (type(error).__name__,)
        return logging.getLogger(record.name).isEnabledFor(logging.DEBUG)


def configure(level: str, style: Literal["text", "json"]) -> None:
    """Configure the level and the format of the control plane's log."""
    log.configure(level, style)
    logging.getLogger("aiosqlite").setLevel(logging.WARNING)  # Its debug lines contain whole statements.
    logging.getLogger("psycopg").setLevel(logging.ERROR)  # Its warnings also reach the caller as errors.
    logging.getLogger("aiohttp.server").addFilter(_BadRequestIsNoFault())
