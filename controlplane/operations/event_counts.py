"""Counts of audit events by the values of a field, and counts over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, tzinfo
from typing import Annotated, Final
from zoneinfo import ZoneInfo

import msgspec
from msgspec import Meta

from controlplane.clock import LATEST_MS
from controlplane.operations.actor import Actor
from controlplane.operations.context import OperationContext
from controlplane.operations.event_notes import notes_on_index, why_nothing
from controlplane.operations.event_queries import Selection, ask_index, query_of
from controlplane.operations.operation import InvalidRequest, Response, operation
from controlplane.operations.time_axis import (
    DAY_MS,
    HOUR_MS,
    LAST_OF_ZONES_MS,
    MINUTE_MS,
    SECOND_MS,
    edges,
    gathered,
    unit_of,
)
from controlplane.search.interface import MAX_TOP, SearchQuery
from controlplane.search.query import FIELDS, Between, FieldTerm
from proxy.policy.time_zones import checked_time_zone
from proxy.wire.audit_event import rfc3339

MOST_BUCKETS: Final = 60  # largest number of intervals if the operation chooses their length
_MOST_ASKED: Final = 400  # largest number of intervals if the request gives their length
DEFAULT_FACETS: Final = ("verdict", "rule", "reason", "status", "app", "method", "path")
_INTERVALS: Final = (
    1, 10, 100, SECOND_MS, 5 * SECOND_MS, 15 * SECOND_MS, 30 * SECOND_MS,
    MINUTE_MS, 5 * MINUTE_MS, 15 * MINUTE_MS, 30 * MINUTE_MS,
    HOUR_MS, 3 * HOUR_MS, 6 * HOUR_MS, 12 * HOUR_MS, DAY_MS, 7 * DAY_MS, 28 * DAY_MS, 364 * DAY_MS,
)  # fmt: skip
_LONGEST_INTERVAL: Final = 364 * 100 * DAY_MS
_Zone = Annotated[str, Meta(description="Time zone in which the days and hours of intervals begin.")]


_IntervalMs = Annotated[
    int,
    Meta(ge=MINUTE_MS, description="Length of an interval in milliseconds. By default, it suits the period."),
]


class CountTimes(Selection):
    zone: _Zone = "UTC"
    interval_ms: _IntervalMs | None = None


class CountValues(Selection):
    fields: tuple[str, ...] = DEFAULT_FACETS
    top: Annotated[int, Meta(ge=1, le=MAX_TOP)] = 10


class ValueCount(msgspec.Struct, rename="camel"):
    value: str
    name: str | None  # current name of an organisation, proxy or application
    count: int


class Facet(msgspec.Struct, rename="camel"):
    field: str
    values: tuple[ValueCount, ...]


class FacetList(Response):
    """Most frequent field values among the newest events that match the search.

    More events may match the search than were counted.
    """

    facets: tuple[Facet, ...]
    counted: int
    complete: bool
    notes: tuple[str, ...] = ()  # if nothing was found: possible mistakes, and the events that are stored


class Bucket(msgspec.Struct, rename="camel"):
    start: str
    count: int


class HistogramOfEvents(Response):
    """Number of matching events in each time interval that has events, oldest interval first.

    If `complete` is false, the counts include only the newest matching events.
    """

    interval_ms: int
    from_: str | None = msgspec.field(name="from")
    to: str | None
    buckets: tuple[Bucket, ...]
    complete: bool
    notes: tuple[str, ...] = ()  # if nothing was found: possible mistakes, and the events that are stored


@operation("audit.facets", "GET", "/audit/facets")
async def facets(context: OperationContext, actor: Actor, request: CountValues) -> FacetList:
    """Count the most frequent values of some fields among the audit events that match the filter."""
    for name in request.fields:
        if name not in FIELDS or FIELDS[name].kind == "time":
            known = ", ".join(field.name for field in FIELDS.values() if field.kind != "time")
            raise InvalidRequest(f"fields: {name!r} is not one of {known}")
    query = await query_of(context, actor, request)
    found = await ask_index(
        context, actor, lambda index: index.facets(query, request.fields, top=request.top)
    )
    names = await _value_names(context, actor, found.fields)
    return FacetList(
        tuple(
            Facet(
                field,
                tuple(ValueCount(value, names.get((field, value)), count) for value, count in counts),
            )
            for field, counts in found.fields.items()
        ),
        found.counted,
        found.complete,
        notes_on_index(context) if found.counted else await why_nothing(context, actor, request.org, query),
    )


@operation("audit.histogram", "GET", "/audit/histogram")
async def histogram(context: OperationContext, actor: Actor, request: CountTimes) -> HistogramOfEvents:
    """Count the matching audit events in each interval of the requested period."""
    zone = _zone(request.zone)
    query = await query_of(context, actor, request)
    bounds = await _bounds(context, actor, query)
    if bounds is None:
        notes = await why_nothing(context, actor, request.org, query)
        return HistogramOfEvents(SECOND_MS, None, None, (), True, notes)
    from_ms, to_ms = bounds
    interval_ms = request.interval_ms or _interval(to_ms - from_ms)
    if (to_ms - from_ms) // interval_ms > _MOST_ASKED:
        raise InvalidRequest(
            f"intervalMs: the requested period has more than {_MOST_ASKED} intervals of that length"
        )
    axis = edges(from_ms, to_ms, interval_ms, zone if to_ms <= LAST_OF_ZONES_MS else UTC)
    bounded = replace(query, from_ms=from_ms, to_ms=to_ms)
    unit = unit_of(interval_ms, axis)
    found = await ask_index(context, actor, lambda index: index.histogram(bounded, unit))
    counts = sorted(gathered(found.buckets, axis).items())
    notes = notes_on_index(context) if counts else await why_nothing(context, actor, request.org, query)
    return HistogramOfEvents(
        interval_ms,
        rfc3339(from_ms),
        rfc3339(to_ms),
        tuple(Bucket(rfc3339(start), count) for start, count in counts),
        found.complete,
        notes,
    )


def _zone(name: str) -> tzinfo:
    try:
        return UTC if name == "UTC" else ZoneInfo(checked_time_zone(name))
    except ValueError as error:
        raise InvalidRequest(f"zone: {error}") from None


async def _bounds(context: OperationContext, actor: Actor, query: SearchQuery) -> tuple[int, int] | None:
    """Return the time period that a histogram covers, or None if the period is empty."""
    span = await ask_index(context, actor, lambda index: index.span(query.org_ids))
    from_ms, to_ms = _time_of_terms(query)
    if span is not None:
        # An event with a future time, by a wrong clock or on purpose, must not shrink all others to one bar.
        latest_ms = context.clock.wall_ms() + DAY_MS
        from_ms = span[0] if from_ms is None else from_ms
        to_ms = min(span[1] + 1, max(latest_ms, from_ms + 1)) if to_ms is None else to_ms
    if from_ms is None or to_ms is None:
        return None
    # Converted to UTC, a time with an offset may be in a year that RFC 3339 cannot write.
    from_ms, to_ms = max(from_ms, 0), min(to_ms, LATEST_MS)
    return None if to_ms <= from_ms else (from_ms, to_ms)


def _interval(span_ms: int) -> int:
    fitting = (each for each in _INTERVALS if span_ms <= each * MOST_BUCKETS)
    return next(fitting, _LONGEST_INTERVAL)


def _time_of_terms(query: SearchQuery) -> tuple[int | None, int | None]:
    """Return the bounds of the period, narrowed by filter terms such as time:>-15m."""
    lows = [] if query.from_ms is None else [query.from_ms]
    highs = [] if query.to_ms is None else [query.to_ms]
    for term in query.filter.terms:
        if not isinstance(term, FieldTerm) or term.field.kind != "time" or term.negated:
            continue
        if len(term.matches) == 1 and isinstance(term.matches[0], Between):
            lows += [] if term.matches[0].low is None else [int(term.matches[0].low)]
            highs += [] if term.matches[0].high is None else [int(term.matches[0].high) + 1]
    return max(lows, default=None), min(highs, default=None)


async def _value_names(
    context: OperationContext, actor: Actor, fields: Mapping[str, Sequence[tuple[str, int]]]
) -> dict[tuple[str, str], str]:
    """Return the names of the organisations, proxies and applications in the counts, by field and ID."""
    resolve = context.resolve
    readers = {"org": resolve.org_names, "proxy": resolve.proxy_names, "app": resolve.app_names}
    found: dict[tuple[str, str], str] = {}
    for field, read in readers.items():
        ids = [value for value, _ in fields.get(field, ())]
        if ids:
            found |= {(field, each): name for each, name in (await read(actor, ids)).items()}
    return found
