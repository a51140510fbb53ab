"""/record: what operators did."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import msgspec

from controlplane.console.event_rows import shown
from controlplane.console.lists import Head
from controlplane.console.pages import Page, PageRequest, Refusal, filled, page, reasons
from controlplane.operations.actor import Actor
from controlplane.operations.context import OperationContext
from controlplane.operations.operator_log import RecordFacts, RecordPage, SearchOperatorLog, search
from controlplane.operations.perform import perform
from controlplane.operations.table import OPERATIONS

_LINES: Final = 50
_NAMES: Final = tuple(sorted(each.name for each in OPERATIONS if each.changes))
_NOUNS: Final = tuple(sorted({name.partition(".")[0] for name in _NAMES}))


@page("GET", "/record", "operator", "operation", "from", "to", "search", "sort", "cursor")
async def record(context: OperationContext, actor: Actor, request: PageRequest) -> Page:
    refused: tuple[str, ...] = ()
    found = RecordPage(lines=(), next=None)
    try:
        org = request.org.org_id if request.org else None
        asked = filled(SearchOperatorLog, request.query, org=org, limit=_LINES)
        found = await perform(search, context, actor, asked)
    except Refusal as error:
        refused = reasons(error)
    said = [each for line in found.lines for value in line.request.values() for each in _texts(value)]
    names = await context.resolve.names(actor, said) | await context.resolve.org_names(actor, said)
    values = {
        "found": found,
        "report": partial(report, names=names),
        "nouns": _NOUNS,
        "operations": _NAMES,
        "heads": _heads(request),
    }
    return Page("operator_log.html", "Operator log", values, status=422 if refused else 200, refused=refused)


def _heads(request: PageRequest) -> tuple[Head, ...]:
    oldest_first = request.query.get("sort") == "time"
    href = request.changed(sort=None if oldest_first else "time", cursor=None)
    time = Head("Time", "", href, "ascending" if oldest_first else "descending")
    return (time, *(Head(text, "", None, "") for text in ("Operator", "What", "About", "Outcome")))


def report(line: RecordFacts, names: Mapping[str, str]) -> list[tuple[str, str]]:
    """What was asked for, as names and values; what was left out, or is the organisation, says nothing. An id
    is reported as what has it is called now; nothing of it turns the line round."""
    return [
        (name, shown(_text(value, names)))
        for name, value in line.request.items()
        if value is not None and name != "org"
    ]


def _texts(value: Any) -> list[str]:
    """Return what may be an id in a value of a request."""
    return [each for each in (value if isinstance(value, list) else [value]) if isinstance(each, str)]


def _text(value: Any, names: Mapping[str, str]) -> str:
    if isinstance(value, str):
        return names.get(value, value)
    if isinstance(value, list):
        return ", ".join(_text(each, names) for each in value)
    if isinstance(value, dict):
        return ", ".join(f"{name} {_text(each, names)}" for name, each in value.items())
    return msgspec.json.encode(value).decode()
