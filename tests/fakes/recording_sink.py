"""A fake sink that appends events to a list, and fails as the test's script demands."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from controlplane.sinks.interface import Limits, Refusal, Sent, SinkEvent, SinkRefused


class RecordingSink:
    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits(1000, 1_000_000)
        self.taken: list[SinkEvent] = []
        self.calls: list[list[int]] = []  # positions of each attempt
        self.failures: list[Exception] = []  # errors of the next attempts
        self.poisoned: dict[int, str] = {}  # position of an event -> why the sink refuses it
        self.names_refused = True  # the sink names the refused event, instead of refusing the whole batch
        self.hangs = False
        self.took = asyncio.Semaphore(0)  # released for each call that delivered

    async def send(self, events: Sequence[SinkEvent]) -> Sent:
        self.calls.append([each.position for each in events])
        if self.hangs:
            await asyncio.Event().wait()
        if self.failures:
            raise self.failures.pop(0)
        refused = [
            Refusal(each.position, self.poisoned[each.position])
            for each in events
            if each.position in self.poisoned
        ]
        if refused and not self.names_refused:
            raise SinkRefused(refused[0].reason)
        self.taken += [each for each in events if each.position not in self.poisoned]
        self.took.release()
        return Sent(tuple(refused))

    async def test(self) -> str:
        return "it takes everything"

    async def close(self) -> None:
        pass
