"""Limits on the number and the size of database writes that wait at the same time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from controlplane.store.interface import StoreBusy

# A fleet that reconnects at once sends a call of each proxy in one loop iteration.
MOST_WAITING: Final = 8192
# bytes of batches as received; in memory they take about twice that
MOST_WAITING_BYTES: Final = 256 * 1024 * 1024


class WaitingWrites:
    """Count of the database writes that wait or run now, with the total bytes of their arguments."""

    def __init__(self) -> None:
        self.count = 0
        self._bytes = 0

    @contextmanager
    def one(self, size: int) -> Iterator[None]:
        """Reserve a slot for one database write whose arguments have `size` bytes.

        Raise StoreBusy if no slot for a write is free.
        """
        if self.count >= MOST_WAITING or (self._bytes and self._bytes + size > MOST_WAITING_BYTES):
            raise StoreBusy("too many writes are waiting for the disk")
        self.count += 1
        self._bytes += size
        try:
            yield
        finally:
            self.count -= 1
            self._bytes -= size
