"""What goes when its organisation's tier ends: few rows at a time, with pauses, so that nothing waits."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, Protocol

from controlplane.clock import Clock
from controlplane.store.interface import RETENTION_MS, SESSION_IDLE_MS, SESSION_MS, Org, Store

_ROWS_AT_ONCE: Final = 500
_INDEXED_AT_ONCE: Final = 20_000  # no acknowledgement waits for an index
_PAUSE_SECONDS: Final = 0.02
# Who changed a rule is asked for as long as there are events that the rule evaluated.
_RECORD_MS: Final = max(RETENTION_MS.values())

_log = logging.getLogger(__name__)


class PurgeableIndex(Protocol):
    async def purge(self, org_id: str, before_ms: int, limit: int, newest: int | None = None) -> int: ...


class WitnessedTime:
    """The newest time that a proxy's correctly signed timestamp has agreed with.

    A host whose clock is a year ahead would purge a year too much. It doesn't, because time passes here only
    when somebody else's clock says the same.
    """

    def __init__(self) -> None:
        self.ms: int | None = None

    def agree(self, now_ms: int) -> None:
        self.ms = now_ms


class Retention:
    def __init__(
        self,
        store: Store,
        index: PurgeableIndex,
        clock: Clock,
        witnessed: WitnessedTime,
        interval_seconds: float,
    ) -> None:
        self._store = store
        self._index = index
        self._clock = clock
        self._witnessed = witnessed
        self._interval_seconds = interval_seconds
        self._has_time = False  # a proxy has agreed with our time
        self.problem: str | None = None  # why the last pass failed

    async def run(self) -> None:
        while True:
            try:
                purged = await self.purge()
                if purged:
                    _log.info("retention: %d events purged", purged)
            except Exception as error:
                self.problem = str(error) or type(error).__name__
                _log.exception("retention: not purged, will be tried again")
            await asyncio.sleep(self._interval_seconds if self._has_time else min(60, self._interval_seconds))

    async def purge(self) -> int:
        """Purge each organisation, even if that fails for others. Return the number of events that went."""
        await self._purge_sessions()
        now_ms = await self._witnessed_ms()
        self._has_time = now_ms is not None
        if now_ms is None:
            return 0
        purged, problem = 0, None
        of_index = []
        for org in await self._store.orgs():
            before_ms = now_ms - RETENTION_MS[org.retention]
            try:
                await self._correct_receipts(org, now_ms)
                newest = await self._store.received_before(org.org_id, before_ms)
                of_index.append(partial(self._index.purge, org.org_id, before_ms, newest=newest))
                purged += await _in_steps(partial(self._store.purge_events, org.org_id, before_ms))
            except Exception as error:
                problem = f"{org.name}: {str(error) or type(error).__name__}"
                _log.exception("retention: %s: not purged, will be tried again", org.name)
        await _in_steps(partial(self._store.purge_batches, min(now_ms, self._clock.steady_ms())))
        await _in_steps(partial(self._store.purge_record, now_ms - _RECORD_MS))
        for purge in of_index:  # last, because an index that is away must not keep anything in the store
            await _in_steps(purge, _INDEXED_AT_ONCE)
        self.problem = problem
        return purged

    async def _correct_receipts(self, org: Org, now_ms: int) -> None:
        if corrected := await self._store.correct_receipts(org.org_id, now_ms):
            _log.warning(
                "%s: %d blocks of events were received at a time that is still to come: counted as"
                " received now", org.name, corrected,
            )  # fmt: skip

    async def _witnessed_ms(self) -> int | None:
        """Return the newest time that a proxy of any control plane has agreed with."""
        noted = [each.instance.witnessed_ms for each in await self._store.running_instances()]
        return max((ms for ms in (self._witnessed.ms, *noted) if ms is not None), default=None)

    async def _purge_sessions(self) -> None:
        """Those that ended; nobody's clock need agree, since they are refused already."""
        now_ms = self._clock.steady_ms()
        before = now_ms - SESSION_MS, now_ms - SESSION_IDLE_MS
        await _in_steps(partial(self._store.purge_sessions, *before))


async def _in_steps(purge: Callable[[int], Awaitable[int]], at_once: int = _ROWS_AT_ONCE) -> int:
    purged = 0
    while True:
        rows = await purge(at_once)
        purged += rows
        if rows < at_once:
            return purged
        await asyncio.sleep(_PAUSE_SECONDS)
