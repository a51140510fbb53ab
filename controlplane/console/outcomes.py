"""Numbers of failed and refused requests, and the latency of requests.

Requests that rules blocked are counted separately from failures and refusals.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import orjson

from controlplane.console.event_rows import milliseconds
from controlplane.console.traffic import Window
from controlplane.operations.actor import Actor
from controlplane.operations.audit import SearchEvents, search
from controlplane.operations.context import OperationContext
from controlplane.operations.event_counts import CountValues, FacetList, facets
from controlplane.operations.perform import perform
from proxy.wire.figures import number, percent

_SAMPLE: Final = 500  # number of newest requests whose durations are read
# Reasons of a refusal before any rule was evaluated, except reasons with a status of 429 or 5xx. Those are
# counted by their status.
_REFUSED: Final = (
    "tokenRefused", "assertionRefused", "certificateRefused", "invalidToken", "malformedRequest",
    "malformedTarget", "ambiguousTarget",
    "malformedBatch", "payloadTooLarge", "headersTooLarge", "requestTimeout", "unsupported",
)  # fmt: skip
_WITHIN_SECONDS: Final = 0.2
_FORWARDED: Final = "-verdict:block"


@dataclass(frozen=True, slots=True)
class Outcome:
    """One figure on the page, and a link to the search that shows the counted events."""

    label: str
    value: str
    note: str
    href: str
    is_bad: bool = False


async def outcomes_in_time(
    context: OperationContext, actor: Actor, window: Window
) -> Sequence[Outcome] | None:
    """Return the numbers of requests in a period, by their outcomes.

    Return None if counting the requests takes too long for the page.
    """
    try:
        async with asyncio.timeout(_WITHIN_SECONDS):
            return await outcomes(context, actor, window)
    except TimeoutError:
        return None


async def outcomes(context: OperationContext, actor: Actor, window: Window) -> list[Outcome]:
    """Return the figures of a period's traffic: failures, 429 responses, refusals and latency."""
    asked = CountValues(
        filter=window.filter, org=window.org, from_=window.since, fields=("status", "reason"), top=100
    )
    query = f"{window.filter} {_FORWARDED}".strip()
    newest = SearchEvents(filter=query, org=window.org, from_=window.since, limit=_SAMPLE)
    counted, sampled = await asyncio.gather(
        perform(facets, context, actor, asked), perform(search, context, actor, newest)
    )
    took = [event.get("durationMs") for event in map(orjson.loads, map(bytes, sampled.events))]
    known = sorted(each for each in took if isinstance(each, int | float) and not isinstance(each, bool))
    return [*_of_counts(window, counted), _latency(window, known)]


def _of_counts(window: Window, counted: FacetList) -> list[Outcome]:
    counts = {facet.field: {each.value: each.count for each in facet.values} for facet in counted.facets}
    by_status = {int(status): count for status, count in counts["status"].items() if status.isdecimal()}
    failed = sum(count for status, count in by_status.items() if status >= 500)
    refused = sum(counts["reason"].get(reason, 0) for reason in _REFUSED)
    of = "" if counted.complete else f" of the newest {number(counted.counted)}"

    def figure(label: str, count: int, query: str, words: str, *, is_bad: bool = False) -> Outcome:
        share = f"{percent(count, counted.counted)}{of}, {words}"
        return Outcome(label, number(count), share, window.search(query), is_bad)

    return [
        figure("Failed (5xx)", failed, "status:>=500", "by the upstream or a proxy", is_bad=failed > 0),
        figure("Throttled (429)", by_status.get(429, 0), "status:429", "a rate limit was reached"),
        figure("Refused", refused, f"reason:{','.join(_REFUSED)}", "before a rule was evaluated"),
    ]


def _latency(window: Window, known: Sequence[float]) -> Outcome:
    if not known:
        return Outcome("Latency, p95", "–", "no request was forwarded", window.search(_FORWARDED))
    half, most, nearly = (milliseconds(quantile(known, share)) for share in (0.5, 0.95, 0.99))
    note = f"p50 {half}, p99 {nearly}, of the newest {number(len(known))} forwarded"
    slow = f"{_FORWARDED} duration:>={quantile(known, 0.95):.0f}"
    return Outcome("Latency, p95", most, note, window.search(slow))


def quantile(ascending: Sequence[float], share: float) -> float:
    """Return a percentile: the smallest value that is at least as large as this share of all values."""
    at = -(-len(ascending) * share // 1)
    return ascending[max(int(at), 1) - 1]
