"""Commands `apply` and `export`, which manage a control plane as code in a directory of files."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeVar

import msgspec
import typer

from controlplane.cli.context import AnyOrg, Cli, Json, Yes, confirm, facts_of, print_json, print_text
from controlplane.cli.directory import SecretFiles, WrittenSecrets, read_directory, write_directory
from controlplane.cli.failure import FAILED, CommandFailed
from proxy.wire.figures import counted

if TYPE_CHECKING:
    from controlplane.as_code.plan import Kind
    from controlplane.as_code.wanted import Wanted, WantedOrg, WantedSchema
    from controlplane.cli.rehearsal import Rehearsed
    from controlplane.operations.config import AppliedConfig, ConfigPlan
    from controlplane.operations.operation import Operation, Request, Response

    Q = TypeVar("Q", bound=Request)
    A = TypeVar("A", bound=Response)

CHANGES: Final = 2  # exit status of a plan with changes

app = typer.Typer()


@app.command()
def apply(
    ctx: typer.Context,
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Directory with the files to apply.")],
    plan: Annotated[
        bool,
        typer.Option("--plan", help="Print the changes without making them. Exit 2 if the plan has changes."),
    ] = False,
    prune: Annotated[
        bool,
        typer.Option(
            "--prune",
            help="Delete objects that the files in the directory do not name, except organisations and"
            " operators.",
        ),
    ] = False,
    expect: Annotated[
        str | None,
        typer.Option("--expect", metavar="DIGEST", help="Apply only the plan with this digest."),
    ] = None,
    secrets_to: Annotated[
        Path | None,
        typer.Option("--secrets-to", metavar="DIR", help="Directory for files with the new secrets."),
    ] = None,
    note: Annotated[
        str | None,
        typer.Option("--note", metavar="TEXT", help="Reason to store with each new version of a ruleset."),
    ] = None,
    hours: Annotated[
        float,
        typer.Option(
            "--hours", metavar="N", help="Number of hours before now whose requests are replayed.", min=0.01
        ),
    ] = 24,
    rehearsal: Annotated[
        bool,
        typer.Option(
            "--rehearsal/--no-rehearsal",
            help="Test and replay the changed rulesets, and list the routes that these rulesets leave open.",
        ),
    ] = True,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Apply a directory of files to the control plane: make all changes or none.

    Exit 1 if the changes are refused, for example if a file is not valid or a test case of a ruleset fails.
    """
    from controlplane.operations import config

    cli, wanted = _cli(ctx), read_directory(directory)
    with cli.missing_store_as_empty():
        planned = _call(cli, config.plan, config.PlanConfig(_without_documents(wanted), prune))
        if expect is not None and expect != planned.digest:
            raise CommandFailed(
                FAILED,
                f"the digest of the plan is {planned.digest}, but {expect} was expected: "
                "read the new plan with --plan, then give its digest with --expect",
            )
        rehearsed = _rehearsed(cli, directory, wanted, planned, hours) if rehearsal else ()
    if plan:
        if json:
            print_json({**facts_of(planned), "rehearsal": [facts_of(each) for each in rehearsed]})
        else:
            _print_plan(planned, rehearsed)
    elif not json:
        _print_plan(planned, rehearsed)
    _require_passed(rehearsed)
    if planned.refused:
        sys.stdout.flush()
        raise CommandFailed(FAILED, "the control plane would refuse these changes:", *planned.refused)
    if plan:
        raise typer.Exit(CHANGES if planned.changes else 0)
    secrets = SecretFiles(secrets_to, planned.changes)
    secrets.require_place()
    if not planned.changes:
        _print_applied(config.AppliedConfig(planned.digest, (), (), (), ()), WrittenSecrets(), as_json=json)
        return
    _require_consent(planned, yes=yes or expect is not None)
    asked = config.ApplyConfig(_with_documents(wanted, planned), prune, planned.digest, note)
    made = _call(cli, config.apply, asked)
    kept = secrets.write(made)
    _print_applied(made, kept, as_json=json)
    _require_kept(kept)


def _require_consent(planned: ConfigPlan, *, yes: bool) -> None:
    """Ask for consent to a plan on a terminal.

    Raise CommandFailed if the plan deletes anything, `yes` is False, and the input is not a terminal.
    """
    deleted = sum(each.action == "delete" for each in planned.changes)
    if deleted and not yes and not sys.stdin.isatty():
        raise CommandFailed(
            FAILED,
            f"the plan deletes {counted(deleted, 'thing')}, and there is no terminal to ask for consent: "
            "give --yes, or --expect DIGEST",
        )
    confirm("Apply these changes?", yes=yes)


def _cli(ctx: typer.Context) -> Cli:
    cli: Cli = ctx.obj
    if not cli.has_store:
        raise CommandFailed(FAILED, "Missing option '--config', or '--url'.")
    return cli


def _call(cli: Cli, operation: Operation[Q, A], asked: Q) -> A:
    """Call an operation of the control plane.

    Exit with code 1 after a failure, because code 2 means a plan with changes.
    """
    try:
        return cli.call(operation, asked)
    except CommandFailed as failed:
        raise CommandFailed(FAILED, *failed.lines) from None


def _without_documents(wanted: Wanted) -> Wanted:
    return _documents(wanted, set())


def _with_documents(wanted: Wanted, planned: ConfigPlan) -> Wanted:
    """Keep only the documents of schemas that change, because a document can have several megabytes."""
    return _documents(wanted, {(each.org, each.name) for each in planned.changes if each.kind == "schema"})


def _documents(wanted: Wanted, kept: set[tuple[str | None, str]]) -> Wanted:
    def schema_of(org: WantedOrg, schema: WantedSchema) -> WantedSchema:
        if (org.name, schema.root) in kept:
            return schema
        return msgspec.structs.replace(schema, document=None)

    def org_of(org: WantedOrg) -> WantedOrg:
        if org.schemas is None:
            return org
        return msgspec.structs.replace(org, schemas=tuple(schema_of(org, each) for each in org.schemas))

    return msgspec.structs.replace(wanted, organisations=tuple(map(org_of, wanted.organisations)))


def _rehearsed(
    cli: Cli, directory: Path, wanted: Wanted, planned: ConfigPlan, hours: float
) -> tuple[Rehearsed, ...]:
    from controlplane.cli.rehearsal import rehearse

    return tuple(rehearse(cli, directory, wanted, planned.changes, hours))


def _require_passed(rehearsed: tuple[Rehearsed, ...]) -> None:
    failed = [f"{each.org}/{each.ruleset}" for each in rehearsed if each.failed]
    if failed:
        raise CommandFailed(FAILED, f"nothing was applied, because a test case fails: {', '.join(failed)}")


def _print_plan(planned: ConfigPlan, rehearsed: tuple[Rehearsed, ...]) -> None:
    from controlplane.as_code.plan_text import Key, plan_lines, summary

    further: dict[Key, list[str]] = {
        ("ruleset", each.org, each.ruleset): list(each.lines) for each in rehearsed
    }
    for last in planned.last_changes:
        said = f"last changed {last.time} by {last.operator} ({last.operation})"
        further.setdefault((last.kind, last.org, last.name), []).append(said)
    lines = [*plan_lines(planned.changes, planned.unmanaged, further), summary(planned.changes)]
    if planned.changes:
        lines.append(f"Digest: {planned.digest}")
    print_text("\n".join(lines))
    sys.stdout.flush()


def _print_applied(made: AppliedConfig, kept: WrittenSecrets, *, as_json: bool) -> None:
    """Print the changes that were made, without secrets, because a pipeline may log the output."""
    if as_json:
        facts = {name: each for name, each in facts_of(made).items() if name not in ("apps", "proxies")}
        files, lost = map(facts_of, kept.files), map(facts_of, kept.lost)
        print_json({**facts, "secretFiles": list(files), "secretsLost": list(lost)})
        return
    waiting = sum(not each.is_in_force for each in made.changes)
    if waiting and waiting == len(made.changes):
        print_text(f"Nothing is active yet: {_waiting(waiting)}.")
    elif made.changes:
        print_text(f"Applied, but {_waiting(waiting)}." if waiting else "Applied.")
    for each in made.proposals:
        print_text(f"Proposed {each.name} in {each.org}. To approve it: ruleset approve {each.proposal}")
    for file in kept.files:
        print_text(f"Wrote {file.file} for {_thing(file.kind, file.org, file.name)}")


def _waiting(number: int) -> str:
    return f"{counted(number, 'change')} {'waits' if number == 1 else 'wait'} for a second person"


def _require_kept(kept: WrittenSecrets) -> None:
    """Raise CommandFailed if a secret could not be written.

    For each lost secret, the error names the command that makes a new secret.
    """
    if kept.lost:
        sys.stdout.flush()
        lost = (
            f"{_thing(each.kind, each.org, each.name)}: was made, but its secret could not be written; "
            "make another secret:"
            f" {each.command}"
            for each in kept.lost
        )
        raise CommandFailed(FAILED, kept.lost[0].why, *lost)


def _thing(kind: Kind, org: str | None, name: str) -> str:
    return f"{kind} {name}" if org is None else f"{kind} {name} of organisation {org}"


@app.command()
def export(
    ctx: typer.Context,
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Directory to create.")],
    org: AnyOrg = None,
    json: Json = False,
) -> None:
    """Write the state of the control plane to a new directory, in the form that `apply` reads.

    The exported files contain no secrets and no schemas.
    """
    from controlplane.operations import config

    exported = _call(_cli(ctx), config.export, config.ExportConfig(org))
    files = [str(each) for each in write_directory(directory, exported.config)]
    if json:
        print_json({"files": files})
        return
    for file in files:
        print_text(f"Wrote {file}")
    print_text(f"Next: apply {directory} --plan")
