"""The interface of a sink: events go in, and the events that it refused for good come back."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, runtime_checkable

import orjson

from controlplane.store.interface import ArchiveSource


@dataclass(frozen=True, slots=True)
class SinkEvent:
    """An audit event on its way to a sink."""

    position: int
    org_id: str
    body: bytes  # the event as the proxy wrote it
    payload: bytes  # the event in the format of the sink; the same bytes as `body` if that is `event`
    _members: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def members(self) -> Mapping[str, Any]:
        """The members of the event, parsed when first asked for."""
        if not self._members:
            self._members.update(orjson.loads(self.body))
        return self._members


@dataclass(frozen=True, slots=True)
class Refusal:
    """An event that the sink refused for good, with the sink's own words."""

    position: int
    reason: str


@dataclass(frozen=True, slots=True)
class Sent:
    """The outcome of a delivery: the sink has every event that it did not refuse."""

    refused: tuple[Refusal, ...] = ()


ALL_SENT: Final = Sent()


@dataclass(frozen=True, slots=True)
class Limits:
    """The most that a sink takes at once."""

    events: int
    bytes: int  # sum of the payloads


class SinkUnavailable(Exception):
    """The sink takes nothing now; the same events are sent again later.

    `delivered` of the first events are with the sink, and are not sent again.
    """

    def __init__(self, reason: str, retry_after: float | None = None, delivered: int = 0) -> None:
        super().__init__(reason)
        self.retry_after = retry_after  # seconds that the sink asked for
        self.delivered = delivered


class SinkRefused(Exception):
    """The sink refuses these events for good, and doesn't say which of them. The consumer sends each half by
    itself until it has found them."""


class Sink(Protocol):
    """A place to deliver events to. One consumer uses it: no two calls are under way at the same time."""

    @property
    def limits(self) -> Limits: ...

    async def send(self, events: Sequence[SinkEvent]) -> Sent:
        """Return when the sink has the events. Raise SinkUnavailable or SinkRefused.

        The events are in order. The call may be cancelled, and the same events come again after a crash.
        """

    async def test(self) -> str:
        """Try the sink without an event, or with one that says it is a test. Return what was found, for a
        person. Raise SinkUnavailable or SinkRefused."""

    async def close(self) -> None: ...


@runtime_checkable
class Archive(Protocol):
    """A place that takes ranges of the chain with their events, and not events one after the other."""

    flush_seconds: float  # time for which events are collected for one range, if it isn't full before

    async def write(
        self, store: ArchiveSource, after: int, upto: int, org_ids: Collection[str] | None
    ) -> int:
        """Write the events after one position and up to another, those of these organisations or of all.

        Return their number once the archive has them. Raise SinkUnavailable; the same range is then written
        again, and has to leave the archive as if it had been written once.
        """

    async def test(self) -> str:
        """Try the archive, and return what was found, for a person. Raise SinkUnavailable."""

    async def close(self) -> None: ...
