"""Delivers the store's events to a sink in order, and moves the sink's cursor after each success.

The store holds the cursor of each sink. The cursor moves after each batch, so a crash repeats one batch and
loses no event. If a sink accepts nothing, the events wait in the store, not in memory. After a failure, the
consumer repeats the delivery at growing intervals.

Because an application determines the content of its events, no single event may stop the sink. An event that
fails repeatedly becomes a dead letter, if the sink accepts other events at that time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, Protocol

from controlplane.clock import Clock
from controlplane.search.query import parse_filter
from controlplane.sinks.attempts import FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS, POLL_SECONDS, Attempts
from controlplane.sinks.formats import FORMATS
from controlplane.sinks.interface import Archive, Refusal, Sent, Sink, SinkEvent, SinkRefused, SinkUnavailable
from controlplane.sinks.selection import Selection, batches, orgs_named
from controlplane.sinks.settings import AnySink
from controlplane.store.interface import ArchiveSource, Org, OutboxStore, StoredEvent
from controlplane.store.sink_interface import DeadLetter, SinkStore

READ_AT_ONCE: Final = 1000  # number of events; the store reads at most 16 MiB of them
LINGER_SECONDS: Final = 1.0  # time for which events are collected and sent together
MOST_DEAD_LETTERS: Final = 10_000  # number of refusals in a row at which delivery stops
SUSPICIOUS_TRIES: Final = 5  # number of failures at one position, after which single events are tried
_IN_DOUBT: Final = 5  # number of refused single events, after which the sink itself may be at fault
_WITNESSES: Final = 3  # number of other events that are then tried, to find whether the sink accepts any
_RETRIES_AT_ONCE: Final = 100

_log = logging.getLogger(__name__)


class ConsumerStore(OutboxStore, SinkStore, ArchiveSource, Protocol):
    async def orgs(self) -> list[Org]: ...


class _CursorMoved(Exception):
    """Error because an operator, or a control plane that became the leader, moved the sink's cursor."""


class Consumer:
    """Delivers the events of the store to one sink.

    If two consumers deliver to one sink at the same time, the only effect is that the sink receives events
    twice.
    """

    def __init__(
        self,
        settings: AnySink,
        store: ConsumerStore,
        clock: Clock,
        open_sink: Callable[[AnySink], Sink | Archive],
        *,
        poll_seconds: float = POLL_SECONDS,
        linger_seconds: float = LINGER_SECONDS,
        first_pause_seconds: float = FIRST_PAUSE_SECONDS,
        longest_pause_seconds: float = LONGEST_PAUSE_SECONDS,
    ) -> None:
        self._settings = settings
        self._name = settings.name
        self._store = store
        self._clock = clock
        self._open = open_sink
        self._attempts = Attempts(
            settings,
            store,
            poll_seconds=poll_seconds,
            linger_seconds=linger_seconds,
            first_pause_seconds=first_pause_seconds,
            longest_pause_seconds=longest_pause_seconds,
        )
        self._sink: Sink | Archive | None = None
        self._position = 0
        self._refused_in_a_row = 0
        self._tries = 0  # number of failed attempts at this position

    def wake(self) -> None:
        """Wake the consumer, so that it soon looks for new audit events."""
        self._attempts.wake()

    async def run(self) -> None:
        """Deliver events to the sink until the task is cancelled."""
        try:
            await self._attempts.repeat(self._attempt)
        finally:
            if self._sink is not None:
                await self._sink.close()

    async def _attempt(self) -> None:
        self._sink = self._sink or self._open(self._settings)
        await self.drain(self._sink)

    async def drain(self, sink: Sink | Archive) -> None:
        """Deliver the stored events to the sink until none is left.

        If the sink or the store fails, pass the error on to the caller.
        """
        await self._begin()
        await (self._archive(sink) if isinstance(sink, Archive) else self._send_all(sink))
        await self._attempts.recovered()

    async def _archive(self, archive: Archive) -> None:
        org_ids = await self._org_ids()
        while (upto := await self._end_of_range(archive)) is not None:
            written = await archive.write(self._store, self._position, upto, org_ids)
            try:
                await self._advance(upto, written, ())
            except _CursorMoved:
                await self._begin()
            await self._attempts.recovered()

    async def _end_of_range(self, archive: Archive) -> int | None:
        """Return the end of the range of events to archive now, or None if no range is due.

        The end of a range stays the same, even if more events arrive, until the sink's cursor has passed this
        end.
        """
        found = await self._store.archive_range(self._position)
        if found is None:
            return None
        due_ms = found.received_ms + archive.flush_seconds * 1000
        if not found.is_full and self._clock.wall_ms() < due_ms:
            return None
        return await self._store.fix_range(f"sink {self._name}", self._position, found.upto)

    async def _send_all(self, sink: Sink) -> None:
        selection = await self._selection()
        while await self._retry(sink, selection):
            pass
        while True:
            events = await self._store.events_after(self._position, READ_AT_ONCE)
            if not events:
                break
            before = self._position
            try:
                await self._deliver_all(sink, selection, events)
            except _CursorMoved:
                await self._begin()
            except SinkUnavailable:
                self._tries = self._tries + 1 if self._position == before else 0
                raise
            self._tries = 0

    async def _begin(self) -> None:
        """Read the cursor of the sink from the store.

        If the sink is new, the store has no cursor of this sink. For a new sink, the setting `From` of the
        sink determines the first event that the sink receives.
        """
        at_newest = self._settings.from_ == "now"
        state = await self._store.begin_sink(self._name, at_newest=at_newest)
        self._position = state.position
        self._attempts.problem = state.problem
        self._refused_in_a_row = await self._store.refused_in_a_row(self._name)
        self._require_room()

    def _require_room(self) -> None:
        if self._refused_in_a_row >= MOST_DEAD_LETTERS:
            raise SinkUnavailable(
                f"delivery has stopped: the sink refused {self._refused_in_a_row} events in a row: read its"
                " dead letters, then retry or discard them"
            )

    async def _org_ids(self) -> frozenset[str] | None:
        """Return the IDs of the organisations whose events are delivered, or None for all organisations."""
        if not self._settings.organisations:
            return None
        return orgs_named(self._settings.organisations, await self._store.orgs())

    async def _selection(self) -> Selection:
        wanted = parse_filter(self._settings.filter, now_ms=self._clock.wall_ms())
        return Selection(wanted, await self._org_ids(), FORMATS[self._settings.format])

    async def _deliver_all(self, sink: Sink, selection: Selection, events: Sequence[StoredEvent]) -> None:
        made = await asyncio.to_thread(selection.of, events)
        org_ids = {each.position: each.org_id for each in events}
        unfit = [each for each in made if isinstance(each, Refusal)]
        events_made = [each for each in made if isinstance(each, SinkEvent)]
        witnesses = _witnesses(events_made) if self._tries >= SUSPICIOUS_TRIES else ()
        for batch in batches(events_made, sink.limits):
            self._require_room()
            last = batch[-1].position
            before = [each for each in unfit if each.position < last]
            unfit = unfit[len(before) :]
            await self._deliver(sink, batch, self._letters(before, org_ids), witnesses)
        await self._advance(events[-1].position, 0, self._letters(unfit, org_ids))

    async def _deliver(
        self,
        sink: Sink,
        batch: Sequence[SinkEvent],
        letters: Sequence[DeadLetter] = (),
        witnesses: Sequence[SinkEvent] = (),
    ) -> None:
        """Send the events to the sink, and move the sink's cursor past these events.

        If the sink refuses a batch of events, send each half of the batch separately.
        """
        try:
            sent = await self._send_or_refuse(sink, batch, witnesses)
        except SinkUnavailable as error:
            if error.delivered:
                await self._advance(batch[error.delivered - 1].position, error.delivered, letters)
            raise
        except SinkRefused as error:
            if len(batch) > 1:
                middle = len(batch) // 2
                await self._deliver(sink, batch[:middle], letters, witnesses)
                await self._deliver(sink, batch[middle:], (), witnesses)
                return
            await self._require_proof(sink, batch[0], witnesses, error)
            sent = Sent((Refusal(batch[0].position, str(error)),))
        org_ids = {each.position: each.org_id for each in batch}
        refused = self._letters(sent.refused, org_ids)
        await self._advance(batch[-1].position, len(batch) - len(refused), [*letters, *refused])
        await self._attempts.recovered()

    async def _require_proof(
        self, sink: Sink, refused: SinkEvent, witnesses: Sequence[SinkEvent], error: SinkRefused
    ) -> None:
        """Raise SinkUnavailable if the sink refused many events in a row and may refuse every event."""
        others = [each for each in witnesses if each.position != refused.position]
        if self._refused_in_a_row >= _IN_DOUBT and not await self._takes_one(sink, others):
            raise SinkUnavailable(f"the sink refuses one event after another: {error}") from None

    async def _send_or_refuse(
        self, sink: Sink, batch: Sequence[SinkEvent], witnesses: Sequence[SinkEvent]
    ) -> Sent:
        """Send the events to the sink.

        If the sink accepts other events but not these events, raise SinkRefused instead of SinkUnavailable.
        """
        try:
            return await self._send(sink, batch)
        except SinkUnavailable as error:
            others = [each for each in witnesses if [each.position] != [one.position for one in batch]]
            if error.delivered or not await self._takes_one(sink, others):
                raise
            words = f"the sink accepts other events, but fails repeatedly at this one: {error}"
            raise SinkRefused(words) from None

    async def _takes_one(self, sink: Sink, events: Sequence[SinkEvent]) -> bool:
        """Return True if the sink accepts at least one of the given events.

        The sink receives an accepted event twice: once as a test, and again with the usual delivery.
        """
        for each in events:
            try:
                if not (await self._send(sink, [each])).refused:
                    return True
            except (SinkUnavailable, SinkRefused):
                continue
        return False

    async def _send(self, sink: Sink, batch: Sequence[SinkEvent]) -> Sent:
        seconds = self._settings.timeout_seconds
        try:
            async with asyncio.timeout(seconds):
                return await sink.send(batch)
        except TimeoutError:
            raise SinkUnavailable(f"the sink sent no response within {seconds:g} s") from None

    async def _advance(self, upto: int, delivered: int, letters: Sequence[DeadLetter]) -> None:
        if not await self._store.advance_sink(self._name, self._position, upto, delivered, letters):
            raise _CursorMoved
        self._position = upto
        self._refused_in_a_row = 0 if delivered else self._refused_in_a_row + len(letters)
        for letter in letters:
            _log.warning(
                "sink %s: refused the event at position %d: %s", self._name, letter.position, letter.reason
            )

    # Dead letters

    async def _retry(self, sink: Sink, selection: Selection) -> bool:
        """Send a dead letter again if an operator requested a new delivery of the dead letter.

        Return True if an operator had requested a new delivery of at least one dead letter.
        """
        letters = await self._store.dead_letters(self._name, _RETRIES_AT_ONCE, retried=True)
        for letter in letters:
            stored = await self._store.events_after(letter.position - 1, 1)
            if not stored or stored[0].position != letter.position:
                _log.warning(
                    "sink %s: retention has deleted the event of a dead letter at position %d",
                    self._name,
                    letter.position,
                )
                await self._store.end_retries(self._name, [letter.position], 0)
                continue
            refusal = await self._sent_again(sink, selection.in_format(stored[0]))
            again = [] if refusal is None else self._letters([refusal], {letter.position: letter.org_id})
            await self._store.end_retries(self._name, [letter.position], 0 if again else 1, again)
        return bool(letters)

    async def _sent_again(self, sink: Sink, event: SinkEvent | Refusal) -> Refusal | None:
        if isinstance(event, Refusal):
            return event
        try:
            sent = await self._send(sink, [event])
        except SinkRefused as error:
            return Refusal(event.position, str(error))
        return next(iter(sent.refused), None)

    def _letters(self, refusals: Sequence[Refusal], org_ids: dict[int, str]) -> list[DeadLetter]:
        now = self._clock.wall_ms()
        return [
            DeadLetter(each.position, org_ids[each.position], now, self._attempts.masked(each.reason))
            for each in refusals
        ]


def _witnesses(events: Sequence[SinkEvent]) -> Sequence[SinkEvent]:
    """Return the newest events of different applications.

    The returned events come from several applications, because one application may have caused all failures.
    """
    by_app = {each.members.get("appId"): each for each in events}
    newest = sorted(by_app.values(), key=lambda each: each.position, reverse=True)[:_WITNESSES]
    return newest if len(newest) > 1 else [*newest, *events[:1]]


class Consumers:
    """The consumers of all sinks in the settings, one for each sink."""

    def __init__(
        self,
        sinks: Sequence[AnySink],
        store: ConsumerStore,
        clock: Clock,
        open_sink: Callable[[AnySink], Sink | Archive],
    ) -> None:
        self._all = {each.name: Consumer(each, store, clock, open_sink) for each in sinks}

    def wake(self) -> None:
        """Wake the consumers of all sinks, so that each consumer soon looks for new audit events."""
        for consumer in self._all.values():
            consumer.wake()

    def runs(self) -> list[tuple[str, Coroutine[Any, Any, None]]]:
        """Return a name and a coroutine for each sink: the coroutine runs the sink's consumer."""
        return [(f"sink {name}", consumer.run()) for name, consumer in self._all.items()]
