"""Pure: audit events as lines of a file that somebody takes away."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from proxy.wire.audit_event import EVENT_FIELDS

COLUMNS: Final = (*EVENT_FIELDS, "claimedProxyId")
# What makes a spreadsheet compute a cell, or a text after it, instead of showing it. The full-width forms
# become the plain ones in some of them.
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r", "\n", "|", "＝", "＋", "－", "＠")
_LINE_ENDS: Final = bytes.maketrans(b"\r\n", b"  ")


@dataclass(frozen=True, slots=True)
class Form:
    media_type: str
    head: bytes
    line: Callable[[bytes], bytes]


def on_one_line(body: bytes) -> bytes:
    """JSON text may have line ends between its tokens and nowhere else; there a space means the same."""
    return body.translate(_LINE_ENDS)


def _json_line(body: bytes) -> bytes:
    return on_one_line(body) + b"\n"


def _csv_line(body: bytes) -> bytes:
    event: dict[str, Any] = orjson.loads(body)
    return _row([_cell(event.get(column)) for column in COLUMNS])


def _cell(value: object) -> str:
    """Numbers as they are; texts so that none is taken for a formula."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, list):
        value = "; ".join(str(each) for each in value)
    text = value if isinstance(value, str) else orjson.dumps(value).decode()
    text = text.replace("\0", "\ufffd")  # which readers of CSV stop at
    return f"'{text}" if text.startswith(_FORMULA) else text


def _row(cells: list[str]) -> bytes:
    """RFC 4180."""
    line = io.StringIO()
    csv.writer(line).writerow(cells)
    return line.getvalue().encode()


FORMATS: Final[Mapping[str, Form]] = {
    "csv": Form("text/csv; charset=utf-8", _row([*COLUMNS]), _csv_line),
    "ndjson": Form("application/x-ndjson", b"", _json_line),
}
