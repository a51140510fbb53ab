"""Tests of second-person approval: changes that need an approval, and operators who may approve them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from controlplane.operations import apps, emergency, orgs, proposals, rulesets
from controlplane.operations.actor import Actor, Forbidden, Role, local_actor
from controlplane.operations.context import OperationContext
from controlplane.operations.operation import InvalidRequest
from controlplane.operations.perform import perform
from controlplane.operations.second_person import same_person
from controlplane.store.interface import MOST_OPEN, App, Approval, Conflict, NotFound, Org, Proposal, Ruleset
from controlplane.store.sql_store import SqlStore
from tests.controlplane.plane import RULESET, Plane, context_of

HOST = local_actor("root")


def text(verdict: str, name: str = "hr") -> str:
    return RULESET.format(name=name).replace("allow", verdict)


@pytest.fixture
async def context(plane: Plane) -> OperationContext:
    """Create two organisations with applications; one organisation needs approvals and has operators."""
    for org in ("acme", "rival"):
        await plane.org(org)
        await plane.ruleset(org, "hr")
        await plane.ruleset(org, "next", text("block", "next"))
        await plane.inventory.add_app(f"{org}-app", org, "hr")
    made = context_of(plane)
    await orgs.set_second_person.perform(made, HOST, orgs.SetSecondPerson("acme", needed=True))
    return made


async def actor(context: OperationContext, name: str, role: Role = "editor", org: str = "acme") -> Actor:
    ids = {each.name: each.org_id for each in await context.store.orgs()} | {"*": "*"}
    return Actor(name, {ids[org]: role})


async def active(context: OperationContext) -> tuple[int, str, str | None]:
    """Return the version of the ruleset `hr`, and the ruleset and shadow ruleset of the app `acme-app`."""
    shown = await rulesets.show.perform(context, HOST, rulesets.ShowRuleset("hr", "acme"))
    app = await apps.show.perform(context, HOST, apps.AppReference("acme-app"))
    return shown.version, app.ruleset, app.shadow_ruleset


async def publish(context: OperationContext, who: Actor, yaml: str) -> str:
    asked = rulesets.ApplyRuleset(org="acme", yaml=yaml, note="why not")
    applied = await rulesets.apply.perform(context, who, asked)
    assert applied.proposal is not None
    assert not applied.changed
    return applied.proposal


@pytest.fixture(autouse=True)
def _roles_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip the refresh of roles, because the actors in these tests have no operator accounts."""

    async def same(self: OperationContext, who: Actor) -> Actor:
        return who

    monkeypatch.setattr(OperationContext, "refresh_roles", same)


async def approve(context: OperationContext, who: Actor, proposal: str) -> proposals.ProposalFacts:
    return await proposals.approve.perform(context, who, proposals.ApproveProposal(proposal))


async def test_every_way_to_change_the_rules_that_hold_waits_for_a_second_person(
    context: OperationContext,
) -> None:
    ada, bob = await actor(context, "ada"), await actor(context, "bob")
    await apps.shadow.perform(context, ada, apps.SetShadow("acme-app", ruleset="next"))
    before = await active(context)

    async def proposed(result: Any) -> str:
        assert result.proposal is not None
        assert await active(context) == before, "nothing has changed yet"
        return str(result.proposal)

    bind = await apps.bind.perform(context, ada, apps.BindApp("acme-app", ruleset="next"))
    promote = await apps.promote_shadow.perform(context, ada, apps.PromoteShadow("acme-app"))
    new = rulesets.ApplyRuleset("acme", text("allow", "brand-new"))
    for result in (bind, promote, await rulesets.apply.perform(context, ada, new)):
        await proposed(result)
    await publish(context, ada, text("block"))
    assert await active(context) == before
    assert {each.name for each in await context.store.rulesets(None)} == {"hr", "next"}

    done = await approve(context, bob, await publish(context, ada, text("log_only")))
    assert context.results[-2:] == ["proposed hr version 2", "published hr version 2, proposed by ada"]
    assert (done.state, done.decided_by, done.version) == ("approved", "bob", 2)
    rolled = await rulesets.rollback.perform(context, ada, rulesets.RollBack("hr", "acme"))
    assert (await active(context))[0] == 2
    assert (await approve(context, bob, rolled.proposal or "")).version == 3
    await approve(context, bob, promote.proposal or "")
    assert context.results[-2:] == [
        "published hr version 3 with the text of version 1, proposed by ada",
        "switched acme-app to next, proposed by ada",
    ]
    assert await active(context) == (3, "next", None)
    reference = proposals.ProposalReference(bind.proposal or "")
    assert (await proposals.show.perform(context, ada, reference)).outdated, "the app has another ruleset now"
    history = await rulesets.history.perform(context, ada, rulesets.RulesetReference("hr", "acme"))
    assert [each.note for each in history.versions] == [None, "why not", None]


async def test_the_proposer_cannot_approve_by_any_of_their_names(context: OperationContext) -> None:
    ada = await actor(context, "ada", "admin")
    proposal = await publish(context, ada, text("block"))
    for same in (ada, await actor(context, "ADA", "admin"), local_actor("ada")):
        with pytest.raises(Forbidden, match="cannot approve it"):
            await approve(context, same, proposal)
    assert (await active(context))[0] == 1
    assert (await approve(context, HOST, proposal)).state == "approved"
    assert same_person("local:Ada", "ada")
    assert not same_person("local:ada", "adam")


async def test_only_an_editor_of_the_organisation_decides(context: OperationContext) -> None:
    proposal = await publish(context, await actor(context, "ada"), text("block"))
    viewer, stranger = await actor(context, "vic", "viewer"), await actor(context, "eve", "admin", "rival")
    refuse = proposals.RejectProposal(proposal, "no")
    for who, error in ((viewer, Forbidden), (stranger, NotFound)):
        with pytest.raises(error):
            await approve(context, who, proposal)
        with pytest.raises(error):
            await proposals.reject.perform(context, who, refuse)
    listed = proposals.ListProposals()
    assert len((await proposals.list_all.perform(context, viewer, listed)).proposals) == 1
    assert (await proposals.list_all.perform(context, stranger, listed)).proposals == ()
    waiting = proposals.CountWaiting()
    counts = [
        await proposals.waiting.perform(context, who, waiting)
        for who in (viewer, stranger, await actor(context, "bob"), await actor(context, "ada"))
    ]
    assert [(each.to_decide, each.own) for each in counts] == [(0, 0), (0, 0), (1, 0), (0, 1)]


async def test_of_two_approvals_at_once_one_counts(context: OperationContext) -> None:
    proposal = await publish(context, await actor(context, "ada"), text("block"))
    who = [await actor(context, name) for name in ("bob", "cy", "di")]
    results = await asyncio.gather(
        *(approve(context, each, proposal) for each in who), return_exceptions=True
    )
    assert sum(not isinstance(each, BaseException) for each in results) == 1
    assert all(isinstance(each, Conflict | proposals.ProposalFacts) for each in results)
    assert (await active(context))[0] == 2


async def test_a_proposal_whose_base_has_changed_must_be_reviewed_again(context: OperationContext) -> None:
    ada, bob, cid = [await actor(context, name) for name in ("ada", "bob", "cid")]
    first, second = await publish(context, ada, text("block")), await publish(context, cid, text("log_only"))
    await approve(context, bob, first)
    with pytest.raises(Conflict, match="outdated"):
        await approve(context, bob, second)
    shown = await proposals.show.perform(context, bob, proposals.ProposalReference(second))
    assert (shown.outdated, shown.base_version, shown.yaml) == (True, 1, text("log_only"))
    asked = rulesets.ApplyRuleset("acme", text("log_only"), expected=1)
    with pytest.raises(Conflict):
        await rulesets.apply.perform(context, ada, asked)
    assert (await active(context))[0] == 2


async def test_a_newer_proposal_of_the_same_operator_replaces_the_older(context: OperationContext) -> None:
    ada, bob, cid = [await actor(context, name) for name in ("ada", "bob", "cid")]
    first, other = await publish(context, ada, text("block")), await publish(context, cid, text("block"))
    second = await publish(context, ada, text("log_only"))
    with pytest.raises(Conflict, match="already rejected by ada"):
        await approve(context, bob, first)
    shown = await proposals.show.perform(context, bob, proposals.ProposalReference(first))
    assert shown.reason == "Its proposer replaced it with a newer proposal."
    shown = await proposals.show.perform(context, bob, proposals.ProposalReference(other))
    assert shown.state == "open", "another operator's"
    await approve(context, bob, second)
    assert (await active(context))[0] == 2


async def test_open_proposals_of_one_operator_do_not_stop_another(either_store: SqlStore) -> None:
    await either_store.add_org(Org("o", "acme", "base", 1))

    async def propose(number: int, by: str) -> None:
        kept = Proposal(
            f"{by}-{number}", "o", "publish", f"r{number}", "hr", 0, "", None, None, None, "n", by, 5
        )
        await either_store.add_proposal(kept)

    for number in range(MOST_OPEN):
        await propose(number, "ada")
    with pytest.raises(Conflict, match="may have 20 open proposals in an organisation: approve or reject"):
        await propose(MOST_OPEN, "ada")
    await propose(MOST_OPEN, "bob")
    assert len(await either_store.open_proposals()) == MOST_OPEN + 1


async def test_a_rejected_proposal_changes_nothing_and_is_not_approved_later(
    context: OperationContext,
) -> None:
    ada, bob = await actor(context, "ada"), await actor(context, "bob")
    proposal = await publish(context, ada, text("block"))
    with pytest.raises(InvalidRequest, match="reason: enter a reason"):
        await proposals.reject.perform(context, bob, proposals.RejectProposal(proposal, " "))
    done = await proposals.reject.perform(context, bob, proposals.RejectProposal(proposal, "too strict"))
    assert (done.state, done.reason, done.decided_by) == ("rejected", "too strict", "bob")
    with pytest.raises(Conflict, match="already rejected by bob"):
        await approve(context, bob, proposal)
    with pytest.raises(Conflict):
        await proposals.reject.perform(context, ada, proposals.RejectProposal(proposal, "mine"))
    assert (await active(context))[0] == 1


async def test_the_text_that_is_active_needs_nobody(context: OperationContext) -> None:
    asked = rulesets.ApplyRuleset("acme", RULESET.format(name="hr"))
    applied = await rulesets.apply.perform(context, await actor(context, "ada"), asked)
    assert (applied.proposal, applied.changed, applied.version) == (None, False, 1)


async def test_an_emergency_stop_and_another_organisation_need_no_second_person(
    context: OperationContext,
) -> None:
    ada, eve = await actor(context, "ada"), await actor(context, "eve", org="rival")
    await emergency.stop_app.perform(context, ada, emergency.AppToStop("acme-app"))
    applied = await rulesets.apply.perform(context, eve, rulesets.ApplyRuleset("rival", text("block")))
    assert (applied.proposal, applied.version) == (None, 2)


async def test_only_an_admin_changes_the_setting_and_the_operator_log_has_it(
    context: OperationContext,
) -> None:
    off = orgs.SetSecondPerson("acme", needed=False)
    with pytest.raises(Forbidden):
        await orgs.set_second_person.perform(context, await actor(context, "ada"), off)
    facts = await perform(orgs.set_second_person, context, await actor(context, "ann", "admin"), off)
    assert facts.second_person is False
    added = await orgs.add.perform(context, HOST, orgs.AddOrg("third"))
    shown = await orgs.show.perform(context, HOST, orgs.OrgReference(added.org_id))
    assert shown.second_person is False, "off by default"


async def test_the_store_lets_nothing_pass_that_was_not_proposed(either_store: SqlStore) -> None:
    await either_store.add_org(Org("o", "acme", "base", 1))
    rules = Ruleset("r", "o", "hr", 1, 1, 1)
    await either_store.apply_ruleset(rules, "version: 1\n", None, None)
    await either_store.apply_ruleset(rules, "version: 2\n", None, None)
    assert (await either_store.set_approvals("o", 1)).approvals == 1
    with pytest.raises(Conflict, match="second person"):
        await either_store.apply_ruleset(rules, "version: 3\n", None, None)
    with pytest.raises(Conflict, match="second person"):
        await either_store.roll_back("r", 1, None, None)
    proposal = Proposal("p", "o", "publish", "r", "hr", 2, "version: 3\n", None, None, None, "n", "ada", 5)
    await either_store.add_proposal(proposal)
    assert await either_store.proposal("p") == proposal
    listed = await either_store.proposals(["o"], is_open=True, limit=10)
    assert [(each.proposal_id, each.yaml) for each in listed] == [("p", None)]
    decision = Approval("p", "bob", 9, None)
    with pytest.raises(Conflict, match="expected"):
        await either_store.apply_ruleset(rules, "version: 3\n", None, 1, approval=decision)
    assert await either_store.open_proposals() == [("o", "ada")], "what failed has decided nothing"
    await either_store.apply_ruleset(rules, "version: 3\n", None, 2, approval=decision)
    found = await either_store.proposal("p")
    assert found is not None
    assert (found.state, found.decided_by, found.version) == ("approved", "bob", 3)
    with pytest.raises(Conflict, match="decided already"):
        await either_store.apply_ruleset(rules, "version: 4\n", None, None, approval=decision)
    with pytest.raises(Conflict, match="decided already"):
        await either_store.reject_proposal(decision)


async def test_a_shadow_is_promoted_only_on_the_base_that_was_proposed(either_store: SqlStore) -> None:
    await either_store.add_org(Org("o", "acme", "base", 1))
    for each in ("one", "two", "three"):
        await either_store.apply_ruleset(Ruleset(each, "o", each, 1, 1, 1), "version: 1\n", None, None)
    await either_store.add_app(App("a", "o", "payroll", "c", "one", "one", True, 1, ()))
    await either_store.set_shadow("a", "three")
    await either_store.set_approvals("o", 1)
    proposal = Proposal("p", "o", "promote", "three", "three", None, None, None, "a", "one", None, "ada", 5)
    await either_store.add_proposal(proposal)
    await either_store.set_approvals("o", 0)
    await either_store.bind_app("a", "two")
    with pytest.raises(Conflict, match="now uses the ruleset two"):
        await either_store.promote_shadow(
            "a", "three", Approval("p", "bob", 9, None), expected_ruleset_id="one"
        )
    assert await either_store.open_proposals() == [("o", "ada")], "what failed has decided nothing"
