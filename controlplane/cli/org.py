"""Commands of `org`, which manage organisations, their retention and the approval of their rules."""

from __future__ import annotations

import sys
from typing import Annotated, Final, Literal

import typer

from controlplane.cli.context import Cli, Json, NoTrunc, Wide, confirm_loss, facts_of, print_facts, print_next
from controlplane.cli.deletions import YesDelete
from controlplane.cli.deletions import delete as delete_thing
from controlplane.cli.failure import named_as_options
from controlplane.cli.layouts import Column, Layout, fit_of
from controlplane.cli.lists import NAMED_OPTIONS, Cursor, Limit, Search, page_members, print_page
from controlplane.cli.next_steps import RETENTION_HELP, after_org
from controlplane.store.interface import RETENTION_MS, RETENTION_WORDS, Retention

app = typer.Typer(no_args_is_help=False)

ORGS: Final = Layout(
    "orgs",
    (Column("name"), Column("retention"), Column("createdAt", "time", "Created"), Column("orgId", "id")),
    leads=("name",),
    drops=("createdAt", "retention"),
)

_Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the new organisation.")]
_Sort = Annotated[
    str | None,
    typer.Option(
        "--sort",
        metavar="COLUMN",
        help="Column to sort by: name, createdAt or retention. Put - before the column name for"
        " descending order.",
    ),
]
_Org = Annotated[str, typer.Argument(metavar="ORG", help="ID or name.")]
_Retention = Annotated[Retention, typer.Option("--retention", help=RETENTION_HELP)]


@app.command()
def add(ctx: typer.Context, name: _Name, retention: _Retention = "base", json: Json = False) -> None:
    """Add an organisation, with the time for which its audit events are kept."""
    from controlplane.operations import orgs

    cli: Cli = ctx.obj
    added = cli.call(orgs.add, orgs.AddOrg(name, retention))
    print_facts(added, as_json=json)
    if not json:
        print_next(after_org(cli.typed, added.name, added.retention))


@app.command("list")
def list_orgs(
    ctx: typer.Context,
    search: Search = None,
    sort: _Sort = None,
    limit: Limit = None,
    cursor: Cursor = None,
    wide: Wide = False,
    no_trunc: NoTrunc = False,
    json: Json = False,
) -> None:
    """List organisations by name."""
    from controlplane.operations import orgs

    cli: Cli = ctx.obj
    asked = orgs.ListOrgs(**page_members(search, sort, limit, cursor, as_json=json))
    with named_as_options(NAMED_OPTIONS):
        found = cli.call(orgs.list_all, asked)
    rows = () if json else [facts_of(each) | {"retention": _kept(each.retention)} for each in found.orgs]
    print_page(ORGS, found, rows, as_json=json, fit=fit_of(wide, no_trunc))


@app.command()
def show(ctx: typer.Context, org: _Org, json: Json = False) -> None:
    """Show one organisation and its retention."""
    from controlplane.operations import orgs

    cli: Cli = ctx.obj
    print_facts(cli.call(orgs.show, orgs.OrgReference(org)), as_json=json)


def _kept(retention: Retention) -> str:
    """Return the name of a retention tier, with its days if the name does not state them."""
    return f"{retention} ({RETENTION_WORDS[retention]})" if retention == "base" else retention


@app.command("set-retention")
def set_retention(
    ctx: typer.Context,
    org: _Org,
    retention: Annotated[
        Retention,
        typer.Argument(
            metavar="base|90d|1y|7y",
            help="Time for which audit events are kept. The value base means 30 days.",
        ),
    ],
    yes: Annotated[
        bool,
        typer.Option(
            "--yes",
            help="Do not ask for confirmation. To shorten the time without a terminal, the option --yes"
            " is required.",
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Change how long the store keeps the audit events of an organisation.

    If you shorten the retention, the control plane deletes the organisation's older events.
    """
    from controlplane.operations import orgs

    cli: Cli = ctx.obj
    if not yes:
        org = _asked_if_shorter(cli, org, retention)
    print_facts(cli.call(orgs.set_retention, orgs.SetRetention(org, retention)), as_json=json)


def _asked_if_shorter(cli: Cli, org: str, retention: Retention) -> str:
    """Ask for consent before a shorter retention deletes events.

    Return the organisation's name or ID as the command line gives it. If the command asked for consent to
    the deletion, return the organisation's ID instead.
    """
    from controlplane.operations import orgs

    found = cli.call(orgs.show, orgs.OrgReference(org))
    if RETENTION_MS[retention] >= RETENTION_MS[found.retention]:
        return org
    kept, wanted = RETENTION_WORDS[found.retention], RETENTION_WORDS[retention]
    sys.stderr.write(f"{found.name} keeps audit events for {kept}. ")
    sys.stderr.write(f"Events older than {wanted} are deleted permanently.\n")
    confirm_loss(f"Keep events of {found.name} for {wanted} only?", to="shorten the time")
    return found.org_id


@app.command("second-person")
def set_second_person(
    ctx: typer.Context,
    org: _Org,
    needed: Annotated[
        Literal["on", "off"], typer.Argument(metavar="on|off", help="Whether approval is required.")
    ],
    json: Json = False,
) -> None:
    """Require that a second operator approves changes of the active rules, or end this requirement."""
    from controlplane.operations import orgs

    cli: Cli = ctx.obj
    asked = orgs.SetSecondPerson(org, needed == "on")
    print_facts(cli.call(orgs.set_second_person, asked), as_json=json)


@app.command()
def delete(ctx: typer.Context, org: _Org, yes: YesDelete = False, json: Json = False) -> None:
    """Delete an organisation without apps, and its rulesets and roles.

    Audit events of the organisation stay until their retention ends.
    """
    from controlplane.operations import deletions, orgs

    effect_of = deletions.EffectOfDeletion("org", org)
    delete_thing(ctx.obj, effect_of, deletions.delete_org, orgs.OrgReference(org), yes=yes, json=json)
