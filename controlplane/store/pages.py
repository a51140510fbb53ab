"""Pure: a page of a list as plain values: the query and the rows that were found.

A page goes on after the key of the row before it, never after a number of rows. Rows that come and go between
two requests therefore neither repeat a row nor leave one out.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Final, Generic, Literal, TypeVar

R = TypeVar("R")

ListName = Literal["orgs", "proxies", "rulesets", "apps", "operators"]
Key = tuple[str | int, ...]
"""What a row is sorted by: the value of the column, its name, its id."""

MOST_ROWS: Final = 200  # rows of one page, so that reading it delays nobody
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
"""Proxies sorted by health: those that need a look first."""


Standing = Literal["active", "retired", "any"]
"""Proxies that count in the fleet, those that have gone for good, or both."""


@dataclass(frozen=True, slots=True)
class ListQuery:
    """A choice of rows of a list, their order and their number."""

    sort: str = "name"  # one of the list's columns
    descending: bool = False
    limit: int = MOST_ROWS
    after: Key | None = None  # key of the last row of the page before
    search: str | None = None  # part of the name, whatever the case of A-Z, or a whole id
    ids: Collection[str] | None = None  # only these rows
    org_ids: frozenset[str] | None = None  # rows of these organisations; None: of all of them
    with_before: bool = False  # look also at the pages before


@dataclass(frozen=True, slots=True)
class ListPage(Generic[R]):
    rows: tuple[R, ...]
    next: Key | None  # key of the last row, if there are more
    total: int  # rows of all pages
    before: int = 0  # rows of the pages before, if the query asked for them
    previous: Key | None = (
        None  # key after which the page before begins; None: it is the first, or there is none
    )


@dataclass(frozen=True, slots=True)
class HealthBounds:
    """From when on a proxy counts as late, as `fleet_health` says it."""

    now_ms: int
    stale_ms: int  # silence after which a proxy is stale
    lost_ms: int  # silence after which it has failed
    behind_ms: int  # time behind an active version after which it is degraded
    reused_ms: int  # time for which a reused batch id counts


@dataclass(frozen=True, slots=True)
class FleetQuery:
    """A choice of proxies by their health."""

    bounds: HealthBounds
    health: Health | None = None
    needs_look: bool = False  # neither well nor disabled, or disabled with losses
    seen: frozenset[str] | None = None  # losses count if all organisations of the proxy are among these


Unused = Literal["never", "idle"]
"""Apps without a request: none was ever counted, or none in the last 30 days."""


@dataclass(frozen=True, slots=True)
class AppQuery:
    """A choice of apps by their ruleset and by their use."""

    ruleset_id: str | None = None
    shadow_ruleset_id: str | None = None
    unused: Unused | None = None
    idle_since_ms: int = 0  # an app without a request since then is idle


EVERY_APP: Final = AppQuery()


async def all_rows(read: Callable[[ListQuery], Awaitable[ListPage[R]]], query: ListQuery) -> tuple[R, ...]:
    """Return the rows of all pages. Others are served between two pages."""
    rows: list[R] = []
    after: Key | None = None
    while True:
        page = await read(replace(query, limit=MOST_ROWS, after=after))
        rows += page.rows
        if page.next is None:
            return tuple(rows)
        after = page.next
