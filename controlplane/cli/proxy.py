"""`proxy`, or `proxies`: add, list, counts, show, wait, acknowledge, grant, revoke, rotate-secret, disable
and enable proxy instances."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from controlplane.cli.context import (
    AnyOrg,
    Cli,
    Json,
    OneOrg,
    facts_of,
    print_facts,
    print_json,
    print_list,
)
from controlplane.cli.failure import named_as_options
from controlplane.cli.lists import NAMED_OPTIONS, Cursor, Limit, Search, page_members, print_page
from controlplane.cli.rollout import Timeout, conclude, rollout_row, wait_for
from controlplane.store.pages import HEALTH_ORDER, Health

if TYPE_CHECKING:
    from controlplane.operations.fleet import ProxyDetails, ProxyHealth, SequenceFacts

app = typer.Typer()

_Sort = Annotated[
    str | None,
    typer.Option(
        "--sort", metavar="COLUMN", help="name, health, lastSeen or createdAt; - before it: descending."
    ),
]

_BARS: Final = "▁▂▃▄▅▆▇█"
_MOST_BARS: Final = 40

_Proxy = Annotated[str, typer.Argument(metavar="PROXY", help="Id or name.")]


@app.command()
def add(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME")],
    org: Annotated[
        list[str],
        typer.Option("--org", metavar="ORG", help="An organisation, by id or name; several may be given."),
    ],
    json: Json = False,
) -> None:
    """Add a proxy instance. Its API key and HMAC secret are printed this once."""
    from controlplane.operations import proxies

    cli: Cli = ctx.obj
    print_facts(cli.call(proxies.add, proxies.AddProxy(name, tuple(org))), as_json=json)


@app.command("rotate-secret")
def rotate_secret(ctx: typer.Context, proxy: _Proxy, json: Json = False) -> None:
    """A new API key and HMAC secret, printed this once; the old ones end at once."""
    from controlplane.operations import proxies

    cli: Cli = ctx.obj
    print_facts(cli.call(proxies.rotate_secret, proxies.RotateProxySecret(proxy)), as_json=json)


@app.command("list")
def list_proxies(
    ctx: typer.Context,
    org: AnyOrg = None,
    health: Annotated[
        Health | None, typer.Option("--health", metavar="HEALTH", help="Only proxies of this health.")
    ] = None,
    needs_look: Annotated[
        bool, typer.Option("--needs-look", help="Only proxies that are not well, or have losses.")
    ] = False,
    search: Search = None,
    sort: _Sort = None,
    limit: Limit = None,
    cursor: Cursor = None,
    json: Json = False,
) -> None:
    """Proxy instances and how they are, by name."""
    from controlplane.operations import fleet

    cli: Cli = ctx.obj
    members = page_members(search, sort, limit, cursor, as_json=json)
    asked = fleet.ListFleet(org=org, health=health, needs_look=needs_look, **members)
    with named_as_options(NAMED_OPTIONS):
        found = cli.call(fleet.list_all, asked)
    print_page("proxies", found, list(map(_row, found.proxies)), as_json=json)


@app.command()
def counts(ctx: typer.Context, org: AnyOrg = None, json: Json = False) -> None:
    """Count the proxies of each health."""
    from controlplane.operations import fleet

    cli: Cli = ctx.obj
    found = cli.call(fleet.count, fleet.CountFleet(org))
    if json:
        print_json(found)
        return
    # By the names that `proxy list --health` takes.
    names = ("total", *HEALTH_ORDER)
    print_facts({name: getattr(found, name.replace(" ", "_")) for name in names}, as_json=False)


@app.command()
def show(ctx: typer.Context, proxy: _Proxy, json: Json = False) -> None:
    """One proxy instance: what it last said of itself, and which of its audit events are missing."""
    from controlplane.operations import fleet

    cli: Cli = ctx.obj
    found = cli.call(fleet.show, fleet.ProxyReference(proxy))
    print_facts(found if json else _describe(found), as_json=json)


@app.command()
def wait(
    ctx: typer.Context,
    ruleset: Annotated[str, typer.Option("--ruleset", metavar="NAME", help="Id or name.")],
    version: Annotated[
        int | None, typer.Option("--version", metavar="V", help="By default the one in force.")
    ] = None,
    org: AnyOrg = None,
    timeout: Timeout = 120,
    every: Annotated[
        bool, typer.Option("--all", help="Wait also for proxies that have not been heard of for long.")
    ] = False,
    json: Json = False,
) -> None:
    """Wait until every live proxy that serves the ruleset's organisation enforces that version of it, or a
    later one. When time runs out, the outdated proxies are named and the exit status is 1."""
    waited = wait_for(ctx.obj, ruleset, version, org, timeout=timeout, with_lost=every)
    if json:
        print_json(waited.facts)
    else:
        print_list("proxies", list(map(rollout_row, waited.rollout.proxies)), as_json=False)
    conclude(waited)


@app.command()
def grant(ctx: typer.Context, proxy: _Proxy, org: OneOrg, json: Json = False) -> None:
    """Let the proxy serve one organisation more."""
    from controlplane.operations import proxies

    cli: Cli = ctx.obj
    print_facts(cli.call(proxies.grant, proxies.OrgOfProxy(proxy, org)), as_json=json)


@app.command()
def revoke(ctx: typer.Context, proxy: _Proxy, org: OneOrg, json: Json = False) -> None:
    """Take an organisation from the proxy: its rules at the next sync, its events at once."""
    from controlplane.operations import proxies

    cli: Cli = ctx.obj
    print_facts(cli.call(proxies.revoke, proxies.OrgOfProxy(proxy, org)), as_json=json)


@app.command()
def acknowledge(
    ctx: typer.Context,
    proxy: _Proxy,
    note: Annotated[
        str, typer.Option("--note", metavar="TEXT", help="Explanation of the losses, for the operator log.")
    ],
    org: AnyOrg = None,
    json: Json = False,
) -> None:
    """Acknowledge the proxy's missing events, repeated numbers and implausible times: up to now they no
    longer count against its health."""
    from controlplane.operations import proxies

    cli: Cli = ctx.obj
    asked = proxies.AcknowledgeLosses(proxy=proxy, note=note, org=org)
    print_facts(cli.call(proxies.acknowledge, asked), as_json=json)


@app.command()
def disable(ctx: typer.Context, proxy: _Proxy, json: Json = False) -> None:
    """Refuse the proxy's API key from now on."""
    from controlplane.operations import proxies

    cli: Cli = ctx.obj
    print_facts(cli.call(proxies.disable, proxies.ProxyReference(proxy)), as_json=json)


@app.command()
def enable(ctx: typer.Context, proxy: _Proxy, json: Json = False) -> None:
    """Take the proxy's API key again."""
    from controlplane.operations import proxies

    cli: Cli = ctx.obj
    print_facts(cli.call(proxies.enable, proxies.ProxyReference(proxy)), as_json=json)


def _row(proxy: ProxyHealth) -> dict[str, Any]:
    """What a person reads of a proxy in a list."""
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


def _describe(proxy: ProxyDetails) -> dict[str, Any]:
    """All of it, with the long lists drawn or counted: `--json` has them whole."""
    facts = facts_of(proxy)
    rates = [each.requests_per_second for each in proxy.windows]
    slow = [each.p95_ms or 0.0 for each in proxy.windows]
    facts["requestsPerSecond"] = f"{_bars(rates)} up to {max(rates):g}" if rates else None
    facts["windows"] = f"{_bars(slow)} 95 % within up to {max(slow):g} ms" if slow else None
    facts["heartbeats"] = f"{len(proxy.heartbeats)} of them, with --json"
    facts["sequences"] = [_sequence(each) for each in proxy.sequences]
    facts["rulesets"] = [
        f"{each.name} {each.version or '-'} of {each.in_force} ({each.state})" for each in proxy.rulesets
    ]
    return facts


def _sequence(sequence: SequenceFacts) -> str:
    """Return in a line what came of one organisation."""
    counts = (
        ("missing", sequence.missing_count),
        ("repeated", sequence.repeated_count),
        ("implausible", sequence.implausible_count),
        ("not delivered", sequence.undelivered),
    )
    said = "".join(f", {count} {what}" for what, count in counts if count)
    return f"{sequence.org_id}: up to {sequence.highest_seq}{said or ', all of them'}"


def _bars(values: Sequence[float]) -> str:
    values = values[-_MOST_BARS:]
    most = max(values, default=0) or 1
    return "".join(_BARS[min(int(value / most * len(_BARS)), len(_BARS) - 1)] for value in values)
