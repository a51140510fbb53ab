"""Sinks: their progress, the events that they refused, and commands that resend or delete refused events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Final, Literal

import msgspec
import orjson

from controlplane.notices.notice import decoded
from controlplane.operations.actor import Actor
from controlplane.operations.context import OperationContext
from controlplane.operations.operation import InvalidRequest, Request, Response, operation
from controlplane.operations.times import as_rfc3339
from controlplane.search.query import QueryError, parse_time
from controlplane.sinks.attempts import masked
from controlplane.sinks.interface import Archive, Sink, SinkRefused, SinkUnavailable
from controlplane.sinks.open_sink import open_sink
from controlplane.sinks.settings import AnyTable, WebhookSettings, secrets_of_sink
from controlplane.store.interface import NotFound, StoreError
from controlplane.store.sink_interface import DeadLetter, SinkState
from proxy.outbound.settings import egress_of
from proxy.wire.audit_event import rfc3339
from proxy.wire.figures import counted

if TYPE_CHECKING:
    from controlplane.notices.webhook import Webhook

MOST_LISTED: Final = 1000
SinkStatus = Literal["up to date", "delivering", "failing", "not started"]

_POSITIONS: Final = "Positions of dead letters, as `sink.dead-letters` gives them. By default all."
_TO: Final = "Receipt time from which everything is sent again: RFC 3339, a date, or -2h, -7d."


_Position = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


class ListSinks(Request):
    pass


class SinkReference(Request):
    sink: str


class ListDeadLetters(Request):
    sink: str
    limit: Annotated[int, msgspec.Meta(ge=1, le=MOST_LISTED)] = 100
    after: _Position = 0


class ChooseDeadLetters(Request):
    sink: str
    positions: Annotated[tuple[_Position, ...] | None, msgspec.Meta(description=_POSITIONS)] = None


class RewindSink(Request):
    sink: str
    to: Annotated[str, msgspec.Meta(description=_TO)]


class SinkFacts(Response):
    name: str
    kind: str
    status: SinkStatus
    lag_events: int  # stored events that were not sent to it yet, including those that it does not want
    lag_seconds: float | None  # age of the oldest such event
    delivered: int
    last_delivery: str | None
    dead_letters: int
    retrying: int  # number of dead letters that wait to be sent again
    problem: str | None
    problem_since: str | None
    filter: str
    organisations: tuple[str, ...]
    format: str
    unknown_organisations: tuple[str, ...] = ()  # names that no organisation has


class SinkList(Response):
    sinks: tuple[SinkFacts, ...]


class SinkTest(Response):
    ok: bool
    result: str


class DeadLetterFacts(Response):
    position: int
    org: str
    event_id: str | None  # None: retention has deleted the event, or it can't be read
    refused_at: str
    reason: str
    retrying: bool


class DeadLetterList(Response):
    dead_letters: tuple[DeadLetterFacts, ...]
    next: int | None  # position to continue after


class DeadLettersChanged(Response):
    count: int


@operation("sink.list", "GET", "/sinks")
async def list_all(context: OperationContext, actor: Actor, request: ListSinks) -> SinkList:
    """List the sinks of the settings, with the progress of each sink."""
    actor.require("viewer", None)
    states = await context.store.sink_states()
    found = [await _facts(context, each, states.get(each.name)) for each in context.settings.sinks]
    return SinkList(sinks=tuple(found))


@operation("sink.show", "GET", "/sinks/{sink}")
async def show(context: OperationContext, actor: Actor, request: SinkReference) -> SinkFacts:
    """Show one sink, with the progress of its deliveries."""
    actor.require("viewer", None)
    sink = _sink(context, request.sink)
    return await _facts(context, sink, (await context.store.sink_states()).get(sink.name))


@operation("sink.test", "POST", "/sinks/{sink}/test")
async def test(context: OperationContext, actor: Actor, request: SinkReference) -> SinkTest:
    """Test the connection to a sink from this control plane, without sending an event."""
    actor.require("editor", None)
    return await tried(context, _sink(context, request.sink))


@operation("sink.dead-letters", "GET", "/sinks/{sink}/dead-letters")
async def dead_letters(context: OperationContext, actor: Actor, request: ListDeadLetters) -> DeadLetterList:
    """List the events that a sink permanently refused, with the reasons."""
    actor.require("viewer", None)
    sink = _sink(context, request.sink)
    found = await context.store.dead_letters(sink.name, request.limit, request.after)
    names = {each.org_id: each.name for each in await context.store.orgs()}
    facts = [await _letter(context, sink, each, names.get(each.org_id, each.org_id)) for each in found]
    following = found[-1].position if len(found) == request.limit else None
    return DeadLetterList(dead_letters=tuple(facts), next=following)


@operation("sink.retry", "POST", "/sinks/{sink}/retry")
async def retry(context: OperationContext, actor: Actor, request: ChooseDeadLetters) -> DeadLettersChanged:
    """Resend to a sink the events that it refused.

    The events arrive out of order: after later events that the sink has already received.
    """
    actor.require("admin", None)
    sink = _sink(context, request.sink)
    count = await context.store.retry_dead_letters(sink.name, request.positions)
    context.results.append(f"sends {counted(count, 'dead letter')} of sink {sink.name} again")
    return DeadLettersChanged(count=count)


@operation("sink.discard", "POST", "/sinks/{sink}/discard")
async def discard(context: OperationContext, actor: Actor, request: ChooseDeadLetters) -> DeadLettersChanged:
    """Delete events from the list of the events that a sink refused.

    The audit events themselves stay in the store.
    """
    actor.require("admin", None)
    sink = _sink(context, request.sink)
    count = await context.store.discard_dead_letters(sink.name, request.positions)
    context.results.append(f"discarded {counted(count, 'dead letter')} of sink {sink.name}")
    return DeadLettersChanged(count=count)


@operation("sink.rewind", "POST", "/sinks/{sink}/rewind")
async def rewind(context: OperationContext, actor: Actor, request: RewindSink) -> SinkFacts:
    """Resend to a sink all events that the control plane received at or after a given time."""
    actor.require("admin", None)
    sink = _sink(context, request.sink)
    try:
        received_ms = parse_time(request.to, context.clock.wall_ms())
    except QueryError as error:
        raise InvalidRequest(f"to: {error.message}") from None
    is_webhook = isinstance(sink, WebhookSettings)
    position_of = context.store.notice_position if is_webhook else context.store.position_received
    position = await position_of(received_ms)
    if not await context.store.rewind_sink(sink.name, position):
        raise StoreError(f"sink {sink.name} has not started yet: it starts with the control plane")
    context.results.append(f"sink {sink.name} continues from {rfc3339(received_ms)}")
    return await _facts(context, sink, (await context.store.sink_states()).get(sink.name))


def _opened(context: OperationContext, sink: AnyTable) -> Sink | Archive | Webhook:
    """Return the client object of a sink, which is not connected yet.

    `_opened` imports the HTTP client library only when it opens a sink.
    """
    egress = egress_of(context.settings.egress)
    if isinstance(sink, WebhookSettings):
        from controlplane.notices.webhook import Webhook

        return Webhook(sink, egress, context.clock, context.settings.source)
    return open_sink(sink, egress)


async def tried(context: OperationContext, sink: AnyTable) -> SinkTest:
    """Test the connection to the sink, and return its description of the result, without secrets."""
    secrets = secrets_of_sink(sink)
    try:
        opened = _opened(context, sink)
        try:
            return SinkTest(ok=True, result=await opened.test())
        finally:
            await opened.close()
    except (SinkUnavailable, SinkRefused, OSError) as error:
        return SinkTest(ok=False, result=masked(str(error), secrets))


def _sink(context: OperationContext, name: str) -> AnyTable:
    for sink in context.settings.sinks:
        if sink.name == name:
            return sink
    known = ", ".join(each.name for each in context.settings.sinks) or "no sink: add a table [[Sinks]]"
    raise NotFound(f"there is no sink {name}; the settings define {known}")


async def _facts(context: OperationContext, sink: AnyTable, state: SinkState | None) -> SinkFacts:
    lag_events, oldest_ms = (0, None) if state is None else await _lag(context, sink, state.position)
    lag_seconds = None if oldest_ms is None else max(0, context.clock.wall_ms() - oldest_ms) / 1000
    return SinkFacts(
        name=sink.name,
        kind=sink.kind,
        status=_status(state, lag_events),
        lag_events=lag_events,
        lag_seconds=lag_seconds,
        delivered=0 if state is None else state.delivered,
        last_delivery=None if state is None else as_rfc3339(state.delivered_ms),
        dead_letters=0 if state is None else state.dead_letters,
        retrying=0 if state is None else state.retried,
        problem=None if state is None else state.problem,
        problem_since=None if state is None else as_rfc3339(state.problem_ms),
        filter="" if isinstance(sink, WebhookSettings) else sink.filter,
        organisations=sink.organisations,
        format=sink.format,
        unknown_organisations=await _unknown(context, sink.organisations),
    )


async def _unknown(context: OperationContext, names: Sequence[str]) -> tuple[str, ...]:
    known = (
        {text for each in await context.store.orgs() for text in (each.org_id, each.name)} if names else set()
    )
    return tuple(each for each in names if each not in known)


async def _lag(context: OperationContext, sink: AnyTable, position: int) -> tuple[int, int | None]:
    """Return how many events or notices a sink has not received, and the time of the oldest of them."""
    if isinstance(sink, WebhookSettings):
        waiting = await context.store.notices_waiting(position)
        return waiting, await context.store.oldest_notice_after(position)
    oldest_ms = await context.store.oldest_received_after(position)
    newest = await context.store.last_position()
    return (0, None) if oldest_ms is None else (max(0, newest - position), oldest_ms)


def _status(state: SinkState | None, lag_events: int) -> SinkStatus:
    if state is None:
        return "not started"
    if state.problem is not None:
        return "failing"
    return "delivering" if lag_events else "up to date"


async def _letter(context: OperationContext, sink: AnyTable, letter: DeadLetter, org: str) -> DeadLetterFacts:
    return DeadLetterFacts(
        position=letter.position,
        org=org,
        event_id=await _refused_id(context, sink, letter.position),
        refused_at=rfc3339(letter.refused_ms),
        reason=letter.reason,
        retrying=letter.is_retried,
    )


async def _refused_id(context: OperationContext, sink: AnyTable, position: int) -> str | None:
    """Return the ID of the event or notice at a position.

    Return None if retention deleted the event or notice at the position.
    """
    if isinstance(sink, WebhookSettings):
        notices = await context.store.notices_after(position - 1, 1)
        return decoded(notices[0].body).notice_id if notices and notices[0].position == position else None
    events = await context.store.events_after(position - 1, 1)
    return _id_of(events[0].body) if events and events[0].position == position else None


def _id_of(body: bytes) -> str | None:
    try:
        members = orjson.loads(body)
    except ValueError:
        return None
    found = members.get("id") if isinstance(members, dict) else None
    return found if isinstance(found, str) else None
