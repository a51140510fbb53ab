"""`org`: add, list, show, and change how long events are kept."""

from __future__ import annotations

from typing import Annotated

import typer

from controlplane.cli.context import Cli, Json, print_facts
from controlplane.cli.failure import named_as_options
from controlplane.cli.lists import NAMED_OPTIONS, Cursor, Limit, Search, page_members, print_page
from controlplane.store.interface import Retention

app = typer.Typer(no_args_is_help=False)

_Name = Annotated[str, typer.Argument(metavar="NAME")]
_Sort = Annotated[
    str | None,
    typer.Option("--sort", metavar="COLUMN", help="name, createdAt or retention; - before it: descending."),
]
_Org = Annotated[str, typer.Argument(metavar="ORG", help="Id or name.")]
_Retention = Annotated[Retention, typer.Option("--retention", help="base is 30 days.")]


@app.command()
def add(ctx: typer.Context, name: _Name, retention: _Retention = "base", json: Json = False) -> None:
    """Add an organisation."""
    from controlplane.operations import orgs

    cli: Cli = ctx.obj
    print_facts(cli.call(orgs.add, orgs.AddOrg(name, retention)), as_json=json)


@app.command("list")
def list_orgs(
    ctx: typer.Context,
    search: Search = None,
    sort: _Sort = None,
    limit: Limit = None,
    cursor: Cursor = None,
    json: Json = False,
) -> None:
    """Organisations, by name."""
    from controlplane.operations import orgs

    cli: Cli = ctx.obj
    asked = orgs.ListOrgs(**page_members(search, sort, limit, cursor, as_json=json))
    with named_as_options(NAMED_OPTIONS):
        found = cli.call(orgs.list_all, asked)
    print_page("orgs", found, found.orgs, as_json=json)


@app.command()
def show(ctx: typer.Context, org: _Org, json: Json = False) -> None:
    """One organisation."""
    from controlplane.operations import orgs

    cli: Cli = ctx.obj
    print_facts(cli.call(orgs.show, orgs.OrgReference(org)), as_json=json)


@app.command("set-retention")
def set_retention(
    ctx: typer.Context,
    org: _Org,
    retention: Annotated[Retention, typer.Argument(metavar="base|90d|1y|7y")],
    json: Json = False,
) -> None:
    """Keep the organisation's audit events for longer, or shorter; what is past a shorter tier is purged."""
    from controlplane.operations import orgs

    cli: Cli = ctx.obj
    print_facts(cli.call(orgs.set_retention, orgs.SetRetention(org, retention)), as_json=json)
