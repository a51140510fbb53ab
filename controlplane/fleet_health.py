"""Assess the health of a proxy from its last heartbeat's age and from losses in its audit trail.

The health `failed` means that the proxy does not work, or that it sends no heartbeats. The health `degraded`
means that the proxy works, but an operator has to examine something late, doubtful or lost. If a proxy loses
events, its health stays affected until an operator acknowledges the loss. The health `ended` means that the
proxy stopped cleanly, had nothing left to deliver, and has sent nothing since. The module `fleet_health`
itself does no input or output.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from controlplane.reports import Check, Heartbeat
from controlplane.store.interface import NO_LOSSES, Losses, Said
from controlplane.store.pages import HealthBounds
from proxy.wire.figures import counted

Presence = Literal["here", "ended", "lost"]
"""Whether a proxy sends heartbeats, shut down normally, or has been silent for so long that nobody waits."""

Health = Literal["ok", "ended", "stale", "degraded", "failed", "no heartbeat"]

# The following limits are numbers of intervals. A proxy sends a heartbeat and a sync in each interval.
STALE_AFTER: Final = 3  # without a heartbeat: its last report is out of date
LOST_AFTER: Final = 10  # without a heartbeat: nothing waits for the proxy
UNCONFIRMED_AFTER: Final = 3  # after its rules were last confirmed
BEHIND_AFTER: Final = 3  # during which an older version than the active one was enforced
UNSENT_AFTER: Final = 10  # age of the oldest event that it has not delivered
REUSE_REPORTED_MS: Final = 86_400_000  # time for which a reused batch id is reported
MOST_SKEW_MS: Final = 30_000  # a tenth of the skew at which signed requests are refused
_RANK: Final[Mapping[Health, int]] = {
    "ok": 0,
    "ended": 1,
    "degraded": 2,
    "stale": 3,
    "failed": 4,
    "no heartbeat": 5,
}
_SECOND_MS: Final = 1000


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts about one proxy that determine its health.

    An age in `Facts` is the age at the time when the proxy's last heartbeat arrived.
    """

    interval_ms: int
    heard_ms: int | None = None  # arrival of its last heartbeat, by this host's clock; None: no heartbeat yet
    # The last heartbeat said that the proxy stopped cleanly and has nothing left to deliver.
    is_last: bool = False
    checks: Mapping[str, Check] = field(default_factory=dict)
    sync_age_ms: int | None = None  # time after its rules were confirmed; None: not reported
    skew_ms: int | None = None  # how far its clock is ahead of this host's; None: not measured
    oldest_unsent_ms: int = 0
    behind_ms: int = 0  # time after the first active version that it does not enforce, until now
    losses: Losses = NO_LOSSES  # current unacknowledged losses of its trail
    # Last time, by this host's clock, when it reused a batch id for other events.
    reused_ms: int | None = None
    # Arrival of its last message of any kind; None: only heartbeats are known.
    last_seen_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Assessment:
    health: Health
    reasons: tuple[str, ...]
    presence: Presence


def facts_of(interval_ms: int, heard_ms: int, skew_ms: int | None, said: Heartbeat) -> Facts:
    """Return the facts about a proxy that come from its heartbeat alone."""
    return Facts(
        interval_ms,
        heard_ms=heard_ms,
        is_last=said.is_last,
        checks=said.checks or {},
        sync_age_ms=None if said.sync_age_seconds is None else round(said.sync_age_seconds * 1000),
        skew_ms=skew_ms,
        oldest_unsent_ms=round((said.oldest_pending_seconds or 0) * 1000),
    )


def said_by(interval_ms: int, skew_ms: int | None, said: Heartbeat) -> Said:
    """Return those heartbeat values that the store keeps for lists and counts of proxies."""
    health: Health = "ended" if said.is_last else assess(0, facts_of(interval_ms, 0, skew_ms, said)).health
    # A heartbeat just arrived, so the proxy is not silent.
    assert health in ("ok", "degraded", "failed", "ended")
    return Said(health, said.rulesets or {})


def health_bounds(now_ms: int, interval_ms: int) -> HealthBounds:
    """Return the time limits that the store needs to assign the same states to proxies as `assess`."""
    return HealthBounds(
        now_ms,
        stale_ms=STALE_AFTER * interval_ms,
        lost_ms=LOST_AFTER * interval_ms,
        behind_ms=BEHIND_AFTER * interval_ms,
        reused_ms=REUSE_REPORTED_MS,
    )


def assess(now_ms: int, facts: Facts) -> Assessment:
    if facts.heard_ms is None:
        lost = (reason for _, reason in _lost(facts))
        return Assessment("no heartbeat", ("no heartbeat was ever received", *lost), "lost")
    presence = presence_of(now_ms, facts)
    silent_ms = _silent_ms(now_ms, facts.heard_ms)
    if presence == "ended":
        ended: tuple[Health, str] = ("ended", f"it stopped cleanly {duration(silent_ms)} ago")
        return _worst([ended, *_lost(facts), *_reused(now_ms, facts)], presence)
    found = [*_silence(silent_ms, facts), *_said(facts), *_measured(facts), *_lost(facts)]
    found += _reused(now_ms, facts)
    return _worst(found, presence)


def _worst(found: list[tuple[Health, str]], presence: Presence) -> Assessment:
    worst: Health = max((health for health, _ in found), key=_RANK.__getitem__, default="ok")
    return Assessment(worst, tuple(reason for _, reason in found), presence)


def presence_of(now_ms: int, facts: Facts) -> Presence:
    """Return whether a proxy sends heartbeats, has stopped cleanly, or is lost without a clean stop."""
    if facts.heard_ms is None:
        return "lost"
    if has_ended(facts.heard_ms, facts.last_seen_ms, is_last=facts.is_last):
        return "ended"
    return "lost" if _silent_ms(now_ms, facts.heard_ms) > LOST_AFTER * facts.interval_ms else "here"


def has_ended(heard_ms: int, last_seen_ms: int | None, *, is_last: bool) -> bool:
    """Return True if the last message of the proxy is a heartbeat that reported a clean stop.

    For a deleted proxy, the store keeps only the times of its heartbeats.
    """
    return is_last and last_seen_ms in (heard_ms, None)


def _silent_ms(now_ms: int, heard_ms: int) -> int:
    # If this host's clock was set back, a time later than now says nothing about the present.
    return abs(now_ms - heard_ms)


def _silence(silent_ms: int, facts: Facts) -> Iterator[tuple[Health, str]]:
    if silent_ms > LOST_AFTER * facts.interval_ms:
        unknown = "it did not report a stop, and its events since then are unknown"
        yield "failed", f"no heartbeat for {duration(silent_ms)}: {unknown}"
    elif silent_ms > STALE_AFTER * facts.interval_ms:
        yield "stale", f"no heartbeat for {duration(silent_ms)}"


def _said(facts: Facts) -> Iterator[tuple[Health, str]]:
    for name, check in facts.checks.items():
        if check.status != "ok":
            yield check.status, f"{name} {check.status}" + (f": {check.detail}" if check.detail else "")


def _measured(facts: Facts) -> Iterator[tuple[Health, str]]:
    interval = facts.interval_ms
    if facts.sync_age_ms is not None and facts.sync_age_ms > UNCONFIRMED_AFTER * interval:
        yield (
            "degraded",
            f"its rules were last confirmed {duration(facts.sync_age_ms)} before the last heartbeat",
        )
    if facts.behind_ms > BEHIND_AFTER * interval:
        yield "degraded", f"it has been behind the active rules for {duration(facts.behind_ms)}"
    if facts.oldest_unsent_ms > UNSENT_AFTER * interval:
        yield "degraded", f"its oldest unsent event is {duration(facts.oldest_unsent_ms)} old"
    if facts.skew_ms is not None and abs(facts.skew_ms) > MOST_SKEW_MS:
        yield "degraded", f"its clock is {duration(abs(facts.skew_ms))} {direction(facts.skew_ms)}"


def _lost(facts: Facts) -> Iterator[tuple[Health, str]]:
    """Yield the numbers of one proxy's lost events that no operator has acknowledged.

    A proxy that has lost events can still work.
    """
    missing, repeated, implausible = facts.losses
    if missing:
        yield "degraded", f"{counted(missing, 'event')} never arrived: their sequence numbers are missing"
    if repeated:
        yield "degraded", f"{counted(repeated, 'event')} reused sequence numbers of earlier events"
    if implausible:
        yield "degraded", f"{counted(implausible, 'event')} arrived with an implausible time"


def _reused(now_ms: int, facts: Facts) -> Iterator[tuple[Health, str]]:
    if facts.reused_ms is not None and abs(now_ms - facts.reused_ms) < REUSE_REPORTED_MS:
        ago = duration(abs(now_ms - facts.reused_ms))
        yield "degraded", f"it reused the ID of a batch or an event for other content, {ago} ago"


def clock_skew_ms(timestamp: int, arrived_ms: int) -> int:
    """Return the minimum lead of the sender's clock over this host's clock, negative if the clock is behind.

    A timestamp in whole seconds can mean any moment of that second. `clock_skew_ms` assumes that the sender
    wrote the timestamp just before the message arrived. If a clock difference may come only from the rounding
    to whole seconds, the difference counts as 0. If two clocks certainly differ, the smallest possible
    difference is returned. A message needs some time to arrive. Because of the travel time of a message, the
    sender's clock looks further behind than it really is.
    """
    ahead_ms = timestamp * _SECOND_MS - arrived_ms
    behind_ms = ahead_ms + _SECOND_MS
    return ahead_ms if ahead_ms > 0 else min(behind_ms, 0)


def direction(skew_ms: int) -> str:
    return "ahead" if skew_ms > 0 else "behind"


def duration(ms: int) -> str:
    """Return a duration as text for people, such as 45 s, 12 min, 3 h or 5 d."""
    seconds = ms / _SECOND_MS
    for limit, unit, size in ((120, "s", 1), (7200, "min", 60), (172_800, "h", 3600)):
        if seconds < limit:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86400:.0f} d"
