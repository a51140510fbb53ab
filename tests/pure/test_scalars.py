"""Tests that comparisons use a YAML scalar of a ruleset or policy case exactly as the file spells it.

If a comparison needs a number, the text of the scalar is read as a number.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.workshop.cases import run_cases
from controlplane.workshop.explain import Explainer, SampleRequest
from proxy.policy import yaml_document
from proxy.policy.canonical import canonicalise
from proxy.policy.conditions import compile_check, compile_values_test
from proxy.policy.decision import RequestFacts
from proxy.policy.ruleset import Condition, Ruleset
from proxy.policy.ruleset_yaml import InvalidRuleset, parse_ruleset
from proxy.policy.scalars import Written, as_values, read_plain, text_of

HEAD = "version: 1\nname: test\nrules:\n"
NO, INDETERMINATE, YES = 0, 1, 2


def condition(text: str, when: str = "request") -> Condition:
    rule = f"  - {{id: a, match: {{path: ['/x/{{p}}']}}, when: {when}, verdict: block, conditions: [{text}]}}"
    return parse_ruleset(HEAD + rule).rules[0].conditions[0]


def refusal(text: str) -> str:
    with pytest.raises(InvalidRuleset) as refused:
        parse_ruleset(text)
    (problem,) = refused.value.problems
    return f"{problem.line}:{problem.column}: {problem.where}: {problem.message}"


WRITTEN = [
    "1.10",
    "1.20",
    "4.0",
    "0.0",
    "-0",
    "+47",
    "-5",
    "+1.50",
    "0x10",
    "0o17",
    "1e3",
    "1.5e3",
    "0777",
    "007",
    "-007",
    "1_000",
    "12:30",
    "190:20:30",
    "yes",
    "no",
    "on",
    "off",
    "y",
    "true",
    "True",
    "TRUE",
    "False",
    "2026-01-31",
    "2026-01-31T10:00:00Z",
    ".5",
    "5.",
    ".inf",
    "-.INF",
    ".nan",
    "5e-324",
    "00000000-0000-0000-0000-000000000010",
    "1e80bd5c-1111-4111-8111-111111111111",
    "123456789012345678901234567890",
    "1.12345678901234567890",
    "0.1000000000000000055",
    "9007199254740993.0",
    "1.0.0",
    "0b11",
]


@pytest.mark.parametrize("written", WRITTEN)
@pytest.mark.parametrize("operator", ["equals: {}", "in: [{}]", "in: [other, {}, 7]"])
def test_text_is_met_by_what_is_written(written: str, operator: str) -> None:
    for source in ("header: X", "query: q", "body: a", "param: p"):
        test = compile_values_test(condition(f"{{{source}, {operator.format(written)}}}"))
        assert test((written,)) == YES
        assert test((f"{written}0",)) == NO


@pytest.mark.parametrize(
    ("written", "other"),
    [("1.10", "1.1"), ("1.1", "1.10"), ("4.0", "4"), ("4", "4.0"), ("+47", "47"), ("-0", "0"), ("010", "10")],
)
def test_and_by_no_other_spelling_of_the_number(written: str, other: str) -> None:
    assert compile_values_test(condition(f"{{header: X, equals: {written}}}"))((other,)) == NO
    assert compile_values_test(condition(f"{{header: X, not_in: [{written}]}}"))((other,)) == YES
    assert compile_values_test(condition(f"{{header: X, not_equals: {written}}}"))((written,)) == NO


@pytest.mark.parametrize(
    ("written", "sent", "held"),
    [
        ("5", "5", YES),
        ("5", "5.0", YES),
        ("5", '"5"', YES),
        ("5", '"5.0"', NO),
        ("'5'", "5", INDETERMINATE),
        ("'5'", '"5"', YES),
        ("1.10", "1.1", YES),
        ("1.10", "1.10", YES),
        ("1.10", '"1.10"', YES),
        ("1.10", '"1.1"', NO),
        ("'1.10'", "1.10", INDETERMINATE),
        ("4.0", "4", YES),
        ("+47", "47", YES),
        ("'+47'", "47", INDETERMINATE),
        ("1e3", "1000", INDETERMINATE),
        ("0x10", "16", INDETERMINATE),
        ("010", "10", INDETERMINATE),
        (".5", "0.5", INDETERMINATE),
        ("123456789012345678901234567890", "123456789012345678901234567890", INDETERMINATE),
        ("true", "true", YES),
        ("True", "true", YES),
        ("'true'", "true", INDETERMINATE),
        ("true", '"true"', YES),
        ("yes", "true", NO),
        ("1", "true", NO),
        ("true", "1", NO),
        ("0", "false", NO),
        ("5", "null", NO),
        ("5", "{}", NO),
    ],
)
def test_a_json_number_compares_as_a_number_and_json_text_as_text(written: str, sent: str, held: int) -> None:
    check = compile_check(condition(f"{{body: a, equals: {written}}}"))
    request = RequestFacts("POST", canonicalise("/x/1"), (), "", 0, f'{{"a": {sent}}}'.encode())
    assert check(request, None) == held


@pytest.mark.parametrize("written", ["1.10", "+1.1", "1.1"])
def test_where_a_number_is_meant_it_is_one(written: str) -> None:
    test = compile_values_test(condition(f"{{header: X, at_least: {written}}}"))
    assert [test((value,)) for value in ("1.09", "1.1", "1.10", "2")] == [NO, YES, YES, YES]


@pytest.mark.parametrize("operator", ["prefix", "suffix", "contains", "matches"])
@pytest.mark.parametrize("written", ["1.10", "404", "true", "True", "+4"])
def test_text_operators_take_what_is_written(operator: str, written: str) -> None:
    if operator == "matches":
        written = written.replace("+", "")
    assert condition(f"{{header: X, {operator}: {written}}}").tests[0].operand == written


def test_truths_are_truths_however_they_are_spelled() -> None:
    assert condition("{header: X, exists: True}").tests[0].operand is True
    text = """
  - id: a
    match: {path: [/x]}
    verdict: filter
    transforms: {strip_properties: [b]}
    guard_queries: TRUE
"""
    assert parse_ruleset(HEAD + text).rules[0].guard_queries is True
    assert "expected true or false, found text" in refusal(HEAD + text.replace("TRUE", "yes"))


def test_names_are_what_is_written() -> None:
    ruleset = parse_ruleset("""
version: 1
name: 1.10
rules:
  - {id: 1.20, description: 4.0, match: {path: [/x], methods: [GET]}, verdict: filter,
     transforms: {strip_properties: [on, 404, 1.50, True, no, 007]}, guard_queries: false,
     conditions: [{query: 5, equals: 1}, {header: 404, exists: true}, {body: 1.0, exists: true}]}
  - {id: yes, match: {path: [/y]}, verdict: allow}
  - {id: 007, match: {path: [/y]}, verdict: allow}
""")
    assert ruleset.name == "1.10"
    assert [rule.id for rule in ruleset.rules] == ["1.20", "yes", "007"]
    (first, *_) = ruleset.rules
    assert first.description == "4.0"
    assert first.transforms is not None
    assert first.transforms.strip == ("on", "404", "1.50", "True", "no", "007")
    assert [each.name for each in first.conditions] == ["5", "404", "1.0"]


def test_a_number_that_names_a_rule_twice_is_found() -> None:
    rules = "  - {id: 1.10, match: {path: [/x]}, verdict: allow}\n" * 2
    assert "the rule id `1.10` is already used by rules[0]" in refusal(HEAD + rules)


def test_a_parameter_that_no_path_has_is_found_whatever_it_is_written_as() -> None:
    text = "  - {id: a, match: {path: [/x]}, verdict: allow, conditions: [{param: 5, equals: 1}]}"
    assert "no path of the rule names a parameter {5}" in refusal(HEAD + text)


@pytest.mark.parametrize("nothing", ["null", "~", "Null", ""])
def test_nothing_is_no_value(nothing: str) -> None:
    text = "  - {{id: a, match: {{path: [/x]}}, verdict: allow, conditions: [{{header: X, {}}}]}}"
    assert 'write "null" in quotes' in refusal(HEAD + text.format(f"equals: {nothing}"))
    if nothing:
        assert "found nothing" in refusal(HEAD + text.format(f"in: [a, {nothing}]"))


@pytest.mark.parametrize(
    "gate", ["from: 08:00, to: 18:30", "from: 8:00, to: 18:30", "from: 0800, to: 1830", "from: 8, to: 18"]
)
def test_hours_are_hours_or_refused(gate: str) -> None:
    text = HEAD + f"  - {{id: a, match: {{path: [/x]}}, verdict: allow, time: {{{gate}}}}}"
    if gate.startswith("from: 08:00"):
        time = parse_ruleset(text).rules[0].time
        assert time is not None
        assert (time.start, time.end) == ("08:00", "18:30")
        return
    with pytest.raises(InvalidRuleset, match="HH:MM"):
        parse_ruleset(text)


def test_a_status_is_a_number_in_any_spelling() -> None:
    one = condition("{status: +404}", "response")
    assert compile_values_test(one)((404,)) == YES
    one = condition("{status: true, in: [404.0, 500]}", "response")
    assert [compile_values_test(one)((each,)) for each in (404, 500, 403)] == [YES, YES, NO]


def test_a_case_says_what_is_written_too() -> None:
    ruleset = parse_ruleset(
        HEAD + "  - {id: 1.10, match: {path: [/x]}, conditions: [{header: V, equals: 1.10}], verdict: block}"
    )
    run = run_cases(
        ruleset,
        """
cases:
  - {name: 1.0, request: GET /x, headers: {V: 1.10}, expect: {verdict: block, rule: 1.10}}
  - {request: GET /x, headers: {V: [1.1, 4.0]}, expect: {verdict: block, rule: default}}
  - request: GET /x
    answer: {status: +200, body: {a: 1.10, b: +5, c: 007, d: True}}
    expect: {verdict: block}
""",
    )
    assert (run.count, run.failures) == (3, ())


def test_the_explanation_shows_what_is_written() -> None:
    text = "  - {id: a, match: {path: [/x]}, conditions: [{header: V, in: [1.10, +47]}], verdict: block}"
    ruleset = parse_ruleset(HEAD + text)
    report = Explainer(ruleset).explain(SampleRequest("GET", "/x", ((b"V", b"1.10"),)))
    (finding,) = report.accounts[0].attempts[0].findings
    assert (finding.asked, finding.found, finding.held) == ("in 1.10, +47", ("1.10",), "yes")


def test_a_snapshot_keeps_it() -> None:
    text = "  - {id: a, match: {path: [/x]}, conditions: [{header: V, in: [1.10, 5, 'x']}], verdict: allow}"
    ruleset = parse_ruleset(HEAD + text)
    assert msgspec.json.decode(msgspec.json.encode(ruleset), type=Ruleset) == ruleset


@given(st.from_regex(r"[-+]?[0-9.eE_x]{1,12}", fullmatch=True) | st.sampled_from(WRITTEN))
def test_every_plain_scalar_gives_its_spelling_back(text: str) -> None:
    value = read_plain(text)
    assert value is not None
    assert text_of(value) == text
    if isinstance(value, Written) and text.lower() not in ("true", "false"):
        assert float(text) == value.value


def test_a_document_as_json_has_the_numbers() -> None:
    parsed: Any = yaml_document.parse("{a: [1.10, +4, True, x], b: {c: 4.0}}").value
    assert json.dumps(as_values(parsed)) == '{"a": [1.1, 4, true, "x"], "b": {"c": 4.0}}'
