"""Changes that an operator proposed, stored until a second person approves them."""

from __future__ import annotations

from controlplane.names import new_id
from controlplane.operations.actor import Actor
from controlplane.operations.context import OperationContext
from controlplane.search.query import fold
from controlplane.store.interface import Proposal, ProposalKind

_LOCAL = "local:"


def same_person(one: str, other: str) -> bool:
    """Return True if two actors may be the same person.

    A user of the control plane's host counts as the operator of the same name.
    """
    return fold(one.removeprefix(_LOCAL)) == fold(other.removeprefix(_LOCAL))


async def propose(
    context: OperationContext,
    actor: Actor,
    kind: ProposalKind,
    org_id: str,
    ruleset_id: str,
    ruleset: str,
    note: str | None,
    *,
    base_version: int | None = None,
    yaml: str | None = None,
    to_version: int | None = None,
    app_id: str | None = None,
    base_ruleset_id: str | None = None,
) -> str:
    """Store a proposal of a change, and return the ID of the proposal."""
    proposal = Proposal(
        proposal_id=new_id(context.clock),
        org_id=org_id,
        kind=kind,
        ruleset_id=ruleset_id,
        ruleset=ruleset,
        base_version=base_version,
        yaml=yaml,
        to_version=to_version,
        app_id=app_id,
        base_ruleset_id=base_ruleset_id,
        note=note,
        proposed_by=actor.name,
        proposed_ms=context.clock.wall_ms(),
    )
    await context.store.add_proposal(proposal, context.most_proposals)
    return proposal.proposal_id
