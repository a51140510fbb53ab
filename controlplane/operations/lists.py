"""Request fields that all lists share: a part of a name to search for, a sort column, and pages.

If a list request has no search, sort or paging fields, the response contains all rows, as programs without
support for pages expect. The rows are read page by page, so that the server can serve other requests in
between.
"""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Generic, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from controlplane.operations.operation import InvalidRequest, Request, Response
from controlplane.store.pages import MOST_ROWS, SORT_COLUMNS, Key, ListName, ListPage, ListQuery, all_rows

R = TypeVar("R")

DEFAULT_ROWS: Final = 50  # rows of one page
_MOST_INTEGER: Final = 2**63  # upper limit of an integer column of the store
PART: Final = "Part of the name, ignoring the case of A to Z, or a whole ID."
_COLUMN: Final = "Column to sort by, with `-` before it for descending: "


class ListRequest(Request, kw_only=True):
    search: Annotated[str, msgspec.Meta(description=PART)] | None = None
    sort: str | None = None
    limit: (
        Annotated[int, msgspec.Meta(ge=1, le=MOST_ROWS, description="Number of rows per page (50).")] | None
    ) = None
    cursor: Annotated[str, msgspec.Meta(description="`next` of the previous page.")] | None = None


class ListResponse(Response, kw_only=True):
    """Response to a request for a list.

    The paging attributes (`next`, `previous`, `before`, `total`) are present only if the request is for one
    page.
    """

    next: str | UnsetType | None = UNSET  # cursor of the next page; null: this is the last page
    previous: str | UnsetType | None = (
        UNSET  # cursor of the page before; null: the first page, which needs none
    )
    before: int | UnsetType = UNSET  # number of rows on the pages before
    total: int | UnsetType = UNSET  # number of rows on all pages


@dataclass(frozen=True, slots=True)
class Listed(Generic[R]):
    rows: tuple[R, ...]
    place: Mapping[str, Any]  # the members of ListResponse; empty if the request is not for a page


def by_column(name: ListName) -> msgspec.Meta:
    """Return the description of the field `sort` of a list request, for the admin API."""
    columns = SORT_COLUMNS[name]
    choice = [sign + column for column in columns for sign in ("", "-")]
    return msgspec.Meta(description=_COLUMN + ", ".join(columns) + ".", extra_json_schema={"enum": choice})


async def read_list(
    name: ListName,
    request: ListRequest,
    org_ids: frozenset[str] | None,
    read: Callable[[ListQuery], Awaitable[ListPage[R]]],
) -> Listed[R]:
    """Return the requested page of a list, or all rows.

    Raise InvalidRequest if a field of the request has an invalid value.
    """
    if request.search is None and request.sort is None and request.limit is None and request.cursor is None:
        return Listed(await all_rows(read, ListQuery(org_ids=org_ids)), {})
    sort, is_descending = _sorted_by(name, request.sort)
    query = ListQuery(
        sort=sort,
        descending=is_descending,
        limit=request.limit or DEFAULT_ROWS,
        after=None if request.cursor is None else _key(name, sort, request.cursor),
        search=None if request.search is None else searchable(request.search),
        org_ids=org_ids,
        with_before=True,
    )
    page = await read(query)
    place = {
        "next": None if page.next is None else _cursor(sort, page.next),
        "previous": None if page.previous is None else _cursor(sort, page.previous),
        "before": page.before,
        "total": page.total,
    }
    return Listed(page.rows, place)


def _sorted_by(name: ListName, given: str | None) -> tuple[str, bool]:
    if given is None:
        return "name", False
    is_descending = given.startswith("-")
    sort = given.removeprefix("-")
    if sort not in SORT_COLUMNS[name]:
        known = ", ".join(SORT_COLUMNS[name])
        raise InvalidRequest(
            f"sort: unknown column {sort!r}: sort by {known}, with - before the name for descending order"
        )
    return sort, is_descending


def searchable(part: str) -> str:
    """Return the text that a list request searches for (a part of a name), unchanged.

    Raise InvalidRequest if no row can contain the search text.
    """
    if not _is_storable(part):
        raise InvalidRequest("search: contains a character that no name or ID contains")
    return part


def _is_storable(text: str) -> bool:
    return "\0" not in text and not any("\ud800" <= each <= "\udfff" for each in text)


def _cursor(sort: str, key: Key) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode([sort, *key])).decode().rstrip("=")


def _key(name: ListName, sort: str, cursor: str) -> Key:
    """Return the sort values that the cursor of a page contains.

    The cursor has the values of the sort columns in the last row of the previous page.
    """
    types = list(dict.fromkeys([(sort, SORT_COLUMNS[name][sort]), ("name", str), ("id", str)]))
    try:
        text = base64.urlsafe_b64decode(cursor.encode("ascii") + b"=" * (-len(cursor) % 4))
        column, *values = msgspec.json.decode(text, type=list[str | int])
    except ValueError:
        column, values = "", []
    is_key = len(values) == len(types) and all(
        isinstance(value, kind) and not isinstance(value, bool)
        for value, (_, kind) in zip(values, types, strict=True)
    )
    if column != sort or not is_key or not all(map(_fits, values)):
        raise InvalidRequest("cursor: is not the `next` of a previous page with the same sort")
    return tuple(values)


def _fits(value: str | int) -> bool:
    if isinstance(value, str):
        return _is_storable(value)
    return -_MOST_INTEGER <= value < _MOST_INTEGER
