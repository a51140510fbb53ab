"""Gaps in the audit trail of a report: undelivered events, and events that retention deleted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from controlplane.fleet_health import MOST_SKEW_MS, direction, duration, has_ended
from controlplane.operations.context import OperationContext
from controlplane.operations.report_period import Period, text_of_moment, time_text
from controlplane.operations.time_axis import DAY_MS
from controlplane.report.answer import Chain, ProxyTrail, Range, Retention
from controlplane.report.tally import Tally
from controlplane.report.words import moment
from controlplane.reports import Heartbeat
from controlplane.store.interface import RETENTION_MS, LatestReports, Org, Proxy, Purges, ReceivedNumbers
from proxy.wire.audit_event import rfc3339
from proxy.wire.figures import counted

MOST_GAPS: Final = 1000  # ranges of missing numbers of one proxy that a report lists


@dataclass(frozen=True, slots=True)
class Beat:
    """The last heartbeat of a proxy, with its time."""

    received_ms: int
    skew_ms: int | None  # the proxy's clock minus the control plane's clock
    said: Heartbeat


async def last_heartbeats(context: OperationContext, proxy_ids: list[str]) -> dict[str, Beat]:
    """Return the last heartbeat of each proxy that has sent a heartbeat."""
    found = {}
    latest: LatestReports
    for proxy_id, latest in (await context.store.latest_reports(proxy_ids, 0)).items():
        beat = latest.heartbeat
        if beat is not None:
            read = msgspec.json.decode(beat.body, type=Heartbeat)
            found[proxy_id] = Beat(beat.received_ms, beat.skew_ms, read)
    return found


def trails_of(
    proxies: list[Proxy],
    received: Mapping[str, ReceivedNumbers],
    reports: dict[str, Beat],
    tally: Tally,
    period: Period,
) -> list[ProxyTrail]:
    """Return facts about the delivery of audit events, for each proxy that serves or served the organisation.

    The facts include the number of stored events, the missing sequence numbers, and the number of pending
    events.
    """
    found = []
    for proxy in proxies:
        state, seen = received.get(proxy.proxy_id), tally.proxies.get(proxy.proxy_id)
        if state is None and seen is None and period.org.org_id not in proxy.org_ids:
            continue
        beat = reports.get(proxy.proxy_id)
        pending = 0 if beat is None else _pending(beat.said, state, period.org.org_id)
        found.append(
            ProxyTrail(
                proxy_id=proxy.proxy_id,
                name=proxy.name,
                enabled=proxy.enabled,
                events=0 if seen is None else seen.count,
                first=None if seen is None else text_of_moment(seen.first),
                last=None if seen is None else text_of_moment(seen.last),
                missing=() if state is None else tuple(Range(each.first, each.last) for each in state.gaps),
                unlisted=0 if state is None else state.unlisted,
                repeated=0 if state is None else state.repeated,
                implausible=0 if state is None else state.implausible,
                reused_batches=0 if state is None else state.reused,
                last_heartbeat=None if beat is None else rfc3339(beat.received_ms),
                ended=beat is not None and _has_ended(proxy, beat),
                pending=pending,
                problem=_problem(proxy, beat, pending, has_sent=state is not None, period=period),
                clock="" if beat is None else _clock(proxy, beat.skew_ms),
            )
        )
    return found


def _pending(beat: Heartbeat, state: ReceivedNumbers | None, org_id: str) -> int | None:
    """Return how many events the proxy had not delivered at its last heartbeat; None if not reported."""
    if beat.last_seq is None and beat.audit_pending is None:
        return None
    highest = 0 if state is None else state.highest
    numbered = (beat.last_seq or {}).get(org_id, 0) - highest
    return max(numbered, beat.audit_pending or 0, 0)


def _problem(proxy: Proxy, beat: Beat | None, pending: int | None, *, has_sent: bool, period: Period) -> str:
    """Return the reason why a proxy may still have undelivered events of the period, or an empty text."""
    if beat is None:
        if not has_sent and proxy.last_seen_ms is None:
            return ""  # the proxy was registered, but never started
        return f"{proxy.name} has never sent a heartbeat, so its undelivered events are not known."
    received_ms, said = beat.received_ms, beat.said
    if _has_ended(proxy, beat) and not pending:
        return ""
    if received_ms < period.to_ms:
        state = _state(proxy)
        held = f" It had {counted(pending, 'event')} to deliver then." if pending else ""
        return (
            f"{proxy.name} {state} last heartbeat came {moment(rfc3339(received_ms))}, before the end of the"
            " period, and did not report that the proxy shut down normally. Later events that it recorded are"
            f" not known.{held}"
        )
    if pending is None:
        return f"{proxy.name} did not report its undelivered events at its last heartbeat."
    oldest = said.oldest_pending_seconds
    if pending and (oldest is None or received_ms - oldest * 1000 < period.to_ms):
        return f"{proxy.name} had not delivered {counted(pending, 'event')} at its last heartbeat."
    return ""


def _state(proxy: Proxy) -> str:
    if not proxy.enabled:
        return "is disabled, and its"
    return "fell silent: its" if proxy.retired_ms is None else "is retired after a long silence: its"


def _has_ended(proxy: Proxy, beat: Beat) -> bool:
    """Return True if the proxy stopped cleanly and sent nothing after its last heartbeat."""
    return has_ended(beat.received_ms, proxy.last_seen_ms, is_last=beat.said.is_last)


def _clock(proxy: Proxy, skew_ms: int | None) -> str:
    """Return a note if the event times of a proxy may be wrong; else an empty text."""
    if skew_ms is None or abs(skew_ms) <= MOST_SKEW_MS:
        return ""
    return (
        f"The clock of {proxy.name} was {duration(abs(skew_ms))} {direction(skew_ms)} at its last heartbeat:"
        " an event near the ends of the period may carry a time outside it."
    )


async def retention_of(context: OperationContext, org: Org, chain: Chain, period: Period) -> Retention:
    """Return an organisation's retention, with a note if retention may have deleted events of the period."""
    org = next((each for each in await context.store.orgs() if each.org_id == org.org_id), org)
    oldest_ms = (await context.store.oldest_events([org.org_id])).get(org.org_id)
    purges = await context.store.chain_purges(org.org_id)
    kept_ms = RETENTION_MS[org.retention]
    return Retention(
        tier=org.retention,
        days=kept_ms // DAY_MS,
        org_since=rfc3339(org.created_ms),
        oldest=None if oldest_ms is None else rfc3339(oldest_ms),
        purged=chain.purged,
        problem=_deleted(chain.purged, purges, period)
        or _expired(org, oldest_ms, period, context.clock.wall_ms() - kept_ms),
        before=_before(org, oldest_ms, period),
    )


def _deleted(purged: int, purges: Purges | None, period: Period) -> str:
    """Return a note if retention deleted events that may belong to the period; else an empty text.

    The audit chain records each purge of events. The record of a purge depends neither on the remaining
    events nor on the current retention.
    """
    if purges is None or period.from_ms >= purges.until_ms:
        return ""
    return (
        f"Retention has deleted {counted(purged, 'event')}, the last time {time_text(purges.last_ms)}."
        f" They may be from as late as {time_text(purges.until_ms)},"
        f" and the period begins {time_text(period.from_ms)}."
    )


def _expired(org: Org, oldest_ms: int | None, period: Period, kept_since_ms: int) -> str:
    """Return a note if retention covers only the end of the period; else an empty text."""
    if max(period.from_ms, org.created_ms) >= kept_since_ms:
        return ""
    if oldest_ms is not None and period.from_ms >= oldest_ms:
        return ""
    days = counted(RETENTION_MS[org.retention] // DAY_MS, "day")
    begins = f"the period begins {time_text(period.from_ms)}"
    return f"{org.name} keeps events for {days}, since {time_text(kept_since_ms)}, and {begins}."


def _before(org: Org, oldest_ms: int | None, period: Period) -> str:
    """Return a note if the period begins before the organisation was added; else an empty text."""
    born_ms = org.created_ms if oldest_ms is None else min(org.created_ms, oldest_ms)
    if period.from_ms >= born_ms:
        return ""
    return (
        f"{org.name} was registered {time_text(born_ms)}, after the period begins. Graphward recorded nothing"
        " of it before."
    )
