"""Find the rules for a request and for the requests that it implies.

Combine the found rules into an evaluation plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from enum import Enum
from typing import Any, Final

from proxy.policy.candidates import (
    asks_for_no_item,
    counts_for,
    names_hidden_below,
    names_hidden_within,
    step_below,
)
from proxy.policy.canonical import ANY_KEY, ANY_NAME, SLASH, UNTAKEN, Name, Reading, Target
from proxy.policy.compiled_rule import (
    NO_PATTERN,
    REFUSES,
    Candidate,
    CompiledRule,
    Entry,
)
from proxy.policy.conditions import (
    INDETERMINATE,
    NO,
    YES,
)
from proxy.policy.content_paths import CONTENT, handed_over, may_open, opens_any_drive
from proxy.policy.decision import NOTHING, Decision, ImpliedRules, Importance, Lane, Plan, Step, indeterminate
from proxy.policy.facts import BodyNeeded, MalformedBody, RequestFacts
from proxy.policy.implied import (
    CONTENT_OF_ANY_DRIVE,
    OPENED_ITEM,
    SEARCHED,
    WRITES,
    Below,
    Effect,
    Implied,
    Opening,
    Scope,
    Searched,
    Suffix,
    Way,
    brings_relations,
    holds_bytes,
    implied_by_addresses,
    implied_by_members,
    implied_by_query,
    implied_by_search,
    implied_by_subscription,
    is_stream,
    query_may_imply,
    readings_below,
    says_json,
    searches,
    subscribes,
)
from proxy.policy.odata import KEY, SHADOW
from proxy.policy.operations import FUNCTION_METHODS
from proxy.policy.paths import Node, PathTree, Pattern
from proxy.policy.schemas import Schemas
from proxy.policy.thing_rules import HIDES, NOTHING_HIDDEN, STRIPS, Finding, ThingRules
from proxy.policy.transforms import EVERYTHING

_MAX_IMPLIED_PLANS: Final = 64  # plans of implied requests that one plan remembers
_WITHOUT_KEYS: Final = frozenset(("me", "drive", "root", "calendar", "list", "external", "search"))
_ADDRESSES: Final = "addresses of content"
_ANY_SEGMENTS: Final = frozenset((ANY_KEY, ANY_NAME))
UNKNOWN_PLAN: Final[Any] = object()

_IMPLYING: Final = frozenset((Scope.ALL, Scope.RULES))
_HIDING: Final = frozenset((Scope.ALL, Scope.RULES, Scope.PROBED))


class RuleFinder:
    """Finder of the rules that apply to a request.

    To avoid a reference cycle, the finder does not refer to evaluation plans, because each plan refers to the
    finder.
    """

    def __init__(
        self,
        default: Decision,
        tree: PathTree[Entry],
        words: Mapping[str, str],
        schemas: Schemas,
        things: ThingRules,
        of_things: Mapping[int, Entry],
        *,
        spells_content: bool,
    ) -> None:
        self._spells_content = spells_content
        self.schemas = schemas
        self.default = default
        self.tree = tree
        self.things = things
        self._of_things = of_things  # rules about things, by index
        self._names_of_things = things.stricter_names() if of_things else frozenset()
        self._words = words  # words that make a difference for rules, each mapped to itself
        # Without a rule that blocks or filters, implied requests make no difference.
        self._all_pass = default.verdict == "allow" and not tree.root.strictness and not of_things

    @property
    def word(self) -> Callable[[str], str | None]:
        """Function that returns a path segment if a rule or the schema contains it; otherwise None."""
        return self._word_of if self._of_things else self._words.get

    def known(self, words: tuple[str, ...]) -> tuple[str, ...]:
        """Return the given path segments, with a placeholder for each segment that no rule contains."""
        word = self.word
        return tuple([each if each in _ANY_SEGMENTS else word(each) or "/" for each in words])

    def _word_of(self, segment: str) -> str | None:
        """Return the path segment if a rule or a schema has a name that is equal to the segment."""
        return self._words.get(segment) or (segment if self.things.knows(segment) else None)

    def plan_of_readings(
        self, method: str, readings: Sequence[Reading], scope: Scope = Scope.ALL, *, hides: bool = False
    ) -> Plan:
        """Return the evaluation plan of a request that has the given method and path interpretations.

        If the path names a property that a filter hides, the plan normally blocks the request. If `hides` is
        True, the evaluation plan removes the hidden property from the response instead of blocking the
        request.
        """
        # Only expanded relations have options, which may imply further requests.
        last = self._all_pass or scope not in _IMPLYING
        implied = None if last else ImpliedOfPlan(self, method, readings)
        lanes: list[Lane] = []
        response_lanes: list[Lane] = []
        override_matters = override_reads_body = False
        of_names: dict[Name, list[Candidate]] = {}  # interpretations share most of their names
        for reading in readings:
            candidates = self.candidates(reading, method, of_names)
            if method == "POST" and any(candidate.entry.compiled.methods for candidate in candidates):
                override_matters = True
                override_reads_body |= any(
                    candidate.entry.compiled.reads_body and not candidate.entry.compiled.on_response
                    for candidate in candidates
                )
            concerned = [candidate for candidate in candidates if candidate.entry.compiled.concerns(method)]
            if hides:
                concerned = [_hiding(candidate) for candidate in concerned]
            if scope is Scope.SPELLED_OUT:
                concerned = self._spelled_out(concerned, reading)
            elif scope is Scope.OPENED:
                concerned = [candidate for candidate in concerned if _opens(candidate, reading)]
            importance = importance_of(reading.kind, method)
            unlikely = importance == "shadow" or reading.kind & UNTAKEN or scope is not Scope.ALL
            default = NOTHING if unlikely else self.default
            lanes.append(_lane(importance, concerned, default, on_response=False))
            if any(candidate.entry.compiled.on_response for candidate in concerned):
                response_lanes.append(_lane(importance, concerned, NOTHING, on_response=True))
        return Plan(
            lanes,
            response_lanes,
            needs_body=override_reads_body or any(step.reads_body for step in _steps(lanes + response_lanes)),
            response_needs_body=any(step.reads_response for step in _steps(response_lanes)),
            override_plan=self._plan_of_override if override_matters else None,
            implied=implied,
        )

    def _spelled_out(self, candidates: list[Candidate], reading: Reading) -> list[Candidate]:
        """Return the rules that block or filter, and that spell out a relation or property of the path."""
        start = min([name.relations[0] for name in reading.names if name.relations], default=0)
        above: set[int] = set()
        if self._of_things:
            owners = tuple([_owner(name) for name in reading.names])
            findings = self.things.findings(owners, certain_only=False)
            above = {each.index for each in findings if each.kind != STRIPS}
        return [
            candidate
            for candidate in candidates
            if candidate.step.decision.verdict in ("block", "filter")
            and (
                candidate.entry.compiled.index not in above
                if candidate.entry.pattern is NO_PATTERN
                else any(segment is not None for segment in candidate.entry.pattern.segments[start:])
            )
        ]

    def _plan_of_override(self, method: str, request: RequestFacts) -> Plan:
        return self.plan_of_readings(method, request.target.readings)

    # Implied requests

    def plan_of_search(self, searched: str) -> Plan:
        """Return the evaluation plan with all rules that block or filter objects that a search may find.

        The objects that a search finds may belong to any owner.
        """
        found = self._wanted(SEARCHED.get(searched) or Searched(frozenset((searched, f"{searched}s"))))
        for index, transforms in self.things.finds(searched):
            entry = self._of_things[index]
            step = _searching(entry.compiled)
            if step.decision.verdict == "filter":
                step = replace(step, decision=replace(step.decision, transforms=transforms))
            found[index] = Candidate(entry, YES, step)
        return _plan_of_found(found)

    def plan_of_any_drive(self) -> Plan:
        """Return the evaluation plan with the rules that block or filter item content in any drive."""
        return _plan_of_found(self._content_of_any_drive())

    def _content_of_any_drive(self) -> dict[int, Candidate]:
        found = self._wanted(CONTENT_OF_ANY_DRIVE)
        return {index: found[index] for index in found if CONTENT in found[index].entry.pattern.segments}

    def _wanted(self, wanted: Searched) -> dict[int, Candidate]:
        """Return the rules that block or filter the path of an object that a search can find.

        The key of each rule in the returned dictionary is the rule's index in the ruleset.
        """
        found: dict[int, Candidate] = {}
        for entry in self._entries():
            compiled = entry.compiled
            if compiled.step.decision.verdict in ("block", "filter") and _is_searched(entry.pattern, wanted):
                found[compiled.index] = Candidate(entry, INDETERMINATE, _searching(compiled))
        return found

    def openings(self, method: str, readings: Sequence[Reading]) -> tuple[Opening, ...]:
        """Return the ways by which the response to a request can give access to content without a token.

        Return an empty tuple if no path pattern of a rule contains a literal path of file content.
        """
        if not self._spells_content:
            return ()
        names = [name for reading in readings for name in reading.names if may_open(name, method)]
        if not names:
            return ()
        any_drive = any(map(opens_any_drive, names)) and bool(self._content_of_any_drive())
        found = [self._opening(_ADDRESSES, "GET", readings, Effect.ADDRESSES, of_any_drive=any_drive)]
        if method == "POST":
            found += [
                self._opening(operation, opening, readings, Effect.CANNOT)
                for operation, opening in handed_over(names).items()
            ]
        return tuple([each for each in found if each.suffixes or each.of_any_drive])

    def _opening(
        self,
        cause: str,
        method: str,
        readings: Sequence[Reading],
        effect: Effect,
        *,
        of_any_drive: bool = False,
    ) -> Opening:
        suffixes = [suffix for suffix in OPENED_ITEM if self._spells_out(method, readings, suffix)]
        return Opening(cause, method, tuple(suffixes), of_any_drive, effect)

    def _spells_out(self, method: str, readings: Sequence[Reading], suffix: Suffix) -> bool:
        """Return True if a blocking or filtering rule may spell out the request path with `suffix` added."""
        for reading in readings_below(readings, suffix):
            for name in reading.names:
                found, above, perhaps = self.tree.find_any(name)
                for entry in (*found, *perhaps):
                    compiled = entry.compiled
                    if compiled.concerns(method) and (
                        _spells(entry, reading) or names_hidden_within(entry, name)
                    ):
                        return True
                if any(
                    entry.compiled.concerns(method) and names_hidden_below(entry, name, found)
                    for entry in above
                ):
                    return True
        return False

    def below(self, words: Set[str], stricter: Set[str], names: tuple[Name, ...]) -> Below:
        """Return the names in the rules that can follow the path of the request as its next segment."""
        if not self._of_things:
            return Below(words, stricter)
        return _BelowThings(words, stricter | self._names_of_things, self.things, names)

    def fitting(self, implied: Implied) -> Implied:
        """Return the implied request with only those of its possible paths that fit the schema best.

        An implied request is a request that another request causes.
        """
        if not self._of_things or len(implied.ways) < 2:
            return implied
        fits = [self._fit(way) for way in implied.ways]
        best = max(fits)
        ways = [way for way, fit in zip(implied.ways, fits, strict=True) if fit == best]
        return implied._replace(ways=tuple(ways))

    def _fit(self, way: Way) -> int:
        return max([self.things.fit(name) for reading in way.target.readings for name in reading.names])

    def tests_parameters(self, readings: Sequence[Reading]) -> bool:
        """Return True if a rule for one of the request's paths has a condition on a path parameter."""
        for reading in readings:
            for name in reading.names:
                found, above, perhaps = self.tree.find_any(name)
                if any(entry.compiled.parameter_tests for entry in (*found, *above, *perhaps)):
                    return True
        return False

    def _entries(self) -> Iterator[Entry]:
        nodes = [self.tree.root]
        while nodes:
            node = nodes.pop()
            yield from node.ends
            yield from node.rests
            nodes += node.words.values()
            if node.wildcard is not None:
                nodes.append(node.wildcard)

    def stricter_below(self, name: Name) -> bool:
        """Return True if rules may allow a write to a path but block a write to a path below it."""
        if self._of_things:
            return True
        rests = [entry for entry in self.tree.find(name)[0] if entry.pattern.rest]
        for entry in sorted(rests, key=lambda entry: entry.compiled.index):
            compiled = entry.compiled
            if compiled.on_response or compiled.step.decision.verdict == "log_only":
                continue
            if compiled.step.decision.verdict == "block":
                return True
            if not (compiled.step.checks or compiled.parameter_tests or compiled.methods):
                return False
        return self.default.verdict == "block"

    # Rules on a path

    def candidates(
        self, reading: Reading, method: str, of_names: dict[Name, list[Candidate]]
    ) -> list[Candidate]:
        """Return the rules that match the path interpretation or may match it, in file order.

        If a rule matches several resource names of the path, the result contains each step (checks and
        decision) of the rule only once. `of_names` caches candidates.
        """
        best: dict[int, Candidate] = {}
        for name in reading.names:
            candidates = of_names.get(name)
            if candidates is None:
                candidates = of_names[name] = self.candidates_of_name(name, method)
            for candidate in candidates:
                key = id(candidate.step)
                known = best.get(key)
                if known is not None and known.held >= candidate.held:
                    continue
                # This is checked for each name, because a candidate that does not count must not replace one
                # that does.
                if counts_for(candidate, reading):
                    best[key] = candidate
        found = list(best.values())
        if self._of_things:
            found += self.candidates_of_things(reading, method)
        if len(found) > 1:
            found.sort(key=lambda candidate: candidate.order)
        return found

    def candidates_of_things(self, reading: Reading, method: str) -> list[Candidate]:
        """Return the rules that name schema elements and that match the interpretation of the path."""
        certain_only = importance_of(reading.kind, method) != "certain"
        found: list[Candidate] = []
        for each in self.things.findings(reading.names, certain_only=certain_only):
            entry = self._of_things[each.index]
            asks_for_none = each.transforms is not None and asks_for_no_item(entry.compiled, method)
            step = entry.compiled.blocking if asks_for_none else _step_of(entry.compiled, each)
            found.append(Candidate(entry, each.held, step))
        return found

    def candidates_of_name(self, name: Name, method: str) -> list[Candidate]:
        """Return the rules whose path pattern matches the resource name or a path above it, as candidates."""
        candidates: list[Candidate] = []
        perhaps: list[Entry] = []
        if ANY_NAME in name.folded:
            found, above, perhaps = self.tree.find_any(name)
        else:
            found, above = self.tree.find(name)
        candidates += [
            Candidate(entry, INDETERMINATE, entry.compiled.step)
            for entry in perhaps
            if entry.path_holds(name, method) != NO
        ]
        for entry in found:
            held = entry.path_holds(name, method)
            compiled = entry.compiled
            hides = names_hidden_within(entry, name) or asks_for_no_item(compiled, method)
            step = compiled.blocking if hides else compiled.step
            if held != NO:
                candidates.append(Candidate(entry, held, step))
        for entry in above:
            below = step_below(entry, name, found)
            if below is None:
                continue
            held = entry.path_holds(name, method)
            if held != NO:
                candidates.append(Candidate(entry, held, below))
        return candidates


class _BelowThings(Below):
    """Path segments that can follow a path, for a schema that declares the relations of each type."""

    def __init__(
        self, words: Set[str], stricter_words: Set[str], things: ThingRules, names: tuple[Name, ...]
    ) -> None:
        super().__init__(words, stricter_words)
        self._things = things
        self._names = names

    def is_relation(self, word: str) -> bool:
        return word in self.words or self._things.is_relation(self._names, word)

    def may_be_named_in(self, body: bytes) -> bool:
        return True


def _step_of(compiled: CompiledRule, finding: Finding) -> Step:
    """Return how a rule about schema elements applies to a path: its checks and its decision."""
    if finding.kind == HIDES:
        return compiled.blocking
    step = compiled.step
    decision = step.decision
    if finding.kind == NOTHING_HIDDEN:
        decision = replace(decision, verdict="allow", transforms=None)
    elif finding.kind == STRIPS:
        decision = replace(decision, verdict="filter", transforms=finding.transforms)
    elif finding.transforms is not None and finding.transforms != decision.transforms:
        decision = replace(decision, transforms=finding.transforms)
    return step if decision is step.decision else replace(step, decision=decision)


class _BodyOf(Enum):
    """Kinds of request bodies. Bodies of some kinds imply further requests, which the rules evaluate too."""

    NOTHING = "nothing that matters"
    ENTITY = "an entity, which may name relations"
    SUBSCRIPTION = "a subscription"
    SEARCH = "a search"


class ImpliedOfPlan(ImpliedRules):
    """Finder of the additional requests that a request with a given evaluation plan implies.

    The finder caches the evaluation plans of the implied requests.
    """

    __slots__ = (
        "_any_drive",
        "_below",
        "_body",
        "_by_path",
        "_openings",
        "_plans",
        "_readings",
        "_rules",
    )

    def __init__(self, rules: RuleFinder, method: str, readings: Sequence[Reading]) -> None:
        self._rules = rules
        self._readings = tuple(readings)
        self._plans: dict[tuple[str, Scope, Suffix], Plan | None] = {}
        nodes: list[Node[Entry]] = []
        names = [_without_delta(name) for reading in readings for name in reading.names]
        for name in names:
            for node in rules.tree.nodes_at(name):
                nodes.append(node)
                if node.wildcard is not None:
                    nodes.append(node.wildcard)
        words = {word for node in nodes for word in node.words if word[:1] != "$"}
        stricter = {word for node in nodes for word, child in node.words.items() if child.strictness}
        self._below = rules.below(words, stricter, tuple(names))
        self._body = _BodyOf.NOTHING
        if method in WRITES:
            self._body = self._kind_of_body(names, any(node.strictness == REFUSES for node in nodes))
        self._openings = rules.openings(method, self._readings)
        self._any_drive: Plan | None = None
        # The path or a body may imply requests without a query.
        self._by_path = (
            self.reads_body
            or bool(self._openings)
            or any(brings_relations(name) for reading in readings for name in reading.names)
        )

    @property
    def reads_body(self) -> bool:
        return self._body is not _BodyOf.NOTHING

    def _kind_of_body(self, names: Sequence[Name], stricter: bool) -> _BodyOf:
        if any(map(subscribes, names)):
            return _BodyOf.SUBSCRIPTION
        if any(map(searches, names)):
            return _BodyOf.SEARCH
        matters = any(
            not is_stream(name) and (stricter or self._rules.stricter_below(name)) for name in names
        )
        return _BodyOf.ENTITY if matters else _BodyOf.NOTHING

    def may_imply(self, target: Target) -> bool:
        # A path with several interpretations may contain a query after an encoded question mark.
        if self._by_path or target.plain is None:
            return True
        query = target.query
        return query is not None and query_may_imply(query, self._below.stricter_words)

    def requests(self, request: RequestFacts) -> Iterator[Implied]:
        target = request.target
        for implied in implied_by_query(target, self._below):
            yield self._rules.fitting(implied)
        yield from implied_by_addresses(target, self._openings)
        if not self.reads_body or not request.body_known or request.method.upper() not in WRITES:
            return
        if self._body is _BodyOf.SUBSCRIPTION:
            yield from implied_by_subscription(request)
        elif self._body is _BodyOf.SEARCH:
            yield from implied_by_search(request)
        elif self._names_relations(request):
            for implied in implied_by_members(request, self._below):
                yield self._rules.fitting(implied)

    def _names_relations(self, request: RequestFacts) -> bool:
        """Return True if the request body may name a relation, and False if it cannot.

        Raise BodyNeeded or MalformedBody if the request body cannot be read.
        """
        if request.has_document:
            return True
        if holds_bytes(request.headers):
            return False
        if request.unread:
            raise BodyNeeded
        if not request.body or not self._below.may_be_named_in(request.body):
            return False
        if says_json(request.headers):
            return True
        try:
            request.document  # noqa: B018 - raises if the body is not JSON
        except MalformedBody:
            return False
        return True

    def plan(self, way: Way, scope: Scope) -> Plan:
        rules = self._rules
        if way.searched:
            return rules.plan_of_search(way.searched)
        if way.of_any_drive:
            if self._any_drive is None:
                self._any_drive = rules.plan_of_any_drive()
            return self._any_drive
        hides = way.method == "GET" and scope in _HIDING
        if way.suffix is None:
            return rules.plan_of_readings(way.method, way.target.readings)
        suffix = Suffix(tuple([rules.known(name) for name in way.suffix.names]), way.suffix.stem)
        key = (way.method, scope, suffix)
        plan: Plan | None = None
        if key in self._plans:
            plan = self._plans[key]
        else:
            readings = readings_below(self._readings, suffix)
            if not rules.tests_parameters(readings):
                plan = rules.plan_of_readings(way.method, readings, scope, hides=hides)
            if len(self._plans) >= _MAX_IMPLIED_PLANS:
                self._plans.clear()
            self._plans[key] = plan
        return plan or rules.plan_of_readings(way.method, way.target.readings, scope, hides=hides)


def _without_delta(name: Name) -> Name:
    if name.folded[-1:] != ("delta",):
        return name
    return Name(name.folded[:-1], name.exact[:-1], name.keys)


def _hiding(candidate: Candidate) -> Candidate:
    """Return a copy of `candidate` that removes the hidden property from the response instead of blocking."""
    if not candidate.hides:
        return candidate
    decision = Decision("filter", candidate.entry.compiled.rule.id, (), EVERYTHING)
    return Candidate(candidate.entry, candidate.held, replace(candidate.step, decision=decision))


def _owner(name: Name) -> Name:
    """Return the start of an implied request's path, up to the object that has the relation or property."""
    size = name.relations[0] if name.relations else 0
    return Name(name.folded[:size], name.exact[:size], tuple([at for at in name.keys if at < size]))


def _searching(compiled: CompiledRule) -> Step:
    """Return the checks and the decision of a compiled rule for a Microsoft Search request.

    A search probes each property, so a rule with a query guard blocks the search.
    """
    return compiled.step if compiled.step.guard is None else compiled.blocking


def _opens(candidate: Candidate, reading: Reading) -> bool:
    """Return True if the rule decides about content addresses in the response, which need no token.

    If the rule's filter has a list of allowed properties, this list decides which content addresses the
    response contains.
    """
    if candidate.step.decision.verdict == "allow":
        return True
    if candidate.hides:
        transforms = candidate.entry.compiled.rule.transforms
        return transforms is not None and transforms.allow is None
    return _spells(candidate.entry, reading)


def _spells(entry: Entry, reading: Reading) -> bool:
    """Return True if a rule blocks or filters, and literally names a segment below the request's address."""
    if entry.compiled.rule.verdict not in ("block", "filter"):
        return False
    segments = entry.pattern.segments
    starts = [name.relations[0] for name in reading.names if name.relations]
    return any(segment is not None for segment in segments[min(starts, default=len(segments)) :])


def _plan_of_found(found: Mapping[int, Candidate]) -> Plan:
    candidates = [found[index] for index in sorted(found) if found[index].entry.compiled.concerns("GET")]
    return Plan(
        [_lane("certain", candidates, NOTHING, on_response=False)],
        [_lane("certain", candidates, NOTHING, on_response=True)],
        needs_body=False,
        response_needs_body=False,
        override_plan=None,
    )


def _is_searched(pattern: Pattern, wanted: Searched) -> bool:
    words = [word for word in pattern.segments if word is not None]
    if not wanted.apart.isdisjoint(words):
        return False
    if pattern.rest and _may_hold(pattern.segments, wanted.holders):
        return True
    if not words or words[-1] not in wanted.words:
        return False
    return not wanted.among or not wanted.among.isdisjoint(words)


def _may_hold(segments: Sequence[str | None], holders: Set[str]) -> bool:
    """Return True if the path may end with a name from `holders`, or with such a name and an object ID."""
    last, before = (segments[-1], segments[-2]) if len(segments) > 1 else (None, None)
    if len(segments) < 2 or last in holders:
        return True
    return before in holders and (last is None or before not in _WITHOUT_KEYS)


def importance_of(kind: int, method: str) -> Importance:
    if kind & SHADOW or (kind & KEY and method in FUNCTION_METHODS):
        return "shadow"
    if kind & SLASH:
        return "slash"
    return "shadow" if kind & UNTAKEN else "certain"


def _lane(
    importance: Importance, candidates: list[Candidate], default: Decision, *, on_response: bool
) -> Lane:
    steps: list[Step] = []
    asks = False
    for candidate in candidates:
        compiled = candidate.entry.compiled
        if compiled.on_response is not on_response:
            continue
        step = candidate.step
        if candidate.held != YES:
            step = replace(step, checks=(indeterminate, *step.checks))
        steps.append(step)
        asks = asks or bool(step.checks) or step.guard is not None
        if not step.checks and step.decision.verdict != "log_only":
            break  # this step decides for every request, so rules after it are never tried
    lane = Lane(importance, tuple(steps), default)
    if not asks:
        lane.constant = lane.evaluate(_NO_FACTS)
    return lane


def _steps(lanes: list[Lane]) -> list[Step]:
    return [step for lane in lanes for step in lane.steps]


_NO_FACTS: Final = RequestFacts("", Target("", "", None, ()), (), "", 0.0)
