"""Tests of the page that shows the schemas of a ruleset version."""

from __future__ import annotations

from html import unescape

from controlplane.operations import models, rulesets
from tests.controlplane.inventory import OPERATOR
from tests.controlplane.plane import Plane, context_of
from tests.controlplane.test_cli_models import RULES
from tests.controlplane.test_console_publishing import NEW, publish, review, reviewed
from tests.controlplane.test_schemas import ONE
from tests.controlplane.visitor import visiting
from tests.pure.model_schema import SMALL

SOURCE = "https://graph.test/v1.0/<$metadata>"


async def test_a_ruleset_page_names_the_schemas_of_its_version(plane: Plane) -> None:
    await plane.org("acme")
    await plane.ruleset("acme", "plain")
    context = context_of(plane)
    fetch = models.FetchModel("/v1.0", SMALL.decode(), "acme", SOURCE)
    await models.fetch.perform(context, OPERATOR, fetch)
    await rulesets.apply.perform(context, OPERATOR, rulesets.ApplyRuleset("acme", RULES))
    async with visiting(plane) as visitor:
        seen = await visitor.get("/rulesets/acme/hr")
        assert f'<strong>/v1.0</strong> <code title="{ONE.digest}">{ONE.digest[:12]}</code>' in seen.text
        assert f"from {SOURCE}" in unescape(seen.text)
        assert SOURCE not in seen.text
        assert "<h2>Schemas</h2>" not in (await visitor.get("/rulesets/acme/plain")).text


async def test_a_draft_that_needs_a_schema_is_not_published_without_one(plane: Plane) -> None:
    await plane.org("acme")
    draft = {"yaml": RULES, "into": "acme"}
    async with visiting(plane) as visitor:
        mark = reviewed(await review(visitor, NEW, **draft))
        seen = await publish(visitor, NEW, **draft, reviewed=mark)
        assert seen.status == 422
        assert (
            "organisation acme has no schema: store a schema with `model fetch URL"
            " --org acme`" in unescape(seen.text)
        )
    assert await plane.store.rulesets(None) == []
