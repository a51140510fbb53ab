"""Slots that limit how many operations of one kind an operator runs at the same time.

If all slots of an operator are in use, a new operation waits only for operations of this operator.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from controlplane.operations.actor import Actor


class Slots:
    def __init__(self, at_once: int) -> None:
        self._at_once = at_once
        self._asking: Counter[str] = Counter()  # requests by operator, including waiting ones
        self._slots: dict[str, asyncio.Semaphore] = {}

    @asynccontextmanager
    async def of(self, actor: Actor) -> AsyncIterator[None]:
        self._asking[actor.name] += 1
        try:
            slots = self._slots.setdefault(actor.name, asyncio.Semaphore(self._at_once))
            async with slots:
                yield
        finally:
            self._asking[actor.name] -= 1
            if not self._asking[actor.name]:
                del self._asking[actor.name], self._slots[actor.name]
