"""Proposals of changes that need the approval of a second person: list, show, approve and reject."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from controlplane.operations import apps, rulesets
from controlplane.operations.actor import Actor, Forbidden, Role
from controlplane.operations.context import OperationContext
from controlplane.operations.operation import InvalidRequest, Request, Response, operation
from controlplane.operations.second_person import same_person
from controlplane.store.interface import Approval, Conflict, NotFound, Proposal, ProposalKind, ProposalState
from proxy.wire.audit_event import rfc3339

MAX_REASON: Final = 500  # characters of a reason
_MOST_LISTED: Final = 200
_Reason = Annotated[str, msgspec.Meta(max_length=MAX_REASON)]


class ProposalFacts(Response):
    proposal_id: str
    org_id: str
    kind: ProposalKind
    ruleset: str
    app: str | None  # name of the app to bind, if the proposal binds one
    base_version: int | None  # active version at the time of the proposal; 0: the ruleset was new
    to_version: int | None  # version whose text `rollback` makes active again
    note: str | None
    proposed_by: str
    proposed_at: str
    state: ProposalState
    outdated: bool  # True: its object was changed since, so it can't be approved
    decided_by: str | None
    decided_at: str | None
    reason: str | None
    version: int | None  # version that an approval made


class ProposalDetails(ProposalFacts):
    yaml: str | None  # text that `publish` or `rollback` would make active
    app_id: str | None
    base_ruleset: str | None  # name of the app's ruleset at the time of the proposal


class ProposalList(Response):
    proposals: tuple[ProposalFacts, ...]  # newest first


class ListProposals(Request):
    org: str | None = None
    ruleset: str | None = None  # name of the ruleset
    decided: bool = False  # True: include decided proposals


class ProposalReference(Request):
    proposal: str  # id of the proposal


class ApproveProposal(ProposalReference):
    reason: _Reason = ""


class RejectProposal(ProposalReference):
    reason: _Reason = ""


class CountWaiting(Request):
    pass


class Waiting(Response):
    """Counts of open proposals in the organisations in which the operator has the role editor."""

    to_decide: int  # proposals of other operators
    own: int


@operation("proposal.list", "GET", "/proposals")
async def list_all(context: OperationContext, actor: Actor, request: ListProposals) -> ProposalList:
    """List proposed changes of rules that wait for an approval, and optionally decided proposals."""
    org_ids = [each.org_id for each in await context.resolve.orgs(actor, request.org)]
    found = await context.store.proposals(org_ids, is_open=not request.decided, limit=_MOST_LISTED)
    wanted = [each for each in found if request.ruleset in (None, each.ruleset)]
    return ProposalList(proposals=tuple([await _facts(context, actor, each) for each in wanted]))


@operation("proposal.waiting", "GET", "/proposals-waiting")
async def waiting(context: OperationContext, actor: Actor, request: CountWaiting) -> Waiting:
    """Count the open proposals that the operator can decide, and the operator's own proposals."""
    found = await context.store.open_proposals()
    mine = [same_person(by, actor.name) for org_id, by in found if actor.may("editor", org_id)]
    return Waiting(to_decide=len(mine) - sum(mine), own=sum(mine))


@operation("proposal.show", "GET", "/proposals/{proposal}")
async def show(context: OperationContext, actor: Actor, request: ProposalReference) -> ProposalDetails:
    """Show one proposal, with the text of the ruleset that an approval would activate."""
    found = await _found(context, actor, "viewer", request.proposal)
    yaml = found.yaml
    if found.kind == "rollback":
        yaml = await context.store.ruleset_text(found.ruleset_id, found.to_version or 0)
    base = None
    if found.base_ruleset_id is not None:
        names = [each.name for each in await context.store.find_rulesets(found.base_ruleset_id, found.org_id)]
        base = names[0] if names else None
    return ProposalDetails(
        **msgspec.structs.asdict(await _facts(context, actor, found)),
        yaml=yaml,
        app_id=found.app_id,
        base_ruleset=base,
    )


@operation("proposal.approve", "POST", "/proposals/{proposal}/approve")
async def approve(context: OperationContext, actor: Actor, request: ApproveProposal) -> ProposalFacts:
    """Activate a change of rules that another operator proposed."""
    found = await _found(context, actor, "editor", request.proposal)
    if found.state != "open":
        raise Conflict(f"the proposal was already {found.state} by {found.decided_by}")
    if same_person(found.proposed_by, actor.name):
        raise Forbidden("the operator who proposed a change cannot approve it: ask another editor")
    if await _is_outdated(context, found):
        raise Conflict(
            "the proposal is outdated, because its ruleset or app was changed after the proposal:"
            " review the change again, and propose it again"
        )
    approval = Approval(found.proposal_id, actor.name, context.clock.wall_ms(), request.reason or None)
    if found.kind in ("publish", "rollback"):
        await rulesets.activate_proposed(context, actor, found, approval)
    else:
        await apps.bind_proposed(context, found, approval)
    return await _facts(context, actor, await _found(context, actor, "viewer", request.proposal))


@operation("proposal.reject", "POST", "/proposals/{proposal}/reject")
async def reject(context: OperationContext, actor: Actor, request: RejectProposal) -> ProposalFacts:
    """Reject a proposal, or withdraw your own proposal.

    A proposal that is rejected or withdrawn does not change the active rules.
    """
    found = await _found(context, actor, "editor", request.proposal)
    if not request.reason.strip():
        raise InvalidRequest("reason: enter a reason to reject the proposal")
    decision = Approval(found.proposal_id, actor.name, context.clock.wall_ms(), request.reason)
    await context.store.reject_proposal(decision)
    context.results.append(f"rejected a change of {found.ruleset}, proposed by {found.proposed_by}")
    return await _facts(context, actor, await _found(context, actor, "viewer", request.proposal))


async def _found(context: OperationContext, actor: Actor, role: Role, proposal_id: str) -> Proposal:
    found = await context.store.proposal(proposal_id)
    if found is None or not actor.may("viewer", found.org_id):
        raise NotFound(f"there is no proposal {proposal_id}")
    await context.resolve.org(actor, role, found.org_id)
    return found


async def _is_outdated(context: OperationContext, proposal: Proposal) -> bool:
    if proposal.app_id is not None:
        apps_found = await context.store.find_apps(proposal.app_id, proposal.org_id)
        return [each.ruleset_id for each in apps_found] != [proposal.base_ruleset_id]
    active = await rulesets.active_of(context, proposal.org_id, proposal.ruleset)
    return (0 if active is None else active.version) != proposal.base_version


async def _facts(context: OperationContext, actor: Actor, proposal: Proposal) -> ProposalFacts:
    names = await context.resolve.app_names(actor, [proposal.app_id]) if proposal.app_id else {}
    decided_at = None if proposal.decided_ms is None else rfc3339(proposal.decided_ms)
    return ProposalFacts(
        proposal_id=proposal.proposal_id,
        org_id=proposal.org_id,
        kind=proposal.kind,
        ruleset=proposal.ruleset,
        app=names.get(proposal.app_id or ""),
        base_version=proposal.base_version,
        to_version=proposal.to_version,
        note=proposal.note,
        proposed_by=proposal.proposed_by,
        proposed_at=rfc3339(proposal.proposed_ms),
        state=proposal.state,
        outdated=proposal.state == "open" and await _is_outdated(context, proposal),
        decided_by=proposal.decided_by,
        decided_at=decided_at,
        reason=proposal.reason,
        version=proposal.version,
    )
