"""Log lines: one line for each record, whatever is in it, as text or JSON."""

from __future__ import annotations

import logging
import re
import sys
from typing import Literal

import msgspec

from proxy.wire.audit_event import rfc3339

# C0 and C1 controls, the Unicode line ends, directional overrides and lone surrogates: each could forge a
# line, hide part of one, or break the reader.
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_LONGEST = 8192


def one_line(text: str) -> str:
    """`text` as it may stand in a log: unsafe characters escaped, length bounded."""
    text = _UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…({len(text)} characters)"


class OneLineFormatter(logging.Formatter):
    def __init__(self, style: Literal["text", "json"]) -> None:
        super().__init__()
        self._json = style == "json"

    def format(self, record: logging.LogRecord) -> str:
        message = record.getMessage()
        if record.exc_info and record.exc_info[0] is not None:
            message = f"{message}\n{self.formatException(record.exc_info)}"
        time, level, message = (
            rfc3339(int(record.created * 1000)),
            record.levelname.lower(),
            one_line(message),
        )
        if self._json:
            line = {"time": time, "level": level, "logger": record.name, "message": message}
            return msgspec.json.encode(line).decode()
        return f"{time} {level:7} {record.name} {message}"


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
    handler.setFormatter(OneLineFormatter(style))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    logging.getLogger("aiosqlite").setLevel(logging.WARNING)  # its debug lines hold whole statements
    logging.getLogger("aiohttp.server").addFilter(_BadRequestIsNoFault())
