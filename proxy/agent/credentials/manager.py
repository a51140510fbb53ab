"""Keep a valid upstream token of one identity for all workers.

The manager replaces a token before the token expires, fetches one token at a time, and never hands out an
expired token.
"""

import asyncio
import logging
import math
import random
import time
from collections.abc import Callable
from typing import Final

from proxy.agent.credentials.provider import CredentialError, CredentialProvider, UpstreamToken
from proxy.ipc.channel import ActiveUpstreamToken, UpstreamTokenUnavailable
from proxy.outbound.failures import unforeseen
from proxy.outbound.retry import FIRST_BACKOFF, backoff, sleep_until_set
from proxy.startup.identities import DEFAULT_IDENTITY
from proxy.wire.models import Check

log = logging.getLogger(__name__)

# A token is replaced after this share of its lifetime, or _REFRESH_AHEAD seconds before its end if that comes
# first.
_REFRESH_AT: Final = 0.8
_REFRESH_AHEAD: Final = 300.0
_LONGEST_BACKOFF: Final = 30.0
_REJECTION_PAUSE: Final = 10.0  # least seconds between two fetches for an upstream that refuses every token
_JUMP_SECONDS: Final = 1.0
ENDLESS_SECONDS: Final = 1e9  # seconds; workers receive at least this lifetime for a static token
_LONGEST_SLEEP: Final = 5.0  # seconds; wall clocks jump, so the token's end is checked at least this often


class CredentialManager:
    def __init__(
        self,
        provider: CredentialProvider,
        *,
        name: str = DEFAULT_IDENTITY,
        announce: Callable[[ActiveUpstreamToken | UpstreamTokenUnavailable], None],
        clock: Callable[[], float] = time.time,
        first_backoff: float = FIRST_BACKOFF,
        rejection_pause: float = _REJECTION_PAUSE,
    ) -> None:
        self.name = name
        self._what = _described(name)
        self._provider = provider
        self._announce = announce
        self._clock = clock
        self._first_backoff = first_backoff
        self._rejection_pause = rejection_pause
        self._token: UpstreamToken | None = None
        self._generation = 0
        # Waits are measured on the monotonic clock, because setting the wall clock back must not delay a
        # refresh.
        self._refresh_at = -math.inf
        self._ends_at = -math.inf
        self._failures = 0
        self._problem: str | None = None
        self._retry_after = first_backoff
        # Difference between the clocks at the last message to the workers.
        self._offset = clock() - time.monotonic()
        self._rejected = asyncio.Event()
        self._tried = asyncio.Event()
        self._rejected_at = -math.inf

    @property
    def tried(self) -> bool:
        """Return True if the first attempt to fetch a token has ended.

        Before the end of the first attempt, the value of `current` has no meaning.
        """
        return self._tried.is_set()

    async def first_attempt(self) -> None:
        """Wait until the first attempt to fetch a token has ended."""
        await self._tried.wait()

    def current(self) -> ActiveUpstreamToken | UpstreamTokenUnavailable:
        """Return the message for a worker: the upstream token, or the reason why the agent has no token.

        If the agent's upstream token has expired, the message does not contain the token.
        """
        token = self._token
        left = self._seconds_left()
        if token is not None and left > 0:
            # The end by the wall clock, which may have jumped after the token arrived. JSON has no infinity.
            ends_at = self._clock() + min(left, ENDLESS_SECONDS)
            return ActiveUpstreamToken(self.name, self._generation, token.token, ends_at)
        return UpstreamTokenUnavailable(
            self.name, self._problem or "no upstream token yet", self._retry_after
        )

    def rejected(self, generation: int) -> None:
        """Process a worker's report that the upstream refused the token with the number `generation`."""
        now = time.monotonic()
        if generation != self._generation or now - self._rejected_at < self._rejection_pause:
            return
        self._rejected_at = now
        log.warning("the upstream refused the %s; fetching a new token", self._what)
        self._rejected.set()

    def check(self) -> Check:
        if isinstance(self.current(), UpstreamTokenUnavailable):
            return Check("failed", self._problem or "no upstream token yet")
        return Check("degraded", self._problem) if self._problem else Check("ok")

    async def run(self) -> None:
        while True:
            if time.monotonic() >= self._refresh_at or self._rejected.is_set() or self._ended_early():
                refused = self._rejected.is_set()
                self._rejected.clear()
                await self._refresh(refused=refused)
                self._tried.set()
            if abs(self._clock() - time.monotonic() - self._offset) > _JUMP_SECONDS:
                self._tell()  # a worker may have read the token's end after the jump
            left = self._seconds_left()
            pause = min(self._refresh_at - time.monotonic(), left if left > 0 else math.inf, _LONGEST_SLEEP)
            await sleep_until_set(self._rejected, max(0.01, pause))
            if left > 0 and self._seconds_left() <= 0:
                log.error("the %s has expired, and no newer token is available", self._what)
                self._tell()

    def _seconds_left(self) -> float:
        """Return the seconds until the token expires: the smaller value of wall clock and monotonic clock."""
        if self._token is None:
            return 0.0
        return min(self._token.expires_at - self._clock(), self._ends_at - time.monotonic())

    def _tell(self) -> None:
        self._offset = self._clock() - time.monotonic()
        self._announce(self.current())

    def _ended_early(self) -> bool:
        """Return True if the token expired early, because the clock was set forward or the machine slept."""
        return self._token is not None and not self._failures and self._seconds_left() <= 0

    async def _refresh(self, *, refused: bool) -> None:
        try:
            token = await self._provider.fetch(refused=refused)
            if token.expires_at <= self._clock():
                raise CredentialError("the fetched upstream token has already expired")
        except CredentialError as error:
            self._failed(error)
            return
        except Exception as error:  # a fault costs only this token; the rest of the agent continues
            self._failed(CredentialError(unforeseen(error)))
            return
        if self._problem is not None:
            log.info("fetched the %s after earlier failures", self._what)
        now = self._clock()
        self._failures, self._problem = 0, None
        self._token = token
        # The generation also grows across restarts of the agent, so that workers can recognise an outdated
        # message. It does not depend on the wall clock: the kernel's monotonic clock is the same for every
        # process.
        self._generation = max(self._generation + 1, int(time.monotonic() * 1000))
        life = token.expires_at - now
        self._ends_at = time.monotonic() + life
        self._refresh_at = time.monotonic() + _refresh_after(life)
        self._tell()

    def _failed(self, error: CredentialError) -> None:
        pause = max(backoff(self._failures, _LONGEST_BACKOFF, self._first_backoff), error.retry_after)
        self._failures += 1
        self._problem = str(error)
        self._retry_after = max(1.0, pause)
        self._refresh_at = time.monotonic() + pause
        log.error("cannot fetch a new %s: %s", self._what, error)
        if self._seconds_left() <= 0:
            self._tell()


def _described(name: str) -> str:
    return "upstream token" if name == DEFAULT_IDENTITY else f"upstream token of identity {name}"


def _refresh_after(life: float) -> float:
    """Return the seconds from now to the refresh of a token with the lifetime `life`."""
    if math.isinf(life):
        return math.inf
    ahead = max(life * (1 - _REFRESH_AT), min(_REFRESH_AHEAD, life / 2))
    # Jitter, so that proxies that started together do not send their requests at the same moment.
    return life - ahead * random.uniform(1.0, 1.2)  # noqa: S311 - not a secret
