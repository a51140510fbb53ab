"""Log lines on standard error: one event a line, whatever the input that it speaks of."""

from __future__ import annotations

import json
import logging
import re
import sys
import traceback
from typing import Final

from proxy.wire.audit_event import rfc3339

# C0, DEL, C1, the separators that some viewers break lines at, and what turns the direction of text: none may
# forge a line, drive a terminal or show another entry than there is.
_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def escape(text: str) -> str:
    """`text` on one line, with control characters visible."""
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


class TextFormatter(logging.Formatter):
    """`2026-11-21T04:25:58.123Z WARNING worker-0 server.connection: message`"""

    def __init__(self, process: str) -> None:
        super().__init__()
        self.process = process

    def format(self, record: logging.LogRecord) -> str:
        name = record.name.removeprefix("proxy.")
        time = rfc3339(int(record.created * 1000))
        return escape(f"{time} {record.levelname} {self.process} {name}: {_message(record)}")


class JsonFormatter(TextFormatter):
    """The same facts as a JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        return json.dumps(
            {
                "time": rfc3339(int(record.created * 1000)),
                "level": record.levelname.lower(),
                "process": self.process,
                "logger": record.name,
                "message": _message(record),
            }
        )


def _message(record: logging.LogRecord) -> str:
    return record.getMessage() + _failure(record)


def _failure(record: logging.LogRecord) -> str:
    """An exception as its type, text and the places that it came through, innermost last."""
    info = record.exc_info
    if not info or info[1] is None:
        return ""
    way = " > ".join(f"{frame.name}:{frame.lineno}" for frame in traceback.extract_tb(info[2]))
    return f": {type(info[1]).__name__}: {info[1]} (at {way})"


def configure(level: str, log_format: str, process: str) -> None:
    """Sets up logging of this process, replacing what it inherited."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(process) if log_format == "json" else TextFormatter(process))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
