"""Find rules that allow a `$expand` although no rule allows the further request that `$expand` implies."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from controlplane.workshop.closed_gaps import gap_of_implied
from controlplane.workshop.named_things import SAMPLE_ID, VERSION
from proxy.policy.canonical import MalformedTarget, canonicalise
from proxy.policy.compile import CompiledRuleset, compile_ruleset
from proxy.policy.decision import RequestFacts
from proxy.policy.paths import Pattern, parse_pattern
from proxy.policy.ruleset import Rule, Ruleset
from proxy.policy.schemas import needs_schemas

_MOST: Final = 1_000  # requests to evaluate


def refused_expansions(ruleset: Ruleset) -> Iterator[tuple[int, str]]:
    """Yield index and message for each rule that allows a `$expand` which the ruleset still refuses.

    The check treats conditions on the client address and on the time as always true.
    """
    if needs_schemas(ruleset):
        return
    asking = [(index, rule, list(_expanded(rule))) for index, rule in enumerate(ruleset.rules)]
    if not any(values for _, _, values in asking):
        return
    opened = tuple(msgspec.structs.replace(rule, ip=None, time=None, until=None) for rule in ruleset.rules)
    rules = compile_ruleset(msgspec.structs.replace(ruleset, rules=opened))
    left = _MOST
    for index, rule, values in asking:
        for value in values:
            for pattern in (pattern for path in rule.match.path for pattern in parse_pattern(path)):
                left -= 1
                if left < 0:
                    return
                message = _refused(rules, pattern, value)
                if message:
                    yield index, message
                    break


def _expanded(rule: Rule) -> Iterator[str]:
    """Yield the values of `$expand` that a rule's conditions name."""
    if rule.verdict not in ("allow", "filter") or rule.when == "response":
        return
    for condition in rule.conditions:
        if condition.source == "query" and condition.name.lower().lstrip("$") == "expand":
            for test in condition.tests:
                if test.operator in ("equals", "in"):
                    operand = test.operand
                    values = operand if isinstance(operand, tuple) else (operand,)
                    yield from (value for value in values if isinstance(value, str))


def _refused(rules: CompiledRuleset, pattern: Pattern, value: str) -> str:
    words = [word or (VERSION if at == 0 else SAMPLE_ID) for at, word in enumerate(pattern.segments)]
    try:
        target = canonicalise("".join(f"/{word}" for word in words) + f"?$expand={value}")
        decision = rules.plan("GET", target).decide(RequestFacts("GET", target, (), "", 0.0))
    except MalformedTarget:
        return ""
    gap = gap_of_implied(decision, target) if decision.verdict == "block" else None
    if gap is None:
        return ""
    remedy = (
        f": to allow it, add a rule with `{gap.line}`" if gap.line else f", which `{decision.rule_id}` blocks"
    )
    return f"this rule takes $expand={value}, but {gap.cause}{remedy}"
