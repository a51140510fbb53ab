"""Evaluate rules on requests with some unknown facts, for all possible values of these facts.

An audit event has no headers and no bodies, so some facts of the request are unknown. The evaluation covers
every request that the event may describe, and runs once for each combination of possible values. If all
combinations have the same outcome, the unknown facts make no difference.

If a check needs an unknown fact, one evaluation assumes that the fact is missing, and others assume that it
exists. If the fact exists, the evaluations assume each possible result of a comparison in turn. If a
comparison occurs several times, the evaluation assumes one result for all occurrences. If the body of a
request is unknown, the evaluation assumes a JSON body.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence, Set
from dataclasses import dataclass
from typing import Final, Generic, Literal, NamedTuple, TypeVar

from proxy.policy.canonical import Target, option_name
from proxy.policy.compile import CompiledRuleset, compile_ruleset
from proxy.policy.compiled_rule import Part, compile_part
from proxy.policy.conditions import INDETERMINATE, NO, YES, Check, when_missing
from proxy.policy.facts import RequestFacts, ResponseFacts
from proxy.policy.redaction import MASK
from proxy.policy.ruleset import BodyOnly, Comparison, Condition, IpGate, Ruleset, TimeGate, Until
from proxy.policy.schemas import NO_SCHEMAS, Schemas

RequestPart = Literal["ip", "time", "header", "body"]
ResponsePart = Literal["status", "response_header", "property"]

# combinations of possible values; if there are more, all needed facts are reported as missing
MAX_WAYS: Final = 256

T = TypeVar("T", bound=Hashable)
_Key = tuple[Hashable, ...]
_Made = tuple[tuple[str, int], ...]  # needed facts in order, each with the number of its assumed value
_MASK_BYTES: Final = MASK.encode()
_TWO_WAYS: Final = (NO, YES)
_THREE_WAYS: Final = (NO, INDETERMINATE, YES)


class PartlyKnownRequest(RequestFacts):
    """Facts of a request; the facts that `unknown` names are not known."""

    __slots__ = ("masks_secrets", "possible_facts", "unknown")

    def __init__(
        self,
        method: str,
        target: Target,
        headers: Sequence[tuple[bytes, bytes]],
        client_ip: str,
        now: float,
        body: bytes | None,
        *,
        possible_facts: PossibleFacts,
        unknown: Set[RequestPart] = frozenset(),
        masks_secrets: bool = False,
    ) -> None:
        super().__init__(method, target, headers, client_ip, now, body)
        self.possible_facts = possible_facts
        self.unknown = unknown
        self.masks_secrets = masks_secrets  # True if MASK replaces a value in the query or in a header

    def without_body(self, method: str, target: Target) -> RequestFacts:
        return PartlyKnownRequest(
            method,
            target,
            self.headers,
            self.client_ip,
            self.now,
            None,
            possible_facts=self.possible_facts,
            unknown=self.unknown,
            masks_secrets=self.masks_secrets,
        )

    @property
    def body_known(self) -> bool:
        return "body" not in self.unknown


class PartlyKnownResponse(ResponseFacts):
    __slots__ = ("unknown",)

    def __init__(
        self,
        status: int,
        headers: Sequence[tuple[bytes, bytes]],
        body: bytes | None,
        *,
        unknown: Set[ResponsePart],
    ) -> None:
        super().__init__(status, headers, body)
        self.unknown = unknown


@dataclass(slots=True)
class _PossibleFact:
    key: _Key
    fact: str  # the unknown fact, for people
    ways: int
    way: int = 0


class PossibleFacts:
    """One combination of possible values of all unknown facts about a request and its response.

    The method `slot` replaces the combination by the next one.
    """

    def __init__(self) -> None:
        self._made: list[_PossibleFact] = []  # facts in the order in which checks needed them
        self._at = 0
        self._known: dict[_Key, int] = {}

    def begin(self) -> None:
        """Discard the unknown facts, and their values, that the checks of the previous evaluation needed."""
        self._made.clear()
        self._at = 0
        self._known.clear()

    def ask(self, key: _Key, fact: str, ways: int) -> int:
        """Return the index of the possible value that the current evaluation assumes for an unknown fact."""
        way = self._known.get(key)
        if way is None:
            if self._at == len(self._made):
                self._made.append(_PossibleFact(key, fact, ways))
            way = self._known[key] = self._made[self._at].way
            self._at += 1
        return way

    def slot(self) -> bool:
        """Move to the next combination of possible values.

        Return False if all combinations of possible values of the unknown facts have been used.
        """
        while self._made and self._made[-1].way + 1 == self._made[-1].ways:
            self._made.pop()
        if not self._made:
            return False
        self._made[-1].way += 1
        self._at = 0
        self._known.clear()
        return True

    @property
    def made(self) -> _Made:
        return tuple((made.fact, made.way) for made in self._made)


class Ways(NamedTuple, Generic[T]):
    """Outcomes of an evaluation for all possible values of the unknown facts."""

    outcomes: tuple[T, ...]
    missing: tuple[str, ...] = ()  # facts on which the outcome depends; empty if there is one outcome
    complete: bool = True  # False: not all combinations were tried


def every_way(evaluate: Callable[[], T], possible_facts: PossibleFacts) -> Ways[T]:
    possible_facts.begin()
    outcome = evaluate()
    if not possible_facts.made:
        return Ways((outcome,))
    runs = [(possible_facts.made, outcome)]
    while (more := possible_facts.slot()) and len(runs) < MAX_WAYS:
        outcome = evaluate()
        runs.append((possible_facts.made, outcome))
    outcomes = tuple(dict.fromkeys(outcome for _, outcome in runs))
    if more:
        return Ways(outcomes, tuple(sorted({fact for made, _ in runs for fact, _ in made})), complete=False)
    return Ways(outcomes, tuple(sorted(_telling(runs, 0))))


def _telling(runs: Sequence[tuple[_Made, T]], depth: int) -> set[str]:
    """Return the unknown facts that can change the outcome of the evaluation.

    A fact is returned if different values of the fact lead to different sets of outcomes.
    """
    if len({outcome for _, outcome in runs}) == 1:
        return set()
    by_way: dict[int, list[tuple[_Made, T]]] = {}
    for run in runs:
        by_way.setdefault(run[0][depth][1], []).append(run)
    found = {fact for each in by_way.values() for fact in _telling(each, depth + 1)}
    if len({frozenset(outcome for _, outcome in each) for each in by_way.values()}) > 1:
        found.add(runs[0][0][depth][0])
    return found


# Checks


def is_unknown(part: Part, request: RequestFacts, response: ResponseFacts | None) -> bool:
    """Return whether a part of a rule needs an unknown fact."""
    if not isinstance(request, PartlyKnownRequest):
        return False
    if isinstance(part, TimeGate | Until):
        return "time" in request.unknown
    if isinstance(part, IpGate):
        return "ip" in request.unknown
    if isinstance(part, BodyOnly):
        return "body" in request.unknown
    if part.source in request.unknown:
        return True
    if isinstance(response, PartlyKnownResponse) and part.source in response.unknown:
        return True
    return request.masks_secrets and _is_masked(part, request, response)


def _is_masked(condition: Condition, request: RequestFacts, response: ResponseFacts | None) -> bool:
    """Return whether one of the tested values is masked, so that only its existence is known."""
    match condition.source:
        case "query":
            return MASK in request.target.options.get(option_name(condition.name), ())
        case "header":
            return _MASK_BYTES in _field(request.headers, condition.name)
        case "response_header":
            return response is not None and _MASK_BYTES in _field(response.headers, condition.name)
    return False


def _field(headers: Sequence[tuple[bytes, bytes]], name: str) -> list[bytes]:
    wanted = name.lower().encode()
    return [value for known, value in headers if known.lower() == wanted]


def partly_known_rules(ruleset: Ruleset, schemas: Schemas = NO_SCHEMAS) -> CompiledRuleset:
    return compile_ruleset(ruleset, partly_known_check, schemas)


def partly_known_check(part: Part) -> Check:
    """Return a check for one part of a rule that also has a result if facts of the request are unknown."""
    known = compile_part(part)
    if isinstance(part, TimeGate | Until):
        return _gate_check(part, known, "the time of the request")
    if isinstance(part, IpGate):
        return _gate_check(part, known, "the client's address")
    if isinstance(part, BodyOnly):
        return _body_only_check(part, known)
    return _condition_check(part, known)


def _body_only_check(part: BodyOnly, known: Check) -> Check:
    def check(request: RequestFacts, response: ResponseFacts | None) -> int:
        if not is_unknown(part, request, response):
            return known(request, response)
        assert isinstance(request, PartlyKnownRequest)
        another = request.possible_facts.ask(("body_only", part.names), "the members of the body", 2) == 1
        return YES if another is part.wants_another else NO

    return check


def _gate_check(gate: IpGate | TimeGate | Until, known: Check, fact: str) -> Check:
    def check(request: RequestFacts, response: ResponseFacts | None) -> int:
        if isinstance(request, PartlyKnownRequest) and is_unknown(gate, request, response):
            return _TWO_WAYS[request.possible_facts.ask((gate,), fact, len(_TWO_WAYS))]
        return known(request, response)

    return check


def _condition_check(condition: Condition, known: Check) -> Check:
    fact = _fact(condition)
    source, name = condition.source, condition.name.lower()
    always_there = source in ("query", "status")
    missing = min(when_missing(test) for test in condition.tests)
    tests = [_positive(test) for test in condition.tests]

    def check(request: RequestFacts, response: ResponseFacts | None) -> int:
        if not is_unknown(condition, request, response):
            return known(request, response)
        assert isinstance(request, PartlyKnownRequest)
        ask = request.possible_facts.ask
        is_there = always_there or _is_masked(condition, request, response)
        if not is_there and not ask((source, name), fact, 2):
            return missing
        held = YES
        for test, negated in tests:
            if test.operator == "exists":
                one = YES if test.operand else NO
            else:
                one = _THREE_WAYS[ask((source, name, test), fact, len(_THREE_WAYS))]
            held = min(held, YES - one if negated else one)
        return held

    return check


def _fact(condition: Condition) -> str:
    match condition.source:
        case "header":
            return f"header {condition.name}"
        case "body":
            return f"body {condition.name}"
        case "query":
            return f"the masked value of {condition.name}"
        case "status":
            return "the response's status"
        case "response_header":
            return f"the response's header {condition.name}"
        case _:
            return f"the response's {condition.name}"


def _positive(test: Comparison) -> tuple[Comparison, bool]:
    """Return the test of a condition without negation, and True if the original test was negated.

    Without negation, `equals` and `not_equals` have the same test. So if the compared value is unknown, both
    use the same assumed result of this test.
    """
    operand = test.operand if isinstance(test.operand, tuple) else (test.operand,)
    match test.operator:
        case "equals" | "in":
            return Comparison("in", operand), False
        case "not_equals" | "not_in":
            return Comparison("in", operand), True
        case _:
            return test, False
