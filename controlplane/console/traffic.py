"""Requests over time by verdict: what the overview shows of all of them, and other pages of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from markupsafe import Markup

from controlplane.console import charts, text
from controlplane.console.pages import PageRequest
from controlplane.operations.actor import Actor
from controlplane.operations.audit import Selection, histogram
from controlplane.operations.context import OperationContext
from controlplane.operations.perform import perform
from controlplane.search.query import rfc3339_ms
from proxy.wire.audit_event import rfc3339

_MINUTE_MS: Final = 60_000
_FROM_BELOW: Final = ("allow", "filter", "log_only", "block")  # in a column of the chart


@dataclass(frozen=True, slots=True)
class Period:
    name: str  # in the URL
    words: str
    interval_ms: int
    intervals: int


# Their intervals are the ones that a histogram of so long a time has.
PERIODS: Final = (
    Period("1h", "hour", _MINUTE_MS, 60),
    Period("24h", "24 hours", 30 * _MINUTE_MS, 48),
    Period("7d", "7 days", 180 * _MINUTE_MS, 56),
)


@dataclass(frozen=True, slots=True)
class Traffic:
    """Counts in each interval of a period, oldest first, and the searches behind them."""

    request: PageRequest
    org: str | None
    filter: str  # of the events that are counted, whatever their verdict
    starts: Sequence[int]
    interval_ms: int
    by_verdict: Mapping[str, Sequence[int]]
    complete: bool  # False: there are so many that only the newest were counted

    @property
    def since(self) -> str:
        return rfc3339(self.starts[0])

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
        """Requests a minute, on average."""
        return text.rate(self.total / (len(self.starts) * self.interval_ms / _MINUTE_MS))

    def line(self, verdict: str | None = None) -> Sequence[int]:
        """For a sparkline: without the interval that isn't over, which would look like a fall."""
        return (self.all if verdict is None else self.by_verdict[verdict])[:-1]

    def search(self, more: str = "", since: str | None = None, until: str | None = None) -> str:
        """The address that shows the events behind a figure."""
        query = " ".join(term for term in (self.filter, more) if term)
        times = {"from": since or self.since, "to": until}
        org = {"org": self.org} if self.org else {}
        return self.request.link("/search", q=query, **times, **org)

    def chart(self) -> Markup:
        columns = []
        for index, start in enumerate(self.starts):
            parts = tuple(charts.Part(verdict, self.by_verdict[verdict][index]) for verdict in _FROM_BELOW)
            said = ", ".join(f"{part.count} {part.kind}" for part in parts if part.count) or "no request"
            label = f"{text.moment(start)[5:16]} UTC: {said}"
            columns.append(charts.Column(parts, label, self._interval(start)))
        said = f"Requests over time, {self.total} in all: the table below has the figures."
        return charts.columns(columns, said)

    def table(self) -> list[tuple[int, str, list[int]]]:
        """The chart's figures, newest first: start, what leads to the events, the count of each verdict."""
        return [
            (start, self._interval(start), [self.by_verdict[verdict][index] for verdict in _FROM_BELOW])
            for index, start in reversed(list(enumerate(self.starts)))
            if self.all[index]
        ]

    def axis(self) -> list[str]:
        """Five times below the chart; days where it is longer than one."""
        last = len(self.starts) - 1
        marks = [text.moment(self.starts[last * quarter // 4]) for quarter in range(5)]
        long = self.interval_ms * len(self.starts) > 86_400_000
        return [mark[5:10] if long else mark[11:16] for mark in marks]

    def _interval(self, start: int) -> str:
        return self.search("", rfc3339(start), rfc3339(start + self.interval_ms))


_USUAL: Final = "24h"


def unknown_period(request: PageRequest) -> tuple[str, ...]:
    """A sentence for a period that the page has not, so that it does not look as if it were shown."""
    wanted = request.query.get("last", _USUAL)
    names = [each.name for each in PERIODS]
    return () if wanted in names else (f"There is no period {wanted}: last is one of {', '.join(names)}.",)


def period_of(request: PageRequest) -> Period:
    wanted = request.query.get("last", _USUAL)
    return next((each for each in PERIODS if each.name == wanted), PERIODS[1])


async def traffic(
    context: OperationContext,
    actor: Actor,
    request: PageRequest,
    period: Period,
    org: str | None,
    query: str = "",
) -> Traffic:
    """What was asked in an organisation, or in all that the actor may look at."""
    last = request.now_ms // period.interval_ms * period.interval_ms
    starts = range(last - (period.intervals - 1) * period.interval_ms, last + 1, period.interval_ms)
    asked = [
        Selection(
            filter=f"verdict:{verdict} {query}",
            org=org,
            from_=rfc3339(starts[0]),
            to=rfc3339(last + period.interval_ms),
        )
        for verdict in _FROM_BELOW
    ]
    found = await asyncio.gather(*(perform(histogram, context, actor, each) for each in asked))
    by_verdict = {}
    for verdict, each in zip(_FROM_BELOW, found, strict=True):
        counted = {rfc3339_ms(bucket.start): bucket.count for bucket in each.buckets}
        by_verdict[verdict] = [counted.get(start, 0) for start in starts]
    complete = all(each.complete for each in found)
    return Traffic(request, org, query, starts, period.interval_ms, by_verdict, complete)
