"""Define the options and the output that all list commands share: search, sort and pages."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer

from controlplane.cli.context import print_json, print_list
from controlplane.cli.layouts import Fit, Layout
from proxy.wire.figures import number

if TYPE_CHECKING:
    from controlplane.operations.lists import ListResponse

DEFAULT_ROWS: Final = 50  # rows of a table; `--json` without page options prints every row
Search = Annotated[
    str | None,
    typer.Option(
        "--search", metavar="TEXT", help="Part of the name (the case of A-Z does not matter), or a whole ID."
    ),
]
AppSearch = Annotated[
    str | None,
    typer.Option(
        "--search",
        metavar="TEXT",
        help="Part of the name (the case of A-Z does not matter), or a whole ID or client ID.",
    ),
]
Limit = Annotated[
    int | None,
    typer.Option("--limit", metavar="N", min=1, max=200, help="Rows per page (50; with --json all)."),
]
Cursor = Annotated[
    str | None, typer.Option("--cursor", metavar="C", help="Cursor that the previous page printed.")
]
NAMED_OPTIONS: Final = {"search": "--search", "sort": "--sort", "cursor": "--cursor"}


def page_members(
    search: str | None, sort: str | None, limit: int | None, cursor: str | None, *, as_json: bool
) -> dict[str, Any]:
    """Return the JSON fields for search, sort and page in an API request for a list.

    A list that is printed as a table is always requested in pages.
    """
    rows = DEFAULT_ROWS if limit is None and not as_json else limit
    return {"search": search, "sort": sort, "limit": rows, "cursor": cursor}


def print_page(
    layout: Layout,
    found: ListResponse,
    rows: Sequence[Mapping[str, Any]] | Sequence[msgspec.Struct],
    *,
    as_json: bool,
    fit: Fit,
) -> None:
    """Print the API's response as JSON or as a table.

    If more rows follow, the line below the table gives the option `--cursor` that requests the next page.
    """
    if as_json:
        print_json(found)
        return
    print_list(layout, rows, as_json=False, fit=fit)
    if isinstance(found.next, str) and isinstance(found.before, int):
        first, last = number(found.before + 1), number(found.before + len(rows))
        shown = f"{first}–{last} of {number(found.total or 0)} {layout.rows}"
        sys.stdout.write(f"{shown}; for more, repeat the command with --cursor {found.next}\n")
