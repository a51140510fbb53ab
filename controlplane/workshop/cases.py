"""Cases of a ruleset: requests with expected verdicts, and the differences of the actual verdicts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, ValidationError

from controlplane.workshop.explain import ITEM_NOT_FOUND, Account, Explainer, Explanation, SampleRequest
from proxy.policy import yaml_document
from proxy.policy.decision import ResponseFacts
from proxy.policy.gates import is_address
from proxy.policy.json_text import readable
from proxy.policy.ruleset import Ruleset
from proxy.policy.ruleset_yaml import (
    FEW,
    Integer,
    InvalidRuleset,
    RulesetProblem,
    Shape,
    Text,
    document_problem,
    read_shape,
    shape_problems,
)
from proxy.policy.scalars import as_values
from proxy.policy.schemas import NO_SCHEMAS, Schemas
from proxy.policy.visible import escaped, named
from proxy.policy.yaml_document import MAX_PROBLEMS

MAX_FAILURES = 1000  # failures to report; each may quote a body
REFUSED = "refused"  # verdict of a case that the proxy itself refuses: 400 before, 502 after the upstream


@dataclass(frozen=True, slots=True)
class CasesRun:
    count: int
    failed_cases: int
    failures: tuple[RulesetProblem, ...]  # the first MAX_FAILURES failures
    undecided: tuple[str, ...]  # ids of rules that take part in no case that passes


def run_cases(ruleset: Ruleset, text: str, schemas: Schemas = NO_SCHEMAS) -> CasesRun:
    """Run the cases in `text` against a ruleset.

    Raise InvalidRuleset if the text does not contain ruleset cases.
    """
    document, cases = _parse(text)
    explainer = Explainer(ruleset, schemas)
    failed, failures = 0, list[RulesetProblem]()
    deciding: set[str] = set()
    for at, case in enumerate(cases.cases):
        report = explainer.explain(_sample(case), None if case.response is None else _response(case.response))
        differing = [
            document_problem(document, ("cases", at, *where), _named(case, message))
            for where, message in _differences(case, report)
        ]
        failures += differing[: MAX_FAILURES - len(failures)]
        if differing:
            failed += 1
        else:
            deciding.update(_deciding(report))
    undecided = tuple(rule.id for rule in ruleset.rules if rule.id not in deciding)
    return CasesRun(len(cases.cases), failed, tuple(failures), undecided)


# -- the shape of the document


def _checked_request(text: str) -> str:
    if len(text.split(" ")) != 2:
        raise ValueError("the request must be a method and a target, like GET /v1.0/users?$top=5")
    return text


def _checked_moment(text: str) -> str:
    if parse_moment(text) is None:
        raise ValueError("the time must have a date and a UTC offset, like 2026-03-02T09:00:00+01:00")
    return text


def _checked_address(text: str) -> str:
    if not is_address(text):
        raise ValueError("the address must be an IPv4 or IPv6 address, like 203.0.113.7")
    return text


def _checked_field(text: str) -> str:
    if not (text.isascii() and text.isprintable()):
        raise ValueError("the header field must be printable ASCII")
    return text


_Field = Annotated[Text, AfterValidator(_checked_field)]
_FieldValues = _Field | list[Annotated[_Field, FEW]]  # a list stands for a field that is repeated
_Body = Annotated[Any, BeforeValidator(as_values)]  # JSON; numbers are compared by value, not by spelling
_Fields = dict[Annotated[_Field, FEW], Annotated[_FieldValues, FEW]]


class _Response(Shape):
    status: Integer = 200
    headers: _Fields = Field(default_factory=dict)
    body: _Body = None


class _Expected(Shape):
    verdict: Literal["allow", "filter", "block", "log_only", "refused"]
    rule: Text | None = None
    reason: Text | None = None
    logged: list[Annotated[Text, FEW]] | None = None
    body: _Body = None


class _Case(Shape):
    name: Text = ""
    request: Annotated[Text, AfterValidator(_checked_request)]
    headers: _Fields = Field(default_factory=dict)
    ip: Annotated[Text, AfterValidator(_checked_address)] | None = None
    time: Annotated[Text, AfterValidator(_checked_moment)] | None = None
    body: _Body = None
    response: _Response | None = Field(default=None, alias="answer")
    expect: _Expected


class _Cases(Shape):
    cases: Annotated[list[_Case], Field(min_length=1)]


_SHAPES: Mapping[str, type[BaseModel]] = {
    "": _Cases,
    "cases": _Case,
    "answer": _Response,
    "expect": _Expected,
}


def _parse(text: str) -> tuple[yaml_document.Document, _Cases]:
    try:
        document = yaml_document.parse(text)
    except yaml_document.InvalidYaml as error:
        raise InvalidRuleset([RulesetProblem(*one) for one in error.problems]) from None
    problems = [RulesetProblem(*one) for one in document.problems]
    problems += islice(_unseen_problems(document), MAX_PROBLEMS + 1)
    try:
        cases = read_shape(_Cases, document.value)
    except ValidationError as error:
        raise InvalidRuleset([*problems, *shape_problems(document, error, _SHAPES)]) from None
    without_response = (
        document_problem(
            document, ("cases", at, "expect", "body"), "a body is expected, but the case has no response"
        )
        for at, case in enumerate(cases.cases)
        if case.response is None and "body" in case.expect.model_fields_set
    )
    problems += islice(without_response, MAX_PROBLEMS + 1)
    if problems:
        raise InvalidRuleset(problems)
    return document, cases


def _unseen_problems(document: yaml_document.Document) -> Iterator[RulesetProblem]:
    """Yield a problem for each invisible character that could mislead a person who reads the case."""
    for each in document.unseen:
        keys = [part for part in each.where if isinstance(part, str)]
        if each.by_escape or "body" in keys or keys[-1:] == ["name"]:
            continue
        message = (
            f"`{each.text}` holds the invisible character {named(each.char)}: remove it, "
            f"or write it as {escaped(each.char)} in double quotes"
        )
        yield RulesetProblem(*yaml_document.problem(each.mark, each.where, message))


def _sample(case: _Case) -> SampleRequest:
    method, _, target = case.request.partition(" ")
    now = None if case.time is None else parse_moment(case.time)
    return SampleRequest(
        method,
        target,
        tuple(_field_lines(case.headers)),
        case.ip or "",
        now or 0.0,
        _bytes(case.body),
    )


def _response(response: _Response) -> ResponseFacts:
    return ResponseFacts(response.status, tuple(_field_lines(response.headers)), _bytes(response.body))


def _field_lines(fields: _Fields) -> Iterator[tuple[bytes, bytes]]:
    for name, values in fields.items():
        for value in [values] if isinstance(values, str) else values:
            yield name.encode(), value.encode()


def _bytes(body: object) -> bytes | None:
    """Return the body of a ruleset case as bytes: a text unchanged, and any other value as JSON."""
    if body is None:
        return None
    return body.encode() if isinstance(body, str) else json.dumps(body, ensure_ascii=False).encode()


def parse_moment(text: str) -> float | None:
    """Return the Unix time of an RFC 3339 text.

    Return None if a time zone exists in which the time cannot be shown.
    """
    try:
        moment = datetime.fromisoformat(text.upper())
    except ValueError:
        return None
    return moment.timestamp() if moment.tzinfo is not None and 1970 < moment.year < 9999 else None


# -- result of a case


def _named(case: _Case, message: str) -> str:
    return f"{case.name}: {message}" if case.name else message


_Difference = tuple[tuple[str, ...], str]


def _differences(case: _Case, report: Explanation) -> Iterator[_Difference]:
    yield from _left_open(case, report)
    expected = case.expect
    if expected.verdict != _verdict(report):
        yield ("expect", "verdict"), f"the verdict is {_spelled_verdict(report)}, not {expected.verdict}"
    decision = report.decision
    rule = None if decision is None else decision.rule_id
    if expected.rule is not None and expected.rule != rule:
        yield ("expect", "rule"), f"the rule is {rule or 'none'}, not {expected.rule}"
    if expected.reason is not None and expected.reason != _reason(report):
        yield ("expect", "reason"), f"the reason is {_reason(report)}, not {expected.reason}"
    logged = () if decision is None else decision.logged_rule_ids
    if expected.logged is not None and set(expected.logged) != set(logged):
        yield ("expect", "logged"), f"logged by {_listed(logged)}, not {_listed(expected.logged)}"
    if "body" in expected.model_fields_set and not _is_body(expected.body, report.body):
        found = "none" if report.body is None else report.body.decode("utf-8", "replace")
        yield ("expect", "body"), f"the application gets this body: {found}"


def _left_open(case: _Case, report: Explanation) -> Iterator[_Difference]:
    """Yield a mismatch for each fact that the verdict needs but the test case does not state."""
    asked = {
        finding.part: attempt.rule_id
        for account in (*report.accounts, *report.response_accounts)
        for attempt in account.attempts
        for finding in attempt.findings
    }
    for part in ("time", "until"):
        if case.time is None and part in asked:
            yield (), f"the rule {asked[part]} depends on the time, but the case has no `time`"
    if case.ip is None and "ip" in asked:
        yield (), f"the rule {asked['ip']} depends on the address, but the case has no `ip`"


def _verdict(report: Explanation) -> str:
    if report.decision is None or (report.refused is not None and not _is_not_found(report)):
        return REFUSED
    return report.decision.verdict


def _is_not_found(report: Explanation) -> bool:
    """Return True if the ruleset allows the request, but a filter makes the response a 404."""
    return report.refused is not None and report.refused.reason == ITEM_NOT_FOUND


def _spelled_verdict(report: Explanation) -> str:
    if report.refused is not None:
        return (
            f"{_verdict(report)} ({report.refused.status} {report.refused.reason}: {report.refused.message})"
        )
    return f"{_verdict(report)} (by {report.decision.rule_id})" if report.decision is not None else REFUSED


def _reason(report: Explanation) -> str:
    if report.refused is not None:
        return report.refused.reason
    return "" if report.decision is None else report.decision.reason


def _listed(ids: Iterable[str]) -> str:
    return ", ".join(ids) or "none"


def _is_body(expected: object, body: bytes | None) -> bool:
    if body is None:
        return expected is None
    if isinstance(expected, str) and expected.encode() == body:
        return True
    try:
        return _canonical(json.loads(readable(body))) == _canonical(expected)
    except (ValueError, RecursionError):
        return False


def _canonical(value: object) -> str:
    """Return a canonical text for a JSON value, to compare the value with other values.

    The canonical texts of two values are the same only if the values are equal in JSON.

    A comparison in Python would be wrong, because Python treats 1 and True as equal.
    """
    return json.dumps(value, sort_keys=True)


def _deciding(report: Explanation) -> Iterator[str]:
    if report.decision is not None:
        yield report.decision.rule_id
        yield from report.decision.logged_rule_ids
    yield from _took_part((*report.accounts, *report.response_accounts))


def _took_part(accounts: Iterable[Account]) -> Iterator[str]:
    for account in accounts:
        if account.importance == "certain":
            for attempt in account.attempts:
                if attempt.outcome in ("decides", "filters", "logs"):
                    yield attempt.rule_id
