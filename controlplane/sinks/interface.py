"""The interface of a sink: it receives events, and returns those that it refused permanently."""

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
        """The members of the event, parsed at the first access."""
        if not self._members:
            self._members.update(orjson.loads(self.body))
        return self._members


@dataclass(frozen=True, slots=True)
class Refusal:
    """An event that the sink refused permanently, with the sink's own words."""

    position: int
    reason: str


@dataclass(frozen=True, slots=True)
class Sent:
    """The result of a delivery: the sink has every event that it did not refuse."""

    refused: tuple[Refusal, ...] = ()


ALL_SENT: Final = Sent()


@dataclass(frozen=True, slots=True)
class Limits:
    """The upper limits of one call to a sink."""

    events: int
    bytes: int  # sum of the payloads


class SinkUnavailable(Exception):
    """The sink accepts nothing now, and the consumer sends the same events again later.

    The sink has the first `delivered` of these events, and they are not sent again.
    """

    def __init__(self, reason: str, retry_after: float | None = None, delivered: int = 0) -> None:
        super().__init__(reason)
        self.retry_after = retry_after  # delay in seconds that the sink requested
        self.delivered = delivered


class SinkRefused(Exception):
    """The sink refuses these events permanently, without naming those at fault.

    The consumer sends each half by itself until it has found them.
    """


class Sink(Protocol):
    """A destination of events.

    One consumer uses it, and never makes two calls at the same time.
    """

    @property
    def limits(self) -> Limits: ...

    async def send(self, events: Sequence[SinkEvent]) -> Sent:
        """Return when the sink has the events.

        Raise SinkUnavailable or SinkRefused. The events are in order. The call may be cancelled, and the same
        events are sent again after a crash.
        """

    async def test(self) -> str:
        """Try the sink without an event, or with one that is marked as a test.

        Return the result for a person. Raise SinkUnavailable or SinkRefused.
        """

    async def close(self) -> None: ...


@runtime_checkable
class Archive(Protocol):
    """A destination that receives ranges of the chain with their events, instead of single events."""

    flush_seconds: float  # time for which events are collected for one range, unless it is full earlier

    async def write(
        self, store: ArchiveSource, after: int, upto: int, org_ids: Collection[str] | None
    ) -> int:
        """Write the events between two positions, of these organisations or of all.

        Return their number when the archive has them. Raise SinkUnavailable; the caller then writes the same
        range again. Repeated writes must leave the archive as one write would.
        """

    async def test(self) -> str:
        """Try the archive, and return the result for a person.

        Raise SinkUnavailable.
        """

    async def close(self) -> None: ...
