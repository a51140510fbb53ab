"""Who takes more than their share: connections of one address, and failed attempts to get a token.

Of one worker, in its memory: bounded, and gone with it.
"""

from __future__ import annotations

import ipaddress
import math
from typing import Final

from proxy.policy.bounded_memo import BoundedMemo, WhenFull

WINDOW_SECONDS: Final = 60.0
MAX_KEYS: Final = 10_000  # keys whose failures are counted at once; then the oldest window is dropped


def network_of(address: str) -> str:
    """What counts as one address: of IPv6 a whole /64, which is what one host commonly has to itself."""
    if ":" not in address:
        return address
    try:
        parsed = ipaddress.IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.IPv6Address(int(parsed) >> 64 << 64)) + "/64"


class Connections:
    """How many connections each address has open."""

    __slots__ = ("_open",)

    def __init__(self) -> None:
        self._open: dict[str, int] = {}

    def opened(self, network: str) -> int:
        """The number of them, with the new one."""
        count = self._open[network] = self._open.get(network, 0) + 1
        return count

    def closed(self, network: str) -> None:
        left = self._open[network] - 1
        if left:
            self._open[network] = left
        else:
            del self._open[network]

    def __len__(self) -> int:
        return len(self._open)


class Failures:
    """Failures of each key within a window that begins with its first one. Times are monotonic."""

    __slots__ = ("_limit", "_windows")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._windows: BoundedMemo[str, tuple[float, int]] = BoundedMemo(MAX_KEYS, None, WhenFull.DROP_OLDEST)

    def add(self, key: str, now: float) -> None:
        began, count = self._windows.entries.get(key, (now, 0))
        if now - began >= WINDOW_SECONDS:
            began, count = now, 0
        if not count:
            self._windows.entries.pop(key, None)  # so that windows lie in the order of their beginning
        self._windows.keep(key, (began, count + 1))

    def wait(self, key: str, now: float) -> int:
        """Whole seconds until `key` may try again; 0 if it may now."""
        began, count = self._windows.entries.get(key, (0.0, 0))
        if count < self._limit:
            return 0
        return max(0, math.ceil(WINDOW_SECONDS - (now - began)))

    def __len__(self) -> int:
        return len(self._windows.entries)
