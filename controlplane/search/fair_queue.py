"""One at a time, and those who wait take turns by whose they are: many of one wait for each other alone."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager


class FairQueue:
    def __init__(self) -> None:
        self._is_taken = False
        self._waiting: dict[Hashable, deque[asyncio.Future[None]]] = {}  # whose turn is next comes first

    @asynccontextmanager
    async def of(self, key: Hashable) -> AsyncIterator[None]:
        if self._is_taken:
            await self._wait(key)
        self._is_taken = True
        try:
            yield
        finally:
            self._is_taken = False
            self._wake_next()

    async def _wait(self, key: Hashable) -> None:
        slot = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(key, deque()).append(slot)
        try:
            await slot
        except asyncio.CancelledError:
            if not slot.cancelled():  # it was ours already
                self._is_taken = False
                self._wake_next()
            raise

    def _wake_next(self) -> None:
        while self._waiting:
            key = next(iter(self._waiting))
            waiting = self._waiting.pop(key)
            slot = waiting.popleft()
            if waiting:
                self._waiting[key] = waiting  # behind the others
            if not slot.done():
                self._is_taken = True
                slot.set_result(None)
                return
