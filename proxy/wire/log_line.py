"""A log line: one event on one line, as text or JSON, whatever the input that it speaks of."""

from __future__ import annotations

import logging
import re
import traceback
from typing import Final, Literal

import msgspec

from proxy.wire.audit_event import rfc3339

# C0, DEL, C1, the separators that some viewers break lines at, what turns the direction of text, and lone
# surrogates: none may forge a line, hide part of one, drive a terminal or break the reader.
_UNSAFE: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u061c\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
_LONGEST: Final = 8192  # characters


def escaped(text: str) -> str:
    """Unsafe characters as JSON escapes, so that JSON text still means the same."""
    return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def one_line(text: str) -> str:
    """`text` as it may stand in a log: unsafe characters escaped, length bounded."""
    text = escaped(text)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…({len(text)} characters)"


class LineFormatter(logging.Formatter):
    """`2026-11-21T04:25:58.123Z WARNING worker-0 server.connection: message`; `process` may be empty."""

    def __init__(self, style: Literal["text", "json"], process: str = "") -> None:
        super().__init__()
        self._as_json = style == "json"
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        time = rfc3339(int(record.created * 1000))
        message = one_line(record.getMessage() + _failure(record))
        if not self._as_json:
            process = f" {self._process}" if self._process else ""
            return f"{time} {record.levelname}{process} {record.name}: {message}"
        line = {"time": time, "level": record.levelname.lower(), "logger": record.name, "message": message}
        if self._process:
            line["process"] = self._process
        return msgspec.json.encode(line).decode()


def _failure(record: logging.LogRecord) -> str:
    """An exception as its type, text and the places that it came through, innermost last."""
    info = record.exc_info
    if not info or info[1] is None:
        return ""
    way = " > ".join(f"{frame.name}:{frame.lineno}" for frame in traceback.extract_tb(info[2]))
    return f": {type(info[1]).__name__}: {info[1]} (at {way})"
