"""Queue that runs a few jobs at a time, and takes the waiting jobs from its keys in turn (round-robin).

A queue key with many waiting jobs delays only the jobs of that key.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable
from contextlib import asynccontextmanager
from typing import TypeVar

T = TypeVar("T")


class FairQueue:
    def __init__(self, places: int = 1) -> None:
        self._free = places
        # the key that is served next is first
        self._waiting: dict[Hashable, deque[asyncio.Future[None]]] = {}

    @asynccontextmanager
    async def of(self, key: Hashable) -> AsyncIterator[None]:
        await self._enter(key)
        try:
            yield
        finally:
            self._leave()

    async def run(self, key: Hashable, work: Callable[[], Awaitable[T]]) -> T:
        """Run the work when the queue has a free slot, and return the result of the work.

        If the caller is cancelled, the thread continues its work, and keeps its slot until the work ends.
        """
        await self._enter(key)
        working = asyncio.ensure_future(work())
        working.add_done_callback(lambda _: self._leave())
        return await asyncio.shield(working)

    async def _enter(self, key: Hashable) -> None:
        if self._free:
            self._free -= 1
            return
        slot = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(key, deque()).append(slot)
        try:
            await slot
        except asyncio.CancelledError:
            if not slot.cancelled():  # the slot was assigned already
                self._leave()
            raise

    def _leave(self) -> None:
        """Give the slot of a finished job to the job that waits next, if any job waits."""
        while self._waiting:
            key = next(iter(self._waiting))
            waiting = self._waiting.pop(key)
            slot = waiting.popleft()
            if waiting:
                self._waiting[key] = waiting  # after the other keys
            if not slot.done():
                slot.set_result(None)
                return
        self._free += 1
