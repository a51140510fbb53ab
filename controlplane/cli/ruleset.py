"""`ruleset`: apply, list, show, history, rollback."""

from __future__ import annotations

import time as clock
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from controlplane.cli.context import (
    AnyOrg,
    Cli,
    Json,
    OneOrg,
    facts_of,
    print_facts,
    print_json,
    print_list,
    print_text,
    with_org_names,
)
from controlplane.cli.failure import INVALID_INPUT, CommandFailed, given, named_as_options
from controlplane.cli.lists import NAMED_OPTIONS, Cursor, Limit, Search, page_members, print_page
from controlplane.cli.rollout import Timeout, conclude, wait_for
from proxy.config.given_text import text_of

if TYPE_CHECKING:
    from controlplane.operations.dry_runs import ProblemFacts
    from controlplane.operations.rulesets import RulesetText
    from proxy.policy.resource_model import ResourceModel
    from proxy.policy.ruleset import Ruleset as PolicyRuleset
    from proxy.policy.ruleset_yaml import RulesetProblem

app = typer.Typer()

_Sort = Annotated[
    str | None,
    typer.Option(
        "--sort", metavar="COLUMN", help="name, org, version, rules or changedAt; - before it: descending."
    ),
]

_Ruleset = Annotated[str, typer.Argument(metavar="RULESET", help="Id or name.")]
_Note = Annotated[
    str | None, typer.Option("--note", metavar="TEXT", help="Why, in your words; kept with the version.")
]


@app.command()
def check(
    file: Annotated[Path, typer.Argument(metavar="FILE")],
    schema: Annotated[
        Path | None,
        typer.Option("--schema", metavar="FILE", help="The upstream's $metadata, to find open routes."),
    ] = None,
    json: Json = False,
) -> None:
    """Validate a ruleset and change nothing; needs no settings. What it may have overlooked is a warning."""
    from proxy.policy.schemas import needs_schemas

    read = _read(file, schema_in(schema))
    facts: dict[str, object] = {"name": read.ruleset.name, "rules": len(read.ruleset.rules)}
    if json:
        print_json({**facts, "warnings": read.advice})
    else:
        _warn(file, read.advice)
        if schema is None and needs_schemas(read.ruleset):
            facts["things"] = "not looked up without --schema FILE"
        print_facts(facts, as_json=False)


@app.command()
def apply(
    ctx: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE")],
    org: OneOrg,
    note: _Note = None,
    expect: Annotated[
        int | None,
        typer.Option("--expect", min=0, help="Only if this version is in force; 0: if there is none."),
    ] = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Until every live proxy enforces it, as `proxy wait` does.")
    ] = False,
    timeout: Timeout = 120,
    json: Json = False,
) -> None:
    """Validate a ruleset and activate it as a new version; the ruleset's name is the file's `name`. What
    it may have overlooked is a warning."""
    from controlplane.operations import rulesets

    cli: Cli = ctx.obj
    asked = rulesets.ApplyRuleset(org, read_text(file), note, str(file), expect)
    applied = cli.call(rulesets.apply, asked)
    _warn(file, applied.warnings)
    facts = {name: value for name, value in facts_of(applied).items() if name != "warnings"}
    if applied.new_schemas_alone:
        typer.echo(f"{file}: the text is in force already; this version is for a new schema", err=True)
    if not wait:
        print_facts(facts, as_json=json)
        return
    if not json:
        print_facts(facts, as_json=False)
    waited = wait_for(cli, applied.ruleset_id, applied.version, org, timeout=timeout)
    if json:
        print_json({**facts, "rollout": waited.facts})
    conclude(waited)


@dataclass(frozen=True, slots=True)
class _Read:
    """A sound ruleset, and what it may have overlooked."""

    ruleset: PolicyRuleset
    advice: tuple[RulesetProblem, ...]


def _warn(file: Path, advice: Iterable[RulesetProblem | ProblemFacts]) -> None:
    for each in advice:
        typer.echo(f"{_place(str(file), each)}warning: {each.message}", err=True)


def schema_in(file: Path | None) -> ResourceModel | None:
    """Raise CommandFailed if the file is not a usable schema."""
    from controlplane.model.schema_file import UnreadableSchema, read_schema

    if file is None:
        return None
    try:
        return given(file, read_schema)
    except UnreadableSchema as error:
        raise CommandFailed(INVALID_INPUT, f"{file}: {error}") from None


def _read(file: Path, model: ResourceModel | None) -> _Read:
    """Raises CommandFailed with every error in the file."""
    from controlplane.operations.dry_runs import name_problems
    from controlplane.workshop.routes_text import advice_with_routes
    from controlplane.workshop.thing_problems import thing_problems
    from proxy.policy.schemas import Schemas

    text = read_text(file)
    ruleset = parsed(str(file), text)
    problems = name_problems(text, ruleset.name)
    if model is not None:
        problems += thing_problems(text, ruleset, Schemas({(): model}))
    if problems:
        raise CommandFailed(INVALID_INPUT, *problem_lines(str(file), problems))
    return _Read(ruleset, advice_with_routes(text, ruleset, clock.time(), model))


def read_text(file: Path) -> str:
    return given(file, text_of)


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
def list_rulesets(
    ctx: typer.Context,
    org: AnyOrg = None,
    search: Search = None,
    sort: _Sort = None,
    limit: Limit = None,
    cursor: Cursor = None,
    json: Json = False,
) -> None:
    """Rulesets with their active version, by name."""
    from controlplane.operations import rulesets

    cli: Cli = ctx.obj
    asked = rulesets.ListRulesets(org=org, **page_members(search, sort, limit, cursor, as_json=json))
    with named_as_options(NAMED_OPTIONS):
        found = cli.call(rulesets.list_all, asked)
    print_page("rulesets", found, () if json else with_org_names(cli, found.rulesets), as_json=json)


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
    found = stored_ruleset(ctx.obj, ruleset, org, version)
    if json:
        print_json(found)
    else:
        print_text(found.yaml)


def stored_ruleset(cli: Cli, ruleset: str, org: str | None, version: int | None) -> RulesetText:
    """The active version unless another is named."""
    from controlplane.operations import rulesets

    return cli.call(rulesets.show, rulesets.ShowRuleset(ruleset, org, version))


@app.command()
def history(ctx: typer.Context, ruleset: _Ruleset, org: AnyOrg = None, json: Json = False) -> None:
    """Every version of a ruleset, newest first."""
    from controlplane.operations import rulesets

    cli: Cli = ctx.obj
    found = cli.call(rulesets.history, rulesets.RulesetReference(ruleset, org))
    print_list("versions", found.versions, as_json=json)


@app.command()
def rollback(
    ctx: typer.Context,
    ruleset: _Ruleset,
    org: AnyOrg = None,
    to: Annotated[
        int | None, typer.Option("--to", metavar="VERSION", help="By default the one before.")
    ] = None,
    note: _Note = None,
    json: Json = False,
) -> None:
    """Put an older text in force again, as a new version."""
    from controlplane.operations import rulesets

    cli: Cli = ctx.obj
    print_facts(cli.call(rulesets.rollback, rulesets.RollBack(ruleset, org, to, note)), as_json=json)
