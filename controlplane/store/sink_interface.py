"""Interface of the store for sinks and webhooks: their progress, dead letters, and notices for operators."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class SinkState:
    """Stored progress of a sink or a webhook."""

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
    """Storage of the progress of sinks, and of the events that sinks refused permanently."""

    async def begin_sink(self, sink: str, *, at_newest: bool) -> SinkState:
        """Return the stored state of a sink. If the sink is new, store the sink's first state.

        If the sink is new, its deliveries begin after the newest event (`at_newest`), or with the oldest
        event.
        """

    async def sink_states(self) -> Mapping[str, SinkState]: ...
    async def advance_sink(
        self, sink: str, after: int, upto: int, delivered: int, refused: Sequence[DeadLetter] = ()
    ) -> bool:
        """Move the cursor of a sink forward and store the sink's dead letters, in one transaction.

        Return False, and change nothing, if the cursor of the sink is not at `after`.
        """

    async def note_sink_problem(self, sink: str, problem: str | None) -> None: ...
    async def refused_in_a_row(self, sink: str) -> int:
        """Return the number of the sink's dead letters since the sink last accepted an event."""

    async def rewind_sink(self, sink: str, position: int) -> bool:
        """Move the cursor of a sink back to an earlier position.

        Return False if the store has no sink with this name.
        """

    async def position_received(self, received_ms: int) -> int:
        """Return the position after which all events were received at `received_ms` or later."""

    async def oldest_received_after(self, position: int) -> int | None:
        """Return the receipt time of the first event after `position`, or None if no event follows."""

    async def oldest_lacking(self, org_id: str, position: int, before_ms: int) -> int | None:
        """Return the receipt time of the organisation's oldest event that a sink at `position` may lack.

        Ignore events up to `position`, and events that the control plane received at `before_ms` or later.
        Return None if no event can be missing from the sink.
        """

    async def dead_letters(
        self, sink: str, limit: int, after: int = 0, *, retried: bool = False
    ) -> list[DeadLetter]:
        """Return the sink's dead letters with a position higher than `after`.

        If `retried` is True, return only the dead letters that wait to be sent again.
        """

    async def retry_dead_letters(self, sink: str, positions: Collection[int] | None) -> int:
        """Mark the sink's dead letters at the given positions (all, if None) to be sent again.

        Return their number.
        """

    async def discard_dead_letters(self, sink: str, positions: Collection[int] | None) -> int: ...
    async def end_retries(
        self, sink: str, ended: Collection[int], delivered: int, refused: Sequence[DeadLetter] = ()
    ) -> None:
        """Delete dead letters that the sink accepted at a retry; keep those that the sink refused again."""


@dataclass(frozen=True, slots=True)
class NewNotice:
    """A new notice for operators, which is not stored yet and so has no position among the stored notices."""

    notice_id: str
    time_ms: int
    body: str  # text in JSON


@dataclass(frozen=True, slots=True)
class StoredNotice:
    position: int
    body: str


@dataclass(frozen=True, slots=True)
class ConditionState:
    """Last notice about a condition that has not ended."""

    condition: str
    body: str  # the newest notice of the condition
    reminded_ms: int  # time of that notice


class NoticeStore(Protocol):
    """Storage of notices for operators. Each notice is stored once by its ID."""

    async def log_position_noticed(self) -> int:
        """Return the position in the operator log up to which notices were made.

        If the store has no such position yet, return the position of the newest line in the operator log.
        """

    async def add_notices(self, notices: Sequence[NewNotice], log_position: int) -> None:
        """Store the notices, and the operator log position up to which notices exist, in one transaction."""

    async def notices_after(self, position: int, limit: int) -> list[StoredNotice]: ...
    async def oldest_notice_after(self, position: int) -> int | None:
        """Return the time of the first notice after `position`, or None if no notice follows."""

    async def notices_waiting(self, position: int) -> int:
        """Return the number of notices after `position`."""

    async def notice_position(self, time_ms: int) -> int:
        """Return the position in the operator log after which all notices were made at `time_ms` or later."""

    async def purge_notices(self, before_ms: int) -> int: ...
    async def begin_webhook(self, name: str, *, at_newest: bool) -> SinkState:
        """Return the stored state of a webhook. If the webhook is new, store the webhook's first state.

        If the webhook is new, its deliveries begin after the newest notice (`at_newest`), or with the oldest
        notice.
        """

    async def conditions(self) -> Mapping[str, ConditionState]: ...
    async def begin_condition(self, state: ConditionState, notice: NewNotice) -> None:
        """Store a condition and its notice, unless another process has already stored the condition.

        A condition is a lasting problem, such as a late sink.
        """

    async def remind_of_condition(self, before: ConditionState, notice: NewNotice) -> None:
        """Store a reminder about a lasting condition, unless another process has stored it already."""

    async def end_condition(self, condition: str, notice: NewNotice) -> None:
        """Delete a condition and store the notice of its end, unless another process has done both.

        The caller found that the condition (a lasting problem) has ended.
        """
