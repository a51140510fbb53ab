"""Pure functions that add a rule at the start of a ruleset's text.

The added rule allows one given request.
"""

from __future__ import annotations

import re
from typing import Final

from controlplane.operations.operation import InvalidRequest
from controlplane.workshop.suggest import Observations, suggest
from proxy.policy.ruleset_yaml import InvalidRuleset, parse_ruleset
from proxy.policy.yaml_document import parse

_ITEM: Final = re.compile(r"( *)- ")
_ID: Final = re.compile(r"(  - id: )(\S+)")


def with_allowing_rule(text: str, method: str, target: str) -> str:
    """Return a ruleset's text in which new rules at the start allow the request.

    Raise InvalidRequest if no rule can allow the request, or if the ruleset's text has a rule that does not
    start on its own line.
    """
    try:
        ids = {rule.id for rule in parse_ruleset(text).rules}
    except InvalidRuleset as error:
        raise InvalidRequest(*(f"line {one.line}: {one.message}" for one in error.problems[:5])) from None
    lines = text.splitlines()
    document = parse(text)
    item = _ITEM.match(lines[document.mark(("rules", 0), at_key=False)[0] - 1]) if ids else None
    if item is None:
        raise InvalidRequest("rules: write at least one rule, and each rule on separate lines")
    after = document.mark(("rules",), at_key=True)[0]
    added = [f"{item[1]}{line[2:]}" for line in _rules(method, target, ids)]
    return "\n".join([*lines[:after], *added, *lines[after:]]) + "\n"


def _rules(method: str, target: str, used: set[str]) -> list[str]:
    """Return the text lines of rules that allow the request, indented by two spaces."""
    observed = Observations()
    observed.add(method, target, None, was_blocked=True)
    found = suggest(observed, "draft")
    if not found.rules:
        raise InvalidRequest(f"path and query: no rule can allow {method} {target}")
    lines = found.yaml.splitlines()
    return [_with_own_id(line, used) for line in lines[lines.index("rules:") + 1 :]]


def _with_own_id(line: str, used: set[str]) -> str:
    named = _ID.fullmatch(line)
    if named is None:
        return line
    own, number = named[2], 2
    while own in used:
        own, number = f"{named[2]}-{number}", number + 1
    used.add(own)
    return named[1] + own
