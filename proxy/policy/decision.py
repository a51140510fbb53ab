"""Derive the verdict and the reason for the verdict from the facts of a request and of the response.

An evaluation plan contains the rules for one HTTP method and one path. An evaluation plan has one lane for
each interpretation of the path. A lane is a list of rules in file order, evaluated until a rule decides. The
evaluation of each lane gives a verdict for the lane's interpretation. The strictest of these verdicts is the
verdict of the request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal, NamedTuple

from proxy.policy.bounded_memo import BoundedMemo, WhenFull
from proxy.policy.canonical import MalformedTarget, Target
from proxy.policy.conditions import INDETERMINATE, NO, YES, Check
from proxy.policy.facts import BodyNeeded, MalformedBody, RequestFacts, ResponseFacts
from proxy.policy.implied import FOUND_AT, MAX_IMPLIED, TOLD_OF_FOUND, Effect, Implied, Scope, Way
from proxy.policy.queries import QueryGuard
from proxy.policy.transforms import EVERYTHING, Transforms
from proxy.policy.unsupported_requests import names_method_override

__all__ = ["BodyNeeded", "Decision", "MalformedBody", "Plan", "RequestFacts", "ResponseFacts"]

Verdict = Literal["allow", "filter", "block", "log_only"]
Importance = Literal["certain", "shadow", "slash"]


@dataclass(frozen=True, slots=True)
class Decision:
    verdict: Verdict
    rule_id: str
    logged_rule_ids: tuple[str, ...] = ()
    transforms: Transforms | None = None
    reason: str = "rule"  # one of rule, default, hiddenProperty, responseRule, impliedRequest
    # Every rule that contributed to the verdict, request rules first; empty if there was only one.
    several_rule_ids: tuple[str, ...] = ()
    implied: str = ""  # the implied request that made the verdict stricter, as text for people

    @property
    def rule_ids(self) -> tuple[str, ...]:
        """IDs of all rules that contributed to the verdict, including `rule_id`.

        Rules that only log are not included, unless the verdict is `log_only`.
        """
        return self.several_rule_ids or (self.rule_id,)


# Results of checks and guards for one request. None of them depends on the interpretation of the path.
Known = dict[Check | QueryGuard, int]


@dataclass(frozen=True, slots=True)
class Step:
    """A rule that applies to the path: its checks, and the rule's decision if all these checks hold."""

    checks: tuple[Check, ...]
    decision: Decision
    guard: QueryGuard | None = None
    reads_body: bool = False  # reads the body of the request
    reads_response: bool = False  # reads the body of the response
    asks_response: bool = False  # needs any part of the response

    def decided(self, request: RequestFacts, known: Known | None = None) -> Decision:
        if self.guard is not None and self._is_probed(self.guard, request, known):
            return replace(self.decision, verdict="block", transforms=None, reason="hiddenProperty")
        return self.decision

    @staticmethod
    def _is_probed(guard: QueryGuard, request: RequestFacts, known: Known | None) -> bool:
        if known is None:
            return guard.is_probed_by(request.target)
        probed = known.get(guard)
        if probed is None:
            probed = known[guard] = YES if guard.is_probed_by(request.target) else NO
        return probed == YES


_MOST_LOGGED: Final = 64  # combinations of logging rules that a lane remembers

_ENCODED_SLASH: Final = (
    "%2F, which the upstream may read as a slash, would change the verdict if it were one; "
    "a slash within an id is sent as %252F"
)

_SLASH_BEHIND_ENCODINGS: Final = (
    "an encoded slash, read as a slash, would lead to a path that a rule blocks or filters"
)

# Decision of a lane in which no rule decides and the default does not count.
NOTHING: Final = Decision("allow", "default", reason="default")


@dataclass(slots=True)
class Lane:
    """Rules for one interpretation of the path, in file order.

    `constant` is the decision if it needs no check of the request, else None.
    """

    importance: Importance
    steps: tuple[Step, ...]
    default: Decision
    constant: Decision | None = None
    _logged: BoundedMemo[tuple[str, str, tuple[str, ...]], Decision] = field(
        default_factory=lambda: BoundedMemo(_MOST_LOGGED, None, WhenFull.KEEP)
    )

    def evaluate(
        self, request: RequestFacts, response: ResponseFacts | None = None, known: Known | None = None
    ) -> Decision:
        """Return the decision of the rules for one interpretation of the path.

        If the path has several interpretations (lanes), all lanes share their check results in `known`.
        """
        if self.constant is not None:
            return self.constant
        logged: tuple[str, ...] = ()
        floor: Decision | None = None
        for step in self.steps:
            held = YES
            for check in step.checks:
                one = (
                    check(request, response)
                    if known is None
                    else _asked_once(check, request, response, known)
                )
                if one < held:
                    held = one
                    if one == NO:
                        break
            if held == NO:
                continue
            if step.decision.verdict == "log_only":
                logged += (step.decision.rule_id,)
                continue
            decision = step.decision if step.guard is None else step.decided(request, known)
            if held == YES or decision.verdict == "block":
                break
            if decision.verdict == "filter":  # indeterminate: filter, and continue the search
                floor = decision if floor is None else _strictest(floor, decision)
        else:
            decision = self.default
        if floor is not None:
            decision = _strictest(decision, floor, in_order=False)
        elif logged:
            return self._with_logged(decision, logged)
        return _with_logged(decision, logged)

    def _with_logged(self, decision: Decision, logged: tuple[str, ...]) -> Decision:
        """Return the decision together with the IDs of the rules that only log.

        `_with_logged` remembers the combined decision, because the same log rules match many requests.
        """
        key = (decision.rule_id, decision.verdict, logged)
        known = self._logged.entries.get(key)
        if known is None:
            if decision is self.default and decision.verdict == "allow":
                decision = replace(decision, verdict="log_only", rule_id=logged[0], reason="rule")
            known = _with_logged(decision, logged)
            self._logged.keep(key, known)
        return known


class ImpliedRules:
    """Base class that finds the requests in a query or body, and the rules for each such request."""

    @property
    def reads_body(self) -> bool:
        raise NotImplementedError

    def may_imply(self, target: Target) -> bool:
        """Return True if the query or a possible body of a request to the target may contain requests."""
        raise NotImplementedError

    def requests(self, request: RequestFacts) -> Iterator[Implied]:
        """Yield the requests that the query or body of a request contains (implied requests).

        Raise MalformedTarget if the request cannot be read. Raise BodyNeeded if the body of the request was
        not read but may contain other requests.
        """
        raise NotImplementedError

    def plan(self, way: Way, scope: Scope) -> Plan:
        raise NotImplementedError


class ImpliedDecision(NamedTuple):
    """Verdict on an implied request, and the effect of that verdict on the request that implies it."""

    implied: Implied
    way: Way  # the variant that decided
    alone: Decision
    effect: Decision | None  # None: no effect


class Plan:
    """Evaluation plan: the rules for one method and path."""

    __slots__ = (
        "_foreseen",
        "_implied",
        "_lanes",
        "_only",
        "_override_plan",
        "_response_lanes",
        "_response_logs_request",
        "_response_reads_request",
        "_slash_lanes",
        "_unseen_lanes",
        "constant",
        "has_response_rules",
        "needs_body",
        "response_body_decides",
        "response_decides",
        "response_needs_body",
    )

    def __init__(
        self,
        lanes: Sequence[Lane],
        response_lanes: Sequence[Lane],
        *,
        needs_body: bool,
        response_needs_body: bool,
        override_plan: Callable[[str, RequestFacts], Plan] | None,
        implied: ImpliedRules | None = None,
    ) -> None:
        self._implied = implied
        self._lanes = tuple(lane for lane in lanes if lane.importance != "slash")
        self._slash_lanes = tuple(lane for lane in lanes if lane.importance == "slash")
        self._response_lanes = tuple(lane for lane in response_lanes if lane.steps)
        self._override_plan = override_plan
        self._only = self._lanes[0] if len(lanes) == 1 and override_plan is None else None
        self.needs_body = needs_body or (implied is not None and implied.reads_body)
        self.has_response_rules = bool(self._response_lanes)
        # The decision that needs no facts of the request, if no later step needs any either.
        self.constant: Decision | None = None
        if self._only is not None and not self.has_response_rules:
            self.constant = self._only.constant
        self.response_needs_body = response_needs_body
        self._foreseen = tuple(_foreseen(response_lanes))
        self._unseen_lanes = tuple(_unseen(response_lanes))
        steps = [step for lane in response_lanes for step in lane.steps]
        deciding = [step for step in steps if step.decision.verdict != "log_only"]
        self.response_decides = bool(deciding)
        self.response_body_decides = any(step.reads_response for step in deciding)
        self._response_reads_request = any(step.reads_body for step in deciding)
        self._response_logs_request = any(step.reads_body for step in steps)

    def decide(self, request: RequestFacts) -> Decision:
        """Return the verdict on a request that the proxy has not sent upstream yet.

        Raise MalformedTarget if an encoded slash would change the verdict. Raise MalformedBody, a subclass of
        MalformedTarget, if a condition needs a property of a body that is not JSON. Raise BodyNeeded if a
        condition needs a request body that was not read.
        """
        if self._response_logs_request:
            request.wanted_for_the_log = request.unread
        if self._response_reads_request:
            request.document  # noqa: B018 - refuse an unreadable body now, not after the upstream has acted
        if self._only is not None:
            decision = self._only.evaluate(request)
        else:
            decision = self._evaluate_as_written(request)
            if self._override_plan is not None:
                for method in _overriding_methods(request):
                    other = self._override_plan(method, request)._evaluate_as_written(request)
                    decision = _strictest(decision, other)
        implied = self._implied
        if implied is not None and implied.may_imply(request.target) and decision.verdict != "block":
            decision = self._strictest_with_implied(decision, request)
        for lane in self._foreseen:
            foreseen = lane.evaluate(request)
            if foreseen.reason == "hiddenProperty":
                several = _rules_of_both(decision, foreseen)
                stricter = _strictest(decision, foreseen)
                if stricter.rule_id == foreseen.rule_id:
                    stricter = replace(stricter, several_rule_ids=several)
                decision = stricter
        return decision

    def _strictest_with_implied(self, decision: Decision, request: RequestFacts) -> Decision:
        for each in self.implied_decisions(request):
            if each.effect is not None:
                decision = _with_implied(decision, each.effect)
                if decision.verdict == "block":
                    break
        return decision

    def decides_without(self, target: Target) -> Decision | None:
        """Return the verdict if it depends on no fact of the request, not even the query; otherwise None."""
        return None if self.constant is None or self._may_imply(target) else self.constant

    def looks_at_query(self, target: Target) -> bool:
        """Return True if the request's query may imply requests that a rule refuses or filters."""
        return self._implied is not None and target.query is not None

    def _may_imply(self, target: Target) -> bool:
        return self._implied is not None and self._implied.may_imply(target)

    def implied_decisions(self, request: RequestFacts) -> Iterator[ImpliedDecision]:
        """Evaluate each request that the given request implies.

        Raise the same exceptions as the method `decide`.
        """
        rules = self._implied
        if rules is None:
            return
        left = [MAX_IMPLIED] if request.implied_left is None else request.implied_left
        for implied in rules.requests(request):
            way, alone = _decided_alone(rules, implied, request, left)
            yield ImpliedDecision(implied, way, alone, _effect_on_request(implied, way, alone))

    def decide_unseen(self, request: RequestFacts) -> Decision:
        """Return the verdict on an implied read, whose own response the proxy does not see.

        Raise the same exceptions as the method `decide`.
        """
        decision = self.decide(request)
        for lane in self._unseen_lanes:
            outcome = lane.evaluate(request)
            if outcome.verdict in ("block", "filter"):
                decision = _strictest(decision, outcome)
        return decision

    def decide_response(self, request: RequestFacts, decision: Decision, response: ResponseFacts) -> Decision:
        """Apply the response rules to a response.

        The returned decision on the response can be stricter than `decision`, the earlier decision on the
        request.

        The verdict `block` of a response rule replaces the response. Raise MalformedTarget if the response
        cannot be evaluated. Raise BodyNeeded if the response body was not read.
        """
        if not self._response_lanes:
            return decision
        outcome = NOTHING
        known: Known | None = {} if len(self._response_lanes) > 1 else None
        for lane in self._response_lanes:
            outcome = _strictest(outcome, lane.evaluate(request, response, known))
        logged = _merged(decision.logged_rule_ids, outcome.logged_rule_ids)
        if outcome.verdict == "block":
            several = _rules_of_both(decision, outcome)
            return replace(outcome, logged_rule_ids=logged, several_rule_ids=several)
        if outcome.verdict == "filter":
            return replace(
                outcome,
                transforms=_combined(decision.transforms, outcome.transforms),
                logged_rule_ids=logged,
                several_rule_ids=_rules_of_both(decision, outcome),
            )
        if outcome.verdict == "log_only" and decision.verdict == "allow" and decision.reason == "default":
            return replace(
                decision, verdict="log_only", rule_id=logged[0], logged_rule_ids=logged, reason="rule"
            )
        return _with_logged(decision, outcome.logged_rule_ids)

    def _evaluate_as_written(self, request: RequestFacts) -> Decision:
        decision: Decision | None = None
        known: Known = {}
        for lane in self._lanes:
            outcome = lane.evaluate(request, None, known)
            decision = outcome if decision is None else _strictest(decision, outcome)
        if decision is None:
            raise MalformedTarget("all interpretations of the request target are uncertain")
        for lane in self._slash_lanes:
            outcome = lane.evaluate(request, None, known)
            untaken = lane.default is NOTHING  # such an interpretation can only make the verdict stricter
            if untaken:
                outcome = _strictest(decision, outcome)
            if _effect(outcome) != _effect(decision):
                raise MalformedTarget(_SLASH_BEHIND_ENCODINGS if untaken else _ENCODED_SLASH)
        return decision


def _foreseen(response_lanes: Sequence[Lane]) -> Iterator[Lane]:
    """Yield the response rules that can be evaluated before the response arrives.

    Stop at the first rule that must read the response.

    So a path or query that names a hidden property is blocked before the upstream acts on the request.
    """
    for lane in response_lanes:
        steps: list[Step] = []
        for step in lane.steps:
            if step.decision.verdict == "log_only":
                continue
            if step.asks_response:
                break
            steps.append(step)
        if any(step.guard is not None or step.decision.reason == "hiddenProperty" for step in steps):
            yield Lane(lane.importance, tuple(steps), NOTHING)


def _unseen(response_lanes: Sequence[Lane]) -> Iterator[Lane]:
    """Yield the response rules for an unknown response: conditions on the response are INDETERMINATE."""
    for lane in response_lanes:
        steps = [
            replace(step, checks=(indeterminate,)) if step.asks_response else step
            for step in lane.steps
            if step.decision.verdict != "log_only"
        ]
        if steps:
            yield Lane(lane.importance, tuple(steps), NOTHING)


def indeterminate(request: object, response: object) -> int:
    return INDETERMINATE


def _decided_alone(
    rules: ImpliedRules, implied: Implied, request: RequestFacts, left: list[int]
) -> tuple[Way, Decision]:
    """Return the strictest rule decision on a request's possible addresses, or the default decision."""
    by_rules: Decision | None = None
    by_default = NOTHING
    deciding = implied.ways[0]
    for way in implied.ways:
        left[0] -= 1
        if left[0] < 0:
            raise MalformedTarget("the request implies too many other requests")
        facts = request.implied(way.method, way.target, implied.document)
        facts.implied_left = left
        plan = rules.plan(way, implied.scope)
        decision = plan.decide_unseen(facts) if way.method == "GET" else plan.decide(facts)
        if decision.reason == "default":
            by_default = decision
            continue
        stricter = decision if by_rules is None else _strictest(by_rules, decision)
        if by_rules is None or stricter.verdict != by_rules.verdict:
            deciding = way
        by_rules = stricter
    return deciding, by_default if by_rules is None else by_rules


def _effect_on_request(implied: Implied, way: Way, alone: Decision) -> Decision | None:
    verdict, transforms = alone.verdict, None
    if implied.effect is Effect.PROBE:
        if verdict != "block" or alone.reason != "hiddenProperty":
            return None
    elif verdict == "block" and implied.effect is Effect.HIDES:
        verdict, transforms = "filter", EVERYTHING.at(implied.place)
    elif implied.effect is Effect.ADDRESSES:
        if verdict in ("block", "filter"):
            verdict, transforms = "filter", Transforms(implied.addresses)
    elif verdict == "filter":
        if implied.effect is Effect.CANNOT or not _can_hide(alone.transforms, implied.place):
            verdict = "block"
        elif implied.effect in (Effect.AT_PLACE, Effect.HIDES) and alone.transforms is not None:
            transforms = alone.transforms.at(implied.place)
            if implied.place == FOUND_AT:
                transforms = transforms.combined(Transforms(TOLD_OF_FOUND))
        else:
            verdict = "allow"
    if verdict in ("allow", "log_only") and not alone.logged_rule_ids:
        return None
    label = f"{implied.cause}: {way.method} {way.target.path}"
    return replace(alone, verdict=verdict, transforms=transforms, reason="impliedRequest", implied=label)


def _can_hide(transforms: Transforms | None, place: str) -> bool:
    """Return False if the properties to hide may be anywhere in the response, because of `$expand=*`.

    Transforms by schema type apply anywhere in a response, so the place of the properties does not matter.
    """
    if "*" not in place or transforms is None:
        return True
    return replace(transforms, typed=()) == Transforms()


def _with_implied(decision: Decision, effect: Decision) -> Decision:
    if effect.verdict not in ("block", "filter"):
        return _with_logged(decision, effect.logged_rule_ids)
    several = _rules_of_both(decision, effect) if decision.reason != "default" else effect.several_rule_ids
    stricter = _strictest(decision, effect)
    return replace(stricter, several_rule_ids=several, implied=effect.implied)


def blocked_by_path(decision: Decision) -> Decision:
    """Return the blocking decision for a response which shows that the path may name a hidden property."""
    return replace(decision, verdict="block", transforms=None, reason="hiddenProperty")


def _asked_once(check: Check, request: RequestFacts, response: ResponseFacts | None, known: Known) -> int:
    said = known.get(check)
    if said is None:
        said = known[check] = check(request, response)
    return said


def _strictest(first: Decision, second: Decision, *, in_order: bool = True) -> Decision:
    """Return the stricter of two decisions.

    `block` is stricter than `filter`, and `filter` stricter than `allow`.

    Pass `in_order=False` if the rule of `second` precedes the rule of `first` in the ruleset file.
    """
    by_rule = first.reason == "default" and second.reason != "default"
    if second.verdict == "block" and (first.verdict != "block" or by_rule):
        stricter, other = second, first
    elif first.verdict == "block" or second.verdict != "filter":
        stricter, other = (second, first) if by_rule and first.verdict == "allow" else (first, second)
    elif first.verdict != "filter":
        stricter, other = second, first
    else:
        several = _rules_of_both(first, second) if in_order else _rules_of_both(second, first)
        transforms = _combined(first.transforms, second.transforms)
        stricter, other = replace(first, transforms=transforms, several_rule_ids=several), second
    return _with_logged(stricter, other.logged_rule_ids)


def _with_logged(decision: Decision, logged: tuple[str, ...]) -> Decision:
    if not logged:
        return decision
    return replace(decision, logged_rule_ids=_merged(decision.logged_rule_ids, logged))


def _rules_of_both(first: Decision, second: Decision) -> tuple[str, ...]:
    """Return the rule IDs of two decisions, each ID once, or no IDs if there is only one rule ID."""
    rule_ids = _merged(first.rule_ids, second.rule_ids)
    return rule_ids if len(rule_ids) > 1 else ()


def _merged(first: tuple[str, ...], second: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(first + second))


def _combined(first: Transforms | None, second: Transforms | None) -> Transforms | None:
    if first is None or second is None:
        return first or second
    return first.combined(second)


def _effect(decision: Decision) -> object:
    """Return the verdict and transforms of a decision: only these change what the client receives."""
    return ("allow" if decision.verdict == "log_only" else decision.verdict), decision.transforms


def _overriding_methods(request: RequestFacts) -> set[str]:
    return {
        method.strip().upper()
        for name, value in request.headers
        if names_method_override(name)
        for method in value.decode("latin-1").split(",")
    }
