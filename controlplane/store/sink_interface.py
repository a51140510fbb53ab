"""Interface of the store for sinks and webhooks: their progress, dead letters, and notices for operators."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class SinkState:
    """The progress of a sink, as the store remembers it."""

    sink: str
    position: int  # position of the last event that it has, or does not want
    begun_ms: int
    delivered: int  # number of events that it took
    delivered_ms: int | None  # time of the last delivery
    problem: str | None  # reason why it takes nothing now
    problem_ms: int | None  # time since when it takes nothing
    dead_letters: int
    retried: int  # dead letters that wait to be sent again


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """An event that a sink refused for good."""

    position: int
    org_id: str
    refused_ms: int
    reason: str  # words of the sink
    is_retried: bool = False


class SinkStore(Protocol):
    """The progress of sinks, and the events that they refused for good."""

    async def begin_sink(self, sink: str, *, at_newest: bool) -> SinkState:
        """Return the state of a sink. A new one begins at the newest event, or before the oldest."""

    async def sink_states(self) -> Mapping[str, SinkState]: ...
    async def advance_sink(
        self, sink: str, after: int, upto: int, delivered: int, refused: Sequence[DeadLetter] = ()
    ) -> bool:
        """Move the cursor on, with the dead letters, in one transaction. Return False, and change nothing, if
        the cursor does not stand at `after`."""

    async def note_sink_problem(self, sink: str, problem: str | None) -> None: ...
    async def refused_in_a_row(self, sink: str) -> int:
        """Return the number of dead letters since the sink took an event last."""

    async def rewind_sink(self, sink: str, position: int) -> bool:
        """Return False if the store has none of the name."""

    async def position_received(self, received_ms: int) -> int:
        """Return the position after which all events were received at that time or later."""

    async def oldest_received_after(self, position: int) -> int | None:
        """Return the time at which the first event past the position was received; None if there is none."""

    async def oldest_lacking(self, org_id: str, position: int, before_ms: int) -> int | None:
        """Return the time of the organisation's first receipt before `before_ms` of events that may lie past
        the position; None if there is none."""

    async def dead_letters(
        self, sink: str, limit: int, after: int = 0, *, retried: bool = False
    ) -> list[DeadLetter]:
        """Return dead letters past a position: all, or those that wait to be sent again."""

    async def retry_dead_letters(self, sink: str, positions: Collection[int] | None) -> int:
        """Have these dead letters, or all, sent again. Return how many there are."""

    async def discard_dead_letters(self, sink: str, positions: Collection[int] | None) -> int: ...
    async def end_retries(
        self, sink: str, ended: Collection[int], delivered: int, refused: Sequence[DeadLetter] = ()
    ) -> None:
        """Forget the dead letters that were sent again, and keep those that were refused again."""


@dataclass(frozen=True, slots=True)
class NewNotice:
    """A notice for operators, before it has a position."""

    notice_id: str
    time_ms: int
    body: str  # JSON


@dataclass(frozen=True, slots=True)
class StoredNotice:
    position: int
    body: str


@dataclass(frozen=True, slots=True)
class ConditionState:
    """Last notice of a condition that has not ended."""

    condition: str
    body: str  # the newest notice of it
    reminded_ms: int  # time of that notice


class NoticeStore(Protocol):
    """Storage of notices for operators, each of which is kept once, by its id."""

    async def log_position_noticed(self) -> int:
        """Return how far notices were made of the operator log: in a new store, to its newest line."""

    async def add_notices(self, notices: Sequence[NewNotice], log_position: int) -> None:
        """Keep the notices, and how far they were made of the operator log, in one transaction."""

    async def notices_after(self, position: int, limit: int) -> list[StoredNotice]: ...
    async def oldest_notice_after(self, position: int) -> int | None:
        """Return the time of the first notice past the position; None if there is none."""

    async def notices_waiting(self, position: int) -> int:
        """Return the number of notices past the position."""

    async def notice_position(self, time_ms: int) -> int:
        """Return the position after which all notices were made at that time or later."""

    async def purge_notices(self, before_ms: int) -> int: ...
    async def begin_webhook(self, name: str, *, at_newest: bool) -> SinkState:
        """Return the state of a webhook. A new one begins at the newest notice, or before the oldest."""

    async def conditions(self) -> Mapping[str, ConditionState]: ...
    async def begin_condition(self, state: ConditionState, notice: NewNotice) -> None:
        """Keep condition and notice, unless somebody else did."""

    async def remind_of_condition(self, before: ConditionState, notice: NewNotice) -> None:
        """Keep the notice, unless another process has reminded of the same."""

    async def end_condition(self, condition: str, notice: NewNotice) -> None:
        """Forget the condition and keep the notice, unless somebody else did."""
