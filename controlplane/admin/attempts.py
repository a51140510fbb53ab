"""Limits on failed sign-ins for each operator name and network address.

After too many failed sign-ins, the next sign-in attempt must wait.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Sequence
from hashlib import blake2b
from ipaddress import ip_address
from typing import Final, Protocol

from controlplane.clock import Clock
from controlplane.errors import Refused
from controlplane.store.interface import AttemptLimit, OperatorStore, SignInKeys
from proxy.policy.bounded_memo import BoundedMemo, WhenFull

WINDOW_MS: Final = 15 * 60_000
# Few failures for one name from one address. More for an address, because it may be that of an office. More
# for a name too: an unauthenticated client must not lock its owner out, but a name is not guessed from
# everywhere.
_MOST_OF_BOTH: Final = 5
_MOST_OF_ADDRESS: Final = 20
_MOST_OF_NAME: Final = 50
# Keys of each kind. One control plane can't compare this many passwords within the window.
_MOST_REMEMBERED: Final = 50_000

# Attempts wait for one connection to the database. The other connections are for proxies.
_MOST_WAITING: Final = 64


class Attempts(Protocol):
    async def begin(self, name: str | None, address: str) -> int:
        """Count a sign-in attempt as failed until it succeeds, and return the seconds to wait, or 0.

        A sign-in attempt counts against the limit as soon as it starts. If many sign-in attempts arrive at
        the same time, only as many attempts pass as the limit allows. If no operator name is given, the limit
        of failed sign-ins applies only to the network address.

        A sign-in attempt that must wait is not counted. If refused attempts were counted, a blocked client
        could fill the memory, or displace the failures of other clients from it.
        """

    async def forgive(self, name: str | None, address: str) -> None:
        """After a successful sign-in, delete the failures counted for its operator name and address."""


class AttemptsInMemory:
    """Sliding windows of failed sign-ins, in the memory of a single control plane.

    A restart of the control plane clears the sliding windows, so all counts of failed sign-ins start again
    at 0. Counting in memory works even if the disk is full, and lets unauthenticated clients cause no
    writes.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # The oldest failure comes first. Failures of addresses need no password comparison, so they are
        # stored apart and never push out a name.
        self._failed: dict[str, BoundedMemo[bytes, list[int]]] = {
            what: BoundedMemo(_MOST_REMEMBERED, None, WhenFull.DROP_OLDEST)
            for what in ("address", "name", "pair")
        }

    async def begin(self, name: str | None, address: str) -> int:
        now = self._clock.steady_ms()
        limits = _limits(_keys(name, address))
        wait_ms = max(self._wait_ms(limit, now) for limit in limits)
        if wait_ms > 0:
            return _seconds(wait_ms)
        for limit in limits:
            failed = self._failed[limit.what]
            failed.keep(limit.key, [*failed.entries.pop(limit.key, ()), now])
        return 0

    async def forgive(self, name: str | None, address: str) -> None:
        keys = _keys(name, address)
        for limit in _limits(keys):
            window = self._failed[limit.what].entries.get(limit.key)
            if window:
                window.pop()
        if keys.pair is not None:
            self._failed["pair"].entries.pop(keys.pair, None)

    def _wait_ms(self, limit: AttemptLimit, now: int) -> int:
        window = self._failed[limit.what].entries.get(limit.key)
        if window is None:
            return 0
        del window[: bisect_right(window, now - WINDOW_MS)]
        return window[-limit.most] + WINDOW_MS - now if len(window) >= limit.most else 0


class AttemptsInStore:
    """Sliding windows of failed sign-ins, counted together for all control planes that share a store."""

    def __init__(self, store: OperatorStore) -> None:
        self._store = store
        self._turn = asyncio.Semaphore()
        self._waiting = 0

    async def begin(self, name: str | None, address: str) -> int:
        if self._waiting >= _MOST_WAITING:
            raise Refused("unavailable", "too many sign-in attempts are waiting", Retry_After="5")
        keys = _keys(name, address)
        self._waiting += 1
        try:
            async with self._turn:
                return _seconds(await self._store.begin_attempt(keys, _limits(keys), WINDOW_MS))
        finally:
            self._waiting -= 1

    async def forgive(self, name: str | None, address: str) -> None:
        async with self._turn:
            await self._store.forgive_attempt(_keys(name, address))


def _limits(keys: SignInKeys) -> Sequence[AttemptLimit]:
    found = [AttemptLimit("address", keys.address, _MOST_OF_ADDRESS)]
    if keys.pair is not None and keys.name is not None:
        found.append(AttemptLimit("pair", keys.pair, _MOST_OF_BOTH))
        found.append(AttemptLimit("name", keys.name, _MOST_OF_NAME))
    return found


def _keys(name: str | None, address: str) -> SignInKeys:
    network = network_of(address)
    if name is None:
        return SignInKeys(_digest("address", network))
    folded = name.casefold()
    return SignInKeys(
        _digest("address", network), _digest("name", folded), _digest("pair", f"{network} {folded}")
    )


def _digest(what: str, text: str) -> bytes:
    """Return a digest of the names, so that a long name of an unauthenticated client takes little space."""
    return blake2b(text.encode("utf-8", "replace"), digest_size=16, person=what.encode()).digest()


def _seconds(ms: int) -> int:
    return -(-ms // 1000)


def network_of(address: str) -> str:
    """Return the network of one client: an IPv4 address, or the first 64 bits of an IPv6 address."""
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    return address if parsed.version == 4 else parsed.exploded[:19]
