"""State of each proxy: its reports, values that the control plane measured, and the proxy's rules."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

import msgspec

from controlplane.curves import Window, rates, restarts, windows
from controlplane.fleet_health import (
    Assessment,
    Facts,
    Presence,
    assess,
    facts_of,
    health_bounds,
    presence_of,
)
from controlplane.reports import Heartbeat, Load, Metrics
from controlplane.store.interface import (
    LatestReports,
    Losses,
    Proxy,
    RateLimits,
    Report,
    Ruleset,
    RulesetVersion,
    SequenceState,
    Store,
)
from controlplane.store.pages import HealthBounds, ListQuery, all_rows

Enforcement = Literal["enforced", "behind", "missing", "unknown"]
"""State of one ruleset at one proxy.

enforced: the active version or a later one. behind: an earlier version. missing: no version. unknown: the
proxy does not report it, because it is of an older release or its workers are starting.
"""

GAPS_SHOWN: Final = 100
HISTORY: Final = 200  # reports that the store keeps of each proxy
SPARK_WINDOWS: Final = 40
_AT_ONCE: Final = 25  # proxies to assess before other requests are served

_heartbeat = msgspec.json.Decoder(Heartbeat).decode
_metrics = msgspec.json.Decoder(Metrics).decode
_load = msgspec.json.Decoder(Load).decode


@dataclass(frozen=True, slots=True)
class Enforced:
    """State of one ruleset at one proxy: the version that the proxy enforces."""

    ruleset: Ruleset  # ruleset with its active version
    state: Enforcement
    version: int | None  # version that the proxy enforces
    behind_since_ms: int | None = None  # time when the next version after it became active


@dataclass(frozen=True, slots=True)
class Heard:
    """Heartbeat of a proxy, as the control plane received it."""

    received_ms: int
    skew_ms: int | None
    said: Heartbeat
    body: str


@dataclass(frozen=True, slots=True)
class ProxyState:
    proxy: Proxy
    heard: Heard | None
    rules: tuple[Enforced, ...]
    assessment: Assessment
    rates: tuple[float, ...]  # requests per second of its newest windows, oldest first
    losses: Losses


@dataclass(frozen=True, slots=True)
class LastWord:
    """Newest heartbeat of a proxy, without other state of the proxy."""

    proxy: Proxy
    heard: Heard | None
    presence: Presence


@dataclass(frozen=True, slots=True)
class ProxyHistory:
    """Data that the page of one proxy shows in addition to the state of the proxy."""

    heartbeats: tuple[Heard, ...]  # newest first
    windows: tuple[Window, ...]  # oldest first
    restarts_ms: tuple[int, ...]
    sequences: tuple[SequenceState, ...]


class Fleet:
    def __init__(self, store: Store, *, interval_seconds: int, limits: RateLimits) -> None:
        self._store = store
        self._limits = limits
        self._interval_ms = interval_seconds * 1000

    async def states(
        self, now_ms: int, proxies: Sequence[Proxy], *, windows: int = SPARK_WINDOWS
    ) -> list[ProxyState]:
        active = await self._active_rulesets({org_id for proxy in proxies for org_id in proxy.org_ids})
        ids = [proxy.proxy_id for proxy in proxies]
        latest = await self._store.latest_reports(ids, windows)
        losses = await self._store.losses(ids)
        versions: dict[str, list[RulesetVersion]] = {}
        states = []
        for at, proxy in enumerate(proxies):
            if at % _AT_ONCE == 0:
                await asyncio.sleep(0)
            served = [ruleset for org_id in proxy.org_ids for ruleset in active.get(org_id, ())]
            own = sorted(served, key=lambda each: (each.name, each.org_id))
            reports = latest[proxy.proxy_id]
            heard = None if reports.heartbeat is None else _heard(reports.heartbeat)
            rules = tuple(await self._rules(proxy, heard, own, versions))
            states.append(self._state(now_ms, proxy, heard, rules, reports, losses[proxy.proxy_id]))
        return states

    async def last_words(self, now_ms: int, proxies: Sequence[Proxy]) -> list[LastWord]:
        latest = await self._store.latest_reports([proxy.proxy_id for proxy in proxies], 0)
        words = []
        for proxy in proxies:
            report = latest[proxy.proxy_id].heartbeat
            heard = None if report is None else _heard(report)
            words.append(LastWord(proxy, heard, presence_of(now_ms, self._facts(proxy, heard))))
        return words

    async def _active_rulesets(self, org_ids: set[str]) -> dict[str, list[Ruleset]]:
        """Return the rulesets of each organisation, by name."""
        found: dict[str, list[Ruleset]] = {}
        for each in await all_rows(self._store.list_rulesets, ListQuery(org_ids=frozenset(org_ids))):
            found.setdefault(each.ruleset.org_id, []).append(each.ruleset)
        return found

    def bounds(self, now_ms: int) -> HealthBounds:
        """Return the time bounds by which the store assigns proxies to the states of health."""
        return health_bounds(now_ms, self._interval_ms)

    async def heartbeats(self, proxy_id: str, most: int) -> list[Heard]:
        """Return the newest heartbeats of a proxy, newest first; `most` is their maximum number."""
        return [_heard(report) for report in await self._store.heartbeats(proxy_id, most)]

    async def history(self, proxy_id: str) -> ProxyHistory:
        heard = await self.heartbeats(proxy_id, HISTORY)
        reported = await self._store.metrics(proxy_id, HISTORY)
        return ProxyHistory(
            heartbeats=tuple(heard),
            windows=tuple(windows(_metrics(report.body) for report in reported)),
            restarts_ms=tuple(restarts([(each.received_ms, each.said) for each in reversed(heard)])),
            sequences=tuple(await self._store.sequences(proxy_id, GAPS_SHOWN)),
        )

    def _state(
        self,
        now_ms: int,
        proxy: Proxy,
        heard: Heard | None,
        rules: tuple[Enforced, ...],
        latest: LatestReports,
        losses: Losses,
    ) -> ProxyState:
        facts = self._facts(proxy, heard)
        behind = (now_ms - each.behind_since_ms for each in rules if each.behind_since_ms is not None)
        facts = replace(facts, behind_ms=max(behind, default=0), reused_ms=latest.reused_ms, losses=losses)
        recent = tuple(rates(_load(report.body) for report in latest.metrics))
        return ProxyState(proxy, heard, rules, assess(now_ms, facts), recent, losses)

    def _facts(self, proxy: Proxy, heard: Heard | None) -> Facts:
        """Return the facts about a proxy that its last heartbeat reported."""
        if heard is None:
            return Facts(self._interval_ms)
        facts = facts_of(self._interval_ms, heard.received_ms, heard.skew_ms, heard.said)
        return replace(facts, last_seen_ms=proxy.last_seen_ms)

    async def _rules(
        self,
        proxy: Proxy,
        heard: Heard | None,
        own: Iterable[Ruleset],
        versions: dict[str, list[RulesetVersion]],
    ) -> list[Enforced]:
        said = heard.said.rulesets if heard is not None else None
        is_current = False
        if heard is not None and said is None and heard.said.sync_version is not None:
            # A proxy of an older release reports no versions of rulesets. Its sync version may still be the
            # current one.
            is_current = heard.said.sync_version == await self._store.sync_version(
                proxy.proxy_id, self._limits
            )
        found = [_enforced(each, said, is_current=is_current) for each in own]
        return [await self._dated(each, versions) if each.state == "behind" else each for each in found]

    async def _dated(self, behind: Enforced, versions: dict[str, list[RulesetVersion]]) -> Enforced:
        ruleset_id = behind.ruleset.ruleset_id
        if ruleset_id not in versions:
            versions[ruleset_id] = await self._store.ruleset_versions(ruleset_id)
        later = [each.created_ms for each in versions[ruleset_id] if each.version > (behind.version or 0)]
        return replace(behind, behind_since_ms=min(later, default=None))


def _heard(report: Report) -> Heard:
    return Heard(report.received_ms, report.skew_ms, _heartbeat(report.body), report.body)


def _enforced(ruleset: Ruleset, said: Mapping[str, int] | None, *, is_current: bool) -> Enforced:
    if said is None:
        version = ruleset.version if is_current else None
        return Enforced(ruleset, "enforced" if is_current else "unknown", version)
    version = said.get(ruleset.ruleset_id)
    if version is None:
        return Enforced(ruleset, "missing", None)
    return Enforced(ruleset, "enforced" if version >= ruleset.version else "behind", version)
