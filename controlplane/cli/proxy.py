"""Commands of `proxy` (alias `proxies`), which manage proxy instances and enrolment tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from controlplane.cli import enrolment
from controlplane.cli.context import (
    AnyOrg,
    Cli,
    Json,
    NoTrunc,
    OneOrg,
    Wide,
    Yes,
    clock,
    confirm,
    org_names,
    print_facts,
    print_json,
    print_list,
    print_next,
)
from controlplane.cli.deletions import YesDelete
from controlplane.cli.deletions import delete as delete_thing
from controlplane.cli.failure import named_as_options
from controlplane.cli.grace import Grace, grace_seconds
from controlplane.cli.layouts import Column, Layout, fit_of
from controlplane.cli.lists import NAMED_OPTIONS, Cursor, Limit, Search, page_members, print_page
from controlplane.cli.next_steps import after_grant, after_keys_of_enrolled, after_new_keys, after_proxy
from controlplane.cli.rollout import Timeout, conclude, rollout_row, wait_for
from controlplane.store.pages import HEALTH_ORDER, Health
from proxy.wire.figures import counted, number

if TYPE_CHECKING:
    from controlplane.cli.moments import Clock
    from controlplane.operations.fleet import EnforcedFacts, ProxyDetails, ProxyHealth, SequenceFacts

app = typer.Typer()
app.add_typer(enrolment.app, name="enrol-token", help="Tokens with which proxies enrol themselves.")

PROXIES: Final = Layout(
    "proxies",
    (
        Column("name"),
        Column("health"),
        Column("lastSeen", "time"),
        Column("why", "prose"),
        Column("rules"),
        Column("pending", "number", "Backlog"),
        Column("missing", "number"),
        Column("requests"),
        Column("orgs", "prose", "Organisations"),
        Column("version"),
        Column("enabled"),
        Column("proxyId", "id"),
    ),
    leads=("name",),
    # The health of a disabled proxy already shows that it is disabled.
    drops=("enabled", "version", "orgs", "requests", "pending", "rules", "missing", "why"),
)
ROLLOUT: Final = Layout(
    "proxies",
    (Column("name"), Column("state"), Column("version", "number"), Column("behind")),
    leads=("name",),
    drops=("behind", "version"),
)

_Sort = Annotated[
    str | None,
    typer.Option(
        "--sort",
        metavar="COLUMN",
        help="Column to sort by: name, health, lastSeen or createdAt. Put - before the column name"
        " for descending order.",
    ),
]

_BARS: Final = "▁▂▃▄▅▆▇█"
_MOST_BARS: Final = 40

_Proxy = Annotated[str, typer.Argument(metavar="PROXY", help="ID or name.")]


@app.command()
def add(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the new proxy.")],
    org: Annotated[
        list[str],
        typer.Option(
            "--org",
            metavar="ORG",
            help="Organisation, by ID or name. Give the option once for each organisation.",
        ),
    ],
    json: Json = False,
) -> None:
    """Add a proxy instance, and print its API key and HMAC secret.

    The API key and the HMAC secret are shown only once.
    """
    from controlplane.operations import proxies

    cli: Cli = ctx.obj
    added = cli.call(proxies.add, proxies.AddProxy(name, tuple(org)))
    print_facts(added, as_json=json)
    if not json:
        print_next(after_proxy(cli.typed, added.api_key, added.hmac_secret, name))


@app.command("rotate-secret")
def rotate_secret(
    ctx: typer.Context, proxy: _Proxy, grace: Grace = "0s", yes: Yes = False, json: Json = False
) -> None:
    """Make a new API key and HMAC secret for a proxy, and print the new key and secret.

    The new API key and HMAC secret are shown only once.

    Without --grace, the proxy's old API key and HMAC secret end at once. Until the proxy has its new secrets,
    it continues with its last rules, and keeps its audit events.
    """
    from controlplane.operations import fleet, proxies

    cli: Cli = ctx.obj
    seconds = grace_seconds(grace, proxies.MAX_GRACE_SECONDS)
    end = f"in {grace}" if seconds else "now"
    confirm(f"End the API key and the HMAC secret of {proxy} {end}, and make new ones?", yes=yes)
    made = cli.call(proxies.rotate_secret, proxies.RotateProxySecret(proxy, grace_seconds=seconds))
    print_facts(made, as_json=json)
    if json:
        return
    shown = cli.call(fleet.show, fleet.ProxyReference(proxy))
    old_until = None if shown.old_keys_until is None else clock().whole(shown.old_keys_until)
    print_next(after_new_keys(cli.typed, made.api_key, made.hmac_secret, proxy, old_until))
    if shown.enrolment_token is not None:
        print_next(after_keys_of_enrolled(cli.typed, shown.name))


@app.command("list")
def list_proxies(
    ctx: typer.Context,
    org: AnyOrg = None,
    health: Annotated[
        Health | None, typer.Option("--health", metavar="HEALTH", help="Only proxies with this health.")
    ] = None,
    needs_look: Annotated[
        bool, typer.Option("--needs-look", help="Only proxies whose health is not ok, or that lost events.")
    ] = False,
    retired: Annotated[
        bool, typer.Option("--retired", help="Only retired proxies, which the list omits by default.")
    ] = False,
    search: Search = None,
    sort: _Sort = None,
    limit: Limit = None,
    cursor: Cursor = None,
    wide: Wide = False,
    no_trunc: NoTrunc = False,
    json: Json = False,
) -> None:
    """List proxies by name, with the health of each proxy."""
    from controlplane.operations import fleet

    cli: Cli = ctx.obj
    members = page_members(search, sort, limit, cursor, as_json=json)
    asked = fleet.ListFleet(org=org, health=health, needs_look=needs_look, retired=retired, **members)
    with named_as_options(NAMED_OPTIONS):
        found = cli.call(fleet.list_all, asked)
    rows = list(map(_row, found.proxies))
    print_page(PROXIES, found, rows, as_json=json, fit=fit_of(wide, no_trunc))


@app.command()
def counts(ctx: typer.Context, org: AnyOrg = None, json: Json = False) -> None:
    """Count the proxies by state of health."""
    from controlplane.operations import fleet

    cli: Cli = ctx.obj
    found = cli.call(fleet.count, fleet.CountFleet(org))
    if json:
        print_json(found)
        return
    # Use the names that `proxy list --health` accepts.
    names = ("total", *HEALTH_ORDER, "retired")
    print_facts({name: getattr(found, name.replace(" ", "_")) for name in names}, as_json=False)


@app.command()
def show(ctx: typer.Context, proxy: _Proxy, json: Json = False) -> None:
    """Show one proxy: its last heartbeat, its rulesets, and its missing audit events."""
    from controlplane.operations import fleet

    cli: Cli = ctx.obj
    found = cli.call(fleet.show, fleet.ProxyReference(proxy))
    print_facts(found if json else _describe(found, org_names(cli)), as_json=json)


@app.command()
def wait(
    ctx: typer.Context,
    ruleset: Annotated[str, typer.Option("--ruleset", metavar="NAME", help="ID or name.")],
    version: Annotated[
        int | None,
        typer.Option("--version", metavar="V", help="Version to wait for (the active one)."),
    ] = None,
    org: AnyOrg = None,
    timeout: Timeout = 120,
    every: Annotated[
        bool, typer.Option("--all", help="Also wait for proxies that have sent no heartbeat for a long time.")
    ] = False,
    json: Json = False,
) -> None:
    """Wait until every live proxy of the organisation enforces the given ruleset version or a later version.

    After a timeout, print the outdated proxies and exit with status 1.
    """
    waited = wait_for(ctx.obj, ruleset, version, org, timeout=timeout, with_lost=every)
    if json:
        print_json(waited.facts)
    else:
        print_list(ROLLOUT, list(map(rollout_row, waited.rollout.proxies)), as_json=False)
    conclude(waited)


@app.command()
def grant(ctx: typer.Context, proxy: _Proxy, org: OneOrg, json: Json = False) -> None:
    """Add an organisation to the organisations that a proxy serves."""
    from controlplane.operations import proxies

    cli: Cli = ctx.obj
    print_facts(cli.call(proxies.grant, proxies.OrgOfProxy(proxy, org)), as_json=json)
    if not json:
        print_next(after_grant(cli.typed, proxy, org))


@app.command()
def revoke(ctx: typer.Context, proxy: _Proxy, org: OneOrg, json: Json = False) -> None:
    """Remove an organisation from the organisations that a proxy serves.

    If this proxy delivers events of the removed organisation after the command, the control plane refuses
    these events. At the next sync, the proxy drops the rules of the removed organisation.
    """
    from controlplane.operations import proxies

    cli: Cli = ctx.obj
    print_facts(cli.call(proxies.revoke, proxies.OrgOfProxy(proxy, org)), as_json=json)


@app.command()
def acknowledge(
    ctx: typer.Context,
    proxy: _Proxy,
    note: Annotated[
        str,
        typer.Option(
            "--note", metavar="TEXT", help="Explanation of the event losses, stored in the operator log."
        ),
    ],
    org: AnyOrg = None,
    json: Json = False,
) -> None:
    """Acknowledge a proxy's missing events, repeated sequence numbers and implausible times.

    Acknowledged losses no longer affect the health of the proxy. Losses that occur after the acknowledgement
    affect the health of the proxy again.
    """
    from controlplane.operations import proxies

    cli: Cli = ctx.obj
    asked = proxies.AcknowledgeLosses(proxy=proxy, note=note, org=org)
    print_facts(cli.call(proxies.acknowledge, asked), as_json=json)


@app.command()
def disable(ctx: typer.Context, proxy: _Proxy, json: Json = False) -> None:
    """Disable a proxy: refuse its API key from now on."""
    from controlplane.operations import proxies

    cli: Cli = ctx.obj
    print_facts(cli.call(proxies.disable, proxies.ProxyReference(proxy)), as_json=json)


@app.command()
def enable(ctx: typer.Context, proxy: _Proxy, json: Json = False) -> None:
    """Enable a proxy: accept its API key again."""
    from controlplane.operations import proxies

    cli: Cli = ctx.obj
    print_facts(cli.call(proxies.enable, proxies.ProxyReference(proxy)), as_json=json)


@app.command()
def delete(ctx: typer.Context, proxy: _Proxy, yes: YesDelete = False, json: Json = False) -> None:
    """Delete a proxy, and end its keys at once.

    The control plane keeps the audit events that the proxy delivered before its deletion. If the proxy has
    events that it did not deliver before its deletion, these events are lost.
    """
    from controlplane.operations import deletions, proxies

    asked = proxies.ProxyReference(proxy)
    effect_of = deletions.EffectOfDeletion("proxy", proxy)
    delete_thing(ctx.obj, effect_of, deletions.delete_proxy, asked, yes=yes, json=json)


def _row(proxy: ProxyHealth) -> dict[str, Any]:
    """Return the row that shows a proxy in a table, in words for people."""
    current = sum(each.state == "enforced" for each in proxy.rulesets)
    return {
        "name": proxy.name,
        "orgs": proxy.orgs,
        "enabled": proxy.enabled,
        "lastSeen": proxy.last_seen,
        "health": proxy.health,
        "version": proxy.version,
        "rules": f"{current} of {len(proxy.rulesets)}",
        "pending": proxy.audit_pending,
        "missing": proxy.missing_events,
        "requests": _bars(proxy.requests_per_second[-10:]),
        "why": "; ".join(proxy.reasons),
        "proxyId": proxy.proxy_id,
    }


def _describe(proxy: ProxyDetails, orgs: Mapping[str, str]) -> dict[str, Any]:
    """Return the facts about a proxy in words for people.

    A long list is shown as a small chart, or replaced by the number of its items. Only the output of `--json`
    contains all items of long lists.
    """
    rates = [each.requests_per_second for each in proxy.windows]
    slow = [each.p95_ms or 0.0 for each in proxy.windows]
    return {
        "name": proxy.name,
        "health": "; ".join((proxy.health, *proxy.reasons)),
        "enabled": proxy.enabled,
        "organisations": proxy.orgs
        if proxy.whole
        else (*proxy.orgs, "others that you have no permission to see"),
        "lastSeen": proxy.last_seen,
        "lastHeartbeat": _aged(proxy.last_heartbeat, proxy.heartbeat_age_seconds),
        "lastSync": None if proxy.sync_age_seconds is None else f"{_for(proxy.sync_age_seconds)} ago",
        "upFor": None if proxy.uptime_seconds is None else _for(proxy.uptime_seconds),
        "clockOffBy": None if proxy.clock_skew_seconds is None else f"{proxy.clock_skew_seconds:.1f} s",
        "backlog": _backlog(proxy),
        "requests": f"{_bars(rates)} up to {max(rates):,.1f} a second" if rates else None,
        "latency": f"{_bars(slow)} 95% of the requests within {max(slow):,.1f} ms" if slow else None,
        "restarts": len(proxy.restarts),
        "heartbeats": f"{number(len(proxy.heartbeats))} (`--json` lists them)",
        "version": proxy.version,
        "address": proxy.public_base_url,
        "secretVersion": proxy.secret_version,
        "keys": _keys(proxy),
        "createdAt": proxy.created_at,
        "cameBy": "an operator" if proxy.enrolment_token is None else f"token {proxy.enrolment_token}",
        "endedAt": proxy.ended_at,
        "retiredAt": proxy.retired_at,
        "proxyId": proxy.proxy_id,
        "rulesets": [f"{each.name}: {_enforced(each)}" for each in proxy.rulesets],
        "events": [
            f"{orgs.get(each.org_id, each.org_id)}: {_sequence(each, clock())}" for each in proxy.sequences
        ],
        "heartbeat": None if proxy.heartbeat is None else _heartbeat(proxy.heartbeat),
        "metrics": proxy.metrics,
    }


def _keys(proxy: ProxyDetails) -> str:
    """Return when a proxy's keys were made, when its old keys expire, and when it renews its keys."""
    made = "at an unknown time" if proxy.keys_made_at is None else clock().whole(proxy.keys_made_at)
    said = [f"made {made}"]
    if proxy.renewed_keys_are_unused:
        said.append("the proxy has not used them yet; the old ones work until 1 h after their first use")
    if proxy.old_keys_until is not None:
        said.append(f"the old ones work until {clock().whole(proxy.old_keys_until)}")
    if proxy.rotate_at is not None:
        due = "renewal by the proxy is due since" if proxy.rotation_is_due else "the proxy renews them"
        said.append(f"{due} {clock().whole(proxy.rotate_at)}")
    return "; ".join(said)


def _heartbeat(said: Mapping[str, Any]) -> dict[str, Any]:
    """Return a proxy's last heartbeat, with one line for each check in the heartbeat."""
    checks = said.get("checks")
    if not isinstance(checks, Mapping):
        return dict(said)
    return {**said, "checks": [f"{name}: {_check(each)}" for name, each in checks.items()]}


def _check(check: Any) -> str:
    if not isinstance(check, Mapping):
        return str(check)
    return ", ".join(str(each) for each in (check.get("status"), check.get("detail")) if each)


def _aged(time: str | None, age_seconds: float | None) -> str | None:
    if time is None or age_seconds is None:
        return None
    return f"{clock().whole(time)}, {_for(age_seconds)} ago"


def _for(seconds: float) -> str:
    from controlplane.fleet_health import duration

    return duration(round(seconds * 1000))


def _backlog(proxy: ProxyDetails) -> str | None:
    if proxy.audit_pending is None:
        return None
    oldest = f", the oldest {_for(proxy.oldest_pending_seconds)} old" if proxy.oldest_pending_seconds else ""
    return counted(proxy.audit_pending, "event") + oldest


def _enforced(ruleset: EnforcedFacts) -> str:
    if ruleset.version is None:
        return f"version {ruleset.in_force} is active; {ruleset.state}"
    return f"version {ruleset.version}; version {ruleset.in_force} is active; {ruleset.state}"


def _sequence(sequence: SequenceFacts, clock: Clock) -> str:
    """Return one line about the events that the control plane received from a proxy for one organisation."""
    losses = (
        ("missing", sequence.missing_count, None),
        ("with a reused number", sequence.repeated_count, sequence.repeated_at),
        ("with an implausible time", sequence.implausible_count, sequence.implausible_at),
        ("not delivered yet", sequence.undelivered, None),
    )
    said = [
        f"{number(count)} {what}" + (f" (last at {clock.whole(at)})" if at else "")
        for what, count, at in losses
        if count
    ]
    known = f"; acknowledged by {sequence.acknowledged_by}" if sequence.acknowledged_by else ""
    return f"up to number {number(sequence.highest_seq)}: {', '.join(said) or 'complete'}{known}"


def _bars(values: Sequence[float]) -> str:
    values = values[-_MOST_BARS:]
    most = max(values, default=0) or 1
    return "".join(_BARS[min(int(value / most * len(_BARS)), len(_BARS) - 1)] for value in values)
