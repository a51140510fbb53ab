"""Pages at /orgs: organisations, a form that adds one, and the retention of audit events."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Final

from controlplane.console.lists import LIST_MEMBERS, Column, list_members, list_view
from controlplane.console.pages import Page, PageRequest, Redirect, filled, form, page
from controlplane.operations.actor import Actor
from controlplane.operations.context import OperationContext
from controlplane.operations.event_counts import CountValues, facets
from controlplane.operations.orgs import (
    AddOrg,
    ListOrgs,
    OrgReference,
    SetRetention,
    SetSecondPerson,
    add,
    list_all,
    set_retention,
    set_second_person,
    show,
)
from controlplane.operations.perform import perform
from controlplane.search.interface import MAX_TOP
from controlplane.store.interface import RETENTION_MS, RETENTION_WORDS, StoreError
from proxy.wire.figures import number

_TIERS: Final = tuple(RETENTION_WORDS.items())


_COLUMNS: Final = (
    Column("Name", "name"),
    Column("Events", kind="number"),
    Column("Oldest event"),
    Column("Events are kept for", "retention"),
    Column("Second person for rules"),
    Column("Added", "createdAt"),
)


@page("GET", "/orgs", *LIST_MEMBERS)
async def orgs(context: OperationContext, actor: Actor, request: PageRequest) -> Page:
    found = await perform(list_all, context, actor, ListOrgs(**list_members(request)))
    values = {
        "found": found.orgs,
        "list": list_view(request, _COLUMNS, found, len(found.orgs)),
        "tiers": _TIERS,
        "events": await _events(context, actor),
    }
    return Page("orgs.html", "Organisations", values)


async def _events(context: OperationContext, actor: Actor) -> Mapping[str, str] | None:
    """Return the number of events by organisation, or None if the search index fails."""
    try:
        found = await perform(facets, context, actor, CountValues(fields=("org",), top=MAX_TOP))
    except StoreError:
        return None
    at_least = "" if found.complete else "at least "
    values = found.facets[0].values
    counts = {each.value: f"{at_least}{number(each.count)}" for each in values}
    return counts if len(values) < MAX_TOP else defaultdict(lambda: "–", counts)


@form("/orgs", again=orgs)
async def add_org(context: OperationContext, actor: Actor, request: PageRequest) -> Redirect:
    added = await perform(add, context, actor, filled(AddOrg, request.form))
    return Redirect(request.link("/orgs"), f"Organisation {added.name} was added.")


@page("POST", "/orgs/{org_id}/retention")
async def keep(context: OperationContext, actor: Actor, request: PageRequest) -> Page | Redirect:
    """Set the retention of an organisation's audit events.

    Before the page shortens the retention, it asks for confirmation, because purged events cannot be
    restored.
    """
    asked = filled(SetRetention, request.form, org=request.place["org_id"])
    org = await perform(show, context, actor, OrgReference(org=asked.org))
    shorter = RETENTION_MS[asked.retention] < RETENTION_MS[org.retention]
    if shorter and request.form.get("sure") != "yes":
        values = {"org": org, "wanted": asked.retention, "tiers": dict(_TIERS)}
        title = f"Shorten the retention of {org.name}?"
        return Page("org_shorter.html", title, values, (("Organisations", "/orgs"),))
    kept = await perform(set_retention, context, actor, asked)
    return Redirect(
        request.link("/orgs"), f"Events of {kept.name} are kept for {dict(_TIERS)[kept.retention]}."
    )


@form("/orgs/{org_id}/second-person", again=orgs)
async def need_second_person(context: OperationContext, actor: Actor, request: PageRequest) -> Redirect:
    needed = request.form.get("needed") == "yes"
    asked = SetSecondPerson(org=request.place["org_id"], needed=needed)
    org = await perform(set_second_person, context, actor, asked)
    said = "Another editor must approve" if needed else "No second person is needed for"
    return Redirect(request.link("/orgs"), f"{said} changes to the rules of {org.name}.")
