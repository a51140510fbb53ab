"""One-line summaries of open routes: allowed request paths that bypass a rule of the ruleset."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from controlplane.workshop.advice import ruleset_advice
from controlplane.workshop.refused_expansions import refused_expansions
from controlplane.workshop.routes import (
    GRAPH_ROOT,
    MAX_ROUTES,
    Passing,
    RuleRoutes,
    first_of_each_kind,
    routes_of,
)
from proxy.policy import yaml_document
from proxy.policy.resource_model import ResourceModel
from proxy.policy.ruleset import Rule, Ruleset
from proxy.policy.ruleset_yaml import RulesetProblem, at_most, document_problem

_CHECKED: Final = 50_000  # requests that a check evaluates, about 2 s
_SHOWN: Final = 3  # open routes, things and lines listed in a summary
_VERBS: Final = {"block": "blocks", "filter": "filters"}
_NO_SCHEMA: Final = "without a schema, only routes that can be derived from the paths in the rules were tried"
UNKNOWN_PATH: Final = "the schema has nothing at this path"


def rule_places(text: str, ruleset: Ruleset) -> tuple[int, ...]:
    """Return the line number of each rule in the text of a ruleset."""
    return _lines_of(yaml_document.parse(text), ruleset)


def _lines_of(document: yaml_document.Document, ruleset: Ruleset) -> tuple[int, ...]:
    return tuple(document.mark(("rules", at), at_key=False)[0] for at in range(len(ruleset.rules)))


def advice_with_routes(
    text: str,
    ruleset: Ruleset,
    now: float | None,
    model: ResourceModel | None = None,
    root: str = GRAPH_ROOT,
) -> tuple[RulesetProblem, ...]:
    """Return the warnings about a ruleset, with a warning for each rule that an open route bypasses.

    An open route is a request path that the ruleset allows, although it leads to data that the bypassed rule
    blocks or filters.

    `root` is the root path of the service that the schema describes.
    """
    document = yaml_document.parse(text)
    refused = [
        document_problem(document, ("rules", index, "conditions"), message)
        for index, message in refused_expansions(ruleset)
    ]
    found = (*ruleset_advice(text, ruleset, now), *route_warnings(document, ruleset, model, root), *refused)
    return tuple(sorted(found, key=lambda one: (one.line, one.column)))


def route_warnings(
    document: yaml_document.Document, ruleset: Ruleset, model: ResourceModel | None, root: str
) -> tuple[RulesetProblem, ...]:
    """Return a warning for each rule that open routes bypass, and for each rule path outside the schema.

    An open route is a request path that the ruleset allows, although it leads to data that the bypassed rule
    blocks or filters. A rule also gets a warning if `$expand` lets through objects that another rule hides.
    """
    report = routes_of(ruleset, model, limit=_CHECKED, root=root)
    lines = _lines_of(document, ruleset)
    problems: list[RulesetProblem] = []
    for found in report.rules:
        if found.open or found.passing:
            message = summary(ruleset.rules[found.index], found, lines)
            if model is None:
                message = f"{message}; {_NO_SCHEMA}"
            problems.append(document_problem(document, ("rules", found.index, "match"), message))
    for index, at in dict.fromkeys(report.unknown):
        problems.append(document_problem(document, ("rules", index, "match", "path", at), UNKNOWN_PATH))
    return tuple(at_most(sorted(problems, key=lambda one: (one.line, one.column))))


def counted(rule: Rule, found: RuleRoutes) -> str:
    """Describe how many routes to the schema elements of a rule are closed by this rule.

    Return an empty text if the rule has the verdict allow.
    """
    if not found.routes:
        return ""
    closed = found.routes - len(found.open)
    count = f"the first {MAX_ROUTES:,}" if found.cut else f"{found.routes:,}"
    return f"{_VERBS[rule.verdict]} {closed:,} of {count} routes to {_listed(found.things)}"


def summary(rule: Rule, found: RuleRoutes, lines: tuple[int, ...]) -> str:
    """Summarise in one line the request paths to the data that a rule names, and those that bypass the rule.

    `lines` has the line number of each rule in the text of the ruleset.
    """
    return "; ".join(_parts(rule, found, lines))


def _parts(rule: Rule, found: RuleRoutes, lines: tuple[int, ...]) -> Iterator[str]:
    if found.routes:
        yield counted(rule, found)
    if found.open:
        yield f"open: {_listed(tuple(each.template for each in first_of_each_kind(found.open)))}"
        if found.closed_by:
            yield f"`{found.closed_by}` closes them"
    if found.passing:
        yield passing_summary(found.passing, lines)


def passing_summary(passing: tuple[Passing, ...], lines: tuple[int, ...]) -> str:
    """Return a sentence on the `$expand` navigations that a rule allows.

    The sentence also gives the numbers of the lines with the rules that hide the expanded objects.
    """
    names = _listed(tuple(each.navigation for each in passing))
    hiding = sorted({lines[index] for each in passing for index in each.hidden_by})
    if not hiding:
        return f"$expand of {names} passes"
    shown = _listed(tuple(map(str, hiding)))
    verb = "hides" if len(hiding) == 1 else "hide"
    return f"$expand of {names} passes with objects that line {shown} {verb}"


def _listed(texts: tuple[str, ...]) -> str:
    shown = ", ".join(texts[:_SHOWN])
    return f"{shown} ({len(texts) - _SHOWN:,} more)" if len(texts) > _SHOWN else shown
