"""Encode an audit record's payload, and truncate a payload that is larger than a spool segment holds.

In a truncated record, facts that the proxy decided take precedence over texts of the application or the
upstream. So even a path of 64 KB does not displace the matching rule from the audit record. A truncated field
of an audit record states how many bytes or items are missing.
"""

from __future__ import annotations

from typing import Final

import msgspec

from proxy.audit.record import Record
from proxy.audit.segment import MAX_RECORD
from proxy.policy.redaction import cut_mark

# Texts of any length that others chose. All other texts come from the proxy or an operator, and are short.
_FOREIGN: Final = (
    "method",
    "path",
    "query",
    "client_request_id",
    "upstream_request_id",
    "implied",
    "redirect",
)
_FOREIGN_ROOM: Final = 1024  # bytes reserved for these together, no matter how much the proxy decided
_MARK_BYTES: Final = 24  # `…[N more]` as JSON, with quotes and a comma
_NOT_LISTS: Final = ("parent", "shadow", "credential")

_encode: Final = msgspec.json.Encoder().encode


def encode(record: Record) -> bytes:
    """Return the bytes to write to the spool: the audit record, truncated if it is too long."""
    try:
        payload = _encode(record)
        if len(payload) <= MAX_RECORD:
            return payload
    except UnicodeEncodeError:  # an unpaired surrogate from undecodable bytes, which JSON cannot express
        pass
    return _encode(_cut_to_fit(record))


def _cut_to_fit(record: Record) -> Record:
    values: dict[str, object] = {name: getattr(record, name) for name in record.__struct_fields__}
    texts: dict[str, str] = {}
    lists: dict[str, tuple[str, ...]] = {}
    for name, value in values.items():
        if isinstance(value, str):
            values[name] = readable = value.encode("utf-8", "replace").decode()
            if name in _FOREIGN:
                texts[name] = readable
                values[name] = ""
        elif isinstance(value, tuple) and name not in _NOT_LISTS:
            lists[name] = value
            values[name] = ()
    room = MAX_RECORD - len(_encode(Record(*values.values())))  # type: ignore[arg-type]
    foreign_room = min(_FOREIGN_ROOM, sum([_size(text, room) for text in texts.values()]))
    wanted = {name: _size_of_items(items, room) for name, items in lists.items()}
    for name, share in _shares(wanted, room - foreign_room).items():
        values[name], used = _cut_list(lists[name], share)
        room -= used
    wanted = {name: _size(text, room) for name, text in texts.items()}
    for name, share in _shares(wanted, room).items():
        values[name] = _cut_text(texts[name], share)
    return Record(*values.values())  # type: ignore[arg-type]


def _shares(wanted: dict[str, int], room: int) -> dict[str, int]:
    """Divide `room` bytes between the fields of a truncated record.

    Small fields fit in full, and the large fields share the remaining bytes equally.
    """
    shares: dict[str, int] = {}
    for name in sorted(wanted, key=wanted.__getitem__):
        shares[name] = min(wanted[name], room // (len(wanted) - len(shares)))
        room -= shares[name]
    return shares


def _size(text: str, most: int) -> int:
    """Return the number of bytes that a text takes as JSON without quotes, or a number above `most`."""
    return len(_encode(text[: most + 1])) - 2


def _size_of_items(items: tuple[str, ...], most: int) -> int:
    size = 0
    for item in items:
        size += _size(item, most) + len('"",')
        if size > most:
            break
    return size


def _cut_list(items: tuple[str, ...], room: int) -> tuple[tuple[str, ...], int]:
    """Return the first list items that fit into `room` bytes, and their size in bytes.

    If some list items are missing, the last item is a mark with the number of missing items.
    """
    used = _size_of_items(items, room)
    if used <= room:
        return items, used
    kept: list[str] = []
    used = _MARK_BYTES
    for item in items:
        size = _size(item, room) + len('"",')
        if used + size > room:
            break
        kept.append(item)
        used += size
    if not kept:  # one item that is itself a list, such as a filter's `allow:` with all its properties
        kept.append(_cut_text(items[0], room - used))
        used = room
    if len(kept) < len(items):
        kept.append(cut_mark(len(items) - len(kept)))
    return tuple(kept), used


def _cut_text(text: str, room: int) -> str:
    """Return the start of the text that fits into `room` bytes of JSON.

    Add a mark to the text if a part of the text is missing.
    """
    if _size(text, room) <= room:
        return text
    fits, fits_not = 0, min(len(text), room) + 1
    while fits_not - fits > 1:
        middle = (fits + fits_not) // 2
        if _size(text[:middle], room) <= room - _MARK_BYTES:
            fits = middle
        else:
            fits_not = middle
    return text[:fits] + cut_mark(len(text) - fits)
