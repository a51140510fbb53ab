"""Tests of a ruleset's cases: the report has each difference from the expectation, with its position."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from controlplane.model.flat_form import encode
from controlplane.model.metadata import parse
from controlplane.workshop.cases import MAX_FAILURES, CasesRun, run_cases
from proxy.policy.resource_model import ResourceModel, digest_of
from proxy.policy.ruleset_yaml import InvalidRuleset, parse_ruleset
from proxy.policy.schemas import Schemas
from proxy.policy.yaml_document import MAX_PROBLEMS
from tests.fakes.graph import SCHEMA

CONF: Final = Path(__file__).parents[2] / "conf"
RULES: Final = """\
version: 1
name: test
rules:
  - {id: watch, match: {path: [/**]}, verdict: log_only}
  - {id: office, match: {path: [/a]}, ip: {in: [10.0.0.0/8]}, verdict: allow}
  - {id: open, match: {path: [/b]}, time: {days: [mon]}, verdict: allow}
  - {id: hide, match: {path: [/c]}, verdict: filter, transforms: {strip_properties: [x]}}
  - {id: refuse, match: {path: [/c]}, when: response, conditions: [{status: 404}], verdict: block}
"""


def run(cases: str) -> CasesRun:
    return run_cases(parse_ruleset(RULES), "cases:\n" + cases)


def failures(cases: str) -> list[tuple[int, str, str]]:
    return [(each.line, each.where, each.message) for each in run(cases).failures]


def refusals(text: str) -> list[tuple[int, str]]:
    with pytest.raises(InvalidRuleset) as refused:
        run_cases(parse_ruleset(RULES), text)
    return [(problem.line, problem.message) for problem in refused.value.problems]


def test_the_sample_s_cases_hold_and_leave_no_rule_undecided() -> None:
    ruleset = parse_ruleset((CONF / "rulesets/example.yaml").read_text("utf-8"))
    flat = encode(parse(SCHEMA))
    schemas = Schemas({("v1.0",): ResourceModel(flat, digest_of(flat))})
    ran = run_cases(ruleset, (CONF / "rulesets/example.test.yaml").read_text("utf-8"), schemas)
    assert (ran.failures, ran.undecided) == ((), ())
    assert ran.count > len(ruleset.rules)


def test_everything_that_differs_is_told_at_its_line() -> None:
    assert failures("""\
  - name: nobody gets in
    request: GET /x
    expect:
      verdict: allow
      rule: office
      reason: rule
      logged: [office]
  - request: GET /c
    answer: {body: {x: 1, y: 2}}
    expect: {verdict: filter, body: {x: 1}}
""") == [
        (5, "cases[0].expect.verdict", "nobody gets in: the verdict is block (by default), not allow"),
        (6, "cases[0].expect.rule", "nobody gets in: the rule is default, not office"),
        (7, "cases[0].expect.reason", "nobody gets in: the reason is default, not rule"),
        (8, "cases[0].expect.logged", "nobody gets in: logged by watch, not office"),
        (11, "cases[1].expect.body", 'the application gets this body: {"y": 2}'),
    ]
    assert run("  - {request: GET /x, expect: {verdict: allow, rule: x}}").failed_cases == 1


@pytest.mark.parametrize(("target", "missing"), [("/a", "ip"), ("/b", "time")])
def test_a_verdict_that_hangs_on_what_a_case_leaves_open_proves_nothing(target: str, missing: str) -> None:
    ((line, where, message),) = failures(f"  - {{request: GET {target}, expect: {{verdict: block}}}}")
    assert (line, where) == (2, "cases[0]")
    assert f"`{missing}`" in message


def test_address_time_and_response_are_the_case_s() -> None:
    assert not failures("""\
  - {request: GET /a, ip: 10.0.0.1, expect: {verdict: allow, rule: office}}
  - {request: GET /a, ip: 192.0.2.1, expect: {verdict: block, rule: default}}
  - {request: GET /b, time: "2026-03-02T00:30:00+02:00", expect: {verdict: block}}
  - {request: GET /b, time: "2026-03-02T00:30:00Z", expect: {verdict: allow}}
  - {request: GET /c, answer: {status: 404}, expect: {verdict: block, reason: responseRule}}
  - {request: GET /c, answer: {body: "[1]"}, expect: {verdict: refused, reason: filterFailed}}
  - {request: GET /%00, expect: {verdict: refused, reason: malformedTarget}}
""")


def test_a_body_is_compared_as_json_and_one_is_not_true() -> None:
    case = (
        "  - {{request: GET /c, answer: {{body: {{y: 1, z: 2.5}}}}, expect: {{verdict: filter, body: {}}}}}"
    )
    assert not failures(case.format("{z: 2.5, y: 1}"))
    assert failures(case.format("{z: 2.5, y: true}"))
    assert failures(case.format("{z: 2.5}"))


def test_a_rule_is_covered_by_a_case_that_holds() -> None:
    held = "  - {request: GET /a, ip: 10.0.0.1, expect: {verdict: allow}}\n"
    assert run(held).undecided == ("open", "hide", "refuse")
    assert run(held.replace("allow", "block")).undecided == ("watch", "office", "open", "hide", "refuse")
    # A rule that a response rule overrides took part as well.
    responded = "  - {request: GET /c, answer: {status: 404}, expect: {verdict: block}}\n"
    assert run(held + responded).undecided == ("open",)


def test_what_is_no_case_is_refused_with_its_line() -> None:
    assert refusals("""\
cases:
  - request: /a
    expect: {verdict: allow}
  - request: GET /a
    expect: {verdict: maybe}
    tim: noon
  - {request: GET /a, time: noon, expect: {verdict: allow, rul: x}}
  - {request: GET /a}
  - {request: GET /a, ip: 10.2.2.300, expect: {verdict: block}}
""") == [
        (2, "the request must be a method and a target, like GET /v1.0/users?$top=5"),
        (5, "'maybe' is not one of 'allow', 'filter', 'block', 'log_only' or 'refused'"),
        (6, "unknown key `tim`, did you mean `time`?"),
        (7, "the time must have a date and a UTC offset, like 2026-03-02T09:00:00+01:00"),
        (7, "unknown key `rul`, did you mean `rule`?"),
        (8, "`expect` is missing"),
        (9, "the address must be an IPv4 or IPv6 address, like 203.0.113.7"),
    ]
    assert refusals("cases:\n  - {request: GET /a, expect: {verdict: allow, body: x}}\n") == [
        (2, "a body is expected, but the case has no response")
    ]
    assert refusals("cases: []\n") == [(1, "the list is empty")]
    assert refusals("- [")[0][1].startswith("the text is not YAML")


@pytest.mark.parametrize(
    "time", ["9999-12-31T23:59:59Z", "0001-01-01T00:00:00+14:00", "2026-03-02", "2026-03-02T09:00:00"]
)
def test_a_time_is_one_that_every_zone_has(time: str) -> None:
    ((line, message),) = refusals(
        f'cases:\n  - {{request: GET /b, time: "{time}", expect: {{verdict: block}}}}\n'
    )
    assert line == 2
    assert message == "the time must have a date and a UTC offset, like 2026-03-02T09:00:00+01:00"


def test_of_very_many_failures_the_first_are_told_and_all_counted() -> None:
    ran = run("  - &c {request: GET /x, expect: {verdict: allow}}\n" + "  - *c\n" * MAX_FAILURES)
    assert (len(ran.failures), ran.failed_cases, ran.count) == (
        MAX_FAILURES,
        MAX_FAILURES + 1,
        MAX_FAILURES + 1,
    )


def test_a_failure_quotes_no_more_of_a_body_than_a_person_reads() -> None:
    body = "b" * 5000
    report = failures(f"""
  - request: GET /b
    time: 2026-03-02T09:00:00Z
    answer: {{body: {body}}}
    expect: {{verdict: allow, body: x}}
""")
    assert max(len(message) for _, _, message in report) == 1000


@pytest.mark.parametrize("headers", ["{a: [{}, {}, {}]}", "{ä: b}", "{a: {}}"])
def test_mistakes_in_very_many_cases_are_told_as_of_a_ruleset(headers: str) -> None:
    case = f"  - &c {{request: GET /x, headers: {headers}, expect: {{verdict: allow}}}}\n"
    report = refusals("cases:\n" + case + "  - *c\n" * 300)
    assert len(report) == MAX_PROBLEMS + 1
    assert report[-1][1].startswith("there are more problems")


def test_a_body_expected_of_no_response_is_told_as_often_and_no_more() -> None:
    case = "  - &c {request: GET /x, expect: {verdict: allow, body: x}}\n"
    assert len(refusals("cases:\n" + case + "  - *c\n" * 300)) == MAX_PROBLEMS + 1


def test_a_character_that_nobody_sees_makes_no_other_case() -> None:
    """The parser refuses an invisible character in a name or a target.

    The parser accepts an escape for an invisible character, such as `\\u200b`.
    """
    text = """cases:
  - {name: "a\u200b", request: "GET /\u200bc", expect: {verdict: block, rule: "hide\u200b"}}
  - {request: POST /c, body: {x: "\u200b"}, expect: {verdict: filter, reason: "\\u200b"}}
"""
    (first, target), (second, rule) = refusals(text)
    assert (first, second) == (2, 2)
    unseen = "the invisible character U+200B ZERO WIDTH SPACE: remove it"
    assert target.startswith(f"`GET /\\u200bc` holds {unseen}")
    assert rule.startswith("`hide\\u200b` holds the invisible character U+200B")
