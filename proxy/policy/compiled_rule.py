"""One compiled rule of a ruleset: its checks, and its decision for each path pattern of the rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from proxy.policy.body_members import body_only_check
from proxy.policy.canonical import ANY_KEY, Name
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
from proxy.policy.decision import Decision, Step
from proxy.policy.ending import ending_check
from proxy.policy.gates import ip_check, time_check
from proxy.policy.hidden import HiddenProperties
from proxy.policy.operations import operation_at
from proxy.policy.paths import Pattern
from proxy.policy.queries import QueryGuard
from proxy.policy.ruleset import (
    BodyOnly,
    Condition,
    IpGate,
    Rule,
    TimeGate,
    Until,
)

Part = Until | IpGate | TimeGate | BodyOnly | Condition
_OF_THE_RESPONSE: Final = frozenset(("status", "response_header", "property"))
CheckOf = Callable[[Part], Check]


@dataclass(frozen=True, slots=True)
class CompiledRule:
    index: int
    rule: Rule
    methods: frozenset[str]
    parameter_tests: tuple[tuple[str, ValuesTest], ...]
    step: Step
    blocking: Step  # step for a path that names a hidden property
    probing: Step | None  # step for a path below the rule's own: blocks queries that probe
    hidden: HiddenProperties | None
    on_response: bool
    reads_body: bool

    def concerns(self, method: str) -> bool:
        return not self.methods or method in self.methods


@dataclass(frozen=True, slots=True)
class Entry:
    """A compiled rule together with one of its path patterns."""

    compiled: CompiledRule
    pattern: Pattern
    keys: tuple[int, ...]  # positions where the pattern matches any key

    def path_holds(self, name: Name, method: str) -> int:
        """Return whether a resource name matches the rule's path pattern and conditions on path parameters.

        A path segment in the position of an object ID can be the name of an operation, and still be an object
        ID. If a path segment may be an object ID or an operation name, the result is INDETERMINATE. If the
        path result is INDETERMINATE, a blocking rule applies, but an allowing rule does not.
        """
        if name.relations and any(at in name.relations for at in self.keys):
            return NO
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
            values = self.values(parameter, name)
            least = min(least, INDETERMINATE if values == _ANY else test(values))
        return least

    def values(self, parameter: str, name: Name) -> tuple[str, ...]:
        for known, at in self.pattern.parameters:
            if known == parameter:
                value = name.exact[at]
                return () if value is None else (value,)
        return ()


@dataclass(slots=True)
class Candidate:
    """A rule that matches one resource name of the request path, with the checks and the decision that apply.

    If the resource name contains the name of a hidden property, the decision is to block the request.
    """

    entry: Entry
    held: int
    step: Step

    @property
    def hides(self) -> bool:
        return self.step is self.entry.compiled.blocking

    @property
    def probed(self) -> bool:
        """True if the rule applies only as a block of queries that could reveal hidden properties."""
        return self.step is self.entry.compiled.probing

    @property
    def order(self) -> tuple[int, bool]:
        return self.entry.compiled.index, not self.hides


NO_PATTERN: Final = Pattern((), (), False)
_ANY: Final = (ANY_KEY,)


# Strictness of a rule towards requests that others imply.
_SHOWS_LESS: Final = 1
REFUSES: Final = 2  # refuses writes too


def strictness_of(rule: Rule) -> int:
    if rule.verdict == "block" and rule.when == "request":
        return REFUSES
    return _SHOWS_LESS if rule.verdict in ("block", "filter") else 0


def compile_rule(index: int, rule: Rule, check_of: CheckOf) -> CompiledRule:
    checks = tuple([_check_of_rule(rule, part, check_of) for part in parts_asked(rule)])
    methods = {method.upper() for method in rule.match.methods}
    if "GET" in methods:
        methods.add("HEAD")  # HEAD is the same request without the body of the response (RFC 9110 §9.3.2)
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
    """Return whether a rule's condition reads the query only in the way in which the upstream reads it."""
    return rule.verdict == "allow" and isinstance(part, Condition) and part.source == "query"


def parameter_conditions(rule: Rule) -> list[Condition]:
    return [condition for condition in rule.conditions if condition.source == "param"]


def parts_asked(rule: Rule) -> list[Part]:
    """Return a rule's gates, conditions and body check in the order in which they are evaluated.

    The returned parts of the rule do not include methods, paths and parameters.
    """
    # Conditions on bodies come last: a cheaper check may make parsing unnecessary.
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


def _probe_check(guard: QueryGuard) -> Check:
    return lambda request, response: YES if guard.is_probed_by(request.target) else NO
