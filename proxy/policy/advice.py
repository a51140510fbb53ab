"""What a sound ruleset may still have overlooked."""

from __future__ import annotations

from typing import Any, cast

from proxy.policy import yaml_document
from proxy.policy.ruleset_yaml import RulesetProblem, document_problem

_UNGUARDED = (
    "this filter says nothing of guard_queries: without it, $filter and its relatives tell what the answer "
    "hides; write `guard_queries: true`, or false where that is meant"
)


def ruleset_advice(text: str) -> tuple[RulesetProblem, ...]:
    """Of a text that parse_ruleset has taken."""
    document = yaml_document.parse(text)
    ruleset = cast("dict[str, Any]", document.value)
    return tuple(
        document_problem(document, ("rules", at, "transforms"), _UNGUARDED)
        for at, rule in enumerate(ruleset["rules"])
        if rule["verdict"] == "filter" and "guard_queries" not in rule and _is_asked_with_a_query(rule)
    )


def _is_asked_with_a_query(rule: dict[str, Any]) -> bool:
    methods = rule["match"].get("methods") or ["GET"]
    return not {"GET", "HEAD"}.isdisjoint(method.upper() for method in methods)
