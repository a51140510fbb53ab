"""Limits per client: open connections of one address, and failed attempts to get a token.

Each worker has its own counts of connections and failures in memory. The tables with the counts of clients
have a limited size, and are lost when the worker ends.
"""

from __future__ import annotations

import ipaddress
import math
from typing import Final

from proxy.policy.bounded_memo import BoundedMemo, WhenFull

WINDOW_SECONDS: Final = 60.0
MAX_KEYS: Final = 10_000  # keys whose failures are counted at once; beyond that, the oldest window is dropped


def network_of(address: str) -> str:
    """Return the network that counts as one client address.

    An IPv6 address counts as its /64 network, which usually belongs to one host.
    """
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
    """Counter of the open connections of each client address."""

    __slots__ = ("_open",)

    def __init__(self) -> None:
        self._open: dict[str, int] = {}

    def opened(self, network: str) -> int:
        """Count a new connection from `network`.

        Return the number of open connections from `network`, including the new connection.
        """
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
    """Counter of failed attempts for each key, in a time window that begins with the key's first failure.

    Times are monotonic.
    """

    __slots__ = ("_limit", "_windows")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._windows: BoundedMemo[str, tuple[float, int]] = BoundedMemo(MAX_KEYS, None, WhenFull.DROP_OLDEST)

    def add(self, key: str, now: float) -> None:
        began, count = self._windows.entries.get(key, (now, 0))
        if now - began >= WINDOW_SECONDS:
            began, count = now, 0
        if not count:
            # remove and insert again, so that windows stay in the order of their start
            self._windows.entries.pop(key, None)
        self._windows.keep(key, (began, count + 1))

    def wait(self, key: str, now: float) -> int:
        """Return the number of seconds, rounded up, until the client `key` may try again.

        Return 0 if the client `key` may try again now.
        """
        began, count = self._windows.entries.get(key, (0.0, 0))
        if count < self._limit:
            return 0
        return max(0, math.ceil(WINDOW_SECONDS - (now - began)))

    def __len__(self) -> int:
        return len(self._windows.entries)
