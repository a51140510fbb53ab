"""`kill app|org|all|list` and `unkill app|org|all`: the emergency stop."""

from __future__ import annotations

from typing import Annotated

import typer

from controlplane.cli.context import AnyOrg, Cli, Json, print_facts, print_list

stop = typer.Typer()
lift = typer.Typer()

_App = Annotated[str, typer.Argument(metavar="APP", help="Id, client id or name.")]
_Org = Annotated[str, typer.Argument(metavar="ORG", help="Id or name.")]
_Reason = Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why, for who comes upon it.")]


@stop.command("app")
def stop_app(
    ctx: typer.Context, app: _App, org: AnyOrg = None, reason: _Reason = "", json: Json = False
) -> None:
    """Refuse an app identity's requests, running ones too, from the proxies' next sync on."""
    from controlplane.operations import emergency

    cli: Cli = ctx.obj
    print_facts(cli.call(emergency.stop_app, emergency.AppToStop(app, org, reason)), as_json=json)


@stop.command("org")
def stop_org(ctx: typer.Context, org: _Org, reason: _Reason = "", json: Json = False) -> None:
    """Refuse the requests of an organisation's app identities, of ones to come too."""
    from controlplane.operations import emergency

    cli: Cli = ctx.obj
    print_facts(cli.call(emergency.stop_org, emergency.OrgToStop(org, reason)), as_json=json)


@stop.command("all")
def stop_all(ctx: typer.Context, reason: _Reason = "", json: Json = False) -> None:
    """Refuse the requests of every app identity of every organisation."""
    from controlplane.operations import emergency

    cli: Cli = ctx.obj
    print_facts(cli.call(emergency.stop_all, emergency.AllToStop(reason)), as_json=json)


@stop.command("list")
def list_stops(ctx: typer.Context, json: Json = False) -> None:
    """What is stopped now."""
    from controlplane.operations import emergency

    cli: Cli = ctx.obj
    print_list("stops", cli.call(emergency.list_all, emergency.Everything()).stops, as_json=json)


@lift.command("app")
def lift_app(ctx: typer.Context, app: _App, org: AnyOrg = None, json: Json = False) -> None:
    """Lift an app identity's own stop; other stops stay, and are printed."""
    from controlplane.operations import emergency

    cli: Cli = ctx.obj
    print_list("stops", cli.call(emergency.lift_app, emergency.StoppedApp(app, org)).stops, as_json=json)


@lift.command("org")
def lift_org(ctx: typer.Context, org: _Org, json: Json = False) -> None:
    """Lift an organisation's own stop; other stops stay, and are printed."""
    from controlplane.operations import emergency

    cli: Cli = ctx.obj
    print_list("stops", cli.call(emergency.lift_org, emergency.StoppedOrg(org)).stops, as_json=json)


@lift.command("all")
def lift_all(ctx: typer.Context, json: Json = False) -> None:
    """Lift the stop of everything; other stops stay, and are printed."""
    from controlplane.operations import emergency

    cli: Cli = ctx.obj
    print_list("stops", cli.call(emergency.lift_all, emergency.Everything()).stops, as_json=json)
