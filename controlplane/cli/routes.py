"""Command `ruleset routes`, which lists the routes that a ruleset leaves open."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from controlplane.cli.context import Cli, Json, print_json, print_text
from controlplane.cli.failure import INVALID_INPUT, CommandFailed
from controlplane.cli.ruleset import parsed, problem_lines, read_text, schema_in

if TYPE_CHECKING:
    from controlplane.operations.routes import FoundRoutes, RuleRoutesFacts

app = typer.Typer()

_FEW: Final = 6  # open routes of a rule to print without --all

Schema = Annotated[
    Path | None,
    typer.Option(
        "--schema", metavar="FILE", help="File with the upstream's $metadata document, or its flat form."
    ),
]


@app.command()
def routes(
    ctx: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File with the ruleset (YAML).")],
    schema: Schema = None,
    org: Annotated[
        str | None,
        typer.Option(
            "--org", metavar="ORG", help="Organisation whose stored schemas are used, by ID or name."
        ),
    ] = None,
    root: Annotated[
        str, typer.Option("--root", metavar="PATH", help="Root path of the service that --schema describes.")
    ] = "/v1.0",
    rule: Annotated[str | None, typer.Option("--rule", metavar="ID", help="Only this rule.")] = None,
    every: Annotated[
        bool, typer.Option("--all", help="List all open routes of a rule, with example requests, not only 6.")
    ] = False,
    json: Json = False,
) -> None:
    """List open routes: paths, allowed by a ruleset, to data that one of its rules blocks or filters.

    The command `routes` needs no settings.
    """
    from controlplane.operations.dry_runs import Source
    from controlplane.operations.operation import InvalidRequest
    from controlplane.operations.routes import ListRoutes, found_routes, list_routes

    text = read_text(file)
    ruleset = parsed(str(file), text)
    try:
        if org is not None and schema is None:
            source = Source(yaml=text, label="ruleset")
            cli: Cli = ctx.obj
            found = cli.call(list_routes, ListRoutes(source, org, root=root, rule=rule, all=every))
        else:
            found = found_routes(text, ruleset, schema_in(schema), root=root, rule=rule, every=every)
    except InvalidRequest as error:
        raise CommandFailed(INVALID_INPUT, *(_named(str(file), line) for line in error.problems)) from None
    if json:
        print_json(found)
        return
    if found.schema is None:
        typer.echo(
            "without --schema FILE, only the routes that the paths themselves show were tried", err=True
        )
    for line in problem_lines(str(file), found.unknown):
        typer.echo(line, err=True)
    print_text("".join(f"{line}\n" for line in _described(file, found, every=every)))


def _named(file: str, problem: str) -> str:
    """Return the text of a problem; the text begins with the file or the option that has the problem."""
    if problem.startswith("ruleset:"):
        return f"{file}{problem.removeprefix('ruleset')}"
    return f"--{problem}"


def _described(file: Path, found: FoundRoutes, *, every: bool) -> Iterator[str]:
    for each in found.rules:
        yield f"{file}:{each.line}: {each.rule}: {each.counted or each.passes}"
        yield from _every_example(each) if every else _some_routes(each)
    if found.skipped_rules:
        yield f"{found.skipped_rules} more rules were not examined: the ruleset has too many routes"
    if not found.rules:
        yield (
            f"{found.name}: no routes were examined, because no rule was found that effectively blocks or"
            " filters a resource"
        )


def _some_routes(found: RuleRoutesFacts) -> Iterator[str]:
    shown = [each.route for each in found.open[:_FEW]]
    left = len(found.open) + found.more_open - len(shown)
    shown += [f"{left:,} more: --all"] if left else []
    for at, route in enumerate(shown):
        yield f"  {'open' if at == 0 else '':9}  {route}"
    yield from _ending(found)


def _every_example(found: RuleRoutesFacts) -> Iterator[str]:
    width = max((len(each.kind) for each in found.open), default=0)
    for each in found.open:
        yield f"  {each.kind:{width}}  {each.method} {each.target}  ({each.verdict} by {each.rule})"
        if each.body not in (None, "{}"):
            yield f"  {'':{width}}  {each.body}"
    for one in found.passing:
        hidden = f"  (hidden by {', '.join(one.hidden_by)})" if one.hidden_by else ""
        yield f"  {'passes':{width}}  {one.method} {one.target}{hidden}"
    yield from _ending(found)


def _ending(found: RuleRoutesFacts) -> Iterator[str]:
    if found.counted and found.passes:
        yield f"  {'also':9}  {found.passes}"
    if found.closed_by:
        yield f"  {'closed by':9}  {found.closed_by}"
