"""`app`: add, list, show, bind, shadow, promote-shadow, rotate-secret, disable, enable."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from controlplane.cli.context import AnyOrg, Cli, Json, OneOrg, print_facts, with_org_names
from controlplane.cli.failure import INVALID_INPUT, CommandFailed, named_as_options
from controlplane.cli.lists import NAMED_OPTIONS, AppSearch, Cursor, Limit, page_members, print_page

app = typer.Typer()

_Sort = Annotated[
    str | None,
    typer.Option(
        "--sort", metavar="COLUMN", help="name, org, ruleset or createdAt; - before it: descending."
    ),
]

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}

_App = Annotated[str, typer.Argument(metavar="APP", help="Id, client id or name.")]
_Ruleset = Annotated[
    str, typer.Option("--ruleset", metavar="NAME", help="The ruleset that evaluates it, by id or name.")
]


@app.command()
def add(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME")],
    org: OneOrg,
    ruleset: _Ruleset,
    json: Json = False,
) -> None:
    """Add an app identity. Its client secret is printed this once."""
    from controlplane.operations import apps

    cli: Cli = ctx.obj
    print_facts(cli.call(apps.add, apps.AddApp(name, org, ruleset)), as_json=json)


@app.command("list")
def list_apps(
    ctx: typer.Context,
    org: AnyOrg = None,
    search: AppSearch = None,
    sort: _Sort = None,
    limit: Limit = None,
    cursor: Cursor = None,
    json: Json = False,
) -> None:
    """App identities, by name."""
    from controlplane.operations import apps

    cli: Cli = ctx.obj
    asked = apps.ListApps(org=org, **page_members(search, sort, limit, cursor, as_json=json))
    with named_as_options(NAMED_OPTIONS):
        found = cli.call(apps.list_all, asked)
    print_page("apps", found, () if json else with_org_names(cli, found.apps), as_json=json)


@app.command()
def show(ctx: typer.Context, app_reference: _App, org: AnyOrg = None, json: Json = False) -> None:
    """One app identity, with its valid secrets by version."""
    from controlplane.operations import apps

    cli: Cli = ctx.obj
    print_facts(cli.call(apps.show, apps.AppReference(app_reference, org)), as_json=json)


@app.command()
def bind(
    ctx: typer.Context, app_reference: _App, ruleset: _Ruleset, org: AnyOrg = None, json: Json = False
) -> None:
    """Let another ruleset of its organisation evaluate the app identity."""
    from controlplane.operations import apps

    cli: Cli = ctx.obj
    asked = apps.BindApp(app_reference, org, ruleset=ruleset)
    print_facts(cli.call(apps.bind, asked), as_json=json)


@app.command()
def shadow(
    ctx: typer.Context,
    app_reference: _App,
    ruleset: Annotated[
        str | None, typer.Option("--ruleset", metavar="NAME", help="The ruleset to try, by id or name.")
    ] = None,
    off: Annotated[bool, typer.Option("--off", help="Try none any more.")] = False,
    org: AnyOrg = None,
    json: Json = False,
) -> None:
    """Try a ruleset beside the app identity's own: its verdicts stand in the audit events, and only there."""
    if (ruleset is None) != off:
        raise CommandFailed(INVALID_INPUT, "give --ruleset NAME or --off")
    from controlplane.operations import apps

    cli: Cli = ctx.obj
    asked = apps.SetShadow(app_reference, org, ruleset)
    print_facts(cli.call(apps.shadow, asked), as_json=json)


@app.command("promote-shadow")
def promote_shadow(ctx: typer.Context, app_reference: _App, org: AnyOrg = None, json: Json = False) -> None:
    """Let the shadow ruleset evaluate the app identity from now on."""
    from controlplane.operations import apps

    cli: Cli = ctx.obj
    print_facts(cli.call(apps.promote_shadow, apps.PromoteShadow(app_reference, org)), as_json=json)


@app.command("rotate-secret")
def rotate_secret(
    ctx: typer.Context,
    app_reference: _App,
    org: AnyOrg = None,
    grace: Annotated[
        str,
        typer.Option("--grace", metavar="TIME", help="How long the old secret stays valid: 30m, 24h, 7d."),
    ] = "0s",
    json: Json = False,
) -> None:
    """A new client secret, printed this once. Without a grace the old one and its tokens end at once."""
    from controlplane.operations import apps

    cli: Cli = ctx.obj
    asked = apps.RotateSecret(app_reference, org, _duration_seconds(grace))
    print_facts(cli.call(apps.rotate_secret, asked), as_json=json)


def _duration_seconds(text: str) -> int:
    from controlplane.operations import apps

    match = re.fullmatch(r"([0-9]{1,9})([smhd])", text)
    if match is None:
        raise CommandFailed(
            INVALID_INPUT, f"--grace: must be a number with s, m, h or d, like 24h, not {text!r}"
        )
    seconds = int(match[1]) * _UNITS[match[2]]
    if seconds > apps.MAX_GRACE_SECONDS:
        raise CommandFailed(
            INVALID_INPUT, f"--grace: at most {apps.MAX_GRACE_SECONDS // 86_400}d, not {text}"
        )
    return seconds


@app.command()
def disable(ctx: typer.Context, app_reference: _App, org: AnyOrg = None, json: Json = False) -> None:
    """Refuse the app identity and every token of it, from the proxies' next sync on."""
    from controlplane.operations import apps

    cli: Cli = ctx.obj
    print_facts(cli.call(apps.disable, apps.AppReference(app_reference, org)), as_json=json)


@app.command()
def enable(ctx: typer.Context, app_reference: _App, org: AnyOrg = None, json: Json = False) -> None:
    """Serve the app identity again."""
    from controlplane.operations import apps

    cli: Cli = ctx.obj
    print_facts(cli.call(apps.enable, apps.AppReference(app_reference, org)), as_json=json)
