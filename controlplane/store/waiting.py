"""Bounds on the writes that wait for the database at once: their number and their bytes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from controlplane.store.interface import StoreBusy

# A fleet that comes back at once has a call of each proxy in one turn of the event loop.
MOST_WAITING: Final = 8192
MOST_WAITING_BYTES: Final = 256 * 1024 * 1024  # batches as they came; in memory they take about twice that


class WaitingWrites:
    """The writes that wait or run, and the bytes of what they were given."""

    def __init__(self) -> None:
        self.count = 0
        self._bytes = 0

    @contextmanager
    def one(self, size: int) -> Iterator[None]:
        """Hold a place for a write of so many bytes. Raise StoreBusy if there is none."""
        if self.count >= MOST_WAITING or (self._bytes and self._bytes + size > MOST_WAITING_BYTES):
            raise StoreBusy("too many writes are waiting for the disk")
        self.count += 1
        self._bytes += size
        try:
            yield
        finally:
            self.count -= 1
            self._bytes -= size
