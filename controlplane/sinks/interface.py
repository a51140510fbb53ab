"""The interface of a sink, which receives events and returns the events that it refused permanently."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, runtime_checkable

import orjson

from controlplane.store.interface import ArchiveSource


@dataclass(frozen=True, slots=True)
class SinkEvent:
    """An audit event that is being delivered to a sink."""

    position: int
    org_id: str
    body: bytes  # the event as the proxy wrote it
    payload: bytes  # the event in the format of the sink; equal to `body` if the format is `event`
    _members: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def members(self) -> Mapping[str, Any]:
        """The JSON members of the event, parsed at the first access."""
        if not self._members:
            self._members.update(orjson.loads(self.body))
        return self._members


@dataclass(frozen=True, slots=True)
class Refusal:
    """An event that the sink refused permanently, with the reason that the sink gave."""

    position: int
    reason: str


@dataclass(frozen=True, slots=True)
class Sent:
    """The result of a delivery of events to a sink.

    The sink has received all events of the delivery, except the events in `refused`.
    """

    refused: tuple[Refusal, ...] = ()


ALL_SENT: Final = Sent()


@dataclass(frozen=True, slots=True)
class Limits:
    """The upper limits of one call to a sink: number of events and bytes."""

    events: int
    bytes: int  # sum of the payloads


class SinkUnavailable(Exception):
    """Error because the sink accepts nothing now.

    After a SinkUnavailable error, the consumer sends the undelivered events again later.

    If the sink received the first `delivered` events before the error, the consumer does not send these
    events again.
    """

    def __init__(self, reason: str, retry_after: float | None = None, delivered: int = 0) -> None:
        super().__init__(reason)
        self.retry_after = retry_after  # delay in seconds that the sink requested
        self.delivered = delivered


class SinkRefused(Exception):
    """Error because the sink refuses a batch permanently, without naming the events at fault.

    The consumer halves the batch, and sends each half alone, until it has found the events that the sink
    refuses.
    """


class Sink(Protocol):
    """A destination to which audit events are sent.

    Only one consumer uses a sink object, and the consumer never makes two calls at the same time.
    """

    @property
    def limits(self) -> Limits: ...

    async def send(self, events: Sequence[SinkEvent]) -> Sent:
        """Send the events, and return when the sink has received them.

        Raise SinkUnavailable if the sink accepts nothing now, or SinkRefused if it refuses the events. The
        caller passes the events in the order of their positions in the store. A caller of `send` may cancel
        the call. After a crash of the control plane, the consumer may send the newest events to the sink a
        second time.
        """

    async def test(self) -> str:
        """Test the sink without an event, or with an event that is marked as a test.

        Return a text for a person that describes the result of the test. If the test of the sink fails, raise
        SinkUnavailable or SinkRefused.
        """

    async def close(self) -> None: ...


@runtime_checkable
class Archive(Protocol):
    """A destination that receives ranges of the audit chain with the events, not single events."""

    flush_seconds: float  # time for which events are collected for one range, unless it is full earlier

    async def write(
        self, store: ArchiveSource, after: int, upto: int, org_ids: Collection[str] | None
    ) -> int:
        """Archive the events between two positions, of the given organisations or of all organisations.

        When the archive holds all events of the range, return the number of these events. Raise
        SinkUnavailable if the archive can't be written. If a write to the archive failed, the caller writes
        the same range of events again. Repeated writes of a range must leave the archive as one write would.
        """

    async def test(self) -> str:
        """Test the archive, and return the result as text for a person.

        Raise SinkUnavailable.
        """

    async def close(self) -> None: ...
