"""Model to matchers, once per ruleset."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, Final, TypeVar

from proxy.policy.body_members import body_only_check
from proxy.policy.canonical import MAX_CACHED_PATH, SLASH, UNTAKEN, Name, Reading, Target
from proxy.policy.conditions import (
    INDETERMINATE,
    NO,
    YES,
    Check,
    ValuesTest,
    compile_check,
    compile_values_test,
    for_an_allow,
    for_the_log,
)
from proxy.policy.decision import NOTHING, Decision, Importance, Lane, Plan, Step
from proxy.policy.ending import ending_check
from proxy.policy.facts import RequestFacts
from proxy.policy.gates import ip_check, time_check
from proxy.policy.hidden import HiddenProperties, Naming
from proxy.policy.odata import CERTAIN, KEY, SHADOW
from proxy.policy.operations import FUNCTION_METHODS, OPERATIONS, key_positions, operation_at
from proxy.policy.paths import PathTree, Pattern, parse_pattern
from proxy.policy.queries import QueryGuard
from proxy.policy.ruleset import (
    DEFAULT_RULE_ID,
    BodyOnly,
    Condition,
    IpGate,
    Rule,
    Ruleset,
    TimeGate,
    Until,
)
from proxy.policy.schemas import NO_SCHEMAS, Schemas
from proxy.policy.thing_rules import HIDES, NOTHING_HIDDEN, ThingRules

Part = Until | IpGate | TimeGate | BodyOnly | Condition
_OF_THE_RESPONSE: Final = frozenset(("status", "response_header", "property"))
CheckOf = Callable[[Part], Check]

_MAX_PLANS: Final = 8192  # of all methods, by shape and by path each
_MAX_SHAPE: Final = 32  # segments; real paths have some 10
SINGLETONS: Final = frozenset(("me", "root", "manager"))  # named like collections, yet a property follows
_FILTER_SEGMENT: Final = "$filter"  # `/$filter(…)`, whose expression no guard reads
_WORK_PER_SLICE: Final = 5  # paths and conditions; some hundred microseconds, which no request notices
_WORK_OF_REGEX: Final = 5


@dataclass(frozen=True, slots=True)
class CompiledRule:
    index: int
    rule: Rule
    methods: frozenset[str]
    parameter_tests: tuple[tuple[str, ValuesTest], ...]
    step: Step
    blocking: Step  # for a path that names what the rule hides
    probing: Step | None  # for one below its own that queries may follow: blocks those that probe
    hidden: HiddenProperties | None
    on_response: bool
    reads_body: bool

    def concerns(self, method: str) -> bool:
        return not self.methods or method in self.methods


@dataclass(frozen=True, slots=True)
class Entry:
    """A rule under one of its patterns."""

    compiled: CompiledRule
    pattern: Pattern
    keys: tuple[int, ...]  # where the pattern takes any key

    def path_holds(self, name: Name, method: str) -> int:
        """An operation in a key's place is perhaps a key: that is enough to block, and not to allow."""
        held = self.parameters_hold(name)
        if held == YES and self.operation(name, method) is not None:
            return INDETERMINATE
        return held

    def operation(self, name: Name, method: str) -> str | None:
        return operation_at(self.keys, name.folded, name.keys, method) if self.keys else None

    def parameters_hold(self, name: Name) -> int:
        if not self.compiled.parameter_tests:
            return YES
        least = YES
        for parameter, test in self.compiled.parameter_tests:
            least = min(least, test(self.values(parameter, name)))
        return least

    def values(self, parameter: str, name: Name) -> tuple[str, ...]:
        for known, at in self.pattern.parameters:
            if known == parameter:
                value = name.exact[at]
                return () if value is None else (value,)
        return ()


@dataclass(slots=True)
class Candidate:
    """A rule for one name of the path, and which of its steps: where that names what it hides, it blocks."""

    entry: Entry
    held: int
    step: Step

    @property
    def hides(self) -> bool:
        return self.step is self.entry.compiled.blocking

    @property
    def probed(self) -> bool:
        """Whether it concerns a query only that probes."""
        return self.step is self.entry.compiled.probing

    @property
    def order(self) -> tuple[int, bool]:
        return self.entry.compiled.index, not self.hides


_NO_PATTERN: Final = Pattern((), (), False)
_K = TypeVar("_K")
_V = TypeVar("_V")
_UNKNOWN: Final[Any] = object()
_NO_PLANS: Final[Any] = {}


def _remember(plans: dict[str, dict[_K, _V]], method: str, key: _K, plan: _V) -> None:
    """Forgets all others where there is no room; what is common is back at once."""
    if sum(map(len, plans.values())) >= _MAX_PLANS:
        plans.clear()
    plans.setdefault(method, {})[key] = plan


class CompiledRuleset:
    """Finds the rules for a request; what it found is remembered for all paths of the same shape."""

    def __init__(
        self,
        rule_count: int,
        default: Decision,
        tree: PathTree[Entry],
        words: Mapping[str, str],
        schemas: Schemas,
        things: ThingRules,
        of_things: Mapping[int, Entry],
    ) -> None:
        self.rule_count = rule_count
        self.schemas = schemas
        self._default = default
        self.tree = tree
        self.things = things
        self._of_things = of_things  # the rules about things, by their index
        self._words = words  # all that make a difference, each to itself
        self._plans_by_shape: dict[str, dict[tuple[str, ...], Plan | None]] = {}
        self._plans_by_path: dict[str, dict[str, Plan]] = {}

    def plan(self, method: str, target: Target) -> Plan:
        plain = target.plain
        if plain is None:
            return self._plan_by_path(method, target, target.cache_key)
        # Ids and whatever no rule knows are all the same to the rules. No segment or rule's word has a slash.
        word = self._word_of if self._of_things else self._words.get
        shape = tuple([word(segment) or ("$/" if segment[:1] == "$" else "/") for segment in plain])
        plan = self._plans_by_shape.get(method, _NO_PLANS).get(shape, _UNKNOWN)
        if plan is _UNKNOWN:
            plan = self._plan_of_shape(method, shape)
            if len(shape) <= _MAX_SHAPE:
                _remember(self._plans_by_shape, method, shape, plan)
        return plan or self._plan_by_path(method, target, target.path)

    def _word_of(self, segment: str) -> str | None:
        """Return the segment if a rule or a schema has this name."""
        return self._words.get(segment) or (segment if self.things.knows(segment) else None)

    def _plan_of_shape(self, method: str, shape: tuple[str, ...]) -> Plan | None:
        """None where a rule has a condition on what a segment is."""
        name = Name(shape, shape)
        found, above = self.tree.find(name)
        if any(entry.compiled.parameter_tests for entry in (*found, *above)):
            return None
        return self.plan_of_readings(method.upper(), (Reading(CERTAIN, (name,)),))

    def _plan_by_path(self, method: str, target: Target, key: str | None) -> Plan:
        if key is None or len(key) > MAX_CACHED_PATH:
            return self.plan_of_readings(method.upper(), target.readings)
        plan: Plan | None = self._plans_by_path.get(method, _NO_PLANS).get(key)
        if plan is None:
            plan = self.plan_of_readings(method.upper(), target.readings)
            _remember(self._plans_by_path, method, key, plan)
        return plan

    def plan_of_readings(self, method: str, readings: Iterable[Reading]) -> Plan:
        """The method in capitals, as rules compare it."""
        lanes: list[Lane] = []
        response_lanes: list[Lane] = []
        override_matters = override_reads_body = False
        of_names: dict[Name, list[Candidate]] = {}  # many readings have most names in common
        for reading in readings:
            candidates = self.candidates(reading, method, of_names)
            if method == "POST" and any(candidate.entry.compiled.methods for candidate in candidates):
                override_matters = True
                override_reads_body |= any(
                    candidate.entry.compiled.reads_body and not candidate.entry.compiled.on_response
                    for candidate in candidates
                )
            concerned = [candidate for candidate in candidates if candidate.entry.compiled.concerns(method)]
            importance = importance_of(reading.kind, method)
            unlikely = importance == "shadow" or reading.kind & UNTAKEN
            default = NOTHING if unlikely else self._default
            lanes.append(_lane(importance, concerned, default, on_response=False))
            if any(candidate.entry.compiled.on_response for candidate in concerned):
                response_lanes.append(_lane(importance, concerned, NOTHING, on_response=True))
        return Plan(
            lanes,
            response_lanes,
            needs_body=override_reads_body or any(step.reads_body for step in _steps(lanes + response_lanes)),
            response_needs_body=any(step.reads_response for step in _steps(response_lanes)),
            override_plan=self._plan_of_override if override_matters else None,
        )

    def _plan_of_override(self, method: str, request: RequestFacts) -> Plan:
        return self.plan_of_readings(method, request.target.readings)

    def candidates(
        self, reading: Reading, method: str, of_names: dict[Name, list[Candidate]]
    ) -> list[Candidate]:
        """In file order, the rules whose path and parameters hold for the reading, or are indeterminate. By
        however many names a rule knows it, each of its steps is there once; `of_names` remembers."""
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
                # Asked of each path: one that doesn't count takes no other's place.
                if counts_for(candidate, reading):
                    best[key] = candidate
        found = list(best.values())
        if self._of_things:
            found += self.candidates_of_things(reading, method)
        if len(found) > 1:
            found.sort(key=lambda candidate: candidate.order)
        return found

    def candidates_of_things(self, reading: Reading, method: str) -> list[Candidate]:
        """Return a candidate for each rule about things that concerns the reading."""
        certain_only = importance_of(reading.kind, method) != "certain"
        found: list[Candidate] = []
        for each in self.things.findings(reading.names, certain_only=certain_only):
            entry = self._of_things[each.index]
            step = entry.compiled.blocking if each.kind == HIDES else entry.compiled.step
            if each.kind == NOTHING_HIDDEN:
                step = replace(step, decision=replace(step.decision, verdict="allow", transforms=None))
            if each.transforms is not None and each.transforms != step.decision.transforms:
                step = replace(step, decision=replace(step.decision, transforms=each.transforms))
            found.append(Candidate(entry, each.held, step))
        return found

    def candidates_of_name(self, name: Name, method: str) -> list[Candidate]:
        """Of each pattern that covers the name, or has something to say to what lies below it."""
        candidates: list[Candidate] = []
        found, above = self.tree.find(name)
        for entry in found:
            held = entry.path_holds(name, method)
            compiled = entry.compiled
            hides = _names_hidden_within(entry, name) or _asks_for_no_item(compiled, method)
            step = compiled.blocking if hides else compiled.step
            if held != NO:
                candidates.append(Candidate(entry, held, step))
        for entry in above:
            below = _step_below(entry, name, found)
            if below is None:
                continue
            held = entry.path_holds(name, method)
            if held != NO:
                candidates.append(Candidate(entry, held, below))
        return candidates


def compile_ruleset(
    ruleset: Ruleset, check_of: CheckOf | None = None, schemas: Schemas = NO_SCHEMAS
) -> CompiledRuleset:
    """`check_of` makes the check of each part that a rule asks, if not `compile_part`."""
    slices = compile_in_slices(ruleset, check_of, schemas)
    while True:
        try:
            next(slices)
        except StopIteration as finished:
            compiled: CompiledRuleset = finished.value
            return compiled


def compile_in_slices(
    ruleset: Ruleset, check_of: CheckOf | None = None, schemas: Schemas = NO_SCHEMAS
) -> Generator[None, None, CompiledRuleset]:
    """Yields after some hundred microseconds of work, so that an event loop can breathe."""
    tree: PathTree[Entry] = PathTree()
    words = {"$value": "$value"}
    words.update((word, word) for word in OPERATIONS)
    things = ThingRules(schemas)
    of_things: dict[int, Entry] = {}
    work = 0
    for index, rule in zip(count(), ruleset.rules):
        compiled = _compile_rule(index, rule, check_of or compile_part)
        for path in rule.match.path:
            for pattern in parse_pattern(path):
                tree.add(pattern, Entry(compiled, pattern, key_positions(pattern.segments)))
                words.update((word, word) for word in pattern.segments if word is not None)
        if rule.match.names_things:
            things.add(index, rule.verdict, rule.match, compiled.step.decision.transforms)
            of_things[index] = Entry(compiled, _NO_PATTERN, ())
        if compiled.hidden is not None:
            words.update((word, word) for word in compiled.hidden.words())
        work += _work_of(rule)
        if work >= _WORK_PER_SLICE:
            work = 0
            yield
    default = Decision(ruleset.default, DEFAULT_RULE_ID, reason="default")
    return CompiledRuleset(len(ruleset.rules), default, tree, words, schemas, things, of_things)


def _work_of(rule: Rule) -> int:
    tests = [test for condition in rule.conditions for test in condition.tests]
    regexes = sum(test.operator == "matches" for test in tests)
    return 1 + len(rule.match.path) + len(tests) + _WORK_OF_REGEX * (regexes + (rule.time is not None))


def _compile_rule(index: int, rule: Rule, check_of: CheckOf) -> CompiledRule:
    checks = tuple([_check_of_rule(rule, part, check_of) for part in parts_asked(rule)])
    methods = {method.upper() for method in rule.match.methods}
    if "GET" in methods:
        methods.add("HEAD")  # the same request without the body of its response, RFC 9110 §9.3.2
    on_response = rule.when == "response"
    transforms = rule.transforms if rule.verdict == "filter" else None
    decision = Decision(rule.verdict, rule.id, (), transforms, "responseRule" if on_response else "rule")
    blocking = Decision("block", rule.id, reason="hiddenProperty")
    guard = QueryGuard(transforms) if rule.guard_queries and transforms is not None else None
    reads_body = rule.body_only is not None or any(
        condition.source == "body" for condition in rule.conditions
    )
    reads_response = any(condition.source == "property" for condition in rule.conditions)
    asks = any(condition.source in _OF_THE_RESPONSE for condition in rule.conditions)
    return CompiledRule(
        index=index,
        rule=rule,
        methods=frozenset(methods),
        parameter_tests=tuple(
            (condition.name, compile_values_test(condition)) for condition in parameter_conditions(rule)
        ),
        step=Step(checks, decision, guard, reads_body, reads_response, asks),
        blocking=Step(checks, blocking, None, reads_body, reads_response, asks),
        probing=None
        if guard is None
        else Step((*checks, _probe_check(guard)), blocking, None, reads_body, reads_response, asks),
        hidden=None if transforms is None else HiddenProperties(transforms),
        on_response=on_response,
        reads_body=reads_body,
    )


def _check_of_rule(rule: Rule, part: Part, check_of: CheckOf) -> Check:
    check = check_of(part)
    if rule.verdict == "log_only" and isinstance(part, BodyOnly):
        return for_the_log(check, of_response=False)
    if rule.verdict == "log_only" and isinstance(part, Condition) and part.source in ("body", "property"):
        return for_the_log(check, of_response=part.source == "property")
    if isinstance(part, Condition) and asks_as_taken(rule, part):
        return for_an_allow(check, part.name)
    return check


def asks_as_taken(rule: Rule, part: Part) -> bool:
    """Whether the part looks at the query as the upstream reads it, and at no other reading."""
    return rule.verdict == "allow" and isinstance(part, Condition) and part.source == "query"


def parameter_conditions(rule: Rule) -> list[Condition]:
    return [condition for condition in rule.conditions if condition.source == "param"]


def parts_asked(rule: Rule) -> list[Part]:
    """What a rule asks beyond methods, paths and parameters, in the order of its step's checks."""
    # Conditions on bodies last: what is cheaper to ask may spare the parsing.
    conditions = [condition for condition in rule.conditions if condition.source != "param"]
    conditions.sort(key=lambda condition: condition.source in ("body", "property"))
    gates = [gate for gate in (rule.until, rule.ip, rule.time) if gate is not None]
    if rule.body_only is None:
        return [*gates, *conditions]
    return [*gates, *conditions, BodyOnly(rule.body_only, rule.verdict == "block")]


def compile_part(part: Part) -> Check:
    if isinstance(part, IpGate):
        return ip_check(part)
    if isinstance(part, TimeGate):
        return time_check(part)
    if isinstance(part, Until):
        return ending_check(part)
    if isinstance(part, BodyOnly):
        return body_only_check(part)
    return compile_check(part)


def _names_hidden_within(entry: Entry, name: Name) -> bool:
    hidden = entry.compiled.hidden
    if hidden is None:
        return False
    within = name.folded[entry.pattern.wildcards_from :]
    if entry.compiled.probing is not None and any(word.startswith(_FILTER_SEGMENT) for word in within):
        return True
    return hidden.named_within(within) is not Naming.NOTHING


def _asks_for_no_item(compiled: CompiledRule, method: str) -> bool:
    """Return True for a HEAD if the rule keeps items: its response reveals an object, and has none to
    evaluate."""
    return method == "HEAD" and compiled.hidden is not None and compiled.hidden.keeps_items


def counts_for(candidate: Candidate, reading: Reading) -> bool:
    """Return False for a reading that the upstream never takes, unless the rule names in its own words what
    only this reading makes of the path: a wildcard does not stand for half of an id."""
    entry, start = candidate.entry, reading.changed_from
    if not reading.kind & UNTAKEN or start == 0:
        return True
    if any(word is not None for word in entry.pattern.segments[start:]):
        return True
    tested = [parameter for parameter, _ in entry.compiled.parameter_tests]
    if any(at >= start and name in tested for name, at in entry.pattern.parameters):
        return True
    hidden = entry.compiled.hidden
    if hidden is None or not (candidate.hides or candidate.probed):
        return False
    words = hidden.words()
    changed = [word for name in reading.names for word in name.folded[start:]]
    return any(word in words or word.startswith("$") for word in changed)


def _step_below(entry: Entry, name: Name, found: list[Entry]) -> Step | None:
    """What a filter has to say to a path below its own: `/$count` and `/$ref` take the same queries."""
    compiled = entry.compiled
    if compiled.hidden is None:
        return None
    if _names_hidden_below(entry, name, found):
        return compiled.blocking
    following = name.folded[len(entry.pattern.segments)]
    if compiled.probing is None or not following.startswith("$"):
        return None
    return compiled.blocking if following.startswith(_FILTER_SEGMENT) else compiled.probing


def _names_hidden_below(entry: Entry, name: Name, found: list[Entry]) -> bool:
    hidden = entry.compiled.hidden
    at = len(entry.pattern.segments)
    naming = Naming.NOTHING if hidden is None else hidden.named_below(name.folded[at:])
    if naming is not Naming.UNLISTED:
        return naming is Naming.HIDDEN
    return not any(
        other.compiled is entry.compiled
        or _spells_out(other.pattern, at)
        or _takes_key(other.pattern, entry, at)
        for other in found
    )


def _spells_out(pattern: Pattern, at: int) -> bool:
    return at < len(pattern.segments) and pattern.segments[at] is not None


def _takes_key(pattern: Pattern, entry: Entry, at: int) -> bool:
    """Whether `pattern` takes a key where the entry's own ends with a collection: an id is no property."""
    own = entry.pattern.segments
    return (
        bool(own)
        and own[-1] is not None
        and own[-1] not in SINGLETONS
        and at < len(pattern.segments)
        and pattern.segments[at] is None
    )


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
            step = replace(step, checks=(_indeterminate, *step.checks))
        steps.append(step)
        asks = asks or bool(step.checks) or step.guard is not None
        if not step.checks and step.decision.verdict != "log_only":
            break  # decides whatever the request is: rules after it are never tried
    lane = Lane(importance, tuple(steps), default)
    if not asks:
        lane.constant = lane.evaluate(_NO_FACTS)
    return lane


def _steps(lanes: list[Lane]) -> list[Step]:
    return [step for lane in lanes for step in lane.steps]


def _probe_check(guard: QueryGuard) -> Check:
    return lambda request, response: YES if guard.is_probed_by(request.target) else NO


def _indeterminate(request: object, response: object) -> int:
    return 1


_NO_FACTS: Final = RequestFacts("", Target("", "", None, ()), (), "", 0.0)
