"""Commands of `ruleset`: apply, list, show, history, rollback, and proposals that need an approval."""

from __future__ import annotations

import re
import time as clock
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import unified_diff
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from controlplane.cli.context import (
    AnyOrg,
    Cli,
    Json,
    NoTrunc,
    OneOrg,
    Wide,
    facts_of,
    print_facts,
    print_json,
    print_list,
    print_next,
    print_text,
    with_org_names,
)
from controlplane.cli.deletions import YesDelete
from controlplane.cli.deletions import delete as delete_thing
from controlplane.cli.failure import FAILED, INVALID_INPUT, CommandFailed, given, named_as_options
from controlplane.cli.layouts import Column, Layout, fit_of
from controlplane.cli.lists import NAMED_OPTIONS, Cursor, Limit, Search, page_members, print_page
from controlplane.cli.next_steps import after_ruleset, not_active_yet
from controlplane.cli.rollout import Timeout, conclude, wait_for
from proxy.config.given_text import text_of

if TYPE_CHECKING:
    from controlplane.operations.dry_runs import ProblemFacts
    from controlplane.operations.rulesets import RulesetText
    from proxy.policy.resource_model import ResourceModel
    from proxy.policy.ruleset import Ruleset as PolicyRuleset
    from proxy.policy.ruleset_yaml import RulesetProblem

app = typer.Typer()

RULESETS: Final = Layout(
    "rulesets",
    (
        Column("name"),
        Column("org", title="Organisation"),
        Column("version", "number"),
        Column("changedAt", "time", "Changed"),
        Column("rules", "number"),
        Column("apps", "number"),
        Column("note", "prose"),
        Column("rulesetId", "id"),
    ),
    leads=("name",),
    drops=("note", "rules", "apps", "org", "changedAt"),
)
VERSIONS: Final = Layout(
    "versions",
    (
        Column("version", "number"),
        Column("inForce", title="Active"),
        Column("createdAt", "time", "Published"),
        Column("rules", "number"),
        Column("rolledBackTo", "number", "Text of"),
        Column("note", "prose"),
    ),
    leads=("version",),
    drops=("rules", "rolledBackTo", "note"),
)

_Sort = Annotated[
    str | None,
    typer.Option(
        "--sort",
        metavar="COLUMN",
        help="Column to sort by: name, org, version, rules or changedAt. Put - before the column"
        " name for descending order.",
    ),
]

PROPOSALS: Final = Layout(
    "proposals",
    (
        Column("proposalId", title="Proposal"),
        Column("kind"),
        Column("ruleset"),
        Column("app"),
        Column("state"),
        Column("outdated"),
        Column("proposedBy", title="By"),
        Column("proposedAt", "time", "Proposed"),
        Column("note", "prose"),
        Column("decidedBy", title="Decided by"),
        Column("orgId", "id"),
    ),
    leads=("proposalId",),
    drops=("decidedBy", "note", "app", "outdated", "proposedBy", "proposedAt"),
)

_Proposal = Annotated[
    str, typer.Argument(metavar="PROPOSAL", help="ID of the proposal, as `ruleset proposals` shows it.")
]
_Ruleset = Annotated[str, typer.Argument(metavar="RULESET", help="ID or name.")]
_Note = Annotated[
    str | None, typer.Option("--note", metavar="TEXT", help="Reason for the change, stored with the version.")
]


@app.command()
def check(
    ctx: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File with the ruleset (YAML).")],
    schema: Annotated[
        Path | None,
        typer.Option(
            "--schema",
            metavar="FILE",
            help="File with the upstream's $metadata, to find requests that bypass a rule.",
        ),
    ] = None,
    org: Annotated[
        str | None,
        typer.Option(
            "--org", metavar="ORG", help="Organisation whose stored schemas are used, by ID or name."
        ),
    ] = None,
    root: Annotated[
        str, typer.Option("--root", metavar="PATH", help="Root path of the service that --schema describes.")
    ] = "/v1.0",
    json: Json = False,
) -> None:
    """Validate a ruleset, and change nothing in the store. Warnings name possible mistakes in the ruleset.

    The command `ruleset check` needs no settings file, unless --org is given.
    """
    text = read_text(file)
    if org is not None and schema is None:
        read = _read_there(ctx.obj, file, text, org)
    else:
        read = _read(file, text, schema_in(schema), root)
    facts: dict[str, object] = {"name": read.name, "rules": read.rules}
    if json:
        print_json({**facts, "warnings": read.advice})
    else:
        _warn(file, read.advice)
        if read.things is not None:
            facts["things"] = read.things
        print_facts(facts, as_json=False)


@app.command()
def apply(
    ctx: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File with the ruleset (YAML).")],
    org: OneOrg,
    note: _Note = None,
    expect: Annotated[
        int | None,
        typer.Option(
            "--expect",
            min=0,
            help="Apply only if this version is active. 0: apply only if there is no version.",
        ),
    ] = None,
    wait: Annotated[
        bool,
        typer.Option(
            "--wait", help="Wait until every live proxy enforces the new version, as `proxy wait` does."
        ),
    ] = False,
    timeout: Timeout = 120,
    json: Json = False,
) -> None:
    """Validate a ruleset and activate it as a new version. Warnings name possible mistakes in the ruleset.

    The name of the ruleset is the value of `name` in the ruleset file.
    """
    from controlplane.operations import rulesets

    cli: Cli = ctx.obj
    asked = rulesets.ApplyRuleset(org, read_text(file), note, str(file), expect)
    try:
        applied = cli.call(rulesets.apply, asked)
    except CommandFailed as failed:
        raise _with_way_out(failed, file, org) from None
    _warn(file, applied.warnings)
    facts = {name: value for name, value in facts_of(applied).items() if name != "warnings"}
    if applied.proposal is not None:
        typer.echo(not_active_yet(applied.proposal), err=True)
        if not json:
            facts = {"proposal": applied.proposal, "name": applied.name}
        print_facts(facts, as_json=json)
        if wait:
            raise CommandFailed(
                FAILED, "no proxy enforces the proposed ruleset until another operator approves it"
            )
        return
    if applied.new_schemas_alone:
        typer.echo(f"{file}: this text is already active; the new version uses a new schema", err=True)
    if not wait:
        print_facts(facts, as_json=json)
        if applied.changed and not json:
            print_next(after_ruleset(cli.typed, applied.name, org))
        return
    if not json:
        print_facts(facts, as_json=False)
    waited = wait_for(cli, applied.ruleset_id, applied.version, org, timeout=timeout)
    if json:
        print_json({**facts, "rollout": waited.facts})
    conclude(waited)


def _with_way_out(failed: CommandFailed, file: Path, org: str) -> CommandFailed:
    """Add advice on the next step to the error that a different version of the ruleset is active."""
    conflict = re.fullmatch(r"ruleset (.+): version ([0-9]+) is active, .+ was expected", failed.lines[0])
    if conflict is None:
        return failed
    name, version = conflict.groups()
    fix = f"see `ruleset diff {name} {file} --org {org}`, then apply with --expect {version}"
    return CommandFailed(failed.status, *failed.lines, fix)


@dataclass(frozen=True, slots=True)
class _Read:
    """A valid ruleset, and the warnings of its validation."""

    name: str
    rules: int
    advice: Sequence[RulesetProblem | ProblemFacts]
    things: str | None = None  # message that the names of things were not looked up


def _warn(file: Path, advice: Iterable[RulesetProblem | ProblemFacts]) -> None:
    for each in advice:
        typer.echo(f"{_place(str(file), each)}warning: {each.message}", err=True)


def schema_in(file: Path | None) -> ResourceModel | None:
    """Return the schema in a file, or None if no file is given.

    Raise CommandFailed if the schema is not usable.
    """
    from controlplane.model.schema_file import UnreadableSchema, read_schema

    if file is None:
        return None
    try:
        return given(file, read_schema)
    except UnreadableSchema as error:
        raise CommandFailed(INVALID_INPUT, f"{file}: {error}") from None


def _read(file: Path, text: str, model: ResourceModel | None, root: str) -> _Read:
    """Check a ruleset against the schema in a file, if a file is given.

    Raise CommandFailed with every error in the ruleset.
    """
    from controlplane.operations.dry_runs import name_problems
    from controlplane.workshop.routes_text import advice_with_routes
    from controlplane.workshop.thing_problems import thing_problems
    from proxy.policy.schemas import InvalidRoot, Schemas, folded_root, needs_schemas, root_segments

    ruleset = parsed(str(file), text)
    problems = name_problems(text, ruleset.name)
    if model is not None:
        try:
            schemas = Schemas({root_segments(folded_root(root)): model})
        except InvalidRoot as error:
            raise CommandFailed(INVALID_INPUT, f"--root: {error}") from None
        problems += thing_problems(text, ruleset, schemas)
    if problems:
        raise CommandFailed(INVALID_INPUT, *problem_lines(str(file), problems))
    unknown = "not looked up; give --schema FILE or --org ORG"
    return _Read(
        ruleset.name,
        len(ruleset.rules),
        advice_with_routes(text, ruleset, clock.time(), model, root),
        unknown if model is None and needs_schemas(ruleset) else None,
    )


def _read_there(cli: Cli, file: Path, text: str, org: str) -> _Read:
    """Check a ruleset against the stored schemas of an organisation.

    Raise CommandFailed with every error in the ruleset.
    """
    from controlplane.operations.dry_runs import CheckRuleset
    from controlplane.operations.dry_runs import check as operation

    found = cli.call(operation, CheckRuleset(text, org))
    if found.name is None or found.rules is None:
        raise CommandFailed(INVALID_INPUT, *problem_lines(str(file), found.problems))
    return _Read(found.name, found.rules, found.warnings)


def read_text(file: Path) -> str:
    return given(file, text_of)


def parsed(label: str, text: str) -> PolicyRuleset:
    """Parse a ruleset text, and return the ruleset.

    Raise CommandFailed with each error in the ruleset, and its line and column.
    """
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
    wide: Wide = False,
    no_trunc: NoTrunc = False,
    json: Json = False,
) -> None:
    """List rulesets by name, each with its active version."""
    from controlplane.operations import rulesets

    cli: Cli = ctx.obj
    asked = rulesets.ListRulesets(org=org, **page_members(search, sort, limit, cursor, as_json=json))
    with named_as_options(NAMED_OPTIONS):
        found = cli.call(rulesets.list_all, asked)
    rows = () if json else with_org_names(cli, found.rulesets)
    print_page(RULESETS, found, rows, as_json=json, fit=fit_of(wide, no_trunc))


@app.command()
def show(
    ctx: typer.Context,
    ruleset: _Ruleset,
    org: AnyOrg = None,
    version: Annotated[
        int | None, typer.Option("--version", help="Version to use instead of the active one.")
    ] = None,
    json: Json = False,
) -> None:
    """Print the text of a stored ruleset."""
    found = stored_ruleset(ctx.obj, ruleset, org, version)
    if json:
        print_json(found)
    else:
        print_text(found.yaml)


def stored_ruleset(cli: Cli, ruleset: str, org: str | None, version: int | None) -> RulesetText:
    """Return the active version of a ruleset, or the version that the operator named."""
    from controlplane.operations import rulesets

    return cli.call(rulesets.show, rulesets.ShowRuleset(ruleset, org, version))


@app.command()
def history(
    ctx: typer.Context,
    ruleset: _Ruleset,
    org: AnyOrg = None,
    wide: Wide = False,
    no_trunc: NoTrunc = False,
    json: Json = False,
) -> None:
    """List every version of a ruleset, newest first."""
    from controlplane.operations import rulesets

    cli: Cli = ctx.obj
    found = cli.call(rulesets.history, rulesets.RulesetReference(ruleset, org))
    print_list(VERSIONS, found.versions, as_json=json, fit=fit_of(wide, no_trunc))


@app.command()
def rollback(
    ctx: typer.Context,
    ruleset: _Ruleset,
    org: AnyOrg = None,
    to: Annotated[
        int | None,
        typer.Option(
            "--to",
            metavar="VERSION",
            help="Older version whose text to use (by default the one before the active version).",
        ),
    ] = None,
    note: _Note = None,
    json: Json = False,
) -> None:
    """Activate the ruleset text of an older version again, under a new version number."""
    from controlplane.operations import rulesets

    cli: Cli = ctx.obj
    done = cli.call(rulesets.rollback, rulesets.RollBack(ruleset, org, to, note))
    print_facts(done, as_json=json)
    if done.proposal is not None:
        typer.echo(not_active_yet(done.proposal), err=True)
        return
    if not json:
        versions = cli.call(rulesets.history, rulesets.RulesetReference(done.ruleset_id)).versions
        text_of_version = next(each.rolled_back_to for each in versions if each.version == done.version)
        print_next([f"Version {done.version} is active now. It has the text of version {text_of_version}."])


@app.command("proposals")
def list_proposals(
    ctx: typer.Context,
    org: AnyOrg = None,
    ruleset: Annotated[
        str | None, typer.Option("--ruleset", metavar="NAME", help="Only proposals for this ruleset.")
    ] = None,
    decided: Annotated[bool, typer.Option("--all", help="Also decided proposals.")] = False,
    wide: Wide = False,
    no_trunc: NoTrunc = False,
    json: Json = False,
) -> None:
    """List proposed changes of rules that wait for approval by a second person, newest first."""
    from controlplane.operations import proposals

    cli: Cli = ctx.obj
    found = cli.call(proposals.list_all, proposals.ListProposals(org, ruleset, decided))
    print_list(PROPOSALS, found.proposals, as_json=json, fit=fit_of(wide, no_trunc))


@app.command("proposal")
def show_proposal(ctx: typer.Context, proposal: _Proposal, json: Json = False) -> None:
    """Show one proposal, with the ruleset lines that the proposal changes."""
    from controlplane.operations import proposals, rulesets

    cli: Cli = ctx.obj
    found = cli.call(proposals.show, proposals.ProposalReference(proposal))
    if json:
        print_json(found)
        return
    print_facts({name: value for name, value in facts_of(found).items() if name != "yaml"}, as_json=False)
    if found.yaml is None:
        return
    before = ""
    if found.base_version:
        shown = rulesets.ShowRuleset(found.ruleset, found.org_id, found.base_version)
        before = cli.call(rulesets.show, shown).yaml
    names = f"version {found.base_version}", "proposal"
    print_text("".join(unified_diff(before.splitlines(True), found.yaml.splitlines(True), *names)))


@app.command("approve")
def approve_proposal(
    ctx: typer.Context,
    proposal: _Proposal,
    reason: Annotated[
        str, typer.Option("--reason", metavar="TEXT", help="Reason, stored with the proposal.")
    ] = "",
    json: Json = False,
) -> None:
    """Activate a change of rules that a different operator proposed.

    The command `ruleset proposal ID` shows one proposal.
    """
    from controlplane.operations import proposals

    cli: Cli = ctx.obj
    asked = proposals.ApproveProposal(proposal, reason)
    print_facts(cli.call(proposals.approve, asked), as_json=json)


@app.command("reject")
def reject_proposal(
    ctx: typer.Context,
    proposal: _Proposal,
    reason: Annotated[
        str, typer.Option("--reason", metavar="TEXT", help="Reason, stored with the proposal.")
    ],
    json: Json = False,
) -> None:
    """Reject the proposal of an operator, or withdraw your own proposal.

    A proposal that is rejected or withdrawn does not change the active rules.
    """
    from controlplane.operations import proposals

    cli: Cli = ctx.obj
    print_facts(cli.call(proposals.reject, proposals.RejectProposal(proposal, reason)), as_json=json)


@app.command()
def delete(
    ctx: typer.Context,
    ruleset: _Ruleset,
    org: AnyOrg = None,
    expect: Annotated[
        int | None, typer.Option("--expect", metavar="N", help="Delete only if this version is active.")
    ] = None,
    yes: YesDelete = False,
    json: Json = False,
) -> None:
    """Delete a ruleset that no app uses and that no open proposal names."""
    from controlplane.operations import deletions

    effect_of = deletions.EffectOfDeletion("ruleset", ruleset, org)
    asked = deletions.DeleteRuleset(ruleset, org, expect)
    delete_thing(ctx.obj, effect_of, deletions.delete_ruleset, asked, yes=yes, json=json)
