"""Tests of the advice of `ruleset check` about filters on paths whose responses can't be filtered."""

from __future__ import annotations

import pytest

from controlplane.workshop.advice import ruleset_advice
from proxy.policy.ruleset_yaml import parse_ruleset

TEXT = """\
version: 1
name: hide
rules:
  - id: hide
    match: {methods: [GET], path: ["/v1.0/users/{id}", "%s"]}
    verdict: %s
%s
"""
FILTER = "    transforms: {strip_properties: [mobilePhone]}\n    guard_queries: true"


@pytest.mark.parametrize("path", ["/v1.0/users/{id}/photo/$value", "/v1.0/drives/{id}/items/{item}/content"])
def test_a_filter_on_a_path_that_is_no_json_is_warned_of(path: str) -> None:
    text = TEXT % (path, "filter", FILTER)
    (problem,) = ruleset_advice(text, parse_ruleset(text))
    assert (problem.line, "502 filterFailed" in problem.message) == (5, True)
    allowed = TEXT % (path, "allow", "")
    assert ruleset_advice(allowed, parse_ruleset(allowed)) == ()


def test_a_count_is_no_reason_for_a_warning() -> None:
    text = TEXT % ("/v1.0/users/$count", "filter", FILTER)
    assert ruleset_advice(text, parse_ruleset(text)) == ()
