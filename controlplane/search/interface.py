"""What a search index is to the rest of the control plane, whichever engine keeps it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from controlplane.search.known_event import Parsed
from controlplane.search.query import EVERYTHING, Filter
from controlplane.store.interface import GivenOut

MAX_LIMIT = 1000
# About a thousand of the largest events that a proxy makes; an event may have 5 MB.
MAX_PAGE_BYTES = 16 * 1024 * 1024
MAX_TOP = 100  # values of one facet


class Event(Protocol):
    """An accepted event as the store hands it over."""

    @property
    def position(self) -> int: ...
    @property
    def org_id(self) -> str: ...
    @property
    def body(self) -> bytes: ...


class OutboxStore(Protocol):
    """The side of the store that a index writer reads: events in the order in which they were accepted."""

    async def events_after(self, position: int, limit: int) -> Sequence[Event]: ...
    async def last_position(self) -> int: ...
    async def outbox_position(self, index: str) -> int: ...
    async def set_outbox_position(self, index: str, position: int) -> None: ...
    async def give_out(self, index: str, wanted: GivenOut) -> GivenOut | None:
        """Return the range that the index gets next, the same until finish(). None if it has that already."""

    async def finish(self, index: str, given: GivenOut) -> None: ...
    async def go_back(self, index: str, position: int) -> None: ...


class IndexUnavailableError(Exception):
    """The index can't respond or take events now; trying again later may do."""


class IndexDamagedError(IndexUnavailableError):
    """What the index holds can't be read any more: it has to be built again."""


class IndexMovedError(IndexUnavailableError):
    """The index holds events up to `reached`, and not all that were said to be there: it was made anew, or an
    older one was put in its place."""

    def __init__(self, what: str, reached: int) -> None:
        super().__init__(what)
        self.reached = reached


class CursorError(ValueError):
    """The cursor was not made by this index."""


@dataclass(frozen=True, slots=True)
class SearchQuery:
    """What to look for, in which organisations: no default, lest it be forgotten; None is all there are."""

    org_ids: tuple[str, ...] | None
    filter: Filter = EVERYTHING
    from_ms: int | None = None  # included
    to_ms: int | None = None  # excluded
    limit: int = 100
    cursor: str | None = None  # SearchPage.next of the page before


@dataclass(frozen=True, slots=True)
class SearchPage:
    """Events as the proxy wrote them, newest first, and where the next page begins: after fewer than were
    asked for, where those are large."""

    events: tuple[bytes, ...]
    next: str | None


@dataclass(frozen=True, slots=True)
class Facets:
    """Per field its most frequent values with their counts among the `counted` newest matches; of values
    that are as frequent, the first in the order of text. SQLite compares 1,000 paths that are as frequent."""

    fields: Mapping[str, tuple[tuple[str, int], ...]]
    counted: int
    complete: bool  # every match was counted


@dataclass(frozen=True, slots=True)
class Histogram:
    """Matches per interval, oldest first, as (start in ms, count); intervals without a match are left out."""

    buckets: tuple[tuple[int, int], ...]
    complete: bool  # False: the matches are so many that only the newest were counted


class SearchIndex(Protocol):
    async def outbox_name(self) -> str:
        """The name under which the store keeps this index's position; a new, empty index has a new name."""
        ...

    async def write(self, events: Sequence[Event], after: int = 0) -> None:
        """Durable on return, and findable. Writing an event (organisation and id) again changes nothing.

        An event that can never be indexed is logged and passed over. Raises IndexUnavailableError otherwise;
        IndexMovedError if the index can tell that it lacks events up to `after`.
        """
        ...

    async def write_parsed(self, batches: Sequence[Parsed], after: int = 0) -> None:
        """The same of events that somebody has read already."""
        ...

    async def search(self, query: SearchQuery) -> SearchPage:
        """Pages follow each other by time: events that arrive meanwhile never repeat or displace one."""
        ...

    async def span(self, org_ids: Sequence[str] | None) -> tuple[int, int] | None:
        """The times of the oldest and of the newest event of these organisations; None if they have none."""
        ...

    async def facets(self, query: SearchQuery, fields: Sequence[str], *, top: int = 10) -> Facets: ...

    async def histogram(self, query: SearchQuery, interval_ms: int) -> Histogram: ...

    async def purge(self, org_id: str, before_ms: int, limit: int, newest: int | None = None) -> int:
        """Remove up to `limit` events of the organisation and return their number.

        `newest` is the position of the last event that was received before `before_ms`; later ones stay. Of
        the others, those go that happened before `before_ms`, and those with a time that can't be true.
        """
        ...

    async def close(self) -> None: ...


@runtime_checkable
class RangedIndex(SearchIndex, Protocol):
    """An index that recognises a range of events by its token, and not each event."""

    async def write_range(self, events: Sequence[Event], given: GivenOut) -> None:
        """Write the events of the range, all that the store has of it."""
        ...
