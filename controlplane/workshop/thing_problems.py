"""Find the names in a ruleset text that no schema contains, and the position of each name."""

from __future__ import annotations

from proxy.policy import yaml_document
from proxy.policy.ruleset import Ruleset
from proxy.policy.ruleset_yaml import RulesetProblem, at_most, document_problem
from proxy.policy.schemas import Schemas
from proxy.policy.things import unknown_things


def thing_problems(text: str, ruleset: Ruleset, schemas: Schemas) -> tuple[RulesetProblem, ...]:
    """Return an error, with line and column, for each name that no schema contains."""
    unknown = list(unknown_things(ruleset, schemas))
    if not unknown:
        return ()
    document = yaml_document.parse(text)
    return tuple(at_most([document_problem(document, each.place, each.message) for each in unknown]))
