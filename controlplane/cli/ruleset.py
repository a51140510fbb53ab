"""`ruleset`: apply, list, show, history, rollback."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from controlplane.cli.context import (
    FAILED,
    INVALID_INPUT,
    AnyOrg,
    Cli,
    CommandFailed,
    Json,
    OneOrg,
    print_facts,
    print_json,
    print_list,
)
from controlplane.store.interface import Ruleset, RulesetVersion
from proxy.wire.audit_event import rfc3339

if TYPE_CHECKING:
    from controlplane.operations.rehearsals import ProblemFacts
    from proxy.policy.ruleset import Ruleset as PolicyRuleset
    from proxy.policy.ruleset_yaml import RulesetProblem

app = typer.Typer()

_Ruleset = Annotated[str, typer.Argument(metavar="RULESET", help="Id or name.")]


def _facts(ruleset: Ruleset) -> dict[str, Any]:
    return {"rulesetId": ruleset.ruleset_id, "name": ruleset.name, "version": ruleset.version}


def _listed(ruleset: Ruleset) -> dict[str, Any]:
    return {**_facts(ruleset), "orgId": ruleset.org_id, "rules": ruleset.rule_count}


@app.command()
def check(file: Annotated[Path, typer.Argument(metavar="FILE")], json: Json = False) -> None:
    """Validate a ruleset and change nothing; needs no settings. What it may have overlooked is a warning."""
    read = _read(file)
    facts = {"name": read.ruleset.name, "rules": len(read.ruleset.rules)}
    if json:
        print_json({**facts, "warnings": read.advice})
    else:
        read.warn()
        print_facts(facts, as_json=False)


@app.command()
def apply(
    ctx: typer.Context, file: Annotated[Path, typer.Argument(metavar="FILE")], org: OneOrg, json: Json = False
) -> None:
    """Validate a ruleset and put it in force as a new version; the ruleset's name is the file's `name`. What
    it may have overlooked is a warning."""
    cli: Cli = ctx.obj
    read = _read(file)
    read.warn()
    name, rule_count = read.ruleset.name, len(read.ruleset.rules)
    ruleset, is_new = cli.run(lambda opened: opened.registry.apply_ruleset(org, name, rule_count, read.text))
    print_facts({**_facts(ruleset), "changed": is_new}, as_json=json)


@dataclass(frozen=True, slots=True)
class _Read:
    """A sound ruleset, and what it may have overlooked."""

    file: Path
    text: str
    ruleset: PolicyRuleset
    advice: tuple[RulesetProblem, ...]

    def warn(self) -> None:
        for advice in self.advice:
            typer.echo(f"{_place(str(self.file), advice)}warning: {advice.message}", err=True)


def _read(file: Path) -> _Read:
    """Raises CommandFailed with every error in the file."""
    from proxy.policy.advice import ruleset_advice

    text = read_text(file)
    ruleset = parsed(str(file), text)
    return _Read(file, text, ruleset, ruleset_advice(text, ruleset))


def read_text(file: Path) -> str:
    try:
        return file.read_text("utf-8")
    except OSError as error:
        raise CommandFailed(INVALID_INPUT, f"{file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise CommandFailed(INVALID_INPUT, f"{file}: not UTF-8 text") from None


def parsed(label: str, text: str) -> PolicyRuleset:
    """The model, or every error by line and column."""
    from proxy.policy.ruleset_yaml import InvalidRuleset, parse_ruleset

    try:
        return parse_ruleset(text)
    except InvalidRuleset as error:
        raise CommandFailed(INVALID_INPUT, *problem_lines(label, error.problems)) from None


def problem_lines(label: str, problems: Iterable[RulesetProblem | ProblemFacts]) -> list[str]:
    return [_place(label, problem) + problem.message for problem in problems]


def _place(label: str, problem: RulesetProblem | ProblemFacts) -> str:
    return f"{label}:{problem.line}:{problem.column}: " + (f"{problem.where}: " if problem.where else "")


@app.command("list")
def list_rulesets(ctx: typer.Context, org: AnyOrg = None, json: Json = False) -> None:
    """All rulesets with their version in force."""
    cli: Cli = ctx.obj
    rulesets = cli.run(lambda opened: opened.registry.rulesets(org))
    print_list("rulesets", [_listed(ruleset) for ruleset in rulesets], as_json=json)


@app.command()
def show(
    ctx: typer.Context,
    ruleset: _Ruleset,
    org: AnyOrg = None,
    version: Annotated[
        int | None, typer.Option("--version", help="Not the version in force but this one.")
    ] = None,
    json: Json = False,
) -> None:
    """The text of a ruleset."""
    cli: Cli = ctx.obj
    found, shown = stored_version(cli, ruleset, org, version)
    if json:
        facts = {**_listed(found), "version": shown.version, "rules": shown.rule_count}
        print_json({**facts, "createdAt": rfc3339(shown.created_ms), "yaml": shown.yaml})
    else:
        typer.echo(shown.yaml, nl=not shown.yaml.endswith("\n"))


def stored_version(
    cli: Cli, ruleset: str, org: str | None, version: int | None
) -> tuple[Ruleset, RulesetVersion]:
    """The version in force unless another is named."""
    found, versions = cli.run(lambda opened: opened.registry.history(ruleset, org))
    wanted = version or found.version
    shown = next((each for each in versions if each.version == wanted), None)
    if shown is None:
        raise CommandFailed(FAILED, f"ruleset {found.name} has no version {wanted}")
    return found, shown


@app.command()
def history(ctx: typer.Context, ruleset: _Ruleset, org: AnyOrg = None, json: Json = False) -> None:
    """Every version of a ruleset, newest first."""
    cli: Cli = ctx.obj
    found, versions = cli.run(lambda opened: opened.registry.history(ruleset, org))
    rows = [_version_facts(each, each.version == found.version) for each in versions]
    print_list("versions", rows, as_json=json)


def _version_facts(version: RulesetVersion, in_force: bool) -> dict[str, Any]:
    return {
        "version": version.version,
        "createdAt": rfc3339(version.created_ms),
        "rules": version.rule_count,
        "rolledBackTo": version.rolled_back_to,
        "inForce": in_force,
    }


@app.command()
def rollback(
    ctx: typer.Context,
    ruleset: _Ruleset,
    org: AnyOrg = None,
    to: Annotated[
        int | None, typer.Option("--to", metavar="VERSION", help="By default the one before.")
    ] = None,
    json: Json = False,
) -> None:
    """Put an older text in force again, as a new version."""
    cli: Cli = ctx.obj
    print_facts(_facts(cli.run(lambda opened: opened.registry.roll_back(ruleset, org, to))), as_json=json)
