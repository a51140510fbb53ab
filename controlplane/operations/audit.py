"""Operations on audit events: search events, and show the times that stored events cover."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from controlplane.operations.actor import Actor
from controlplane.operations.context import OperationContext
from controlplane.operations.event_notes import held_within, notes_on_found, notes_on_index, notes_on_nothing
from controlplane.operations.event_places import Places
from controlplane.operations.event_queries import Selection, ask_index, query_of
from controlplane.operations.held import written
from controlplane.operations.operation import InvalidRequest, Request, Response, operation
from controlplane.search.interface import MAX_LIMIT


class SearchEvents(Selection):
    limit: Annotated[int, Meta(ge=1, le=MAX_LIMIT)] = 100
    cursor: str | None = None  # `next` of the previous page


class EventPage(Response):
    """Audit events in the form in which proxies sent them, newest first."""

    events: tuple[msgspec.Raw, ...]
    next: str | None
    behind: bool = False  # True while the index is being filled: accepted events may be missing
    notes: tuple[str, ...] = ()  # possible mistakes in the question, and the events that were searched
    doubts: tuple[str, ...] = ()  # those of the notes that name possible mistakes


@operation("audit.search", "GET", "/audit/events")
async def search(context: OperationContext, actor: Actor, request: SearchEvents) -> EventPage:
    """Find audit events, and return the newest events first."""
    cursors = await Places.of(context, actor, "audit.search")
    try:
        cursor = None if request.cursor is None else cursors.read(request.cursor)
    except ValueError:
        raise InvalidRequest("cursor: this page cursor was not made by this search index") from None
    query = await query_of(context, actor, request, request.limit, cursor)
    page = await ask_index(context, actor, lambda index: index.search(query))
    following = None if page.next is None else cursors.write(page.next)
    if page.events:
        wrong, looked_at = await notes_on_found(context, actor, request.org, query)
    else:
        wrong, looked_at = await notes_on_nothing(context, actor, request.org, query)
        if following is not None:
            wrong = (*wrong, "found no event within the time limit of one search: continue with `next`")
    events = tuple(map(msgspec.Raw, page.events))
    return EventPage(events, following, context.is_behind(), (*wrong, *looked_at), wrong)


class WhatIsHeld(Request):
    org: str | None = None  # id or name; default: every organisation that the actor has permission to look at


class GapInEvents(msgspec.Struct, rename="camel"):
    """A period that ends at `until` and from which audit events are missing.

    Audit events of a period are missing if the period is before the first event, or if retention purged the
    events in at least one organisation.
    """

    state: Literal["absent", "purged", "partly purged"]
    until: str


class HeldEvents(Response):
    """Times of the oldest and the newest stored event, and the periods with missing events."""

    oldest: str | None
    newest: str | None
    gaps: tuple[GapInEvents, ...]
    notes: tuple[str, ...]  # sentences on times and retention, and on events that never arrived


@operation("audit.held", "GET", "/audit/held")
async def what_is_held(context: OperationContext, actor: Actor, request: WhatIsHeld) -> HeldEvents:
    """Show the period that stored audit events cover, and which events were purged or never arrived."""
    query = await query_of(context, actor, Selection(org=request.org))
    found = await held_within(context, actor, request.org, query, count_missing=True)
    oldest, newest = (None, None) if found.span is None else map(written, found.span)
    gaps = tuple(GapInEvents(gap.state, written(gap.until_ms)) for gap in found.gaps())
    return HeldEvents(oldest, newest, gaps, (*notes_on_index(context), *found.notes_on_nothing(None)))
