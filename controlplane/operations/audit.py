"""Audit events: found, counted, followed, taken away, and one of them with everything known about it."""

from __future__ import annotations

import asyncio
import base64
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
import orjson
from msgspec import Meta

from controlplane.clock import LATEST_MS
from controlplane.live_tail import CutOff, Listener, TooManyListeners
from controlplane.operations import times
from controlplane.operations.absences import BY_ID, exclusions, notes_on
from controlplane.operations.actor import Actor
from controlplane.operations.context import OperationContext
from controlplane.operations.event_formats import FORMATS, Form, on_one_line
from controlplane.operations.operation import (
    EVENTS,
    InvalidRequest,
    Request,
    Response,
    Streamed,
    operation,
    stream,
)
from controlplane.operations.rule_text import rule_lines
from controlplane.operations.slots import Slots
from controlplane.search.document import Document
from controlplane.search.interface import (
    MAX_LIMIT,
    MAX_TOP,
    CursorError,
    IndexUnavailableError,
    SearchIndex,
    SearchPage,
    SearchQuery,
)
from controlplane.search.predicates import all_hold
from controlplane.search.query import (
    FIELDS,
    Between,
    FieldTerm,
    QueryError,
    Resolver,
    parse_filter,
)
from controlplane.secrets import MasterKeyError, Vault
from controlplane.store.interface import NotFound, StoreBusy, StoreError
from proxy.wire.audit_event import REASONS, rfc3339

T = TypeVar("T")

HEARTBEAT_SECONDS: Final = 15.0
LONGEST_TAIL_SECONDS: Final = 300.0  # after which a reader comes back, and is asked again who it is
MOST_EXPORTS: Final = 32  # at the same time
MOST_EXPORTS_OF_ONE: Final = 4
MOST_ASKED_BY_ONE: Final = 4  # of an index at the same time: a page of the console asks for three things
MOST_BUCKETS: Final = 60
DEFAULT_FACETS: Final = ("verdict", "rule", "reason", "status", "app", "method", "path")
_SECOND: Final = 1000
_MINUTE: Final = 60 * _SECOND
_HOUR: Final = 60 * _MINUTE
_DAY: Final = 24 * _HOUR
_INTERVALS: Final = (
    1, 10, 100, _SECOND, 5 * _SECOND, 15 * _SECOND, 30 * _SECOND,
    _MINUTE, 5 * _MINUTE, 15 * _MINUTE, 30 * _MINUTE,
    _HOUR, 3 * _HOUR, 6 * _HOUR, 12 * _HOUR, _DAY, 7 * _DAY, 28 * _DAY, 364 * _DAY,
)  # fmt: skip
_LONGEST_INTERVAL: Final = 364 * 100 * _DAY


class InvalidFilter(InvalidRequest):
    """`column` counts the filter's characters from 1."""

    def __init__(self, error: QueryError) -> None:
        super().__init__(f"filter: {error}")
        self.message = error.message
        self.column = error.column


# Which events: the same members everywhere


class Selection(Request):
    filter: str = ""
    org: str | None = None  # id or name; without it, every organisation that the actor may look at
    from_: str | None = msgspec.field(default=None, name="from")  # this time and later
    to: str | None = None  # before this time


class SearchEvents(Selection):
    limit: Annotated[int, Meta(ge=1, le=MAX_LIMIT)] = 100
    cursor: str | None = None  # `next` of the page before


class EventPage(Response):
    """Events as their proxies sent them, newest first."""

    events: tuple[msgspec.Raw, ...]
    next: str | None
    behind: bool = False  # the index is being filled: events that were accepted may be missing
    notes: tuple[str, ...] = ()  # what may be wrong with the question


class CountValues(Selection):
    fields: tuple[str, ...] = DEFAULT_FACETS
    top: Annotated[int, Meta(ge=1, le=MAX_TOP)] = 10


class ValueCount(msgspec.Struct, rename="camel"):
    value: str
    name: str | None  # what an organisation, proxy or app identity is called now
    count: int


class Facet(msgspec.Struct, rename="camel"):
    field: str
    values: tuple[ValueCount, ...]


class FacetList(Response):
    """Counted are the newest matches, of which there may be more."""

    facets: tuple[Facet, ...]
    counted: int
    complete: bool
    notes: tuple[str, ...] = ()  # what may be wrong with the question, if nothing was found


class Bucket(msgspec.Struct, rename="camel"):
    start: str
    count: int


class HistogramOfEvents(Response):
    """Matches in each interval that has any, oldest first; of the newest only where it isn't complete."""

    interval_ms: int
    from_: str | None = msgspec.field(name="from")
    to: str | None
    buckets: tuple[Bucket, ...]
    complete: bool
    notes: tuple[str, ...] = ()  # what may be wrong with the question, if nothing was found


@operation("audit.search", "GET", "/audit/events")
async def search(context: OperationContext, actor: Actor, request: SearchEvents) -> EventPage:
    """Find audit events, newest first."""
    cursors = await Places.of(context, actor, "audit.search")
    try:
        cursor = None if request.cursor is None else cursors.read(request.cursor)
    except ValueError:
        raise InvalidRequest("cursor: this cursor was not made by this index") from None
    query = await _query(context, actor, request, request.limit, cursor)
    page = await _asked(context, actor, lambda index: index.search(query))
    following = None if page.next is None else cursors.write(page.next)
    asked = query
    if page.events:
        asked = replace(query, filter=exclusions(query.filter), from_ms=None, to_ms=None)
    notes: tuple[str, ...] = ()
    if asked.filter.terms or not page.events:
        notes = await why_nothing(context, actor, request.org, asked)
    if not page.events and following is not None:
        notes = (*notes, "the time that one search has went by without an event: go on with `next`")
    is_behind = context.is_behind()
    if is_behind:
        notes = (f"the index has {context.percent_indexed()} % of the stored events", *notes)
    return EventPage(tuple(map(msgspec.Raw, page.events)), following, is_behind, notes)


async def why_nothing(
    context: OperationContext, actor: Actor, org: str | None, query: SearchQuery
) -> tuple[str, ...]:
    """Return notes on a question that found nothing."""
    terms = [term for term in query.filter.terms if isinstance(term, FieldTerm)]
    asks_names = any(term.field.name in BY_ID for term in terms)
    return await notes_on(context, actor, query, org, await _names(context, actor) if asks_names else {})


@operation("audit.facets", "GET", "/audit/facets")
async def facets(context: OperationContext, actor: Actor, request: CountValues) -> FacetList:
    """The most frequent values of some fields among the events."""
    for name in request.fields:
        if name not in FIELDS or FIELDS[name].kind == "time":
            known = ", ".join(field.name for field in FIELDS.values() if field.kind != "time")
            raise InvalidRequest(f"fields: {name!r} is not one of {known}")
    query = await _query(context, actor, request)
    found = await _asked(context, actor, lambda index: index.facets(query, request.fields, top=request.top))
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
        () if found.counted else await why_nothing(context, actor, request.org, query),
    )


@operation("audit.histogram", "GET", "/audit/histogram")
async def histogram(context: OperationContext, actor: Actor, request: Selection) -> HistogramOfEvents:
    """How many events there are in each interval of the time asked for."""
    query = await _query(context, actor, request)
    span = await _asked(context, actor, lambda index: index.span(query.org_ids))
    from_ms, to_ms = _time_of_terms(query)
    if span is not None:
        # One event of a time to come, by a wrong clock or on purpose, must not make all others one bar.
        latest_ms = context.clock.wall_ms() + _DAY
        from_ms = span[0] if from_ms is None else from_ms
        to_ms = min(span[1] + 1, max(latest_ms, from_ms + 1)) if to_ms is None else to_ms
    if from_ms is None or to_ms is None:
        return HistogramOfEvents(
            _SECOND, None, None, (), True, await why_nothing(context, actor, request.org, query)
        )
    # In UTC, a time with an offset may be of a year that has no name.
    from_ms, to_ms = max(from_ms, 0), min(to_ms, LATEST_MS)
    if to_ms <= from_ms:
        return HistogramOfEvents(
            _SECOND, None, None, (), True, await why_nothing(context, actor, request.org, query)
        )
    interval_ms = _interval(to_ms - from_ms)
    bounded = replace(query, from_ms=from_ms, to_ms=to_ms)
    found = await _asked(context, actor, lambda index: index.histogram(bounded, interval_ms))
    buckets = tuple(Bucket(rfc3339(start), count) for start, count in found.buckets)
    notes = () if buckets else await why_nothing(context, actor, request.org, query)
    return HistogramOfEvents(interval_ms, rfc3339(from_ms), rfc3339(to_ms), buckets, found.complete, notes)


def _interval(span_ms: int) -> int:
    fitting = (each for each in _INTERVALS if span_ms <= each * MOST_BUCKETS)
    return next(fitting, _LONGEST_INTERVAL)


def _time_of_terms(query: SearchQuery) -> tuple[int | None, int | None]:
    """The bounds, drawn closer by terms like time:>-15m."""
    lows = [] if query.from_ms is None else [query.from_ms]
    highs = [] if query.to_ms is None else [query.to_ms]
    for term in query.filter.terms:
        if not isinstance(term, FieldTerm) or term.field.kind != "time" or term.negated:
            continue
        if len(term.matches) == 1 and isinstance(term.matches[0], Between):
            lows += [] if term.matches[0].low is None else [int(term.matches[0].low)]
            highs += [] if term.matches[0].high is None else [int(term.matches[0].high) + 1]
    return max(lows, default=None), min(highs, default=None)


# One event


class EventReference(Request):
    org: str  # id or name
    id: str


class RulesetOfEvent(msgspec.Struct, rename="camel"):
    """The version by which the event was evaluated, of the ruleset that its application is bound to now."""

    ruleset_id: str
    name: str
    version: int
    version_in_force: int
    yaml: str
    rule_lines: tuple[int, int] | None  # of the event's rule, from 1, both included


class EventDetails(Response):
    event: msgspec.Raw  # as its proxy sent it
    reason: str | None  # in words
    org_name: str
    proxy_name: str | None
    app_name: str | None
    ruleset: RulesetOfEvent | None


@operation("audit.event", "GET", "/audit/events/{org}/{id}")
async def event(context: OperationContext, actor: Actor, request: EventReference) -> EventDetails:
    """One audit event, with everything known about it."""
    org = await context.resolve.org(actor, "viewer", request.org)
    found = await context.store.event(org.org_id, request.id)
    if found is None:
        raise NotFound(f"there is no event {request.id} in {org.name}; it may have been purged")
    values: dict[str, Any] = orjson.loads(found.body)
    proxy_id, app_id = _text(values, "proxyId"), _text(values, "appId")
    return EventDetails(
        event=msgspec.Raw(found.body),
        reason=REASONS.get(_text(values, "reason")),
        org_name=org.name,
        proxy_name=(await context.resolve.proxy_names(actor, (proxy_id,))).get(proxy_id),
        app_name=(await context.resolve.app_names(actor, (app_id,))).get(app_id),
        ruleset=await _ruleset(context, org.org_id, values),
    )


def _text(values: dict[str, Any], key: str) -> str:
    value = values.get(key)
    return value if isinstance(value, str) else ""


async def _ruleset(context: OperationContext, org_id: str, values: dict[str, Any]) -> RulesetOfEvent | None:
    app_id = _text(values, "appId")
    found = await context.store.find_apps(app_id, org_id)
    app = next((each for each in found if each.app_id == app_id), None)
    if app is None:
        return None
    versions = await context.store.ruleset_versions(app.ruleset_id)
    judged_by = next((each for each in versions if each.version == values.get("rulesetVersion")), None)
    yaml = None if judged_by is None else await context.store.ruleset_text(app.ruleset_id, judged_by.version)
    if judged_by is None or yaml is None:
        return None
    return RulesetOfEvent(
        app.ruleset_id,
        app.ruleset_name,
        judged_by.version,
        max(each.version for each in versions),
        yaml,
        rule_lines(yaml, _text(values, "ruleId")),
    )


# Taken away


class ExportEvents(Selection):
    format: Literal["csv", "ndjson"] = "ndjson"


@stream("audit.export", "/audit/export", *(each.media_type for each in FORMATS.values()))
async def export(context: OperationContext, actor: Actor, request: ExportEvents) -> Streamed:
    """All audit events that match, newest first, as CSV or as a line of JSON for each."""
    query = await _query(context, actor, request)
    index = await _response(context.index())
    form = FORMATS[request.format]
    pieces = _exported(actor, index, query, await _page(actor, index, query), form)
    _require_room(actor)
    return Streamed(form.media_type, pieces, f"audit-events.{request.format}")


# Each holds a page of events for as long as its reader takes over it.
_exporting: Final[Counter[str]] = Counter()


def _require_room(actor: Actor) -> None:
    if _exporting[actor.name] >= MOST_EXPORTS_OF_ONE or _exporting.total() >= MOST_EXPORTS:
        raise StoreBusy("too many exports are under way: try again when one is done")


async def _exported(
    actor: Actor, index: SearchIndex, query: SearchQuery, page: SearchPage, form: Form
) -> AsyncGenerator[bytes, None]:
    """A page at a time, however many there are."""
    _require_room(actor)
    _exporting[actor.name] += 1
    try:
        if form.head:
            yield form.head
        while True:
            if page.events:
                yield await asyncio.to_thread(form.lines, page.events)
            if page.next is None:
                return
            page = await _page(actor, index, replace(query, cursor=page.next))
    finally:
        _exporting[actor.name] -= 1


# Followed


class TailEvents(Request):
    filter: str = ""
    org: str | None = None
    after: str | None = None  # the id of the last event that came; as Last-Event-ID it comes by itself


@stream("audit.tail", "/audit/tail", EVENTS)
async def tail(context: OperationContext, actor: Actor, request: TailEvents) -> Streamed:
    """Audit events as they are stored, from now on or from where one left off."""
    query = await _query(context, actor, Selection(filter=request.filter, org=request.org))
    places = await Places.of(context, actor, "audit.tail")
    stack = AsyncExitStack()
    try:
        after = None if request.after is None else places.position(request.after)
        following = context.tail.listener(actor.name, _wanted(query), after, query.org_ids)
        listener = await stack.enter_async_context(following)
    except TooManyListeners as error:
        raise StoreBusy(str(error)) from None
    notes = await why_nothing(context, actor, request.org, query) if request.after is None else ()
    return Streamed(EVENTS, _followed(listener, places, stack, notes))


def _wanted(query: SearchQuery) -> Callable[[Document], bool]:
    org_ids = None if query.org_ids is None else frozenset(query.org_ids)

    def wanted(document: Document) -> bool:
        return (org_ids is None or document.org_id in org_ids) and all_hold(query.filter.terms, document)

    return wanted


async def _followed(
    listener: Listener, places: Places, stack: AsyncExitStack, notes: tuple[str, ...]
) -> AsyncGenerator[bytes, None]:
    """Server-sent events (WHATWG HTML section 9.2); one of nothing but an id moves its reader on as well."""
    end = asyncio.get_running_loop().time() + LONGEST_TAIL_SECONDS
    async with stack:
        yield b"retry: 2000\n" + places.line(listener.position)
        for note in notes:  # the filter may never match an event
            yield b"event: note\ndata: %b\n\n" % on_one_line(note.encode())
        if listener.has_gap:
            yield b"event: gap\ndata: events before this were passed over: search for them\n\n"
        while asyncio.get_running_loop().time() < end:
            try:
                async with asyncio.timeout(HEARTBEAT_SECONDS):
                    events = await listener.next()
            except TimeoutError:
                yield b": still here\n" + places.line(listener.position)
                continue
            except CutOff as error:
                yield b"event: cut\ndata: %b\n\n" % on_one_line(str(error).encode())
                return
            # Each with its place: who comes back from between two of them is given the rest.
            yield b"".join(
                b"data: %b\n%b" % (on_one_line(each.body), places.line(each.position)) for each in events
            )


# How far a reader came


class Places:
    """Where a page or a stream goes on, as text. It holds a position, which counts the events of every
    organisation; to who may not look at all of them, it is sealed."""

    def __init__(self, purpose: str, vault: Vault | None) -> None:
        self._purpose = purpose
        self._vault = vault

    @classmethod
    async def of(cls, context: OperationContext, actor: Actor, purpose: str) -> Places:
        return cls(purpose, None if actor.may("viewer", None) else await context.vault())

    def write(self, place: str) -> str:
        if self._vault is None:
            return place
        return base64.urlsafe_b64encode(self._vault.seal(self._purpose, place)).decode()

    def read(self, text: str) -> str:
        """Raises ValueError."""
        if self._vault is None:
            return text
        sealed = base64.b64decode(text.encode("ascii"), altchars=b"-_", validate=True)
        try:
            return self._vault.open(self._purpose, sealed)
        except MasterKeyError as error:
            raise ValueError(text) from error

    def line(self, position: int) -> bytes:
        return b"id: %b\n\n" % self.write(str(position)).encode()

    def position(self, text: str) -> int:
        try:
            place = self.read(text)
        except ValueError:
            place = ""
        if place.isascii() and place.isdigit() and len(place) < 20:
            return int(place)
        raise InvalidRequest("after: this place was not made by this control plane")


# What all of them share


async def _query(
    context: OperationContext,
    actor: Actor,
    request: Selection,
    limit: int = MAX_LIMIT,
    cursor: str | None = None,
) -> SearchQuery:
    orgs = await context.resolve.orgs(actor, request.org)
    sees_all = request.org is None and actor.may("viewer", None)
    now_ms = context.clock.wall_ms()
    try:
        wanted = parse_filter(request.filter, await resolver(context, actor, request.filter), now_ms=now_ms)
    except QueryError as error:
        raise InvalidFilter(error) from None
    org_ids = None if sees_all else tuple(org.org_id for org in orgs)
    return SearchQuery(org_ids, wanted, *times.span(request.from_, request.to, now_ms), limit, cursor)


async def _names(context: OperationContext, actor: Actor) -> dict[tuple[str, str], str]:
    """What things are called now, by the filter's field and their id."""
    names = {("org", org.org_id): org.name for org in await context.resolve.orgs(actor)}
    names |= {("proxy", proxy.proxy_id): proxy.name for proxy in await context.resolve.proxies(actor, None)}
    return names | {("app", app.app_id): app.name for app in await context.resolve.apps(actor, None)}


async def _value_names(
    context: OperationContext, actor: Actor, fields: Mapping[str, Sequence[tuple[str, int]]]
) -> dict[tuple[str, str], str]:
    """Return the names of the counted values that are ids, by field and id."""
    resolve = context.resolve
    readers = {"org": resolve.org_names, "proxy": resolve.proxy_names, "app": resolve.app_names}
    found: dict[tuple[str, str], str] = {}
    for field, read in readers.items():
        ids = [value for value, _ in fields.get(field, ())]
        if ids:
            found |= {(field, each): name for each, name in (await read(actor, ids)).items()}
    return found


async def resolver(context: OperationContext, actor: Actor, text: str) -> Resolver:
    """Return what resolves the names in a filter to ids. Several organisations may use the same name."""
    named: set[tuple[str, str]] = set()

    def note(field: str, name: str) -> Sequence[str]:
        named.add((field, name))
        return ()

    with suppress(QueryError):  # which the caller meets too
        parse_filter(text, note)
    ids = {(field, name): await _ids_of(context, actor, field, name) for field, name in named}
    return lambda field, name: ids.get((field, name), ())


async def _ids_of(context: OperationContext, actor: Actor, field: str, name: str) -> list[str]:
    """Return the ids of the rows of that very name that the actor may look at."""
    store, sees = context.store, actor.sees
    if field == "org":
        orgs = [each for each in await store.find_orgs(name) if each.name == name]
        return [each.org_id for each in orgs if sees is None or each.org_id in sees]
    if field == "proxy":
        proxies = [each for each in await store.find_proxies(name) if each.name == name]
        return [each.proxy_id for each in proxies if sees is None or not sees.isdisjoint(each.org_ids)]
    apps = [each for each in await store.find_apps(name, None) if each.name == name]
    return [each.app_id for each in apps if sees is None or each.org_id in sees]


async def _asked(context: OperationContext, actor: Actor, ask: Callable[[SearchIndex], Awaitable[T]]) -> T:
    index = await _response(context.index())
    async with _searching.of(actor):
        return await _response(ask(index))


async def _page(actor: Actor, index: SearchIndex, query: SearchQuery) -> SearchPage:
    async with _searching.of(actor):
        return await _response(index.search(query))


# An index responses one after the other, whosever question it is, and some take seconds.
_searching: Final = Slots(MOST_ASKED_BY_ONE)


async def _response(asked: Awaitable[T]) -> T:
    try:
        return await asked
    except CursorError as error:
        raise InvalidRequest(f"cursor: {error}") from None
    except IndexUnavailableError as error:
        raise StoreError(str(error)) from error
