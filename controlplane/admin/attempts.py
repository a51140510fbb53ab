"""Failed sign-ins: how many an operator and an address have before the next must wait."""

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
# Few for one name from one address. More for an address, behind which may be an office, and for a name, which
# a stranger must not be able to shut out by failing in it, but which is not guessed from everywhere either.
_MOST_OF_BOTH: Final = 5
_MOST_OF_ADDRESS: Final = 20
_MOST_OF_NAME: Final = 50
# Keys of each kind. One control plane can't compare so many passwords within the window.
_MOST_REMEMBERED: Final = 50_000

# They wait here for one connection to the database. The other connections are for proxies.
_MOST_WAITING: Final = 64


class Attempts(Protocol):
    async def begin(self, name: str | None, address: str) -> int:
        """Count an attempt as failed until forgiven, so that many at once can't all be the last one. Return
        how many seconds it must wait; 0 if it may be made. Without a name, only the address is limited.

        One that must wait leaves no trace: else whoever may try nothing any more could push what others have
        failed out of memory, or fill it.
        """

    async def forgive(self, name: str | None, address: str) -> None:
        """Forget the attempt, which succeeded, and the failures of the name at the address."""


class AttemptsInMemory:
    """Sliding windows of the one control plane that there is: a restart empties them, a full disk doesn't
    keep operators out, and strangers make it write nothing."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # The key that failed longest ago comes first. An address, which costs no comparison of a password,
        # never pushes out a name.
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
    """The windows of all control planes that share a store, counted together."""

    def __init__(self, store: OperatorStore) -> None:
        self._store = store
        self._turn = asyncio.Semaphore()
        self._waiting = 0

    async def begin(self, name: str | None, address: str) -> int:
        if self._waiting >= _MOST_WAITING:
            raise Refused("unavailable", "too many attempts are waiting", Retry_After="5")
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
    """In little room, however long a stranger's name is."""
    return blake2b(text.encode("utf-8", "replace"), digest_size=16, person=what.encode()).digest()


def _seconds(ms: int) -> int:
    return -(-ms // 1000)


def network_of(address: str) -> str:
    """Return what one subscriber has: an IPv4 address, or the first half of an IPv6 one."""
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    return address if parsed.version == 4 else parsed.exploded[:19]
