"""Delivery attempts to a sink or webhook: the time of the next attempt, and the last attempt's problem."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable
from typing import Final, NoReturn

from controlplane.sinks.http import hidden
from controlplane.sinks.interface import SinkRefused, SinkUnavailable
from controlplane.sinks.settings import AnyTable, WebhookSettings, secrets_of_sink
from controlplane.store.sink_interface import SinkStore

POLL_SECONDS: Final = 5.0
FIRST_PAUSE_SECONDS: Final = 1.0
LONGEST_PAUSE_SECONDS: Final = 60.0
LONGEST_RETRY_AFTER: Final = 3600.0  # longest delay in seconds; a sink that requests more is tried sooner
LONGEST_REASON: Final = 500  # largest number of characters of a reason

_log = logging.getLogger(__name__)


class Attempts:
    """The delivery attempts of one sink or webhook.

    The store keeps the current problem of the sink or webhook.
    """

    def __init__(
        self,
        settings: AnyTable,
        store: SinkStore,
        *,
        poll_seconds: float = POLL_SECONDS,
        linger_seconds: float = 0.0,
        first_pause_seconds: float = FIRST_PAUSE_SECONDS,
        longest_pause_seconds: float = LONGEST_PAUSE_SECONDS,
    ) -> None:
        self._name = settings.name
        self.label = f"{'webhook' if isinstance(settings, WebhookSettings) else 'sink'} {settings.name}"
        self._store = store
        self._poll_seconds = poll_seconds
        self._linger_seconds = linger_seconds
        self._first_pause_seconds = first_pause_seconds
        self._longest_pause_seconds = longest_pause_seconds
        self._secrets = secrets_of_sink(settings)
        self._woken = asyncio.Event()
        self.problem: str | None = None  # reason of the last failure, which the store has too

    def wake(self) -> None:
        """Make the next delivery attempt soon, unless the last attempt failed."""
        self._woken.set()

    async def repeat(self, attempt: Callable[[], Awaitable[None]]) -> NoReturn:
        """Make delivery attempts one after another until the task is cancelled."""
        pause = self._first_pause_seconds
        while True:
            self._woken.clear()
            try:
                await attempt()
            except Exception as error:  # the store keeps all events for the next attempt
                asked = getattr(error, "retry_after", None) or 0.0
                jittered = pause * random.uniform(0.5, 1.0)  # noqa: S311 - jitter, no secret
                wait = max(jittered, min(asked, LONGEST_RETRY_AFTER))
                await self.failed(error, wait)
                await asyncio.sleep(wait)
                pause = min(pause * 2, self._longest_pause_seconds)
            else:
                pause = self._first_pause_seconds
                await self._wait()

    async def _wait(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._poll_seconds):
                await self._woken.wait()
        await asyncio.sleep(self._linger_seconds)

    async def failed(self, error: Exception, wait: float) -> None:
        """Log why a delivery attempt delivered nothing, and store the reason.

        The next delivery attempt follows after `wait` seconds.
        """
        problem = self.masked(str(error) or type(error).__name__)
        is_expected = isinstance(error, SinkUnavailable | SinkRefused | OSError)
        _log.warning(
            "%s: delivered nothing, next attempt in %.1f s: %s",
            self.label, wait, problem, exc_info=None if is_expected else error,
        )  # fmt: skip
        if problem != self.problem:
            with contextlib.suppress(Exception):  # the failure may be that of the store
                await self._store.note_sink_problem(self._name, problem)
                self.problem = problem

    async def recovered(self) -> None:
        """Clear the stored problem of the sink or webhook, if a problem is stored."""
        if self.problem is not None:
            _log.info("%s: delivers again", self.label)
            await self._store.note_sink_problem(self._name, None)
            self.problem = None

    def masked(self, words: str) -> str:
        """Return text that the receiver of the events sent, with the secrets of the settings removed."""
        return masked(words, self._secrets)


def masked(words: str, secrets: set[str]) -> str:
    """Return text from a sink on one line, shortened, and with the secrets of the settings removed."""
    words = "".join(each if each.isprintable() else " " for each in hidden(words, secrets))
    return words if len(words) <= LONGEST_REASON else words[: LONGEST_REASON - 1] + "…"
