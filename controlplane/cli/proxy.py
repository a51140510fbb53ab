"""`proxy`: add, list, show, grant, revoke, rotate-secret, disable, enable."""

from __future__ import annotations

from typing import Annotated

import typer

from controlplane.cli.context import AnyOrg, Cli, Json, OneOrg, print_facts, print_list

app = typer.Typer()

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
    print_facts(cli.call(proxies.rotate_secret, proxies.ProxyReference(proxy)), as_json=json)


@app.command("list")
def list_proxies(ctx: typer.Context, org: AnyOrg = None, json: Json = False) -> None:
    """All proxy instances."""
    from controlplane.operations import fleet

    cli: Cli = ctx.obj
    print_list("proxies", cli.call(fleet.list_all, fleet.ListFleet(org)).proxies, as_json=json)


@app.command()
def show(ctx: typer.Context, proxy: _Proxy, json: Json = False) -> None:
    """One proxy instance: what it last said of itself, and which of its audit events are missing."""
    from controlplane.operations import fleet

    cli: Cli = ctx.obj
    print_facts(cli.call(fleet.show, fleet.ProxyReference(proxy)), as_json=json)


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
