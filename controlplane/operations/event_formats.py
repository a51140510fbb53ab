"""Pure functions that write audit events as lines of an exported file."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from proxy.wire.audit_event import EVENT_FIELDS

COLUMNS: Final = (*EVENT_FIELDS, "claimedProxyId")
# Beginnings of a text that a spreadsheet computes instead of showing. Some spreadsheets convert full-width
# characters to plain ones. Leading blanks are ignored. In many countries, a semicolon begins another cell,
# even within quotes.
_FORMULA: Final = re.compile("(?:\\A|(?<=;))(?=[ \u00a0\ufeff\u000b\u0085]*[=+\\-@\t\r\n|＝＋－＠])")
_LINE_ENDS: Final = bytes.maketrans(b"\r\n", b"  ")


@dataclass(frozen=True, slots=True)
class Form:
    media_type: str
    head: bytes
    lines: Callable[[Iterable[bytes]], bytes]


def on_one_line(body: bytes) -> bytes:
    """Return a JSON text on one line.

    In valid JSON, line ends stand only between tokens, where a space has the same meaning.
    """
    return body.translate(_LINE_ENDS)


def _json_lines(bodies: Iterable[bytes]) -> bytes:
    return b"".join(on_one_line(body) + b"\n" for body in bodies)


def _csv_lines(bodies: Iterable[bytes]) -> bytes:
    return _rows(_cells(orjson.loads(body)) for body in bodies)


def _cells(event: Mapping[str, Any]) -> list[str]:
    return [_cell(event.get(column)) for column in COLUMNS]


def _cell(value: object) -> str:
    """Return a number unchanged, and a text in a form that spreadsheets do not interpret as a formula."""
    if value is None:
        return ""
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, list):
        return _text("; ".join(str(each) for each in value))
    return _text(orjson.dumps(value).decode())


def _text(text: str) -> str:
    if "\0" in text:
        text = text.replace("\0", "\ufffd")  # because readers of CSV stop at NUL
    return _FORMULA.sub("'", text)


def _rows(rows: Iterable[Sequence[str]]) -> bytes:
    """Return rows of values as CSV text (RFC 4180)."""
    lines = io.StringIO()
    csv.writer(lines).writerows(rows)
    return lines.getvalue().encode()


FORMATS: Final[Mapping[str, Form]] = {
    "csv": Form("text/csv; charset=utf-8", _rows([COLUMNS]), _csv_lines),
    "ndjson": Form("application/x-ndjson", b"", _json_lines),
}
