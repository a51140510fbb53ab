"""A dictionary with a limit of entries, for results that are computed again if they are missing."""

from __future__ import annotations

from collections.abc import Hashable
from enum import Enum
from typing import Any, Final, Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class WhenFull(Enum):
    """Reactions to a new entry in a full memo."""

    CLEAR = "clear"  # remove all other entries first; the common ones return soon
    KEEP = "keep"  # do not keep the new entry
    DROP_OLDEST = "drop oldest"  # remove the entry that was added first


_CLEAR: Final = WhenFull.CLEAR
_KEEP: Final = WhenFull.KEEP


class BoundedMemo(Generic[K, V]):
    """A memo that keeps `limit` results by key.

    Read from `entries`, which is a plain dictionary, and write with `keep`. `longest_key` is the longest key
    that is kept, in units of `len`. None is for keys that are known to be short.
    """

    __slots__ = ("_longest_key", "_when_full", "entries", "limit")

    def __init__(self, limit: int, longest_key: int | None, when_full: WhenFull) -> None:
        self.limit = limit
        self.entries: dict[K, V] = {}
        self._longest_key = longest_key
        self._when_full = when_full

    def keep(self, key: K, value: V) -> bool:
        """Keep the value in place of any previous one with this key. Return False if it is not kept."""
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
