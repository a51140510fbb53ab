"""Find the audit events that have an ID in any ID field, in all visible organisations."""

from __future__ import annotations

from operator import methodcaller
from typing import Annotated, Final

import msgspec
import orjson
from msgspec import Meta

from controlplane.operations.actor import Actor
from controlplane.operations.context import OperationContext
from controlplane.operations.event_queries import ask_index
from controlplane.operations.operation import InvalidRequest, Request, Response, operation
from controlplane.search.given_ids import LONGEST_TEXT, ids_in, whole_id
from controlplane.search.interface import SearchQuery
from controlplane.search.query import FIELDS, Exactly, FieldTerm, Filter

MOST_FOUND: Final = 50  # events of a response; a client may use one id for all its requests
# Fields that hold ids of a request. The first group that finds an event ends the search. An error body names
# both the request and a client id that repeated requests share.
_GROUPS: Final = (("id", "request"), ("upstreamrequest",), ("clientrequest",), ("parent", "trace"))
_LOOKED_AT: Final = (
    "event id, request id, upstream request id, client request id, batch request id and trace id"
)


class LookUpEvents(Request):
    """API request that finds the audit events with a given ID.

    `text` is the ID itself, or an error body or log line that contains GUIDs, ULIDs or trace IDs.
    """

    text: Annotated[str, Meta(min_length=1, max_length=LONGEST_TEXT)]
    org: str | None = None  # id or name; default: every organisation that the actor has permission to look at


class FoundEvents(Response):
    """Audit events in the form in which proxies sent them, newest first."""

    ids: tuple[str, ...]  # ids that were found in the text
    events: tuple[msgspec.Raw, ...]
    org_ids: tuple[str, ...]  # the organisation of each event
    more: bool  # True if there are other events with these ids
    notes: tuple[str, ...]  # fields that were searched, if nothing was found


@operation("audit.lookup", "POST", "/audit/lookup", changes=False)
async def look_up(context: OperationContext, actor: Actor, request: LookUpEvents) -> FoundEvents:
    """Find the audit events with a given ID of the request, the client, the upstream or a trace."""
    org_ids = await _org_ids(context, actor, request.org)
    whole = whole_id(request.text)
    ids = tuple(dict.fromkeys((*((whole,) if whole else ()), *ids_in(request.text))))
    if not ids:
        raise InvalidRequest("text: contains no id: paste a request-id, or text that contains one")
    for group in _GROUPS:
        found = await _with_ids(context, actor, org_ids, group, ids)
        if found:
            shown = found[:MOST_FOUND]
            owners = tuple(str(orjson.loads(each)["orgId"]) for each in shown)
            return FoundEvents(ids, tuple(map(msgspec.Raw, shown)), owners, len(found) > MOST_FOUND, ())
    return FoundEvents(ids, (), (), False, _notes(context, ids, request.org))


async def _org_ids(context: OperationContext, actor: Actor, org: str | None) -> tuple[str, ...] | None:
    if org is None and actor.may("viewer", None):
        return None
    return tuple(each.org_id for each in await context.resolve.orgs_of_events(actor, org))


async def _with_ids(
    context: OperationContext,
    actor: Actor,
    org_ids: tuple[str, ...] | None,
    group: tuple[str, ...],
    ids: tuple[str, ...],
) -> list[bytes]:
    """Return the events that have one of the given IDs in one of the fields in `group`.

    Each event occurs only once in the result.
    """
    found: dict[bytes, None] = {}
    for name in group:
        wanted = Filter((FieldTerm(FIELDS[name], tuple(map(Exactly, ids))),))
        query = SearchQuery(org_ids, wanted, limit=MOST_FOUND + 1)
        page = await ask_index(context, actor, methodcaller("search", query))
        found |= dict.fromkeys(page.events)
    return list(found)


def _notes(context: OperationContext, ids: tuple[str, ...], org: str | None) -> tuple[str, ...]:
    where = f"the organisation {org}" if org else "the organisations that you can look at"
    named = ids[0] if len(ids) == 1 else f"one of {len(ids)} ids"
    notes = [f"no event of {where} has {named} as {_LOOKED_AT}"]
    if context.is_behind():
        notes.append(context.index_note())
    return tuple(notes)
