"""Search for audit events by an ID that an operator enters in the search box.

If one event has the ID, the console opens the event's page. If several events have the ID, the console lists
these events.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import orjson

from controlplane.console.event_rows import event_path, text_of
from controlplane.console.pages import PageRequest, Redirect
from controlplane.operations.actor import Actor
from controlplane.operations.context import OperationContext
from controlplane.operations.event_lookup import LookUpEvents, look_up
from controlplane.operations.perform import perform
from controlplane.search.given_ids import LONGEST_TEXT, asks_for_ids


@dataclass(frozen=True, slots=True)
class ById:
    """Result of a search for events by ID.

    If the search found no event, `notes` lists the fields that were compared.
    """

    events: Sequence[msgspec.Raw]
    notes: tuple[str, ...]


NOT_ASKED = ById((), ())


async def found_by_id(context: OperationContext, actor: Actor, request: PageRequest) -> ById | Redirect:
    """Look up the IDs in the search box, in every organisation in which the operator has a role.

    If exactly one event has an ID, redirect to the page of the event.
    """
    text = request.query.get("q", "")[:LONGEST_TEXT]
    if not asks_for_ids(text) or request.query.get("cursor"):
        return NOT_ASKED
    found = await perform(look_up, context, actor, LookUpEvents(text))
    if len(found.events) != 1:
        return ById(found.events, (_several(len(found.events), found.more),) if found.events else found.notes)
    names = await context.resolve.org_names(actor, found.org_ids)
    (org_id,) = found.org_ids
    event_id = text_of(orjson.loads(bytes(found.events[0])), "id")
    return Redirect(request.link(event_path(names.get(org_id, org_id), event_id)))


def _several(count: int, more: bool) -> str:
    return f"{'more than ' if more else ''}{count} events have this id, in any organisation and at any time"
