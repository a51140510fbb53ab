"""/: what was asked and what came of it, and what needs an operator."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
from markupsafe import Markup

from controlplane.console import charts, text
from controlplane.console.pages import Page, PageRequest, page
from controlplane.operations.actor import Actor
from controlplane.operations.audit import CountValues, Selection, ValueCount, facets, histogram
from controlplane.operations.desk import Desk
from controlplane.operations.fleet import ListFleet
from controlplane.operations.fleet import list_all as list_fleet
from controlplane.operations.perform import perform
from controlplane.operations.record import SearchRecord
from controlplane.operations.record import search as search_record
from controlplane.search.query import rfc3339_ms
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
    blocked = await _blocked(desk, actor, request, counts.starts[0])
    org = _org(request)
    done = await perform(search_record, desk, actor, SearchRecord(org=org, limit=100))
    fleet = await perform(list_fleet, desk, actor, ListFleet(org=org))
    values = {
        "periods": _PERIODS,
        "period": period,
        "counts": counts,
        "since": since,
        "chart": _chart(request, counts),
        "table": _table(request, counts),
        "axis": _axis(counts),
        "blocked_apps": _ranked(request, blocked["app"], "app", since),
        "blocked_rules": _ranked(request, blocked["rule"], "rule", since),
        "done": [line for line in done.lines if not line.operation.startswith("session.")][:_TOP],
        "proxies": fleet.proxies,
        "unwell": [proxy for proxy in fleet.proxies if proxy.health != "ok"],
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
    whole = _selection(request, starts[0], last + period.interval_ms)
    asked = [msgspec.structs.replace(whole, filter=f"verdict:{verdict}") for verdict in _FROM_BELOW]
    found = await asyncio.gather(*(perform(histogram, desk, actor, each) for each in asked))
    by_verdict = {}
    for verdict, each in zip(_FROM_BELOW, found, strict=True):
        counted = {rfc3339_ms(bucket.start): bucket.count for bucket in each.buckets}
        by_verdict[verdict] = [counted.get(start, 0) for start in starts]
    return Counts(starts, period.interval_ms, by_verdict, all(each.complete for each in found))


async def _blocked(
    desk: Desk, actor: Actor, request: PageRequest, from_ms: int
) -> Mapping[str, Sequence[ValueCount]]:
    """Apps and rules with the most blocked requests."""
    asked = CountValues(
        filter="verdict:block", org=_org(request), from_=rfc3339(from_ms), fields=("app", "rule"), top=_TOP
    )
    found = await perform(facets, desk, actor, asked)
    return {facet.field: facet.values for facet in found.facets}


def _selection(request: PageRequest, from_ms: int, to_ms: int) -> Selection:
    return Selection(org=_org(request), from_=rfc3339(from_ms), to=rfc3339(to_ms))


def _org(request: PageRequest) -> str | None:
    return request.org.org_id if request.org else None


# How it is shown


def _ranked(request: PageRequest, values: Sequence[ValueCount], field: str, since: str) -> list[Ranked]:
    return [
        Ranked(
            each.name or each.value,
            each.count,
            _search(request, f'verdict:block {field}:"{each.value}"', since),
        )
        for each in values
    ]


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
