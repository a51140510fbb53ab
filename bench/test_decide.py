"""Measure the time to canonicalise a target, find the rules for its path, and decide about the request.

The cost of a decision must not grow with the number of rules for other paths.
"""

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from bench.samples import rules
from proxy.policy.canonical import canonicalise
from proxy.policy.compile import compile_ruleset
from proxy.policy.decision import Decision, RequestFacts
from proxy.policy.ruleset_yaml import parse_ruleset
from proxy.server.callers.shadow import ShadowEvaluation, ShadowRules

TARGET = "/v1.0/users/ada@contoso.com?$select=id,displayName"
HEADERS = ((b"Accept", b"application/json"), (b"ConsistencyLevel", b"eventual"))


def test_canonicalise_plain_target(benchmark: BenchmarkFixture) -> None:
    assert benchmark(canonicalise, TARGET).path == "/v1.0/users/ada@contoso.com"


@pytest.mark.parametrize("count", [10, 1_000, 10_000])
def test_decide(benchmark: BenchmarkFixture, count: int) -> None:
    compiled = compile_ruleset(parse_ruleset(rules(count)))

    def decide() -> Decision:
        target = canonicalise(TARGET)
        facts = RequestFacts("GET", target, HEADERS, "127.0.0.1", 1.79e9)
        return compiled.plan("GET", target).decide(facts)

    assert benchmark(decide).rule_id == "users"


def test_decide_with_a_shadow(benchmark: BenchmarkFixture) -> None:
    """Measure a decision with a second ruleset, as for an application with a shadow ruleset."""
    compiled = compile_ruleset(parse_ruleset(rules(1_000)))
    shadow = ShadowRules(compile_ruleset(parse_ruleset(rules(1_000))), 2)

    def decide() -> tuple[Decision, ShadowEvaluation]:
        target = canonicalise(TARGET)
        tried = RequestFacts("GET", target, HEADERS, "127.0.0.1", 1.79e9, b"")
        evaluation = ShadowEvaluation(shadow, tried, body_known=True)
        facts = RequestFacts("GET", target, HEADERS, "127.0.0.1", 1.79e9)
        return compiled.plan("GET", target).decide(facts), evaluation

    decision, evaluation = benchmark(decide)
    assert decision.rule_id == evaluation.rule_id == "users"
