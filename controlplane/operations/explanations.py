"""JSON types for the explanation of a verdict."""

from __future__ import annotations

import msgspec

from controlplane.operations.operation import Response
from controlplane.workshop.cases import REFUSED
from controlplane.workshop.explain import Account, Attempt, Evaluation, Explanation, ImpliedAccount, Refused
from proxy.policy.decision import Decision


class RefusedFacts(msgspec.Struct, rename="camel"):
    status: int
    reason: str
    message: str


class AskedFacts(msgspec.Struct, rename="camel"):
    """One condition of a rule, the result of the condition, and the value that was found."""

    part: str
    wants: str
    holds: str  # no, perhaps, yes, unreadable, unknown
    found: tuple[str, ...]


class AttemptFacts(msgspec.Struct, rename="camel"):
    """A rule that the proxy tried on the request."""

    rule_id: str
    outcome: str  # unmatched, perhaps, logs, filters, decides, unreadable, unknown
    verdict: str
    note: str
    asked: tuple[AskedFacts, ...]


class ReadingFacts(msgspec.Struct, rename="camel"):
    """One interpretation of the request target, with the rules that the proxy tried, in order."""

    paths: tuple[str, ...]
    importance: str  # certain, shadow, slash
    verdict: str | None
    rule_id: str | None
    rules: tuple[AttemptFacts, ...]
    reaches: str = ""  # things that the path passes through, if a schema describes it


class PossibleFacts(msgspec.Struct, rename="camel"):
    """One possible outcome of a request if some facts of the request are unknown."""

    verdict: str  # refused: the proxy itself refuses the request, for the reason
    rule_id: str | None
    reason: str
    transforms: tuple[str, ...] = ()


class ImpliedFacts(msgspec.Struct, rename="camel"):
    """An implied request, such as the read of the objects that `$expand` names.

    The rules evaluate the implied request like a separate request.
    """

    cause: str  # $expand, members@odata.bind, resource
    method: str
    path: str
    place: str  # property path in the response; empty if the response does not contain it
    verdict: str | None
    rule_id: str | None
    matters: bool  # True: this request makes the verdict stricter


class Explained(Response):
    """Explained decision on a request: the active filter, its effect, and each rule that was tried."""

    verdict: str | None
    rule_id: str | None
    reason: str | None
    logged_rule_ids: tuple[str, ...]
    transforms: tuple[str, ...]  # names of the active filter
    refused: RefusedFacts | None
    body: str | None  # body of the response as the application receives it
    removed: tuple[str, ...] | None  # transforms that removed something from the response
    readings: tuple[ReadingFacts, ...]
    answer_readings: tuple[ReadingFacts, ...]
    awaiting: tuple[str, ...]  # response rules that may change the verdict when there is a response
    possible: tuple[PossibleFacts, ...] = ()  # several outcomes if unknown facts make a difference
    missing: tuple[str, ...] = ()  # names of these unknown facts
    rule_ids: tuple[str, ...] = ()  # every rule that took part, request rules first
    implied: tuple[ImpliedFacts, ...] = ()


def explained(explanation: Explanation) -> Explained:
    decision, refused = explanation.decision, explanation.refused
    return Explained(
        verdict=None if decision is None else decision.verdict,
        rule_id=None if decision is None else decision.rule_id,
        reason=None if decision is None else decision.reason,
        logged_rule_ids=() if decision is None else decision.logged_rule_ids,
        transforms=_transforms(decision),
        refused=None if refused is None else RefusedFacts(refused.status, refused.reason, refused.message),
        body=None if explanation.body is None else explanation.body.decode("utf-8", "replace"),
        removed=explanation.removed,
        readings=tuple(map(_reading, explanation.accounts)),
        answer_readings=tuple(map(_reading, explanation.response_accounts)),
        awaiting=explanation.awaiting,
        possible=tuple(map(_possible, explanation.possible)),
        missing=explanation.missing,
        rule_ids=() if decision is None else decision.rule_ids,
        implied=tuple(map(_implied, explanation.implied)),
    )


def _implied(account: ImpliedAccount) -> ImpliedFacts:
    decision = account.decision
    return ImpliedFacts(
        account.cause,
        account.method,
        account.path,
        account.place,
        None if decision is None else decision.verdict,
        None if decision is None else decision.rule_id,
        account.matters,
    )


def _possible(evaluation: Evaluation) -> PossibleFacts:
    if isinstance(evaluation, Refused):
        return PossibleFacts(REFUSED, None, evaluation.reason)
    return PossibleFacts(evaluation.verdict, evaluation.rule_id, evaluation.reason, _transforms(evaluation))


def _transforms(decision: Decision | None) -> tuple[str, ...]:
    return () if decision is None or decision.transforms is None else decision.transforms.names


def _reading(account: Account) -> ReadingFacts:
    return ReadingFacts(
        paths=account.paths,
        importance=account.importance,
        verdict=None if account.decision is None else account.decision.verdict,
        rule_id=None if account.decision is None else account.decision.rule_id,
        rules=tuple(map(_attempt, account.attempts)),
        reaches=account.reaches,
    )


def _attempt(attempt: Attempt) -> AttemptFacts:
    return AttemptFacts(
        rule_id=attempt.rule_id,
        outcome=attempt.outcome,
        verdict=attempt.decision.verdict,
        note=attempt.note,
        asked=tuple(AskedFacts(one.part, one.asked, one.held, one.found) for one in attempt.findings),
    )
