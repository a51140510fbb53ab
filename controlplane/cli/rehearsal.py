"""Dry run of a configuration plan: test each changed ruleset before the plan is applied.

The dry run evaluates test cases and recorded requests with the ruleset. The dry run also lists the open
routes: paths, allowed by the ruleset, to data that one of its rules blocks or filters.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from controlplane.cli.context import Cli
from controlplane.cli.failure import CommandFailed, given
from proxy.config.given_text import text_of
from proxy.wire.figures import counted, number

if TYPE_CHECKING:
    from controlplane.as_code.plan import Change
    from controlplane.as_code.wanted import Wanted, WantedRuleset
    from controlplane.operations.dry_runs import Source
    from controlplane.operations.routes import FoundRoutes

_MOST_FAILURES: Final = 20  # lines of failed cases that a plan shows at most
_KINDS: Final = {
    "newlyBlocked": "newly blocked",
    "newlyAllowed": "newly allowed",
    "transforms": "with other transforms",
    "unclear": "unclear",
}


class Rehearsed(msgspec.Struct, rename="camel", frozen=True):
    """Findings of the dry run about one ruleset.

    `failed` is True if a test case has an unexpected verdict.
    """

    org: str
    ruleset: str
    lines: tuple[str, ...]
    failed: bool


def rehearse(
    cli: Cli, directory: Path, wanted: Wanted, changes: tuple[Change, ...], hours: float
) -> Iterator[Rehearsed]:
    """Test each ruleset that a plan adds or changes.

    If a ruleset cannot be tested, an output line gives the reason, but the dry run does not count this as a
    failure.
    """
    texts = {(org.name, each.name): each for org in wanted.organisations for each in org.rulesets or ()}
    new_orgs = {each.name for each in changes if (each.kind, each.action) == ("organisation", "add")}
    for change in changes:
        if change.kind != "ruleset" or change.action == "delete":
            continue
        org = change.org or ""
        ruleset, known_org = texts[org, change.name], None if org in new_orgs else org
        cases, failed = _cases(cli, directory, ruleset, known_org)
        lines = [*cases, *_routes(cli, ruleset, known_org, is_new=change.action == "add")]
        if change.action == "change" and known_org is not None:
            lines += _replay(cli, ruleset, known_org, hours)
        yield Rehearsed(org, change.name, tuple(lines), failed)


def _cases(cli: Cli, directory: Path, ruleset: WantedRuleset, org: str | None) -> tuple[list[str], bool]:
    from controlplane.operations.dry_runs import RunCases, Source
    from controlplane.operations.dry_runs import test as operation

    path = Path(ruleset.file)
    file = path.with_suffix(f".test{path.suffix}")
    if not (directory / file).is_file():
        return [], False
    source = Source(yaml=ruleset.yaml, label=ruleset.file)
    try:
        outcome = cli.call(operation, RunCases(source, given(directory / file, text_of), str(file), org))
    except CommandFailed as failed:
        return [f"test: {line}" for line in failed.lines], True
    lines = [f"test: {counted(outcome.cases, 'case')}, {number(outcome.failed_cases)} failed"]
    lines += (
        f"test: {file}:{each.line}:{each.column}: {each.where}: {each.message}"
        for each in outcome.failures[:_MOST_FAILURES]
    )
    return lines, outcome.failed_cases > 0


def _routes(cli: Cli, ruleset: WantedRuleset, org: str | None, *, is_new: bool) -> list[str]:
    from controlplane.operations.dry_runs import Source

    try:
        after = _counted(_found(cli, Source(yaml=ruleset.yaml, label=ruleset.file), org))
        before = {} if is_new else _counted(_found(cli, Source(ruleset=ruleset.name), org))
    except CommandFailed as failed:
        return [f"routes: not examined: {failed.lines[0]}"]
    lines = []
    for rule, said in after.items():
        if rule not in before:
            lines.append(f"routes: {rule} {said}")
        elif before[rule] != said:
            lines.append(f"routes: {rule} {said} (before: {before[rule]})")
    return lines + [
        f"routes: {rule} was removed (before: {said})" for rule, said in before.items() if rule not in after
    ]


def _found(cli: Cli, source: Source, org: str | None) -> FoundRoutes:
    from controlplane.operations.routes import ListRoutes, list_routes

    return cli.call(list_routes, ListRoutes(source, org))


def _counted(found: FoundRoutes) -> dict[str, str]:
    return {each.rule: each.counted for each in found.rules}


def _replay(cli: Cli, ruleset: WantedRuleset, org: str, hours: float) -> list[str]:
    from controlplane.cli.traffic import replayed
    from controlplane.operations.dry_runs import Source
    from controlplane.operations.replays import ReplayRuleset

    source = Source(yaml=ruleset.yaml, label=ruleset.file)
    try:
        report, _ = replayed(cli, ReplayRuleset(source=source, org=org, hours=hours, against="active"))
    except CommandFailed as failed:
        return [f"replay: not done: {failed.lines[0]}"]
    counts = dict.fromkeys(_KINDS, 0)
    for group in report.groups:
        if group.change in counts:
            counts[group.change] += group.count
    found = ", ".join(f"{number(count)} {_KINDS[kind]}" for kind, count in counts.items() if count)
    asked = f"{number(report.events)} requests of {hours:g} hours"
    return [f"replay: {asked}: {found or 'no verdict changes'}"]
