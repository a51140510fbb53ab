"""`ruleset`: explain, test, diff, schema; settings only where a ruleset is looked up."""

from __future__ import annotations

import sys
import time as clock
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from controlplane.cli.context import (
    FAILED,
    INVALID_INPUT,
    AnyOrg,
    Cli,
    CommandFailed,
    Json,
    print_json,
    write_json,
)
from controlplane.cli.ruleset import parsed, problem_lines, read_text, stored_version

if TYPE_CHECKING:
    from proxy.policy.decision import AnswerFacts, Decision
    from proxy.policy.explain import Account, Attempt, Explanation, Finding
    from proxy.policy.ruleset import Ruleset
    from proxy.policy.ruleset_diff import RulesetDiff

app = typer.Typer()

_Source = Annotated[
    str,
    typer.Argument(metavar="FILE|NAME", help="A file, or a stored ruleset: NAME or NAME@VERSION."),
]


@app.command()
def explain(
    ctx: typer.Context,
    source: _Source,
    target: Annotated[str, typer.Option("--target", help="Path and query, as the application sends them.")],
    method: Annotated[str, typer.Option("--method")] = "GET",
    header: Annotated[
        list[str] | None, typer.Option("--header", metavar="NAME:VALUE", help="A field of the request.")
    ] = None,
    ip: Annotated[
        str, typer.Option("--ip", metavar="A", help="The client's; without it, address gates hold perhaps.")
    ] = "",
    time: Annotated[
        str | None, typer.Option("--time", metavar="RFC3339", help="When; now if left out.")
    ] = None,
    body: Annotated[Path | None, typer.Option("--body", help="A file with the request's body.")] = None,
    answer: Annotated[
        Path | None, typer.Option("--answer", help="A file with the body of the upstream's answer.")
    ] = None,
    status: Annotated[
        int | None, typer.Option("--status", help="The answer's; 200 where there is a file.")
    ] = None,
    answer_header: Annotated[
        list[str] | None,
        typer.Option("--answer-header", metavar="NAME:VALUE", help="A field of the answer."),
    ] = None,
    org: AnyOrg = None,
    json: Json = False,
) -> None:
    """What the rules make of one request, and why: each rule tried, and what in it failed."""
    from proxy.policy.explain import Explainer, SampleRequest

    ruleset = _ruleset(ctx.obj, source, org)
    sample = SampleRequest(
        method, target, _fields(header), ip, _moment(time), None if body is None else _bytes(body)
    )
    explanation = Explainer(ruleset).explain(sample, _answer(status, answer, answer_header))
    if json:
        print_json(_explained(explanation))
    else:
        sys.stdout.writelines(f"{_shown(line)}\n" for line in _told(explanation))


@app.command("test")
def run_tests(
    ctx: typer.Context,
    source: _Source,
    cases: Annotated[
        Path | None,
        typer.Argument(metavar="[CASES]", help="rules.test.yaml beside rules.yaml, if left out."),
    ] = None,
    require_coverage: Annotated[
        bool, typer.Option("--require-coverage", help="Fail if there is a rule that no case is decided by.")
    ] = False,
    org: AnyOrg = None,
    json: Json = False,
) -> None:
    """Try a ruleset on cases: requests with the verdict expected. Exit 1 if one has another."""
    from proxy.policy.cases import run_cases
    from proxy.policy.ruleset_yaml import InvalidRuleset

    ruleset = _ruleset(ctx.obj, source, org)
    file = _cases_beside(source) if cases is None else cases
    try:
        run = run_cases(ruleset, read_text(file))
    except InvalidRuleset as error:
        raise CommandFailed(INVALID_INPUT, *problem_lines(str(file), error.problems)) from None
    failed = bool(run.failures) or (require_coverage and bool(run.undecided))
    if json:
        print_json(
            {
                "cases": run.count,
                "failedCases": run.failed_cases,
                "failures": run.failures,
                "undecidedRules": run.undecided,
            }
        )
    else:
        sys.stdout.write(f"{run.count} cases, {run.failed_cases} failed\n")
        if run.undecided:
            sys.stdout.write(_shown(f"no case is decided by: {', '.join(run.undecided)}") + "\n")
    if failed:
        raise CommandFailed(FAILED, *(() if json else problem_lines(str(file), run.failures)))


@app.command()
def diff(
    ctx: typer.Context,
    old: Annotated[str, typer.Argument(metavar="A", help="A file, or a stored ruleset.")],
    new: Annotated[str, typer.Argument(metavar="B", help="A file, or a stored ruleset.")],
    org: AnyOrg = None,
    json: Json = False,
) -> None:
    """Which rules of B are new, gone, changed or moved against A. Exit 0 if none, 1 if any."""
    from proxy.policy.ruleset_diff import diff_rulesets

    found = diff_rulesets(_ruleset(ctx.obj, old, org), _ruleset(ctx.obj, new, org))
    if json:
        print_json({"different": bool(found), **asdict(found)})
    else:
        sys.stdout.writelines(f"{_shown(line)}\n" for line in _diff_told(found))
    if found:
        raise CommandFailed(FAILED)


def _diff_told(found: RulesetDiff) -> Iterator[str]:
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
    """A JSON Schema of rulesets, for editors."""
    from proxy.policy.ruleset_yaml import ruleset_json_schema

    text = msgspec.json.encode(ruleset_json_schema())
    write_json(text if json else msgspec.json.format(text, indent=2))


def _cases_beside(source: str) -> Path:
    path = Path(source)
    if path.suffix not in (".yaml", ".yml"):
        raise CommandFailed(INVALID_INPUT, f"{source}: which cases? Name their file too.")
    return path.with_suffix(f".test{path.suffix}")


def _ruleset(cli: Cli, source: str, org: str | None) -> Ruleset:
    label, text = ruleset_text(cli, source, org)
    return parsed(label, text)


def ruleset_text(cli: Cli, source: str, org: str | None) -> tuple[str, str]:
    """What to call it in messages, and its text: a file if there is one, else a version out of the store."""
    path = Path(source)
    if path.exists() or "/" in source or path.suffix in (".yaml", ".yml"):
        return source, read_text(path)
    if not cli.has_settings:
        raise CommandFailed(
            INVALID_INPUT, f"{source}: no such file, and without --config no ruleset can be looked up"
        )
    name, at, number = source.rpartition("@")
    if not at or not (number.isascii() and number.isdecimal() and len(number) < 10):
        name, number = source, "0"
    return source, stored_version(cli, name, org, int(number) or None)[1].yaml


def _answer(status: int | None, file: Path | None, header: Sequence[str] | None) -> AnswerFacts | None:
    from proxy.policy.decision import AnswerFacts

    if status is None and file is None and not header:
        return None
    return AnswerFacts(
        200 if status is None else status, _fields(header), None if file is None else _bytes(file)
    )


def _fields(lines: Sequence[str] | None) -> tuple[tuple[bytes, bytes], ...]:
    fields: list[tuple[bytes, bytes]] = []
    for line in lines or ():
        name, colon, value = line.partition(":")
        if not colon or not name or not line.isascii() or not line.isprintable():
            raise CommandFailed(INVALID_INPUT, f"{line}: a header field is NAME:VALUE in printable ASCII")
        fields.append((name.encode(), value.strip(" ").encode()))
    return tuple(fields)


def _moment(text: str | None) -> float:
    from proxy.policy.cases import parse_moment

    moment = clock.time() if text is None else parse_moment(text)
    if moment is None:
        raise CommandFailed(INVALID_INPUT, f"{text}: a time is written as 2026-03-02T09:00:00Z")
    return moment


def _bytes(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise CommandFailed(INVALID_INPUT, f"{file}: {error.strerror}") from None


# -- an explanation as JSON


def _explained(explanation: Explanation) -> dict[str, Any]:
    return {
        **outcome_facts(explanation),
        "readings": [_account_facts(account) for account in explanation.accounts],
        "answerReadings": [_account_facts(account) for account in explanation.answer_accounts],
        "awaiting": explanation.awaiting,
    }


def outcome_facts(explanation: Explanation) -> dict[str, Any]:
    """What becomes of the request, as the audit event would name it."""
    refused = explanation.refused
    return {
        **_decision_facts(explanation.decision),
        "refused": refused
        and {"status": refused.status, "reason": refused.reason, "message": refused.message},
        "body": None if explanation.body is None else explanation.body.decode("utf-8", "replace"),
    }


def _decision_facts(decision: Decision | None) -> dict[str, Any]:
    if decision is None:
        return {"verdict": None, "ruleId": None, "reason": None, "loggedRuleIds": [], "transforms": []}
    return {
        "verdict": decision.verdict,
        "ruleId": decision.rule_id,
        "reason": decision.reason,
        "loggedRuleIds": decision.logged_rule_ids,
        "transforms": decision.transforms.names if decision.transforms is not None else (),
    }


def _account_facts(account: Account) -> dict[str, Any]:
    return {
        "paths": account.paths,
        "importance": account.importance,
        "verdict": account.decision and account.decision.verdict,
        "ruleId": account.decision and account.decision.rule_id,
        "rules": [_attempt_facts(attempt) for attempt in account.attempts],
    }


def _attempt_facts(attempt: Attempt) -> dict[str, Any]:
    return {
        "ruleId": attempt.rule_id,
        "outcome": attempt.outcome,
        "verdict": attempt.decision.verdict,
        "note": attempt.note,
        "asked": [
            {"part": one.part, "wants": one.asked, "holds": one.held, "found": one.found}
            for one in attempt.findings
        ],
    }


# -- an explanation to be read

_MAX_NAMED = 20  # rules of other paths
_IMPORTANCE = {
    "certain": "",
    "shadow": ", which is unlikely: only a block or a filter counts",
    "slash": ", if the encoded slash were one: another verdict is refused",
}


def _told(explanation: Explanation) -> Iterator[str]:
    facts = outcome_facts(explanation)
    refused = explanation.refused
    if refused is not None:
        yield f"refused     {refused.status} {refused.reason}: {refused.message}"
    if explanation.decision is not None:
        yield f"verdict     {facts['verdict']}"
        yield f"rule        {facts['ruleId']}"
        yield f"reason      {facts['reason']}"
    for name, key in (("logged by", "loggedRuleIds"), ("transforms", "transforms")):
        if facts[key]:
            yield f"{name:10}  {', '.join(facts[key])}"
    if explanation.awaiting:
        yield f"may change  once the upstream has answered: {', '.join(explanation.awaiting)}"
    for account in explanation.accounts:
        yield from _account_told(account, "the request")
        if account.decision is not None and account.decision.rule_id == "default":
            yield f"  default: {account.decision.verdict}"
    for account in explanation.answer_accounts:
        yield from _account_told(account, "the answer")
    if facts["body"] is not None:
        yield ""
        yield "the application gets"
        yield f"  {facts['body']}"


def _account_told(account: Account, subject: str) -> Iterator[str]:
    yield ""
    yield f"{subject} to {' or '.join(account.paths)}{_IMPORTANCE[account.importance]}"
    elsewhere = [attempt for attempt in account.attempts if _is_elsewhere(attempt)]
    told = [attempt for attempt in account.attempts if not _is_elsewhere(attempt)]
    width = max((len(attempt.rule_id) for attempt in told), default=0)
    for attempt in told:
        yield f"  {attempt.rule_id:{width}}  {_attempt_told(attempt)}"
    if elsewhere:
        yield f"  not on this path: {_first(attempt.rule_id for attempt in elsewhere)}"


def _first(names: Iterable[str]) -> str:
    known = list(names)
    more = len(known) - _MAX_NAMED
    return ", ".join(known[:_MAX_NAMED]) + (f" and {more} more" if more > 0 else "")


def _is_elsewhere(attempt: Attempt) -> bool:
    return attempt.outcome == "unmatched" and attempt.findings[-1].part == "path"


def _attempt_told(attempt: Attempt) -> str:
    telling = [one for one in attempt.findings if one.held != "yes"]
    why = "; ".join([*map(_finding_told, telling), *filter(None, [attempt.note])])
    match attempt.outcome:
        case "unmatched":
            said = "no"
        case "perhaps":
            said = "perhaps, which is no for an allow"
        case "logs":
            said = "log_only, and the search goes on"
        case "filters":
            said = "filter, perhaps, and the search goes on"
        case "unreadable":
            said = "can't be judged"
        case "decides":
            said = attempt.decision.verdict
    return f"{said}: {why}" if why else said


def _finding_told(finding: Finding) -> str:
    found = ", ".join(finding.found) or "nothing"
    return f"{finding.part}: {found}, where the rule wants {finding.asked}"


def _shown(line: str) -> str:
    from proxy.wire.log_line import one_line

    return one_line(line)
