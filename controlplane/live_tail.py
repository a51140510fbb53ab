"""New events as they are stored, for whoever listens: read and taken apart once, however many listen.

Events come in the order of their positions in the store, so a listener that says how far it came is given
every event after that once. One task reads the store, and only while somebody listens; a listener that is
behind it reads by itself until it has caught up.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final

from controlplane.search.document import Document, UnsearchableError, read_document
from controlplane.store.interface import OutboxStore, StoredEvent

MOST_LISTENERS: Final = 64
MOST_OF_ONE: Final = 8  # so that nobody takes the room of all others
MOST_OF_THE_SAME: Final = 32  # so that no organisation's operators take the room of all others
MOST_BEHIND: Final = 100_000  # events that are looked through for who comes back
MOST_WAITING: Final = 2_000  # events; a listener that lets more wait is cut off
MOST_WAITING_BYTES: Final = 8 * 1024 * 1024
_AT_ONCE: Final = 512  # events that are read, so that who takes them can keep up
POLL_SECONDS: Final = 5.0  # between looks at the store if nobody says that there is something new

Wanted = Callable[[Document], bool]


class TooManyListeners(Exception):
    """There is no room for one more; the text is one line for a person."""


class CutOff(Exception):
    """The listener gets no more events; the text is one line for a person."""


class LiveTail:
    def __init__(self, store: OutboxStore, *, poll_seconds: float = POLL_SECONDS) -> None:
        self._store = store
        self._poll_seconds = poll_seconds
        self._listeners: set[Listener] = set()
        self._woken = asyncio.Event()
        self._reading: asyncio.Task[None] | None = None
        self._is_closed = False
        self._position = 0  # everything up to here is given, or being given, to the listeners that are served

    def wake(self) -> None:
        """Events were stored."""
        self._woken.set()

    def close(self) -> None:
        """Nobody listens any more, so that a stop need not wait for those who would go on for ever."""
        self._is_closed = True
        for listener in self._listeners:
            listener.cut("the control plane stops")

    @asynccontextmanager
    async def listener(
        self, who: str, wanted: Wanted, after: int | None, org_ids: tuple[str, ...] | None = None
    ) -> AsyncIterator[Listener]:
        """Of the events after that position, or from now on; of these organisations, or of all there are.
        Raises TooManyListeners."""
        if self._is_closed:
            raise TooManyListeners("the control plane stops")
        if len(self._listeners) >= MOST_LISTENERS:
            raise TooManyListeners(f"{MOST_LISTENERS} are following events already")
        if sum(listener.who == who for listener in self._listeners) >= MOST_OF_ONE:
            raise TooManyListeners(f"{who} is following events {MOST_OF_ONE} times already")
        if org_ids is not None and self._listening_to(org_ids) >= MOST_OF_THE_SAME:
            raise TooManyListeners(
                f"{MOST_OF_THE_SAME} are following events of the same organisations already"
            )
        listener = Listener(self, who, wanted, org_ids)
        self._listeners.add(listener)
        try:
            newest = await self._store.last_position()
            listener.start(newest if after is None else min(max(after, newest - MOST_BEHIND), newest), after)
            yield listener
        finally:
            self._listeners.discard(listener)
            if not self._listeners and self._reading is not None:
                self._reading.cancel()
                await asyncio.gather(self._reading, return_exceptions=True)
                self._reading = None

    async def catch_up(self, listener: Listener) -> list[StoredEvent]:
        """What the listener wants of the next events; none once it is where the reading task is."""
        while True:
            if not self._is_reading():
                newest = await self._store.last_position()
                if not self._is_reading():
                    self._position = newest
                    self._reading = asyncio.create_task(self._read(), name="tail")
            if listener.position >= self._position:
                listener.is_served = True
                return []
            stored = self._position
            events = await self._store.events_after(listener.position, _AT_ONCE)
            (share,) = await asyncio.to_thread(_shares, events, [listener])
            # None: those up to where the reading task was are purged. It may be further now.
            listener.came_to(events[-1].position if events else stored)
            if share:
                return share

    def _listening_to(self, org_ids: tuple[str, ...]) -> int:
        return sum(listener.org_ids == org_ids for listener in self._listeners)

    def _is_reading(self) -> bool:
        return self._reading is not None and not self._reading.done()

    async def _read(self) -> None:
        try:
            while True:
                self._woken.clear()
                while events := await self._store.events_after(self._position, _AT_ONCE):
                    # Nothing is awaited between these two: who is served from now on has these behind it.
                    self._position = events[-1].position
                    served = [listener for listener in self._listeners if listener.is_served]
                    shares = await asyncio.to_thread(_shares, events, served)
                    for listener, share in zip(served, shares, strict=True):
                        listener.give(share, events[-1].position)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._poll_seconds):
                        await self._woken.wait()
        except Exception as error:  # whatever it was: nobody may wait for what doesn't come
            for listener in self._listeners:
                listener.cut(_unreadable(error))


class Listener:
    """One who follows events, and how far it came."""

    def __init__(self, tail: LiveTail, who: str, wanted: Wanted, org_ids: tuple[str, ...] | None) -> None:
        self._tail = tail
        self.who = who
        self.wanted = wanted
        self.org_ids = org_ids
        self.position = 0  # up to which it was given what it wants
        self.has_gap = False  # it begins later than where it left off
        self.is_served = False  # by the task that reads for all
        self._waiting: list[StoredEvent] = []
        self._waiting_to = 0
        self._cut_off: str | None = None
        self._something = asyncio.Event()

    def start(self, position: int, after: int | None) -> None:
        self.came_to(position)
        self.has_gap = after is not None and after != position

    def came_to(self, position: int) -> None:
        """It has what it wants of the events up to there."""
        self.position = self._waiting_to = position

    async def next(self) -> list[StoredEvent]:
        """What came of what it wants, once something did. Raises CutOff."""
        if not self.is_served and (share := await self._caught_up()):
            return share
        while not self._waiting:
            if self._cut_off is not None:
                raise CutOff(self._cut_off)
            self._something.clear()
            await self._something.wait()
        given, self._waiting = self._waiting, []
        self.position = self._waiting_to
        return given

    async def _caught_up(self) -> list[StoredEvent]:
        try:
            return await self._tail.catch_up(self)
        except Exception as error:
            raise CutOff(_unreadable(error)) from error

    def give(self, events: Sequence[StoredEvent], up_to: int) -> None:
        if self._cut_off is not None or up_to <= self._waiting_to:
            return
        # It may have caught up further than the reading task was.
        events = [event for event in events if event.position > self._waiting_to]
        bytes_waiting = sum(len(event.body) for event in self._waiting) if events else 0
        if len(self._waiting) + len(events) > MOST_WAITING or bytes_waiting > MOST_WAITING_BYTES:
            self.cut("more events came than were taken")
            return
        self._waiting += events
        self._waiting_to = up_to
        if not self._waiting:
            self.position = up_to
        self._something.set()

    def cut(self, why: str) -> None:
        """What waits is still taken; nothing follows it."""
        self._cut_off = why
        self._something.set()


def _unreadable(error: Exception) -> str:
    return f"events can't be read: {error}"


def _shares(events: Sequence[StoredEvent], listeners: Sequence[Listener]) -> list[list[StoredEvent]]:
    """Of each listener what it wants of the events."""
    shares: list[list[StoredEvent]] = [[] for _ in listeners]
    for event in events:
        try:
            document = read_document(event)
        except UnsearchableError:
            continue
        for listener, share in zip(listeners, shares, strict=True):
            if listener.wanted(document):
                share.append(event)
    return shares
