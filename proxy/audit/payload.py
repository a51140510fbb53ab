"""The payload of a record, cut down where it would be larger than a segment takes."""

import re
from collections.abc import Callable
from typing import Final

import msgspec

from proxy.audit.record import Record
from proxy.audit.segment import MAX_RECORD
from proxy.policy.abridged import CUT_MARK

_LONG: Final = 3000  # characters that path and query keep in a record that would be too large
_SHORT: Final = 200  # and every other text
_ITEMS: Final = 16
_UNPLAIN: Final = re.compile(r"[^ -~]")

Change = Callable[[str, str], str]

_encode: Final = msgspec.json.Encoder().encode


def encode(record: Record) -> bytes:
    """What goes into the spool: the record whole, if that is possible."""
    try:
        payload = _encode(record)
        if len(payload) <= MAX_RECORD:
            return payload
    except UnicodeEncodeError:  # a lone surrogate, from undecodable bytes: JSON has no way to say it
        pass
    payload = _encode(_changed(record, _ITEMS, _cut))
    if len(payload) <= MAX_RECORD:
        return payload
    return _encode(_changed(record, _ITEMS, _plain))


def _changed(record: Record, items: int, change: Change) -> Record:
    """The record with every text, and of lists the first items, put through `change(field, text)`."""
    values: list[object] = []
    for name in record.__struct_fields__:
        value = getattr(record, name)
        if isinstance(value, str):
            value = change(name, value)
        elif isinstance(value, tuple) and name not in ("parent", "shadow"):
            value = tuple(change(name, item) for item in value[:items])
        values.append(value)
    return Record(*values)  # type: ignore[arg-type]


def _cut(name: str, text: str) -> str:
    text = text.encode("utf-8", "replace").decode()
    limit = _LONG if name in ("path", "query") else _SHORT
    return text if len(text) <= limit else text[:limit] + CUT_MARK


def _plain(_: str, text: str) -> str:
    """The last resort, for text that grows sixfold when it is escaped."""
    return _UNPLAIN.sub("?", text[:60])
