"""What one worker buffers in memory for its clients, within a limit: bodies and responses that have to be
read whole, and responses that nobody takes.

Where there is no room, what would need it is refused at once, and of the clients that take their responses
too slowly the one that has done so longest is cut: memory never grows with their number.
"""

from __future__ import annotations

from collections.abc import Callable


class BufferBudget:
    """Counts bytes; buffers nothing itself."""

    __slots__ = ("_slow", "limit", "reserved", "unsent")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.reserved = 0  # of bodies and responses that have to be read whole
        self.unsent = 0  # of responses that wait for their readers
        self._slow: dict[object, tuple[int, Callable[[], None]]] = {}  # longest first

    def reserve(self, size: int) -> bool:
        """Whether there is room for `size` bytes more; they count from now on if so."""
        if self.reserved + size > self.limit:
            return False
        self.reserved += size
        return True

    def release(self, size: int) -> None:
        self.reserved -= size

    def slow(self, reader: object, size: int, cut: Callable[[], None]) -> int:
        """`reader` has left `size` bytes unsent. How many readers were cut on account of that."""
        self.forget(reader)
        self._slow[reader] = (size, cut)
        self.unsent += size
        cuts = 0
        while self.unsent > self.limit:
            longest = next(iter(self._slow))
            _, cut_longest = self._slow[longest]
            self.forget(longest)
            cut_longest()
            cuts += 1
        return cuts

    def forget(self, reader: object) -> None:
        """`reader` has taken what was left, or is gone."""
        size, _ = self._slow.pop(reader, (0, None))
        self.unsent -= size
