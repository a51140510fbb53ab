"""A live tail of audit events: a stream of events as they are stored."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack
from typing import Final

from controlplane.live_tail import CutOff, Listener, TooManyListeners
from controlplane.operations.actor import Actor
from controlplane.operations.context import OperationContext
from controlplane.operations.event_formats import on_one_line
from controlplane.operations.event_notes import doubts
from controlplane.operations.event_places import Places
from controlplane.operations.event_queries import Selection, query_of
from controlplane.operations.operation import EVENTS, Request, Streamed, stream
from controlplane.search.document import Document
from controlplane.search.interface import SearchQuery
from controlplane.search.predicates import all_hold
from controlplane.store.interface import StoreBusy

HEARTBEAT_SECONDS: Final = 15.0
LONGEST_TAIL_SECONDS: Final = 300.0  # seconds until the reader must reconnect and authenticate again


class TailEvents(Request):
    filter: str = ""
    org: str | None = None
    after: str | None = None  # id of the last event received; browsers send it as Last-Event-ID


@stream("audit.tail", "/audit/tail", EVENTS)
async def tail(context: OperationContext, actor: Actor, request: TailEvents) -> Streamed:
    """Stream audit events as they are stored, from now on or after the last event received."""
    query = await query_of(context, actor, Selection(filter=request.filter, org=request.org))
    places = await Places.of(context, actor, "audit.tail")
    stack = AsyncExitStack()
    try:
        after = None if request.after is None else places.position(request.after)
        following = context.tail.listener(actor.name, _wanted(query), after, query.org_ids)
        listener = await stack.enter_async_context(following)
    except TooManyListeners as error:
        raise StoreBusy(str(error)) from None
    notes = await doubts(context, actor, request.org, query) if request.after is None else ()
    return Streamed(EVENTS, _followed(listener, places, stack, notes))


def _wanted(query: SearchQuery) -> Callable[[Document], bool]:
    org_ids = None if query.org_ids is None else frozenset(query.org_ids)

    def wanted(document: Document) -> bool:
        return (org_ids is None or document.org_id in org_ids) and all_hold(query.filter.terms, document)

    return wanted


async def _followed(
    listener: Listener, places: Places, stack: AsyncExitStack, notes: tuple[str, ...]
) -> AsyncGenerator[bytes, None]:
    """Yield audit events as server-sent events (WHATWG HTML section 9.2).

    A server-sent event that has an ID but no data also advances the position of the client.
    """
    end = asyncio.get_running_loop().time() + LONGEST_TAIL_SECONDS
    async with stack:
        yield b"retry: 2000\n" + places.line(listener.position)
        for note in notes:  # the filter may never match an event
            yield b"event: note\ndata: %b\n\n" % on_one_line(note.encode())
        if listener.has_gap:
            yield b"event: gap\ndata: skipped events before this one: search for them\n\n"
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
            # Each event has its position, so a reader that reconnects after any event gets the rest.
            yield b"".join(
                b"data: %b\n%b" % (on_one_line(each.body), places.line(each.position)) for each in events
            )
