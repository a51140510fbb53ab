"""Write events from the store's outbox to a search index, in order, and confirm each indexed batch.

The outbox lists the accepted events in the order in which the store accepted them. Because the outbox stays
in the store, the index writer needs little memory, even if the index is down for long. Ingestion passes
events that it has just stored to the index writer, in parsed form. The index writer reads events from the
store only if these events did not fit in memory, or if another process stored them. The index writer may
write an event twice (after a crash between the write and its confirmation), but never skips an event.
"""

import asyncio
import contextlib
import logging
import random
import time
import uuid
from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter
from typing import Final

from controlplane.search.interface import (
    Event,
    IndexMovedError,
    IndexUnavailableError,
    OutboxStore,
    RangedIndex,
    SearchIndex,
)
from controlplane.search.known_event import Parsed
from controlplane.store.interface import UNREADABLE, GivenOut

log = logging.getLogger(__name__)

BATCH_EVENTS: Final = 8192
# Parsed events that wait for the index; they take three times this size in memory.
MOST_PARSED_BYTES: Final = 24 * 1024 * 1024
POLL_SECONDS: Final = 5.0
# An index takes many events at once at a much lower cost. A search does not wait, because it drains the
# outbox itself.
LINGER_SECONDS: Final = 0.5
FIRST_PAUSE_SECONDS: Final = 0.5
LONGEST_PAUSE_SECONDS: Final = 30.0
_MUCH_EVENTS: Final = 100_000  # number of missing events from which the log shows progress
_REPORT_SECONDS: Final = 10.0  # seconds between two log lines about the progress


class IndexWriter:
    """Writer of events to one search index in one process.

    Several index writers for one index do no harm, because all of them write the same events.
    """

    def __init__(
        self,
        store: OutboxStore,
        index: SearchIndex,
        *,
        poll_seconds: float = POLL_SECONDS,
        linger_seconds: float = LINGER_SECONDS,
        batch_events: int = BATCH_EVENTS,
        first_pause_seconds: float = FIRST_PAUSE_SECONDS,
        longest_pause_seconds: float = LONGEST_PAUSE_SECONDS,
    ) -> None:
        self._store = store
        self._index = index
        # Determined once, because isinstance with a protocol costs as much as a request.
        self._ranged = index if isinstance(index, RangedIndex) else None
        self._poll_seconds = poll_seconds
        self._linger_seconds = linger_seconds
        self._batch_events = batch_events
        self._first_pause_seconds = first_pause_seconds
        self._longest_pause_seconds = longest_pause_seconds
        self._woken = asyncio.Event()
        self._stopped = asyncio.Event()
        self._newest = 0
        self._position = 0
        self._is_measured = False
        self._draining = asyncio.Lock()
        self.is_behind = False  # True: a search did not wait until the index had everything
        self._parsed: dict[int, Parsed] = {}  # keys are positions
        self._parsed_bytes = 0
        self._next_report = 0.0
        self.problem: str | None = None  # why the index accepts no events now
        self.left_out = 0  # number of events that the index could not take

    @property
    def position(self) -> int:
        """Position of the last event in the search index; 0 before the first response of the index."""
        return self._position

    @property
    def is_measured(self) -> bool:
        """Return True if the writer has determined the position of the index at least once."""
        return self._is_measured

    @property
    def lag(self) -> int:
        """Number of events that the control plane has accepted and the index does not have yet.

        The number does not count stored events that the index writer has not found yet.
        """
        return max(0, self._newest - self._position)

    @property
    def percent(self) -> int:
        """Share of the store's events that are in the index, in percent."""
        return 100 if self._newest <= self._position else 100 * self._position // self._newest

    def wake(self, newest: int = 0) -> None:
        """Wake the index writer after events were accepted.

        `newest` is the position of the newest accepted event, or 0 if the caller does not have the position.
        """
        self._newest = max(self._newest, newest)
        self._woken.set()

    def take(self, parsed: Parsed) -> None:
        """Accept the parsed events of a batch that was just stored."""
        # An index with ranges reads its events from the store, also for a retry.
        if self._ranged is None and self._parsed_bytes + parsed.size <= MOST_PARSED_BYTES:
            self._parsed[parsed.position] = parsed
            self._parsed_bytes += parsed.size
        self.wake(parsed.position + len(parsed.events) - 1)

    def stop(self) -> None:
        """Stop run() after the index writer has written its current batch."""
        self._stopped.set()
        self._woken.set()

    async def run(self) -> None:
        pause = self._first_pause_seconds
        self._is_measured = False  # Another control plane may have led in between.
        while not self._stopped.is_set():
            self._woken.clear()
            try:
                await self.drain()
            except Exception as error:  # After any error, the store still has the events for the next try.
                self._failed(error, pause)
                await _wait(self._stopped, pause * random.uniform(0.5, 1.0))  # noqa: S311 - jitter, no secret
                pause = min(pause * 2, self._longest_pause_seconds)
                continue
            self._recovered()
            pause = self._first_pause_seconds
            await _wait(self._woken, self._poll_seconds)
            await _wait(self._stopped, self._linger_seconds)

    async def drain(self) -> int:
        """Write all events of the store to the index, unless stop() ends the work earlier.

        Return how many events were written. Raise the error of the index or the store if one of them fails.
        """
        async with self._draining:  # A search drains the outbox too.
            written = await self._drain()
            self.is_behind = False
            return written

    async def catch_up(self, seconds: float) -> None:
        """Wait until the index has all events accepted before this call, or until the time limit.

        If the index accepts no new events, a search can still find the events that the index already has.
        """
        try:
            async with asyncio.timeout(seconds):
                await self.drain()
        except Exception:  # run() logs the error and tries again
            self.is_behind = True
            self.wake()

    async def _drain(self) -> int:
        if self._ranged is not None:
            return await self._drain_ranges(self._ranged)
        name = await self._index.outbox_name()
        await self._measure(name)
        self._newest = self._newest or await self._store.last_position()
        written = 0
        while not self._stopped.is_set():
            try:
                count, last = await self._write_next()
            except IndexMovedError as moved:
                log.warning(
                    "writing the missing events to the search index again: %s",
                    moved,
                )
                name, self._position = await self._index.outbox_name(), moved.reached
                continue
            if not count:
                break
            await self._store.set_outbox_position(name, last)
            self._position = last
            written += count
            self._recovered()
            self._report()
        return written

    async def _drain_ranges(self, index: RangedIndex) -> int:
        written = 0
        while not self._stopped.is_set():
            name = await index.outbox_name()
            await self._measure(name)
            events = await self._store.events_after(self._position, self._batch_events)
            if not events:
                break
            self._newest = max(self._newest, events[-1].position)
            wanted = GivenOut(self._position, events[-1].position, uuid.uuid4().hex)
            given = await self._store.give_out(name, wanted)
            if given is None:
                continue  # Another process has written them.
            if given.upto > wanted.upto:  # The other process takes more events at once.
                events = await self._store.events_after(given.after, given.upto - given.after)
            events = [event for event in events if event.position <= given.upto]
            try:
                await index.write_range(events, given)
            except IndexMovedError as moved:
                log.warning(
                    "writing the missing events to the search index again: %s",
                    moved,
                )
                await self._store.go_back(name, moved.reached)
                continue
            await self._store.finish(name, given)
            self._leave_out_unreadable(events)
            self._position = given.upto
            written += len(events)
            self._recovered()
        return written

    async def _measure(self, name: str) -> None:
        self._position = await self._store.outbox_position(name)
        self._is_measured = True

    async def _write_next(self) -> tuple[int, int]:
        """Write the next batch of events to the index.

        Return the number of the events in the batch, and the position of the last event.
        """
        parsed = self._next_parsed()
        if parsed:
            try:
                await self._index.write_parsed(parsed, self._position)
            except (ValueError, TypeError, OverflowError, RecursionError) as error:
                log.warning(
                    "reading events from the store again, because the index rejected their parsed form: %s",
                    error,
                )
            else:
                return sum(len(each.events) for each in parsed), _end(parsed[-1])
        events = await self._store.events_after(self._position, self._batch_events)
        if not events:
            return 0, self._position
        self._newest = max(self._newest, events[-1].position)
        await self._write(events)
        self._leave_out_unreadable(events)
        return len(events), events[-1].position

    def _leave_out_unreadable(self, events: Sequence[Event]) -> None:
        """Count and log the events that the index lacks because their block is damaged."""
        damaged = (event for event in events if event.body == UNREADABLE)
        for org_id, of_org in groupby(damaged, key=attrgetter("org_id")):
            positions = [event.position for event in of_org]
            self.left_out += len(positions)
            log.error(
                "organisation %s: the block of events at positions %d to %d is damaged and omitted from the"
                " search index: verify the audit chain of the organisation",
                org_id, positions[0], positions[-1],
            )  # fmt: skip

    def _next_parsed(self) -> list[Parsed]:
        """Return the parsed events whose positions directly follow the index's position.

        Discard parsed events that the index already has.
        """
        for position in [each for each in self._parsed if each <= self._position]:
            self._forget(position)
        found: list[Parsed] = []
        room, last = self._batch_events, self._position
        while (following := self._parsed.get(last + 1)) and (not found or len(following.events) <= room):
            found.append(self._forget(last + 1))
            room, last = room - len(following.events), _end(following)
        return found

    def _forget(self, position: int) -> Parsed:
        parsed = self._parsed.pop(position)
        self._parsed_bytes -= parsed.size
        return parsed

    async def _write(self, events: Sequence[Event]) -> None:
        """Write events one by one if necessary, so that one unusable event does not block other events."""
        try:
            await self._index.write(events, self._position)
        except (ValueError, TypeError, OverflowError, RecursionError) as error:
            if len(events) == 1:
                log.exception("event at position %d is omitted from the search index", events[0].position)
                self.left_out += 1
                return
            log.warning(
                "the index rejected %d events together, so each half is written separately: %s",
                len(events),
                error,
            )
            middle = len(events) // 2
            await self._write(events[:middle])
            await self._write(events[middle:])

    def _failed(self, error: Exception, pause: float) -> None:
        self.problem = str(error) or type(error).__name__
        unexpected = not isinstance(error, IndexUnavailableError)
        waiting = f", at least {self.lag} events wait" if self.lag else ""  # 0 may also mean: not counted yet
        log.warning(
            "search index: no events were indexed%s, next try within %.1f s: %s",
            waiting, pause, self.problem, exc_info=unexpected,
        )  # fmt: skip

    def _report(self) -> None:
        """Log the progress from time to time while many events are missing in the index."""
        now = time.monotonic()
        if self.lag > _MUCH_EVENTS and now >= self._next_report:
            self._next_report = now + _REPORT_SECONDS
            log.info("%d of %d events are indexed (%d %%)", self._position, self._newest, self.percent)

    def _recovered(self) -> None:
        if self.problem is not None:
            log.info("search index: the indexing of events works again")
            self.problem = None


def _end(parsed: Parsed) -> int:
    return parsed.position + len(parsed.events) - 1


async def _wait(event: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
