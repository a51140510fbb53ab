"""A log line: one event on one line, as text or JSON, for any input."""

from __future__ import annotations

import logging
import re
import traceback
from typing import Final, Literal

import msgspec

from proxy.wire.audit_event import rfc3339

# Control characters (C0, DEL, C1), separators at which some viewers break lines, characters that change the
# direction of text, invisible characters, and lone surrogates. None of these may forge a line, hide part of
# one, disguise a name, control a terminal or break the reader.
_UNSAFE: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e"
    "\u2060-\u206f\u2800\u3164\ufeff\uffa0\ufff0-\ufffb\ud800-\udfff\U000e0000-\U000e0fff]"
)
_LONGEST: Final = 8192  # characters


def escaped(text: str) -> str:
    """Replace unsafe characters by JSON escapes, so that JSON text keeps its meaning."""
    return _UNSAFE.sub(lambda found: _escape(ord(found[0])), text)


def _escape(code: int) -> str:
    if code < 0x10000:
        return f"\\u{code:04x}"
    return f"\\u{0xD7C0 + (code >> 10):04x}\\u{0xDC00 | (code & 0x3FF):04x}"  # RFC 8259 §7


def one_line(text: str) -> str:
    """Return `text` in a form that is safe in a log: unsafe characters escaped, length bounded."""
    text = escaped(text)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…({len(text)} characters)"


class LineFormatter(logging.Formatter):
    """Format log records as `2026-11-21T04:25:58.123Z WARNING worker-0 server.connection: message`.

    The process name in the parameter `process` may be empty.
    """

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
    """Describe an exception by its type, its text and its places in the code; the innermost place is last."""
    info = record.exc_info
    if not info or info[1] is None:
        return ""
    way = " > ".join(f"{frame.name}:{frame.lineno}" for frame in traceback.extract_tb(info[2]))
    return f": {type(info[1]).__name__}: {info[1]} (at {way})"
