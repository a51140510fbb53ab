"""Interface of the store for sinks and webhooks: their progress, dead letters, and notices for operators."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class SinkState:
    """The progress of a sink, as the store keeps it."""

    sink: str
    position: int  # position of the last event that the sink has, or does not want
    begun_ms: int
    delivered: int  # number of events that the sink accepted
    delivered_ms: int | None  # time of the last delivery
    problem: str | None  # reason why the sink accepts nothing now
    problem_ms: int | None  # time since which the sink accepts nothing
    dead_letters: int
    retried: int  # dead letters that wait to be sent again


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """An event that a sink refused permanently."""

    position: int
    org_id: str
    refused_ms: int
    reason: str  # words of the sink
    is_retried: bool = False


class SinkStore(Protocol):
    """The progress of sinks, and the events that they refused permanently."""

    async def begin_sink(self, sink: str, *, at_newest: bool) -> SinkState:
        """Return the state of a sink.

        A new sink begins at the newest event, or before the oldest.
        """

    async def sink_states(self) -> Mapping[str, SinkState]: ...
    async def advance_sink(
        self, sink: str, after: int, upto: int, delivered: int, refused: Sequence[DeadLetter] = ()
    ) -> bool:
        """Move the cursor forward and store the dead letters in one transaction.

        Return False, and change nothing, if the cursor is not at `after`.
        """

    async def note_sink_problem(self, sink: str, problem: str | None) -> None: ...
    async def refused_in_a_row(self, sink: str) -> int:
        """Return the number of dead letters since the sink last accepted an event."""

    async def rewind_sink(self, sink: str, position: int) -> bool:
        """Move the cursor of a sink back.

        Return False if the store has no sink with this name.
        """

    async def position_received(self, received_ms: int) -> int:
        """Return the position after which all events were received at or after that time."""

    async def oldest_received_after(self, position: int) -> int | None:
        """Return the time at which the first event past the position was received, or None without one."""

    async def oldest_lacking(self, org_id: str, position: int, before_ms: int) -> int | None:
        """Return the time of the first receipt of the organisation that the sink may still lack.

        Only receipts before `before_ms` of events past the position count. Return None if there is none.
        """

    async def dead_letters(
        self, sink: str, limit: int, after: int = 0, *, retried: bool = False
    ) -> list[DeadLetter]:
        """Return dead letters past a position: all, or those that wait to be sent again."""

    async def retry_dead_letters(self, sink: str, positions: Collection[int] | None) -> int:
        """Mark these dead letters, or all, to be sent again.

        Return their number.
        """

    async def discard_dead_letters(self, sink: str, positions: Collection[int] | None) -> int: ...
    async def end_retries(
        self, sink: str, ended: Collection[int], delivered: int, refused: Sequence[DeadLetter] = ()
    ) -> None:
        """Delete the dead letters that were sent again, and keep those that were refused again."""


@dataclass(frozen=True, slots=True)
class NewNotice:
    """A notice for operators, before it has a position."""

    notice_id: str
    time_ms: int
    body: str  # text in JSON


@dataclass(frozen=True, slots=True)
class StoredNotice:
    position: int
    body: str


@dataclass(frozen=True, slots=True)
class ConditionState:
    """Last notice of a condition that has not ended."""

    condition: str
    body: str  # the newest notice of the condition
    reminded_ms: int  # time of that notice


class NoticeStore(Protocol):
    """Storage of notices for operators, each of which is stored once by its id."""

    async def log_position_noticed(self) -> int:
        """Return the position up to which notices were made from the operator log.

        In a new store, it is that of the newest line.
        """

    async def add_notices(self, notices: Sequence[NewNotice], log_position: int) -> None:
        """Store the notices, and the position in the operator log that they cover, in one transaction."""

    async def notices_after(self, position: int, limit: int) -> list[StoredNotice]: ...
    async def oldest_notice_after(self, position: int) -> int | None:
        """Return the time of the first notice past the position, or None if there is none."""

    async def notices_waiting(self, position: int) -> int:
        """Return the number of notices past the position."""

    async def notice_position(self, time_ms: int) -> int:
        """Return the position after which all notices were made at or after that time."""

    async def purge_notices(self, before_ms: int) -> int: ...
    async def begin_webhook(self, name: str, *, at_newest: bool) -> SinkState:
        """Return the state of a webhook.

        A new webhook begins at the newest notice, or before the oldest.
        """

    async def conditions(self) -> Mapping[str, ConditionState]: ...
    async def begin_condition(self, state: ConditionState, notice: NewNotice) -> None:
        """Store condition and notice, unless another process has done so."""

    async def remind_of_condition(self, before: ConditionState, notice: NewNotice) -> None:
        """Store the notice, unless another process has stored the same reminder."""

    async def end_condition(self, condition: str, notice: NewNotice) -> None:
        """Delete the condition and store the notice, unless another process has done so."""
