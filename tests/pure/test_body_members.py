"""Tests of `body_only`, the list of the only properties that the body of a write request may have."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.workshop.advice import ruleset_advice
from controlplane.workshop.explain import Explainer, SampleRequest
from controlplane.workshop.replay import Event, Replay, Unclear
from controlplane.workshop.ruleset_diff import diff_rulesets
from proxy.policy.body_members import listed_members, other_members
from proxy.policy.canonical import canonicalise
from proxy.policy.compile import CompiledRuleset
from proxy.policy.decision import BodyNeeded, MalformedBody, RequestFacts
from proxy.policy.ruleset import Ruleset
from proxy.policy.ruleset_yaml import InvalidRuleset, parse_ruleset, ruleset_json_schema
from tests.pure.rules import compiled, decide

TARGET = "/v1.0/users/ada"


def rule(names: str, verdict: str = "allow") -> str:
    return f"""\
- id: titles
  match: {{methods: [PATCH], path: ["/v1.0/users/{{id}}"]}}
  body_only: {names}
  verdict: {verdict}
"""


def parsed(text: str, default: str = "block") -> Ruleset:
    indented = "\n".join("  " + line for line in text.splitlines())
    return parse_ruleset(f"version: 1\nname: test\ndefault: {default}\nrules:\n{indented}\n")


def verdict(rules: CompiledRuleset, body: object) -> str:
    raw = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    return decide(rules, TARGET, "PATCH", body=raw).verdict


# Each body, and whether it has members besides jobTitle, department and passwordProfile.password.
BODIES: list[tuple[object, bool]] = [
    ({"jobTitle": "Captain"}, False),
    ({"jobTitle": "Captain", "department": None}, False),
    ({"jobTitle": {"a": 1}}, False),
    ({}, False),
    (None, False),
    (b"", False),
    (b"null", False),
    (b"\xef\xbb\xbf{}", False),
    ({"jobTitle": "Captain", "accountEnabled": False}, True),
    ({"accountEnabled": False}, True),
    ({"jobTitle ": "Captain"}, False),  # spaces at the ends are ignored, as in conditions
    ({"": 1}, True),
    # letter case
    ({"JOBTITLE": "Captain", "Department": "x"}, False),
    # a letter that only looks like another one
    ({"jobTit\u0142e": "Captain"}, True),
    ({"\u212aobTitle": 1}, True),
    # escapes
    (b'{"job\\u0054itle": "Captain"}', False),
    (b'{"accountEn\\u0061bled": true}', True),
    # duplicate members
    (b'{"jobTitle": "a", "jobtitle": "b"}', False),
    (b'{"passwordProfile": {"password": "x"}, "passwordProfile": {"forceChange": true}}', True),
    # members inside an object
    ({"passwordProfile": {"password": "x"}}, False),
    ({"passwordProfile": {"Password": "x"}}, False),
    ({"passwordProfile": {}}, False),
    ({"passwordProfile": {"password": "x", "forceChangePasswordNextSignIn": False}}, True),
    ({"passwordProfile": None}, True),
    ({"passwordProfile": "x"}, True),
    ({"passwordProfile.password": "x"}, True),
    ({"passwordProfile": [{"password": "x"}, {"password": "y"}]}, False),
    ({"passwordProfile": [{"password": "x"}, {"other": "y"}]}, True),
    ({"passwordProfile": [[{"other": "y"}]]}, True),
    ({"passwordProfile": ["x"]}, True),
    ({"password": "x"}, True),
    # annotations
    ({"@odata.type": "#microsoft.graph.user", "jobTitle": "Captain"}, False),
    ({"@type": "#user", "@ODATA.TYPE": "#user"}, False),
    ({"@odata.type": {"accountEnabled": False}}, True),
    ({"passwordProfile": {"@odata.type": "#passwordProfile", "password": "x"}}, False),
    ({"jobTitle@odata.type": "#String", "jobTitle": "Captain"}, False),
    ({"accountEnabled@odata.type": "#Boolean"}, True),
    ({"manager@odata.bind": "https://graph.microsoft.com/v1.0/users/b"}, True),
    ({"jobTitle@odata.bind": "x"}, True),
    ({"@odata.id": "https://graph.microsoft.com/v1.0/users/b"}, True),
    ({"@odata.context": "x"}, True),
    ({"@odata.type@odata.type": "x"}, True),
    # values that are not objects
    ([{"jobTitle": "a"}, {"department": "b"}], False),
    ([{"jobTitle": "a"}, {"mail": "b"}], True),
    ([[{"mail": "b"}]], True),
    ([], False),
    (["x"], True),
    ("text", True),
    (5, True),
    (b"true", True),
]
NAMES = "[jobTitle, department, passwordProfile.password]"


@pytest.mark.parametrize(("body", "has_another"), BODIES)
def test_an_allow_takes_a_body_without_other_members(body: object, has_another: bool) -> None:
    assert verdict(compiled(rule(NAMES)), body) == ("block" if has_another else "allow")


@pytest.mark.parametrize(("body", "has_another"), BODIES)
def test_a_block_takes_a_body_with_another_member(body: object, has_another: bool) -> None:
    assert verdict(compiled(rule(NAMES, "block"), "allow"), body) == ("block" if has_another else "allow")


@pytest.mark.parametrize(("body", "has_another"), BODIES)
def test_a_filter_matches_as_an_allow_does(body: object, has_another: bool) -> None:
    rules = compiled(rule(NAMES, "filter") + "  transforms: {strip_properties: [mail]}\n")
    assert verdict(rules, body) == ("block" if has_another else "filter")


@pytest.mark.parametrize(("body", "has_another"), BODIES)
def test_a_rule_that_logs_matches_as_an_allow_does(body: object, has_another: bool) -> None:
    rules = compiled(rule(NAMES, "log_only"), "allow")
    assert verdict(rules, body) == ("allow" if has_another else "log_only")


@pytest.mark.parametrize(
    ("names", "body", "allowed"),
    [
        ("['members@odata.bind']", {"members@odata.bind": ["x"]}, "allow"),
        ("['members@odata.bind']", {"Members@OData.Bind": ["x"]}, "allow"),
        ("['members@odata.bind']", {"members": []}, "block"),
        ("[members]", {"members": [{"anything": 1}]}, "allow"),
        ("[members]", {"members@odata.bind": ["x"]}, "block"),
        ("['@odata.id']", {"@odata.id": "x"}, "allow"),
        (
            "['@microsoft.graph.conflictBehavior', name]",
            {"@microsoft.graph.conflictBehavior": "fail"},
            "allow",
        ),
        ("[a, a.b]", {"a": {"c": 1}}, "allow"),
        ("[a.b, a]", {"a": {"c": 1}}, "allow"),
        ("[a.b, a.c.d]", {"a": {"b": 1, "c": {"d": 2}}}, "allow"),
        ("[a.b, a.c.d]", {"a": {"b": 1, "c": {"e": 2}}}, "block"),
        ("[404, on]", {"404": 1, "ON": 2}, "allow"),
    ],
)
def test_what_a_list_names(names: str, body: object, allowed: str) -> None:
    bind = '- {id: bind, match: {path: ["/v1.0/users/{id}/*/$ref"]}, verdict: allow}'
    assert verdict(compiled(f"{rule(names)}{bind}\n"), body) == allowed


@pytest.mark.parametrize("verdict_", ["allow", "block"])
@pytest.mark.parametrize("body", [b"{", b"a=b", b'{"a": 1} x', b"\xff", b"[" * 600 + b"]" * 600])
def test_a_body_that_is_no_json_is_refused(verdict_: str, body: bytes) -> None:
    with pytest.raises(MalformedBody):
        decide(compiled(rule(NAMES, verdict_)), TARGET, "PATCH", body=body)


def test_a_rule_that_only_logs_refuses_nothing_and_logs_what_it_cannot_read() -> None:
    assert verdict(compiled(rule(NAMES, "log_only"), "allow"), b"{") == "log_only"


def test_a_body_that_nobody_has_read_is_asked_for() -> None:
    rules = compiled(rule(NAMES))
    facts = RequestFacts("PATCH", canonicalise(TARGET), (), "192.0.2.1", 0, unread=True)
    plan = rules.plan("PATCH", facts.target)
    assert plan.needs_body
    with pytest.raises(BodyNeeded):
        plan.decide(facts)


def test_a_body_is_not_asked_for_if_a_condition_has_failed() -> None:
    rules = compiled(rule(NAMES) + "  conditions: [{query: $top, exists: true}]\n")
    facts = RequestFacts("PATCH", canonicalise(TARGET), (), "192.0.2.1", 0, unread=True)
    assert rules.plan("PATCH", facts.target).decide(facts).verdict == "block"


def test_many_rules_on_a_large_body_are_refused_before_they_take_long() -> None:
    rules = compiled("".join(rule(f"[a{at}.b]", "block").replace("titles", f"r{at}") for at in range(100)))
    body = json.dumps({f"a{at}": {"b": 1} for at in range(9_000)} | {"x": [{"b": 1}] * 9_000}).encode()
    assert verdict(rules, body) == "block"  # the first rule finds another member at once
    lasting = compiled("".join(rule("[x.b]", "block").replace("titles", f"r{at}") for at in range(100)))
    with pytest.raises(MalformedBody):
        verdict(lasting, {"x": [{"b": 1}] * 9_000})


_json = st.recursive(
    st.none() | st.booleans() | st.integers(0, 9) | st.just("#user"),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["a", "B", "c", "@odata.type", "a@odata.bind"]), inner, max_size=4)
    ),
    max_leaves=12,
)
_paths = st.lists(st.sampled_from(["a", "b", "c", "a.b", "b.c", "a.b.c", "a@odata.bind"]), min_size=1)


def _without_others(value: object, paths: list[str], place: str = "") -> object:
    """Return a JSON value with only the members that `paths` lists.

    The result does not depend on the tested code.
    """
    if isinstance(value, list):
        return [_without_others(each, paths, place) for each in value]
    if not isinstance(value, dict):
        return value
    kept = {}
    for name, inner in value.items():
        path = f"{place}.{name}".lower() if place else name.lower()
        if path in paths or (name == "@odata.type" and isinstance(inner, str)):
            kept[name] = inner
        elif any(each.startswith(path + ".") for each in paths) and _is_container(inner):
            kept[name] = _without_others(inner, paths, path)
    return kept


def _is_container(value: object) -> bool:
    """Return True if the value is an object, or a list that contains only objects and lists."""
    return isinstance(value, dict) or (isinstance(value, list) and all(map(_is_container, value)))


@given(st.dictionaries(st.sampled_from(["a", "B", "c", "@odata.type", "a@odata.bind"]), _json), _paths)
def test_a_body_has_no_other_member_if_nothing_is_left_out(body: dict[str, object], paths: list[str]) -> None:
    facts = RequestFacts("PATCH", canonicalise(TARGET), (), "", 0, json.dumps(body).encode())
    others = list(other_members(facts, listed_members(paths)))
    assert (not others) == (_without_others(body, paths) == body)


# The policy workshop


@pytest.mark.parametrize("names", ["[]", "jobTitle", "", "[a b]", "[a/b]", "[a.]", "[[a]]"])
def test_a_list_that_is_none_is_named_with_its_place(names: str) -> None:
    with pytest.raises(InvalidRuleset) as raised:
        parsed(rule(names))
    (problem,) = raised.value.problems
    assert problem.line == 7
    assert problem.where.startswith("rules[0].body_only")


def test_the_schema_for_editors_knows_the_key() -> None:
    definitions = ruleset_json_schema()["$defs"]
    assert isinstance(definitions, dict)
    assert definitions["_Rule"]["properties"]["body_only"]["type"] == "array"


def test_explain_names_the_members_that_the_rule_does_not_list() -> None:
    body = b'{"jobTitle": "x", "Mail": "y", "passwordProfile": {"force": true}}'
    report = Explainer(parsed(rule(NAMES))).explain(SampleRequest("PATCH", TARGET, body=body))
    (finding,) = [one for one in report.accounts[0].attempts[0].findings if one.part == "body_only"]
    assert (finding.held, set(finding.found)) == ("no", {"mail", "passwordprofile.force"})
    assert finding.asked == "no member except jobTitle, department, passwordProfile.password"


def test_replay_does_not_know_the_members() -> None:
    event = Event(
        id="1",
        time=datetime(2026, 1, 1, tzinfo=UTC),
        method="PATCH",
        path=TARGET,
        verdict="allow",
        rule_id="x",
        client_ip="192.0.2.1",
        request_bytes=20,
        upstream_status=204,
        reason="rule",
    )
    outcome = Replay(parsed(rule(NAMES))).evaluate(event)
    assert isinstance(outcome, Unclear)
    assert outcome.missing == ("the members of the body",)
    assert {one.verdict for one in outcome.possible} == {"allow", "block"}


def test_of_one_body_an_allow_and_a_block_know_the_same() -> None:
    """If an allow rule and a block rule list the same members, one of the two rules applies to any body."""
    both = rule(NAMES, "block") + rule(NAMES).replace("titles", "allowed")
    sample = SampleRequest("PATCH", TARGET, unknown=frozenset({"body"}))
    report = Explainer(parsed(both)).explain(sample)
    assert {one.rule_id for one in report.possible if hasattr(one, "rule_id")} == {"titles", "allowed"}


def test_diff_names_the_key_and_not_the_order() -> None:
    first, second = parsed(rule("[a, b]")), parsed(rule("[a, c]"))
    assert diff_rulesets(first, second).changed[0].keys == ("body_only",)
    assert not diff_rulesets(first, parsed(rule("[b, a]")))


def test_check_names_a_property_that_looks_like_another() -> None:
    text = rule("[jobTitle, jobTit1e]")
    indented = "\n".join("  " + line for line in text.splitlines())
    text = f"version: 1\nname: test\nrules:\n{indented}\n"
    assert [one.where for one in ruleset_advice(text, parse_ruleset(text))] == ["rules[0].body_only[1]"]
