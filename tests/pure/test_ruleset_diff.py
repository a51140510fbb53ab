"""Tests that the difference between two rulesets is reported rule by rule."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.workshop.ruleset_diff import ChangedRule, MovedRule, diff_rulesets
from proxy.policy.ruleset import Match, Rule, Ruleset
from proxy.policy.ruleset_yaml import parse_ruleset
from tests.pure.test_explain import rulesets

RULE = (
    "{id: a, match: {methods: [GET, PUT], path: [/a, /b]}, "
    "verdict: filter, transforms: {strip_properties: [x, y]}}"
)


def one(rule: str) -> Ruleset:
    return parse_ruleset(f"version: 1\nname: test\nrules:\n  - {rule}\n")


def in_order(ids: str) -> Ruleset:
    return Ruleset("test", "block", tuple(Rule(rule_id, Match(("/",)), "allow") for rule_id in ids))


@pytest.mark.parametrize(
    ("old", "new", "keys"),
    [
        ("path: [/a, /b]", "path: [/b, /a]", ()),
        ("[GET, PUT]", "[put, get]", ()),
        ("[x, y]", "[y, x]", ()),
        ("id: a,", 'id: a, description: "",', ()),
        ("id: a,", "id: a, description: new,", ("description",)),
        ("id: a,", "id: a, when: response,", ("when",)),
        ("[GET, PUT]", "[GET]", ("match.methods",)),
        ("methods: [GET, PUT], ", "", ("match.methods",)),
        ("path: [/a, /b]", "path: [/a]", ("match.path",)),
        ("id: a,", "id: a, conditions: [{query: x, exists: true}],", ("conditions",)),
        ("id: a,", "id: a, ip: {in: [10.0.0.0/8]}, time: {days: [mon]},", ("ip", "time")),
        ("[x, y]", "[x]", ("transforms.strip_properties",)),
        (
            "strip_properties: [x, y]",
            "allow_properties: [x]",
            ("transforms.strip_properties", "transforms.allow_properties"),
        ),
        ("id: a,", "id: a, guard_queries: true,", ("guard_queries",)),
        (
            "verdict: filter, transforms: {strip_properties: [x, y]}",
            "verdict: block",
            ("verdict", "transforms.strip_properties"),
        ),
    ],
)
def test_the_keys_that_changed_are_named(old: str, new: str, keys: tuple[str, ...]) -> None:
    assert old in RULE
    diff = diff_rulesets(one(RULE), one(RULE.replace(old, new)))
    assert diff.changed == ((ChangedRule("a", keys),) if keys else ())
    assert bool(diff) is bool(keys)


def test_rules_come_go_and_move() -> None:
    diff = diff_rulesets(in_order("abcd"), in_order("axdb"))
    assert (diff.added, diff.removed) == (("x",), ("c",))
    assert diff.moved in ((MovedRule("d", "x"),), (MovedRule("b", "d"),))
    first = diff_rulesets(in_order("abcd"), in_order("dabc"))
    assert first.moved == (MovedRule("d", None),)
    assert diff_rulesets(in_order("abcd"), in_order("acd")).moved == ()


def test_name_and_default_count_too() -> None:
    old = in_order("a")
    assert diff_rulesets(old, msgspec.structs.replace(old, name="x", default="allow")).keys == (
        "name",
        "default",
    )


@given(rulesets())
def test_a_ruleset_is_the_same_as_itself(ruleset: Ruleset) -> None:
    assert not diff_rulesets(ruleset, ruleset)


@given(st.permutations("abcdefgh"))
def test_moving_what_is_said_to_have_moved_makes_the_new_order(order: list[str]) -> None:
    diff = diff_rulesets(in_order("abcdefgh"), in_order("".join(order)))
    moved = {each.id: each.after for each in diff.moved}
    stayed = [rule_id for rule_id in "abcdefgh" if rule_id not in moved]
    assert stayed == [rule_id for rule_id in order if rule_id not in moved]
    for each in diff.moved:
        stayed.insert(0 if each.after is None else stayed.index(each.after) + 1, each.id)
    assert stayed == order
