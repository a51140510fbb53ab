"""Limit the number of bytes that one worker buffers for all of its clients.

The buffer budget counts bodies and responses that the worker must read completely, and output that clients
have not read yet.

If the buffer budget is used up, the worker refuses a request that needs more memory. To free memory, the
worker aborts the connection of the client that has been reading slowly for the longest time. A worker's
memory therefore does not grow with the number of clients.
"""

from __future__ import annotations

from collections.abc import Callable


class BufferBudget:
    """Counter of the bytes that one worker buffers.

    This class only counts bytes, and buffers no data itself.
    """

    __slots__ = ("_slow", "limit", "reserved", "unsent")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.reserved = 0  # bytes of bodies and responses that must be read whole
        self.unsent = 0  # bytes of output that clients have not read
        self._slow: dict[object, tuple[int, Callable[[], None]]] = {}  # slow readers, the longest slow first

    def reserve(self, size: int) -> bool:
        """Reserve `size` more bytes of the buffer budget, if the budget has room.

        Return True if the bytes were reserved in the budget.
        """
        if self.reserved + size > self.limit:
            return False
        self.reserved += size
        return True

    def release(self, size: int) -> None:
        self.reserved -= size

    def slow(self, reader: object, size: int, cut: Callable[[], None]) -> int:
        """Count `size` bytes that wait to be sent to the slow client `reader`.

        Return how many slow clients were disconnected to stay within the buffer budget.
        """
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
        """Subtract the bytes that wait to be sent to the client `reader` from the total of unsent bytes.

        `reader` has read all bytes or has disconnected, or its bytes are counted again.
        """
        size, _ = self._slow.pop(reader, (0, None))
        self.unsent -= size
