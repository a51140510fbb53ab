"""Pure: the health of a proxy, by the age of its last heartbeat and by the losses of its trail.

`failed`: it does not do its work, or it is silent. `degraded`: it does, but something is late, doubtful or
lost, and an operator has to look at it. Lost events count until an operator acknowledges them. `ended`: it
stopped in order, said that it has nothing left to deliver, and has not sent anything since.
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
"""Whether a proxy sends heartbeats, stopped in order, or is unheard of for so long that nobody waits."""

Health = Literal["ok", "ended", "stale", "degraded", "failed", "no heartbeat"]

# In intervals: proxies send a heartbeat, and ask for their rules, once in each.
STALE_AFTER: Final = 3  # without a heartbeat: what it said last is no news of now
LOST_AFTER: Final = 10  # without a heartbeat: nobody waits for it
UNCONFIRMED_AFTER: Final = 3  # since its rules were last confirmed
BEHIND_AFTER: Final = 3  # with an older version of a ruleset than the active one
UNSENT_AFTER: Final = 10  # since the oldest event that it has not delivered
REUSE_REPORTED_MS: Final = 86_400_000  # since a batch id came again with other events
MOST_SKEW_MS: Final = 30_000  # a tenth of what signed requests are refused for
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
    """What is known of one proxy. Ages are those of the moment when its last heartbeat came."""

    interval_ms: int
    heard_ms: int | None = None  # when its last heartbeat came, by our clock; None: none ever did
    is_last: bool = False  # the proxy said with it that it stopped in order and owes nothing
    checks: Mapping[str, Check] = field(default_factory=dict)
    sync_age_ms: int | None = None  # since its rules were confirmed; None: it doesn't say
    skew_ms: int | None = None  # its clock against ours; None: not measured
    oldest_unsent_ms: int = 0
    behind_ms: int = 0  # since the first active version that it does not enforce; of now
    losses: Losses = NO_LOSSES  # unacknowledged losses of its trail; current
    reused_ms: int | None = None  # when a batch id of it last came again with other events, by our clock
    last_seen_ms: int | None = None  # when its last message of any kind came; None: only heartbeats are known


@dataclass(frozen=True, slots=True)
class Assessment:
    health: Health
    reasons: tuple[str, ...]
    presence: Presence


def facts_of(interval_ms: int, heard_ms: int, skew_ms: int | None, said: Heartbeat) -> Facts:
    """Return what a heartbeat alone says of a proxy."""
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
    """Return what the store keeps of a heartbeat for lists and counts."""
    health: Health = "ended" if said.is_last else assess(0, facts_of(interval_ms, 0, skew_ms, said)).health
    assert health in ("ok", "degraded", "failed", "ended")  # it is not silent
    return Said(health, said.rulesets or {})


def health_bounds(now_ms: int, interval_ms: int) -> HealthBounds:
    """Return the bounds by which the store sorts, chooses and counts proxies as `assess` does."""
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
        ended: tuple[Health, str] = ("ended", f"it stopped in order {duration(silent_ms)} ago")
        return _worst([ended, *_lost(facts), *_reused(now_ms, facts)], presence)
    found = [*_silence(silent_ms, facts), *_said(facts), *_measured(facts), *_lost(facts)]
    found += _reused(now_ms, facts)
    return _worst(found, presence)


def _worst(found: list[tuple[Health, str]], presence: Presence) -> Assessment:
    worst: Health = max((health for health, _ in found), key=_RANK.__getitem__, default="ok")
    return Assessment(worst, tuple(reason for _, reason in found), presence)


def presence_of(now_ms: int, facts: Facts) -> Presence:
    """Return whether a proxy is there."""
    if facts.heard_ms is None:
        return "lost"
    if has_ended(facts.heard_ms, facts.last_seen_ms, is_last=facts.is_last):
        return "ended"
    return "lost" if _silent_ms(now_ms, facts.heard_ms) > LOST_AFTER * facts.interval_ms else "here"


def has_ended(heard_ms: int, last_seen_ms: int | None, *, is_last: bool) -> bool:
    """Return True if no message came after a heartbeat that said that the proxy stopped in order. Of a
    deleted proxy only the heartbeats are known."""
    return is_last and last_seen_ms in (heard_ms, None)


def _silent_ms(now_ms: int, heard_ms: int) -> int:
    # If our clock was set back since, a time that is later than now says nothing about now.
    return abs(now_ms - heard_ms)


def _silence(silent_ms: int, facts: Facts) -> Iterator[tuple[Health, str]]:
    if silent_ms > LOST_AFTER * facts.interval_ms:
        unknown = "it did not say that it stopped, and what it recorded since then is not known"
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
    """A proxy that lost events does its work, but it is not well until an operator has acknowledged them."""
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
    """How far the sender's clock must be from ours at least, below 0 where it is behind.

    A timestamp in whole seconds was any instant of that second, and was written a moment before it came:
    so what fits our clock is 0, and of what does not, the least. The way here makes a sender look
    behind, by what it took.
    """
    ahead_ms = timestamp * _SECOND_MS - arrived_ms
    behind_ms = ahead_ms + _SECOND_MS
    return ahead_ms if ahead_ms > 0 else min(behind_ms, 0)


def direction(skew_ms: int) -> str:
    return "ahead" if skew_ms > 0 else "behind"


def duration(ms: int) -> str:
    """As a person says it: 45 s, 12 min, 3 h, 5 d."""
    seconds = ms / _SECOND_MS
    for limit, unit, size in ((120, "s", 1), (7200, "min", 60), (172_800, "h", 3600)):
        if seconds < limit:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86400:.0f} d"
