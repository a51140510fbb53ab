"""Pages at /audit/integrity: whether stored events are unchanged, and whether events are missing.

The pages show the result of the last verification, and can start a new verification.
"""

from __future__ import annotations

from typing import Final

from controlplane.console.pages import Page, PageRequest, Redirect, page
from controlplane.operations.actor import Actor
from controlplane.operations.context import OperationContext
from controlplane.operations.integrity import (
    HeadsAsked,
    Verdict,
    Verify,
    checks,
    in_words,
    verify,
)
from controlplane.operations.perform import perform
from proxy.wire.figures import counted

_ROWS: Final = 50  # organisations per page


@page("GET", "/audit/integrity", "page")
async def integrity(context: OperationContext, actor: Actor, request: PageRequest) -> Page:
    org = request.org.org_id if request.org else None
    found = (await perform(checks, context, actor, HeadsAsked(org=org))).orgs
    asked = request.query.get("page", "")
    last = max(0, len(found) - 1) // _ROWS
    at = min(int(asked) if asked.isascii() and asked.isdecimal() and len(asked) < 9 else 0, last)
    values = {
        "found": found[at * _ROWS : (at + 1) * _ROWS],
        "before": request.changed(page=at - 1) if at else None,
        "after": request.changed(page=at + 1) if at < last else None,
    }
    return Page("integrity.html", "Integrity", values)


@page("POST", "/audit/integrity")
async def verify_all(context: OperationContext, actor: Actor, request: PageRequest) -> Redirect:
    org = request.org.org_id if request.org else None
    verified = await perform(verify, context, actor, Verify(org=org))
    broken = sum(each.misfit is not None for each in verified.orgs)
    absent = sum(bool(each.missing_events or each.repeated_events) for each in verified.orgs)
    report = f"Verified {counted(len(verified.orgs), 'organisation')}."
    changed = f"Stored events of {counted(broken, 'organisation')} were changed after they had been stored."
    report += f" {changed}" if broken else " Stored events are unchanged."
    incomplete = f"Events of {counted(absent, 'organisation')} are missing."
    report += f" {incomplete}" if absent else " No event is known to be missing."
    return Redirect(request.link("/audit/integrity"), report)


@page("POST", "/audit/integrity/{org_id}")
async def verify_org(context: OperationContext, actor: Actor, request: PageRequest) -> Redirect:
    verified = await perform(verify, context, actor, Verify(org=request.place["org_id"]))
    return Redirect(request.link("/audit/integrity"), _sentence(verified.orgs[0]))


def _sentence(verdict: Verdict) -> str:
    found, absent = in_words(verdict)
    return f"{found[0].upper()}{found[1:]}.{f' The trail is incomplete: {absent}.' if absent else ''}"
