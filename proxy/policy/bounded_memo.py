"""A dictionary of results that are worked out again if they are missing, with a limit of entries."""

from __future__ import annotations

from collections.abc import Hashable
from enum import Enum
from typing import Any, Final, Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class WhenFull(Enum):
    """What happens to a new entry if there is no room for it."""

    CLEAR = "clear"  # forget all others first; the common ones are back at once
    KEEP = "keep"  # do not keep the new one
    DROP_OLDEST = "drop oldest"  # forget the one that was added first


_CLEAR: Final = WhenFull.CLEAR
_KEEP: Final = WhenFull.KEEP


class BoundedMemo(Generic[K, V]):
    """At most `limit` results by their key. Read from `entries`, a plain dictionary; write with `keep`.

    `longest_key` is the most that `len` may say of a key; None is for keys whose length is known to be small.
    """

    __slots__ = ("_longest_key", "_when_full", "entries", "limit")

    def __init__(self, limit: int, longest_key: int | None, when_full: WhenFull) -> None:
        self.limit = limit
        self.entries: dict[K, V] = {}
        self._longest_key = longest_key
        self._when_full = when_full

    def keep(self, key: K, value: V) -> bool:
        """Keep the value, or replace the one of this key in its place. Return False if it is not kept."""
        if self._longest_key is not None:
            sized: Any = key
            if len(sized) > self._longest_key:
                return False
        if len(self.entries) >= self.limit and key not in self.entries:
            if self._when_full is _KEEP:
                return False
            if self._when_full is _CLEAR:
                self.entries.clear()
            else:
                del self.entries[next(iter(self.entries))]
        self.entries[key] = value
        return True
