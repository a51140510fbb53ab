"""A dictionary that keeps a limited number of results.

If the dictionary does not contain a result, the caller computes the result again.
"""

from __future__ import annotations

from collections.abc import Hashable
from enum import Enum
from typing import Any, Final, Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class WhenFull(Enum):
    """Ways in which a full memo handles a new entry."""

    CLEAR = "clear"  # remove all other entries first; the common ones return soon
    KEEP = "keep"  # do not keep the new entry
    DROP_OLDEST = "drop oldest"  # remove the entry that was added first


_CLEAR: Final = WhenFull.CLEAR
_KEEP: Final = WhenFull.KEEP


class BoundedMemo(Generic[K, V]):
    """A cache that stores at most `limit` results, each under its key.

    To read a result from the memo, callers use the plain dictionary `entries`. To store a result in the memo,
    callers use the method `keep`. `longest_key` is the greatest length (`len`) of a key that the memo stores.
    If all keys of the memo are short, `longest_key` is None, and the memo does not check their length.
    """

    __slots__ = ("_longest_key", "_when_full", "entries", "limit")

    def __init__(self, limit: int, longest_key: int | None, when_full: WhenFull) -> None:
        self.limit = limit
        self.entries: dict[K, V] = {}
        self._longest_key = longest_key
        self._when_full = when_full

    def keep(self, key: K, value: V) -> bool:
        """Store `value` under `key` in the memo. The value replaces any earlier value of the key.

        Return False if the memo did not store the value.
        """
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
