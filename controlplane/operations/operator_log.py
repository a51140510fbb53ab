"""The operator log: what operators did, searched."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec

from controlplane.operations import times
from controlplane.operations.actor import Actor
from controlplane.operations.audit import Places
from controlplane.operations.context import OperationContext
from controlplane.operations.lists import searchable
from controlplane.operations.operation import InvalidRequest, Request, Response, operation
from controlplane.store.interface import LogLine, LogQuery
from proxy.wire.audit_event import rfc3339

_PART: Final = "Part of the operator's name, of the operation or of the request, whatever the case of A to Z."


class RecordFacts(msgspec.Struct, rename="camel"):
    time: str
    operator: str  # local:USER who ran a command beside the store
    address: str
    operation: str
    request: dict[str, Any]  # secrets masked, long texts as their digest
    orgs: tuple[str, ...]  # ids of the organisations that it was about
    outcome: str | None  # "done", or why not; None where the control plane ended before it knew
    under_way: bool  # in a control plane that runs, so that there is no outcome yet


class RecordPage(Response):
    lines: tuple[RecordFacts, ...]
    next: str | None  # the cursor of the next page


class SearchOperatorLog(Request):
    operator: str | None = None
    operation: str | None = None  # "app.bind", or "app" for all of the noun
    org: str | None = None
    from_: str | None = msgspec.field(name="from", default=None)  # RFC 3339, a date, or -15m, -2h, -7d
    to: str | None = None
    search: Annotated[str, msgspec.Meta(description=_PART)] | None = None
    sort: Literal["-time", "time"] = "-time"  # newest or oldest first
    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 100
    cursor: str | None = None


@operation("record.search", "GET", "/record")
async def search(context: OperationContext, actor: Actor, request: SearchOperatorLog) -> RecordPage:
    """What operators did: every line that is about nothing but one's own organisations."""
    places = await Places.of(context, actor, "record.search")
    from_ms, to_ms = times.span(request.from_, request.to, context.clock.wall_ms())
    query = LogQuery(
        limit=request.limit + 1,
        order="newest first" if request.sort == "-time" else "oldest first",
        past=None if request.cursor is None else _position(places, request.cursor),
        search=None if request.search is None else searchable(request.search),
        from_ms=from_ms,
        to_ms=to_ms,
        operator=request.operator,
        operation=request.operation,
        org_id=await context.resolve.org_id(actor, request.org),
        org_ids=actor.sees,
    )
    found = await context.store.operator_log(query)
    page = found[: request.limit]
    following = places.write(str(page[-1].position)) if len(found) > request.limit else None
    return RecordPage(lines=tuple(map(_facts, page)), next=following)


def _position(places: Places, cursor: str) -> int:
    try:
        place = places.read(cursor)
    except ValueError:
        place = ""
    if not (place.isascii() and place.isdecimal() and len(place) < 19):
        raise InvalidRequest("cursor: not the `next` of a page before")
    return int(place)


def _facts(line: LogLine) -> RecordFacts:
    return RecordFacts(
        time=rfc3339(line.time_ms),
        operator=line.operator,
        address=line.address,
        operation=line.operation,
        request=msgspec.json.decode(line.request),
        orgs=line.org_ids,
        outcome=line.outcome,
        under_way=line.under_way,
    )
