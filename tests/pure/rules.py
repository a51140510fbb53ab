"""Short helpers that tests use to write a ruleset and a request."""

from __future__ import annotations

from collections.abc import Sequence

from proxy.policy.canonical import canonicalise
from proxy.policy.compile import CompiledRuleset, compile_ruleset
from proxy.policy.decision import Decision, RequestFacts, ResponseFacts
from proxy.policy.ruleset_yaml import parse_ruleset

Headers = Sequence[tuple[bytes, bytes]]
THURSDAY_NOON_UTC = 1_763_640_000  # 2025-11-20T12:00:00Z


def compiled(rules: str, default: str = "block") -> CompiledRuleset:
    """Compile a ruleset from `rules`, a list of rules in YAML."""
    indented = "\n".join("  " + line for line in rules.strip("\n").splitlines())
    return compile_ruleset(
        parse_ruleset(f"version: 1\nname: test\ndefault: {default}\nrules:\n{indented or '  []'}")
    )


def request(
    target: str,
    method: str = "GET",
    *,
    headers: Headers = (),
    client_ip: str = "192.0.2.1",
    now: float = THURSDAY_NOON_UTC,
    body: bytes | None = None,
) -> RequestFacts:
    return RequestFacts(method, canonicalise(target), headers, client_ip, now, body)


def decide(
    rules: CompiledRuleset,
    target: str,
    method: str = "GET",
    *,
    headers: Headers = (),
    client_ip: str = "192.0.2.1",
    now: float = THURSDAY_NOON_UTC,
    body: bytes | None = None,
) -> Decision:
    facts = request(target, method, headers=headers, client_ip=client_ip, now=now, body=body)
    return rules.plan(method, facts.target).decide(facts)


def decide_response(
    rules: CompiledRuleset,
    target: str,
    status: int = 200,
    body: bytes | None = None,
    *,
    method: str = "GET",
    headers: Headers = (),
) -> Decision:
    facts = request(target, method)
    plan = rules.plan(method, facts.target)
    return plan.decide_response(facts, plan.decide(facts), ResponseFacts(status, headers, body))


def verdict(rules: CompiledRuleset, target: str, method: str = "GET", *, headers: Headers = ()) -> str:
    return decide(rules, target, method, headers=headers).verdict
