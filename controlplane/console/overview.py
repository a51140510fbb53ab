"""/: what was asked and what came of it, and what needs an operator."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from markupsafe import Markup

from controlplane.console import charts, text
from controlplane.console.pages import Page, PageRequest, page
from controlplane.operations.actor import Actor
from controlplane.operations.desk import Desk
from controlplane.search.interface import SearchQuery
from controlplane.search.query import FIELDS, Exactly, FieldTerm, Filter
from proxy.wire.audit_event import rfc3339

_MINUTE_MS: Final = 60_000
_FROM_BELOW: Final = ("allow", "filter", "log_only", "block")  # in a column of the chart
_TOP: Final = 6


@dataclass(frozen=True, slots=True)
class Period:
    name: str  # in the URL
    words: str
    interval_ms: int
    intervals: int


_PERIODS: Final = (
    Period("1h", "hour", _MINUTE_MS, 60),
    Period("24h", "24 hours", 30 * _MINUTE_MS, 48),
    Period("7d", "7 days", 180 * _MINUTE_MS, 56),
)


@dataclass(frozen=True, slots=True)
class Counts:
    """Requests by verdict in each interval of a period, oldest first."""

    starts: Sequence[int]
    interval_ms: int
    by_verdict: Mapping[str, Sequence[int]]
    complete: bool  # False: there are so many that only the newest were counted

    @property
    def totals(self) -> dict[str, int]:
        return {verdict: sum(counts) for verdict, counts in self.by_verdict.items()}

    @property
    def rate(self) -> str:
        """Requests a minute, on average."""
        minutes = len(self.starts) * self.interval_ms / _MINUTE_MS
        a_minute = sum(self.all) / minutes
        return f"{text.number(a_minute) if a_minute >= 10 else f'{a_minute:.1f}'} a minute"

    @property
    def all(self) -> list[int]:
        return [sum(counts) for counts in zip(*self.by_verdict.values(), strict=True)]


@dataclass(frozen=True, slots=True)
class Ranked:
    """One line of a ranking, and the search that shows what it counts."""

    name: str
    count: int
    href: str


@page("GET", "/")
async def overview(desk: Desk, actor: Actor, request: PageRequest) -> Page:
    wanted = request.query.get("last", "24h")
    period = next((each for each in _PERIODS if each.name == wanted), _PERIODS[1])
    counts = await _counts(desk, actor, request, period)
    since = rfc3339(counts.starts[0])
    apps, rules = await _blocked(desk, actor, request, counts.starts[0])
    names = {app.app_id: app.name for app in await desk.store.apps(None)}
    values = {
        "periods": _PERIODS,
        "period": period,
        "counts": counts,
        "since": since,
        "chart": _chart(request, counts),
        "table": _table(request, counts),
        "axis": _axis(counts),
        "blocked_apps": [
            Ranked(names.get(app_id, app_id), count, _search(request, f"verdict:block app:{app_id}", since))
            for app_id, count in apps
        ],
        "blocked_rules": [
            Ranked(rule, count, _search(request, f'verdict:block rule:"{rule}"', since))
            for rule, count in rules
        ],
        "found": {verdict: _search(request, f"verdict:{verdict}", since) for verdict in counts.by_verdict}
        | {"all": _search(request, "", since)},
    }
    return Page("overview.html", "Overview", values)


def _search(request: PageRequest, query: str, since: str, until: str | None = None) -> str:
    return request.link("/search", q=query, **{"from": since, "to": until})


# What is counted


async def _counts(desk: Desk, actor: Actor, request: PageRequest, period: Period) -> Counts:
    last = request.now_ms // period.interval_ms * period.interval_ms
    starts = range(last - (period.intervals - 1) * period.interval_ms, last + 1, period.interval_ms)
    index = await desk.index()
    queries = [_query(request, actor, verdict, starts[0]) for verdict in _FROM_BELOW]
    found = await asyncio.gather(*(index.histogram(query, period.interval_ms) for query in queries))
    by_verdict = {
        verdict: [dict(each.buckets).get(start, 0) for start in starts]
        for verdict, each in zip(_FROM_BELOW, found, strict=True)
    }
    return Counts(starts, period.interval_ms, by_verdict, all(each.complete for each in found))


async def _blocked(
    desk: Desk, actor: Actor, request: PageRequest, from_ms: int
) -> tuple[Sequence[tuple[str, int]], Sequence[tuple[str, int]]]:
    """Apps and rules with the most blocked requests."""
    query = _query(request, actor, "block", from_ms)
    found = await (await desk.index()).facets(query, ["app", "rule"], top=_TOP)
    return found.fields["app"], found.fields["rule"]


def _query(request: PageRequest, actor: Actor, verdict: str, from_ms: int) -> SearchQuery:
    org_ids: tuple[str, ...] | None = None if actor.may("viewer", None) else tuple(actor.roles)
    if request.org is not None:
        org_ids = (request.org.org_id,)
    return SearchQuery(org_ids, Filter((FieldTerm(FIELDS["verdict"], (Exactly(verdict),)),)), from_ms=from_ms)


# How it is shown


def _chart(request: PageRequest, counts: Counts) -> Markup:
    columns = []
    for index, start in enumerate(counts.starts):
        parts = tuple(charts.Part(verdict, counts.by_verdict[verdict][index]) for verdict in _FROM_BELOW)
        said = ", ".join(f"{part.count} {part.kind}" for part in parts if part.count) or "no request"
        href = _search(request, "", rfc3339(start), rfc3339(start + counts.interval_ms))
        columns.append(charts.Column(parts, f"{text.moment(start)[5:16]} UTC: {said}", href))
    return charts.columns(
        columns, f"Requests over time; {sum(counts.all)} in all. The table below has the figures."
    )


def _table(request: PageRequest, counts: Counts) -> list[tuple[int, str, list[int]]]:
    """The chart's figures, newest first: start, what leads to the events, and the count of each verdict."""
    return [
        (
            start,
            _search(request, "", rfc3339(start), rfc3339(start + counts.interval_ms)),
            [counts.by_verdict[verdict][index] for verdict in _FROM_BELOW],
        )
        for index, start in reversed(list(enumerate(counts.starts)))
        if counts.all[index]
    ]


def _axis(counts: Counts) -> list[str]:
    """Five times below the chart; days where it is longer than one."""
    last = len(counts.starts) - 1
    marks = [counts.starts[last * quarter // 4] for quarter in range(5)]
    long = counts.interval_ms * len(counts.starts) > 86_400_000
    return [text.moment(mark)[5:10] if long else text.moment(mark)[11:16] for mark in marks]
