"""Tests that a wildcard for an object id does not match an operation of the collection."""

from __future__ import annotations

from typing import Literal

import pytest

from controlplane.workshop.explain import Explainer, SampleRequest
from proxy.policy.compile import compile_ruleset
from proxy.policy.decision import Decision, Verdict
from proxy.policy.operations import ACTIONS, FUNCTIONS, OPERATIONS
from proxy.policy.ruleset import Comparison, Condition, Match, Rule, Ruleset
from proxy.policy.transforms import Transforms
from tests.pure.rules import request

CHATS = "/v1.0/users/{u}/chats/{c}"
HERE = "/v1.0/users/u1/chats"


def one_rule(path: str, verdict: Verdict = "allow", default: Literal["allow", "block"] = "block") -> Ruleset:
    transforms = Transforms(strip=("mail",)) if verdict == "filter" else None
    return Ruleset("any", default, (Rule("r", Match((path,)), verdict, transforms=transforms),))


def decided(ruleset: Ruleset, target: str, method: str = "GET") -> Decision:
    facts = request(target, method)
    decision = compile_ruleset(ruleset).plan(method, facts.target).decide(facts)
    explanation = Explainer(ruleset).explain(SampleRequest(method, target))
    assert explanation.decision == decision
    return decision


@pytest.mark.parametrize("name", sorted(OPERATIONS))
def test_no_operation_is_a_key_to_an_allow_and_each_is_one_to_a_block(name: str) -> None:
    method = "GET" if name in FUNCTIONS else "POST"
    for spelled in (
        name,
        name.upper(),
        f"{name}()",
        f"{name}(a='1')",
        f"microsoft.graph.{name}",
        f"{name}%20",
    ):
        assert decided(one_rule(CHATS), f"{HERE}/{spelled}", method).verdict == "block"
        assert decided(one_rule(CHATS, "block", "allow"), f"{HERE}/{spelled}", method).verdict == "block"
    assert decided(one_rule(CHATS), f"{HERE}('{name}')", method).verdict == "allow"


@pytest.mark.parametrize(
    ("pattern", "method", "target", "verdict"),
    [
        (CHATS, "GET", f"{HERE}/19:x@thread.v2", "allow"),
        (CHATS, "GET", f"{HERE}/getAllMessages", "block"),
        (CHATS, "HEAD", f"{HERE}/GETALLMESSAGES", "block"),
        (CHATS, "GET", f"{HERE}/get%41llMessages()", "block"),
        (CHATS, "GET", f"{HERE}(id='getAllMessages')", "allow"),
        (CHATS, "GET", f"{HERE}(@c)?@c='getAllMessages'", "allow"),
        (CHATS, "PATCH", f"{HERE}/getAllMessages", "allow"),  # calls no operation
        (f"{CHATS}/messages", "GET", f"{HERE}/getAllMessages/messages", "block"),
        (f"{CHATS}/**", "GET", f"{HERE}/getAllMessages", "block"),
        ("/v1.0/users/{u}/chats/*", "GET", f"{HERE}/getAllMessages", "block"),
        ("/v1.0/users/{u}/*/{c}", "GET", f"{HERE}/getAllMessages", "block"),
        ("/*/*/*/*/*", "GET", f"{HERE}/getAllMessages", "block"),
        ("/v1.0/users/{u}/chats/**", "GET", f"{HERE}/getAllMessages", "allow"),
        ("/v1.0/users/{u}/chats/getAllMessages", "GET", f"{HERE}/GetAllMessages()", "allow"),
        ("/v1.0/users/{u}", "GET", "/v1.0/users/delta", "block"),
        ("/v1.0/users/{u}", "GET", "/v1.0/myorganization/users/delta", "block"),
        ("/v1.0/users/{u}/**", "GET", "/v1.0/users('delta')/messages", "allow"),
        # an operation of the one item
        ("/v1.0/me/drive/root/*", "GET", "/v1.0/me/drive/root/delta", "allow"),
        ("/v1.0/me/drive/*", "GET", "/v1.0/me/drive/recent", "allow"),
        ("/v1.0/teams/{t}/*", "POST", "/v1.0/teams/t1/archive", "allow"),  # an operation of the one team
        # not an action, because of GET
        ("/v1.0/me/mailFolders/{f}", "GET", "/v1.0/me/mailFolders/archive", "allow"),
        ("/v1.0/me/mailFolders/{f}", "POST", "/v1.0/me/mailFolders/archive", "block"),
        ("/v1.0/me/mailFolders/{f}/messages", "POST", "/v1.0/me/mailFolders/archive/messages", "allow"),
        ("/v1.0/directoryObjects/{id}", "POST", "/v1.0/directoryObjects/getByIds", "block"),
    ],
)
def test_an_allow_takes_keys_alone(pattern: str, method: str, target: str, verdict: str) -> None:
    assert decided(one_rule(pattern), target, method).verdict == verdict


def test_a_filter_hides_in_the_answer_of_an_operation_and_does_not_allow_it() -> None:
    assert decided(one_rule("/v1.0/users/{u}", "filter"), "/v1.0/users/delta").verdict == "block"
    assert decided(one_rule("/v1.0/users/{u}", "filter", "allow"), "/v1.0/users/delta").verdict == "filter"


def test_a_condition_on_the_parameter_makes_no_key_of_an_operation() -> None:
    condition = Condition("param", "c", (Comparison("matches", "^.et"),))
    ruleset = Ruleset("any", "block", (Rule("r", Match((CHATS,)), "allow", conditions=(condition,)),))
    assert decided(ruleset, f"{HERE}/getAllMessages").verdict == "block"
    assert decided(ruleset, f"{HERE}('getAllMessages')").verdict == "allow"


def test_an_explanation_names_the_operation() -> None:
    explanation = Explainer(one_rule(CHATS)).explain(SampleRequest("GET", f"{HERE}/getAllMessages"))
    attempt = explanation.accounts[0].attempts[0]
    finding = attempt.findings[-1]
    assert attempt.outcome == "perhaps"
    assert (finding.part, finding.held, finding.found) == ("path", "perhaps", ("getallmessages",))


def test_no_name_is_a_function_and_an_action() -> None:
    assert not FUNCTIONS & ACTIONS
