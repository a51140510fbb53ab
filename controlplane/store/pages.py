"""A page of a list as plain values: the query for the page, and the rows that the query found.

The module `pages` does no input or output.

A page begins after the key of the last row of the previous page, and not after a number of rows. So no row is
repeated or missing on the next page after rows are added or removed between the two requests.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Final, Generic, Literal, TypeVar

R = TypeVar("R")

ListName = Literal["orgs", "proxies", "rulesets", "apps", "operators"]
Key = tuple[str | int, ...]
"""The sort key of a row: the value of the column, its name, its id."""

MOST_ROWS: Final = 200  # rows of one page; limited so that reading a page does not delay others
SORT_COLUMNS: Final[Mapping[ListName, Mapping[str, type[str] | type[int]]]] = {
    "orgs": {"name": str, "createdAt": int, "retention": str},
    "proxies": {"name": str, "health": int, "lastSeen": int, "createdAt": int},
    "rulesets": {"name": str, "org": str, "version": int, "rules": int, "changedAt": int},
    "apps": {"name": str, "org": str, "ruleset": str, "owner": str, "lastSeen": int, "createdAt": int},
    "operators": {"name": str, "createdAt": int, "signedInAt": int},
}
"""The columns that each list can be sorted by, each with the type of its values."""

Health = Literal["failed", "stale", "degraded", "no heartbeat", "ok", "ended", "disabled"]
HEALTH_ORDER: Final[tuple[Health, ...]] = (
    *("failed", "stale", "degraded", "no heartbeat", "ok", "ended", "disabled"),
)
"""The order of proxies by health: those that need attention come first."""


Standing = Literal["active", "retired", "any"]
"""Proxies that count in the fleet, retired proxies, or both."""


@dataclass(frozen=True, slots=True)
class ListQuery:
    """A selection of the rows of a list, the order of the rows, and the number of rows per page."""

    sort: str = "name"  # one of the list's columns
    descending: bool = False
    limit: int = MOST_ROWS
    after: Key | None = None  # key of the last row of the previous page
    search: str | None = None  # part of the name, ignoring the case of A-Z, or a whole id
    ids: Collection[str] | None = None  # only these rows
    org_ids: frozenset[str] | None = None  # rows of these organisations; None: of all of them
    with_before: bool = False  # True: look also at the previous pages


@dataclass(frozen=True, slots=True)
class ListPage(Generic[R]):
    rows: tuple[R, ...]
    next: Key | None  # key of the last row, if there are more
    total: int  # number of rows of all pages
    before: int = 0  # number of rows of the previous pages, if the query requested it
    previous: Key | None = (
        None  # key after which the previous page begins; None on the first page and without rows
    )


@dataclass(frozen=True, slots=True)
class HealthBounds:
    """Times from which a proxy counts as late, as the module `fleet_health` defines them."""

    now_ms: int
    stale_ms: int  # silence after which a proxy is stale
    lost_ms: int  # silence after which a proxy has failed
    behind_ms: int  # time behind an active version after which a proxy is degraded
    reused_ms: int  # time for which a reused batch id counts


@dataclass(frozen=True, slots=True)
class FleetQuery:
    """A selection of proxies by their state of health."""

    bounds: HealthBounds
    health: Health | None = None
    needs_look: bool = False  # only proxies that are neither well nor disabled, or disabled with losses
    seen: frozenset[str] | None = None  # losses count only if all organisations of the proxy are in this set


Unused = Literal["never", "idle"]
"""Applications without a request: never, or in the last 30 days."""


@dataclass(frozen=True, slots=True)
class AppQuery:
    """A selection of applications by their ruleset or shadow ruleset, and by how recently they were used."""

    ruleset_id: str | None = None
    shadow_ruleset_id: str | None = None
    unused: Unused | None = None
    idle_since_ms: int = 0  # an application without a request since then is idle


EVERY_APP: Final = AppQuery()


async def all_rows(read: Callable[[ListQuery], Awaitable[ListPage[R]]], query: ListQuery) -> tuple[R, ...]:
    """Return the rows of all pages of a list.

    Between two pages, the control plane serves other requests.
    """
    rows: list[R] = []
    after: Key | None = None
    while True:
        page = await read(replace(query, limit=MOST_ROWS, after=after))
        rows += page.rows
        if page.next is None:
            return tuple(rows)
        after = page.next
