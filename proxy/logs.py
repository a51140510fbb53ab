"""Log lines: one line each whatever was logged, control characters escaped, as text or as JSON."""

import json
import logging
import re
import sys
import time
import traceback
from types import TracebackType
from typing import Final, Literal

# C0 and C1 controls, DEL, the line separators of Unicode, bidirectional overrides and lone surrogates.
_UNSAFE: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def one_line(text: str) -> str:
    """The text with everything escaped that could end a line, move a cursor or fake another entry."""
    return _UNSAFE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


class _TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        text = (
            f"{moment}.{int(record.msecs):03d}Z {record.levelname.lower()} {record.name}[{record.process}]: "
            f"{record.getMessage()}{_failure(record)}"
        )
        return one_line(text)


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        entry = {
            "time": f"{moment}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "pid": record.process,
            "message": one_line(record.getMessage() + _failure(record)),
        }
        return json.dumps(entry, ensure_ascii=False)


def _failure(record: logging.LogRecord) -> str:
    """An exception as its type, text and the places it came through, innermost last, on the same line."""
    info = record.exc_info
    if not info or info[1] is None:
        return ""
    places: TracebackType | None = info[2]
    way = " > ".join(f"{frame.name}:{frame.lineno}" for frame in traceback.extract_tb(places))
    return f": {type(info[1]).__name__}: {info[1]} (at {way})"


def configure_logging(level: str, style: Literal["text", "json"]) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonFormatter() if style == "json" else _TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
