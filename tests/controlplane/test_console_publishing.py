"""Publishing a draft: what was reviewed comes into force, and nothing else."""

from __future__ import annotations

import re
from html import unescape

from tests.controlplane.plane import RULESET, Plane
from tests.controlplane.visitor import Seen, Visitor, visiting

NEW = "/rulesets/new"


def text(name: str, verdict: str = "allow") -> str:
    return RULESET.format(name=name).replace("allow", verdict)


async def review(visitor: Visitor, path: str, **form: str) -> Seen:
    return await visitor.post(path, {"do": "review", **form})


async def publish(visitor: Visitor, path: str, **form: str) -> Seen:
    return await visitor.post(path, {"do": "publish", **form})


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
        draft = {"yaml": text("hr", "block").replace("\n", "\r\n"), "base": "1"}  # as a browser sends it
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
            assert "Not published: this is not what you reviewed" in seen.text
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
        assert "version 2 came into force since you reviewed this" in seen.text


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
