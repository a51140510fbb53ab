"""Live tail: sends new audit events to listeners as they are stored.

Events are read and parsed once for all listeners.

A live tail sends events in the order of their positions in the store. A listener that states the position of
the last event it received then receives every later event. One task reads new events from the store while
there is at least one listener. While a listener is behind the newest event, the listener reads events
directly from the store, not through the shared task.
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
MOST_OF_ONE: Final = 8  # listeners per operator, so that one operator can't use all places
MOST_OF_THE_SAME: Final = 32  # listeners per set of organisations, so that its operators can't use all places
MOST_BEHIND: Final = 100_000  # events to search for a listener that reconnects
MOST_WAITING: Final = 2_000  # events; a listener with more waiting ones is disconnected
MOST_WAITING_BYTES: Final = 8 * 1024 * 1024
_AT_ONCE: Final = 512  # events to read in one step, so that listeners can keep up
POLL_SECONDS: Final = 5.0  # seconds between two checks of the store without a notification

Wanted = Callable[[Document], bool]


class TooManyListeners(Exception):
    """Error because the live tail has as many listeners as are allowed.

    The text of a TooManyListeners error is one line, for people to read.
    """


class CutOff(Exception):
    """Error because the live tail disconnected the listener.

    The text of a CutOff error is one line, for people to read.
    """


class LiveTail:
    def __init__(self, store: OutboxStore, *, poll_seconds: float = POLL_SECONDS) -> None:
        self._store = store
        self._poll_seconds = poll_seconds
        self._listeners: set[Listener] = set()
        self._woken = asyncio.Event()
        self._reading: asyncio.Task[None] | None = None
        self._is_closed = False
        self._position = 0  # Position up to which events are given, or being given, to the served listeners.

    def wake(self) -> None:
        """Wake the task that reads the store, after events were stored."""
        self._woken.set()

    def close(self) -> None:
        """Disconnect all listeners, so that no endless response delays the control plane's stop."""
        self._is_closed = True
        for listener in self._listeners:
            listener.cut("the control plane is stopping")

    @asynccontextmanager
    async def listener(
        self, who: str, wanted: Wanted, after: int | None, org_ids: tuple[str, ...] | None = None
    ) -> AsyncIterator[Listener]:
        """Yield a listener for events after the position `after`, or for new events only.

        `org_ids` selects the organisations whose events the listener receives; None selects all
        organisations. Raise TooManyListeners if as many listeners exist as are allowed.
        """
        if self._is_closed:
            raise TooManyListeners("the control plane is stopping")
        if len(self._listeners) >= MOST_LISTENERS:
            raise TooManyListeners(f"{MOST_LISTENERS} live tails are open, and no more are allowed")
        if sum(listener.who == who for listener in self._listeners) >= MOST_OF_ONE:
            raise TooManyListeners(f"{who} has {MOST_OF_ONE} live tails open, and no more are allowed")
        if org_ids is not None and self._listening_to(org_ids) >= MOST_OF_THE_SAME:
            raise TooManyListeners(
                f"{MOST_OF_THE_SAME} live tails of the same organisations are open, and no more are allowed"
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
        """Return the next stored events that match the filter and the organisations of the listener.

        The list is empty if the listener has received every stored event.
        """
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
            # No events: those up to the position of the reading task are purged. The task may have advanced.
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
                    # No await between these lines, so that a listener that is served from now on has these
                    # events already.
                    self._position = events[-1].position
                    served = [listener for listener in self._listeners if listener.is_served]
                    shares = await asyncio.to_thread(_shares, events, served)
                    for listener, share in zip(served, shares, strict=True):
                        listener.give(share, events[-1].position)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._poll_seconds):
                        await self._woken.wait()
        except Exception as error:  # After any error, listeners must not wait for events that will not come.
            for listener in self._listeners:
                listener.cut(_unreadable(error))


class Listener:
    """Client that follows new events, and the position of the last event that it received."""

    def __init__(self, tail: LiveTail, who: str, wanted: Wanted, org_ids: tuple[str, ...] | None) -> None:
        self._tail = tail
        self.who = who
        self.wanted = wanted
        self.org_ids = org_ids
        self.position = 0  # position up to which it has received the events that match
        self.has_gap = False  # True: it begins later than the position that it gave
        self.is_served = False  # True: the reading task serves it
        self._waiting: list[StoredEvent] = []
        self._waiting_to = 0
        self._cut_off: str | None = None
        self._something = asyncio.Event()

    def start(self, position: int, after: int | None) -> None:
        self.came_to(position)
        self.has_gap = after is not None and after != position

    def came_to(self, position: int) -> None:
        """Record that the listener has received all matching events up to the position."""
        self.position = self._waiting_to = position

    async def next(self) -> list[StoredEvent]:
        """Wait for events that match the listener, and return these events.

        Raise CutOff if the live tail disconnects the listener.
        """
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
        # It may have caught up beyond the position of the reading task.
        events = [event for event in events if event.position > self._waiting_to]
        bytes_waiting = sum(len(event.body) for event in self._waiting) if events else 0
        if len(self._waiting) + len(events) > MOST_WAITING or bytes_waiting > MOST_WAITING_BYTES:
            self.cut("events arrived faster than the client read them")
            return
        self._waiting += events
        self._waiting_to = up_to
        if not self._waiting:
            self.position = up_to
        self._something.set()

    def cut(self, why: str) -> None:
        """Disconnect the listener after the listener has received its waiting events."""
        self._cut_off = why
        self._something.set()


def _unreadable(error: Exception) -> str:
    return f"events can't be read: {error}"


def _shares(events: Sequence[StoredEvent], listeners: Sequence[Listener]) -> list[list[StoredEvent]]:
    """Return, for each listener, the events that match the listener."""
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
