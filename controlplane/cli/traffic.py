"""Commands `ruleset replay` and `ruleset suggest`, for stored events or a HAR file."""

from __future__ import annotations

import sys
import time as clock
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from controlplane.cli.context import Cli, Json, facts_of, print_json
from controlplane.cli.dry_runs import RulesetSource, complaining, ruleset_text, source_of
from controlplane.cli.failure import FAILED, INVALID_INPUT, CommandFailed, given
from controlplane.cli.given_schemas import Root, Schema, given_schemas
from controlplane.cli.ruleset import parsed
from proxy.wire.figures import counted

if TYPE_CHECKING:
    from controlplane.operations.replays import (
        ChangeFacts,
        OutcomeFacts,
        Replayed,
        ReplayRuleset,
        SampleFacts,
    )
    from controlplane.operations.suggestions import Suggested
    from controlplane.workshop.har import Har
    from controlplane.workshop.har_traffic import Foreseen
    from proxy.policy.ruleset import Ruleset
    from proxy.policy.schemas import Schemas

app = typer.Typer()

_TIME_HELP = "an RFC 3339 time, a date, or a time before now such as -15m, -2h or -7d."
_AT_ONCE = 50_000  # events between two progress reports
_MAX_BODY = 400  # characters of a body to show

_Org = Annotated[
    str | None,
    typer.Option("--org", metavar="ORG", help="Organisation whose events are used, by ID or name."),
]
_Hours = Annotated[
    float | None,
    typer.Option("--hours", metavar="N", help="Number of hours before now whose events are used (24)."),
]
_From = Annotated[
    str | None, typer.Option("--from", metavar="T", help=f"Only events of this time or later: {_TIME_HELP}")
]
_To = Annotated[
    str | None, typer.Option("--to", metavar="T", help=f"Only events before this time: {_TIME_HELP}")
]
_Har = Annotated[
    Path | None,
    typer.Option(
        "--har",
        metavar="FILE",
        help="Use the requests of a HAR file instead of events. The file is not sent anywhere.",
    ),
]
_Base = Annotated[
    list[str] | None,
    typer.Option(
        "--base",
        metavar="URL",
        help="Address of the graph API in the HAR file (https://graph.microsoft.com). For several"
        " addresses, repeat --base.",
    ),
]


class Against(StrEnum):
    RECORDED = "recorded"
    ACTIVE = "active"


@app.command()
def replay(
    ctx: typer.Context,
    source: RulesetSource,
    org: _Org = None,
    application: Annotated[
        str | None,
        typer.Option(
            "--app",
            metavar="APP",
            help=(
                "Replay only events of this app. By default, the command replays the events of all apps "
                "whose ruleset has the name of the draft."
            ),
        ),
    ] = None,
    every_app: Annotated[
        bool,
        typer.Option("--every-app", help="Replay events of every app, even if the app uses another ruleset."),
    ] = False,
    hours: _Hours = None,
    from_: _From = None,
    to: _To = None,
    filter_: Annotated[
        str,
        typer.Option(
            "--filter", metavar="FILTER", help="Only events that match this filter, as in `audit search`."
        ),
    ] = "",
    against: Annotated[
        Against,
        typer.Option(
            "--against", help="Verdicts to compare with: the recorded ones, or those of the active version."
        ),
    ] = Against.RECORDED,
    har: _Har = None,
    base: _Base = None,
    schema: Schema = None,
    root: Root = "/v1.0",
    json: Json = False,
) -> None:
    """Replay stored events against a draft ruleset, and list changed verdicts by rule and application."""
    cli: Cli = ctx.obj
    if har is not None:
        if application or every_app or hours or from_ or to or filter_:
            raise CommandFailed(
                INVALID_INPUT, "--har: excludes options for the time, the application and the filter"
            )
        rules = _rules(cli, source, org, schema, root)
        _replay_file(rules, har, base or (), as_json=json)
        return
    if org is None:
        raise CommandFailed(INVALID_INPUT, "Missing option '--org', or '--har' for a file.")
    from controlplane.operations.replays import ReplayRuleset

    asked = ReplayRuleset(
        source=source_of(cli, source),
        org=org,
        app=application,
        every_app=every_app,
        hours=hours,
        from_=from_,
        to=to,
        filter=filter_,
        against=against.value,
        limit=_AT_ONCE,
    )
    begun = clock.monotonic()
    report, interrupted = replayed(cli, asked)
    if json:
        print_json(report)
    else:
        _print(_describe_replay(report, clock.monotonic() - begun))
    if interrupted:
        raise CommandFailed(FAILED, f"interrupted after {report.looked_at:,} events were examined")


def replayed(cli: Cli, asked: ReplayRuleset) -> tuple[Replayed, bool]:
    """Replay all events that the request selects, in several calls that take some seconds each.

    If the operator interrupts the command, return the counts up to the interruption.
    """
    from controlplane.operations.replays import replay as operation
    from controlplane.operations.replays import together

    with _Progress() as progress:
        report = cli.call(operation, asked)
        try:
            while report.next is not None:
                progress.show(report.looked_at, report.expected)
                asked = msgspec.structs.replace(asked, cursor=report.next)
                report = together(report, cli.call(operation, asked))
        except KeyboardInterrupt:
            return report, True
    return report, False


class _Progress:
    """Progress line that is removed from the terminal when the replay ends."""

    def __init__(self) -> None:
        self._shown = False
        self._begun = clock.monotonic()

    def __enter__(self) -> _Progress:
        return self

    def show(self, done: int, expected: int | None) -> None:
        if not sys.stderr.isatty():
            return
        rate = done / max(clock.monotonic() - self._begun, 0.001)
        of = f" of about {expected:,}" if expected is not None and expected > done else ""
        sys.stderr.write(f"\r\x1b[K{done:,}{of} events, {rate:,.0f} a second")
        sys.stderr.flush()
        self._shown = True

    def __exit__(self, *_: object) -> None:
        if self._shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


@app.command()
def suggest(
    ctx: typer.Context,
    application: Annotated[
        str | None, typer.Option("--app", metavar="APP", help="App whose events are used.")
    ] = None,
    org: _Org = None,
    hours: _Hours = None,
    from_: _From = None,
    to: _To = None,
    name: Annotated[
        str | None,
        typer.Option("--name", metavar="NEW", help="Name of the new ruleset (the name of the app)."),
    ] = None,
    include_blocked: Annotated[
        bool,
        typer.Option("--include-blocked", help="Suggest rules also for requests that the proxy blocked."),
    ] = False,
    har: _Har = None,
    base: _Base = None,
    json: Json = False,
) -> None:
    """Suggest the smallest ruleset that would have allowed an app's requests, with evidence for each rule."""
    from controlplane.operations.suggestions import SuggestRuleset, suggest_ruleset

    cli: Cli = ctx.obj
    if har is not None:
        if application or org or hours or from_ or to or include_blocked:
            raise CommandFailed(
                INVALID_INPUT, "--har: excludes options for the time, the application and the organisation"
            )
        _suggest_by(har, base or (), name, as_json=json)
        return
    if application is None or org is None:
        missing = "--app" if application is None else "--org"
        raise CommandFailed(INVALID_INPUT, f"Missing option '{missing}', or '--har' for a file.")
    asked = SuggestRuleset(
        org=org,
        app=application,
        name=name,
        hours=hours,
        from_=from_,
        to=to,
        include_blocked=include_blocked,
    )
    _print_suggestion(cli.call(suggest_ruleset, asked), as_json=json)


def _print_suggestion(found: Suggested, *, as_json: bool) -> None:
    """Print only the suggested ruleset on standard output, so that the output can be redirected to a file."""
    if as_json:
        print_json(facts_of(found))
        return
    _print(found.yaml.splitlines())
    for note in found.notes:
        typer.echo(_shown(note), err=True)
    if not found.complete:
        typer.echo("only the newest events of the period were examined: give a shorter period", err=True)


# -- HAR files are read on this host and never sent anywhere, because they contain credentials


def _rules(cli: Cli, source: str, org: str | None, schema: Path | None, root: str) -> tuple[Ruleset, Schemas]:
    label, text = ruleset_text(cli, source, org)
    ruleset = parsed(label, text)
    return ruleset, given_schemas(label, text, ruleset, schema, root)


def _replay_file(rules: tuple[Ruleset, Schemas], file: Path, bases: Sequence[str], *, as_json: bool) -> None:
    from controlplane.workshop.har_traffic import by_outcome, foresee

    ruleset, schemas = rules
    har = _read_har(file, bases)
    ranked = by_outcome(foresee(ruleset, har.exchanges, schemas))
    if as_json:
        print_json(
            {
                "requests": len(har.exchanges),
                "elsewhere": har.elsewhere,
                "preflights": har.preflights,
                **_remark_facts(har),
                "groups": [_foreseen_facts(group) for group in ranked],
            }
        )
    else:
        _print(_describe_foreseen(har, ranked))


def _read_har(file: Path, bases: Sequence[str]) -> Har:
    from controlplane.workshop.har import parse_har
    from controlplane.workshop.har_text import InvalidHar

    try:
        return parse_har(given(file, bytes), *bases)
    except InvalidHar as error:
        raise CommandFailed(INVALID_INPUT, f"{file}: {error}") from None


def _remark_facts(har: Har) -> dict[str, object]:
    """Return the omitted HAR entries and the unknown facts of the other entries, as JSON fields."""
    return {
        name: [{"what": one.what, "count": one.count, "entries": one.entries} for one in remarks]
        for name, remarks in (("leftOut", har.left_out), ("unknown", har.unknown))
    }


def _suggest_by(file: Path, bases: Sequence[str], name: str | None, *, as_json: bool) -> None:
    from controlplane.operations.har_files import suggestion_from
    from controlplane.operations.suggestions import suggested_facts
    from controlplane.workshop.har import remark_lines

    har = _read_har(file, bases)
    with complaining():
        made = suggestion_from(har, file.stem if name is None else name, f"the application in {file.name}")
    found = made.suggestion
    if as_json:
        print_json(
            {
                "yaml": found.yaml,
                "from": made.first,
                "to": made.last,
                "rules": [facts_of(rule) for rule in suggested_facts(found)],
                "requests": found.requests - found.left_out,
                "blocked": 0,
                "leftOut": found.left_out,
                "complete": True,
                "file": {"elsewhere": har.elsewhere, "preflights": har.preflights, **_remark_facts(har)},
            }
        )
        return
    _print(found.yaml.splitlines())
    for line in remark_lines(har):
        typer.echo(_shown(line), err=True)


def _foreseen_facts(group: list[Foreseen]) -> dict[str, object]:
    from controlplane.operations.replays import outcome_facts

    return {
        "after": [outcome_facts(one) for one in group[0].possible],
        "missing": group[0].missing,
        "count": len(group),
        "requests": [
            {
                "entry": one.exchange.number,
                "part": one.exchange.part or None,
                "method": one.exchange.method,
                "target": one.target,
                "status": None if one.exchange.response is None else one.exchange.response.status,
                "unknown": sorted(one.exchange.unknown - {"ip"}),
                "removed": one.removed,
                "body": None if one.body is None else one.body.decode("utf-8", "replace"),
            }
            for one in group
        ],
    }


_FEW = 5  # requests of a group to show


def _describe_foreseen(har: Har, groups: list[list[Foreseen]]) -> Iterator[str]:
    from controlplane.operations.replays import outcome_facts
    from controlplane.workshop.har import remark_lines

    passed_over = f", {har.elsewhere:,} to addresses outside the graph API omitted" if har.elsewhere else ""
    yield f"{counted(len(har.exchanges), 'request')}{passed_over}"
    yield from remark_lines(har)
    for group in groups:
        first = group[0]
        yield ""
        yield f"{len(group):,} {' or '.join(_describe_outcome(outcome_facts(one)) for one in first.possible)}"
        if first.missing:
            yield f"  depends on {', '.join(first.missing)}"
        for one in group[:_FEW]:
            yield f"  {one.exchange.method} {one.target}"
            if one.removed:
                yield f"    without {', '.join(one.removed)}"
                yield f"    {_cut((one.body or b'').decode('utf-8', 'replace'))}"
        if len(group) > _FEW:
            yield f"  and {len(group) - _FEW:,} more"


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_BODY else text[:_MAX_BODY] + "…"


# -- Text of a replay

_TITLES = {
    "newlyBlocked": "would be blocked",
    "unclear": "unclear: the verdict depends on facts that are not stored",
    "newlyAllowed": "would be allowed",
    "transforms": "would be filtered differently",
    "recordedAs": "would be recorded differently",
}


def _describe_replay(report: Replayed, seconds: float) -> Iterator[str]:
    of = ", ".join(report.apps) or "every application"
    yield f"{report.from_} to {report.to}, {of}: {counted(report.events, 'event')}, {seconds:.1f} s"
    width = max(
        len(f"{count:,}") for count in (report.unchanged, report.changed, report.unclear, report.unasked)
    )
    by_another = f", {report.by_another_rule:,} of them by another rule" if report.by_another_rule else ""
    yield f"  {report.unchanged:{width},} unchanged{by_another}"
    compared = " against the active version" if report.against == "active" else ""
    yield f"  {report.changed:{width},} would change{compared}"
    if report.unclear:
        yield f"  {report.unclear:{width},} unclear"
    if report.unasked:
        yield f"  {report.unasked:{width},} reached no rule: token requests, or refused before the rules"
    for ended in report.ended:
        yield f"  rule `{ended.rule_id}` ended at {ended.until}: it matches no later event"
    yield from report.notes
    for change, title in _TITLES.items():
        groups = [group for group in report.groups if group.change == change]
        if groups:
            yield ""
            yield title
        for group in groups:
            yield from _describe_change(group)
    if report.ungrouped:
        yield ""
        yield f"and {report.ungrouped:,} more, in too many groups to list"


def _describe_change(group: ChangeFacts) -> Iterator[str]:
    who = group.app or group.app_id or "no application"
    after = " or ".join(_describe_outcome(one) for one in group.after) or "unknown"
    yield f"  {group.count:,} of {who}: {_describe_outcome(group.before)} → {after}"
    if group.change == "transforms":
        yield from _describe_transforms(group.before, group.after[0])
    if group.gap:
        yield f"    {group.gap}"
    if group.add:
        yield f"    to allow the request, add  {group.add}"
    if group.missing:
        yield f"    depends on {', '.join(group.missing)}"
    yield from map(_describe_sample, group.samples)


def _describe_sample(sample: SampleFacts) -> str:
    return f"    {sample.time}  {sample.method} {_cut(sample.target)}"


def _describe_transforms(before: OutcomeFacts, after: OutcomeFacts) -> Iterator[str]:
    from proxy.policy.transforms import parse_names

    if before.transforms is None or after.transforms is None:
        return
    first, second = parse_names(before.transforms), parse_names(after.transforms)
    also = sorted({*second.stripped} - {*first.stripped})
    no_more = sorted({*first.stripped} - {*second.stripped})
    if also:
        yield f"    also removes       {', '.join(also)}"
    if no_more:
        yield f"    no longer removes  {', '.join(no_more)}"
    if first.allowed != second.allowed:
        yield f"    keeps only         {_kept(second.allowed)} (before: {_kept(first.allowed)})"
    if first.kept != second.kept:
        yield f"    items with         {_items(second.kept)} (before: {_items(first.kept)})"


def _kept(allowed: tuple[str, ...] | None) -> str:
    return "everything" if allowed is None else ", ".join(allowed) or "nothing"


def _items(conditions: tuple[str, ...]) -> str:
    return " and ".join(conditions) or "any properties"


_DONE = {
    "allow": "allowed",
    "filter": "filtered",
    "block": "blocked",
    "log_only": "logged",
    "refused": "refused",
}


def _describe_outcome(outcome: OutcomeFacts) -> str:
    reason = "as" if outcome.verdict == "refused" else "by"
    return f"{_DONE.get(outcome.verdict, outcome.verdict)} {reason} {outcome.by}"


def _print(lines: Iterable[str]) -> None:
    sys.stdout.writelines(f"{_shown(line)}\n" for line in lines)


def _shown(line: str) -> str:
    from proxy.wire.log_line import one_line

    return one_line(line)
