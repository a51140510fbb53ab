"""Keeps a valid upstream token of one identity for all workers: ahead of its end, one fetch at a time, never
past its end."""

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

_REFRESH_AT: Final = 0.8  # of its life a token is replaced, or this long before its end if that comes first:
_REFRESH_AHEAD: Final = 300.0
_LONGEST_BACKOFF: Final = 30.0
_REJECTION_PAUSE: Final = 10.0  # an upstream that refuses every token must not become a storm of fetches
_JUMP_SECONDS: Final = 1.0
ENDLESS_SECONDS: Final = 1e9  # what a static token is told to be good for, or more
_LONGEST_SLEEP: Final = 5.0  # wall clocks jump; a token's end is looked at again at least this often


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
        # Waits are measured on the monotonic clock: a wall clock that is set back must not put off a refresh.
        self._refresh_at = -math.inf
        self._ends_at = -math.inf
        self._failures = 0
        self._problem: str | None = None
        self._retry_after = first_backoff
        self._offset = clock() - time.monotonic()  # when the workers were last told
        self._rejected = asyncio.Event()
        self._tried = asyncio.Event()
        self._rejected_at = -math.inf

    @property
    def tried(self) -> bool:
        """Whether an attempt has ended, so that `current` is more than a guess."""
        return self._tried.is_set()

    async def first_attempt(self) -> None:
        """Wait until an attempt has ended."""
        await self._tried.wait()

    def current(self) -> ActiveUpstreamToken | UpstreamTokenUnavailable:
        """What a worker is to be told now; a token past its end is never handed out."""
        token = self._token
        left = self._seconds_left()
        if token is not None and left > 0:
            # By the clock of now, which may have jumped since the token came. JSON has no infinity.
            ends_at = self._clock() + min(left, ENDLESS_SECONDS)
            return ActiveUpstreamToken(self.name, self._generation, token.token, ends_at)
        return UpstreamTokenUnavailable(
            self.name, self._problem or "no upstream token yet", self._retry_after
        )

    def rejected(self, generation: int) -> None:
        """A worker's word that the upstream refused the token of that generation."""
        now = time.monotonic()
        if generation != self._generation or now - self._rejected_at < self._rejection_pause:
            return
        self._rejected_at = now
        log.warning("the upstream refused the %s; fetching another", self._what)
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
                log.error("the %s has ended and there is no other", self._what)
                self._tell()

    def _seconds_left(self) -> float:
        """Until the token's end by either clock, whichever is nearer."""
        if self._token is None:
            return 0.0
        return min(self._token.expires_at - self._clock(), self._ends_at - time.monotonic())

    def _tell(self) -> None:
        self._offset = self._clock() - time.monotonic()
        self._announce(self.current())

    def _ended_early(self) -> bool:
        """Whether the token ended before its refresh: the clock was set forward, or the machine slept."""
        return self._token is not None and not self._failures and self._seconds_left() <= 0

    async def _refresh(self, *, refused: bool) -> None:
        try:
            token = await self._provider.fetch(refused=refused)
            if token.expires_at <= self._clock():
                raise CredentialError("the token that was fetched has ended already")
        except CredentialError as error:
            self._failed(error)
            return
        except Exception as error:  # costs this token, and the rest of the agent goes on
            self._failed(CredentialError(unforeseen(error)))
            return
        if self._problem is not None:
            log.info("fetched again: the %s", self._what)
        now = self._clock()
        self._failures, self._problem = 0, None
        self._token = token
        # Grows across restarts of the agent too, so that workers can tell a stale message, and whatever
        # becomes of the wall clock: the kernel's monotonic one is the same for every process.
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
        log.error("no new %s: %s", self._what, error)
        if self._seconds_left() <= 0:
            self._tell()


def _described(name: str) -> str:
    return "upstream token" if name == DEFAULT_IDENTITY else f"upstream token of identity {name}"


def _refresh_after(life: float) -> float:
    """Seconds from now to the refresh of a token that has this long to live."""
    if math.isinf(life):
        return math.inf
    ahead = max(life * (1 - _REFRESH_AT), min(_REFRESH_AHEAD, life / 2))
    # Jitter, so that a fleet that started at one instant does not ask at one instant.
    return life - ahead * random.uniform(1.0, 1.2)  # noqa: S311 - not a secret
