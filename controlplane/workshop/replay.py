"""Replay: evaluate recorded requests against a draft ruleset, and show which verdicts change.

The old verdict of a request is the verdict in its audit event. Replay does not evaluate the old verdict
again.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import reduce
from typing import Annotated, Final, Literal, NamedTuple, TypeVar, get_args

import msgspec

from controlplane.workshop.cases import REFUSED
from controlplane.workshop.closed_gaps import ClosedGap, gap_of_implied, gap_of_key
from controlplane.workshop.explain import Evaluation, SampleRequest, evaluated
from proxy.policy.batch import is_batch
from proxy.policy.bounded_memo import BoundedMemo, WhenFull
from proxy.policy.canonical import MalformedTarget, Target, canonicalise
from proxy.policy.decision import Decision, Plan
from proxy.policy.redaction import is_cut
from proxy.policy.ruleset import DEFAULT_RULE_ID, Rule, Ruleset
from proxy.policy.schemas import NO_SCHEMAS, Schemas
from proxy.policy.transforms import Transforms
from proxy.policy.unknown import (
    PartlyKnownRequest,
    PartlyKnownResponse,
    PossibleFacts,
    RequestPart,
    ResponsePart,
    Ways,
    every_way,
    partly_known_rules,
)

MAX_GROUPS: Final = 1000
MAX_SAMPLES: Final = 3  # samples per group

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_MOST_KNOWN: Final = 8192
_MOST_REPORTED: Final = 16  # possible outcomes to report for one event
_MINUTE_MS: Final = 60_000  # resolution of time gates

_NO_RULESET: Final = "noRuleset"
_TOO_LARGE: Final = "payloadTooLarge"
# Reasons of the proxy's own refusals that depend on the rules, although no rule decided.
_REFUSED_FOR_RULES: Final = frozenset(("ambiguousTarget", _TOO_LARGE))
# Reasons of events whose upstream responded, so that response rules were evaluated.
_RESPONDED: Final = frozenset(
    (
        "rule",
        "default",
        "hiddenProperty",
        "impliedRequest",
        "responseRule",
        "filterFailed",
        "clientAborted",
        "upstreamAborted",
    )
)
_DEPENDENCY: Final = "the sub-request of its batch that it depends on"
_FILTER_THEN: Final = "the properties that its filter hid, because the rules of that time are unknown"
_REST_OF_TARGET: Final = "the rest of a target that was too long to be stored"
_REST_OF_TRANSFORMS: Final = "the rest of the transforms, which were too many to be stored"

_NOTHING_STORED: Final[frozenset[RequestPart]] = frozenset(("header", "body"))
_ADDRESS: Final[frozenset[RequestPart]] = frozenset(("ip",))
_NO_BODY: Final[frozenset[RequestPart]] = frozenset(("header",))
_RESPONSE_UNKNOWN: Final[frozenset[ResponsePart]] = frozenset(("response_header", "property"))
_NO_RESPONSE: Final[frozenset[ResponsePart]] = frozenset(("status", "response_header", "property"))


T = TypeVar("T", bound=Hashable)


class Event(msgspec.Struct, rename="camel", gc=False):
    """Facts of one audit event: the request, and the result of the rules' evaluation of the request."""

    id: str
    time: Annotated[datetime, msgspec.Meta(tz=True)]
    method: str
    path: str
    verdict: str
    query: str | None = None
    app_id: str | None = None
    client_ip: str | None = None
    request_bytes: int | float | None = None
    upstream_status: int | float | None = None
    rule_id: str | None = None
    transforms: tuple[str, ...] | None = None
    reason: str | None = None
    ruleset_version: int | str | None = None
    rule_ids: tuple[str, ...] | None = None
    implied_request: str | None = None

    @property
    def implied_by_body(self) -> Event | None:
        """Return an event of the implied request that decided the verdict, if a body implied this request.

        An implied request is another read or write that a request causes, for example by a name in its body.
        """
        cause, _, request = (self.implied_request or "").partition(": ")
        if not request or is_cut(request) or cause[:1] == "$" or cause.endswith("@delta"):
            return None
        method, _, path = request.partition(" ")
        return msgspec.structs.replace(
            self, method=method, path=path, query=None, implied_request=None, upstream_status=None
        )

    @property
    def target(self) -> str:
        return self.path if self.query is None else f"{self.path}?{self.query}"

    @property
    def time_ms(self) -> int:
        return (self.time - _EPOCH) // _MILLISECOND

    @property
    def reached_rules(self) -> bool:
        """Return True if the rules evaluated the request, or if the application had no ruleset.

        A request that the proxy refused before it evaluated the rules stays refused.
        """
        return self.rule_id is not None or self.reason == _NO_RULESET or self.reason in _REFUSED_FOR_RULES

    @property
    def lets_through(self) -> bool:
        return self.rule_id is not None and self.verdict != "block"

    @property
    def leaves_filter_to_rules(self) -> bool:
        """Return True if the event does not list all transforms of its filter.

        The rules that evaluated the event must then supply the transforms.

        If an event has `ruleIds`, the event's transforms name only the properties and items that the proxy
        removed. An event without `ruleIds` was written by an earlier release. The transforms of such an event
        list everything that the filter removes, even if the response did not contain it.
        """
        return self.verdict == "filter" and self.rule_ids is not None

    def outcome(self, former: Rules | None) -> Outcome:
        """Return the outcome that the audit event records.

        `former` are the rules that evaluated the request. If the event does not list all transforms of its
        filter, `former` supplies them.
        """
        if self.rule_id is None:
            verdict = self.verdict if self.reason == _NO_RULESET else REFUSED
            return Outcome(verdict, self.reason or "")
        names = self.transforms
        if self.leaves_filter_to_rules:
            names = None if former is None else former.filter_of(self.rule_ids or ())
            if names is None:
                return Outcome(self.verdict, self.rule_id, None)
        return Outcome(self.verdict, self.rule_id, _in_effect(self.verdict, names or ()))


class Outcome(NamedTuple):
    """A verdict, with the rule that gave the verdict or the reason for a refusal by the proxy itself.

    `by` is the ID of the rule, or the reason why the proxy itself refused the request.
    """

    verdict: str
    by: str
    transforms: tuple[str, ...] | None = ()  # active filter, sorted, or None if it is unknown

    @property
    def effect(self) -> tuple[str, tuple[str, ...] | None]:
        return self.verdict, self.transforms

    @property
    def lets_through(self) -> bool:
        return self.verdict not in ("block", REFUSED)


class Unclear(NamedTuple):
    """Result of an evaluation whose verdict depends on facts that the audit event does not contain."""

    possible: tuple[Outcome, ...]
    missing: tuple[str, ...]


class Rules:
    """Ruleset that is compiled once, and evaluates recorded requests of which some facts are unknown."""

    def __init__(self, ruleset: Ruleset, schemas: Schemas = NO_SCHEMAS) -> None:
        self.name = ruleset.name
        self._ruleset = ruleset
        self._schemas = {model.digest for model in schemas.models}
        self._compiled = partly_known_rules(ruleset, schemas)
        self._transforms = {rule.id: rule.transforms for rule in ruleset.rules if rule.verdict == "filter"}
        self._ids = frozenset((DEFAULT_RULE_ID, *(rule.id for rule in ruleset.rules)))
        self._filters: BoundedMemo[tuple[str, ...], tuple[str, ...] | None] = BoundedMemo(
            _MOST_KNOWN, None, WhenFull.CLEAR
        )
        self._asks_query = any(map(_asks_query, ruleset.rules))
        self._asks_ip = any(rule.ip is not None for rule in ruleset.rules)
        self._asks_time = any(rule.time is not None for rule in ruleset.rules)
        self._ends = sorted(rule.until.end for rule in ruleset.rules if rule.until is not None)

    def are(self, other: Rules) -> bool:
        """Return True if this ruleset and `other` contain the same rules and use the same schemas.

        The texts of two equal rulesets may differ in comments and layout.
        """
        return self._ruleset == other._ruleset and self._schemas == other._schemas

    def plan(self, method: str, target: Target) -> Plan:
        return self._compiled.plan(method, target)

    def gap_of_key(self, method: str, target: Target) -> ClosedGap | None:
        return gap_of_key(self._compiled, method, target)

    def filter_of(self, rule_ids: tuple[str, ...]) -> tuple[str, ...] | None:
        """Return the transforms of the filter that results if the rules in `rule_ids` are combined.

        Return None if this ruleset did not evaluate the event. This ruleset did not evaluate the event if the
        ruleset lacks a rule with an ID in `rule_ids`, or if none of these rules is a filter.
        """
        if rule_ids not in self._filters.entries:
            self._filters.keep(rule_ids, self._filter_of(rule_ids))
        return self._filters.entries[rule_ids]

    def _filter_of(self, rule_ids: tuple[str, ...]) -> tuple[str, ...] | None:
        found = [transforms for each in rule_ids if (transforms := self._transforms.get(each)) is not None]
        if not found or not self._ids.issuperset(rule_ids):
            return None
        return reduce(Transforms.combined, found).names

    def looked_at(self, event: Event, target: Target, plan: Plan) -> Hashable:
        """Return those facts of an event that can influence how the rules evaluate the event.

        If two events have equal facts, the rules give both events the same result.
        """
        return (
            plan,
            target.query if self._asks_query or plan.looks_at_query(target) else None,
            event.client_ip if self._asks_ip else None,
            event.time_ms // _MINUTE_MS if self._asks_time else None,
            bisect_right(self._ends, event.time.timestamp()),
            (event.upstream_status, event.verdict, event.reason) if plan.has_response_rules else None,
            _has_no_body(event),
            is_batch(event.method, target),
        )


class Replay:
    """A draft ruleset, and its results for audit events."""

    def __init__(self, draft: Ruleset, schemas: Schemas = NO_SCHEMAS) -> None:
        self.rules = Rules(draft, schemas)
        self._endings = tuple((rule.id, rule.until.end) for rule in draft.rules if rule.until is not None)
        self._possible_facts = PossibleFacts()
        self._known: BoundedMemo[Hashable, Outcome | Unclear] = BoundedMemo(_MOST_KNOWN, None, WhenFull.CLEAR)

    @property
    def name(self) -> str:
        return self.rules.name

    def ended_before(self, moment: float) -> tuple[tuple[str, float], ...]:
        """Return the ID and the end time of each draft rule that has ended by `moment`."""
        return tuple((rule_id, end) for rule_id, end in self._endings if end <= moment)

    def evaluate(self, event: Event, former: Rules | None = None) -> Outcome | Unclear:
        """Evaluate the recorded request of an event against the draft.

        When the request was recorded, the proxy evaluated it against other rules.

        `former` are the rules that evaluated the event when it was recorded. The event lacks some facts of
        the request. `evaluate` tries each possible value of such a fact, but only values with which the
        `former` rules give the recorded outcome.
        """
        text = event.target
        if is_cut(text):
            return Unclear((), (_REST_OF_TARGET,))
        if any(map(is_cut, event.transforms or ())):
            return Unclear((), (_REST_OF_TRANSFORMS,))
        try:
            target = canonicalise(text)
        except MalformedTarget:
            return Outcome(REFUSED, "malformedTarget")
        plan = self.rules.plan(event.method, target)
        if event.reason == _TOO_LARGE and (plan.needs_body or is_batch(event.method, target)):
            return event.outcome(former)
        after = self._evaluate_remembered(event, target, plan, former)
        implied = event.implied_by_body
        if implied is not None:  # the implied request of the body is stored, but the body is not
            of_implied = self.evaluate(implied)
            if not isinstance(of_implied, Outcome) or not of_implied.lets_through:
                return of_implied
        if event.reason == "dependencyFailed" and isinstance(after, Outcome) and after.lets_through:
            return Unclear((event.outcome(former), after), (_DEPENDENCY,))
        return after

    def same_effect(self, other: Replay, event: Event, former: Rules | None) -> bool:
        """Return True if this draft and `other` affect an event equally, for all values of unknown facts.

        `former` are the rules that evaluated the event when it was recorded.
        """
        if self.rules.are(other.rules):
            return True
        text = event.target
        if is_cut(text) or any(map(is_cut, event.transforms or ())) or event.implied_by_body is not None:
            return False
        try:
            target = canonicalise(text)
        except MalformedTarget:
            return True
        ways = every_way(self._same_effect(other, event, target, former), self._possible_facts)
        possible = [each for each in ways.outcomes if each is not None]
        if not possible:  # another ruleset evaluated the event
            return self.same_effect(other, event, None)
        return ways.complete and all(possible)

    def _same_effect(
        self, other: Replay, event: Event, target: Target, former: Rules | None
    ) -> Callable[[], bool | None]:
        """Return a function that compares the effects of two rulesets on an event.

        Each call of the returned function uses another combination of possible values for the facts that the
        event lacks.

        The returned function returns None if the `former` rules do not give the recorded outcome with the
        current combination of values.
        """
        ours = self._evaluation(event, target, self.rules.plan(event.method, target))
        others = self._evaluation(event, target, other.rules.plan(event.method, target))
        if former is None:
            return lambda: ours().effect == others().effect
        then = self._evaluation(event, target, former.plan(event.method, target))
        recorded = event.outcome(former)
        return lambda: ours().effect == others().effect if then() == recorded else None

    def gap(self, event: Event, after: Outcome | Unclear) -> ClosedGap | None:
        """Return the gap by which an earlier release let the event through, if the rules refuse it now.

        With the gap, an earlier release let requests pass that the rules now refuse. The running release does
        not have the gap.
        """
        if not isinstance(after, Outcome) or after.lets_through or not event.lets_through:
            return None
        try:
            target = canonicalise(event.target)
        except MalformedTarget:
            return None
        plan = self.rules.plan(event.method, target)
        ways = every_way(self._decision(event, target, plan), self._possible_facts)
        for decision in ways.outcomes:
            if isinstance(decision, Decision) and (found := gap_of_implied(decision, target)) is not None:
                return found
        return self.rules.gap_of_key(event.method, target)

    def _evaluate_remembered(
        self, event: Event, target: Target, plan: Plan, former: Rules | None
    ) -> Outcome | Unclear:
        key = self.rules.looked_at(event, target, plan)
        then = None
        if former is not None:
            then = former.plan(event.method, target)
            key = key, former.looked_at(event, target, then), event.outcome(former)
        after = self._known.entries.get(key)
        if after is None:
            recorded = event.outcome(former)
            after = self._evaluate(event, target, plan, then, recorded)
            self._known.keep(key, after)
        return after

    def _evaluate(
        self, event: Event, target: Target, plan: Plan, then: Plan | None, recorded: Outcome
    ) -> Outcome | Unclear:
        evaluate = self._evaluation(event, target, plan)
        if then is not None:
            evaluate_then = self._evaluation(event, target, then)

            def evaluate_if_recorded() -> Outcome | None:
                return evaluate() if evaluate_then() == recorded else None

            ways = every_way(evaluate_if_recorded, self._possible_facts)
            possible = tuple(each for each in ways.outcomes if each is not None)
            if possible:  # if there is none, another ruleset evaluated the event
                return _in_all(ways, possible)
        of_draft = every_way(evaluate, self._possible_facts)
        return _in_all(of_draft, of_draft.outcomes)

    def _evaluation(self, event: Event, target: Target, plan: Plan) -> Callable[[], Outcome]:
        decision = self._decision(event, target, plan)
        return lambda: outcome_of(decision())

    def _decision(self, event: Event, target: Target, plan: Plan) -> Callable[[], Evaluation]:
        request = PartlyKnownRequest(
            event.method,
            target,
            (),
            event.client_ip or "",
            event.time.timestamp(),
            None,
            possible_facts=self._possible_facts,
            unknown=_unknown_of(event),
            masks_secrets=True,
        )
        response = _response(event)
        return lambda: evaluated(plan, request, response)


def sample_of(event: Event) -> tuple[SampleRequest, PartlyKnownResponse | None]:
    """Return a sample request that explains the event, and the upstream's response or None."""
    request = SampleRequest(
        event.method,
        event.target,
        client_ip=event.client_ip or "",
        now=event.time.timestamp(),
        unknown=_unknown_of(event),
        masks_secrets=True,
    )
    return request, None if event.upstream_status is None else _response(event)


def _unknown_of(event: Event) -> frozenset[RequestPart]:
    unknown = _NO_BODY if _has_no_body(event) else _NOTHING_STORED
    return unknown if event.client_ip else unknown | _ADDRESS


def _asks_query(rule: Rule) -> bool:
    return rule.guard_queries or any(condition.source == "query" for condition in rule.conditions)


def _has_no_body(event: Event) -> bool:
    """Return True if the request certainly had no body.

    A blocked request may have had a body that the proxy did not read.
    """
    return event.request_bytes == 0 and (event.upstream_status is not None or event.method in ("GET", "HEAD"))


def _in_all(ways: Ways[T], possible: tuple[Outcome, ...]) -> Outcome | Unclear:
    """Return one outcome if all possible outcomes have the same effect.

    Outcomes with the same effect can have different deciding rules.
    """
    if ways.complete and len({outcome.effect for outcome in possible}) == 1:
        return possible[0]
    return Unclear(possible[:_MOST_REPORTED], ways.missing)


def _response(event: Event) -> PartlyKnownResponse | None:
    """Return the upstream's response to the event's request, or a possible response for a blocked request.

    Return None if the upstream failed to respond to the request.
    """
    if event.upstream_status is not None:
        responded = event.reason in _RESPONDED
        return _partly_known(int(event.upstream_status), _RESPONSE_UNKNOWN) if responded else None
    return None if event.lets_through else _partly_known(0, _NO_RESPONSE)


def _partly_known(status: int, unknown: frozenset[ResponsePart]) -> PartlyKnownResponse:
    return PartlyKnownResponse(status, (), None, unknown=unknown)


def outcome_of(evaluation: Evaluation) -> Outcome:
    if isinstance(evaluation, Decision):
        names = () if evaluation.transforms is None else evaluation.transforms.names
        return Outcome(evaluation.verdict, evaluation.rule_id, _in_effect(evaluation.verdict, names))
    return Outcome(REFUSED, evaluation.reason)


def _in_effect(verdict: str, transforms: Iterable[str]) -> tuple[str, ...]:
    """Return the sorted names of the transforms that have an effect.

    If a filter rule matches and a later rule blocks, the event still names the filter's transforms. The
    transforms of a blocked event have no effect.
    """
    return tuple(sorted(transforms)) if transforms and verdict == "filter" else ()


# -- counts of many events

Change = Literal["newlyBlocked", "unclear", "newlyAllowed", "transforms", "recordedAs"]
CHANGES: Final[tuple[Change, ...]] = get_args(Change)  # harmful changes first


@dataclass(frozen=True, slots=True)
class Sample:
    id: str
    time: datetime
    method: str
    target: str


@dataclass(frozen=True, slots=True)
class GroupKey:
    change: Change
    app: str | None
    before: Outcome
    after: tuple[Outcome, ...]  # several if the outcome is unclear
    missing: tuple[str, ...] = ()
    gap: ClosedGap | None = None  # reason why it is newly blocked
    recorded: Outcome | None = None  # outcome in the event, if it differs from `before`


@dataclass(slots=True)
class Group:
    """Audit events of one application, if the draft changes the verdict of each event in the same way."""

    key: GroupKey
    first: datetime
    last: datetime
    count: int = 0
    samples: list[Sample] = field(default_factory=list)  # the first events of the group

    def add(self, event: Event) -> None:
        self.count += 1
        self.first = min(self.first, event.time)
        self.last = max(self.last, event.time)
        if len(self.samples) < MAX_SAMPLES:
            self.samples.append(Sample(event.id, event.time, event.method, event.target))


@dataclass(slots=True)
class Tally:
    """Counts of replayed events, and samples of the changes.

    The memory use of a Tally depends only on the number of groups.
    """

    events: int = 0
    unasked: int = 0  # requests for tokens, or refused before any rule was evaluated; they stay so
    unchanged: int = 0
    by_another_rule: int = 0  # part of the unchanged events
    changed: int = 0
    unclear: int = 0
    groups: dict[GroupKey, Group] = field(default_factory=dict)
    ungrouped: int = 0  # changed or unclear events beyond the largest number of groups

    def add(
        self,
        event: Event,
        before: Outcome,
        after: Outcome | Unclear,
        gap: ClosedGap | None = None,
        recorded: Outcome | None = None,
    ) -> None:
        """Count an event, and add the event to a group if the draft changes or may change its outcome.

        The argument `before` is the event's outcome without the draft: the recorded outcome, or the outcome
        with the active ruleset. The argument `after` is the event's outcome with the draft.
        """
        recorded = None if recorded == before else recorded
        self.events += 1
        if before.transforms is None and isinstance(after, Outcome) and after.verdict == before.verdict:
            after = Unclear((after,), (_FILTER_THEN,))
        if isinstance(after, Outcome) and after.effect == before.effect:
            self.unchanged += 1
            self.by_another_rule += after.by != before.by
            return
        if isinstance(after, Unclear):
            self.unclear += 1
            key = GroupKey("unclear", event.app_id, before, after.possible, after.missing, recorded=recorded)
        else:
            self.changed += 1
            key = GroupKey(_change(before, after), event.app_id, before, (after,), (), gap, recorded)
        group = self.groups.get(key)
        if group is None:
            if len(self.groups) >= MAX_GROUPS:
                self.ungrouped += 1
                return
            group = self.groups[key] = Group(key, event.time, event.time)
        group.add(event)

    def add_same(self) -> None:
        """Count an event on which the two compared rulesets have the same effect.

        The effect itself can depend on facts that the event does not contain.
        """
        self.events += 1
        self.unchanged += 1

    def pass_over(self) -> None:
        """Count an event whose request was not evaluated by any rule."""
        self.events += 1
        self.unasked += 1

    def sorted_groups(self) -> list[Group]:
        """Return the groups of events with changed verdicts: harmful changes first, then the most frequent.

        If the same events are counted again, the groups have the same order.
        """
        return sorted(self.groups.values(), key=_rank)


def _rank(group: Group) -> tuple[object, ...]:
    key = group.key
    return (
        CHANGES.index(key.change),
        -group.count,
        key.app or "",
        repr((key.before, key.after, key.missing, key.gap, key.recorded)),
    )


def _change(before: Outcome, after: Outcome) -> Change:
    if before.lets_through and not after.lets_through:
        return "newlyBlocked"
    if after.lets_through and not before.lets_through:
        return "newlyAllowed"
    return "transforms" if before.transforms != after.transforms else "recordedAs"
