"""Pages at /proxies: each proxy's health with reasons, charts, missing events, and actions of operators."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import tzinfo
from typing import Final

import msgspec
from markupsafe import Markup

from controlplane.console import charts, text
from controlplane.console.event_rows import shown
from controlplane.console.lists import LIST_MEMBERS, Column, list_members, list_view
from controlplane.console.pages import Page, PageRequest, Redirect, filled, form, page
from controlplane.fleet_health import direction, duration
from controlplane.operations import fleet, proxies
from controlplane.operations.actor import Actor
from controlplane.operations.context import OperationContext
from controlplane.operations.fleet import ProxyDetails, ProxyHealth, SequenceFacts, WindowFacts
from controlplane.operations.operation import InvalidRequest
from controlplane.operations.perform import perform
from controlplane.search.query import rfc3339_ms
from controlplane.store.interface import Org
from controlplane.store.pages import HEALTH_ORDER
from proxy.wire.figures import number

_CRUMB: Final = ("Proxies", "/proxies")
_KINDS: Final = {
    "ok": "good",
    "stale": "warn",
    "degraded": "warn",
    "failed": "bad",
    "no heartbeat": "plain",
    "ended": "plain",
    "disabled": "plain",
}
_SORT: Final = "health"
_COLUMNS: Final = (
    Column("Proxy", "name"),
    Column("Health", "health"),
    Column("Last seen", "lastSeen"),
    Column("Rules"),
    Column("Backlog", kind="number"),
    Column("Requests"),
)
_CHECK_KINDS: Final = {"ok": "good", "degraded": "warn", "failed": "bad"}


@dataclass(frozen=True, slots=True)
class _Row:
    """A proxy as a row of the list of proxies."""

    proxy: ProxyHealth
    kind: str
    health: str
    rules: tuple[str, str]  # (kind, text)
    spark: Markup | None
    rate: str


@dataclass(frozen=True, slots=True)
class _Chart:
    title: str
    legend: tuple[tuple[str, str], ...]  # (kind, text)
    unit: str
    drawn: Markup


@dataclass(frozen=True, slots=True)
class _Lane:
    """The sequence numbers of one organisation's events, for the chart of one proxy."""

    org: str
    sequence: SequenceFacts
    strip: Markup
    can_acknowledge: bool


@page("GET", "/proxies", "health", "retired", *LIST_MEMBERS)
async def overview(context: OperationContext, actor: Actor, request: PageRequest) -> Page:
    org = request.org.org_id if request.org else None
    wanted = request.query.get("health", "")
    health = next((each for each in HEALTH_ORDER if each == wanted), None)
    remarks = []
    if wanted and health is None:
        remarks.append(f"Unknown health {wanted}. It must be one of {', '.join(HEALTH_ORDER)}.")
    counts = await perform(
        fleet.count, context, actor, fleet.CountFleet(org=org, search=request.query.get("search") or None)
    )
    retired = request.query.get("retired") == "yes"
    asked = fleet.ListFleet(org=org, health=health, retired=retired, **list_members(request, _SORT))
    found = await perform(fleet.list_all, context, actor, asked)
    view = list_view(
        request, _COLUMNS, found, len(found.proxies), default_sort=_SORT, keep=("health", "retired")
    )
    of_health = [(each, getattr(counts, each.replace(" ", "_"))) for each in HEALTH_ORDER]
    values = {
        "rows": list(map(_row, found.proxies)),
        "list": view,
        "total": counts.total,
        "retired": counts.retired,
        "shows_retired": retired,
        "counts": [(each, count) for each, count in of_health if count or each == health],
        "wanted": health,
        "manageable": await _manageable(context, actor),
    }
    return Page("proxies.html", "Proxies", values, remarks=tuple(remarks))


@form("/proxies", again=overview)
async def add_proxy(context: OperationContext, actor: Actor, request: PageRequest) -> Page:
    """Add a proxy, and respond with the page that shows the secrets of the proxy.

    The page with the proxy's secrets is the direct response to the POST request, so that nobody can open the
    page again.
    """
    asked = proxies.AddProxy(name=request.form.get("name", ""), orgs=(request.form.get("first", ""),))
    made = await perform(proxies.add, context, actor, asked)
    return _secrets_page(asked.name, made, "was added")


@page("GET", "/proxies/{proxy}")
async def one(context: OperationContext, actor: Actor, request: PageRequest) -> Page:
    found = await perform(fleet.show, context, actor, fleet.ProxyReference(proxy=request.place["proxy"]))
    manageable = [org.name for org in await _manageable(context, actor)]
    names = {org.org_id: org.name for org in await context.resolve.orgs(actor)}
    health = "disabled" if not found.enabled else found.health
    checks = (found.heartbeat or {}).get("checks") or {}
    values = {
        "proxy": found,
        "health": health,
        "kind": _KINDS[health],
        "checks": [
            (name, each["status"], _CHECK_KINDS[each["status"]], each.get("detail") or "")
            for name, each in checks.items()
        ],
        "facts": _facts(found),
        "is_overdue": found.rotation_is_due,
        "charts": _charts(found.windows, request.zone),
        "lanes": [_lane(names[each.org_id], each, manageable) for each in found.sequences],
        "manages": found.whole and all(org in manageable for org in found.orgs) and bool(manageable),
        "grantable": [org for org in manageable if org not in found.orgs],
        "revocable": [org for org in found.orgs if org in manageable],
        "window_table": [(each, request.link("/search", **_reach(each))) for each in found.windows[::-1]],
        "duration": lambda seconds: duration(round(seconds * 1000)),
        "ago": lambda moment: text.age(rfc3339_ms(moment) or 0, request.now_ms),
    }
    return Page("proxy.html", found.name, values, (_CRUMB,))


@page("POST", "/proxies/{proxy}/disable")
async def cut_off(context: OperationContext, actor: Actor, request: PageRequest) -> Redirect:
    done = await perform(proxies.disable, context, actor, _reference(request))
    said = f"{done.name} is disabled: its calls are refused. It keeps its rules and its events."
    return Redirect(request.link(f"/proxies/{done.proxy_id}"), said)


@page("POST", "/proxies/{proxy}/enable")
async def let_in(context: OperationContext, actor: Actor, request: PageRequest) -> Redirect:
    done = await perform(proxies.enable, context, actor, _reference(request))
    return Redirect(request.link(f"/proxies/{done.proxy_id}"), f"{done.name} is accepted again.")


@form("/proxies/{proxy}/secrets", again=one)
async def rotate(context: OperationContext, actor: Actor, request: PageRequest) -> Page:
    """Replace the API key and the HMAC secret of a proxy.

    The operator must type the proxy's name, because the control plane refuses the proxy until the proxy has
    the new secrets. The form contains the expected version of the secrets, so a second submission of the same
    form fails.
    """
    found = await perform(fleet.show, context, actor, fleet.ProxyReference(proxy=request.place["proxy"]))
    if request.form.get("name", "") != found.name:
        raise InvalidRequest(
            f"To replace the secrets, enter the name of the proxy, {found.name}. Nothing was changed."
        )
    seen = request.form.get("expected") or 0
    asked = filled(proxies.RotateProxySecret, request.form, proxy=found.proxy_id, expected=seen)
    made = await perform(proxies.rotate_secret, context, actor, asked)
    old = "work until their time ends" if asked.grace_seconds else "are refused from now on"
    done = f"has new secrets; the old ones {old}"
    return _secrets_page(found.name, made, done, has_enrolled=found.enrolment_token is not None)


@form("/proxies/{proxy}/acknowledge", again=one)
async def acknowledge(context: OperationContext, actor: Actor, request: PageRequest) -> Redirect:
    """Acknowledge the lost events of a proxy.

    The form contains the losses that the page showed. The operator therefore does not acknowledge by mistake
    a loss that happened after the page was shown.
    """
    shown_losses = {kind: request.form.get(kind, "") for kind in ("missing", "repeated", "implausible")}
    asked = filled(
        proxies.AcknowledgeLosses,
        {each: request.form.get(each, "") for each in ("note", "org")},
        proxy=request.place["proxy"],
        expected=shown_losses,
    )
    done = await perform(proxies.acknowledge, context, actor, asked)
    said = f"The losses of {done.name} up to now are acknowledged. Later ones count again."
    return Redirect(request.link(f"/proxies/{done.proxy_id}"), said)


@form("/proxies/{proxy}/grant", again=one)
async def grant(context: OperationContext, actor: Actor, request: PageRequest) -> Redirect:
    org = request.form.get("grants", "")
    if not org:
        raise InvalidRequest("Choose an organisation.")
    asked = proxies.OrgOfProxy(proxy=request.place["proxy"], org=org)
    done = await perform(proxies.grant, context, actor, asked)
    return Redirect(
        request.link(f"/proxies/{done.proxy_id}"), f"{done.name} serves {org} from its next sync."
    )


@page("POST", "/proxies/{proxy}/revoke")
async def revoke(context: OperationContext, actor: Actor, request: PageRequest) -> Redirect:
    org = request.form.get("revokes", "")
    asked = proxies.OrgOfProxy(proxy=request.place["proxy"], org=org)
    done = await perform(proxies.revoke, context, actor, asked)
    said = f"Events of {org} from {done.name} are refused now. Its next sync removes the rules of {org}."
    # An operator who has a role only in that organisation has no access to the proxy any more.
    return Redirect(request.link(f"/proxies/{done.proxy_id}" if done.orgs else "/proxies"), said)


def _reference(request: PageRequest) -> proxies.ProxyReference:
    return proxies.ProxyReference(proxy=request.place["proxy"])


def _secrets_page(name: str, made: proxies.NewProxySecrets, done: str, *, has_enrolled: bool = False) -> Page:
    values = {"name": name, "made": made, "done": done, "has_enrolled": has_enrolled}
    return Page("proxy_secrets.html", "Secrets", values, (_CRUMB, (name, f"/proxies/{made.proxy_id}")))


# List of proxies


def _row(proxy: ProxyHealth) -> _Row:
    health = "disabled" if not proxy.enabled else proxy.health
    counts = [round(each * 1000) for each in proxy.requests_per_second]
    rate = f"{_rate(proxy.requests_per_second[-1])} a second" if counts else ""
    return _Row(
        proxy,
        _KINDS[health],
        health,
        _rules_in_short(proxy),
        charts.sparkline(counts, "all") if counts else None,
        rate,
    )


def _rules_in_short(proxy: ProxyHealth) -> tuple[str, str]:
    """Describe how many of a proxy's rulesets this proxy enforces, and the state of its other rulesets."""
    states = Counter(each.state for each in proxy.rulesets)
    if not proxy.rulesets:
        return "plain", "none"
    if proxy.ended_at is not None:
        return "plain", "stopped"
    if states["behind"] + states["missing"]:
        late = [each for each in proxy.rulesets if each.state in ("behind", "missing")]
        first = late[0]
        at = f"at {first.version} of {first.in_force}" if first.version else "missing"
        more = f" and {len(late) - 1} more" if len(late) > 1 else ""
        return "warn", f"{first.name} {at}{more}"
    if states["unknown"]:
        return "plain", "unknown"
    return "good", "all current" if len(proxy.rulesets) > 1 else "current"


async def _manageable(context: OperationContext, actor: Actor) -> list[Org]:
    return [org for org in await context.resolve.orgs(actor) if actor.may("admin", org.org_id)]


# Page of one proxy


def _facts(proxy: ProxyDetails) -> list[tuple[str, str]]:
    said: list[tuple[str, str]] = [
        ("Version", shown(proxy.version or "–")),
        ("Address", proxy.public_base_url or "–"),
        ("Up for", _for(proxy.uptime_seconds)),
        ("Rules confirmed", _before(proxy.sync_age_seconds)),
        ("Clock", _skew(proxy.clock_skew_seconds)),
    ]
    if proxy.whole:
        pending = "–" if proxy.audit_pending is None else number(proxy.audit_pending)
        said += [
            ("Events not delivered", pending),
            ("Oldest of these events", _for(proxy.oldest_pending_seconds)),
        ]
    return said


def _for(seconds: float | None) -> str:
    return "–" if seconds is None else duration(round(seconds * 1000))


def _before(seconds: float | None) -> str:
    return "unknown" if seconds is None else f"{duration(round(seconds * 1000))} before the heartbeat"


def _skew(seconds: float | None) -> str:
    if seconds is None:
        return "not measured"
    if abs(seconds) < 1:
        return "in sync with the control plane"
    return f"{duration(round(abs(seconds) * 1000))} {direction(round(seconds * 1000))}"


def _charts(windows: Sequence[WindowFacts], zone: tzinfo) -> list[_Chart]:
    if not windows:
        return []
    times = [(rfc3339_ms(each.start) or 0, rfc3339_ms(each.end) or 0) for each in windows]
    span = charts.Span(times[0][0], max(end for _, end in times), zone)
    middles = [(start + end) // 2 for start, end in times]
    rates = [each.requests_per_second for each in windows]
    blocked = [each.requests_per_second * each.blocked / max(each.requests, 1) for each in windows]
    failed = [each.upstream_errors / max(each.requests, 1) * 100 for each in windows]

    def chart(title: str, label: str, unit: str, *series: tuple[str, str, Sequence[float | None]]) -> _Chart:
        """Draw a chart with several data series for one proxy.

        Each series has the form (kind, name, value in each window).
        """
        curves = [charts.Curve(kind, list(zip(middles, values, strict=True))) for kind, _, values in series]
        reaches = []
        for at, (start, end) in enumerate(times):
            said = [f"{name} {_with_unit(values[at], unit)}".strip() for _, name, values in series]
            reaches.append((start, end, "\n".join((text.interval(start, end, zone), *said))))
        legend = tuple((kind, name) for kind, name, _ in series if name)
        return _Chart(title, legend, unit, charts.curves(curves, label, span, reaches))

    return [
        chart(
            "Requests", "Requests a second, and those that were blocked", "a second",
            ("all", "all", rates), ("block", "blocked", blocked),
        ),
        chart("Failed upstream", "Percent of requests", "%", ("log_only", "", failed)),
        chart(
            "Latency", "Latency in milliseconds: p50, p95 and p99", "ms",
            ("all", "p50", [each.p50_ms for each in windows]),
            ("filter", "p95", [each.p95_ms for each in windows]),
            ("log_only", "p99", [each.p99_ms for each in windows]),
        ),
    ]  # fmt: skip


def _with_unit(value: float | None, unit: str) -> str:
    return "no value" if value is None else f"{_rate(value)}{'' if unit == '%' else ' '}{unit}"


def _rate(value: float) -> str:
    return number(value) if value >= 10 else f"{value:.2f}".rstrip("0").rstrip(".")


def _reach(window: WindowFacts) -> Mapping[str, str]:
    return {"from": window.start, "to": window.end}


def _lane(org: str, sequence: SequenceFacts, manageable: Sequence[str]) -> _Lane:
    whole = sequence.highest_seq + sequence.undelivered
    blocks = [charts.Range("allow", 1, sequence.highest_seq, f"1 to {sequence.highest_seq}: arrived")]
    blocks += [
        charts.Range("block", first, last, f"{first} to {last}: missing") for first, last in sequence.missing
    ]
    if sequence.undelivered:
        first = sequence.highest_seq + 1
        blocks.append(charts.Range("log_only", first, whole, f"{first} to {whole}: still at the proxy"))
    label = (
        f"Event numbers 1 to {whole} of {org}: {sequence.missing_count} missing, "
        f"{sequence.undelivered} still at the proxy"
    )
    strip = charts.strip(whole, blocks if sequence.highest_seq else blocks[1:], label)
    is_lossy = any(msgspec.structs.astuple(sequence.unacknowledged))
    return _Lane(org, sequence, strip, can_acknowledge=is_lossy and org in manageable)
