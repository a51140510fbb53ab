"""Pages at /live, which show audit events as they arrive.

If the browser runs no script, it reloads the list of events every few seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from urllib.parse import urlencode

import msgspec

from controlplane.console import text
from controlplane.console.event_rows import EventRow, event_row
from controlplane.console.pages import Page, PageRequest, page
from controlplane.console.search import mistake_in, names_in, sentences
from controlplane.console.zones import short_name
from controlplane.operations.actor import Actor
from controlplane.operations.audit import SearchEvents, search
from controlplane.operations.context import OperationContext
from controlplane.operations.event_queries import InvalidFilter
from controlplane.operations.operation import InvalidRequest
from controlplane.operations.perform import perform
from controlplane.store.pages import ListQuery, all_rows
from proxy.wire.audit_event import REASONS, VERDICTS

_ROWS: Final = 50
_NO_ROW: Final = EventRow(*("",) * len(EventRow.__slots__))


@page("GET", "/live", "q", "paused")
async def live(context: OperationContext, actor: Actor, request: PageRequest) -> Page:
    values: dict[str, object] = {
        "q": request.query.get("q", ""),
        "paused": request.query.get("paused") == "1",
        "problems": (),
        "mistake": None,
        "rows": (),
        "notes": (),
        "tail": "",
        "no_row": _NO_ROW,
        "verdicts": VERDICTS,
        "zone_name": short_name(request.now_ms, request.zone),
        "names": "{}",
        "reasons": msgspec.json.encode(dict(REASONS)).decode(),
    }
    wanted, org_id = request.query.get("q", "").strip(), request.org.org_id if request.org else None
    try:
        found = await perform(search, context, actor, SearchEvents(filter=wanted, org=org_id, limit=_ROWS))
    except InvalidRequest as error:
        if isinstance(error, InvalidFilter):
            values["mistake"] = mistake_in(str(values["q"]), error)
        else:
            values["problems"] = error.problems
        return Page("live.html", "Live", values, status=422)
    org_ids = actor.sees if org_id is None else frozenset({org_id})
    names = await _names(context, actor, org_ids, found.events)
    members = {"filter": wanted, "org": org_id}
    query = urlencode({name: value for name, value in members.items() if value})
    values |= {
        "rows": [event_row(bytes(event), names) for event in found.events],
        "tail": f"/admin/v1/audit/tail?{query}",
        "names": msgspec.json.encode(names).decode(),
        "notes": [text.times_in(note, request.zone) for note in sentences(found.notes)],
    }
    return Page("live.html", "Live", values)


async def _names(
    context: OperationContext, actor: Actor, org_ids: frozenset[str] | None, shown: Sequence[msgspec.Raw]
) -> dict[str, str]:
    """Return names by ID: of all organisations, of the first page of apps, and of apps in events."""
    orgs = await all_rows(context.store.list_orgs, ListQuery(org_ids=actor.sees))
    apps = await context.store.list_apps(ListQuery(org_ids=org_ids))
    first = {org.org_id: org.name for org in orgs} | {app.app_id: app.name for app in apps.rows}
    return first | await names_in(context, actor, shown)
