"""Commands of `kill` and `unkill`, for emergency stops of an app, an organisation or everything."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from controlplane.cli.context import AnyOrg, Cli, Json, NoTrunc, Wide, print_facts, print_list, print_next
from controlplane.cli.failure import FAILED, INVALID_INPUT, CommandFailed
from controlplane.cli.layouts import Column, Layout, fit_of
from controlplane.cli.next_steps import after_stop

if TYPE_CHECKING:
    from controlplane.operations.emergency import StopFacts
    from controlplane.operations.stop_effects import StopToCome

stop = typer.Typer()
lift = typer.Typer()

Scope = Literal["app", "org", "all"]

STOPS: Final = Layout(
    "stops",
    (
        Column("scope"),
        Column("org", title="Organisation"),
        Column("app"),
        Column("stoppedAt", "time", "Stopped"),
        Column("stoppedBy", title="By"),
        Column("reason", "prose"),
        Column("orgId", "id"),
        Column("appId", "id"),
    ),
    leads=("scope", "org", "app"),
    drops=("reason", "stoppedBy"),
)

REACH: Final = Layout(
    "proxies",
    (
        Column("name", title="Proxy"),
        Column("state"),
        Column("inForceAt", "moment", "Active"),
        Column("lastHeartbeat", "moment", "Last heartbeat"),
        Column("proxyId", "id"),
    ),
    leads=("name",),
    drops=("lastHeartbeat",),
)

_App = Annotated[str, typer.Argument(metavar="APP", help="App, by ID, client ID or name.")]
_Org = Annotated[str, typer.Argument(metavar="ORG", help="ID or name.")]
_Reason = Annotated[
    str, typer.Option("--reason", metavar="TEXT", help="Reason, shown to everyone who can see the stop.")
]
_Yes = Annotated[bool, typer.Option("--yes", help="Stop without asking for confirmation.")]


@stop.command("app")
def stop_app(
    ctx: typer.Context,
    app: _App,
    org: AnyOrg = None,
    reason: _Reason = "",
    yes: _Yes = False,
    json: Json = False,
) -> None:
    """Stop an app: refuse all its requests, and end running requests, from each proxy's next sync on."""
    from controlplane.operations import emergency
    from controlplane.operations.stop_effects import StopToCome

    cli: Cli = ctx.obj
    _ask(cli, StopToCome(org, app), yes)
    stopped = cli.call(emergency.stop_app, emergency.AppToStop(app, org, reason))
    _print_stop(cli, stopped, ("app", stopped.app or app, "--org", stopped.org or ""), as_json=json)


@stop.command("org")
def stop_org(
    ctx: typer.Context, org: _Org, reason: _Reason = "", yes: _Yes = False, json: Json = False
) -> None:
    """Stop an organisation: refuse the requests of all its apps, including apps that are added later."""
    from controlplane.operations import emergency
    from controlplane.operations.stop_effects import StopToCome

    cli: Cli = ctx.obj
    _ask(cli, StopToCome(org), yes)
    stopped = cli.call(emergency.stop_org, emergency.OrgToStop(org, reason))
    _print_stop(cli, stopped, ("org", stopped.org or org), as_json=json)


@stop.command("all")
def stop_all(ctx: typer.Context, reason: _Reason = "", yes: _Yes = False, json: Json = False) -> None:
    """Stop all organisations: refuse the requests of every app of every organisation."""
    from controlplane.operations import emergency
    from controlplane.operations.stop_effects import StopToCome

    cli: Cli = ctx.obj
    _ask(cli, StopToCome(), yes)
    _print_stop(cli, cli.call(emergency.stop_all, emergency.AllToStop(reason)), ("all",), as_json=json)


@stop.command("list")
def list_stops(ctx: typer.Context, wide: Wide = False, no_trunc: NoTrunc = False, json: Json = False) -> None:
    """List the emergency stops that are set now."""
    from controlplane.operations import emergency

    cli: Cli = ctx.obj
    found = cli.call(emergency.list_all, emergency.Everything())
    print_list(STOPS, found.stops, as_json=json, fit=fit_of(wide, no_trunc))
    from controlplane.operations.stop_effects import StopFilesRequest, stop_files

    for each in cli.call(stop_files, StopFilesRequest()).proxies:
        typer.echo(f"{each.name}, stopped by the file on its host: {each.stops}", err=True)


@stop.command("reach")
def reach(
    ctx: typer.Context,
    scope: Annotated[
        Scope | None,
        typer.Argument(metavar="[app|org|all]", help="Scope of the stop, as in `kill`: app, org or all."),
    ] = None,
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="App or organisation, by ID or name.")
    ] = None,
    app: Annotated[
        str | None, typer.Option("--app", metavar="APP", help="App whose emergency stop to show.")
    ] = None,
    org: AnyOrg = None,
    wide: Wide = False,
    no_trunc: NoTrunc = False,
    json: Json = False,
) -> None:
    """List the proxies that have confirmed the stop of an app, of an organisation, or of everything."""
    from controlplane.operations import stop_effects

    cli: Cli = ctx.obj
    if (name is None) is not (scope in (None, "all")):
        raise CommandFailed(INVALID_INPUT, "name the emergency stop: give `app APP`, `org ORG` or `all`")
    if name is not None and (app is not None or (scope == "org" and org is not None)):
        raise CommandFailed(INVALID_INPUT, f"{scope} {name}: give only one emergency stop")
    app, org = (name if scope == "app" else app), (name if scope == "org" else org)
    found = cli.call(stop_effects.reach, stop_effects.StopPlace(org, app))
    if found.stopped_at is None:
        raise CommandFailed(
            FAILED,
            "the emergency stop of this app or organisation is not set; `kill list` shows all stops"
            if app or org
            else "no emergency stop of everything is set; --app or --org chooses another stop, "
            "and `kill list` shows all stops",
        )
    print_list(REACH, found.proxies, as_json=json, fit=fit_of(wide, no_trunc))


@lift.command("app")
def lift_app(ctx: typer.Context, app: _App, org: AnyOrg = None, json: Json = False) -> None:
    """Lift the emergency stop of an app, and print the emergency stops that remain active."""
    from controlplane.operations import emergency

    cli: Cli = ctx.obj
    print_list(STOPS, cli.call(emergency.lift_app, emergency.StoppedApp(app, org)).stops, as_json=json)


@lift.command("org")
def lift_org(ctx: typer.Context, org: _Org, json: Json = False) -> None:
    """Lift the emergency stop of an organisation.

    After the change, `unkill` prints the emergency stops that remain active.
    """
    from controlplane.operations import emergency

    cli: Cli = ctx.obj
    print_list(STOPS, cli.call(emergency.lift_org, emergency.StoppedOrg(org)).stops, as_json=json)


@lift.command("all")
def lift_all(ctx: typer.Context, json: Json = False) -> None:
    """Lift the emergency stop of all organisations.

    After the change, `unkill` prints the emergency stops that remain active.
    """
    from controlplane.operations import emergency

    cli: Cli = ctx.obj
    print_list(STOPS, cli.call(emergency.lift_all, emergency.Everything()).stops, as_json=json)


def _print_stop(cli: Cli, stopped: StopFacts, place: tuple[str, ...], *, as_json: bool) -> None:
    print_facts(stopped, as_json=as_json)
    if not as_json:
        print_next(after_stop(cli.typed, place))


def _ask(cli: Cli, to_come: StopToCome, yes: bool) -> None:
    """Print which requests an emergency stop will refuse and, on a terminal, ask for consent.

    Raise CommandFailed if the operator does not consent.
    """
    from controlplane.operations import stop_effects
    from controlplane.operations.stop_words import consequences, what_stops

    if yes or not sys.stdin.isatty():
        return
    found = cli.call(stop_effects.effect, to_come)
    for line in (
        *consequences(found),
        "Running requests end at once. Only an admin can lift the stop.",
    ):
        typer.echo(line, err=True)
    if not typer.confirm(f"Stop {what_stops(found)}?", err=True):
        raise CommandFailed(FAILED, "nothing was stopped")
