"""Search in the operator log, which records the actions of operators."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

import msgspec

from controlplane.operations import times
from controlplane.operations.actor import Actor
from controlplane.operations.context import OperationContext
from controlplane.operations.event_places import Places
from controlplane.operations.lists import searchable
from controlplane.operations.operation import InvalidRequest, Request, Response, operation
from controlplane.store.interface import LogLine, LogQuery
from proxy.wire.audit_event import rfc3339

_PART: Final = "Part of the operator, the operation, the request or the result, ignoring the case of A to Z."

# Labels of members of requests. The label of any other member is its name in words.
_MEMBERS: Final = {
    "yaml": "text",
    "label": "file",
    "expected": "expected version",
    "to": "to version",
    "graceSeconds": "grace in seconds",
    "hours": "for hours",
    "document": "schema",
}
_HUMP: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


class RecordFacts(msgspec.Struct, rename="camel"):
    time: str
    operator: str  # local:USER for a command that opened the store directly
    address: str
    operation: str
    request: dict[str, Any]  # request with masked secrets; long texts as their digest
    orgs: tuple[str, ...]  # ids of the organisations that the action affected
    # "done", or the code of the error; None: the control plane ended before the action did
    outcome: str | None
    under_way: bool  # True: a running control plane still performs it, and the outcome is open
    result: str | None  # change of rules that the action made, in words


class RecordPage(Response):
    lines: tuple[RecordFacts, ...]
    next: str | None  # cursor of the next page


class SearchOperatorLog(Request):
    operator: str | None = None
    operation: str | None = None  # "app.bind", or "app" for all operations of the noun
    org: str | None = None
    from_: str | None = msgspec.field(name="from", default=None)  # RFC 3339, a date, or -15m, -2h, -7d
    to: str | None = None
    search: Annotated[str, msgspec.Meta(description=_PART)] | None = None
    sort: Literal["-time", "time"] = "-time"  # newest or oldest first
    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 100
    cursor: str | None = None


@operation("record.search", "GET", "/record")
async def search(context: OperationContext, actor: Actor, request: SearchOperatorLog) -> RecordPage:
    """Search the actions of operators in the organisations that you can look at."""
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
        raise InvalidRequest("cursor: is not the `next` of a previous page")
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
        result=line.result,
    )


# Text of a line


def readable_request(line: RecordFacts, names: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return a request in the operator log as pairs of name and value.

    The list of pairs omits the organisation, and all fields that are empty or missing in the operator's
    request. If a value in the request is the ID of an object, the pair has the object's current name instead.
    """
    return [
        (_member(name), _value(value, names))
        for name, value in line.request.items()
        if value not in (None, "", [], {}) and name != "org"
    ]


def texts_of(value: Any) -> list[str]:
    """Return the texts in the value of one member of an operator's request.

    Any of the returned texts may be an ID.
    """
    return [each for each in (value if isinstance(value, list) else [value]) if isinstance(each, str)]


def _member(name: str) -> str:
    return _MEMBERS.get(name) or _HUMP.sub(" ", name).lower()


def _value(value: Any, names: Mapping[str, str]) -> str:
    if isinstance(value, str):
        return names.get(value, value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return f"{value:,}"
    if isinstance(value, list):
        return ", ".join(_value(each, names) for each in value)
    if isinstance(value, dict):
        return ", ".join(f"{_member(name)} {_value(each, names)}" for name, each in value.items())
    return str(value)
