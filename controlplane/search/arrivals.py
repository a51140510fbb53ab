"""Events that the embedded search index receives, with an object of attributes for each event.

The functions in this module do no input or output, except that they log.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any, Final

import msgspec

from controlplane.clock import milliseconds
from controlplane.search.document import UnsearchableError, read_document
from controlplane.search.entries import Arrived
from controlplane.search.interface import Event
from controlplane.search.known_event import Parsed, attribute_of
from controlplane.search.query import FIELDS

log = logging.getLogger(__name__)

_Integer = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]  # range of a column's integers
_TYPES: Final = {
    "text": str | _Integer | None, "texts": tuple[str, ...] | None, "number": _Integer | float | None,
}  # fmt: skip
_FIELDS: Final = tuple(each for each in FIELDS.values() if each.name not in ("id", "time", "org"))

# The searchable fields of an event, parsed in one pass and named as those of a KnownEvent. An event that does
# not have this form is read field by field instead.
_Entry: Final[Any] = msgspec.defstruct(
    "_Entry",
    [
        ("id", Annotated[str, msgspec.Meta(min_length=1)]),
        ("time", Annotated[datetime, msgspec.Meta(tz=True)]),
        *((attribute_of(each.event_key), _TYPES[each.kind], None) for each in _FIELDS),
    ],
    kw_only=True,
    rename="camel",
    gc=False,
)
_decode_entries: Final = msgspec.json.Decoder(list[_Entry]).decode


def of_events(events: Sequence[Event], reached: int) -> tuple[Arrived, int]:
    """Return the events at positions greater than `reached`, and the position of the last of these events."""
    new = [event for event in events if event.position > reached]
    arrived = Arrived()
    for event, (time_ms, entry) in zip(new, _read_entries(new), strict=True):
        if entry is not None:
            arrived.org_ids.append(event.org_id)
            arrived.positions.append(event.position)
            arrived.times.append(time_ms)
            arrived.entries.append(entry)
    return arrived, max((event.position for event in new), default=reached)


def of_parsed(batches: Sequence[Parsed], reached: int) -> tuple[Arrived, int]:
    """Return the events after the position `reached`, and the position of the last event of all batches."""
    arrived = Arrived()
    for batch in batches:
        known = max(0, reached + 1 - batch.position)
        count = len(batch.events)
        arrived.org_ids.extend([batch.org_id] * max(0, count - known))
        arrived.positions.extend(range(batch.position + known, batch.position + count))
        arrived.times.extend(batch.times[known:])
        arrived.entries.extend(batch.events[known:])
        reached = max(reached, batch.position + count - 1)
    return arrived, reached


def _read_entries(events: Sequence[Event]) -> list[tuple[int, Any]]:
    """Return the time in milliseconds and the fields of each event.

    If an event can't be searched, the fields of the event are None.
    """
    try:
        entries = _decode_entries(b"[" + b",".join([event.body for event in events]) + b"]")
        if len(entries) == len(events):
            return [(milliseconds(entry.time), entry) for entry in entries]
    except (ValueError, RecursionError):
        pass  # one event or more does not have the usual form
    return [_read_entry(event) for event in events]


def _read_entry(event: Event) -> tuple[int, Any]:
    """Return the fields of one event, or None if the event can't be searched.

    Each event is read alone, so that one unreadable event does not hide other events.
    """
    try:
        document = read_document(event)
    except UnsearchableError as error:
        log.error("event at position %d is not searchable: %s", event.position, error)
        return 0, None
    values = {
        attribute_of(FIELDS[name].event_key): value
        for name, value in document.values.items()
        if name not in ("id", "org", "time")
    }
    return document.time_ms, _Entry(id=document.event_id, time=None, **values)
