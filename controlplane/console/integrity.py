"""/audit/integrity: whether the audit events are what was stored, as it was last verified or is now."""

from __future__ import annotations

from controlplane.console.pages import Page, PageRequest, Redirect, page
from controlplane.operations.actor import Actor
from controlplane.operations.context import OperationContext
from controlplane.operations.integrity import HeadsAsked, Verify, checks, in_words, verify
from controlplane.operations.perform import perform


@page("GET", "/audit/integrity")
async def integrity(context: OperationContext, actor: Actor, request: PageRequest) -> Page:
    org = request.org.org_id if request.org else None
    found = await perform(checks, context, actor, HeadsAsked(org=org))
    return Page("integrity.html", "Integrity", {"found": found.orgs})


@page("POST", "/audit/integrity/{org_id}")
async def verify_org(context: OperationContext, actor: Actor, request: PageRequest) -> Redirect:
    verified = await perform(verify, context, actor, Verify(org=request.place["org_id"]))
    (verdict,) = verified.orgs
    found, absent = in_words(verdict)
    report = f"{found[0].upper()}{found[1:]}.{f' But {absent}.' if absent else ''}"
    return Redirect(request.link("/audit/integrity"), report)
