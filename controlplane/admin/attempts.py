"""Failed sign-ins: how many an operator and an address have before the next must wait."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterator
from hashlib import blake2b
from ipaddress import ip_address
from typing import Final

from controlplane.clock import Clock
from proxy.policy.bounded_memo import BoundedMemo, WhenFull

WINDOW_MS: Final = 15 * 60_000
# Few for one name from one address. More for an address, behind which may be an office, and for a name, which
# a stranger must not be able to shut out by failing in it, but which is not guessed from everywhere either.
_MOST_OF_BOTH: Final = 5
_MOST_OF_ADDRESS: Final = 20
_MOST_OF_NAME: Final = 50
_MOST_REMEMBERED: Final = (
    20_000  # whoever has more addresses than this to guess from is met by the name's limit
)


class Attempts:
    """Sliding windows in memory: a restart empties them."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # The key that failed longest ago comes first.
        self._failed: BoundedMemo[Hashable, deque[int]] = BoundedMemo(
            _MOST_REMEMBERED, None, WhenFull.DROP_OLDEST
        )

    def begin(self, name: str | None, address: str) -> int:
        """Counts an attempt as failed until forgiven, so that many at once can't all be the last one. How
        many seconds it must wait; 0 where it may be made. Without a name, only the address is limited.

        One that must wait leaves no trace: else whoever may try nothing any more could push what others have
        failed out of memory, or fill it.
        """
        now = self._clock.steady_ms()
        limits = list(_limits(name, address))
        wait_ms = max(self._wait_ms(key, most, now) for key, most in limits)
        if wait_ms > 0:
            return -(-wait_ms // 1000)
        # All are taken out before one is put back: none may be dropped for another of the same attempt.
        windows = [(key, self._failed.entries.pop(key, deque())) for key, _ in limits]
        for key, window in windows:
            window.append(now)
            self._failed.keep(key, window)
        return 0

    def forgive(self, name: str | None, address: str) -> None:
        """The attempt succeeded: what this name failed from this address counts no more."""
        for key, _ in _limits(name, address):
            window = self._failed.entries.get(key)
            if window:
                window.pop()
        if name is not None:
            self._failed.entries.pop(_of_both(name, address), None)

    def _wait_ms(self, key: Hashable, most: int, now: int) -> int:
        window = self._failed.entries.get(key)
        if window is None:
            return 0
        while window and window[0] <= now - WINDOW_MS:
            window.popleft()
        return window[-most] + WINDOW_MS - now if len(window) >= most else 0


def _limits(name: str | None, address: str) -> Iterator[tuple[Hashable, int]]:
    yield ("address", _network(address)), _MOST_OF_ADDRESS
    if name is not None:
        yield _of_both(name, address), _MOST_OF_BOTH
        yield ("name", _folded(name)), _MOST_OF_NAME


def _of_both(name: str, address: str) -> Hashable:
    return "both", _folded(name), _network(address)


def _folded(name: str) -> bytes:
    """In little room, however long a stranger's name is."""
    return blake2b(name.casefold().encode("utf-8", "replace"), digest_size=16).digest()


def _network(address: str) -> str:
    """What one subscriber has: an IPv4 address, or the first half of an IPv6 one."""
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    return address if parsed.version == 4 else parsed.exploded[:19]
