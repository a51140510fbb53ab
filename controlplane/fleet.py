"""Each proxy as it is known now: what it said, what was measured of it, which rules it enforces."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

import msgspec

from controlplane.curves import Window, restarts, windows
from controlplane.fleet_health import Assessment, Facts, assess
from controlplane.reports import Heartbeat, Metrics
from controlplane.store.interface import (
    LatestReports,
    Losses,
    Proxy,
    RateLimits,
    Report,
    Ruleset,
    SequenceState,
    Store,
)

Enforcement = Literal["enforced", "behind", "missing", "unknown"]
"""Of one ruleset by one proxy: the active version or a later one, an earlier one, none of it, or it doesn't
say (an older proxy, or one whose workers are only starting)."""

GAPS_SHOWN: Final = 100
HISTORY: Final = 200  # reports that the store keeps of each proxy
SPARK_WINDOWS: Final = 40

_heartbeat = msgspec.json.Decoder(Heartbeat).decode
_metrics = msgspec.json.Decoder(Metrics).decode


@dataclass(frozen=True, slots=True)
class Enforced:
    """One ruleset at one proxy."""

    ruleset: Ruleset  # with its active version
    state: Enforcement
    version: int | None  # that the proxy enforces
    behind_since_ms: int | None = None  # when the version after that one became active


@dataclass(frozen=True, slots=True)
class Heard:
    """A heartbeat as it came."""

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
    recent: tuple[Window, ...]  # of its metrics, oldest first
    losses: Losses


@dataclass(frozen=True, slots=True)
class ProxyHistory:
    """What one proxy's page needs beyond its state."""

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
        in_force = await self._store.rulesets(None)
        ids = [proxy.proxy_id for proxy in proxies]
        latest = await self._store.latest_reports(ids, windows)
        losses = await self._store.losses(ids)
        return [
            await self._state(now_ms, each, in_force, latest[each.proxy_id], losses[each.proxy_id])
            for each in proxies
        ]

    async def history(self, proxy_id: str) -> ProxyHistory:
        heard = [_heard(report) for report in await self._store.heartbeats(proxy_id, HISTORY)]
        reported = await self._store.metrics(proxy_id, HISTORY)
        return ProxyHistory(
            heartbeats=tuple(heard),
            windows=tuple(windows(_metrics(report.body) for report in reported)),
            restarts_ms=tuple(restarts([(each.received_ms, each.said) for each in reversed(heard)])),
            sequences=tuple(await self._store.sequences(proxy_id, GAPS_SHOWN)),
        )

    async def _state(
        self,
        now_ms: int,
        proxy: Proxy,
        in_force: Iterable[Ruleset],
        latest: LatestReports,
        losses: Losses,
    ) -> ProxyState:
        heard = None if latest.heartbeat is None else _heard(latest.heartbeat)
        own = [each for each in in_force if each.org_id in proxy.org_ids]
        rules = tuple(await self._rules(proxy, heard, own))
        recent = tuple(windows(_metrics(report.body) for report in latest.metrics))
        facts = self._facts(now_ms, heard, rules, latest.reused_ms)
        assessment = assess(now_ms, replace(facts, losses=losses))
        return ProxyState(proxy, heard, rules, assessment, recent, losses)

    async def _rules(self, proxy: Proxy, heard: Heard | None, own: Iterable[Ruleset]) -> list[Enforced]:
        said = heard.said.rulesets if heard is not None else None
        is_current = False
        if heard is not None and said is None and heard.said.sync_version is not None:
            # An older proxy names no rulesets; but what it holds may be all that there is.
            is_current = heard.said.sync_version == await self._store.sync_version(
                proxy.proxy_id, self._limits
            )
        found = [_enforced(each, said, is_current=is_current) for each in own]
        return [await self._dated(each) if each.state == "behind" else each for each in found]

    async def _dated(self, behind: Enforced) -> Enforced:
        versions = await self._store.ruleset_versions(behind.ruleset.ruleset_id)
        later = [each.created_ms for each in versions if each.version > (behind.version or 0)]
        return replace(behind, behind_since_ms=min(later, default=None))

    def _facts(
        self, now_ms: int, heard: Heard | None, rules: tuple[Enforced, ...], reused_ms: int | None
    ) -> Facts:
        if heard is None:
            return Facts(self._interval_ms, reused_ms=reused_ms)
        said = heard.said
        return Facts(
            self._interval_ms,
            heard_ms=heard.received_ms,
            checks=said.checks or {},
            sync_age_ms=None if said.sync_age_seconds is None else round(said.sync_age_seconds * 1000),
            skew_ms=heard.skew_ms,
            oldest_unsent_ms=round((said.oldest_pending_seconds or 0) * 1000),
            reused_ms=reused_ms,
            behind_ms=max(
                (now_ms - each.behind_since_ms for each in rules if each.behind_since_ms is not None),
                default=0,
            ),
        )


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
