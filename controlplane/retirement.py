"""Retirement of a proxy that was silent for the time that its enrolment token gives."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from controlplane.clock import Clock
from controlplane.retention import WitnessedTime, agreed_time
from controlplane.store.interface import Store

# The first run waits for this interval too. After an outage of the control plane, running proxies then have
# sent a request.
_INTERVAL_SECONDS: Final = 3600.0

_log = logging.getLogger(__name__)


class Retirement:
    def __init__(self, store: Store, clock: Clock, witnessed: WitnessedTime) -> None:
        self._store = store
        self._clock = clock
        self._witnessed = witnessed

    async def run(self) -> None:
        while True:
            await asyncio.sleep(_INTERVAL_SECONDS)
            try:
                await self.retire()
            except Exception:
                _log.exception("retirement: could not retire silent proxies; will try again")

    async def retire(self) -> int:
        """Retire proxies that were silent too long, according to several clocks that agree on the time."""
        now_ms = await agreed_time(self._store, self._witnessed, self._clock)
        retired = 0
        while now_ms is not None and (count := await self._store.retire_silent(now_ms)):
            retired += count
        if retired:
            _log.info(
                "retirement: retired %d proxies that were silent for the time in their enrolment token",
                retired,
            )
        return retired
