"""Explanation of a verdict: the rules in the order in which they are tried, and each condition's result.

The explained verdict is the verdict that `Plan.decide` returns. The explanation uses the same compiled rules
as the proxy, so the same checks evaluate each part of a rule. If facts of the request or response are
unknown, the explanation lists each verdict that the possible values of these facts lead to.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import islice
from typing import Final, Literal
from zoneinfo import ZoneInfo

from controlplane.workshop.probed_properties import probed_properties
from proxy.policy.batch import envelope_decision, is_batch
from proxy.policy.body_members import listed_members, other_members
from proxy.policy.candidates import counts_for
from proxy.policy.canonical import (
    SLASH,
    UNTAKEN,
    MalformedTarget,
    Name,
    Reading,
    Target,
    canonicalise,
    option_name,
)
from proxy.policy.compiled_rule import Candidate, Part, asks_as_taken, parameter_conditions, parts_asked
from proxy.policy.conditions import INDETERMINATE, NO, YES, field_values
from proxy.policy.decision import Decision, ImpliedDecision, Importance, Plan, blocked_by_path
from proxy.policy.ending import moment_text
from proxy.policy.facts import Composite, MalformedBody, RequestFacts, ResponseFacts, property_path
from proxy.policy.filters import Filtered, FilterFailed
from proxy.policy.implied import Scope
from proxy.policy.items import ItemNotFound
from proxy.policy.plain_responses import NamesHidden, media_type, without_hidden
from proxy.policy.redirects import ELSEWHERE, is_redirect, leads_elsewhere
from proxy.policy.rule_finder import importance_of
from proxy.policy.ruleset import BodyOnly, Condition, IpGate, Rule, Ruleset, TimeGate, Until
from proxy.policy.scalars import Written
from proxy.policy.schemas import NO_SCHEMAS, Schemas
from proxy.policy.services.facts import NO_FACTS
from proxy.policy.things import words_of
from proxy.policy.transforms import ITEMS
from proxy.policy.typed_filter import filter_of
from proxy.policy.unknown import (
    PartlyKnownRequest,
    PossibleFacts,
    RequestPart,
    Ways,
    every_way,
    is_unknown,
    partly_known_rules,
)
from proxy.policy.unsupported_requests import carries_query, names_method_override
from proxy.policy.visible import escaped
from proxy.policy.yaml_document import cut

# A proxy's own upstream is not known here. A redirect to any address of Graph counts as one to the upstream.
GRAPH_BASES: Final = (
    "https://graph.microsoft.com",
    "https://graph.microsoft.us",
    "https://dod-graph.microsoft.us",
    "https://microsoftgraph.chinacloudapi.cn",
)
Held = Literal["no", "perhaps", "yes", "unreadable", "unknown"]
Outcome = Literal["unmatched", "perhaps", "logs", "filters", "decides", "unreadable", "unknown"]

_MOST_FOUND = 100  # values reported for one condition
_HELD: dict[int, Held] = {NO: "no", INDETERMINATE: "perhaps", YES: "yes"}
_REVEALS_ITEMS = "the request would reveal items that the rule does not keep"
_PATH_IS_HIDDEN = "the path names a property that the rule hides"
_THINGS = "things"
_A_KEY = "a key where the path names an operation"
_QUERY_PROBES = "the query names a property that the rule hides"


@dataclass(frozen=True, slots=True)
class SampleRequest:
    method: str
    target: str
    headers: tuple[tuple[bytes, bytes], ...] = ()
    client_ip: str = ""  # if empty, the address is unknown and an address gate may match
    now: float = 0.0
    body: bytes | None = None
    unknown: frozenset[RequestPart] = frozenset()
    masks_secrets: bool = False  # True if secrets in the query are masked, as in audit events


@dataclass(frozen=True, slots=True)
class Finding:
    """One condition of a rule, its result, and the tested values of the request or response."""

    part: str  # path, methods, until, ip, time, body_only, or a condition's source and name
    asked: str
    held: Held
    found: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Attempt:
    """A rule whose conditions the evaluation of a request tested, even if the rule did not match.

    `decision` is the decision on the request or response if the rule matches. If the rule does not match, the
    last finding is the condition that failed.
    """

    rule_id: str
    outcome: Outcome
    decision: Decision
    findings: tuple[Finding, ...]
    note: str = ""


@dataclass(frozen=True, slots=True)
class Account:
    """One interpretation of the target: the rules tried for this interpretation, and its decision."""

    paths: tuple[str, ...]  # all names of the resource
    importance: Importance
    attempts: tuple[Attempt, ...]
    decision: Decision | None  # None if a body can't be read, or if the decision depends on unknown facts
    reaches: str = ""  # things on the path: user → message (user.messages, contained)


@dataclass(frozen=True, slots=True)
class ImpliedAccount:
    """A request that another request implies, and the decision of the rules on the implied request."""

    cause: str  # cause of the implication, such as $expand
    method: str
    path: str
    place: str  # property path in the response, or empty if the response has nothing of it
    decision: Decision | None  # None if the decision depends on unknown facts
    matters: bool  # True if it makes the verdict stricter


@dataclass(frozen=True, slots=True)
class Refused:
    """The proxy's own response if no rule decides, or if a filter can't read the response."""

    status: int
    reason: str
    message: str


Evaluation = Decision | Refused


@dataclass(frozen=True, slots=True)
class Explanation:
    """Explanation of the verdict on one request.

    `decision` and `refused` are both None if the verdict depends on unknown facts.
    """

    decision: Decision | None
    refused: Refused | None = None
    accounts: tuple[Account, ...] = ()
    response_accounts: tuple[Account, ...] = ()
    awaiting: tuple[str, ...] = ()  # response rules that may change the verdict when there is a response
    body: bytes | None = None  # body of the response that the application gets
    removed: tuple[str, ...] | None = None  # transforms that removed something from the body
    possible: tuple[Evaluation, ...] = ()  # possible verdicts, if the verdict depends on unknown facts
    missing: tuple[str, ...] = ()  # unknown facts that the verdict depends on
    implied: tuple[ImpliedAccount, ...] = ()


ITEM_NOT_FOUND: Final = "itemNotFound"
_NOT_FOUND: Final = Refused(404, ITEM_NOT_FOUND, "the filter does not keep this item")

_Considered = dict[int, list[tuple[Candidate, Name]]]  # keys are indexes of rules


class Explainer:
    """Explainer of verdicts for one ruleset. The ruleset is compiled once for all requests."""

    def __init__(self, ruleset: Ruleset, schemas: Schemas = NO_SCHEMAS) -> None:
        self._ruleset = ruleset
        self._rules = partly_known_rules(ruleset, schemas)

    def explain(self, sample: SampleRequest, response: ResponseFacts | None = None) -> Explanation:
        try:
            target = canonicalise(sample.target)
        except MalformedTarget as error:
            return Explanation(None, Refused(400, "malformedTarget", str(error)))
        if _overrides_method(sample):
            return Explanation(None, Refused(400, "unsupported", "a method override is not served"))
        if carries_query(sample.method, target):
            return Explanation(None, Refused(400, "unsupported", "a query in a body is not served"))
        request = PartlyKnownRequest(
            sample.method,
            target,
            sample.headers,
            sample.client_ip,
            sample.now,
            sample.body,
            possible_facts=PossibleFacts(),
            unknown=sample.unknown,
            masks_secrets=sample.masks_secrets,
        )
        plan = self._rules.plan(sample.method, target)
        accounts = tuple(self._request_account(reading, request) for reading in target.readings)
        ways = every_way(lambda: evaluated(plan, request, None), request.possible_facts)
        if response is None or not any(map(_lets_through, ways.outcomes)):
            awaited = response is None and plan.has_response_rules and any(map(_lets_through, ways.outcomes))
            awaiting = self._response_rules(request.method, target) if awaited else ()
            report = _explanation(ways, accounts, awaiting=awaiting)
        else:
            report = self._responded(plan, request, response, accounts)
        return replace(report, implied=_implied_accounts(plan, request))

    def _responded(
        self, plan: Plan, request: PartlyKnownRequest, response: ResponseFacts, accounts: tuple[Account, ...]
    ) -> Explanation:
        elsewhere = is_redirect(response.status) and leads_elsewhere(response.headers, GRAPH_BASES)
        withheld = elsewhere and plan.response_body_decides
        if elsewhere and not withheld:
            before = every_way(lambda: evaluated(plan, request, None), request.possible_facts)
            withheld = any(_filters(each) for each in before.outcomes)
        if withheld:
            response = ResponseFacts(response.status, response.headers, b"")
        ways = every_way(lambda: evaluated(plan, request, response), request.possible_facts)
        of_response: tuple[Account, ...] = ()
        if plan.has_response_rules:
            of_response = tuple(
                self._response_account(reading, request, plan, response)
                for reading in request.target.readings
            )
        report = _explanation(ways, accounts, of_response)
        if report.decision is None or report.decision.verdict == "block":
            return report
        if withheld or (elsewhere and _filters(report.decision)):
            return replace(report, refused=Refused(502, "filterFailed", ELSEWHERE))
        try:
            left = _without_hidden(report.decision, request, response)
            return report if left is None else replace(report, body=left.body, removed=left.removed)
        except ItemNotFound:
            return replace(report, refused=_NOT_FOUND, removed=(ITEMS,))
        except NamesHidden:
            return replace(report, decision=blocked_by_path(report.decision))
        except FilterFailed as error:
            return replace(report, refused=Refused(502, "filterFailed", error.reason))

    def _response_rules(self, method: str, target: Target) -> tuple[str, ...]:
        ids = [
            candidate.entry.compiled.rule.id
            for reading in target.readings
            for candidate in self._rules.rules.candidates(reading, method.upper(), {})
            if candidate.entry.compiled.on_response and candidate.entry.compiled.concerns(method.upper())
        ]
        return tuple(dict.fromkeys(ids))

    def _request_account(self, reading: Reading, request: PartlyKnownRequest) -> Account:
        plan = self._plan_of(reading, request)
        ways = every_way(lambda: _decided(plan, request), request.possible_facts)
        return self._account(reading, request, None, ways)

    def _response_account(
        self, reading: Reading, request: PartlyKnownRequest, whole: Plan, response: ResponseFacts
    ) -> Account:
        """Explain how the response rules evaluate the response.

        The request rules must have given the same decision for all interpretations of the request.
        """
        plan = self._plan_of(reading, request)

        def decided() -> Decision | None:
            before = evaluated(whole, request, None)
            return plan.decide_response(request, before, response) if isinstance(before, Decision) else None

        return self._account(reading, request, response, every_way(decided, request.possible_facts))

    def _plan_of(self, reading: Reading, request: RequestFacts) -> Plan:
        alone = reading._replace(kind=reading.kind & ~SLASH)  # a single interpretation is the one to evaluate
        return self._rules.rules.plan_of_readings(request.method.upper(), (alone,))

    def _account(
        self,
        reading: Reading,
        request: RequestFacts,
        response: ResponseFacts | None,
        ways: Ways[Decision | None],
    ) -> Account:
        considered = self._considered(reading, request.method.upper())
        attempts = [*self._attempts(considered, reading, request, response)]
        # An unreadable body is refused before any rule is evaluated, so no response rule is listed then.
        if response is None and any(ways.outcomes) and not _surely_block(attempts):
            attempts += self._foreseen(considered, request)
        return Account(
            tuple(_path_of(name) for name in reading.names),
            "shadow" if reading.kind & UNTAKEN else importance_of(reading.kind, request.method.upper()),
            tuple(attempts),
            None if ways.missing else ways.outcomes[0],
            escaped(self._rules.rules.things.reaches(reading.names)),
        )

    def _attempts(
        self,
        considered: _Considered,
        reading: Reading,
        request: RequestFacts,
        response: ResponseFacts | None,
    ) -> Iterator[Attempt]:
        """Yield the tried rules in the order of `Lane.evaluate`, up to the rule that decides."""
        for index, rule in enumerate(self._ruleset.rules):
            if (rule.when == "response") is (response is None):
                continue
            attempts: dict[Attempt, None] = {}
            for candidate, name in considered.get(index, ()):
                attempt = self._with_things(_attempt(candidate, name, request, response), candidate, reading)
                attempts[attempt] = None
                if attempt.outcome in ("decides", "unreadable"):
                    break
            yield from _worth_telling(attempts) or (_on_another_path(rule),)
            if any(attempt.outcome in ("decides", "unreadable") for attempt in attempts):
                return

    def _with_things(self, attempt: Attempt, candidate: Candidate, reading: Reading) -> Attempt:
        """Return the attempt with a finding about the schema element to which the path leads.

        If the rule names no schema element, return the attempt unchanged.
        """
        compiled = candidate.entry.compiled
        if not compiled.rule.match.names_things:
            return attempt
        things = self._rules.rules.things
        met = things.met(compiled.index, reading.names)
        asked = words_of(compiled.rule.match, things.facts)
        findings = (_finding(_THINGS, asked, _HELD[candidate.held], (met,)), *attempt.findings)
        outcome = attempt.outcome
        if outcome not in ("unmatched", "unreadable"):
            outcome = _outcome([finding.held for finding in findings], attempt.decision)
        note = attempt.note or (f"by {escaped(met)}" if outcome in ("decides", "filters", "logs") else "")
        return replace(attempt, findings=findings, outcome=outcome, note=note)

    def _foreseen(self, considered: _Considered, request: RequestFacts) -> Sequence[Attempt]:
        """Return the response rules that were tested before the request is sent, if one of them blocks.

        A response rule blocks a request early if the request's path or query names a property that the rule
        hides. `Plan.decide` evaluates such response rules together with the request rules. If no response
        rule blocks the request early, return nothing.
        """
        report: dict[Attempt, None] = {}
        for attempt in self._before_a_response(considered, request):
            if _names_what_is_hidden(attempt) or attempt.outcome in ("unmatched", "unknown"):
                report[attempt] = None
            if attempt.outcome in ("decides", "unreadable"):
                break
        blocks = any(
            _names_what_is_hidden(attempt) and attempt.outcome in ("decides", "unknown") for attempt in report
        )
        return tuple(report) if blocks else ()

    def _before_a_response(self, considered: _Considered, request: RequestFacts) -> Iterator[Attempt]:
        """Yield each response rule that can be evaluated from the request alone.

        Stop at the first rule that can be evaluated only with the response.
        """
        for index, rule in enumerate(self._ruleset.rules):
            if rule.when != "response" or rule.verdict == "log_only":
                continue
            for candidate, name in considered.get(index, ()):
                if candidate.held == NO or not candidate.entry.compiled.concerns(request.method.upper()):
                    continue
                if candidate.step.asks_response:
                    return
                yield _attempt(candidate, name, request, None)

    def _considered(self, reading: Reading, method: str) -> _Considered:
        """Return the rules whose path matches the target, ordered by their index.

        Rules whose path parameters do not match come after the rules whose parameters match.
        """
        found: list[tuple[Candidate, Name]] = []
        for name in reading.names:
            candidates = self._rules.rules.candidates_of_name(name, method)
            found += [(candidate, name) for candidate in candidates if counts_for(candidate, reading)]
        if reading.names:
            of_things = self._rules.rules.candidates_of_things(reading, method)
            found += [(candidate, reading.names[0]) for candidate in of_things]
        found.sort(key=lambda one: one[0].order)
        for name in reading.names:
            found += [
                (Candidate(entry, NO, entry.compiled.step), name)
                for entry in self._rules.rules.tree.find(name)[0]
                if entry.parameters_hold(name) == NO
            ]
        considered: _Considered = {}
        for candidate, name in found:
            considered.setdefault(candidate.entry.compiled.index, []).append((candidate, name))
        return considered


def evaluated(plan: Plan, request: RequestFacts, response: ResponseFacts | None) -> Evaluation:
    """Evaluate a request by the request rules, and its response, if given, by the response rules."""
    try:
        decision = plan.decide(request)
    except MalformedBody as error:
        return Refused(400, "malformedRequest", str(error))
    except MalformedTarget as error:
        return Refused(400, "ambiguousTarget", str(error))
    if is_batch(request.method, request.target):
        decision = envelope_decision(decision)
    if response is None or decision.verdict == "block":
        return decision
    return plan.decide_response(request, decision, response)


def _implied_accounts(plan: Plan, request: PartlyKnownRequest) -> tuple[ImpliedAccount, ...]:
    first, *others = every_way(lambda: _implied(plan, request), request.possible_facts).outcomes
    if all(len(other) == len(first) for other in others):
        return tuple(
            [
                each if all(other[at] == each for other in others) else replace(each, decision=None)
                for at, each in enumerate(first)
            ]
        )
    return tuple([replace(each, decision=None) for each in first])


def _implied(plan: Plan, request: RequestFacts) -> tuple[ImpliedAccount, ...]:
    try:
        return tuple(
            [
                _implied_account(each)
                for each in plan.implied_decisions(request)
                # No default applies to a name, so most names have no decision.
                if each.implied.scope is Scope.ALL or each.alone.reason != "default"
            ]
        )
    except MalformedTarget:
        return ()


def _implied_account(each: ImpliedDecision) -> ImpliedAccount:
    way = each.way
    matters = each.effect is not None and each.effect.verdict in ("block", "filter")
    path = escaped(way.target.path)
    return ImpliedAccount(each.implied.cause, way.method, path, each.implied.place, each.alone, matters)


def _decided(plan: Plan, request: RequestFacts) -> Decision | None:
    try:
        return plan.decide(request)
    except MalformedBody:
        return None


def _filters(evaluation: Evaluation) -> bool:
    return isinstance(evaluation, Decision) and evaluation.transforms is not None


def _lets_through(evaluation: Evaluation) -> bool:
    return isinstance(evaluation, Decision) and evaluation.verdict != "block"


def _explanation(
    ways: Ways[Evaluation],
    accounts: tuple[Account, ...],
    of_response: tuple[Account, ...] = (),
    *,
    awaiting: tuple[str, ...] = (),
) -> Explanation:
    only = None if ways.missing else ways.outcomes[0]
    return Explanation(
        decision=only if isinstance(only, Decision) else None,
        refused=only if isinstance(only, Refused) else None,
        accounts=accounts,
        response_accounts=of_response,
        awaiting=awaiting,
        possible=() if only is not None else ways.outcomes,
        missing=ways.missing,
    )


def _attempt(
    candidate: Candidate, name: Name, request: RequestFacts, response: ResponseFacts | None
) -> Attempt:
    step = candidate.step
    decision, note = step.decided(request), ""
    findings: list[Finding] = []
    for finding in _findings(candidate, name, request, response):
        findings.append(finding)
        if finding.held in ("no", "unreadable"):
            break
    outcome = _outcome([finding.held for finding in findings], decision)
    if decision.reason == "hiddenProperty" and not (candidate.probed and outcome == "unmatched"):
        note = _hidden_note(candidate, request.target)
    return Attempt(decision.rule_id, outcome, decision, tuple(findings), note)


def _hidden_note(candidate: Candidate, target: Target) -> str:
    if not candidate.hides:
        transforms = candidate.entry.compiled.rule.transforms
        named = () if transforms is None else probed_properties(transforms, target)
        return f"the query names {', '.join(named)}, which the rule hides" if named else _QUERY_PROBES
    hidden = candidate.entry.compiled.hidden
    return _REVEALS_ITEMS if hidden is not None and hidden.keeps_items else _PATH_IS_HIDDEN


def _surely_block(attempts: Sequence[Attempt]) -> bool:
    if not attempts or any(attempt.outcome == "unknown" for attempt in attempts):
        return False
    return attempts[-1].outcome == "decides" and attempts[-1].decision.verdict == "block"


def _names_what_is_hidden(attempt: Attempt) -> bool:
    return attempt.decision.reason == "hiddenProperty"


def _outcome(held: Sequence[Held], decision: Decision) -> Outcome:
    if "unreadable" in held:
        return "unreadable"
    if "no" in held:
        return "unmatched"
    if "unknown" in held:
        return "unknown"
    if decision.verdict == "log_only":
        return "logs"
    if "perhaps" not in held or decision.verdict == "block":
        return "decides"
    return "filters" if decision.verdict == "filter" else "perhaps"


def _worth_telling(attempts: dict[Attempt, None]) -> tuple[Attempt, ...]:
    """Return the tried rules that an explanation reports.

    If another path of the same rule matches, the explanation leaves out the rule's paths that do not match.
    """
    return tuple(attempt for attempt in attempts if attempt.outcome != "unmatched") or tuple(attempts)[:1]


def _on_another_path(rule: Rule) -> Attempt:
    decision = Decision(rule.verdict, rule.id)
    asked = ", ".join(rule.match.path) or words_of(rule.match, NO_FACTS)
    return Attempt(rule.id, "unmatched", decision, (_finding("path", asked, "no"),))


def _finding(part: str, asked: str, held: Held, found: tuple[str, ...] = ()) -> Finding:
    """Return a finding whose texts are shortened.

    A long text may occur in every rule, and every rule may name many values.
    """
    values = tuple(cut(escaped(value)) for value in found[:_MOST_FOUND])
    return Finding(cut(escaped(part)), cut(escaped(asked)), held, values)


def _findings(
    candidate: Candidate, name: Name, request: RequestFacts, response: ResponseFacts | None
) -> Iterator[Finding]:
    """Yield the conditions of a rule, except its path, in the order of their evaluation."""
    compiled = candidate.entry.compiled
    rule = compiled.rule
    if rule.match.methods:
        held: Held = "yes" if compiled.concerns(request.method.upper()) else "no"
        yield _finding("methods", ", ".join(rule.match.methods), held, (request.method,))
    operation = candidate.entry.operation(name, request.method.upper())
    if operation is not None:
        yield _finding("path", _A_KEY, "perhaps", (operation,))
    for condition, (parameter, test) in zip(
        parameter_conditions(rule), compiled.parameter_tests, strict=True
    ):
        values = candidate.entry.values(parameter, name)
        yield _finding(_part_name(condition), _asked(condition), _HELD[test(values)], values)
    for part, check in zip(parts_asked(rule), compiled.step.checks, strict=True):
        if is_unknown(part, request, response):
            yield _finding(_part_name(part), _asked(part), "unknown")
            continue
        try:
            held = _HELD[check(request, response)]
        except MalformedBody:
            held = "unreadable"
        seen = request.as_taken() if asks_as_taken(rule, part) else request
        yield _finding(_part_name(part), _asked(part), held, _found(part, seen, response))
    if candidate.probed:
        # The query guard is the last check, after the rule's own conditions
        probes = candidate.step.checks[-1](request, response)
        query = request.target.query
        found = (query,) if query else ()
        yield _finding("query", "a query that names a hidden property", _HELD[probes], found)


def _part_name(part: Part) -> str:
    if isinstance(part, IpGate):
        return "ip"
    if isinstance(part, TimeGate):
        return "time"
    if isinstance(part, Until):
        return "until"
    if isinstance(part, BodyOnly):
        return "body_only"
    return f"{part.source} {part.name}".rstrip()


def _asked(part: Part) -> str:
    if isinstance(part, IpGate):
        inside = "" if part.inside is None else f"in {', '.join(part.inside)}"
        outside = "" if part.outside is None else f"not_in {', '.join(part.outside)}"
        return " and ".join(filter(None, (inside, outside)))
    if isinstance(part, TimeGate):
        return f"{', '.join(part.days)} from {part.start} to {part.end} {part.timezone}"
    if isinstance(part, Until):
        return f"a time before {moment_text(part.end)}"
    if isinstance(part, BodyOnly):
        return f"{'a member' if part.wants_another else 'no member'} except {', '.join(part.names)}"
    return " and ".join(f"{test.operator} {_operand(test.operand)}" for test in part.tests)


def _operand(operand: object) -> str:
    if isinstance(operand, tuple):
        return ", ".join(map(_text, operand))
    return _text(operand)


def _found(part: Part, request: RequestFacts, response: ResponseFacts | None) -> tuple[str, ...]:
    if isinstance(part, IpGate):
        return (request.client_ip,) if request.client_ip else ()
    if isinstance(part, TimeGate):
        moment = datetime.fromtimestamp(int(request.now), UTC).astimezone(ZoneInfo(part.timezone))
        return (moment.strftime("%a %H:%M").lower(),)
    if isinstance(part, Until):
        return (moment_text(int(request.now)),)
    try:
        if isinstance(part, BodyOnly):
            return tuple(islice(other_members(request, listed_members(part.names)), _MOST_FOUND))
        return tuple(islice(_values(part, request, response), _MOST_FOUND))
    except MalformedBody:
        return ()


def _values(condition: Condition, request: RequestFacts, response: ResponseFacts | None) -> Iterator[str]:
    """Yield the values that the condition's check examined, as text."""
    match condition.source:
        case "query":
            yield from request.target.options.get(option_name(condition.name), ())
        case "header":
            yield from field_values(request.headers, condition.name.lower().encode("ascii"))
        case "body":
            yield from map(_text, request.values(property_path(condition.name)))
    if response is None:
        return
    match condition.source:
        case "status":
            yield str(response.status)
        case "response_header":
            yield from field_values(response.headers, condition.name.lower().encode("ascii"))
        case "property":
            yield from map(_text, response.values(property_path(condition.name)))


def _text(value: object) -> str:
    """Return the text of a condition's value as JSON and YAML write it, such as `true` or `null`."""
    if isinstance(value, Composite):
        return "(an object or array)"
    if value is None:
        return "null"
    if isinstance(value, Written):
        return value.written
    return str(value).lower() if isinstance(value, bool) else str(value)


def _overrides_method(sample: SampleRequest) -> bool:
    return any(
        names_method_override(name) and value.strip().decode("latin-1") != sample.method
        for name, value in sample.headers
    )


def _path_of(name: Name) -> str:
    segments = [
        folded if exact is None else exact for folded, exact in zip(name.folded, name.exact, strict=True)
    ]
    return escaped("/" + "/".join(segments))


def _without_hidden(decision: Decision, request: RequestFacts, response: ResponseFacts) -> Filtered | None:
    """Return the body of the response without hidden properties, or None if the response has no body.

    Raise FilterFailed or NamesHidden if the filter rejects the response.
    """
    if response.body is None:
        return None
    if not response.body or decision.transforms is None or not 200 <= response.status < 300:
        return Filtered(response.body, ())
    if response.status == 206:
        raise FilterFailed("the response is partial content (206)")
    named = [value for name, value in response.headers if name.lower() == b"content-type"]
    kind = media_type(named[0] if named else b"application/json")
    compiled = filter_of(decision.transforms)
    asked = (request.method.upper(), request.target)
    return without_hidden(compiled, decision.transforms, asked, kind, response.body)
