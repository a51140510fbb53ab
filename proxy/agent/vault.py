"""A secret from a key vault, in the form that this process keeps.

The process reads the secret again from time to time, and uses the last value while the vault is unreachable.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Final, Protocol

from proxy.outbound.failures import unforeseen
from proxy.outbound.retry import FIRST_BACKOFF, backoff, jittered
from proxy.outbound.vault import Vault, VaultError, VaultSecret
from proxy.wire.models import Check

log = logging.getLogger(__name__)

_LONGEST_BACKOFF: Final = 30.0
_SHORTEST_PAUSE: Final = 1.0
ENDS_SOON_SECONDS: Final = 14 * 86400.0  # seconds; the alert on the metric uses the same limit


class Maintenance:
    """Results of the key vault reads for one purpose: the last success, and the current problem."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._failures = 0  # failures in a row
        self.failures = 0  # all failures since the start
        self._read_at: float | None = None  # monotonic seconds
        self.problem: str | None = None

    @property
    def age_seconds(self) -> float | None:
        """Seconds since the vault last gave a usable response; None before the first usable response."""
        return None if self._read_at is None else time.monotonic() - self._read_at

    def succeeded(self) -> None:
        if self.problem is not None:
            log.info("reading the %s from the key vault works again", self._what)
        self.problem, self._failures, self._read_at = None, 0, time.monotonic()

    def failed(self, text: str) -> None:
        log.error("cannot read the %s: %s", self._what, text)
        self.problem = text
        self._failures += 1
        self.failures += 1

    def pause(self, interval: float, asked: float = 0.0) -> float:
        """Return the seconds until the next attempt to read the vault."""
        if self.problem is None:
            return jittered(interval, 0.9)
        return max(asked, min(interval, backoff(self._failures - 1, _LONGEST_BACKOFF, FIRST_BACKOFF)))

    def check(self, *, usable: bool, until: float = math.inf) -> Check:
        if self.problem is None:
            return Check("ok") if usable else Check("failed", f"the {self._what} has not been read yet")
        if not usable:
            return Check("failed", self.problem)
        end = "" if math.isinf(until) else f" until {_utc(until)}"
        return Check("degraded", f"the last good {self._what} is in use{end}: {self.problem}")


class Held(Protocol):
    """Value from the key vault that this process keeps for one purpose."""

    maintenance: Maintenance

    @property
    def what(self) -> str:
        """Name and purpose of the secret, in the words of log messages."""

    @property
    def ends_at(self) -> float:
        """Unix time in seconds at which the secret's value expires; infinity if no expiry is known."""

    def check(self) -> Check: ...

    async def run(self) -> None: ...


class HeldSecret:
    def __init__(
        self,
        vault: Vault,
        name: str,
        *,
        what: str,
        interval: float,
        own_end: Callable[[VaultSecret], float] = lambda secret: math.inf,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`own_end` returns the time when the secret's content expires, such as a certificate's expiry."""
        self._vault = vault
        self._name = name
        self._interval = interval
        self._own_end = own_end
        self._ends_at = math.inf
        self._clock = clock
        self.what = f"secret {name} ({what})"
        self._secret: VaultSecret | None = None
        self._reading = asyncio.Lock()
        self._outcomes = 0
        self._retry_after = 0.0
        self.maintenance = Maintenance(what)

    @property
    def ends_at(self) -> float:
        return self._ends_at

    async def run(self) -> None:
        """Read newer versions of the secret, long before the current version expires."""
        await self._read_if_missing()
        while True:
            await asyncio.sleep(self._pause())
            await self.read()

    async def read(self) -> None:
        """Read the secret from the vault now. If the vault can't be read, keep the current secret."""
        async with self._reading:
            await self._read()

    async def current(self) -> VaultSecret:
        """Return the current secret, which is never expired.

        Raise VaultError if the current secret is missing.
        """
        await self._read_if_missing()
        secret = self._secret
        if secret is not None and self._usable():
            return secret
        raise VaultError(self.check().detail, self._retry_after)

    def _pause(self) -> float:
        pause = self.maintenance.pause(self._interval, self._retry_after)
        left = self.ends_at - self._clock()
        return pause if left <= 0 else min(pause, max(_SHORTEST_PAUSE, left / 2))

    async def _read_if_missing(self) -> None:
        """Read the secret from the vault if this process does not have the secret yet.

        If two callers read at the same time, the second caller waits, and uses the result of the first
        attempt.
        """
        before = self._outcomes
        if not self._usable():
            async with self._reading:
                if self._outcomes == before:
                    await self._read()

    async def _read(self) -> None:
        try:
            secret = await self._vault.secret(self._name)
        except VaultError as error:
            self._not_read(str(error), error.retry_after)
            return
        except Exception as error:  # the rest of the agent continues
            self._not_read(unforeseen(error))
            return
        if self._secret is not None and secret.version != self._secret.version:
            log.info("secret %s has a new version in the key vault: %s", self._name, secret.version)
        self._secret, self._retry_after = secret, 0.0
        self._ends_at = min(secret.expires_at, self._own_end(secret))
        self._outcomes += 1
        self.maintenance.succeeded()

    def _not_read(self, why: str, retry_after: float = 0.0) -> None:
        self._outcomes += 1
        self._retry_after = retry_after
        self.maintenance.failed(why)

    def check(self) -> Check:
        if self._secret is not None and not self._usable() and self.maintenance.problem is None:
            end = _utc(self._secret.expires_at)
            return Check(
                "failed", f"secret {self._name} expired at {end}, and the key vault has no newer version"
            )
        return self.maintenance.check(usable=self._usable(), until=self.ends_at)

    def _usable(self) -> bool:
        return self._secret is not None and self._clock() < self._secret.expires_at


def ending_check(held: Iterable[Held], now: float) -> Check:
    """Report each used secret that expires soon or has expired, with the time of its expiry."""
    ending = [
        f"{each.what} {'expires' if now < each.ends_at else 'expired'} at {_utc(each.ends_at)}"
        for each in held
        if each.ends_at - now < ENDS_SOON_SECONDS
    ]
    return Check("degraded", f"{'; '.join(ending)}: store a newer version") if ending else Check("ok")


def _utc(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
