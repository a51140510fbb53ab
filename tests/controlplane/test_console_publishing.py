"""Tests that publishing a draft activates exactly the text that was reviewed."""

from __future__ import annotations

import re
from html import unescape

from controlplane.operations import proposals
from controlplane.operations.actor import local_actor
from tests.controlplane.plane import RULESET, Plane, context_of
from tests.controlplane.visitor import Seen, Visitor, visiting

NEW = "/rulesets/new"


def text(name: str, verdict: str = "allow") -> str:
    return RULESET.format(name=name).replace("allow", verdict)


async def review(visitor: Visitor, path: str, **form: str) -> Seen:
    return await visitor.post(path, {"do": "review", **form})


async def publish(visitor: Visitor, path: str, **form: str) -> Seen:
    return await visitor.post(path, {"do": "publish", "note": "tidy up", **form})


def reviewed(seen: Seen) -> str:
    (found,) = re.findall('name="reviewed" value="([^"]*)"', seen.text)
    return str(found)


async def in_force(plane: Plane) -> set[tuple[str, str, int]]:
    orgs = {org.org_id: org.name for org in await plane.store.orgs()}
    return {(orgs[each.org_id], each.name, each.version) for each in await plane.store.rulesets(None)}


async def test_what_was_reviewed_is_published(plane: Plane) -> None:
    await plane.org("acme")
    async with visiting(plane) as visitor:
        draft = {"yaml": text("hr"), "into": "acme"}
        seen = await publish(visitor, NEW, **draft, reviewed=reviewed(await review(visitor, NEW, **draft)))
        assert (seen.status, seen.led_to) == (303, "/rulesets/acme/hr")
        # a browser sends these line ends
        draft = {"yaml": text("hr", "block").replace("\n", "\r\n"), "base": "1"}
        path = "/rulesets/acme/hr/edit"
        seen = await publish(visitor, path, **draft, reviewed=reviewed(await review(visitor, path, **draft)))
        assert seen.status == 303
    assert await in_force(plane) == {("acme", "hr", 2)}


async def test_another_text_name_or_organisation_than_was_reviewed_is_not_published(plane: Plane) -> None:
    for org in ("acme", "zeta"):
        await plane.org(org)
        await plane.ruleset(org, "hr", text("hr", "block"))
    before = await in_force(plane)
    draft = {"yaml": text("hr"), "into": "acme", "overwrite": "yes"}
    async with visiting(plane) as visitor:
        mark = reviewed(await review(visitor, NEW, **draft))
        for changed in ({"yaml": text("hr", "log_only")}, {"yaml": text("other")}, {"into": "zeta"}):
            seen = await publish(visitor, NEW, **{**draft, **changed}, reviewed=mark)
            assert seen.status == 422
            assert "Not published: the text was changed after the review" in seen.text
            assert reviewed(seen) != mark, "that is the review of what it is now"
        assert (await publish(visitor, NEW, **draft)).status == 422
        assert await in_force(plane) == before
        assert (await publish(visitor, NEW, **draft, reviewed=mark)).status == 303


async def test_a_version_that_came_since_the_review_is_told(plane: Plane) -> None:
    await plane.org("acme")
    await plane.ruleset("acme", "hr")
    async with visiting(plane) as visitor:
        path, draft = "/rulesets/acme/hr/edit", {"yaml": text("hr", "block"), "base": "1"}
        mark = reviewed(await review(visitor, path, **draft))
        await plane.ruleset("acme", "hr", text("hr", "log_only"))
        seen = await publish(visitor, path, **draft, reviewed=mark)
        assert seen.status == 422
        assert "version 2 became active after your review" in seen.text


async def test_what_a_draft_would_undo_can_be_looked_at(plane: Plane) -> None:
    await plane.org("acme")
    await plane.ruleset("acme", "hr")
    await plane.ruleset("acme", "hr", text("hr", "log_only"))
    async with visiting(plane) as visitor:
        for path, draft in ((NEW, {"into": "acme"}), ("/rulesets/acme/hr/edit", {"base": "1"})):
            seen = await review(visitor, path, yaml=text("hr", "block"), **draft)
            (notice,) = re.findall(r'<div class="notice bad" role="alert">.*?</div>', seen.text, re.DOTALL)
            (link,) = re.findall('href="([^"]*)"', notice)
            assert (await visitor.get(unescape(link))).status == 200


async def test_a_reason_is_asked_for_and_kept(plane: Plane) -> None:
    await plane.org("acme")
    async with visiting(plane) as visitor:
        draft = {"yaml": text("hr"), "into": "acme"}
        mark = reviewed(await review(visitor, NEW, **draft))
        for missing in ("", "  "):
            seen = await publish(visitor, NEW, **draft, reviewed=mark, note=missing)
            assert (seen.status, "Not published: enter a reason" in seen.text) == (422, True)
        assert await in_force(plane) == set()
        assert (await publish(visitor, NEW, **draft, reviewed=mark, note="new system")).status == 303
        await plane.ruleset("acme", "hr", text("hr", "block"))
        back = {"to": "1", "expected": "2"}
        seen = await visitor.post("/rulesets/acme/hr/rollback", back)
        assert (seen.status, "Enter a reason" in seen.text) == (422, True)
        seen = await visitor.post("/rulesets/acme/hr/rollback", {**back, "note": "too strict"})
        assert seen.status == 303
        page = (await visitor.get("/rulesets/acme/hr")).text
        assert "new system" in page
        assert "too strict" in page
        assert "active at" not in page  # without a proxy no activation is awaited
        await plane.proxy("edge-1", "acme")
        page = (await visitor.get("/rulesets/acme/hr")).text
        assert page.count("active at 0 of 1") == 2  # shown next to the text and in the history


async def test_an_organisation_that_needs_a_second_person_gets_a_proposal(plane: Plane) -> None:
    await plane.org("acme")
    await plane.ruleset("acme", "hr")
    await plane.inventory.add_app("payroll", "acme", "hr")
    host, context = local_actor("root"), context_of(plane)
    async with visiting(plane) as visitor:
        (org,) = await plane.store.orgs()
        await visitor.post(f"/orgs/{org.org_id}/second-person", {"needed": "yes"})
        path, draft = "/rulesets/acme/hr/edit", {"yaml": text("hr", "block"), "base": "1"}
        asked = await review(visitor, path, **draft)
        assert "Propose version 2" in asked.text
        proposed = (await publish(visitor, path, **draft, reviewed=reviewed(asked))).led_to or ""
        assert proposed.startswith("/proposals/")
        own = await visitor.get(proposed)
        assert "Withdraw the proposal" in own.text
        assert "Approve the change" not in own.text
        refused = await visitor.post(f"{proposed}/approve", {})
        assert (refused.status, "cannot approve it" in refused.text) == (403, True)
        assert await in_force(plane) == {("acme", "hr", 1)}
        identity = proposed.rpartition("/")[2]
        await proposals.approve.perform(context, host, proposals.ApproveProposal(identity))
        assert await in_force(plane) == {("acme", "hr", 2)}
        assert "Proposed by ada, approved by local:root" in (await visitor.get("/rulesets/acme/hr")).text

        back = {"to": "1", "expected": "2", "note": "too strict"}
        rolled = (await visitor.post("/rulesets/acme/hr/rollback", back)).led_to or ""
        seen = await visitor.post(f"{rolled}/reject", {"reason": "I was wrong"})
        assert (seen.status, seen.led_to) == (303, rolled)
        assert "I was wrong" in (await visitor.get(rolled)).text
