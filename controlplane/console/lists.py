"""Console lists with a search box, sortable columns, and pages.

The URL contains the search, the sort column and the page of a list.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from controlplane.console.pages import PageRequest
from controlplane.operations.lists import ListResponse

LIST_MEMBERS: Final = ("search", "sort", "cursor")
_ROWS: Final = 50


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a console list, and the name of the sort order that the column's heading selects."""

    text: str
    sort: str = ""  # empty if the heading does not sort
    kind: str = ""  # class of the cells: "number" or "end"


@dataclass(frozen=True, slots=True)
class Head:
    """The heading of a table column in the form that a page shows."""

    text: str
    kind: str
    href: str | None  # link that sorts by this column; the next click reverses the order
    order: Literal["", "ascending", "descending"]


@dataclass(frozen=True, slots=True)
class ListView:
    """The parts of a page around the rows of a list, such as headings and links."""

    heads: tuple[Head, ...]
    search: str
    kept: tuple[tuple[str, str], ...]  # other query parameters, which a new search keeps
    rows: int
    before: int  # number of rows on the pages before this one
    total: int
    first: str | None  # link to the first page, unless this page or the one before is the first
    previous: str | None  # link to the previous page
    next: str | None  # link to the next page
    everything: str  # link to the list without the search

    @property
    def is_searched(self) -> bool:
        return bool(self.search)


def list_members(request: PageRequest, default_sort: str = "name") -> dict[str, Any]:
    """Return the JSON fields of an API request for a list, from the query of a console page's URL."""
    given = request.query.get
    return {
        "search": given("search") or None,
        "sort": given("sort") or default_sort,
        "limit": _ROWS,
        "cursor": given("cursor") or None,
    }


def list_view(
    request: PageRequest,
    columns: Sequence[Column],
    found: ListResponse,
    rows: int,
    *,
    default_sort: str = "name",
    keep: Sequence[str] = (),
) -> ListView:
    """Return the headings and links that a page shows around the rows of a list.

    `keep` names the query parameters that a new search or sort keeps.
    """
    sort = request.query.get("sort") or default_sort
    before = found.before if isinstance(found.before, int) else 0
    kept = [(name, value) for name in ("sort", *keep) if (value := request.query.get(name, ""))]
    return ListView(
        heads=tuple(_head(request, column, sort) for column in columns),
        search=request.query.get("search", ""),
        kept=tuple(kept),
        rows=rows,
        before=before,
        total=found.total if isinstance(found.total, int) else rows,
        first=request.changed(cursor=None) if isinstance(found.previous, str) else None,
        previous=request.changed(cursor=found.previous or None) if request.query.get("cursor") else None,
        next=request.changed(cursor=found.next) if isinstance(found.next, str) else None,
        everything=request.changed(search=None, cursor=None),
    )


def _head(request: PageRequest, column: Column, sort: str) -> Head:
    if not column.sort:
        return Head(column.text, column.kind, None, "")
    if sort == column.sort:
        return Head(column.text, column.kind, request.changed(sort=f"-{sort}", cursor=None), "ascending")
    href = request.changed(sort=column.sort, cursor=None)
    return Head(column.text, column.kind, href, "descending" if sort == f"-{column.sort}" else "")
