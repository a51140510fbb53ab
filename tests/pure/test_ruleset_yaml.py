"""Tests that a bad ruleset is refused completely, with every error by line and column."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from proxy.policy import yaml_document
from proxy.policy.compile import compile_ruleset
from proxy.policy.ruleset import Comparison, Condition, IpGate, TimeGate
from proxy.policy.ruleset_yaml import (
    InvalidRuleset,
    RulesetProblem,
    _Ruleset,
    parse_ruleset,
    read_shape,
    ruleset_json_schema,
)
from proxy.policy.transforms import Transforms
from proxy.policy.yaml_document import MAX_PROBLEMS

EXAMPLE = Path(__file__).parents[2] / "conf" / "rulesets" / "example.yaml"
HEAD = "version: 1\nname: x\nrules:\n"


def problems(text: str) -> tuple[RulesetProblem, ...]:
    with pytest.raises(InvalidRuleset) as refused:
        parse_ruleset(text)
    return refused.value.problems


def problem_of_rule(rule: str) -> RulesetProblem:
    """Check a ruleset that has only the given rule.

    Return the only problem of the ruleset, which is at line 4, column 5.
    """
    (problem,) = problems(f"{HEAD}  - {rule}\n")
    return problem


def test_the_example_uses_every_verdict_and_compiles() -> None:
    ruleset = parse_ruleset(EXAMPLE.read_text())
    assert {rule.verdict for rule in ruleset.rules} == {"allow", "filter", "block", "log_only"}
    assert compile_ruleset(ruleset).rule_count == len(ruleset.rules)


def test_the_contracts_own_rule() -> None:
    (rule,) = parse_ruleset(
        HEAD
        + """
  - id: office-hours-only
    description: …
    when: request
    match:
      methods: [get]
      path: ["/v1.0/users", "/v1.0/users/{id}", "/v1.0/users/{id}/messages/**"]
    conditions:
      - {param: id, in: [ada@contoso.com, alan@contoso.com]}
      - {query: $top, at_most: 100}
      - {header: ConsistencyLevel, equals: eventual}
    ip: {in: [10.0.0.0/8, "2001:db8::/32"]}
    time: {days: [mon, tue, wed, thu, fri], from: "08:00", to: 18:00, timezone: Europe/Oslo}
    verdict: filter
    transforms:
      strip_properties: [mobilePhone, manager.mail]
"""
    ).rules
    assert rule.match.methods == ("GET",)
    assert rule.conditions[0] == Condition(
        "param", "id", (Comparison("in", ("ada@contoso.com", "alan@contoso.com")),)
    )
    assert rule.ip == IpGate(("10.0.0.0/8", "2001:db8::/32"), None)
    assert rule.time == TimeGate(("mon", "tue", "wed", "thu", "fri"), "08:00", "18:00", "Europe/Oslo")
    assert rule.transforms == Transforms(("mobilePhone", "manager.mail"))


def test_the_default_is_block() -> None:
    assert parse_ruleset("version: 1\nname: x\nrules: []").default == "block"


def test_all_errors_are_told_at_once_in_document_order() -> None:
    found = problems("""version: 1
nam: x
default: deny
rules:
  - id: a
    match: {path: [v1.0, "/a/**/b"], methods: GET}
    verdit: allow
  - id: default
    match: {path: [/x]}
    conditions:
      - {param: id, in: x}
      - {query: $top, at_most: "100", matches: "(a"}
    verdict: block
    transforms: {strip_properties: [a]}
  - 7
""")
    assert [(one.line, one.column, one.where) for one in found] == [
        (1, 1, "name"),
        (2, 1, "nam"),
        (3, 10, "default"),
        (5, 5, "rules[0].verdict"),
        (6, 20, "rules[0].match.path[0]"),
        (6, 26, "rules[0].match.path[1]"),
        (6, 47, "rules[0].match.methods"),
        (7, 5, "rules[0].verdit"),
        (8, 9, "rules[1].id"),
        (11, 17, "rules[1].conditions[0].param"),
        (11, 25, "rules[1].conditions[0].in"),
        (12, 32, "rules[1].conditions[1].at_most"),
        (12, 48, "rules[1].conditions[1].matches"),
        (14, 17, "rules[1].transforms"),
        (15, 5, "rules[2]"),
    ]
    assert "did you mean `verdict`" in found[7].message
    assert "did you mean `name`" in found[1].message


@pytest.mark.parametrize(
    ("rule", "where", "words"),
    [
        ("{id: a, match: {path: [/x]}, verdict: filter}", "rules[0].verdict", "needs transforms"),
        (
            "{id: a, match: {path: [/x]}, verdict: filter, transforms: {}}",
            "rules[0].transforms",
            "needs transforms",
        ),
        (
            "{id: a, match: {path: [/x]}, verdict: allow, transforms: {strip_properties: [a]}}",
            "rules[0].transforms",
            "only a filter",
        ),
        (
            (
                "{id: a, match: {path: [/x]}, "
                "verdict: filter, transforms: {strip_properties: [a], allow_properties: [b]}}"
            ),
            "rules[0].transforms",
            "cannot be combined in one rule",
        ),
        (
            "{id: a, match: {path: [/x]}, verdict: filter, transforms: {strip_properties: [a/b]}}",
            "rules[0].transforms.strip_properties[0]",
            "without spaces and slashes",
        ),
        ("{id: a, match: {path: [/x/%2e]}, verdict: allow}", "rules[0].match.path[0]", "or dot segments"),
        ("{id: a, match: {path: [/x]}, verdict: alow}", "rules[0].verdict", "did you mean `allow`"),
        ("{id: Default, match: {path: [/x]}, verdict: allow}", "rules[0].id", "reserved"),
        (
            "{id: a, match: {path: [/x]}, verdict: allow, conditions: [{status: 200}]}",
            "rules[0].conditions[0].status",
            "when: response",
        ),
        (
            "{id: a, match: {path: [/x]}, verdict: allow, conditions: [{property: a, equals: 1}]}",
            "rules[0].conditions[0].property",
            "when: response",
        ),
        (
            "{id: a, match: {path: ['/x/{user}']}, verdict: allow, conditions: [{param: usr, equals: a}]}",
            "rules[0].conditions[0].param",
            "did you mean `user`",
        ),
        (
            "{id: a, match: {path: [/x]}, verdict: allow, conditions: [{query: a, header: b, equals: c}]}",
            "rules[0].conditions[0]",
            "query and header",
        ),
        (
            "{id: a, match: {path: [/x]}, verdict: allow, conditions: [{query: a}]}",
            "rules[0].conditions[0]",
            "operator",
        ),
        (
            "{id: a, match: {path: [/x]}, verdict: allow, conditions: [{query: a, in: b}]}",
            "rules[0].conditions[0].in",
            "a list",
        ),
        (
            "{id: a, match: {path: [/x]}, verdict: allow, conditions: [{query: a, at_least: '5'}]}",
            "rules[0].conditions[0].at_least",
            "a number",
        ),
        (
            "{id: a, match: {path: [/x]}, verdict: allow, conditions: [{query: a, exists: maybe}]}",
            "rules[0].conditions[0].exists",
            "true or false",
        ),
        (
            "{id: a, match: {path: [/x]}, verdict: allow, conditions: [{query: a, equals: [b]}]}",
            "rules[0].conditions[0].equals",
            "expected text, a number",
        ),
        (
            "{id: a, match: {path: [/x]}, verdict: allow, conditions: [{query: a, matches: '(?=a)'}]}",
            "rules[0].conditions[0].matches",
            "RE2",
        ),
        (
            (
                "{id: a, match: {path: [/x]}, "
                "verdict: allow, conditions: [{query: a, matches: '((a{100}){100}){10}'}]}"
            ),
            "rules[0].conditions[0].matches",
            "RE2",
        ),
        (
            "{id: a, match: {path: [/x]}, verdict: allow, ip: {in: [10.0.0.1/8]}}",
            "rules[0].ip.in[0]",
            "host bits",
        ),
        ("{id: a, match: {path: [/x]}, verdict: allow, ip: {}}", "rules[0].ip", "`in` or `not_in`"),
        (
            "{id: a, match: {path: [/x]}, verdict: allow, time: {days: [monday]}}",
            "rules[0].time.days[0]",
            "`mon`",
        ),
        (
            "{id: a, match: {path: [/x]}, verdict: allow, time: {from: 08:00}}",
            "rules[0].time",
            "must be given together",
        ),
        (
            "{id: a, match: {path: [/x]}, verdict: allow, time: {from: 8:00, to: 09:00}}",
            "rules[0].time.from",
            "HH:MM",
        ),
        (
            "{id: a, match: {path: [/x]}, verdict: allow, time: {from: 08:60, to: 09:00}}",
            "rules[0].time.from",
            "00:00",
        ),
        (
            "{id: a, match: {path: [/x]}, verdict: allow, time: {days: [mon], timezone: Europe/Olso}}",
            "rules[0].time.timezone",
            "time zone",
        ),
        (
            "{id: a, match: {path: [/x]}, verdict: allow, time: {days: [mon], timezone: ../../etc/passwd}}",
            "rules[0].time.timezone",
            "time zone",
        ),
        ("{id: a, match: {path: []}, verdict: allow}", "rules[0].match.path", "empty"),
        ("{id: a, match: {path: ['/a/{x}/{x}']}, verdict: allow}", "rules[0].match.path[0]", "twice"),
        ("{id: a, match: {path: ['/a/x{id}']}, verdict: allow}", "rules[0].match.path[0]", "whole segment"),
        ("{id: a, match: {path: ['/a//b']}, verdict: allow}", "rules[0].match.path[0]", "empty"),
        ("{id: a, match: {path: ['/a?b']}, verdict: allow}", "rules[0].match.path[0]", "query"),
        ("{id: a, match: {path: ['/a%ff']}, verdict: allow}", "rules[0].match.path[0]", "UTF-8"),
        (
            "{id: a, match: {path: [/a], methods: ['G T']}, verdict: allow}",
            "rules[0].match.methods[0]",
            "token",
        ),
        ("{id: a, match: {path: [/a]}, verdict: allow, id: b}", "rules[0].id", "twice"),
        ("{id: a, match: {path: [/a]}, verdict: !!python/name:os.system allow}", "rules[0].verdict", "tag"),
    ],
)
def test_each_mistake_is_named_where_it_stands(rule: str, where: str, words: str) -> None:
    problem = problem_of_rule(rule)
    assert (problem.line, problem.where) == (4, where)
    assert words in problem.message


def test_ids_are_unique() -> None:
    rule = "  - {id: a, match: {path: [/x]}, verdict: allow}\n"
    (problem,) = problems(HEAD + rule + rule)
    assert (problem.line, problem.column, problem.where) == (5, 10, "rules[1].id")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "empty"),
        ("a: [", "not YAML"),
        ("a: [/users/{id}]", "put text that has { or } in quotes"),
        ("\tx: 1", "not YAML"),
        ("a: 1\n---\nb: 2", "more than one document"),
        ("[" * 100, "nested deeper"),
        ("{a: " * 100, "nested deeper"),
        ("x: *nothing", "alias"),
        ("x: &a [*a]", "alias"),
        ("a: \x00", "not YAML"),
        ("? [a]\n: b", "a YAML key must be text"),
        ("5: x", "rules"),
        ("- a", "keys and values"),
        ("x" * (8 * 1024 * 1024 + 1), "longer than"),
        ("%YAML 9.9\n---\na: b", "not YAML"),
        ("a: \ud800", "not YAML"),
    ],
)
def test_what_is_no_document_is_refused(text: str, words: str) -> None:
    assert any(words in problem.message for problem in problems(text))


def test_an_alias_bomb_is_refused_before_it_unfolds() -> None:
    bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
    for level in range(1, 10):
        bomb += f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 10)}]\n"
    assert any("nodes" in problem.message for problem in problems(bomb))


def _many_rules(first: str, then: str) -> str:
    rule = "  - {{id: a, match: {{path: [/a]}}, verdict: allow, {}}}\n"
    return HEAD + rule.format(first) + rule.format(then) * 300


@pytest.mark.parametrize(
    "text",
    [
        "a: [" + "!x 1, " * 300 + "]",
        HEAD.replace("rules:\n", "rules: [" + "7, " * 300 + "]"),
        HEAD + f"  - {{id: a, match: {{path: [{'a, ' * 300}]}}, verdict: allow}}\n",
        _many_rules("conditions: &c [{}, {}]", "conditions: *c"),
        _many_rules("conditions: &c [{query: a, in: [[], []]}]", "conditions: *c"),
        _many_rules("a: &a 7", "a: *a"),
    ],
)
def test_of_very_many_mistakes_the_first_are_told_and_that_there_are_more(text: str) -> None:
    found = problems(text)
    assert len(found) == MAX_PROBLEMS + 1
    assert [one.message.startswith("there are more problems") for one in found] == [False] * MAX_PROBLEMS + [
        True
    ]


def test_no_more_mistakes_are_looked_for_than_are_told() -> None:
    text = _many_rules(f"conditions: &c [{{query: a, in: [{'[], ' * 1000}]}}]", "conditions: *c")
    with pytest.raises(ValidationError) as refused:
        read_shape(_Ruleset, yaml_document.parse(text).value)
    assert refused.value.error_count() < 10 * MAX_PROBLEMS


def test_a_key_among_very_many_unknown_ones_is_not_told_by_itself() -> None:
    (problem,) = problems("".join(f"a{number}: 1\n" for number in range(300)))
    assert problem.message == "found 300 keys, but the format defines only 4"


@pytest.mark.parametrize(
    "text",
    [
        f"{{{'k' * 1000}: " * 30 + "[!x 1]" + "}" * 30,
        f"a: !{'x' * 5000} 1",
        f"? {'k' * 5000}\n: 1\n",
        _many_rules("verdict: &v " + "x" * 5000, "verdict: *v").replace("verdict: allow, ", ""),
        _many_rules(f"verdict: &v [{'x, ' * 5000}]", "verdict: *v").replace("verdict: allow, ", ""),
        _many_rules("time: &t {days: [mon], timezone: " + "x" * 5000 + "}", "time: *t"),
        _many_rules("ip: &i {in: [" + "x" * 5000 + "]}", "ip: *i"),
        _many_rules("conditions: &c [{param: " + "x" * 5000 + ", equals: 1}]", "conditions: *c"),
        HEAD + f"  - {{id: a, match: {{path: [/{'%' * 5000}]}}, verdict: allow}}\n",
    ],
)
def test_what_a_mistake_quotes_is_cut(text: str) -> None:
    for problem in problems(text):
        assert len(problem.where) <= 200
        assert len(problem.message) <= 1100


def test_an_alias_may_spare_repetition() -> None:
    ruleset = parse_ruleset(
        HEAD
        + """
  - {id: a, match: {path: &paths [/a, /b]}, verdict: allow}
  - {id: b, match: {path: *paths}, verdict: block}
"""
    )
    assert ruleset.rules[1].match.path == ("/a", "/b")


def test_words_that_old_yaml_takes_for_truth_or_numbers_are_text() -> None:
    (rule,) = parse_ruleset(
        HEAD + "  - {id: no, match: {path: [/a]}, conditions: "
        "[{query: on, in: [no, yes, 18:30, 010, 1e3, 5, 1.5, true]}], verdict: allow}"
    ).rules
    assert rule.id == "no"
    assert rule.conditions[0].tests[0].operand == ("no", "yes", "18:30", "010", "1e3", 5, 1.5, True)


def test_the_schema_names_every_key() -> None:
    schema = ruleset_json_schema()
    definitions = schema["$defs"]
    assert isinstance(definitions, dict)
    assert set(definitions["_Rule"]["properties"]) == {
        "id",
        "description",
        "when",
        "match",
        "conditions",
        "ip",
        "time",
        "until",
        "body_only",
        "verdict",
        "transforms",
        "guard_queries",
    }
    assert "in" in definitions["_Condition"]["properties"]
    assert definitions["_Rule"]["additionalProperties"] is False


@given(st.text(max_size=200))
def test_any_text_is_a_ruleset_or_a_list_of_problems(text: str) -> None:
    assert problems(text)


@given(st.data())
def test_any_damage_to_a_ruleset_is_a_ruleset_or_a_list_of_problems(data: st.DataObject) -> None:
    text = EXAMPLE.read_text()
    at = data.draw(st.integers(0, len(text)))
    cut = data.draw(st.integers(0, 30))
    damaged = text[:at] + data.draw(st.text("{}[]:-&*!|>'\" \n\t#%@,a0", max_size=5)) + text[at + cut :]
    found: tuple[RulesetProblem, ...] = ()
    try:
        compile_ruleset(parse_ruleset(damaged))
    except InvalidRuleset as refused:
        found = refused.problems
    assert all(problem.line >= 1 and problem.column >= 1 for problem in found)
