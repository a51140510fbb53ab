"""Commands `ruleset explain`, `test`, `diff` and `schema`.

The commands `explain`, `test`, `diff` and `schema` need settings only if the ruleset is in the store.
"""

from __future__ import annotations

import sys
import time as clock
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from controlplane.cli.context import AnyOrg, Cli, Json, print_json, write_json
from controlplane.cli.failure import FAILED, INVALID_INPUT, CommandFailed, given
from controlplane.cli.given_schemas import Root, Schema, asks_the_store, given_schemas
from controlplane.cli.ruleset import parsed, problem_lines, read_text, stored_ruleset
from proxy.wire.figures import counted, number

if TYPE_CHECKING:
    from controlplane.operations.dry_runs import RulesetDifference, Source
    from controlplane.operations.event_explanations import ExplainedEvent
    from controlplane.operations.explanations import (
        AskedFacts,
        AttemptFacts,
        Explained,
        ImpliedFacts,
        ReadingFacts,
    )
    from controlplane.workshop.explain import SampleRequest
    from proxy.policy.decision import ResponseFacts
    from proxy.policy.ruleset import Ruleset

app = typer.Typer()

RulesetSource = Annotated[
    str,
    typer.Argument(metavar="FILE|NAME", help="File, or stored ruleset as NAME or NAME@VERSION."),
]


@app.command()
def explain(
    ctx: typer.Context,
    source: Annotated[
        str | None,
        typer.Argument(
            metavar="[FILE|NAME]",
            help="File, or stored ruleset as NAME or NAME@VERSION. Optional with --event.",
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option("--target", help="Path and query of the request, as the application sends them."),
    ] = None,
    event: Annotated[
        str | None,
        typer.Option(
            "--event", metavar="ID", help="ID of a stored event of --org to explain instead of --target."
        ),
    ] = None,
    method: Annotated[str, typer.Option("--method", help="Method of the request.")] = "GET",
    header: Annotated[
        list[str] | None,
        typer.Option("--header", metavar="NAME:VALUE", help="Header field of the request."),
    ] = None,
    ip: Annotated[
        str,
        typer.Option(
            "--ip",
            metavar="A",
            help="IP address of the client. Without --ip, conditions on the client address are"
            " indeterminate.",
        ),
    ] = "",
    time: Annotated[
        str | None, typer.Option("--time", metavar="RFC3339", help="Time of the request (default: now).")
    ] = None,
    body: Annotated[Path | None, typer.Option("--body", help="File with the body of the request.")] = None,
    response: Annotated[
        Path | None, typer.Option("--answer", help="File with the body of the upstream's response.")
    ] = None,
    status: Annotated[
        int | None,
        typer.Option("--status", min=100, max=599, help="Status code of the upstream's response (200)."),
    ] = None,
    answer_header: Annotated[
        list[str] | None,
        typer.Option(
            "--answer-header", metavar="NAME:VALUE", help="Header field of the upstream's response."
        ),
    ] = None,
    org: AnyOrg = None,
    schema: Schema = None,
    root: Root = "/v1.0",
    json: Json = False,
) -> None:
    """Explain the verdict on one request: the rules that were tried, and the conditions that failed."""
    from controlplane.operations.dry_runs import field_lines, known_address
    from controlplane.operations.explanations import explained
    from controlplane.workshop.explain import Explainer, SampleRequest

    if event is not None:
        if target is not None or org is None:
            raise CommandFailed(INVALID_INPUT, "--event: needs --org, and excludes --target")
        _explain_event(ctx.obj, source, org, event, as_json=json)
        return
    if source is None or target is None:
        raise CommandFailed(
            INVALID_INPUT,
            "Missing argument 'FILE|NAME', or '--event' for a stored event."
            if source is None
            else "Missing option '--target', or '--event' for a stored event.",
        )
    label, text = ruleset_text(ctx.obj, source, org)
    ruleset = parsed(label, text)
    with complaining():
        fields, response_fields = field_lines(tuple(header or ())), field_lines(tuple(answer_header or ()))
        address = known_address(ip)
    sample = SampleRequest(
        method, target, fields, address, _moment(time), None if body is None else _bytes(body)
    )
    answer = _response(status, response, response_fields)
    if asks_the_store(ctx.obj, ruleset, schema):
        report = _explained_there(ctx.obj, source, org, sample, answer)
    else:
        explainer = Explainer(ruleset, given_schemas(label, text, ruleset, schema, root))
        report = explained(explainer.explain(sample, answer))
    if json:
        print_json(report)
    else:
        sys.stdout.writelines(f"{_shown(line)}\n" for line in _describe(report))


def _explained_there(
    cli: Cli, source: str, org: str | None, sample: SampleRequest, response: ResponseFacts | None
) -> Explained:
    """Explain a request by an operation of the control plane, because the store has the schemas."""
    from controlplane.operations.dry_runs import AnswerSample, ExplainRequest
    from controlplane.operations.dry_runs import explain as operation
    from proxy.wire.audit_event import rfc3339

    answer = None
    if response is not None:
        answer = AnswerSample(response.status, _lines(response.headers), _text_of(response.body))
    asked = ExplainRequest(
        source=source_of(cli, source),
        target=sample.target,
        org=org,
        method=sample.method,
        headers=_lines(sample.headers),
        ip=sample.client_ip,
        time=rfc3339(round(sample.now * 1000)),
        body=_text_of(sample.body),
        response=answer,
    )
    return cli.call(operation, asked)


def _lines(fields: Iterable[tuple[bytes, bytes]]) -> tuple[str, ...]:
    return tuple(f"{name.decode('latin-1')}:{value.decode('latin-1')}" for name, value in fields)


def _text_of(body: bytes | None) -> str | None:
    try:
        return None if body is None else body.decode()
    except UnicodeDecodeError:
        raise CommandFailed(
            INVALID_INPUT,
            "the body is not UTF-8: give --schema, so that this command explains the request"
            " without the store",
        ) from None


def _explain_event(cli: Cli, source: str | None, org: str, event: str, *, as_json: bool) -> None:
    from controlplane.operations.event_explanations import ExplainEvent, explain_event

    draft = None if source is None else source_of(cli, source)
    report = cli.call(explain_event, ExplainEvent(org=org, id=event, source=draft))
    if as_json:
        print_json(report)
    else:
        sys.stdout.writelines(
            f"{_shown(line)}\n" for line in _describe_event(report, is_draft=draft is not None)
        )


def _describe_event(report: ExplainedEvent, *, is_draft: bool) -> Iterator[str]:
    yield f"event       {report.method} {report.target}"
    yield f"recorded    {report.recorded.verdict} by {report.recorded.by}: {report.recorded_reason}"
    if not report.reached_rules:
        yield "            no rule was evaluated at that time; the rules would give:"
    yield f"evaluated against   {report.judged_by}"
    yield from _describe(report)
    if report.reached_rules and not report.fits:
        yield ""
        yield "this differs from the recorded verdict" + (
            "" if is_draft else ": the application may have used another ruleset at that time"
        )


@app.command("test")
def run_tests(
    ctx: typer.Context,
    source: RulesetSource,
    cases: Annotated[
        Path | None,
        typer.Argument(
            metavar="[CASES]", help="File with the test cases (by default rules.test.yaml for rules.yaml)."
        ),
    ] = None,
    require_coverage: Annotated[
        bool, typer.Option("--require-coverage", help="Exit 1 if a rule decides no test case.")
    ] = False,
    org: AnyOrg = None,
    schema: Schema = None,
    root: Root = "/v1.0",
    json: Json = False,
) -> None:
    """Test a ruleset with cases, which are requests with expected verdicts.

    Exit 1 if a test case has another verdict than expected.
    """
    from controlplane.operations.dry_runs import RunCases, run
    from controlplane.operations.dry_runs import test as operation

    label, text = ruleset_text(ctx.obj, source, org)
    ruleset = parsed(label, text)
    file = _cases_beside(source) if cases is None else cases
    if asks_the_store(ctx.obj, ruleset, schema):
        asked = RunCases(source_of(ctx.obj, source), read_text(file), str(file), org)
        outcome = ctx.obj.call(operation, asked)
    else:
        schemas = given_schemas(label, text, ruleset, schema, root)
        with complaining():
            outcome = run(ruleset, str(file), read_text(file), schemas)
    failed = bool(outcome.failures) or (require_coverage and bool(outcome.undecided_rules))
    if json:
        print_json(outcome)
    else:
        sys.stdout.write(f"{counted(outcome.cases, 'case')}, {number(outcome.failed_cases)} failed\n")
        if outcome.undecided_rules:
            sys.stdout.write(
                _shown(f"rules that decide no case: {', '.join(outcome.undecided_rules)}") + "\n"
            )
    if failed:
        raise CommandFailed(FAILED, *(() if json else problem_lines(str(file), outcome.failures)))


@app.command()
def diff(
    ctx: typer.Context,
    old: Annotated[str, typer.Argument(metavar="A", help="File, or stored ruleset as NAME or NAME@VERSION.")],
    new: Annotated[str, typer.Argument(metavar="B", help="File, or stored ruleset as NAME or NAME@VERSION.")],
    org: AnyOrg = None,
    json: Json = False,
) -> None:
    """List the rules that ruleset B adds, removes, changes or moves in comparison with ruleset A.

    Exit 1 if the rulesets have different rules.
    """
    from controlplane.operations.dry_runs import difference
    from controlplane.workshop.ruleset_diff import diff_rulesets

    found = difference(diff_rulesets(ruleset_of(ctx.obj, old, org), ruleset_of(ctx.obj, new, org)))
    if json:
        print_json(found)
    else:
        sys.stdout.writelines(f"{_shown(line)}\n" for line in _describe_diff(found))
    if found.different:
        raise CommandFailed(FAILED)


def _describe_diff(found: RulesetDifference) -> Iterator[str]:
    for key in found.keys:
        yield f"changed  {key}"
    for rule_id in found.removed:
        yield f"removed  {rule_id}"
    for rule_id in found.added:
        yield f"added    {rule_id}"
    for changed in found.changed:
        yield f"changed  {changed.id}: {', '.join(changed.keys)}"
    for moved in found.moved:
        yield f"moved    {moved.id}: " + ("to the top" if moved.after is None else f"after {moved.after}")


@app.command()
def schema(json: Json = False) -> None:
    """Print a JSON Schema of ruleset files, for use in text editors."""
    from proxy.policy.ruleset_yaml import ruleset_json_schema

    text = msgspec.json.encode(ruleset_json_schema())
    write_json(text if json else msgspec.json.format(text, indent=2))


def _cases_beside(source: str) -> Path:
    path = Path(source)
    if path.suffix not in (".yaml", ".yml"):
        raise CommandFailed(INVALID_INPUT, f"{source}: also name the file with the test cases")
    return path.with_suffix(f".test{path.suffix}")


def ruleset_of(cli: Cli, source: str, org: str | None) -> Ruleset:
    label, text = ruleset_text(cli, source, org)
    return parsed(label, text)


def ruleset_text(cli: Cli, source: str, org: str | None) -> tuple[str, str]:
    """Return the label of a ruleset for messages, and its text from a file or else from the store."""
    if _is_file(source):
        return source, read_text(Path(source))
    if not cli.has_store:
        raise CommandFailed(
            INVALID_INPUT,
            f"{source}: no such file; to use a stored ruleset, give --config or --url",
        )
    return source, stored_ruleset(cli, *_named(cli, source, org)).yaml


def _named(cli: Cli, source: str, org: str | None) -> tuple[str, str | None, int | None]:
    """Return the ruleset name, organisation and version that the command-line arguments name."""
    from controlplane.operations.dry_runs import named_version
    from controlplane.operations.rulesets import ListRulesets, list_all

    found = cli.call(list_all, ListRulesets(org=org)).rulesets if "@" in source else ()
    name, version = named_version(source, {each.name for each in found})
    return name, org, version


def source_of(cli: Cli, source: str) -> Source:
    """Return the ruleset for an operation: the text of a file, or the name of a stored ruleset."""
    from controlplane.operations.dry_runs import Source

    if not _is_file(source):
        return Source(ruleset=source)
    label, text = ruleset_text(cli, source, None)
    return Source(yaml=text, label=label)


def _is_file(source: str) -> bool:
    path = Path(source)
    return path.exists() or "/" in source or path.suffix in (".yaml", ".yml")


def _response(
    status: int | None, file: Path | None, fields: tuple[tuple[bytes, bytes], ...]
) -> ResponseFacts | None:
    from proxy.policy.decision import ResponseFacts

    if status is None and file is None and not fields:
        return None
    return ResponseFacts(200 if status is None else status, fields, None if file is None else _bytes(file))


@contextmanager
def complaining() -> Iterator[None]:
    """Convert the error of an operation that rejects its input into CommandFailed."""
    from controlplane.operations.operation import InvalidRequest

    try:
        yield
    except InvalidRequest as error:
        raise CommandFailed(INVALID_INPUT, *error.problems) from None


def _moment(text: str | None) -> float:
    from controlplane.workshop.cases import parse_moment

    moment = clock.time() if text is None else parse_moment(text)
    if moment is None:
        raise CommandFailed(INVALID_INPUT, f"{text}: write the time as 2026-03-02T09:00:00Z")
    return moment


def _bytes(file: Path) -> bytes:
    return given(file, bytes)


# -- Text of an explanation

_MAX_NAMED = 20  # number of rules of other paths to name
_IMPORTANCE = {
    "certain": "",
    "shadow": "(an unlikely interpretation: only a block or a filter counts)",
    "slash": "(if the encoded slash is a separator: any other verdict refuses the request)",
}


def _describe(report: Explained) -> Iterator[str]:
    for one in report.possible:
        yield f"possible    {one.verdict} by {one.rule_id or one.reason}"
    if report.missing:
        yield f"depends on  {', '.join(report.missing)}"
    if report.refused is not None:
        yield f"refused     {report.refused.status} {report.refused.reason}: {report.refused.message}"
    if report.verdict is not None:
        yield f"verdict     {report.verdict}"
        yield f"rule        {report.rule_id}"
        others = [each for each in report.rule_ids if each != report.rule_id]
        if others:
            yield f"with        {', '.join(others)}"
        yield f"reason      {report.reason}"
    if report.logged_rule_ids:
        yield f"logged by   {', '.join(report.logged_rule_ids)}"
    yield from _describe_filter(report)
    if report.awaiting:
        yield f"may change  once the upstream has responded: {', '.join(report.awaiting)}"
    yield from map(_describe_implied, report.implied)
    for reading in report.readings:
        yield from _describe_reading(reading, "the request")
        if reading.rule_id == "default":
            yield f"  default: {reading.verdict}"
    for reading in report.answer_readings:
        yield from _describe_reading(reading, "the response")
    if report.body is not None:
        yield ""
        yield "the application gets"
        yield f"  {report.body}"


def _describe_implied(implied: ImpliedFacts) -> str:
    verdict = f"{implied.verdict} by {implied.rule_id}" if implied.verdict else "not known"
    place = f", at {implied.place} in the response" if implied.verdict == "filter" and implied.place else ""
    return f"implies     {implied.method} {implied.path} ({implied.cause}): {verdict}{place}"


def _describe_filter(report: Explained) -> Iterator[str]:
    """Yield lines that describe the active filter, and the properties that the filter removed."""
    from proxy.policy.transforms import parse_names

    filter_ = parse_names(report.transforms)
    if filter_.stripped:
        yield f"removes     {', '.join(filter_.stripped)}"
    if filter_.allowed is not None:
        yield f"keeps only  {', '.join(filter_.allowed) or 'nothing'}"
    if filter_.kept:
        yield f"items with  {' and '.join(filter_.kept)}"
    if report.transforms and report.removed is not None:
        removed = parse_names(report.removed)
        found = [
            *removed.stripped,
            *(["properties that are not in the allow list"] if removed.allowed is not None else []),
        ]
        found += ["items"] if removed.kept else []
        yield f"removed     {', '.join(found) or 'nothing: it was not in the response'}"


def _describe_reading(reading: ReadingFacts, subject: str) -> Iterator[str]:
    yield ""
    yield f"{subject} to {' or '.join(reading.paths)}{_IMPORTANCE[reading.importance]}"
    if reading.reaches:
        yield f"  reaches  {reading.reaches}"
    elsewhere = [attempt for attempt in reading.rules if _is_elsewhere(attempt)]
    report = [attempt for attempt in reading.rules if not _is_elsewhere(attempt)]
    width = max((len(attempt.rule_id) for attempt in report), default=0)
    for attempt in report:
        yield f"  {attempt.rule_id:{width}}  {_describe_attempt(attempt)}"
    if elsewhere:
        yield f"  not on this path: {_first(attempt.rule_id for attempt in elsewhere)}"


def _first(names: Iterable[str]) -> str:
    known = list(names)
    more = len(known) - _MAX_NAMED
    return ", ".join(known[:_MAX_NAMED]) + (f" and {more} more" if more > 0 else "")


def _is_elsewhere(attempt: AttemptFacts) -> bool:
    return attempt.outcome == "unmatched" and attempt.asked[-1].part == "path"


def _describe_attempt(attempt: AttemptFacts) -> str:
    telling = [one for one in attempt.asked if one.holds != "yes"]
    why = "; ".join([*map(_describe_asked, telling), *filter(None, [attempt.note])])
    match attempt.outcome:
        case "unmatched":
            said = "no"
        case "perhaps":
            said = "indeterminate, so an allow rule does not match"
        case "logs":
            said = "log_only; the next rules are tried too"
        case "filters":
            said = "filter, indeterminate; the next rules are tried too"
        case "unreadable":
            said = "can't be evaluated"
        case "unknown":
            said = f"{attempt.verdict}, if"
        case "decides":
            said = attempt.verdict
    return f"{said}: {why}" if why else said


def _describe_asked(asked: AskedFacts) -> str:
    if asked.holds == "unknown":
        return f"{asked.part} {asked.wants}, which is not stored"
    found = ", ".join(asked.found) or "nothing"
    return f"{asked.part}: {found}, but the rule requires {asked.wants}"


def _shown(line: str) -> str:
    from proxy.wire.log_line import one_line

    return one_line(line)
