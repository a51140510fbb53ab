"""Tests that rulesets of any size compile in slices, and that the compiled form contains each rule."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Iterator
from typing import get_args, get_type_hints

import msgspec
import pytest

from proxy.policy.canonical import canonicalise
from proxy.policy.compile import compile_in_slices, compile_ruleset
from proxy.policy.compiled_rule import Part
from proxy.policy.conditions import NO, Check
from proxy.policy.decision import Plan, RequestFacts
from proxy.policy.ruleset import Comparison, Condition, IpGate, Match, Operator, Rule, Ruleset, TimeGate
from proxy.policy.ruleset_yaml import parse_ruleset
from proxy.policy.transforms import Transforms
from tests.pure.rules import compiled, decide, verdict


def _many(count: int) -> Ruleset:
    rules = [Rule(f"r{n}", Match((f"/v1.0/area{n}/{{id}}",)), "allow") for n in range(count)]
    return Ruleset("many", "block", tuple(rules))


def _rules_looked_at(ruleset: Ruleset, target: str) -> list[int]:
    """Return the number of rules that the tree of path patterns finds for each name of the target."""
    tree = compile_ruleset(ruleset).rules.tree
    return [len(tree.find(name)[0]) for reading in canonicalise(target).readings for name in reading.names]


def test_unrelated_rules_are_not_looked_at() -> None:
    assert (
        _rules_looked_at(_many(10), "/v1.0/area7/x") == _rules_looked_at(_many(5000), "/v1.0/area7/x") == [1]
    )


def test_a_rule_is_asked_once_by_however_many_names_it_knows_a_path() -> None:
    asked: list[Part] = []

    def check_of(part: Part) -> Check:
        def check(*_: object) -> int:
            asked.append(part)
            return NO

        return check

    condition = Condition("header", "x", (Comparison("exists", True),))
    paths = ("/v1.0/users/{id}/**", "/v1.0/users/**", "/v1.0/**")
    rules = Ruleset("one", "allow", (Rule("no", Match(paths), "block", conditions=(condition,)),))
    path = "/v1.0/users/ada" + "/microsoft.graph.user" * 6
    assert len(canonicalise(path).readings[0].names) == 64
    assert decide(compile_ruleset(rules, check_of), path).verdict == "allow"
    assert asked == [condition]


def test_compiling_in_slices_gives_the_loop_air_and_the_same_rules() -> None:
    slices = compile_in_slices(_many(1000))
    pauses = 0
    while True:
        try:
            next(slices)
        except StopIteration as finished:
            rules = finished.value
            break
        pauses += 1
    assert pauses > 20
    assert rules.rule_count == 1000
    assert decide(rules, "/v1.0/area999/x").rule_id == "r999"


def test_patterns_cover_what_the_contract_says() -> None:
    rules = compiled("""
- {id: rest, match: {path: ["/a/{x}/**"]}, verdict: allow}
- {id: one, match: {path: ["/b/*/c"]}, verdict: allow}
- {id: root, match: {path: ["/"]}, verdict: allow}
- {id: word, match: {path: ["/d/word/{x}", "/d/{x}/other"]}, verdict: allow}
""")
    for path in ("/a/1", "/a/1/", "/a/1/2/3", "/b/1/c", "/", "/d/word/1", "/d/word/other", "/d/1/other"):
        assert verdict(rules, path) == "allow", path
    for path in ("/a", "/b/c", "/b/1/2/c", "/b/1/c/d", "/x", "/d/1/word", "/d/word"):
        assert verdict(rules, path) == "block", path


@pytest.mark.parametrize("word", ["%3F", "a%3Fb", "a%23b"])
def test_a_word_may_have_what_would_end_a_path(word: str) -> None:
    rules = compiled(f"- {{id: it, match: {{path: ['/x/{word}']}}, verdict: allow}}")
    assert verdict(rules, f"/x/{word}") == "allow"
    for other in ("/x", "/x/a", "/x/y", "/x/$y"):
        assert verdict(rules, other) == "block"


def test_parameters_belong_to_the_path_that_matched() -> None:
    rules = compiled("""
- {id: it, match: {path: ["/a/{id}/b", "/c/{other}/{id}"]},
   conditions: [{param: id, equals: "5"}], verdict: allow}
""")
    assert [verdict(rules, path) for path in ("/a/5/b", "/c/1/5", "/c/5/1")] == ["allow", "allow", "block"]


def test_a_path_without_the_parameter_does_not_match_a_condition_on_it() -> None:
    rules = compiled("""
- {id: it, match: {path: ["/a/{id}", "/b"]}, conditions: [{param: id, equals: "5"}], verdict: allow}
""")
    assert verdict(rules, "/b") == "block"


def test_a_known_path_has_its_plan_ready() -> None:
    rules = compiled("- {id: it, match: {path: [/a]}, verdict: allow}")
    first = rules.plan("GET", canonicalise("/a?x=1"))
    assert isinstance(first, Plan)
    assert rules.plan("GET", canonicalise("/a?y=2")) is first


def test_plans_of_paths_that_a_parameter_alias_completes_are_not_mixed_up() -> None:
    rules = compiled("""
- {id: it, match: {path: ["/a/{id}"]}, conditions: [{param: id, equals: ada}], verdict: allow}
""")
    assert verdict(rules, "/a(@p)?@p='ada'") == "allow"
    assert verdict(rules, "/a(@p)?@p='alan'") == "block"


@pytest.mark.parametrize("condition", ["", "conditions: [{param: id, not_equals: ada}], "])
@pytest.mark.parametrize("path", ["/a/{n}", "/a/{n}/b('{n}')"])
def test_what_is_remembered_is_bounded(path: str, condition: str) -> None:
    rules = compiled(f"- {{id: it, match: {{path: ['/a/{{id}}/**']}}, {condition}verdict: allow}}")
    for n in range(9000):
        rules.plan("GET", canonicalise(path.replace("{n}", str(n))))
    for n in range(100):
        rules.plan(f"M{n}", canonicalise("/a/1"))
    shapes, paths = rules._plans_by_shape.values(), rules._plans_by_path.values()
    assert sum(len(plans) for plans in shapes) + sum(len(plans) for plans in paths) <= 8192 + 32


SHAPES = """
- {id: block, match: {path: ["/users/{id}/secret", "/$count"]}, verdict: block}
- id: one
  match: {path: ["/users/{id}"]}
  verdict: filter
  transforms: {strip_properties: [mail, manager.phone]}
- {id: list, match: {path: ["/users"]}, verdict: filter, transforms: {allow_properties: [id, photo.width]}}
- {id: deep, match: {path: ["/groups/*/{x}"]}, verdict: filter, transforms: {allow_properties: [id]}}
- {id: ada, match: {path: ["/teams/{id}/**"]}, conditions: [{param: id, in: [ada, mail]}], verdict: block}
- {id: rest, match: {path: ["/**"]}, verdict: allow}
"""
WORDS = [
    "users",
    "Users",
    "groups",
    "teams",
    "ada",
    "7",
    "mail",
    "MAIL",
    "manager",
    "phone",
    "photo",
    "width",
    "id",
]
WORDS += ["secret", "$value", "$count", "$ref", "$x", "x@y.z", "a.b", "mail@odata.type"]


def test_paths_of_one_shape_are_evaluated_as_each_would_be_alone() -> None:
    rules = compiled(SHAPES)
    for length in (1, 2, 3):
        for words in itertools.product(WORDS, repeat=length):
            target = canonicalise("/" + "/".join(words))
            for method in ("GET", "PATCH"):
                facts = RequestFacts(method, target, (), "192.0.2.1", 0.0)
                alone = rules.rules.plan_of_readings(method, target.readings)
                assert rules.plan(method, target).decide(facts) == alone.decide(facts), target.raw


def test_the_model_crosses_processes_unchanged() -> None:
    ruleset = parse_ruleset("""
version: 1
name: x
rules:
  - id: a
    when: response
    match: {path: ["/u/{id}"]}
    conditions: [{param: id, in: [a, 5, true, 1.5]}, {status: 200}, {property: p, exists: false}]
    ip: {not_in: [10.0.0.0/8]}
    time: {days: [mon]}
    verdict: filter
    transforms: {allow_properties: [id]}
    guard_queries: true
""")
    assert msgspec.json.decode(msgspec.json.encode(ruleset), type=Ruleset) == ruleset


def _comparisons() -> Iterator[Comparison]:
    for operator in get_args(Operator):
        if operator in ("in", "not_in"):
            yield Comparison(operator, ("a", 1, "B"))
        elif operator == "exists":
            yield Comparison(operator, True)
        else:
            yield Comparison(operator, 5 if operator in ("at_least", "at_most") else "a")


def test_compiled_rules_go_as_soon_as_nobody_has_them() -> None:
    """Compiled rules are exempt from garbage collection, so Python would never free a reference cycle."""
    comparisons = tuple(_comparisons())
    sources = get_args(get_type_hints(Condition)["source"])
    conditions = [
        Condition(source, "" if source == "status" else "id", tests)
        for source in sources
        for tests in (*((one,) for one in comparisons), comparisons)
    ]
    every = Ruleset(
        "every",
        "block",
        tuple(
            Rule(
                f"r{number}",
                Match((f"/v1.0/area{number}/{{id}}",)),
                "filter",
                when="response"
                if condition.source in ("status", "response_header", "property")
                else "request",
                conditions=(condition,),
                ip=IpGate(("10.0.0.0/8",), ("10.1.0.0/16",)),
                time=TimeGate(("mon",), "08:00", "18:00", "Europe/Oslo"),
                transforms=Transforms(strip=("mobilePhone", "manager.mail")),
                guard_queries=True,
            )
            for number, condition in enumerate(conditions)
        ),
    )
    gc.collect()
    gc.disable()
    try:
        rules = compile_ruleset(every)
        for method in ("GET", "POST"):
            rules.plan(method, canonicalise("/v1.0/area3/x"))
        del rules
        assert gc.collect() == 0
    finally:
        gc.enable()
