"""State of the proxies: health, the rulesets that they enforce, and the rollout of a version."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

import msgspec

from controlplane.curves import Window
from controlplane.fleet import Enforced, Enforcement, Fleet, Heard, ProxyState
from controlplane.fleet_health import Health as AssessedHealth
from controlplane.operations.actor import Actor
from controlplane.operations.context import OperationContext
from controlplane.operations.lists import PART, ListRequest, ListResponse, by_column, read_list, searchable
from controlplane.operations.operation import Request, Response, operation
from controlplane.operations.times import as_rfc3339
from controlplane.reports import Heartbeat
from controlplane.store.interface import NotFound, Proxy, RateLimits, Ruleset, SequenceState
from controlplane.store.key_pairs import OPEN_END_MS
from controlplane.store.pages import HEALTH_ORDER, FleetQuery, Health, ListPage, ListQuery, Standing, all_rows
from controlplane.store.sequences import size
from proxy.wire.audit_event import rfc3339

_HISTORY_SHOWN = 50
_ORIGIN = re.compile(r"https?://(?:[A-Za-z0-9.-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(?::[0-9]{1,5})?")


class EnforcedFacts(Response):
    """One ruleset that a proxy enforces, and the enforced version."""

    ruleset_id: str
    name: str
    org: str
    in_force: int
    version: int | None  # enforced version; null: the proxy does not report it, or has none
    state: Enforcement
    behind_seconds: float | None


class ProxyHealth(Response):
    """State of one proxy, as `proxy list` shows it.

    The ages and the backlog are the values that the proxy's last heartbeat gave.
    """

    proxy_id: str
    name: str
    orgs: tuple[str, ...]
    whole: bool  # true: the actor may look at all of its organisations; else totals are left out
    enabled: bool
    created_at: str
    last_seen: str | None
    health: AssessedHealth
    reasons: tuple[str, ...]
    version: str | None
    public_base_url: str | None  # address that applications use; null if the proxy's settings do not name it
    last_heartbeat: str | None
    heartbeat_age_seconds: float | None
    sync_age_seconds: float | None
    clock_skew_seconds: float | None
    audit_pending: int | None
    oldest_pending_seconds: float | None
    rulesets: tuple[EnforcedFacts, ...]
    requests_per_second: tuple[float, ...]  # rates of the newest reported windows, oldest first
    # missing events, repeated numbers and implausible times, without acknowledged ones
    missing_events: int | None
    repeated_numbers: int | None
    implausible_times: int | None
    enrolment_token: str | None  # name of the token that the proxy enrolled with; null: an operator added it
    keys_made_at: str | None  # null: an earlier release made the keys
    ended_at: (
        str | None
    )  # time at which the proxy shut down normally with all events delivered; null after a restart
    retired_at: str | None


class FleetList(ListResponse):
    proxies: tuple[ProxyHealth, ...]


class FleetCounts(Response):
    """Numbers of proxies by state of health.

    A disabled proxy is counted only as disabled, and a retired proxy only as retired.
    """

    total: int
    ok: int
    ended: int
    degraded: int
    stale: int
    failed: int
    no_heartbeat: int
    disabled: int
    retired: int


class Unacknowledged(Response):
    """Lost audit events that make the health of a proxy worse."""

    missing: int
    repeated: int
    implausible: int


class SequenceFacts(Response):
    """Sequence numbers of one organisation's events from a proxy: received, missing and undelivered."""

    org_id: str
    highest_seq: int
    missing: tuple[tuple[int, int], ...]  # ranges, both ends included
    missing_count: int
    unlisted_count: int  # number of missing events that no range above names
    undelivered: int
    # events with a number that an earlier event had: an audit directory was lost or shared
    repeated_count: int
    repeated_at: str | None  # time at which the last of them arrived
    implausible_count: int  # events with a time that can't be true
    implausible_at: str | None  # time at which the last of them arrived
    unacknowledged: Unacknowledged
    acknowledged_at: str | None
    acknowledged_by: str | None
    acknowledged_note: str | None
    reused_count: int  # batches that reuse a batch id or event id for other content
    reused_at: str | None  # time at which the last of them arrived


class WindowFacts(Response):
    start: str
    end: str
    requests: int
    requests_per_second: float
    blocked: int
    upstream_errors: int
    p50_ms: float | None
    p95_ms: float | None
    p99_ms: float | None


class HeartbeatFacts(Response):
    at: str
    version: str | None
    uptime_seconds: float | None
    clock_skew_seconds: float | None
    audit_pending: int | None
    not_ok: tuple[str, ...]  # names of the proxy's checks that are not ok


class ProxyDetails(ProxyHealth):
    secret_version: int
    old_keys_until: str | None  # time until which the previous keys work
    renewed_keys_are_unused: bool  # the old keys work until 1 h after the first use of the new ones
    rotate_at: str | None  # time from which the proxy renews its keys by itself
    rotation_is_due: bool
    uptime_seconds: float | None
    heartbeat: dict[str, Any] | None
    metrics: dict[str, Any] | None
    sequences: tuple[SequenceFacts, ...]
    windows: tuple[WindowFacts, ...]
    restarts: tuple[str, ...]
    heartbeats: tuple[HeartbeatFacts, ...]


class ListFleet(ListRequest):
    org: str | None = None
    sort: Annotated[str, by_column("proxies")] | None = None
    health: Health | None = None  # only proxies of this health
    needs_look: bool = False  # only proxies that are neither ok nor disabled, or disabled with losses
    retired: bool = False  # only retired proxies, which the list omits by default


class CountFleet(Request):
    org: str | None = None
    search: Annotated[str, msgspec.Meta(description=PART)] | None = None


class ProxyReference(Request):
    proxy: str  # id or name


class RolloutRequest(Request):
    ruleset: str  # id or name
    version: int | None = None  # default: the active version
    org: str | None = None


RolloutState = Literal["enforced", "behind", "unknown", "ended", "lost", "disabled"]


class ProxyRollout(Response):
    """State of one proxy in the rollout of a ruleset version.

    The state `ended` means that the proxy stopped cleanly. The state `lost` means that the proxy has been
    silent for a long time. A rollout does not wait for a lost proxy.
    """

    proxy_id: str
    name: str
    state: RolloutState
    version: int | None
    behind_seconds: float | None
    heartbeat_age_seconds: float | None


class Rollout(Response):
    ruleset_id: str
    name: str
    org: str
    version: int
    in_force_since: str
    proxies: tuple[ProxyRollout, ...]


@operation("fleet.list", "GET", "/fleet")
async def list_all(context: OperationContext, actor: Actor, request: ListFleet) -> FleetList:
    """List all proxies, or one page of proxies, with their health."""
    now_ms, fleet = context.clock.wall_ms(), fleet_of(context)
    chosen = FleetQuery(fleet.bounds(now_ms), request.health, request.needs_look, actor.sees)
    standing: Standing = "retired" if request.retired else "active"

    async def read(query: ListQuery) -> ListPage[ProxyHealth]:
        page = await context.store.list_proxies(query, chosen, standing)
        states = await fleet.states(now_ms, page.rows)
        view = await _View.of(context, actor, page.rows)
        rows = tuple(ProxyHealth(**view.health(now_ms, state)) for state in states)
        return ListPage(rows, page.next, page.total, page.before, page.previous)

    found = await read_list("proxies", request, await context.resolve.sight(actor, request.org), read)
    return FleetList(proxies=found.rows, **found.place)


@operation("fleet.counts", "GET", "/fleet-counts")
async def count(context: OperationContext, actor: Actor, request: CountFleet) -> FleetCounts:
    """Count the proxies by state of health, among all proxies or among the proxies that a search finds."""
    bounds = fleet_of(context).bounds(context.clock.wall_ms())
    sight = await context.resolve.sight(actor, request.org)
    search = None if request.search is None else searchable(request.search)
    counts = await context.store.count_proxies(bounds, sight, search)
    of_health = {health.replace(" ", "_"): counts.get(health, 0) for health in HEALTH_ORDER}
    query = ListQuery(org_ids=sight, search=search, limit=1)
    retired = await context.store.list_proxies(query, standing="retired")
    return FleetCounts(total=sum(counts.values()), **of_health, retired=retired.total)


@operation("fleet.show", "GET", "/fleet/{proxy}")
async def show(context: OperationContext, actor: Actor, request: ProxyReference) -> ProxyDetails:
    """Show one proxy: its health, its last heartbeat, its traffic over time, and its missing audit events."""
    found = await context.resolve.proxy(actor, "viewer", request.proxy)
    view = await _View.of(context, actor, [found])
    now_ms = context.clock.wall_ms()
    fleet = fleet_of(context)
    (state,) = await fleet.states(now_ms, [found])
    history = await fleet.history(found.proxy_id)
    newest_metrics = await context.store.metrics(found.proxy_id, 1)
    is_whole = view.sees_all_of(found)
    said = state.heard.said if state.heard is not None else Heartbeat()
    return ProxyDetails(
        **view.health(now_ms, state),
        secret_version=found.secret_version,
        old_keys_until=_end_of_old_keys(found, now_ms),
        renewed_keys_are_unused=found.old_keys_end_ms == OPEN_END_MS,
        rotate_at=as_rfc3339(found.rotate_at_ms),
        rotation_is_due=found.rotate_at_ms is not None and found.rotate_at_ms <= now_ms,
        uptime_seconds=said.uptime_seconds,
        heartbeat=view.heartbeat(found, state.heard),
        metrics=msgspec.json.decode(newest_metrics[0].body) if newest_metrics and is_whole else None,
        sequences=tuple(view.sequences(found, history.sequences, said.last_seq or {})),
        windows=tuple(map(_window, history.windows)) if is_whole else (),
        restarts=tuple(map(rfc3339, history.restarts_ms)),
        heartbeats=tuple(map(_beat, history.heartbeats[:_HISTORY_SHOWN])) if is_whole else (),
    )


@operation("fleet.rollout", "GET", "/rulesets/{ruleset}/rollout")
async def rollout(context: OperationContext, actor: Actor, request: RolloutRequest) -> Rollout:
    """List the proxies that enforce a ruleset version (or a later version), and the proxies that do not."""
    ruleset = await context.resolve.ruleset(actor, "viewer", request.ruleset, request.org)
    org = await context.resolve.org(actor, "viewer", ruleset.org_id)
    versions = await context.store.ruleset_versions(ruleset.ruleset_id)
    wanted = ruleset.version if request.version is None else request.version
    since_ms = next((each.created_ms for each in versions if each.version == wanted), None)
    if since_ms is None:
        raise NotFound(f"ruleset {ruleset.name} has no version {wanted}")
    now_ms = context.clock.wall_ms()
    fleet = fleet_of(context)

    async def read(query: ListQuery) -> ListPage[ProxyState]:
        page = await context.store.list_proxies(query)
        return ListPage(tuple(await fleet.states(now_ms, page.rows, windows=0)), page.next, page.total)

    states = await all_rows(read, ListQuery(org_ids=frozenset({ruleset.org_id})))
    return Rollout(
        ruleset_id=ruleset.ruleset_id,
        name=ruleset.name,
        org=org.name,
        version=wanted,
        in_force_since=rfc3339(since_ms),
        proxies=tuple(_stand(now_ms, state, ruleset, wanted, since_ms) for state in states),
    )


def _end_of_old_keys(proxy: Proxy, now_ms: int) -> str | None:
    ends_ms = proxy.old_keys_end_ms
    return rfc3339(ends_ms) if ends_ms is not None and now_ms < ends_ms < OPEN_END_MS else None


def fleet_of(context: OperationContext) -> Fleet:
    interval = context.settings.control_plane.sync_interval_seconds
    return Fleet(context.store, interval_seconds=interval, limits=limits_of(context))


def limits_of(context: OperationContext) -> RateLimits:
    audit = context.settings.audit
    return RateLimits(org=audit.rate_limit_org, proxy=audit.rate_limit_proxy)


class _View:
    """Facts about proxies, limited to facts that an actor may see.

    If one of a proxy's organisations is not visible to the actor, the actor does not see the proxy's total
    traffic, metrics reports or health reasons.
    """

    def __init__(self, names: Mapping[str, str]) -> None:
        """Store the names of the organisations that the actor may look at, with organisation IDs as keys."""
        self._names = names

    @classmethod
    async def of(cls, context: OperationContext, actor: Actor, proxies: Iterable[Proxy]) -> _View:
        org_ids = {org_id for proxy in proxies for org_id in proxy.org_ids}
        return cls(await context.resolve.org_names(actor, org_ids))

    def sees_all_of(self, proxy: Proxy) -> bool:
        return all(org_id in self._names for org_id in proxy.org_ids)

    def health(self, now_ms: int, state: ProxyState) -> dict[str, Any]:
        """Return the values of the ProxyHealth fields for one proxy."""
        proxy, heard = state.proxy, state.heard
        said = heard.said if heard is not None else Heartbeat()
        is_whole = self.sees_all_of(proxy)
        return {
            "proxy_id": proxy.proxy_id,
            "name": proxy.name,
            "orgs": tuple(self._names[org_id] for org_id in proxy.org_ids if org_id in self._names),
            "whole": is_whole,
            "enabled": proxy.enabled,
            "created_at": rfc3339(proxy.created_ms),
            "last_seen": None if proxy.last_seen_ms is None else rfc3339(proxy.last_seen_ms),
            "health": state.assessment.health,
            "reasons": state.assessment.reasons if is_whole else (),
            "version": said.version,
            "public_base_url": _origin(said.public_base_url),
            "last_heartbeat": rfc3339(heard.received_ms) if heard is not None else None,
            "heartbeat_age_seconds": _age(now_ms, heard),
            "sync_age_seconds": said.sync_age_seconds,
            "clock_skew_seconds": _seconds(heard.skew_ms) if heard is not None else None,
            "audit_pending": said.audit_pending if is_whole else None,
            "oldest_pending_seconds": said.oldest_pending_seconds if is_whole else None,
            "rulesets": tuple(
                self._enforced(now_ms, each) for each in state.rules if each.ruleset.org_id in self._names
            ),
            "missing_events": state.losses.missing if is_whole else None,
            "repeated_numbers": state.losses.repeated if is_whole else None,
            "implausible_times": state.losses.implausible if is_whole else None,
            "enrolment_token": proxy.token if is_whole else None,
            "keys_made_at": as_rfc3339(proxy.keys_made_ms),
            "ended_at": _ended_at(state),
            "retired_at": as_rfc3339(proxy.retired_ms),
            "requests_per_second": (tuple(round(each, 3) for each in state.rates) if is_whole else ()),
        }

    def _enforced(self, now_ms: int, enforced: Enforced) -> EnforcedFacts:
        ruleset, since_ms = enforced.ruleset, enforced.behind_since_ms
        return EnforcedFacts(
            ruleset_id=ruleset.ruleset_id,
            name=ruleset.name,
            org=self._names[ruleset.org_id],
            in_force=ruleset.version,
            version=enforced.version,
            state=enforced.state,
            behind_seconds=None if since_ms is None else _seconds(now_ms - since_ms),
        )

    def heartbeat(self, proxy: Proxy, heard: Heard | None) -> dict[str, Any] | None:
        """Return the proxy's last heartbeat exactly as the proxy sent it."""
        if heard is None:
            return None
        body: dict[str, Any] = msgspec.json.decode(heard.body)
        return body if self.sees_all_of(proxy) else {
            "version": body.get("version"), "uptimeSeconds": body.get("uptimeSeconds"),
        }  # fmt: skip

    def sequences(
        self, proxy: Proxy, states: Iterable[SequenceState], last_seq: Mapping[str, int]
    ) -> Iterable[SequenceFacts]:
        by_org = {state.org_id: state for state in states}
        for org_id in sorted({*by_org, *(each for each in last_seq if each in proxy.org_ids)}):
            if org_id not in self._names:
                continue
            state = by_org.get(org_id) or SequenceState(org_id, 0, (), 0)
            known = state.acknowledged
            yield SequenceFacts(
                org_id=org_id,
                highest_seq=state.highest,
                missing=tuple((gap.first, gap.last) for gap in state.gaps),
                missing_count=size(state.gaps) + state.unlisted,
                unlisted_count=state.unlisted,
                undelivered=max(0, last_seq.get(org_id, 0) - state.highest),
                repeated_count=state.repeated,
                repeated_at=as_rfc3339(state.repeated_ms),
                implausible_count=state.implausible,
                implausible_at=as_rfc3339(state.implausible_ms),
                unacknowledged=Unacknowledged(*state.losses),
                acknowledged_at=None if known is None else rfc3339(known.acknowledged_ms),
                acknowledged_by=None if known is None else known.acknowledged_by,
                acknowledged_note=None if known is None else known.note,
                reused_count=state.reused,
                reused_at=as_rfc3339(state.reused_ms),
            )


def _stand(now_ms: int, state: ProxyState, ruleset: Ruleset, wanted: int, since_ms: int) -> ProxyRollout:
    enforced = next(each for each in state.rules if each.ruleset.ruleset_id == ruleset.ruleset_id)
    arrived = enforced.version is not None and enforced.version >= wanted
    stands: RolloutState
    if not state.proxy.enabled:
        stands = "disabled"
    elif state.assessment.presence != "here":
        stands = state.assessment.presence
    elif arrived:
        stands = "enforced"
    else:
        stands = "unknown" if enforced.state == "unknown" else "behind"
    return ProxyRollout(
        proxy_id=state.proxy.proxy_id,
        name=state.proxy.name,
        state=stands,
        version=enforced.version,
        behind_seconds=None if arrived else _seconds(max(0, now_ms - since_ms)),
        heartbeat_age_seconds=_age(now_ms, state.heard),
    )


def _window(window: Window) -> WindowFacts:
    return WindowFacts(
        start=rfc3339(window.start_ms),
        end=rfc3339(window.end_ms),
        requests=window.requests,
        requests_per_second=round(window.requests_a_second, 3),
        blocked=window.blocked,
        upstream_errors=window.upstream_errors,
        p50_ms=None if window.p50_ms is None else round(window.p50_ms, 3),
        p95_ms=None if window.p95_ms is None else round(window.p95_ms, 3),
        p99_ms=None if window.p99_ms is None else round(window.p99_ms, 3),
    )


def _beat(heard: Heard) -> HeartbeatFacts:
    said = heard.said
    return HeartbeatFacts(
        at=rfc3339(heard.received_ms),
        version=said.version,
        uptime_seconds=said.uptime_seconds,
        clock_skew_seconds=_seconds(heard.skew_ms),
        audit_pending=said.audit_pending,
        not_ok=tuple(name for name, check in (said.checks or {}).items() if check.status != "ok"),
    )


def _origin(text: str | None) -> str | None:
    """Return the address if it consists only of scheme, host and port, or None.

    An address with a path or a query is not returned, because people paste the address into a shell.
    """
    return text if text is not None and _ORIGIN.fullmatch(text) else None


def _ended_at(state: ProxyState) -> str | None:
    if state.heard is None or state.assessment.presence != "ended":
        return None
    return rfc3339(state.heard.received_ms)


def _age(now_ms: int, heard: Heard | None) -> float | None:
    return None if heard is None else _seconds(now_ms - heard.received_ms)


def _seconds(ms: int | None) -> float | None:
    return None if ms is None else ms / 1000
