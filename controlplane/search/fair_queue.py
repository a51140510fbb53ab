"""A few at a time; those who wait take turns by whose they are: many of one wait for each other alone."""

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
        self._waiting: dict[Hashable, deque[asyncio.Future[None]]] = {}  # whose turn is next comes first

    @asynccontextmanager
    async def of(self, key: Hashable) -> AsyncIterator[None]:
        await self._enter(key)
        try:
            yield
        finally:
            self._leave()

    async def run(self, key: Hashable, work: Callable[[], Awaitable[T]]) -> T:
        """Return the work's result. A thread works on if the caller leaves, and so keeps its place."""
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
            if not slot.cancelled():  # it was ours already
                self._leave()
            raise

    def _leave(self) -> None:
        """Give the place to the next one, if somebody waits."""
        while self._waiting:
            key = next(iter(self._waiting))
            waiting = self._waiting.pop(key)
            slot = waiting.popleft()
            if waiting:
                self._waiting[key] = waiting  # behind the others
            if not slot.done():
                slot.set_result(None)
                return
        self._free += 1
