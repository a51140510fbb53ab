"""List requests that bypass a rule and reach a type, relation, property or operation that the rule names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final

import msgspec

from controlplane.workshop.named_things import (
    SAMPLE_ID,
    NamedThing,
    Thing,
    ThingKind,
    thing_of,
    things_of_match,
)
from controlplane.workshop.route_enumeration import Example, Route, RouteEnumeration, RouteKind
from controlplane.workshop.routes_by_path import routes_by_path, thing_by_path
from controlplane.workshop.schema_graph import Edge, SchemaGraph
from proxy.policy.canonical import MalformedTarget, canonicalise
from proxy.policy.compile import CompiledRuleset, compile_ruleset
from proxy.policy.decision import Decision, RequestFacts
from proxy.policy.paths import parse_pattern
from proxy.policy.resource_model import ResourceModel
from proxy.policy.ruleset import Rule, Ruleset
from proxy.policy.schemas import NO_SCHEMAS, Schemas, folded_root, needs_schemas, root_segments
from proxy.policy.services.known import facts_of
from proxy.policy.transforms import ANYWHERE, Transforms, covers

MAX_ROUTES: Final = 10_000  # routes of one rule to evaluate
MAX_REQUESTS: Final = 200_000  # examples of one ruleset to evaluate, about 10 s
# Examples times rules, because the evaluation of one example takes longer with many rules
_MAX_WORK: Final = 5_000_000
GRAPH_ROOT: Final = "/v1.0"
_KINDS: Final = tuple(RouteKind)
_JSON: Final = ((b"content-type", b"application/json"),)
_SAMPLED: Final = frozenset(("query",))  # sources of conditions that an example can satisfy


@dataclass(frozen=True, slots=True)
class OpenRoute:
    """A route to a schema element that bypasses the rule about this element, with an example request."""

    kind: RouteKind
    template: str
    example: Example
    verdict: str
    decided_by: str


@dataclass(frozen=True, slots=True)
class Passing:
    """A navigation that a rule lets an application read with the query option `$expand`.

    `hidden_by` has the indexes of the rules that block or filter the navigation's target.
    """

    navigation: str
    example: Example
    hidden_by: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RuleRoutes:
    """The routes to the schema elements that one rule names.

    `cut` is True if there are more than MAX_ROUTES routes.
    """

    index: int
    things: tuple[str, ...]
    routes: int
    cut: bool
    open: tuple[OpenRoute, ...]
    closed_by: str
    passing: tuple[Passing, ...] = ()


@dataclass(frozen=True, slots=True)
class RoutesReport:
    """Report on requests that bypass the rules of a ruleset and reach the schema elements in these rules.

    Each entry of `unknown` stands for a path that the schema does not contain: the rule and the path's
    position. `skipped` counts the rules that were not examined because the ruleset has too many routes.
    """

    rules: tuple[RuleRoutes, ...]
    unknown: tuple[tuple[int, int], ...]
    skipped: int


def routes_of(
    ruleset: Ruleset,
    model: ResourceModel | None,
    *,
    through_references: bool = False,
    only: str | None = None,
    limit: int = MAX_REQUESTS,
    root: str = GRAPH_ROOT,
) -> RoutesReport:
    """Return the routes that bypass each rule, or only those that bypass the rule with the ID `only`.

    Without a schema (`model` is None), the function tries only the routes that the rule's path alone reveals.
    If `model` is None, a ruleset with rules about schema elements gets an empty report. `root` is the root
    path of the service that the model describes.
    """
    limit = min(limit, _MAX_WORK // (len(ruleset.rules) + 1))
    if model is None and needs_schemas(ruleset):
        return RoutesReport((), (), len(ruleset.rules))
    return _Examination(ruleset, model, root_segments(folded_root(root)), through_references, limit).report(
        only
    )


def first_of_each_kind(routes: tuple[OpenRoute, ...]) -> tuple[OpenRoute, ...]:
    """Return all routes, sorted so that one route of each kind comes first."""
    firsts = {each.kind: each for each in reversed(routes)}
    leading = [each for each in routes if firsts[each.kind] is each]
    return (*leading, *(each for each in routes if firsts[each.kind] is not each))


def _with_method(template: str, method: str) -> str:
    """Return a path template, with the method in front unless the method is GET."""
    return f"{method} {template}" if method != "GET" and template.startswith("/") else template


class _Examination:
    """Search in one schema for open routes: requests that a ruleset allows and that bypass one of its rules.

    The search assumes that conditions on the client address and on the time are true.
    """

    def __init__(
        self,
        ruleset: Ruleset,
        model: ResourceModel | None,
        root: tuple[str, ...],
        through_references: bool,
        limit: int,
    ) -> None:
        self._root = root
        self._schemas = NO_SCHEMAS if model is None else Schemas({root: model})
        self._graph = None if model is None else SchemaGraph(model)
        self._through_references = through_references
        self._ruleset = msgspec.structs.replace(
            ruleset, rules=tuple(msgspec.structs.replace(rule, ip=None, time=None) for rule in ruleset.rules)
        )
        self._compiled = compile_ruleset(self._ruleset, schemas=self._schemas)
        self._left = limit
        self._unknown: list[tuple[int, int]] = []
        self._named = tuple(tuple(self._things_of(at, rule)) for at, rule in enumerate(ruleset.rules))

    def report(self, only: str | None) -> RoutesReport:
        found: list[RuleRoutes] = []
        skipped = 0
        for index, rule in enumerate(self._ruleset.rules):
            if rule.verdict == "log_only" or (only is not None and rule.id != only) or not self._named[index]:
                continue
            if self._left <= 0:
                skipped += 1
                continue
            examined = self._examined(index, rule)
            if examined is not None:
                found.append(examined)
        return RoutesReport(tuple(found), tuple(self._unknown), skipped)

    def _things_of(self, index: int, rule: Rule) -> Iterator[NamedThing]:
        if rule.match.names_things and self._graph is not None:
            yield from things_of_match(self._graph, rule.match, self._root)
        for at, path in enumerate(rule.match.path):
            for pattern in parse_pattern(path):
                if not any(pattern.segments[1:]):
                    continue  # a version or wildcards alone name nothing
                graph = self._graph
                named = thing_by_path(path, pattern) if graph is None else thing_of(graph, pattern)
                if named is None:
                    self._unknown.append((index, at))
                else:
                    yield named

    def _examined(self, index: int, rule: Rule) -> RuleRoutes | None:
        compiled = self._compiled_for(index, rule)
        things = tuple(dict.fromkeys(named.thing.word for named in self._named[index]))
        passing = tuple(self._passing(index, rule, compiled))
        if rule.verdict == "allow":
            return RuleRoutes(index, things, 0, False, (), "", passing) if passing else None
        if not self._holds_at_its_own_path(index, rule, compiled):
            return None
        opened: list[OpenRoute] = []
        count, routes = 0, self._routes(index, rule)
        for route in islice(routes, MAX_ROUTES):
            count += 1
            found = self._open(route, rule, compiled)
            if found is not None:
                opened.append(found)
        cut = next(routes, None) is not None
        opened.sort(key=lambda each: _KINDS.index(each.kind))
        by_words = rule.match.names_things
        closed_by = "" if by_words else self._closing_match([named.thing for named in self._named[index]])
        return RuleRoutes(index, things, count, cut, tuple(opened), closed_by, passing)

    def _compiled_for(self, index: int, rule: Rule) -> CompiledRuleset:
        """Compile the ruleset; of the conditions of the given rule, keep only those on the query."""
        kept = tuple(each for each in rule.conditions if each.source in _SAMPLED)
        if len(kept) == len(rule.conditions):
            return self._compiled
        self._left -= len(self._ruleset.rules)  # compiling a rule costs as much as evaluating a request
        rules = list(self._ruleset.rules)
        rules[index] = msgspec.structs.replace(rule, conditions=kept)
        changed = msgspec.structs.replace(self._ruleset, rules=tuple(rules))
        return compile_ruleset(changed, schemas=self._schemas)

    def _routes(self, index: int, rule: Rule) -> Iterator[Route]:
        """Yield, without repetition, each route to a schema element that the rule names."""
        seen: set[tuple[RouteKind, str]] = set()
        known: set[tuple[Thing, tuple[str, ...]]] = set()
        methods = frozenset(method.upper() for method in rule.match.methods)
        for named in self._named[index]:
            if (named.thing, named.prefix) in known:
                continue
            known.add((named.thing, named.prefix))
            for route in self._routes_to(named, methods):
                if (route.kind, route.template) not in seen:
                    seen.add((route.kind, route.template))
                    yield route

    def _routes_to(self, named: NamedThing, methods: frozenset[str]) -> Iterator[Route]:
        if self._graph is None:
            return routes_by_path(named, methods)
        enumeration = RouteEnumeration(self._graph, through_references=self._through_references)
        return enumeration.routes(named, methods)

    def _holds_at_its_own_path(self, index: int, rule: Rule, compiled: CompiledRuleset) -> bool:
        """Return True if the rule's verdict has its full effect on some request at the rule's own paths."""
        for named in self._named[index]:
            for example in own_examples(named, rule.match.methods):
                decision = self._decided(example, compiled)
                if decision is None:
                    continue
                deciding = (*decision.rule_ids, *_response_rules(example, compiled))
                if rule.id in deciding and self._is_as_strict(rule, decision, example, compiled):
                    return True
        return False

    def _open(self, route: Route, rule: Rule, compiled: CompiledRuleset) -> OpenRoute | None:
        for example in route.examples:
            decision = self._decided(example, compiled)
            if decision is None or (route.link and _hides_link(decision, route.link)):
                continue
            if not self._is_as_strict(rule, decision, example, compiled, route.place):
                told = _with_method(route.template, example.method)
                return OpenRoute(route.kind, told, example, decision.verdict, decision.rule_id)
        return None

    def _decided(self, example: Example, compiled: CompiledRuleset) -> Decision | None:
        """Return the proxy's decision on the example request, or None if the proxy refuses the request."""
        self._left -= 1
        body = None if example.body is None else example.body.encode()
        try:
            facts = RequestFacts(example.method, canonicalise(example.target), _JSON, "", 0.0, body)
            return compiled.plan(example.method, facts.target).decide(facts)
        except MalformedTarget:
            return None

    @staticmethod
    def _is_as_strict(
        rule: Rule, decision: Decision, example: Example, compiled: CompiledRuleset, place: str = ""
    ) -> bool:
        """Return True if the decision on the example request hides at least as much as the rule would hide.

        `place` is the property path to the schema element in the response.
        """
        if decision.verdict == "block":
            return True
        if rule.when == "response":
            return rule.id in _response_rules(example, compiled)
        if rule.verdict != "filter" or decision.verdict != "filter" or decision.transforms is None:
            return False
        if rule.match.names_things:
            # A filter applies to each object of the thing, at every position
            return rule.id in decision.rule_ids
        return rule.transforms is None or _hides_at(decision.transforms, rule.transforms, place)

    def _closing_match(self, things: list[Thing]) -> str:
        """Return the text of a `match` that covers every path to the schema elements; "" without a schema."""
        if self._graph is None:
            return ""
        operations = dict.fromkeys(each.word for each in things if each.kind is ThingKind.OPERATION)
        resources = dict.fromkeys(each.word for each in things if each.kind is not ThingKind.OPERATION)
        parts = [f"resource: [{', '.join(resources)}]"] if resources else []
        parts += [f"operation: [{', '.join(operations)}]"] if operations else []
        packs = [
            f" or {{pack: [{name}]}}"
            for name, pack in facts_of(self._graph.model).packs.items()
            if set(resources) <= set(pack.resource) and set(operations) <= set(pack.operation)
        ]
        return f"match: {{{', '.join(parts)}}}" + "".join(packs[:1])

    # Navigations that an allow or a filter passes.

    def _passing(self, index: int, rule: Rule, compiled: CompiledRuleset) -> Iterator[Passing]:
        """Yield each relation that other rules hide, but that the rule lets requests read by `$expand`."""
        methods = {method.upper() for method in rule.match.methods}
        if rule.verdict == "block" or rule.when == "response" or (methods and "GET" not in methods):
            return
        seen: set[str] = set()
        for named in self._named[index]:
            if self._graph is None or named.leads_to < 0:
                continue
            for edge in self._graph.edges(named.leads_to):
                name = edge.segments[-1]
                if not edge.expandable or name in seen:
                    continue
                target = "/" + "/".join((*named.prefix, *named.address)) + f"?$expand={name}"
                example = Example("GET", target)
                decision = self._decided(example, compiled)
                if decision is None or not _comes_through(rule, decision, name):
                    continue
                hidden_by = tuple(self._hiding(index, edge, decision))
                if hidden_by:
                    seen.add(name)
                    yield Passing(name, example, hidden_by)

    def _hiding(self, index: int, edge: Edge, decision: Decision) -> Iterator[int]:
        """Yield the index of each rule that hides a relation's objects but did not affect `decision`."""
        for at, rule in enumerate(self._ruleset.rules):
            methods = {method.upper() for method in rule.match.methods}
            if at == index or rule.verdict not in ("block", "filter") or rule.id in decision.rule_ids:
                continue
            if methods and "GET" not in methods:
                continue
            if any(self._is_about(named.thing, edge) for named in self._named[at]):
                yield at

    def _is_about(self, thing: Thing, edge: Edge) -> bool:
        if thing.kind is ThingKind.TYPE and self._graph is not None:
            return self._graph.may_be(edge.target, thing.type)
        return thing.kind is ThingKind.RELATION and thing.member == edge.member


def own_examples(named: NamedThing, methods: tuple[str, ...]) -> Iterator[Example]:
    """Yield an example request to each address that a rule names, and to one object of each collection."""
    address = (*named.prefix, *named.address)
    for method in methods or ("GET", "POST"):
        for segments in (address, (*address, SAMPLE_ID)) if named.many else (address,):
            yield Example(method.upper(), "/" + "/".join(segments))


def _comes_through(rule: Rule, decision: Decision, name: str) -> bool:
    """Return True if a rule allows a request that expands the named navigation."""
    if decision.verdict == "block" or rule.id not in decision.rule_ids:
        return False
    return decision.transforms is None or _shows(decision.transforms, name)


def _response_rules(example: Example, compiled: CompiledRuleset) -> set[str]:
    readings = canonicalise(example.target).readings
    return {
        candidate.entry.compiled.rule.id
        for reading in readings
        for candidate in compiled.rules.candidates(reading, example.method, {})
        if candidate.entry.compiled.on_response and candidate.entry.compiled.concerns(example.method)
    }


def _hides_link(decision: Decision, link: str) -> bool:
    """Return True if the response does not contain `link`, the property with the address of a stream."""
    found = decision.transforms
    if decision.verdict != "filter" or found is None:
        return False
    anywhere = f"{ANYWHERE}.{link}" in found.strip
    return anywhere or not _shows(found, link) or any(link in each.strip for each in found.typed)


def _hides_at(found: Transforms, wanted: Transforms, place: str) -> bool:
    """Return True if, in objects at the path `place`, `found` hides every property that `wanted` hides."""
    if any(_hides_as_much(Transforms(each.strip, each.allow), wanted) for each in found.typed):
        return True
    if not place:
        return _hides_as_much(found, wanted)
    if not _shows(found, place):
        return True
    strip = tuple(path[len(place) + 1 :] for path in found.strip if path.startswith(f"{place}."))
    allow = next((listed for where, listed in found.within if where == place), None)
    return _hides_as_much(Transforms(strip, allow), wanted)


def _hides_as_much(found: Transforms, wanted: Transforms) -> bool:
    """Return True if the transforms `found` hide every property that the transforms `wanted` hide."""
    if wanted.allow is not None:
        if found.allow is None:
            return False
        if not all(any(covers(kept, path) for kept in wanted.allow) for path in found.allow):
            return False
    return all(not _shows(found, path) for path in wanted.strip)


def _shows(transforms: Transforms, path: str) -> bool:
    """Return True if the filtered response still contains the property, or at least a part of it."""
    if any(covers(stripped, path) for stripped in transforms.strip):
        return False
    if transforms.allow is None:
        return True
    return any(covers(kept, path) or covers(path, kept) for kept in transforms.allow)
