"""Tests of the advice about a ruleset that is valid but has a gap."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.workshop.advice import _never_reached, ruleset_advice
from controlplane.workshop.explain import Explainer, SampleRequest
from proxy.policy.ruleset import Ruleset
from proxy.policy.ruleset_yaml import parse_ruleset
from proxy.policy.yaml_document import MAX_PROBLEMS
from tests.pure.test_explain import rulesets
from tests.pure.test_meaning import RESOURCES, Segment, plain

CONF = Path(__file__).parents[2] / "conf"
FILES = [*CONF.glob("demo/*.yaml"), *CONF.glob("rulesets/*.yaml")]
SAMPLES = [file for file in FILES if not file.name.endswith(".test.yaml")]
RULES = """\
version: 1
name: test
rules:
  - id: hide
    match: {{path: [/v1.0/users]{methods}}}
    verdict: {verdict}
{more}"""
STRIP = "    transforms: {strip_properties: [mobilePhone]}\n"
ALLOW = "    transforms: {allow_properties: [id]}\n"


def advice(more: str, verdict: str = "filter", methods: str = "") -> list[tuple[int, int, str]]:
    text = RULES.format(more=more, verdict=verdict, methods=methods)
    return [(each.line, each.column, each.where) for each in ruleset_advice(text, parse_ruleset(text))]


@pytest.mark.parametrize("transforms", [STRIP, ALLOW, STRIP + "    when: response\n"])
@pytest.mark.parametrize("methods", ["", ", methods: [GET]", ", methods: [post, get]", ", methods: [HEAD]"])
def test_a_filter_on_reads_that_is_silent_about_queries_is_named(transforms: str, methods: str) -> None:
    assert advice(transforms, methods=methods) == [(7, 17, "rules[0].transforms")]


@pytest.mark.parametrize("choice", ["true", "false"])
def test_a_filter_that_has_chosen_is_not(choice: str) -> None:
    assert advice(f"{STRIP}    guard_queries: {choice}\n") == []


@pytest.mark.parametrize(
    ("path", "named"),
    [
        ("value.mobilePhone", True),
        ("Value.a.b", True),
        ("@odata.nextLink", True),
        ("value", False),
        ("a.value", False),
    ],
)
def test_a_property_path_that_leads_nowhere_is_named(path: str, named: bool) -> None:
    for kind in ("strip", "allow"):
        more = f"    transforms: {{{kind}_properties: [id, '{path}']}}\n    guard_queries: false\n"
        assert advice(more) == ([(7, 41, f"rules[0].transforms.{kind}_properties[1]")] if named else [])


def test_neither_is_what_hides_nothing_from_a_query() -> None:
    assert advice("", verdict="allow") == []
    assert advice(STRIP, methods=", methods: [POST, PATCH]") == []


@pytest.mark.parametrize(
    ("first", "second", "default", "warned"),
    [
        ("/users/{id}", "/v1.0/groups", "block", ["rules[0].match.path[0]"]),
        ("/beta/groups", "/users/{id}/**", "block", ["rules[1].match.path[0]"]),
        ("/users", "/groups", "allow", ["rules[0].match.path[0]"]),
        ("/users", "/groups", "block", []),  # an upstream without versions
        ("/v1.0/users", "/*/groups", "allow", []),
        ("/**", "/v2.0/groups", "allow", []),
    ],
)
def test_a_path_without_its_version_is_named(
    first: str, second: str, default: str, warned: list[str]
) -> None:
    text = f"version: 1\nname: test\ndefault: {default}\nrules:\n" + "".join(
        f'  - {{id: r{at}, match: {{path: ["{path}"], methods: [{method}]}}, verdict: block}}\n'
        for at, (path, method) in enumerate(((first, "POST"), (second, "PUT")))
    )
    found = ruleset_advice(text, parse_ruleset(text))
    assert [each.where for each in found] == warned
    assert all("/v1.0/" in each.message for each in found)


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: path.stem)
def test_the_samples_have_overlooked_nothing(sample: Path) -> None:
    text = sample.read_text("utf-8")
    assert ruleset_advice(text, parse_ruleset(text)) == ()


def order_advice(rules: str) -> list[tuple[str, str]]:
    indented = "\n".join("  " + line for line in rules.strip("\n").splitlines())
    text = f"version: 1\nname: test\nrules:\n{indented}\n"
    return [(each.where, each.message) for each in ruleset_advice(text, parse_ruleset(text))]


NEVER = "this rule is never reached: its requests are decided by {}"
NEVER_PATH = "this path is never reached: its requests are decided by {}"


@pytest.mark.parametrize(
    "later",
    [
        "match: {path: [/v1.0/users]}, verdict: block",
        "match: {path: ['/V1.0/Users/{id}/messages', '/v1.0/users/**']}, verdict: log_only",
        "match: {methods: [GET], path: [/v1.0/users/ada]}, ip: {in: [10.0.0.0/8]}, verdict: block",
    ],
)
def test_a_rule_behind_one_that_decides_all_of_it_is_named(later: str) -> None:
    first = "- {id: all, match: {path: [/v1.0/users/**]}, verdict: allow}\n"
    assert order_advice(f"{first}- {{id: late, {later}}}") == [("rules[1].id", NEVER.format("`all`"))]


@pytest.mark.parametrize(
    "first",
    [
        "match: {path: [/v1.0/users/**]}, verdict: log_only",
        "match: {path: [/v1.0/users/**]}, ip: {in: [10.0.0.0/8]}, verdict: allow",
        "match: {path: [/v1.0/users/**]}, time: {days: [mon]}, verdict: allow",
        "match: {path: [/v1.0/users/**]}, conditions: [{query: x, exists: true}], verdict: allow",
        "match: {methods: [GET], path: [/v1.0/users/**]}, verdict: allow",
        "match: {path: ['/v1.0/users/{id}']}, verdict: allow",
        "match: {path: [/v1.0/users/**]}, when: response, verdict: block",
        "match: {path: [/beta/users/**]}, verdict: allow",
    ],
)
def test_a_rule_behind_one_that_leaves_something_is_not(first: str) -> None:
    late = "- {id: late, match: {path: [/v1.0/users, '/v1.0/users/{id}/**']}, verdict: block}"
    assert order_advice(f"- {{id: first, {first}}}\n{late}") == []


def test_several_rules_may_take_all_of_one_and_one_a_path_of_it() -> None:
    assert order_advice("""
- {id: read, match: {methods: [GET], path: [/a]}, verdict: allow}
- {id: write, match: {methods: [POST], path: [/a]}, verdict: block}
- {id: both, match: {methods: [HEAD, POST], path: [/a]}, verdict: block}
- {id: more, match: {methods: [GET, PUT], path: [/a]}, verdict: block}
- {id: partly, match: {methods: [GET], path: [/b, /a]}, verdict: block}
""") == [
        ("rules[2].id", NEVER.format("`read` and `write`")),
        ("rules[4].match.path[1]", NEVER_PATH.format("`read`")),
    ]


def test_a_shared_path_that_only_order_settles_is_named() -> None:
    assert order_advice("""
- {id: mail, match: {path: ["/users/*/messages"]}, verdict: block}
- {id: ada, match: {path: ["/users/ada/**"]}, verdict: allow}
""") == [
        (
            "rules[1].match",
            (
                "`mail` and this rule both match /users/ada/messages: only their order makes the verdict "
                "block instead of allow"
            ),
        )
    ]


@pytest.mark.parametrize(
    "second",
    [
        "match: {path: ['/users/ada/**']}, verdict: block",
        "match: {path: ['/users/**']}, verdict: allow",
        "match: {methods: [POST], path: ['/users/ada/**']}, verdict: allow",
        "match: {path: ['/users/ada/**']}, ip: {in: [10.0.0.0/8]}, verdict: allow",
        "match: {path: ['/users/ada/**']}, when: response, verdict: block",
        "match: {path: ['/users/ada/*/x']}, verdict: allow",
    ],
)
def test_an_exception_before_a_general_rule_and_the_same_verdict_are_not(second: str) -> None:
    first = "- {id: mail, match: {methods: [GET], path: ['/users/*/messages']}, verdict: block}\n"
    assert order_advice(f"{first}- {{id: second, {second}}}") == []


@given(rulesets(), st.sampled_from(RESOURCES), st.sampled_from(["GET", "HEAD", "POST", "DELETE"]))
def test_what_is_said_to_be_never_reached_is_never_tried(
    ruleset: Ruleset, resource: tuple[Segment, ...], method: str
) -> None:
    never = {where[1] for where, message in _never_reached(ruleset) if len(where) == 3}
    report = Explainer(ruleset).explain(SampleRequest(method, plain(resource)))
    tried = {
        attempt.rule_id
        for account in report.accounts
        for attempt in account.attempts
        if attempt.outcome != "unmatched" and attempt.decision.reason != "hiddenProperty"
    }
    assert not {rule.id for at, rule in enumerate(ruleset.rules) if at in never} & tried


def test_a_ruleset_of_any_size_is_looked_at_soon() -> None:
    rules = "\n".join(
        f"- {{id: r{n}, match: {{path: ['/v1.0/x{n}/**', '/v1.0/{{any}}/y{n}']}}, verdict: allow}}"
        for n in range(5_000)
    )
    assert order_advice(rules) == []


@pytest.mark.parametrize(("method", "hint"), [("DELET", "; did you mean DELETE?"), ("PROPFIND", "")])
def test_a_method_that_graph_does_not_have_is_named(method: str, hint: str) -> None:
    text = RULES.format(more="", verdict="block", methods=f", methods: [get, {method}]")
    (report,) = ruleset_advice(text, parse_ruleset(text))
    message = f"Microsoft Graph has no such method{hint}"
    assert (report.where, report.message) == ("rules[0].match.methods[1]", message)


def test_of_very_much_advice_the_first_is_told_and_that_there_is_more() -> None:
    paths = ", ".join(f"value.{'x' * 2000}{number}" for number in range(300))
    text = RULES.format(
        more=f"    transforms: {{strip_properties: [{paths}]}}\n", verdict="filter", methods=""
    )
    report = ruleset_advice(text, parse_ruleset(text))
    assert len(report) == MAX_PROBLEMS + 1
    assert report[-1].message.startswith("there are more problems")
    assert all(len(one.message) <= 1000 for one in report)
