"""/orgs: the organisations, one more of them, and how long their audit events are kept."""

from __future__ import annotations

from typing import Final

from controlplane.console.lists import LIST_MEMBERS, Column, list_members, list_view
from controlplane.console.pages import Page, PageRequest, Redirect, filled, form, page
from controlplane.operations.actor import Actor
from controlplane.operations.context import OperationContext
from controlplane.operations.orgs import (
    AddOrg,
    ListOrgs,
    OrgReference,
    SetRetention,
    add,
    list_all,
    set_retention,
    show,
)
from controlplane.operations.perform import perform
from controlplane.store.interface import RETENTION_MS

_TIERS: Final = (("base", "30 days"), ("90d", "90 days"), ("1y", "1 year"), ("7y", "7 years"))


_COLUMNS: Final = (
    Column("Name", "name"),
    Column("Id"),
    Column("Added", "createdAt"),
    Column("Events are kept for", "retention"),
    Column("", kind="end"),
)


@page("GET", "/orgs", *LIST_MEMBERS)
async def orgs(context: OperationContext, actor: Actor, request: PageRequest) -> Page:
    found = await perform(list_all, context, actor, ListOrgs(**list_members(request)))
    values = {
        "found": found.orgs,
        "list": list_view(request, _COLUMNS, found, len(found.orgs)),
        "tiers": _TIERS,
    }
    return Page("orgs.html", "Organisations", values)


@form("/orgs", again=orgs)
async def add_org(context: OperationContext, actor: Actor, request: PageRequest) -> Redirect:
    added = await perform(add, context, actor, filled(AddOrg, request.form))
    return Redirect(request.link("/orgs"), f"Organisation {added.name} was added.")


@page("POST", "/orgs/{org_id}/retention")
async def keep(context: OperationContext, actor: Actor, request: PageRequest) -> Page | Redirect:
    """What a shorter tier purges can't be had back, so that one is asked whether one means it."""
    asked = filled(SetRetention, request.form, org=request.place["org_id"])
    org = await perform(show, context, actor, OrgReference(org=asked.org))
    shorter = RETENTION_MS[asked.retention] < RETENTION_MS[org.retention]
    if shorter and request.form.get("sure") != "yes":
        values = {"org": org, "wanted": asked.retention, "tiers": dict(_TIERS)}
        return Page("org_shorter.html", f"Keep less of {org.name}?", values, (("Organisations", "/orgs"),))
    kept = await perform(set_retention, context, actor, asked)
    return Redirect(
        request.link("/orgs"), f"Events of {kept.name} are kept for {dict(_TIERS)[kept.retention]}."
    )
