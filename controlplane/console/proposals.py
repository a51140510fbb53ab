"""Pages at /proposals: changes of rules that wait for a second person's approval, each with a review."""

from __future__ import annotations

from controlplane.console import replaying
from controlplane.console.pages import Page, PageRequest, Redirect, form, page
from controlplane.console.rulesets import ENFORCED_LATER, bound_to, difference, place_of
from controlplane.operations import proposals, rulesets
from controlplane.operations.actor import Actor
from controlplane.operations.apps import AppFacts, AppReference
from controlplane.operations.apps import show as show_app
from controlplane.operations.context import OperationContext
from controlplane.operations.perform import perform
from controlplane.operations.proposals import (
    MAX_REASON,
    ApproveProposal,
    ListProposals,
    ProposalDetails,
    ProposalReference,
    RejectProposal,
)
from controlplane.operations.rulesets import RulesetText, ShowRuleset
from controlplane.operations.second_person import same_person
from controlplane.store.interface import NotFound


@page("GET", "/proposals")
async def listed(context: OperationContext, actor: Actor, request: PageRequest) -> Page:
    org = request.org.org_id if request.org else None
    found = await perform(proposals.list_all, context, actor, ListProposals(org=org, decided=True))
    return Page("proposals.html", "Proposals", {"found": found.proposals})


@page("GET", "/proposals/{proposal}")
async def one(context: OperationContext, actor: Actor, request: PageRequest) -> Page:
    found = await perform(proposals.show, context, actor, ProposalReference(request.place["proposal"]))
    org = await context.resolve.org(actor, "viewer", found.org_id)
    active = await _active(context, actor, found)
    after, evaluated = await _after(context, actor, found)
    before = active.yaml if active else ""
    progress = None
    if found.state == "open" and not found.outdated:
        progress = await replaying.of_last_day(context, actor, found.org_id, after, evaluated)
    values = {
        "proposal": found,
        "is_own": same_person(found.proposed_by, actor.name),
        "active": active,
        "difference": await difference(actor, before, after),
        "effect": replaying.effect(progress),
        "apps": evaluated,
        "path": place_of(org.name, found.ruleset),
        "org_name": org.name,
        "rule_lines": {},
        "longest_reason": MAX_REASON,
    }
    return Page("proposal.html", _title(found), values, (("Proposals", "/proposals"),))


def _title(found: ProposalDetails) -> str:
    if found.kind == "publish":
        return f"Publish {found.ruleset}"
    if found.kind == "rollback":
        return f"Roll {found.ruleset} back to version {found.to_version}"
    return f"Assign {found.ruleset} to {found.app or found.app_id}"


async def _active(context: OperationContext, actor: Actor, found: ProposalDetails) -> RulesetText | None:
    """Return the active rules that a proposal would replace, or None if no rules are active."""
    name = found.ruleset
    if found.app_id is not None:
        app = await perform(show_app, context, actor, AppReference(app=found.app_id))
        name = app.ruleset
    try:
        return await perform(rulesets.show, context, actor, ShowRuleset(ruleset=name, org=found.org_id))
    except NotFound:
        return None


async def _after(
    context: OperationContext, actor: Actor, found: ProposalDetails
) -> tuple[str, tuple[AppFacts, ...]]:
    """Return the ruleset text that would become active, and the applications that would use it."""
    if found.app_id is None:
        return found.yaml or "", await bound_to(context, actor, found.org_id, found.ruleset)
    app = await perform(show_app, context, actor, AppReference(app=found.app_id))
    asked = ShowRuleset(ruleset=found.ruleset, org=found.org_id)
    return (await perform(rulesets.show, context, actor, asked)).yaml, (app,)


@form("/proposals/{proposal}/approve", again=one)
async def approve(context: OperationContext, actor: Actor, request: PageRequest) -> Redirect:
    asked = ApproveProposal(request.place["proposal"], request.form.get("reason", ""))
    done = await perform(proposals.approve, context, actor, asked)
    what = (
        f"Version {done.version} of {done.ruleset} is published. {ENFORCED_LATER}"
        if done.version
        else "The app has the new ruleset."
    )
    return Redirect(request.link(f"/proposals/{done.proposal_id}"), f"The proposal is approved. {what}")


@form("/proposals/{proposal}/reject", again=one)
async def reject(context: OperationContext, actor: Actor, request: PageRequest) -> Redirect:
    asked = RejectProposal(request.place["proposal"], request.form.get("reason", ""))
    done = await perform(proposals.reject, context, actor, asked)
    return Redirect(request.link(f"/proposals/{done.proposal_id}"), "The proposal is rejected.")
