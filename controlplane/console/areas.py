"""The areas of the console: which modules have pages, and what the navigation shows of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from controlplane.console import (
    apps,
    drafts,
    events,
    integrity,
    live,
    operator_log,
    operators,
    orgs,
    overview,
    proxies,
    rulesets,
    search,
    stops,
)
from controlplane.console.pages import PageRoute

_MODULES: Final = (
    apps,
    drafts,
    events,
    integrity,
    live,
    operators,
    orgs,
    overview,
    proxies,
    operator_log,
    rulesets,
    search,
    stops,
)


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of the navigation, shown where there is such a page."""

    path: str
    text: str
    icon: str
    key: str  # after g


GROUPS: Final = (
    (
        "Traffic",
        (
            Entry("/", "Overview", "overview", "o"),
            Entry("/live", "Live", "live", "l"),
            Entry("/search", "Search", "search", "s"),
        ),
    ),
    (
        "Policy",
        (
            Entry("/rulesets", "Rulesets", "ruleset", "r"),
            Entry("/apps", "Apps", "app", "a"),
            Entry("/proxies", "Proxies", "proxy", "p"),
            Entry("/stops", "Emergency stop", "stop", "x"),
        ),
    ),
    (
        "Administration",
        (
            Entry("/orgs", "Organisations", "org", "z"),
            Entry("/operators", "Operators", "operator", "u"),
            Entry("/record", "Operator log", "record", "e"),
            Entry("/audit/integrity", "Integrity", "check", "i"),
        ),
    ),
)

ROUTES: Final[tuple[PageRoute, ...]] = tuple(
    value for module in _MODULES for value in vars(module).values() if isinstance(value, PageRoute)
)
