"""/search: audit events by a filter and a time, what they have in common, and when they were."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode

import msgspec
import orjson
from markupsafe import Markup

from controlplane.clock import LATEST_MS
from controlplane.console import charts, terms, text
from controlplane.console.event_rows import event_row, shown, text_of
from controlplane.console.pages import Page, PageRequest, page
from controlplane.operations.actor import Actor
from controlplane.operations.audit import (
    CountValues,
    Facet,
    FacetList,
    HistogramOfEvents,
    InvalidFilter,
    SearchEvents,
    Selection,
    facets,
    histogram,
    search,
)
from controlplane.operations.context import OperationContext
from controlplane.operations.operation import InvalidRequest
from controlplane.operations.perform import perform
from controlplane.search.query import FIELDS, rfc3339_ms
from controlplane.store.interface import StoreError
from proxy.wire.audit_event import rfc3339

_PRESETS: Final = (
    ("", "All"), ("-15m", "15 min"), ("-1h", "1 h"), ("-24h", "24 h"), ("-7d", "7 d"), ("-30d", "30 d"),
)  # fmt: skip
_PAGE: Final = 50
_FACETS: Final = ("verdict", "status", "reason", "rule", "app", "org", "method", "path", "ip")
_TOP: Final = 6
_FROM_BELOW: Final = ("allow", "filter", "log_only", "block")  # in a column of the chart
_COUNTS_WITHIN_SECONDS: Final = 0.25  # or the page goes without them, and they follow
_EXAMPLES: Final = (
    ("verdict:block", "what was blocked"),
    ("status:>=500", "what went wrong"),
    ("path:/v1.0/users/*", "whatever begins so"),
    ("-ruleId:default", "what a rule decided"),
    ("has:parent", "parts of a $batch"),
    ("duration:>1000", "what took longer than a second"),
    ('ada "mail folders"', "words of path, query, rule, reason"),
)


@dataclass(frozen=True, slots=True)
class Choice:
    """A value that a click puts into the filter, or takes out of it."""

    value: str
    count: int
    is_chosen: bool
    href: str | None  # None: no filter can say it
    without: str | None  # events that don't have it


@dataclass(frozen=True, slots=True)
class Counted:
    """What is told of all matches, or of the newest of them."""

    facets: Sequence[tuple[str, Sequence[Choice], int]]  # field, values, the most frequent one's count
    counted: int
    complete: bool
    chart: Markup
    axis: Sequence[str]
    table: Sequence[tuple[str, str, Sequence[int]]]  # start, what leads to the events, count by verdict
    total: int
    total_complete: bool


@dataclass(frozen=True, slots=True)
class Mistake:
    """The filter around the place where it is wrong."""

    before: str
    at: str
    after: str
    column: int
    message: str


@page("GET", "/search", "q", "from", "to", "cursor", "counts")
async def found(context: OperationContext, actor: Actor, request: PageRequest) -> Page:
    given = request.query.get
    asked = SearchEvents(**_members(request), limit=_PAGE, cursor=given("cursor") or None)
    values: dict[str, object] = {
        "q": given("q", ""),
        "from": given("from", ""),
        "to": given("to", ""),
        "presets": _PRESETS,
        "examples": _EXAMPLES,
        "fields": tuple(FIELDS),
        "verdicts": _FROM_BELOW,
        "problems": (),
        "mistake": None,
        "rows": (),
        "next": None,
        "behind": False,
        "counts": None,
        "counts_at": None,
        "exports": [(form, _export(request, form)) for form in ("csv", "ndjson")],
    }
    try:
        events = await perform(search, context, actor, asked)
    except InvalidRequest as error:
        values |= _refused(error, given("q", ""))
        return Page("search.html", "Search", values, status=422)
    names = await names_in(context, actor, events.events)
    values["rows"] = [event_row(bytes(event), names) for event in events.events]
    values["next"] = None if events.next is None else request.changed(cursor=events.next)
    values["behind"] = events.behind
    if events.events:
        try:
            async with asyncio.timeout(None if given("counts") else _COUNTS_WITHIN_SECONDS):
                values["counts"] = await _counts(context, actor, request)
        except TimeoutError:
            values["counts_at"] = request.link("/search/counts", **_state(request))
    return Page("search.html", "Search", values, remarks=sentences(events.notes))


def sentences(notes: Sequence[str]) -> tuple[str, ...]:
    """Write notes on an empty search as sentences."""
    return tuple(f"{note[:1].upper()}{note[1:]}{'' if note.endswith('?') else '.'}" for note in notes)


@page("GET", "/search/counts", "q", "from", "to")
async def counts_alone(context: OperationContext, actor: Actor, request: PageRequest) -> Page:
    """What the page leaves out if it takes too long, for a script to put in."""
    values = {"counts": await _counts(context, actor, request), "verdicts": _FROM_BELOW}
    return Page("search_counts.html", "Counts", values)


def _members(request: PageRequest) -> dict[str, Any]:
    given = request.query.get
    return {
        "filter": given("q", "").strip(),
        "org": None if request.org is None else request.org.org_id,
        "from_": given("from", "").strip() or None,
        "to": given("to", "").strip() or None,
    }


def _state(request: PageRequest) -> dict[str, str | None]:
    return {name: request.query.get(name) for name in ("q", "from", "to")}


def _export(request: PageRequest, form: str) -> str:
    members = _members(request)
    asked = {
        "filter": members["filter"],
        "from": members["from_"],
        "to": members["to"],
        "org": members["org"],
    }
    given = {name: value for name, value in asked.items() if value}
    return f"/admin/v1/audit/export?{urlencode({'format': form, **given})}"


async def names_in(context: OperationContext, actor: Actor, events: Iterable[msgspec.Raw]) -> dict[str, str]:
    """Return the names of the organisations and apps of these events, by id."""
    read = [orjson.loads(bytes(event)) for event in events]
    org_ids = {text_of(event, "orgId") for event in read}
    app_ids = {text_of(event, "appId") for event in read}
    return await context.resolve.org_names(actor, org_ids) | await context.resolve.app_names(actor, app_ids)


def _refused(error: InvalidRequest, filter_: str) -> dict[str, object]:
    if isinstance(error, InvalidFilter):
        return {"mistake": mistake_in(filter_, error)}
    return {"problems": error.problems}


def mistake_in(filter_: str, error: InvalidFilter) -> Mistake:
    # The operation sees the filter without the white space around it.
    at = error.column - 1 + len(filter_) - len(filter_.lstrip())
    return Mistake(
        shown(filter_[:at]),
        shown(filter_[at : at + 1]) or " ",
        shown(filter_[at + 1 :]),
        at + 1,
        error.message,
    )


# What is counted


async def _counts(context: OperationContext, actor: Actor, request: PageRequest) -> Counted | None:
    members = _members(request)
    verdicts = [
        Selection(**{**members, "filter": f"{members['filter']} verdict:{verdict}".strip()})
        for verdict in _FROM_BELOW
    ]
    wanted = [name for name in _FACETS if name != "org" or request.org is None]
    try:
        by_verdict = await asyncio.gather(*(perform(histogram, context, actor, each) for each in verdicts))
        found = await perform(facets, context, actor, CountValues(**members, fields=tuple(wanted), top=_TOP))
    except (InvalidRequest, StoreError):
        return None  # what the search itself says of it is on the page
    return Counted(
        [_facet(request, each) for each in found.facets if each.values],
        found.counted,
        found.complete,
        *_chart(request, by_verdict),
        total=_total(found, by_verdict),
        total_complete=all(each.complete for each in by_verdict),
    )


def _total(found: FacetList, by_verdict: Sequence[HistogramOfEvents]) -> int:
    over_time = sum(bucket.count for each in by_verdict for bucket in each.buckets)
    return found.counted if found.complete else max(over_time, found.counted)


def _facet(request: PageRequest, facet: Facet) -> tuple[str, Sequence[Choice], int]:
    """Called by its name where no other value of the facet has the same."""
    called = [each.name or each.value for each in facet.values]
    choices = []
    for each, name in zip(facet.values, called, strict=True):
        said = name if called.count(name) == 1 else each.value
        choices.append(_choice(request, facet.field, said, name, each.count))
    return facet.field, choices, max(choice.count for choice in choices)


def _choice(request: PageRequest, field: str, value: str, name: str, count: int) -> Choice:
    text_of_filter = request.query.get("q", "")
    chosen, opposite = terms.term(field, value), terms.term(field, value, negated=True)
    if chosen is None or opposite is None:
        return Choice(shown(name), count, False, None, None)
    is_chosen = terms.has(text_of_filter, chosen)
    filter_ = (terms.without_term if is_chosen else terms.with_term)(text_of_filter, chosen)
    return Choice(
        shown(name),
        count,
        is_chosen,
        _narrowed(request, q=filter_),
        None if is_chosen else _narrowed(request, q=terms.with_term(text_of_filter, opposite)),
    )


def _narrowed(request: PageRequest, **changes: str | None) -> str:
    return request.link("/search", **{**_state(request), **changes})


# How it is drawn


def _chart(
    request: PageRequest, by_verdict: Sequence[HistogramOfEvents]
) -> tuple[Markup, Sequence[str], Sequence[tuple[str, str, Sequence[int]]]]:
    interval = by_verdict[0].interval_ms
    from_ms, to_ms = rfc3339_ms(by_verdict[0].from_ or ""), rfc3339_ms(by_verdict[0].to or "")
    if from_ms is None or to_ms is None:
        return Markup(), (), ()
    starts = range(from_ms // interval * interval, to_ms, interval)
    counts = [{rfc3339_ms(each.start): each.count for each in one.buckets} for one in by_verdict]
    columns, table = [], []
    for start in starts:
        numbers = [count.get(start, 0) for count in counts]
        parts = tuple(map(charts.Part, _FROM_BELOW, numbers))
        end = min(start + interval, LATEST_MS)
        href = _narrowed(request, **{"from": rfc3339(start), "to": rfc3339(end)})
        said = ", ".join(f"{part.count} {part.kind}" for part in parts if part.count) or "none"
        columns.append(charts.Column(parts, f"{text.moment(start)} UTC: {said}", href))
        if any(numbers):
            table.append((rfc3339(start), href, numbers))
    return (
        charts.columns(columns, "Events over time. The table below has the figures."),
        _axis(starts, interval),
        table[::-1],
    )


def _axis(starts: range, interval: int) -> Sequence[str]:
    """Five times below the chart: days where it is longer than two of them, seconds where it is short."""
    marks = [text.moment(starts[(len(starts) - 1) * quarter // 4]) for quarter in range(5)]
    span = interval * len(starts)
    if span > 2 * 86_400_000:
        return [mark[:10] if span > 300 * 86_400_000 else mark[5:10] for mark in marks]
    return [mark[5:16] if span > 86_400_000 else mark[11:19] if interval < 60_000 else mark[11:16]
            for mark in marks]  # fmt: skip
