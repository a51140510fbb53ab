"""Pages at /record that show the operator log."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final
from urllib.parse import urlencode

from controlplane.console.event_rows import shown
from controlplane.console.lists import Head
from controlplane.console.pages import Page, PageRequest, Refusal, filled, page, reasons
from controlplane.operations.actor import Actor
from controlplane.operations.context import OperationContext
from controlplane.operations.operator_log import (
    RecordFacts,
    RecordPage,
    SearchOperatorLog,
    readable_request,
    search,
    texts_of,
)
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
    said = [each for line in found.lines for value in line.request.values() for each in texts_of(value)]
    names = await context.resolve.names(actor, said) | await context.resolve.org_names(actor, said)
    values = {
        "found": found,
        "report": partial(report, names=names),
        "nouns": _NOUNS,
        "operations": _NAMES,
        "heads": _heads(request),
        "export": _export(request),
    }
    return Page("operator_log.html", "Operator log", values, status=422 if refused else 200, refused=refused)


def _export(request: PageRequest) -> str:
    """Return the admin API's URL for the lines of the operator log on this page."""
    asked = {
        name: request.query.get(name) for name in ("operator", "operation", "from", "to", "search", "sort")
    }
    asked |= {"org": request.org.org_id if request.org else None, "limit": "1000"}
    return f"/admin/v1/record?{urlencode({name: value for name, value in asked.items() if value})}"


def _heads(request: PageRequest) -> tuple[Head, ...]:
    oldest_first = request.query.get("sort") == "time"
    href = request.changed(sort=None if oldest_first else "time", cursor=None)
    time = Head("Time", "", href, "ascending" if oldest_first else "descending")
    return (time, *(Head(text, "", None, "") for text in ("Operator", "Action", "Organisation", "Outcome")))


def report(line: RecordFacts, names: Mapping[str, str]) -> list[tuple[str, str]]:
    """Describe the request in an operator log line, without characters that change the text direction."""
    return [(name, shown(value)) for name, value in readable_request(line, names)]
