"""Tests of the list of requests that bypass a ruleset's rules, in the admin API and in the console."""

from __future__ import annotations

import pytest

from controlplane.operations.actor import local_actor
from controlplane.operations.context import OperationContext
from controlplane.operations.dry_runs import CheckRuleset, Source, check
from controlplane.operations.operation import InvalidRequest
from controlplane.operations.routes import FoundRoutes, ListRoutes, list_routes
from controlplane.store.interface import NotFound
from tests.controlplane.plane import Plane, context_of
from tests.controlplane.test_schemas import ONE
from tests.controlplane.visitor import visiting
from tests.pure.model_schema import SMALL

OPERATOR = local_actor("ada")
RULES = """version: 1
name: careful
default: allow
rules:
  - id: no-mail
    match: {path: ["/v1.0/users/{id}/messages/**"]}
    verdict: block
"""
ABOUT_THINGS = RULES.replace('path: ["/v1.0/users/{id}/messages/**"]', "resource: [message]")


@pytest.fixture
def context(plane: Plane) -> OperationContext:
    return context_of(plane)


async def found(context: OperationContext, yaml: str = RULES, **asked: object) -> FoundRoutes:
    return await list_routes.perform(
        context,
        OPERATOR,
        ListRoutes(source=Source(yaml=yaml, label="rules"), **asked),  # type: ignore[arg-type]
    )


async def test_a_schema_comes_with_the_request(context: OperationContext) -> None:
    report = await found(context, schema=SMALL.decode())
    (rule,) = report.rules
    assert report.schema == ONE.digest
    assert (rule.rule, rule.line, rule.things) == ("no-mail", 5, ("message",))
    assert rule.closed + len(rule.open) + rule.more_open == rule.routes
    assert rule.closed_by == "match: {resource: [message]}"


async def test_a_schema_that_cannot_be_read_is_refused_with_its_line(context: OperationContext) -> None:
    with pytest.raises(InvalidRequest, match=r"schema: line 1: .* malformed"):
        await found(context, schema="<Edmx")


async def test_the_schema_of_the_organisation_counts_without_another(
    plane: Plane, context: OperationContext
) -> None:
    org = await plane.org("acme")
    assert (await found(context, org="acme")).schema is None
    await plane.store.add_schema([org], ONE)
    report = await found(context, ABOUT_THINGS, org="acme")
    assert report.schema == ONE.digest
    assert report.rules[0].closed_by == ""
    with pytest.raises(NotFound):
        await found(context, org="globex")


async def test_rules_about_things_need_a_schema(context: OperationContext) -> None:
    with pytest.raises(InvalidRequest, match=r"schema: is missing; rules about types and properties need"):
        await found(context, ABOUT_THINGS)
    with pytest.raises(
        InvalidRequest, match=r"rules\[0\].match.resource\[0\]: the schema has no type `mesage`"
    ):
        await found(context, ABOUT_THINGS.replace("message", "mesage"), schema=SMALL.decode())


async def test_few_routes_come_unless_all_are_asked_for(context: OperationContext) -> None:
    few = (await found(context, schema=SMALL.decode())).rules[0]
    every = (await found(context, schema=SMALL.decode(), all=True)).rules[0]
    assert len(few.open) == 20
    assert few.more_open == len(every.open) - 20
    assert every.more_open == 0
    assert len({each.kind for each in few.open}) == len({each.kind for each in every.open})


async def test_the_editor_lists_open_routes_with_an_example_and_the_match_that_closes_them(
    plane: Plane,
) -> None:
    org = await plane.org("acme")
    async with visiting(plane) as visitor:
        draft = {"yaml": RULES, "into": "acme", "do": "routes", "live": "yes"}
        seen = await visitor.post("/rulesets/new", draft)
        assert "The organisation has no schema of the upstream" in seen.text
        assert "<code>GET /v1.0/me/messages</code>" in seen.text
        await plane.store.add_schema([org], ONE)
        seen = await visitor.post("/rulesets/new", draft)
        assert "no schema" not in seen.text
        assert "<code>GET /v1.0/me/mailFolders/id1/messages</code>" in seen.text
        assert (
            "To cover all routes that bypass this rule, give the rule this match: <code>match:"
            " {resource: [message]}</code>" in seen.text
        )
        seen = await visitor.post("/rulesets/new", {**draft, "yaml": "rules: ["})
        assert "rules:2:1: document: the text is not YAML" in seen.text


async def test_a_check_for_an_organisation_warns_by_its_schema(
    plane: Plane, context: OperationContext
) -> None:
    org = await plane.org("acme")
    without = (await check.perform(context, OPERATOR, CheckRuleset(yaml=RULES, org="acme"))).warnings
    assert without[0].message.endswith(
        "only routes that can be derived from the paths in the rules were tried"
    )
    await plane.store.add_schema([org], ONE)
    (warning,) = (await check.perform(context, OPERATOR, CheckRuleset(yaml=RULES, org="acme"))).warnings
    assert warning.message.endswith("`match: {resource: [message]}` closes them")
    assert warning.line == 6
