"""Commands of `model`, which fetch, list and compare schemas of graph APIs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from controlplane.cli.context import (
    AnyOrg,
    Cli,
    Json,
    NoTrunc,
    OneOrg,
    Wide,
    facts_of,
    print_facts,
    print_json,
    print_list,
    print_next,
    with_org_names,
)
from controlplane.cli.deletions import YesDelete
from controlplane.cli.deletions import delete as delete_thing
from controlplane.cli.failure import INVALID_INPUT, CommandFailed, named_as_options
from controlplane.cli.layouts import Column, Layout, fit_of
from controlplane.cli.next_steps import after_model

if TYPE_CHECKING:
    from controlplane.operations.models import FetchedModel, ListedModel, ModelDifference, NamesFacts

app = typer.Typer()

MODELS: Final = Layout(
    "models",
    (
        Column("org", title="Organisation"),
        Column("root"),
        Column("current"),
        Column("digest"),
        Column("fetchedAt", "time", "Fetched"),
        Column("rulesets", "prose"),
        Column("source", "path"),
    ),
    leads=("org", "root"),
    drops=("source", "rulesets", "digest"),
)

_SHORT = 12  # digits of a digest that output for a person shows
_Root = Annotated[
    str | None,
    typer.Option(
        "--root",
        metavar="PATH",
        help="Root path of the service, such as /v1.0. A URL already contains the root path.",
    ),
]
_Source = Annotated[
    str, typer.Argument(metavar="URL|FILE", help="URL or file with the $metadata of the service.")
]


@app.command()
def fetch(
    ctx: typer.Context,
    source: _Source,
    org: Annotated[
        str | None, typer.Option("--org", metavar="ORG", help="Organisation, by ID or name.")
    ] = None,
    all_orgs: Annotated[bool, typer.Option("--all", help="Every organisation.")] = False,
    root: _Root = None,
    json: Json = False,
) -> None:
    """Read the schema of a service, and store it for rulesets that are applied later."""
    from controlplane.cli.metadata_source import read_source
    from controlplane.operations import models

    if (org is None) != all_orgs:
        raise CommandFailed(INVALID_INPUT, "--org, --all: give exactly one of them")
    cli: Cli = ctx.obj
    read = read_source(source, root, cli.egress)
    asked = models.FetchModel(read.root, read.document, org, read.name)
    with named_as_options({"root": "--root"}):
        fetched = cli.call(models.fetch, asked)
    if json:
        print_json(fetched)
        return
    print_facts({name: value for name, value in facts_of(fetched).items() if name != "orgs"}, as_json=False)
    for line in _what_came_of_it(fetched):
        typer.echo(line)
    print_next(after_model(cli.typed, [each.org for each in fetched.orgs]))


def _what_came_of_it(fetched: FetchedModel) -> list[str]:
    lines = []
    for each in fetched.orgs:
        if not each.changed:
            lines.append(f"{each.org}: already has this schema")
        elif each.before is None:
            lines.append(f"{each.org}: this is the first schema of {fetched.root}")
        else:
            lines.append(
                f"{each.org}: this schema replaces {each.before[:_SHORT]} for rulesets that are applied "
                f"from now on; see `model diff --org {each.org} --root {fetched.root}`"
            )
    return lines


@app.command("list")
def list_models(
    ctx: typer.Context,
    org: AnyOrg = None,
    wide: Wide = False,
    no_trunc: NoTrunc = False,
    json: Json = False,
) -> None:
    """List the stored schemas and, for each schema, the ruleset versions that use the schema."""
    from controlplane.operations import models

    cli: Cli = ctx.obj
    found = cli.call(models.list_all, models.ListModels(org)).models
    rows = found if json else with_org_names(cli, _short(found))
    print_list(MODELS, rows, as_json=json, fit=fit_of(wide, no_trunc))


def _short(listed: tuple[ListedModel, ...]) -> list[ListedModel]:
    from msgspec.structs import replace

    return [replace(each, digest=each.digest[:_SHORT]) for each in listed]


@app.command()
def diff(
    ctx: typer.Context,
    org: OneOrg,
    source: Annotated[
        str | None,
        typer.Argument(
            metavar="[URL|FILE]", help="URL or file of the new schema (default: the current stored schema)."
        ),
    ] = None,
    root: _Root = None,
    json: Json = False,
) -> None:
    """Compare two schemas, and list the active rulesets that use the older schema."""
    from controlplane.cli.metadata_source import read_source
    from controlplane.operations import models

    cli: Cli = ctx.obj
    asked = models.DiffModel(org, root)
    if source is not None:
        read = read_source(source, root, cli.egress)
        asked = models.DiffModel(org, read.root, read.document, read.name)
    with named_as_options({"root": "--root"}):
        found = cli.call(models.diff, asked)
    if json:
        print_json(found)
        return
    for line in _told(found):
        typer.echo(line)


def _told(found: ModelDifference) -> list[str]:
    if not found.different:
        return [f"{found.root}: no difference, both are schema {found.old[:_SHORT]}"]
    lines = [f"{found.root}: schema {found.old[:_SHORT]} is the old one, {found.new[:_SHORT]} the new one"]
    for kind in ("types", "relations", "properties", "operations"):
        lines += _told_of(kind, getattr(found, kind))
    named = ", ".join(found.rulesets)
    lines.append(f"active rulesets that use the old schema: {named or '-'}")
    return lines


def _told_of(kind: str, names: NamesFacts) -> list[str]:
    lines = [f"{kind}: {names.added} new, {names.removed} removed, {names.changed} changed"]
    for sign, first, count in (
        ("+", names.first_added, names.added),
        ("-", names.first_removed, names.removed),
        ("~", names.first_changed, names.changed),
    ):
        lines += [f"  {sign} {name}" for name in first]
        if count > len(first):
            lines.append(f"  {sign} and {count - len(first)} more")
    return lines


@app.command()
def delete(
    ctx: typer.Context,
    root: Annotated[str, typer.Argument(metavar="ROOT", help="Root path of the service, such as /v1.0.")],
    org: OneOrg,
    yes: YesDelete = False,
    json: Json = False,
) -> None:
    """Delete the schema of a root path, if no active ruleset uses it.

    Older versions of rulesets keep their schemas.
    """
    from controlplane.operations import deletions

    effect_of = deletions.EffectOfDeletion("model", root, org)
    asked = deletions.DeleteModel(org, root)
    delete_thing(ctx.obj, effect_of, deletions.delete_model, asked, yes=yes, json=json)
