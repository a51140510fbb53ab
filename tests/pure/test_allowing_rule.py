"""Tests of a rule that allows one given request and is placed before the other rules of a draft."""

from __future__ import annotations

import pytest

from controlplane.operations.allowing_rule import with_allowing_rule
from controlplane.operations.operation import InvalidRequest
from controlplane.workshop.explain import Explainer, SampleRequest
from proxy.policy.ruleset_yaml import parse_ruleset

BLOCKS = """\
version: 1
name: hr
rules:
    # the first
    - {id: users-get, match: {path: ["/v1.0/users/{id}"]}, verdict: block}
    - id: rest
      match: {path: ["/**"]}
      verdict: block
"""


def verdict(text: str, method: str, target: str) -> str:
    decision = Explainer(parse_ruleset(text)).explain(SampleRequest(method, target)).decision
    assert decision is not None
    return decision.verdict


def test_the_request_is_allowed_and_others_stay_blocked() -> None:
    text = with_allowing_rule(BLOCKS, "GET", "/v1.0/users/ada@contoso.com?$select=id")
    assert verdict(text, "GET", "/v1.0/users/ada@contoso.com?$select=id") == "allow"
    assert verdict(text, "DELETE", "/v1.0/users/ada@contoso.com") == "block"
    assert verdict(text, "GET", "/v1.0/groups") == "block"
    first, *others = parse_ruleset(text).rules
    assert first.id == "users-get-2"
    assert [rule.id for rule in others] == ["users-get", "rest"]
    assert text.endswith(BLOCKS.partition("rules:\n")[2])


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("version: 1\nname: a\nrules: []\n", "/v1.0/users"),
        ("version: 1\nname: a\nrules: [{id: b, match: {path: [/a]}, verdict: block}]\n", "/v1.0/users"),
        ("version: 2\n", "/v1.0/users"),
        (BLOCKS, "/v1.0/%00"),
    ],
)
def test_a_text_or_request_that_cannot_be_so_says_what_to_do(text: str, target: str) -> None:
    with pytest.raises(InvalidRequest):
        with_allowing_rule(text, "GET", target)
