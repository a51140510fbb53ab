"""Tests of dry runs of a draft: the input is text or a stored ruleset, and the output is facts."""

from __future__ import annotations

import json

import pytest

from controlplane.operations.actor import Actor, local_actor
from controlplane.operations.context import OperationContext
from controlplane.operations.dry_runs import (
    AnswerSample,
    CheckRuleset,
    DiffRulesets,
    ExplainRequest,
    RunCases,
    Source,
    check,
    diff,
    explain,
    test,
)
from controlplane.operations.given_rules import stored_yaml
from controlplane.operations.operation import InvalidRequest
from controlplane.operations.rulesets import ApplyRuleset, apply
from controlplane.store.interface import NotFound
from tests.controlplane.plane import Plane, context_of

OPERATOR = local_actor("ada")
RULES = """version: 1
name: hr
rules:
  - id: small
    match: {methods: [GET], path: [/v1.0/users]}
    conditions: [{query: $top, at_most: 100}]
    verdict: allow
  - id: hide
    match: {path: ["/v1.0/users/{id}"]}
    verdict: filter
    transforms: {strip_properties: [mobilePhone]}
"""


@pytest.fixture
def context(plane: Plane) -> OperationContext:
    return context_of(plane)


async def test_a_sound_ruleset_is_told_with_what_it_overlooked(context: OperationContext) -> None:
    report = await check.perform(context, OPERATOR, CheckRuleset(yaml=RULES))
    assert (report.name, report.rules, report.problems) == ("hr", 2, ())
    assert [(one.line, one.where) for one in report.warnings] == [(11, "rules[1].transforms")]


async def test_a_bad_one_is_no_failure_but_every_error_by_its_place(context: OperationContext) -> None:
    report = await check.perform(
        context, OPERATOR, CheckRuleset(yaml=RULES.replace("verdict: allow", "x: 1"))
    )
    assert (report.name, report.rules, report.warnings) == (None, None, ())
    assert {one.line for one in report.problems} == {4, 7}


@pytest.mark.parametrize(
    "name", [" padded ", "..", "018f2f3e-0000-7000-8000-000000000000", "a\u0007b", "a\u202eb"]
)
async def test_a_name_that_no_ruleset_can_have_is_a_mistake_of_the_text(
    plane: Plane, context: OperationContext, name: str
) -> None:
    await plane.org("acme")
    text = f"version: 1\nname: {json.dumps(name)}\nrules: []\n"
    report = await check.perform(context, OPERATOR, CheckRuleset(yaml=text))
    assert [(one.line, one.column, one.where) for one in report.problems] == [(2, 7, "name")]
    with pytest.raises(InvalidRequest, match=r"rules\.yaml:2:7: name: (a name |`a.+ invisible character)"):
        await apply.perform(context, OPERATOR, ApplyRuleset("acme", text, label="rules.yaml"))


async def test_a_draft_is_explained_with_a_response(context: OperationContext) -> None:
    asked = ExplainRequest(
        source=Source(yaml=RULES),
        target="/v1.0/users/ada",
        response=AnswerSample(body='{"id": 1, "mobilePhone": 2}'),
    )
    report = await explain.perform(context, OPERATOR, asked)
    assert (report.verdict, report.rule_id, report.transforms) == ("filter", "hide", ("strip:mobilePhone",))
    assert report.body == '{"id": 1}'
    assert [rule.outcome for rule in report.readings[0].rules] == ["unmatched", "decides"]


async def test_what_is_no_address_is_refused_not_taken_for_an_unknown_one(context: OperationContext) -> None:
    asked = ExplainRequest(source=Source(yaml=RULES), target="/v1.0/users/ada", ip="10.2.2.300")
    with pytest.raises(InvalidRequest, match=r"10\.2\.2\.300 is not an IPv4 or IPv6 address"):
        await explain.perform(context, OPERATOR, asked)


async def test_a_stored_version_is_explained_compared_and_tried_on_cases(
    plane: Plane, context: OperationContext
) -> None:
    await plane.org("acme")
    await plane.ruleset("acme", "hr", RULES)
    await plane.ruleset("acme", "hr", RULES.replace("at_most: 100", "at_most: 50"))
    verdicts = {}
    for name in ("hr", "hr@1"):
        asked = ExplainRequest(source=Source(ruleset=name), target="/v1.0/users?$top=80")
        verdicts[name] = (await explain.perform(context, OPERATOR, asked)).verdict
    assert verdicts == {"hr": "block", "hr@1": "allow"}
    compared = await diff.perform(
        context, OPERATOR, DiffRulesets(old=Source(ruleset="hr@1"), new=Source(ruleset="hr"), org="acme")
    )
    assert compared.different
    assert [(rule.id, rule.keys) for rule in compared.changed] == [("small", ("conditions",))]
    cases = "cases:\n  - {request: GET /v1.0/users?$top=80, expect: {verdict: allow}}\n"
    tried = await test.perform(context, OPERATOR, RunCases(source=Source(ruleset="hr"), cases=cases))
    assert (tried.cases, tried.failed_cases, tried.undecided_rules) == (1, 1, ("small", "hide"))
    assert tried.failures[0].line == 2


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (Source(), "give a ruleset either as its text or by its name"),
        (
            Source(yaml=RULES, ruleset="hr"),
            "give a ruleset either as its text or by its name",
        ),
        (Source(yaml="rules: []", label="hr.yaml"), "hr.yaml:1:1: name: "),
    ],
)
async def test_what_is_no_ruleset_is_told_by_place(
    context: OperationContext, source: Source, said: str
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        await explain.perform(context, OPERATOR, ExplainRequest(source=source, target="/"))
    assert refused.value.problems[0].startswith(said)


async def test_a_long_label_is_told_by_its_end(context: OperationContext) -> None:
    source = Source(yaml="rules: []", label="very/" * 1000 + "hr.yaml")
    with pytest.raises(InvalidRequest) as refused:
        await explain.perform(context, OPERATOR, ExplainRequest(source=source, target="/"))
    for problem in refused.value.problems:
        label = problem.partition(":")[0]
        assert label.endswith("very/hr.yaml")
        assert len(label) == 200


@pytest.mark.parametrize(
    "asked",
    [
        ExplainRequest(source=Source(yaml=RULES), target="/", time="noon"),
        ExplainRequest(source=Source(yaml=RULES), target="/", headers=("no colon",)),
    ],
)
async def test_what_can_t_be_asked_is_told(context: OperationContext, asked: ExplainRequest) -> None:
    with pytest.raises(InvalidRequest):
        await explain.perform(context, OPERATOR, asked)


async def test_a_foreign_organisation_s_ruleset_is_one_that_never_was(
    plane: Plane, context: OperationContext
) -> None:
    own, foreign = await plane.org("acme"), await plane.org("globex")
    await plane.ruleset("globex", "hr", RULES)
    viewer = Actor("viewer", {own: "viewer"})
    for org in (None, "globex", foreign):
        asked = ExplainRequest(source=Source(ruleset="hr"), target="/", org=org)
        with pytest.raises(NotFound):
            await explain.perform(context, viewer, asked)
    await plane.ruleset("acme", "hr", RULES)
    asked = ExplainRequest(source=Source(ruleset="hr"), target="/v1.0/users/ada")
    assert (await explain.perform(context, viewer, asked)).verdict == "filter"
    with pytest.raises(NotFound, match="ruleset hr has no version 2"):
        await explain.perform(
            context, viewer, ExplainRequest(source=Source(ruleset="hr@2"), target="/", org="acme")
        )


async def test_a_ruleset_whose_name_reads_like_another_s_version_is_itself(
    plane: Plane, context: OperationContext
) -> None:
    await plane.org("acme")
    for name, verdict in (("hr", "block"), ("hr", "allow"), ("hr@1", "log_only")):
        text = f"version: 1\nname: {name}\nrules: [{{id: a, match: {{path: [/**]}}, verdict: {verdict}}}]\n"
        await plane.inventory.apply_ruleset("acme", name, 1, text)

    async def text_of(reference: str) -> str:
        return await stored_yaml(context, OPERATOR, reference, "acme")

    assert "verdict: log_only" in await text_of("hr@1")
    assert "verdict: log_only" in await text_of("hr@1@1")
    assert "verdict: allow" in await text_of("hr@2")
