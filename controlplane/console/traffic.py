"""Requests over time by verdict, for the overview page and for the page of a single object."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from markupsafe import Markup

from controlplane.console import charts, text
from controlplane.console.action_words import words_of
from controlplane.console.event_rows import shown
from controlplane.console.pages import PageRequest
from controlplane.operations.actor import Actor
from controlplane.operations.audit import HeldEvents, WhatIsHeld, what_is_held
from controlplane.operations.context import OperationContext
from controlplane.operations.event_counts import CountTimes, histogram
from controlplane.operations.operator_log import RecordFacts, SearchOperatorLog
from controlplane.operations.operator_log import search as search_operator_log
from controlplane.operations.perform import perform
from controlplane.operations.time_axis import DAY_MS, HOUR_MS, MINUTE_MS, edges
from controlplane.search.query import rfc3339_ms
from proxy.wire.audit_event import rfc3339
from proxy.wire.figures import number, percent

FROM_BELOW: Final = ("allow", "filter", "log_only", "block")  # order of the verdicts in a column of the chart
VERDICT_WORDS: Final = {
    "allow": "allowed",
    "filter": "filtered",
    "log_only": "logged only",
    "block": "blocked",
}
_MARKED: Final = {  # operations, or nouns of several operations
    "ruleset": "publish",
    "proposal.approve": "publish",
    "kill": "stop",
    "unkill": "lift",
}
_PUBLISHES: Final = ("published", "switched")  # start of a result if rules changed, instead of being proposed
_MOST_MARKS: Final = 50
_SHADES: Final = {"absent": "absent", "purged": "purged", "partly purged": "partly"}


@dataclass(frozen=True, slots=True)
class Period:
    name: str  # name in the URL
    words: str
    interval_ms: int
    intervals: int


PERIODS: Final = (
    Period("1h", "hour", MINUTE_MS, 60),
    Period("24h", "24 hours", 30 * MINUTE_MS, 48),
    Period("7d", "7 days", 3 * HOUR_MS, 56),
    Period("30d", "30 days", 12 * HOUR_MS, 60),
    Period("90d", "90 days", DAY_MS, 90),
)


@dataclass(frozen=True, slots=True)
class Window:
    """The period and the filter of the events that a page counts, with links that search for these events."""

    request: PageRequest
    org: str | None
    filter: str  # filter that selects the counted events, without their verdict
    interval_ms: int
    axis: Sequence[int]  # start of each interval, then the end of the last

    @property
    def since(self) -> str:
        return rfc3339(self.axis[0])

    def search(self, more: str = "", since: str | None = None, until: str | None = None) -> str:
        """Return the link to a search for the events that a figure on the page counts."""
        query = " ".join(term for term in (self.filter, more) if term)
        times = {"from": since or self.since, "to": until}
        org = {"org": self.org} if self.org else {}
        return self.request.link("/search", q=query, **times, **org)


@dataclass(frozen=True, slots=True)
class Traffic:
    """Counts of events in each interval of a window, oldest interval first."""

    window: Window
    by_verdict: Mapping[str, Sequence[int]]
    before: Mapping[str, int] | None  # counts of the previous period, if all of them are known
    complete: bool  # False if only the newest events were counted, because there are too many
    shades: Sequence[charts.Shade] = ()
    marks: Sequence[charts.Mark] = ()

    @property
    def axis(self) -> Sequence[int]:
        return self.window.axis

    @property
    def totals(self) -> dict[str, int]:
        return {verdict: sum(counts) for verdict, counts in self.by_verdict.items()}

    @property
    def all(self) -> list[int]:
        return [sum(counts) for counts in zip(*self.by_verdict.values(), strict=True)]

    @property
    def total(self) -> int:
        return sum(self.all)

    @property
    def rate(self) -> str:
        """Average number of requests per minute."""
        return text.rate(self.total / ((self.axis[-1] - self.axis[0]) / MINUTE_MS))

    def change(self, words: str, verdict: str | None = None) -> str:
        """Return a text with the previous period's figure, or an empty text if the figure is unknown or 0."""
        whole = sum(self.before.values()) if self.before else 0
        if self.before is None or not whole:
            return ""
        if verdict is None:
            return f"{number(whole)} in the {words} before"
        return f"{percent(self.before[verdict], whole)} before"

    def line(self, verdict: str | None = None) -> Sequence[int]:
        """Return the counts in each interval of a window for a sparkline.

        The counts omit the current interval, because its incomplete count would look like a drop.
        """
        return (self.all if verdict is None else self.by_verdict[verdict])[:-1]

    def chart(self) -> Markup:
        columns = []
        for index, (start, end) in enumerate(zip(self.axis, self.axis[1:], strict=False)):
            counts = [self.by_verdict[verdict][index] for verdict in FROM_BELOW]
            label = label_of(start, end, counts, self.window.request)
            columns.append(charts.Column(start, end, parts_of(counts), label, self._interval(index)))
        said = f"Requests over time, {number(self.total)} in all. The table below has the figures."
        span = charts.Span(self.axis[0], self.axis[-1], self.window.request.zone)
        return charts.columns(columns, said, span, self.shades, self.marks)

    def table(self) -> list[Figures]:
        """Return the figures and the marks of the chart as table rows, newest first."""
        rows = [
            Figures(start, self._interval(index), counts)
            for index, start in enumerate(self.axis[:-1])
            if any(counts := [self.by_verdict[verdict][index] for verdict in FROM_BELOW])
        ]
        return with_marks(rows, self.marks)

    def _interval(self, index: int) -> str:
        return self.window.search("", rfc3339(self.axis[index]), rfc3339(self.axis[index + 1]))


def parts_of(counts: Sequence[int]) -> tuple[charts.Part, ...]:
    return tuple(map(charts.Part, FROM_BELOW, counts))


def label_of(start_ms: int, end_ms: int, counts: Sequence[int], request: PageRequest) -> str:
    """Return the lines of a column's tooltip: the time of the column, and each verdict that occurs."""
    found = [
        f"{number(count)} {VERDICT_WORDS[verdict]}"
        for verdict, count in zip(FROM_BELOW, counts, strict=True)
        if count
    ]
    return "\n".join((text.interval(start_ms, end_ms, request.zone), *(found or ["no request"])))


_USUAL: Final = "24h"


def unknown_period(request: PageRequest) -> tuple[str, ...]:
    """Return a notice if the requested period is invalid and the page therefore shows another period."""
    wanted = request.query.get("last", _USUAL)
    names = [each.name for each in PERIODS]
    return () if wanted in names else (f"Unknown period {wanted}: last must be one of {', '.join(names)}.",)


def period_of(request: PageRequest) -> Period:
    wanted = request.query.get("last", _USUAL)
    return next((each for each in PERIODS if each.name == wanted), PERIODS[1])


def window(request: PageRequest, period: Period, org: str | None, query: str = "") -> Window:
    """Return the window of a period, for one organisation or for all organisations of the operator."""
    since = request.now_ms - (period.intervals - 1) * period.interval_ms
    axis = edges(since, request.now_ms + 1, period.interval_ms, request.zone)
    return Window(request, org, query, period.interval_ms, axis)


async def traffic(context: OperationContext, actor: Actor, window: Window) -> Traffic:
    """Count the events of a window by interval and verdict."""
    request, org, axis = window.request, window.org, window.axis
    before_ms = 2 * axis[0] - axis[-1]
    asked = [
        CountTimes(
            filter=f"verdict:{verdict} {window.filter}",
            org=org,
            from_=rfc3339(before_ms),
            to=rfc3339(axis[-1]),
            zone=str(request.zone),
            interval_ms=window.interval_ms,
        )
        for verdict in FROM_BELOW
    ]
    found, held, marks = await asyncio.gather(
        asyncio.gather(*(perform(histogram, context, actor, each) for each in asked)),
        perform(what_is_held, context, actor, WhatIsHeld(org=org)),
        marks_of(context, actor, request, org, (axis[0], axis[-1])),
    )
    by_verdict, before = {}, {}
    for verdict, each in zip(FROM_BELOW, found, strict=True):
        counted = {rfc3339_ms(bucket.start) or 0: bucket.count for bucket in each.buckets}
        by_verdict[verdict] = [counted.get(start, 0) for start in axis[:-1]]
        before[verdict] = sum(count for start, count in counted.items() if start < axis[0])
    complete = all(each.complete for each in found)
    has_before = complete and all((rfc3339_ms(gap.until) or 0) <= before_ms for gap in held.gaps)
    return Traffic(
        window,
        by_verdict,
        before if has_before else None,
        complete,
        shades_in(held, request, (axis[0], axis[-1])),
        marks,
    )


def shades_in(held: HeldEvents, request: PageRequest, span: tuple[int, int]) -> list[charts.Shade]:
    found, begin = [], 0
    for gap in held.gaps:
        end = rfc3339_ms(gap.until) or 0
        start, shown_end = max(begin, span[0]), min(end, span[1])
        begin = end
        if start >= shown_end:
            continue
        until = text.named_moment(end, request.zone)
        words = {
            "absent": f"Before {until}: there was no organisation or no event yet",
            "purged": f"Before {until}: purged by retention",
            "partly purged": f"Before {until}: purged in some organisations",
        }[gap.state]
        found.append(charts.Shade(_SHADES[gap.state], start, shown_end, words))
    return found


async def marks_of(
    context: OperationContext, actor: Actor, request: PageRequest, org: str | None, span: tuple[int, int]
) -> list[charts.Mark]:
    """Return the publications of rulesets and the emergency stops in the period of a chart, newest first."""
    asked = [
        SearchOperatorLog(
            operation=each, org=org, from_=rfc3339(span[0]), to=rfc3339(span[1]), limit=_MOST_MARKS
        )
        for each in _MARKED
    ]
    found = await asyncio.gather(*(perform(search_operator_log, context, actor, each) for each in asked))
    marks = [
        _mark(line, kind, request, org)
        for kind, page in zip(_MARKED.values(), found, strict=True)
        for line in page.lines
        if _changes_something(line, kind)
    ]
    return sorted(marks, key=lambda mark: mark.at_ms, reverse=True)[:_MOST_MARKS]


def _changes_something(line: RecordFacts, kind: str) -> bool:
    """Return whether the operation in a line of the operator log changed something.

    A proposal does not change the active rules, and applying a text that is already active changes nothing.
    Lines that an earlier release wrote to the operator log have no result.
    """
    done = line.outcome == "done"
    return done and (kind != "publish" or line.result is None or line.result.startswith(_PUBLISHES))


def _mark(line: RecordFacts, kind: str, request: PageRequest, org: str | None) -> charts.Mark:
    at = rfc3339_ms(line.time) or 0
    reason = f" ({line.request['reason']})" if line.request.get("reason") else ""
    what = line.result or words_of(line.operation)
    words = shown(f"{text.named_moment(at, request.zone)}: {line.operator} {what}{reason}")
    href = request.link("/record", operation=line.operation, **{"from": line.time}, org=org)
    return charts.Mark(at, kind, words, href)


@dataclass(frozen=True, slots=True)
class Figures:
    """Row of a chart's table: an interval's counts by verdict, or the text of a marked change."""

    start_ms: int
    href: str
    counts: Sequence[int]
    words: str = ""


def with_marks(rows: Sequence[Figures], marks: Sequence[charts.Mark]) -> list[Figures]:
    """Add a row for each change that is marked in a chart to the rows of the chart's table, newest row first.

    The row of a mark is placed above the row of the interval that contains the mark.
    """
    marked = [Figures(mark.at_ms, mark.href, (), mark.words) for mark in marks]
    return sorted([*marked, *rows], key=lambda each: each.start_ms, reverse=True)
