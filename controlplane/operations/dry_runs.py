"""Rulesets tried before they are live: checked, explained, tested on cases, compared."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import msgspec

from controlplane.names import InvalidName, valid_name
from controlplane.operations.actor import Actor
from controlplane.operations.context import OperationContext
from controlplane.operations.explanations import Explained, explained
from controlplane.operations.operation import InvalidRequest, Request, Response, operation
from controlplane.operations.worker_process import run_trial
from controlplane.store.interface import NotFound
from controlplane.workshop.cases import parse_moment, run_cases
from controlplane.workshop.explain import Explainer, SampleRequest
from controlplane.workshop.routes_text import advice_with_routes
from controlplane.workshop.ruleset_diff import RulesetDiff, diff_rulesets
from proxy.policy import yaml_document
from proxy.policy.facts import ResponseFacts
from proxy.policy.gates import is_address
from proxy.policy.ruleset import Ruleset as PolicyRuleset
from proxy.policy.ruleset_yaml import InvalidRuleset, RulesetProblem, document_problem, parse_ruleset

_LONGEST_LABEL: Final = 200

# -- which ruleset


class Source(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """A draft's text, or a ruleset out of the store: one of the two."""

    yaml: str | None = None
    label: str = "yaml"  # what messages call the text
    ruleset: str | None = None  # id or name, NAME@VERSION for another version than the active one


class ProblemFacts(msgspec.Struct, rename="camel"):
    line: int
    column: int
    where: str
    message: str


async def text_of(
    context: OperationContext, actor: Actor, source: Source, org: str | None
) -> tuple[str, str]:
    """What messages call it, and the text."""
    if source.yaml is not None and source.ruleset is None:
        return source.label, source.yaml
    if source.ruleset is not None and source.yaml is None:
        return source.ruleset, await stored_yaml(context, actor, source.ruleset, org)
    raise InvalidRequest("a ruleset is given as its text or by its name: one of the two")


def name_problems(text: str, name: str) -> tuple[RulesetProblem, ...]:
    """Of a sound ruleset: that no ruleset can be kept under its name."""
    try:
        valid_name(name)
    except InvalidName as error:
        return (document_problem(yaml_document.parse(text), ("name",), str(error)),)
    return ()


def parsed(label: str, text: str) -> PolicyRuleset:
    """Raises InvalidRequest with every error in the text by line and column."""
    try:
        return parse_ruleset(text)
    except InvalidRuleset as error:
        raise InvalidRequest(*(problem_line(label, problem) for problem in error.problems)) from None


def problem_line(label: str, problem: RulesetProblem) -> str:
    if len(label) > _LONGEST_LABEL:  # it stands in every line; a path's end says most
        label = f"…{label[1 - _LONGEST_LABEL :]}"
    where = f"{problem.where}: " if problem.where else ""
    return f"{label}:{problem.line}:{problem.column}: {where}{problem.message}"


def named_version(reference: str, names: Collection[str]) -> tuple[str, int | None]:
    """The ruleset, and which version of it: NAME@VERSION, unless a ruleset itself has that name."""
    name, at, number = reference.rpartition("@")
    if reference in names or not (at and number.isascii() and number.isdecimal() and len(number) < 10):
        return reference, None
    return name, int(number)


async def stored_yaml(context: OperationContext, actor: Actor, reference: str, org: str | None) -> str:
    """Of the active version, unless NAME@VERSION names another."""
    names = {each.name for each in await context.resolve.rulesets(actor, org)}
    reference, version = named_version(reference, names)
    found = await context.resolve.ruleset(actor, "viewer", reference, org)
    wanted = found.version if version is None else version
    text = await context.store.ruleset_text(found.ruleset_id, wanted)
    if text is None:
        raise NotFound(f"ruleset {found.name} has no version {wanted}")
    return text


# -- check


class CheckRuleset(Request):
    yaml: str


class CheckedRuleset(Response):
    """`problems` is empty where the ruleset would be taken; `warnings` is what it may have overlooked."""

    name: str | None
    rules: int | None
    problems: tuple[ProblemFacts, ...]
    warnings: tuple[ProblemFacts, ...]


@operation("ruleset.check", "POST", "/rulesets/check", changes=False)
async def check(context: OperationContext, actor: Actor, request: CheckRuleset) -> CheckedRuleset:
    """Validate a ruleset and change nothing: every error by line and column, and what was overlooked."""
    return await run_trial(actor, checked, request.yaml, context.clock.wall_ms() / 1000)


def checked(text: str, now: float) -> CheckedRuleset:
    try:
        ruleset = parse_ruleset(text)
    except InvalidRuleset as error:
        return _refused(error.problems)
    if problems := name_problems(text, ruleset.name):
        return _refused(problems)
    return CheckedRuleset(
        name=ruleset.name,
        rules=len(ruleset.rules),
        problems=(),
        warnings=_problems(advice_with_routes(text, ruleset, now)),
    )


def _refused(problems: tuple[RulesetProblem, ...]) -> CheckedRuleset:
    return CheckedRuleset(name=None, rules=None, problems=_problems(problems), warnings=())


def _problems(problems: tuple[RulesetProblem, ...]) -> tuple[ProblemFacts, ...]:
    return tuple(ProblemFacts(one.line, one.column, one.where, one.message) for one in problems)


# -- explain


class AnswerSample(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """The upstream's response, for the response rules."""

    status: int = 200
    headers: tuple[str, ...] = ()
    body: str | None = None


class ExplainRequest(Request):
    source: Source
    target: str  # path and query, as the application sends them
    org: str | None = None
    method: str = "GET"
    headers: tuple[str, ...] = ()  # NAME: VALUE
    ip: str = ""  # without it, address gates hold perhaps
    time: str | None = None  # RFC 3339; now if left out
    body: str | None = None
    response: AnswerSample | None = msgspec.field(name="answer", default=None)


@operation("ruleset.explain", "POST", "/rulesets/explain", changes=False)
async def explain(context: OperationContext, actor: Actor, request: ExplainRequest) -> Explained:
    """What the rules make of one request, and why: each rule tried, and what in it failed."""
    sample = _sample(request, context.clock.wall_ms() / 1000)
    response = None if request.response is None else _response(request.response)
    label, text = await text_of(context, actor, request.source, request.org)
    return await run_trial(actor, _explained, label, text, sample, response)


def _explained(label: str, text: str, sample: SampleRequest, response: _SampleAnswer | None) -> Explained:
    explainer = Explainer(parsed(label, text))
    return explained(explainer.explain(sample, None if response is None else ResponseFacts(*response)))


def _sample(request: ExplainRequest, now: float) -> SampleRequest:
    moment = now if request.time is None else parse_moment(request.time)
    if moment is None:
        raise InvalidRequest(f"{request.time}: a time is written as 2026-03-02T09:00:00Z")
    body = None if request.body is None else request.body.encode()
    fields, ip = field_lines(request.headers), known_address(request.ip)
    return SampleRequest(request.method, request.target, fields, ip, moment, body)


_SampleAnswer = tuple[int, tuple[tuple[bytes, bytes], ...], bytes | None]
"""Status, header fields and body."""


def _response(sample: AnswerSample) -> _SampleAnswer:
    body = None if sample.body is None else sample.body.encode()
    return sample.status, field_lines(sample.headers), body


def known_address(text: str) -> str:
    """Raises InvalidRequest for what is no address; empty stands for one that isn't known."""
    if text and not is_address(text):
        raise InvalidRequest(f"{text}: an address is IPv4 or IPv6, as 203.0.113.7")
    return text


def field_lines(lines: tuple[str, ...]) -> tuple[tuple[bytes, bytes], ...]:
    """Raises InvalidRequest."""
    fields: list[tuple[bytes, bytes]] = []
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name or not line.isascii() or not line.isprintable():
            raise InvalidRequest(f"{line}: a header field is NAME:VALUE in printable ASCII")
        fields.append((name.encode(), value.strip(" ").encode()))
    return tuple(fields)


# -- test


class RunCases(Request):
    source: Source
    cases: str  # YAML
    cases_label: str = "cases"
    org: str | None = None


class CasesOutcome(Response):
    cases: int
    failed_cases: int
    failures: tuple[ProblemFacts, ...]
    undecided_rules: tuple[str, ...]  # that no case which holds is decided, filtered or logged by


@operation("ruleset.test", "POST", "/rulesets/test", changes=False)
async def test(context: OperationContext, actor: Actor, request: RunCases) -> CasesOutcome:
    """Try a ruleset on cases: requests with the verdict expected."""
    label, text = await text_of(context, actor, request.source, request.org)
    return await run_trial(actor, _tested, label, text, request.cases_label, request.cases)


def _tested(label: str, text: str, cases_label: str, cases: str) -> CasesOutcome:
    return run(parsed(label, text), cases_label, cases)


def run(ruleset: PolicyRuleset, label: str, cases: str) -> CasesOutcome:
    """Raises InvalidRequest where `cases` holds none."""
    try:
        ran = run_cases(ruleset, cases)
    except InvalidRuleset as error:
        raise InvalidRequest(*(problem_line(label, problem) for problem in error.problems)) from None
    return CasesOutcome(
        cases=ran.count,
        failed_cases=ran.failed_cases,
        failures=_problems(ran.failures),
        undecided_rules=ran.undecided,
    )


# -- diff


class DiffRulesets(Request):
    old: Source
    new: Source
    org: str | None = None


class ChangedFacts(msgspec.Struct, rename="camel"):
    id: str
    keys: tuple[str, ...]


class MovedFacts(msgspec.Struct, rename="camel"):
    id: str
    after: str | None


class RulesetDifference(Response):
    different: bool
    keys: tuple[str, ...]  # of the ruleset itself
    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[ChangedFacts, ...]
    moved: tuple[MovedFacts, ...]


@operation("ruleset.diff", "POST", "/rulesets/diff", changes=False)
async def diff(context: OperationContext, actor: Actor, request: DiffRulesets) -> RulesetDifference:
    """Which rules of the new ruleset are added, gone, changed or moved against the old one."""
    old = await text_of(context, actor, request.old, request.org)
    new = await text_of(context, actor, request.new, request.org)
    return await run_trial(actor, _compared, old, new)


def _compared(old: tuple[str, str], new: tuple[str, str]) -> RulesetDifference:
    return difference(diff_rulesets(parsed(*old), parsed(*new)))


def difference(found: RulesetDiff) -> RulesetDifference:
    return RulesetDifference(
        different=bool(found),
        keys=found.keys,
        added=found.added,
        removed=found.removed,
        changed=tuple(ChangedFacts(one.id, one.keys) for one in found.changed),
        moved=tuple(MovedFacts(one.id, one.after) for one in found.moved),
    )
