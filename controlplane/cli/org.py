"""`org`: add, list, show, and change how long events are kept."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from controlplane.cli.context import Cli, Json, print_facts, print_list
from controlplane.store.interface import Org, Retention
from proxy.wire.audit_event import rfc3339

app = typer.Typer(no_args_is_help=False)

_Name = Annotated[str, typer.Argument(metavar="NAME")]
_Org = Annotated[str, typer.Argument(metavar="ORG", help="Id or name.")]
_Retention = Annotated[Retention, typer.Option("--retention", help="base is 30 days.")]


def _facts(org: Org) -> dict[str, Any]:
    return {"orgId": org.org_id, "name": org.name, "retention": org.retention}


@app.command()
def add(ctx: typer.Context, name: _Name, retention: _Retention = "base", json: Json = False) -> None:
    """Add an organisation."""
    cli: Cli = ctx.obj
    org = cli.run(lambda opened: opened.registry.add_org(name, retention))
    print_facts(_facts(org), as_json=json)


@app.command("list")
def list_orgs(ctx: typer.Context, json: Json = False) -> None:
    """All organisations."""
    cli: Cli = ctx.obj
    orgs = cli.run(lambda opened: opened.store.orgs())
    print_list("orgs", [_facts(org) for org in orgs], as_json=json)


@app.command()
def show(ctx: typer.Context, org: _Org, json: Json = False) -> None:
    """One organisation."""
    cli: Cli = ctx.obj
    found = cli.run(lambda opened: opened.registry.org(org))
    print_facts({**_facts(found), "createdAt": rfc3339(found.created_ms)}, as_json=json)


@app.command("set-retention")
def set_retention(
    ctx: typer.Context,
    org: _Org,
    retention: Annotated[Retention, typer.Argument(metavar="base|90d|1y|7y")],
    json: Json = False,
) -> None:
    """Keep the organisation's audit events for longer, or shorter; what is past a shorter tier is purged."""
    cli: Cli = ctx.obj
    changed = cli.run(lambda opened: opened.registry.set_retention(org, retention))
    print_facts(_facts(changed), as_json=json)
