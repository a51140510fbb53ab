"""The interface of a search index, which is the same for the SQLite, PostgreSQL and ClickHouse indexes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from controlplane.search.known_event import Parsed
from controlplane.search.query import EVERYTHING, Filter
from controlplane.store.interface import GivenOut

MAX_LIMIT = 1000
# About a thousand of the largest events that a proxy makes. A single event may have 5 MB.
MAX_PAGE_BYTES = 16 * 1024 * 1024
MAX_TOP = 100  # largest number of values of one facet


class Event(Protocol):
    """An accepted event, in the form in which the store returns it."""

    @property
    def position(self) -> int: ...
    @property
    def org_id(self) -> str: ...
    @property
    def body(self) -> bytes: ...


class OutboxStore(Protocol):
    """The part of the store that an index writer reads: accepted events, in the order of acceptance."""

    async def events_after(self, position: int, limit: int) -> Sequence[Event]: ...
    async def last_position(self) -> int: ...
    async def outbox_position(self, index: str) -> int: ...
    async def set_outbox_position(self, index: str, position: int) -> None: ...
    async def give_out(self, index: str, wanted: GivenOut) -> GivenOut | None:
        """Return the next range of events for the index.

        Until `finish` is called, `give_out` returns the same range again.

        Return None if the index's position is no longer the beginning of the range `wanted`.
        """

    async def finish(self, index: str, given: GivenOut) -> None: ...
    async def go_back(self, index: str, position: int) -> None: ...


class IndexUnavailableError(Exception):
    """Error because the search index can't respond or accept events now.

    A retry of the failed call to the index may succeed.
    """


class IndexDamagedError(IndexUnavailableError):
    """Error because the content of the search index can't be read any more.

    After an IndexDamagedError, the search index has to be rebuilt.
    """


class IndexMovedError(IndexUnavailableError):
    """Error because the search index lacks events that it should hold.

    The index holds only events up to position `reached`, because it was rebuilt or replaced by an older copy.
    """

    def __init__(self, what: str, reached: int) -> None:
        super().__init__(what)
        self.reached = reached


class CursorError(ValueError):
    """Error for a page cursor that another search index made."""


@dataclass(frozen=True, slots=True)
class SearchQuery:
    """A search for events of some organisations.

    `orgs` has no default, so that each caller must pass a value. If `orgs` is None, the search covers all
    organisations.
    """

    org_ids: tuple[str, ...] | None
    filter: Filter = EVERYTHING
    from_ms: int | None = None  # first time that is included
    to_ms: int | None = None  # first time that is excluded
    limit: int = 100
    cursor: str | None = None  # SearchPage.next of the previous page


@dataclass(frozen=True, slots=True)
class SearchPage:
    """A page of events as the proxy wrote the events, newest first, and the cursor of the next page.

    If the events are large, a page has fewer events than were requested.
    """

    events: tuple[bytes, ...]
    next: str | None


@dataclass(frozen=True, slots=True)
class Facets:
    """The most frequent values of each field among the newest events that match a search.

    Each value has a count: the number of events with this value among the `counted` newest matches.

    Values that are equally frequent are sorted as text. If more than 1,000 further paths are as frequent as
    the last path of the result, the SQLite index sorts only 1,000 of these paths.
    """

    fields: Mapping[str, tuple[tuple[str, int], ...]]
    counted: int
    complete: bool  # True if every match was counted


@dataclass(frozen=True, slots=True)
class Histogram:
    """Number of matching events per interval, oldest interval first, as pairs of start time in ms and count.

    Intervals without a matching event are omitted.
    """

    buckets: tuple[tuple[int, int], ...]
    complete: bool  # False if there were too many matches, so that only the newest were counted


class SearchIndex(Protocol):
    async def outbox_name(self) -> str:
        """Return the name of this index in the store's outbox, which keeps the index's position.

        A new, empty index has a name that no earlier index had.
        """
        ...

    async def write(self, events: Sequence[Event], after: int = 0) -> None:
        """Write events to the index. When `write` returns, the events are durable and searchable.

        Writing an event again with the same organisation and ID changes nothing. The index logs and skips an
        event that can never be indexed. Raise IndexUnavailableError if the index can't accept events now.
        Raise IndexMovedError if the index detects that it lacks events up to the position `after`.
        """
        ...

    async def write_parsed(self, batches: Sequence[Parsed], after: int = 0) -> None:
        """Write already parsed events to the index.

        `write_parsed` has the same durability, the same errors and the same effect of repeated writes as
        `write`.
        """
        ...

    async def search(self, query: SearchQuery) -> SearchPage:
        """Return a page of the events that match the query.

        The pages are ordered by the time of events, so new events never repeat or displace an event.
        """
        ...

    async def span(self, org_ids: Sequence[str] | None) -> tuple[int, int] | None:
        """Return the times of the oldest and the newest event of the given organisations.

        Return None if the index has no events of the given organisations.
        """
        ...

    async def facets(self, query: SearchQuery, fields: Sequence[str], *, top: int = 10) -> Facets: ...

    async def histogram(self, query: SearchQuery, interval_ms: int) -> Histogram: ...

    async def purge(self, org_id: str, before_ms: int, limit: int, newest: int | None = None) -> int:
        """Remove up to `limit` events of the organisation from the index.

        Return the number of removed events.

        `newest` is the position of the last event that was received before `before_ms`. Events after the
        position `newest` stay in the index. Among the events up to the position `newest`, remove events that
        happened before `before_ms` and events with an implausible time.
        """
        ...

    async def close(self) -> None: ...


@runtime_checkable
class RangedIndex(SearchIndex, Protocol):
    """A search index that stores a range of events only once, even if the range is written again.

    Each range has a token, which is the same for each attempt to write the range.
    """

    async def write_range(self, events: Sequence[Event], given: GivenOut) -> None:
        """Write those events of the range that the store still has."""
        ...
