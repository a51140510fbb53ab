"""Commands of `record`, which search the operator log."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from controlplane.cli.context import (
    AnyOrg,
    Cli,
    Json,
    NoTrunc,
    Wide,
    facts_of,
    org_names,
    print_facts,
    print_list,
)
from controlplane.cli.failure import named_as_options
from controlplane.cli.layouts import Column, Layout, fit_of
from proxy.wire.figures import counted

if TYPE_CHECKING:
    from controlplane.operations.operator_log import RecordFacts

app = typer.Typer()

LINES: Final = Layout(
    "lines",
    (
        Column("time", "moment"),
        Column("operator"),
        Column("operation"),
        Column("outcome"),
        Column("result", "prose"),
        Column("address"),
        Column("orgs", "prose", "Organisations"),
        Column("request", "prose"),
    ),
    leads=("time", "operator", "operation", "outcome"),
    drops=("address", "orgs", "request", "result"),
)

_OPTIONS: Final = {"search": "--search", "from": "--from", "to": "--to", "cursor": "--cursor"}

_TIME_HELP = "an RFC 3339 time, a date, or a time before now such as -15m, -2h or -7d."


@app.callback()
def record() -> None:
    """Search the operator log for the actions of operators."""


@app.command("search")
def search_log(
    ctx: typer.Context,
    operator: Annotated[
        str | None, typer.Option("--operator", metavar="NAME", help="Only actions of this operator.")
    ] = None,
    operation: Annotated[
        str | None,
        typer.Option(
            "--operation",
            metavar="NAME",
            help="Only this operation, such as app.bind, or all operations on one noun, such as app.",
        ),
    ] = None,
    org: AnyOrg = None,
    from_: Annotated[
        str | None,
        typer.Option("--from", metavar="T", help=f"Only actions at this time or later: {_TIME_HELP}"),
    ] = None,
    to: Annotated[
        str | None, typer.Option("--to", metavar="T", help=f"Only actions before this time: {_TIME_HELP}")
    ] = None,
    search: Annotated[
        str | None,
        typer.Option(
            "--search",
            metavar="TEXT",
            help="Text that the operator, the operation, the request or the result contains.",
        ),
    ] = None,
    sort: Annotated[
        Literal["-time", "time"],
        typer.Option("--sort", metavar="COLUMN", help="Order: -time is newest first, time is oldest first."),
    ] = "-time",
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", min=1, max=1000, help="Lines per page (1 to 1000).")
    ] = 100,
    cursor: Annotated[
        str | None, typer.Option("--cursor", metavar="C", help="Cursor that the previous page printed.")
    ] = None,
    wide: Wide = False,
    no_trunc: NoTrunc = False,
    json: Json = False,
) -> None:
    """List the actions of operators, newest actions first."""
    from controlplane.operations.operator_log import SearchOperatorLog
    from controlplane.operations.operator_log import search as operation_of_it

    cli: Cli = ctx.obj
    asked = SearchOperatorLog(operator, operation, org, from_, to, search, sort, limit, cursor)
    with named_as_options(_OPTIONS):
        page = cli.call(operation_of_it, asked)
    if json:
        print_facts(page, as_json=True)
        return
    names = org_names(cli) if any(line.orgs for line in page.lines) else {}
    rows = [_row(line, names) for line in page.lines]
    print_list(LINES, rows, as_json=False, fit=fit_of(wide, no_trunc))
    if page.next is not None:
        sys.stdout.write(f"more: --cursor {page.next}\n")


def _row(line: RecordFacts, names: Mapping[str, str]) -> dict[str, Any]:
    """Return the table row of an operator's action; the longest cells come last."""
    facts = facts_of(line)
    request, is_under_way = facts.pop("request"), facts.pop("underWay")
    if is_under_way:
        facts["outcome"] = "under way"
    given = {name: _short(value) for name, value in request.items() if value not in (None, "", [], {})}
    return facts | {"orgs": [names.get(each, each) for each in line.orgs], "request": given}


def _short(value: Any) -> Any:
    """Return the first line of a text, and a note of how many other lines the text has."""
    if not isinstance(value, str) or "\n" not in value.strip():
        return value
    first, *others = value.strip().splitlines()
    return f"{first} … and {counted(len(others), 'line')} more"
