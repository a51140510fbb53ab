"""Areas of the console: the modules that define pages, and the entries of the navigation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from controlplane.console import (
    apps,
    credentials,
    deletions,
    drafts,
    enrolment,
    events,
    integrity,
    live,
    operator_log,
    operators,
    orgs,
    overview,
    proposals,
    proxies,
    report,
    rulesets,
    search,
    sinks,
    stops,
)
from controlplane.console.pages import PageRoute

_MODULES: Final = (
    apps,
    credentials,
    deletions,
    drafts,
    enrolment,
    events,
    integrity,
    live,
    operators,
    orgs,
    overview,
    proposals,
    proxies,
    operator_log,
    report,
    rulesets,
    search,
    sinks,
    stops,
)


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of the console's navigation, shown only if the page of the entry exists."""

    path: str
    text: str
    icon: str
    key: str  # key to press after g
    also: str | None = None  # another path of the same area

    def has(self, path: str) -> bool:
        """Return True if a path belongs to the area of this navigation entry."""
        areas = [each for each in (self.path, self.also) if each not in (None, "/")]
        return path == self.also or any(path.startswith(f"{each}/") for each in areas)


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
            Entry("/proxies", "Proxies", "proxy", "p", also="/enrolment"),
            Entry("/stops", "Emergency stop", "stop", "x"),
        ),
    ),
    (
        "Administration",
        (
            Entry("/orgs", "Organisations", "org", "z"),
            Entry("/operators", "Operators", "operator", "u"),
            Entry("/sinks", "Sinks", "live", "k"),
            Entry("/record", "Operator log", "record", "e"),
            Entry("/audit/report", "Audit report", "info", "t"),
            Entry("/audit/integrity", "Integrity", "check", "i"),
        ),
    ),
)

ROUTES: Final[tuple[PageRoute, ...]] = tuple(
    value for module in _MODULES for value in vars(module).values() if isinstance(value, PageRoute)
)
