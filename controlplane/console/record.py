"""/record: what operators did."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from controlplane.console.pages import Page, PageRequest, Refusal, filled, page, problems
from controlplane.operations.actor import Actor
from controlplane.operations.desk import Desk
from controlplane.operations.perform import perform
from controlplane.operations.record import RecordFacts, RecordPage, SearchRecord, search
from controlplane.operations.table import OPERATIONS

_LINES: Final = 50
_NAMES: Final = tuple(sorted(each.name for each in OPERATIONS if each.changes))
_NOUNS: Final = tuple(sorted({name.partition(".")[0] for name in _NAMES}))


@page("GET", "/record")
async def record(desk: Desk, actor: Actor, request: PageRequest) -> Page:
    refused: tuple[str, ...] = ()
    found = RecordPage(lines=(), next=None)
    try:
        org = request.org.org_id if request.org else None
        asked = filled(SearchRecord, request.query, org=org, limit=_LINES)
        found = await perform(search, desk, actor, asked)
    except Refusal as error:
        refused = problems(error)
    values = {
        "found": found,
        "told": told,
        "refused": refused,
        "nouns": _NOUNS,
        "operations": _NAMES,
    }
    return Page("record.html", "Record", values, status=422 if refused else 200)


def told(line: RecordFacts) -> list[tuple[str, str]]:
    """What was asked for, as names and values; what was left out, or is the organisation, says nothing."""
    return [
        (name, _text(value)) for name, value in line.request.items() if value is not None and name != "org"
    ]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
