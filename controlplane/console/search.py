"""Pages at /search: audit events that match a filter and a period, with counts by value and over time."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC
from itertools import pairwise
from typing import Any, Final
from urllib.parse import urlencode

import msgspec
import orjson
from markupsafe import Markup

from controlplane.clock import LATEST_MS
from controlplane.console import charts, terms, text, zones
from controlplane.console.event_rows import event_row, shown, text_of
from controlplane.console.id_search import found_by_id
from controlplane.console.pages import Page, PageRequest, Redirect, page
from controlplane.console.traffic import (
    FROM_BELOW,
    Figures,
    label_of,
    marks_of,
    parts_of,
    shades_in,
    with_marks,
)
from controlplane.operations.actor import Actor
from controlplane.operations.apps import stopped_among
from controlplane.operations.audit import HeldEvents, SearchEvents, WhatIsHeld, search, what_is_held
from controlplane.operations.context import INDEX_HAS, OperationContext
from controlplane.operations.event_counts import (
    CountTimes,
    CountValues,
    Facet,
    FacetList,
    HistogramOfEvents,
    facets,
    histogram,
)
from controlplane.operations.event_queries import InvalidFilter
from controlplane.operations.operation import InvalidRequest
from controlplane.operations.perform import perform
from controlplane.operations.time_axis import LAST_OF_ZONES_MS, edges
from controlplane.search.query import FIELDS, QueryError, parse_time, rfc3339_ms
from controlplane.store.interface import StoreError
from proxy.wire.audit_event import rfc3339

_PRESETS: Final = (
    ("", "All"), ("-15m", "15 min"), ("-1h", "1 h"), ("-24h", "24 h"), ("-7d", "7 d"), ("-30d", "30 d"),
    ("-90d", "90 d"),
)  # fmt: skip
_PAGE: Final = 50
_FACETS: Final = ("verdict", "status", "reason", "problem", "rule", "app", "org", "method", "path", "ip")
_TOP: Final = 6
# Time limit of the counts since the search began; after it, a script fetches them
_COUNTS_WITHIN_SECONDS: Final = 0.15
_FACET_WORDS: Final = {
    "verdict": "Verdict",
    "status": "Status",
    "reason": "Reason",
    "problem": "Credential problem",
    "rule": "Rule",
    "app": "App",
    "org": "Organisation",
    "method": "Method",
    "path": "Path",
    "ip": "Client address",
}
_FORMS: Final = ("csv", "ndjson")
_EXAMPLES: Final = (
    ("verdict:block", "blocked requests"),
    ("status:>=500", "failed requests"),
    ("path:/v1.0/users/*", "paths that begin with this"),
    ("-ruleId:default", "requests that a rule matched"),
    ("has:parent", "requests within a $batch"),
    ("duration:>1000", "requests that took more than a second"),
    ('ada "mail folders"', "words in the path, query, rule or reason"),
)


@dataclass(frozen=True, slots=True)
class Choice:
    """A field value that a click adds to the filter or removes from the filter."""

    value: str
    count: int
    is_chosen: bool
    href: str | None  # link that adds or removes the value, or None if no filter can express it
    without: str | None  # link to the events that do not have the value
    is_stopped: bool = False  # True for an application that an emergency stop covers


@dataclass(frozen=True, slots=True)
class Drawn:
    """A chart of the events that match a search, with the figures, shades and marks of the chart."""

    chart: Markup
    table: Sequence[Figures]
    shades: Sequence[charts.Shade]
    marks: Sequence[charts.Mark]


@dataclass(frozen=True, slots=True)
class Counted:
    """Counts of the events that match a search: of all these events, or only of the newest."""

    # Field, values, and the count of the most frequent value
    facets: Sequence[tuple[str, Sequence[Choice], int]]
    counted: int
    complete: bool
    drawn: Drawn
    total: int
    total_complete: bool


@dataclass(frozen=True, slots=True)
class Mistake:
    """A filter with an error, split at the position of the error."""

    before: str
    at: str
    after: str
    column: int
    message: str


@page("GET", "/search", "q", "from", "to", "cursor", "counts")
async def found(context: OperationContext, actor: Actor, request: PageRequest) -> Page | Redirect:
    given = request.query.get
    asked = SearchEvents(**_members(request), limit=_PAGE, cursor=given("cursor") or None)
    values: dict[str, object] = {
        "q": given("q", ""),
        "from": _time(request, "from"),
        "to": _time(request, "to"),
        "dates": [("from", "From", _date(request, "from")), ("to", "To", _date(request, "to"))],
        "notes": (),
        "presets": _PRESETS,
        "examples": _EXAMPLES,
        "fields": tuple(FIELDS),
        "facet_words": _FACET_WORDS,
        "problems": (),
        "mistake": None,
        "rows": (),
        "next": None,
        "counts": None,
        "counts_at": None,
        "exports": [(form, _export(request, form)) for form in _FORMS],
        "signed_exports": [(form, _export(request, form, is_signed=True)) for form in _FORMS],
    }
    by_id = await found_by_id(context, actor, request)
    if isinstance(by_id, Redirect):
        return by_id
    if by_id.events:
        names = await names_in(context, actor, by_id.events)
        values["rows"] = [event_row(bytes(event), names) for event in by_id.events]
        return Page("search.html", "Search", values, remarks=sentences(by_id.notes))
    deadline = asyncio.get_running_loop().time() + _COUNTS_WITHIN_SECONDS
    try:
        events = await perform(search, context, actor, asked)
    except InvalidRequest as error:
        if by_id.notes:  # the text is an error body or a log line, not a filter
            return Page("search.html", "Search", values, remarks=sentences(by_id.notes))
        values |= _refused(error, given("q", ""))
        return Page("search.html", "Search", values, status=422)
    if events.events:
        try:
            async with asyncio.timeout_at(None if given("counts") else deadline):
                values["counts"] = await _counts(context, actor, request)
        except TimeoutError:
            values["counts_at"] = request.link("/search/counts", **_state(request))
    names = await names_in(context, actor, events.events)
    values["rows"] = [event_row(bytes(event), names) for event in events.events]
    values["next"] = None if events.next is None else request.changed(cursor=events.next)
    notes = events.notes if events.events else (*by_id.notes, *events.notes)
    values["notes"] = [text.times_in(note, request.zone) for note in sentences(notes)]
    return Page("search.html", "Search", values)


def sentences(notes: Sequence[str]) -> tuple[str, ...]:
    """Return notes on a search that found nothing, as sentences.

    The notes do not say that the search index is behind, because every page shows that note.
    """
    said = [note for note in notes if not note.startswith(INDEX_HAS)]
    return tuple(map(text.as_sentence, said))


@page("GET", "/search/counts", "q", "from", "to")
async def counts_alone(context: OperationContext, actor: Actor, request: PageRequest) -> Page:
    """Return the slow counts that a search page left out, so that a script can insert them later."""
    values = {"counts": await _counts(context, actor, request), "facet_words": _FACET_WORDS}
    return Page("search_counts.html", "Counts", values)


def _members(request: PageRequest) -> dict[str, Any]:
    given = request.query.get
    return {
        "filter": given("q", "").strip(),
        "org": None if request.org is None else request.org.org_id,
        "from_": _time(request, "from") or None,
        "to": _time(request, "to") or None,
    }


def _time(request: PageRequest, name: str) -> str:
    """Return the time in a field of the search form, in the time zone of the page.

    Times in links contain their UTC offset.
    """
    return zones.absolute(request.query.get(name, "").strip(), request.zone)


def _date(request: PageRequest, name: str) -> str:
    """Return the value of a date field, or an empty text if the time is missing or wrong."""
    try:
        return zones.for_field(parse_time(_time(request, name), request.now_ms), request.zone)
    except QueryError:
        return ""


def _state(request: PageRequest) -> dict[str, str | None]:
    return {"q": request.query.get("q"), "from": _time(request, "from"), "to": _time(request, "to")}


def _export(request: PageRequest, form: str, *, is_signed: bool = False) -> str:
    members = _members(request)
    asked = {
        "filter": members["filter"],
        "from": members["from_"],
        "to": members["to"],
        "org": members["org"],
        "manifest": "true" if is_signed else None,
    }
    given = {name: value for name, value in asked.items() if value}
    return f"/admin/v1/audit/export?{urlencode({'format': form, **given})}"


async def names_in(context: OperationContext, actor: Actor, events: Iterable[msgspec.Raw]) -> dict[str, str]:
    """Return the names of the organisations and applications of these events, by ID."""
    read = [orjson.loads(bytes(event)) for event in events]
    org_ids = {text_of(event, "orgId") for event in read}
    app_ids = {text_of(event, "appId") for event in read}
    return await context.resolve.org_names(actor, org_ids) | await context.resolve.app_names(actor, app_ids)


def _refused(error: InvalidRequest, filter_: str) -> dict[str, object]:
    if isinstance(error, InvalidFilter):
        return {"mistake": mistake_in(filter_, error)}
    return {"problems": error.problems}


def mistake_in(filter_: str, error: InvalidFilter) -> Mistake:
    # The operation receives the filter without the white space around it.
    at = error.column - 1 + len(filter_) - len(filter_.lstrip())
    return Mistake(
        shown(filter_[:at]),
        shown(filter_[at : at + 1]) or " ",
        shown(filter_[at + 1 :]),
        at + 1,
        error.message,
    )


# Counts


async def _counts(context: OperationContext, actor: Actor, request: PageRequest) -> Counted | None:
    members = _members(request)
    verdicts = [
        CountTimes(
            **{**members, "filter": f"{members['filter']} verdict:{verdict}".strip()}, zone=str(request.zone)
        )
        for verdict in FROM_BELOW
    ]
    wanted = [name for name in _FACETS if name != "org" or request.org is None]
    try:
        by_verdict, found, held = await asyncio.gather(
            asyncio.gather(*(perform(histogram, context, actor, each) for each in verdicts)),
            perform(facets, context, actor, CountValues(**members, fields=tuple(wanted), top=_TOP)),
            perform(what_is_held, context, actor, WhatIsHeld(org=members["org"])),
        )
        stopped, drawn = await asyncio.gather(
            stopped_among(context, actor, _apps_in(found)),
            _drawn(context, actor, request, by_verdict, held),
        )
    except (InvalidRequest, StoreError):
        return None  # the page already shows the error of the search itself
    return Counted(
        [_facet(request, each, stopped) for each in found.facets if each.values],
        found.counted,
        found.complete,
        drawn,
        total=_total(found, by_verdict),
        total_complete=all(each.complete for each in by_verdict),
    )


def _total(found: FacetList, by_verdict: Sequence[HistogramOfEvents]) -> int:
    over_time = sum(bucket.count for each in by_verdict for bucket in each.buckets)
    return found.counted if found.complete else max(over_time, found.counted)


def _apps_in(found: FacetList) -> list[str]:
    return [each.value for facet in found.facets if facet.field == "app" for each in facet.values]


def _facet(request: PageRequest, facet: Facet, stopped: Collection[str]) -> tuple[str, Sequence[Choice], int]:
    """Return the most frequent values of a field, with links that change the filter.

    If a value is an ID, the page shows the name of the object, unless another value has the same name.
    """
    called = [each.name or each.value for each in facet.values]
    choices = []
    for each, name in zip(facet.values, called, strict=True):
        said = name if called.count(name) == 1 else each.value
        choice = _choice(request, facet.field, said, name, each.count)
        choices.append(replace(choice, is_stopped=facet.field == "app" and each.value in stopped))
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


# Chart


async def _drawn(
    context: OperationContext,
    actor: Actor,
    request: PageRequest,
    by_verdict: Sequence[HistogramOfEvents],
    held: HeldEvents,
) -> Drawn:
    first = by_verdict[0]
    from_ms, to_ms = rfc3339_ms(first.from_ or ""), rfc3339_ms(first.to or "")
    if from_ms is None or to_ms is None:
        return Drawn(Markup(), (), (), ())
    zone = request.zone if to_ms <= LAST_OF_ZONES_MS else UTC
    axis = edges(from_ms, to_ms, first.interval_ms, zone)
    counts = [{rfc3339_ms(each.start): each.count for each in one.buckets} for one in by_verdict]
    columns, table = [], []
    for start, end in pairwise(axis):
        numbers = [count.get(start, 0) for count in counts]
        last = min(end, LATEST_MS)
        href = _narrowed(request, **{"from": rfc3339(start), "to": rfc3339(last)})
        label = label_of(start, last, numbers, request)
        columns.append(charts.Column(start, last, parts_of(numbers), label, href))
        if any(numbers):
            table.append(Figures(start, href, numbers))
    span = axis[0], min(axis[-1], LATEST_MS)
    shades = shades_in(held, request, span)
    marks = await marks_of(context, actor, request, request.org.name if request.org else None, span)
    chart = charts.columns(
        columns,
        "Events over time. The table below has the figures.",
        charts.Span(*span, request.zone),
        shades,
        marks,
    )
    return Drawn(chart, with_marks(table, marks), shades, marks)
