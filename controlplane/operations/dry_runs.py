"""Dry runs of rulesets: check, explain verdicts, run test cases, and compare two rulesets."""

from __future__ import annotations

import msgspec

from controlplane.operations.actor import Actor
from controlplane.operations.context import OperationContext
from controlplane.operations.explanations import Explained, explained
from controlplane.operations.given_rules import (
    GivenRules,
    given_rules,
    with_schemas,
)
from controlplane.operations.given_rules import ProblemFacts as ProblemFacts
from controlplane.operations.given_rules import Source as Source
from controlplane.operations.given_rules import name_problems as name_problems
from controlplane.operations.given_rules import named_version as named_version
from controlplane.operations.given_rules import parsed as parsed
from controlplane.operations.given_rules import problem_line as problem_line
from controlplane.operations.given_rules import text_of as text_of
from controlplane.operations.models import schemas_of
from controlplane.operations.operation import InvalidRequest, Request, Response, operation
from controlplane.operations.worker_process import run_trial
from controlplane.workshop.cases import parse_moment, run_cases
from controlplane.workshop.explain import Explainer, SampleRequest
from controlplane.workshop.routes import GRAPH_ROOT
from controlplane.workshop.routes_text import advice_with_routes
from controlplane.workshop.ruleset_diff import RulesetDiff, diff_rulesets
from controlplane.workshop.thing_problems import thing_problems
from proxy.policy.facts import ResponseFacts
from proxy.policy.gates import is_address
from proxy.policy.resource_model import ResourceModel
from proxy.policy.ruleset import Ruleset as PolicyRuleset
from proxy.policy.ruleset_yaml import InvalidRuleset, RulesetProblem, parse_ruleset
from proxy.policy.schemas import NO_SCHEMAS, Schemas, needs_schemas, root_segments

# -- check


class CheckRuleset(Request):
    yaml: str
    org: str | None = None  # organisation whose current schemas have the things that rules name


class CheckedRuleset(Response):
    """Result of the validation of a ruleset, with its problems and warnings.

    If the ruleset is valid, the field `problems` is empty. The field `warnings` lists possible mistakes in
    the ruleset.
    """

    name: str | None
    rules: int | None
    problems: tuple[ProblemFacts, ...]
    warnings: tuple[ProblemFacts, ...]


@operation("ruleset.check", "POST", "/rulesets/check", changes=False)
async def check(context: OperationContext, actor: Actor, request: CheckRuleset) -> CheckedRuleset:
    """Validate a ruleset and change nothing: list errors by line and column, and possible mistakes."""
    given = await given_rules(context, actor, Source(yaml=request.yaml), request.org)
    return await run_trial(actor, _checked, given, context.clock.wall_ms() / 1000)


def _checked(given: GivenRules, now: float) -> CheckedRuleset:
    """Check a ruleset, and look up the names in the rules if schemas are given."""
    if not given.schemas.digests:
        return checked(given.text, now)
    schemas = schemas_of(given.schemas)
    described = schemas.of(root_segments(GRAPH_ROOT))
    found = checked(given.text, now, None if described is None else described[0])
    if found.problems:
        return found
    ruleset = parse_ruleset(given.text)
    if not needs_schemas(ruleset):
        return found
    unknown = thing_problems(given.text, ruleset, schemas)
    return _refused(unknown) if unknown else found


def checked(text: str, now: float, model: ResourceModel | None = None) -> CheckedRuleset:
    """Return the problems of a ruleset text, and warnings about possible mistakes in a valid ruleset."""
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
        warnings=_problems(advice_with_routes(text, ruleset, now, model)),
    )


def _refused(problems: tuple[RulesetProblem, ...]) -> CheckedRuleset:
    return CheckedRuleset(name=None, rules=None, problems=_problems(problems), warnings=())


def _problems(problems: tuple[RulesetProblem, ...]) -> tuple[ProblemFacts, ...]:
    return tuple(ProblemFacts(one.line, one.column, one.where, one.message) for one in problems)


# -- explain


class AnswerSample(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """A sample response of the upstream, to which the response rules are applied."""

    status: int = 200
    headers: tuple[str, ...] = ()
    body: str | None = None


class ExplainRequest(Request):
    source: Source
    target: str  # path and query in the form that the application sends
    org: str | None = None
    method: str = "GET"
    headers: tuple[str, ...] = ()  # lines of the form NAME: VALUE
    ip: str = ""  # client address; without it, address gates are indeterminate
    time: str | None = None  # RFC 3339; default: now
    body: str | None = None
    response: AnswerSample | None = msgspec.field(name="answer", default=None)


@operation("ruleset.explain", "POST", "/rulesets/explain", changes=False)
async def explain(context: OperationContext, actor: Actor, request: ExplainRequest) -> Explained:
    """Explain the verdict on one request: list each rule that was tried, and its conditions that failed."""
    sample = _sample(request, context.clock.wall_ms() / 1000)
    response = None if request.response is None else _response(request.response)
    given = await given_rules(context, actor, request.source, request.org)
    return await run_trial(actor, _explained, given, sample, response)


def _explained(given: GivenRules, sample: SampleRequest, response: _SampleAnswer | None) -> Explained:
    explainer = Explainer(*with_schemas(given))
    return explained(explainer.explain(sample, None if response is None else ResponseFacts(*response)))


def _sample(request: ExplainRequest, now: float) -> SampleRequest:
    moment = now if request.time is None else parse_moment(request.time)
    if moment is None:
        raise InvalidRequest(f"{request.time} is not a time: write it as 2026-03-02T09:00:00Z")
    body = None if request.body is None else request.body.encode()
    fields, ip = field_lines(request.headers), known_address(request.ip)
    return SampleRequest(request.method, request.target, fields, ip, moment, body)


_SampleAnswer = tuple[int, tuple[tuple[bytes, bytes], ...], bytes | None]
"""Status, header fields and body."""


def _response(sample: AnswerSample) -> _SampleAnswer:
    body = None if sample.body is None else sample.body.encode()
    return sample.status, field_lines(sample.headers), body


def known_address(text: str) -> str:
    """Return a client address, or raise InvalidRequest if the text is not an IP address.

    An empty text stands for an unknown client address.
    """
    if text and not is_address(text):
        raise InvalidRequest(f"{text} is not an IPv4 or IPv6 address: write it as 203.0.113.7")
    return text


def field_lines(lines: tuple[str, ...]) -> tuple[tuple[bytes, bytes], ...]:
    """Parse lines of the form NAME:VALUE into HTTP header fields.

    Raise InvalidRequest if a line is not of the form NAME:VALUE.
    """
    fields: list[tuple[bytes, bytes]] = []
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name or not line.isascii() or not line.isprintable():
            raise InvalidRequest(f"{line} is not a header field: write NAME:VALUE in printable ASCII")
        fields.append((name.encode(), value.strip(" ").encode()))
    return tuple(fields)


# -- test


class RunCases(Request):
    source: Source
    cases: str  # cases in YAML
    cases_label: str = "cases"
    org: str | None = None


class CasesOutcome(Response):
    cases: int
    failed_cases: int
    failures: tuple[ProblemFacts, ...]
    undecided_rules: tuple[str, ...]  # rules that do not decide, filter or log any passed case


@operation("ruleset.test", "POST", "/rulesets/test", changes=False)
async def test(context: OperationContext, actor: Actor, request: RunCases) -> CasesOutcome:
    """Test a ruleset with cases, which are requests with their expected verdicts."""
    given = await given_rules(context, actor, request.source, request.org)
    return await run_trial(actor, _tested, given, request.cases_label, request.cases)


def _tested(given: GivenRules, cases_label: str, cases: str) -> CasesOutcome:
    ruleset, schemas = with_schemas(given)
    return run(ruleset, cases_label, cases, schemas)


def run(ruleset: PolicyRuleset, label: str, cases: str, schemas: Schemas = NO_SCHEMAS) -> CasesOutcome:
    """Run the test cases against the ruleset.

    Raise InvalidRequest if `cases` contains no test case.
    """
    try:
        ran = run_cases(ruleset, cases, schemas)
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
    keys: tuple[str, ...]  # top-level keys of the ruleset that differ
    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[ChangedFacts, ...]
    moved: tuple[MovedFacts, ...]


@operation("ruleset.diff", "POST", "/rulesets/diff", changes=False)
async def diff(context: OperationContext, actor: Actor, request: DiffRulesets) -> RulesetDifference:
    """List the rules that the new ruleset adds, removes, changes or moves."""
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
