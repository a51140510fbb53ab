"""Pure function that finds the lines of a rule in the text of a ruleset."""

from __future__ import annotations

from proxy.policy.scalars import as_text
from proxy.policy.yaml_document import InvalidYaml, parse


def rule_lines(text: str, rule_id: str) -> tuple[int, int] | None:
    """Return the first and the last line of a rule, counted from 1.

    Comment lines before a rule belong to that rule.
    """
    try:
        document = parse(text)
    except InvalidYaml:
        return None
    rules = document.value.get("rules") if isinstance(document.value, dict) else None
    if not isinstance(rules, list):
        return None
    ids = [as_text(rule.get("id")) if isinstance(rule, dict) else None for rule in rules]
    if rule_id not in ids:
        return None
    at = ids.index(rule_id)
    lines = text.splitlines()
    first = document.mark(("rules", at), at_key=False)[0]
    last = document.mark(("rules", at + 1), at_key=False)[0] - 1 if at + 1 < len(ids) else len(lines)
    while last > first and (not lines[last - 1].strip() or lines[last - 1].lstrip().startswith("#")):
        last -= 1
    return first, max(first, last)
