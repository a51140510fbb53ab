"""Deletes data whose retention has ended, a few rows at a time, so that other writes do not wait."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Final, Protocol

from controlplane.clock import Clock
from controlplane.sinks.settings import AnySink
from controlplane.store.interface import RETENTION_MS, SESSION_IDLE_MS, SESSION_MS, Org, Store
from controlplane.usage import KEPT_DAYS, day_of

_ROWS_AT_ONCE: Final = 500
_INDEXED_AT_ONCE: Final = 20_000  # rows in the index; no acknowledgement waits for them
_PAUSE_SECONDS: Final = 0.02
_DAY_MS: Final = 86_400_000
_ALONE: Final = (
    "events are kept for too long, because only one proxy has agreed with this host's clock for a day: check"
    " this clock, and disable or delete proxies that no longer run"
)
# The operator log stays as long as events may, to show who changed the rules that evaluated them.
_RECORD_MS: Final = max(RETENTION_MS.values())

_log = logging.getLogger(__name__)


class PurgeableIndex(Protocol):
    async def purge(self, org_id: str, before_ms: int, limit: int, newest: int | None = None) -> int: ...


class WitnessedTime:
    """Newest time at which this host's clock agreed with a correctly signed timestamp of a proxy.

    If the clock of a host were a year ahead, the host would delete events a year too early. `WitnessedTime`
    prevents deletions by a fast clock: the time in `WitnessedTime` advances only when a proxy's clock agrees
    with the host's clock.
    """

    def __init__(self) -> None:
        self._by_proxy: dict[str, int] = {}

    @property
    def ms(self) -> int | None:
        return max(self._by_proxy.values(), default=None)

    def agree(self, proxy_id: str, now_ms: int) -> None:
        self._by_proxy[proxy_id] = now_ms

    def of_hands(self, hands: Mapping[str, str]) -> list[int]:
        """Return the newest time that the proxies of each holder of keys have confirmed, latest time first.

        `hands` gives the holder of the keys of each proxy. Proxies that enrolled with the same enrolment
        token have the same holder.
        """
        newest: dict[str, int] = {}
        for proxy_id in self._by_proxy.keys() & hands.keys():
            hand, ms = hands[proxy_id], self._by_proxy[proxy_id]
            newest[hand] = max(ms, newest.get(hand, ms))
        return sorted(newest.values(), reverse=True)


class Retention:
    def __init__(
        self,
        store: Store,
        index: PurgeableIndex,
        clock: Clock,
        witnessed: WitnessedTime,
        interval_seconds: float,
        sinks: Sequence[AnySink] = (),
    ) -> None:
        self._store = store
        self._index = index
        self._clock = clock
        self._witnessed = witnessed
        self._interval_seconds = interval_seconds
        self._sinks = sinks
        self._began_ms = clock.wall_ms()
        self._has_time = False  # True: proxies have agreed with the time of this host
        self.problem: str | None = None  # why the last run failed

    async def run(self) -> None:
        while True:
            try:
                purged = await self.purge()
                if purged:
                    _log.info("retention: purged %d events", purged)
            except Exception as error:
                self.problem = str(error) or type(error).__name__
                _log.exception("retention: could not purge events; will try again")
            await asyncio.sleep(self._interval_seconds if self._has_time else min(60, self._interval_seconds))

    async def purge(self) -> int:
        """Purge expired events of each organisation, even if the purge of another organisation fails.

        Return the number of purged events.
        """
        await self._purge_sessions()
        now_ms = await agreed_time(self._store, self._witnessed, self._clock)
        self._has_time = now_ms is not None
        problem = self._lag(now_ms)
        if now_ms is None:
            self.problem = problem
            return 0
        purged = 0
        of_index = []
        dead = [each.as_org() for each in await self._store.tombstones_of("org")]
        for org in [*await self._store.orgs(), *dead]:
            before_ms = now_ms - RETENTION_MS[org.retention]
            try:
                before_ms = await self._held_before(org, before_ms)
                await self._correct_receipts(org, now_ms)
                newest = await self._store.received_before(org.org_id, before_ms)
                of_index.append(partial(self._index.purge, org.org_id, before_ms, newest=newest))
                purged += await _in_steps(partial(self._store.purge_events, org.org_id, before_ms))
            except Exception as error:
                problem = f"{org.name}: {str(error) or type(error).__name__}"
                _log.exception(
                    "retention: could not purge the events of organisation %s; will try again", org.name
                )
        await _in_steps(partial(self._store.purge_batches, min(now_ms, self._clock.steady_ms())))
        await _in_steps(partial(self._store.purge_record, now_ms - _RECORD_MS))
        await self._store.purge_usage(day_of(now_ms) - KEPT_DAYS)
        await self._store.purge_tombstones(now_ms, _RECORD_MS)
        for purge in of_index:  # last, so that an unreachable index does not keep events in the store
            await _in_steps(purge, _INDEXED_AT_ONCE)
        self.problem = problem
        return purged

    async def _held_before(self, org: Org, before_ms: int) -> int:
        """Return the latest time, at most `before_ms`, before which all sinks have the organisation's events.

        The setting `HoldDays` of a sink limits how long the sink delays the deletion of undelivered events.
        """
        held_ms = before_ms
        states = await self._store.sink_states() if self._sinks else {}
        for sink in self._sinks:
            state, names = states.get(sink.name), sink.organisations
            if state is None or (names and org.org_id not in names and org.name not in names):
                continue
            lacking_ms = await self._store.oldest_lacking(org.org_id, state.position, before_ms)
            if lacking_ms is None:
                continue
            least_ms = before_ms - sink.hold_days * _DAY_MS
            if lacking_ms < least_ms:
                _log.error(
                    "retention: organisation %s: purging events that were not delivered to sink %s: these "
                    "events are %d days past their retention", org.name, sink.name, sink.hold_days,
                )  # fmt: skip
            held_ms = min(held_ms, max(lacking_ms, least_ms))
        return held_ms

    def _lag(self, agreed_ms: int | None) -> str | None:
        """Return a warning that events are kept too long, if only one proxy confirms this host's clock.

        The control plane deletes events by a time that usually two proxies must have confirmed
        (`agreed_time`).
        """
        newest_ms = self._witnessed.ms
        since_ms = self._began_ms if agreed_ms is None else agreed_ms
        if self._store.is_shared or newest_ms is None or newest_ms - since_ms < _DAY_MS:
            return None
        _log.warning("retention: %s", _ALONE)
        return _ALONE

    async def _correct_receipts(self, org: Org, now_ms: int) -> None:
        if corrected := await self._store.correct_receipts(org.org_id, now_ms):
            _log.warning(
                "organisation %s: %d blocks of events have a receipt time in the future, and count as"
                " received now", org.name, corrected,
            )  # fmt: skip

    async def _purge_sessions(self) -> None:
        """Delete sign-in sessions that have ended.

        Ended sessions are deleted without waiting for a proxy that confirms the host's time. The control
        plane already refuses these sessions.
        """
        now_ms = self._clock.steady_ms()
        before = now_ms - SESSION_MS, now_ms - SESSION_IDLE_MS
        await _in_steps(partial(self._store.purge_sessions, *before))


async def agreed_time(store: Store, witnessed: WitnessedTime, clock: Clock) -> int | None:
    """Return the newest time that this host's clock has reached and two other clocks have confirmed.

    The clocks of all proxies that enrolled with the same enrolment token count as one clock. So a stolen key,
    or one proxy on a host with a wrong clock, can't advance the returned time alone. If several control
    planes share a database, the clock of the database is the second clock that must agree. If the clocks of
    all proxies together count as one clock, the confirmation of this clock is enough.
    """
    if store.is_shared:
        noted = [each.instance.witnessed_ms for each in await store.running_instances()]
        newest = [ms for ms in (witnessed.ms, *noted) if ms is not None]
        return min(max(newest), clock.wall_ms(), clock.steady_ms()) if newest else None
    hands = await store.hands_of_proxies()
    agreed = witnessed.of_hands(hands)
    needed = min(2, len(set(hands.values())))
    return min(agreed[needed - 1], clock.wall_ms()) if len(agreed) >= needed > 0 else None


async def _in_steps(purge: Callable[[int], Awaitable[int]], at_once: int = _ROWS_AT_ONCE) -> int:
    purged = 0
    while True:
        rows = await purge(at_once)
        purged += rows
        if rows < at_once:
            return purged
        await asyncio.sleep(_PAUSE_SECONDS)
