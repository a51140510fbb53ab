"""Selection of the events that a sink wants, and conversion of the events to the sink's format.

The module `selection` itself does no input or output.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import orjson

from controlplane.search.document import UnsearchableError, read_document
from controlplane.search.predicates import all_hold
from controlplane.search.query import Filter
from controlplane.sinks.formats import Format
from controlplane.sinks.interface import Limits, Refusal, SinkEvent
from controlplane.store.interface import UNREADABLE, Org, StoredEvent

_DAMAGED = "the block of the event is damaged in the store"


@dataclass(frozen=True, slots=True)
class Selection:
    """The filter that selects events for a sink, and the format in which the sink receives the events."""

    wanted: Filter
    org_ids: frozenset[str] | None  # None for every organisation
    format: Format

    def of(self, events: Iterable[StoredEvent]) -> list[SinkEvent | Refusal]:
        """Return the events that the filter selects, in the same order, in the sink's format.

        If the sink can't deliver an event, the list contains a Refusal with the reason in place of the event.
        """
        chosen = (each for each in events if self.org_ids is None or each.org_id in self.org_ids)
        return [made for each in chosen if (made := self._made(each)) is not None]

    def in_format(self, event: StoredEvent) -> SinkEvent | Refusal:
        """Return the event in the sink's format, even if the sink's filter excludes the event."""
        if event.body == UNREADABLE:
            return Refusal(event.position, _DAMAGED)
        try:
            members = orjson.loads(event.body)
            payload = self.format(members, event.body)
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            return Refusal(event.position, f"the event can't be written in the format of the sink: {error}")
        return SinkEvent(event.position, event.org_id, event.body, payload, members)

    def _made(self, event: StoredEvent) -> SinkEvent | Refusal | None:
        if self.wanted.terms and event.body != UNREADABLE:
            try:
                if not all_hold(self.wanted.terms, read_document(event)):
                    return None
            except UnsearchableError as error:
                return Refusal(event.position, f"the event can't be read: {error}")
        return self.in_format(event)


def orgs_named(wanted: Iterable[str], known: Iterable[Org]) -> frozenset[str]:
    """Return the IDs of the organisations that the settings list by name or by ID."""
    names = set(wanted)
    return frozenset(each.org_id for each in known if {each.org_id, each.name} & names)


def batches(events: Sequence[SinkEvent], limits: Limits) -> Iterator[list[SinkEvent]]:
    """Split the events into batches that do not exceed the sink's limits.

    A batch may exceed the sink's limits if the batch contains only one event.
    """
    batch: list[SinkEvent] = []
    size = 0
    for event in events:
        if batch and (len(batch) >= limits.events or size + len(event.payload) > limits.bytes):
            yield batch
            batch, size = [], 0
        batch.append(event)
        size += len(event.payload)
    if batch:
        yield batch
