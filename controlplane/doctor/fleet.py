"""Check the state of the proxies by the heartbeats that they sent.

Check this machine's clock against the clocks of the proxies.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

import msgspec

from controlplane.doctor.store_rows import Unreadable, store_rows
from controlplane.fleet_health import Assessment, Facts, assess, direction, duration
from controlplane.reports import Heartbeat
from controlplane.settings import Settings
from controlplane.store.fleet_tables import losses_of_proxies
from controlplane.store.interface import Losses, StoreError
from proxy.wire.figures import counted
from proxy.wire.finding import Finding

_NOTICEABLE_MS: Final = 10_000
_RECENT_INTERVALS: Final = 10
_MOST_NAMED: Final = 5
_NEWEST: Final = (
    "SELECT proxy_id, name, received_ms, body, skew_ms, last_seen_ms"
    " FROM proxies LEFT JOIN heartbeats USING (proxy_id)"
    " WHERE enabled = 1 AND (received_ms IS NULL OR received_ms = (SELECT max(received_ms)"
    " FROM heartbeats AS newer WHERE newer.proxy_id = proxies.proxy_id)) ORDER BY name"
)


@dataclass(frozen=True, slots=True)
class _Newest:
    """A proxy, with its newest heartbeat in the store."""

    losses: Losses
    name: str
    received_ms: int | None
    body: str | None
    skew_ms: int | None
    last_seen_ms: int | None


def fleet(settings: Settings) -> list[Finding]:
    now_ms = time.time_ns() // 1_000_000
    try:
        with store_rows(settings.store) as connection:
            rows = connection.rows(_NEWEST)
            losses = losses_of_proxies(connection, [proxy_id for proxy_id, *_ in rows])
            newest = [_Newest(losses[proxy_id], *row) for proxy_id, *row in rows]
    except (Unreadable, StoreError):
        return []  # The findings on the store give the reason, also for a store of an older release.
    interval_ms = settings.control_plane.sync_interval_seconds * 1000
    return [*_clock(newest, now_ms, interval_ms), *_proxies(newest, now_ms, interval_ms)]


def _clock(newest: Sequence[_Newest], now_ms: int, interval_ms: int) -> Iterator[Finding]:
    skews = [
        each.skew_ms
        for each in newest
        if each.skew_ms is not None
        and each.received_ms is not None
        and abs(now_ms - each.received_ms) < _RECENT_INTERVALS * interval_ms
    ]
    if not skews:
        what = "no proxy sent a recent heartbeat with which to compare this machine's clock"
        yield Finding("clock", "ok", f"{what}; `timedatectl` shows whether it is synchronised")
        return
    middle = round(median(skews))
    if abs(middle) > _NOTICEABLE_MS:
        what = (
            f"the median clock of {counted(len(skews), 'proxy')} is {duration(abs(middle))} "
            f"{direction(middle)}"
        )
        fix = (
            "set this machine's clock: `timedatectl set-ntp true`; if it is correct, set the clocks of the "
            "proxies"
        )
        yield Finding("clock", "warn", what, fix)
    else:
        yield Finding("clock", "ok", f"agrees with the clock of {counted(len(skews), 'proxy')}")


def _proxies(newest: Sequence[_Newest], now_ms: int, interval_ms: int) -> Iterator[Finding]:
    assessed = [(each.name, _assessed(each, now_ms, interval_ms)) for each in newest]
    ill = [(name, assessment) for name, assessment in assessed if assessment.health not in ("ok", "ended")]
    if ill:
        report = "; ".join(f"{name}: {assessment.health}" for name, assessment in ill[:_MOST_NAMED])
        more = f"; and {len(ill) - _MOST_NAMED} more" if len(ill) > _MOST_NAMED else ""
        yield Finding(
            "proxies",
            "warn",
            report + more,
            f"`proxy show {ill[0][0]}`, and its own --doctor, give the reason",
        )
    else:
        yield Finding(
            "proxies",
            "ok",
            "the only proxy is healthy" if len(assessed) == 1 else f"all {len(assessed)} proxies are healthy",
        )


def _assessed(newest: _Newest, now_ms: int, interval_ms: int) -> Assessment:
    if newest.received_ms is None or newest.body is None:
        return assess(now_ms, Facts(interval_ms, losses=newest.losses))
    said = msgspec.json.decode(newest.body, type=Heartbeat)
    return assess(
        now_ms,
        Facts(
            interval_ms,
            heard_ms=newest.received_ms,
            is_last=said.is_last,
            last_seen_ms=newest.last_seen_ms,
            checks=said.checks or {},
            skew_ms=newest.skew_ms,
            oldest_unsent_ms=round((said.oldest_pending_seconds or 0) * 1000),
            losses=newest.losses,
        ),
    )
