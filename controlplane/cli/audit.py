"""Commands of `audit`: search, count, show, follow and export audit events."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from controlplane.cli.context import (
    AnyOrg,
    Cli,
    Json,
    NoTrunc,
    Wide,
    leave_standard_output,
    org_names,
    print_facts,
    print_json,
    print_list,
    write_json,
)
from controlplane.cli.failure import FAILED, INVALID_INPUT, CommandFailed, named_as_options
from controlplane.cli.layouts import Column, Fit, Layout, fit_of
from controlplane.cli.output_file import written
from proxy.wire.figures import number

if TYPE_CHECKING:
    from controlplane.operations.audit import EventPage, SearchEvents
    from controlplane.operations.event_details import EventDetails

app = typer.Typer()

_MAX_LIMIT: Final = 1000
# Members of an event, with the columns that show them.
_COLUMNS: Final = {
    "time": "time", "verdict": "verdict", "status": "status", "method": "method", "path": "path",
    "appId": "app", "ruleId": "rule", "reason": "reason", "clientIp": "ip", "durationMs": "ms",
    "orgId": "org", "id": "id",
}  # fmt: skip
EVENTS: Final = Layout(
    "events",
    (
        Column("time", "moment"),
        Column("verdict"),
        Column("status"),
        Column("method"),
        Column("path", "path"),
        Column("app"),
        Column("rule"),
        Column("reason"),
        Column("ip"),
        Column("ms", "number", "Took (ms)"),
        Column("org", title="Organisation"),
        Column("id", "id", "Event ID"),
    ),
    leads=("time", "verdict", "status", "method", "path"),
    drops=("ip", "ms", "reason", "org", "rule", "method"),
)
# Columns for events that have the same ID, from which the operator chooses one.
CANDIDATES: Final = Layout(
    "events",
    (Column("id", title="Event ID"), *(each for each in EVENTS.columns if each.name != "id")),
    leads=("id", *EVENTS.leads),
    drops=EVENTS.drops,
)
FACETS: Final = Layout(
    "events",
    (Column("field"), Column("value"), Column("events", "number")),
    leads=("field", "events", "value"),
)
_BAR: Final = 40  # width of a bar, in characters
HISTOGRAM: Final = Layout(
    "events",
    (Column("from", "time"), Column("events", "number"), Column("", title="")),
    leads=("from", "events"),
    drops=("",),
)
_TIME_HELP: Final = "an RFC 3339 time, a date, or a time before now such as -15m, -2h or -7d."
# Option or argument of the command line for each member of a request.
_OPTIONS: Final = {
    "filter": "FILTER", "from": "--from", "to": "--to", "cursor": "--cursor", "fields": "--field",
    "after": "--after",
}  # fmt: skip
_AGAIN_AFTER_SECONDS: Final = 2.0

_Filter = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[FILTER]", help="Filter, such as: verdict:block path:/v1.0/users/* -rule:r7 status:>=400"
    ),
]
_From = Annotated[
    str | None, typer.Option("--from", metavar="T", help=f"Only events of this time or later: {_TIME_HELP}")
]
_To = Annotated[
    str | None, typer.Option("--to", metavar="T", help=f"Only events before this time: {_TIME_HELP}")
]
# A filter may begin with "-", and may come as one argument or as several.
_FILTERED: Final = {"ignore_unknown_options": True}


@app.callback()
def audit() -> None:
    """Search, count, show and export audit events, and verify that they are unchanged."""


@app.command(context_settings=_FILTERED)
def search(
    ctx: typer.Context,
    filter_: _Filter = None,
    org: AnyOrg = None,
    from_: _From = None,
    to: _To = None,
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", min=1, max=_MAX_LIMIT, help="Events per page (1 to 1000).")
    ] = 100,
    cursor: Annotated[
        str | None, typer.Option("--cursor", metavar="C", help="Cursor that the previous page printed.")
    ] = None,
    wide: Wide = False,
    no_trunc: NoTrunc = False,
    json: Json = False,
) -> None:
    """Find audit events by a filter or by an ID of a request, newest events first."""
    from controlplane.operations import audit as operations

    cli: Cli = ctx.obj
    asked = operations.SearchEvents(_joined(filter_), org, from_, to, limit, cursor)
    with named_as_options(_OPTIONS):
        page = _page_by_id(cli, asked) or cli.call(operations.search, asked)
    if json:
        _print_page(page)
        _print_notes(page.doubts)
        return
    _print_table(page, _names(cli), fit_of(wide, no_trunc))
    _print_notes((*page.notes, *_notes_on_name(cli, org)))


@app.command()
def held(ctx: typer.Context, org: AnyOrg = None, json: Json = False) -> None:
    """Show the period of the stored events, and which events were purged or never arrived."""
    from controlplane.operations import audit as operations
    from proxy.wire.log_line import one_line

    cli: Cli = ctx.obj
    found = cli.call(operations.what_is_held, operations.WhatIsHeld(org))
    if json:
        print_json(found)
    else:
        sys.stdout.write("".join(f"{one_line(note)}\n" for note in found.notes))


@app.command(context_settings=_FILTERED)
def facets(
    ctx: typer.Context,
    filter_: _Filter = None,
    org: AnyOrg = None,
    from_: _From = None,
    to: _To = None,
    field: Annotated[
        list[str] | None,
        typer.Option(
            "--field",
            metavar="NAME",
            help="Event field whose values are counted, with the name that filters use. Give the option once"
            " for each field.",
        ),
    ] = None,
    top: Annotated[int, typer.Option("--top", metavar="N", min=1, max=100, help="Values per field.")] = 10,
    wide: Wide = False,
    no_trunc: NoTrunc = False,
    json: Json = False,
) -> None:
    """Count the most frequent values of some fields of the audit events."""
    from controlplane.operations import event_counts as operations

    cli: Cli = ctx.obj
    fields = tuple(field) if field else operations.DEFAULT_FACETS
    asked = operations.CountValues(_joined(filter_), org, from_, to, fields, top)
    with named_as_options(_OPTIONS):
        found = cli.call(operations.facets, asked)
    if json:
        print_json(found)
        return
    rows = [
        {"field": facet.field, "value": each.name or each.value, "events": each.count}
        for facet in found.facets
        for each in facet.values
    ]
    print_list(FACETS, rows, as_json=False, fit=fit_of(wide, no_trunc))
    _print_notes(found.notes)
    if not found.complete:
        sys.stdout.write(f"Only the newest {number(found.counted)} events were counted. There are more.\n")


@app.command(context_settings=_FILTERED)
def histogram(
    ctx: typer.Context,
    filter_: _Filter = None,
    org: AnyOrg = None,
    from_: _From = None,
    to: _To = None,
    wide: Wide = False,
    no_trunc: NoTrunc = False,
    json: Json = False,
) -> None:
    """Count the audit events in each interval of a period."""
    from controlplane.operations import event_counts as operations

    cli: Cli = ctx.obj
    with named_as_options(_OPTIONS):
        found = cli.call(operations.histogram, operations.CountTimes(_joined(filter_), org, from_, to))
    if json:
        print_json(found)
        return
    most = max((bucket.count for bucket in found.buckets), default=1)
    rows = [
        {"from": bucket.start, "events": bucket.count, "": "█" * max(1, bucket.count * _BAR // most)}
        for bucket in found.buckets
    ]
    print_list(HISTOGRAM, rows, as_json=False, fit=fit_of(wide, no_trunc))
    _print_notes(found.notes)
    if not found.complete:
        sys.stdout.write("Only the newest events were counted. There are more.\n")


@app.command()
def event(
    ctx: typer.Context,
    given_id: Annotated[
        str,
        typer.Argument(
            metavar="ID",
            help="Event ID, request ID of the proxy, client or upstream, or a text that contains one.",
        ),
    ],
    org: AnyOrg = None,
    json: Json = False,
) -> None:
    """Show one audit event with all its fields."""
    import orjson

    cli: Cli = ctx.obj
    found = _event(cli, given_id, org)
    if json:
        print_json(found)
        return
    known = orjson.loads(bytes(found.event))
    ruleset = found.ruleset
    summary = {
        "time": known.get("time"),
        "verdict": known.get("verdict"),
        "why": found.credential_problem or found.reason,
        "app": found.app_name,
        "ruleset": None if ruleset is None else f"{ruleset.name}@{ruleset.version}",
        "organisation": found.org_name,
        "proxy": found.proxy_name,
    }
    others = {name: value for name, value in known.items() if value not in (None, []) and name not in summary}
    print_facts(summary | others, as_json=False)


@app.command(context_settings=_FILTERED)
def export(
    ctx: typer.Context,
    filter_: _Filter = None,
    org: AnyOrg = None,
    from_: _From = None,
    to: _To = None,
    format_: Annotated[
        Literal["csv", "ndjson"],
        typer.Option("--format", help="Format: ndjson (one JSON object per line) or csv (a table)."),
    ] = "ndjson",
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", metavar="FILE", help="File for the exported events (by default, standard output)."
        ),
    ] = None,
    manifest: Annotated[
        Path | None,
        typer.Option(
            "--manifest",
            metavar="FILE",
            help="File for the signed manifest: filter, time, chain heads, digest of the export.",
        ),
    ] = None,
) -> None:
    """Export all audit events that match a filter, newest events first."""
    from controlplane.operations.audit import SearchEvents, search
    from controlplane.operations.event_export import ExportEvents
    from controlplane.operations.event_export import export as export_events

    cli: Cli = ctx.obj
    asked = ExportEvents(_joined(filter_), org, from_, to, format_, manifest is not None)
    with (
        named_as_options(_OPTIONS),
        _without_manifest(manifest) as split,
        contextlib.nullcontext(_write) if output is None else written(output) as write_data,
        _counted() as count,
    ):
        write = split(write_data)
        lines = 0

        def take(piece: bytes) -> None:
            nonlocal lines
            lines += piece.count(b"\n")
            write(piece)
            count(piece)

        cli.stream(export_events, asked, take)
    if lines <= (format_ == "csv"):  # only the header line
        found = cli.call(search, SearchEvents(_joined(filter_), org, from_, to, 1))
        _print_notes(("no event matches", *found.notes))


@app.command(context_settings=_FILTERED)
def tail(
    ctx: typer.Context,
    filter_: _Filter = None,
    org: AnyOrg = None,
    json: Json = False,
) -> None:
    """Print new audit events when they are stored, until Ctrl-C."""
    from controlplane.operations import event_tail as operations
    from proxy.wire.log_line import one_line

    cli: Cli = ctx.obj
    text, names = _joined(filter_), {} if json else _names(cli)
    reader = _Events(lambda body: _print_line(body, names, as_json=json))
    with contextlib.suppress(KeyboardInterrupt, BrokenPipeError), named_as_options(_OPTIONS):
        report: tuple[str, ...] = ()
        while True:
            begun = reader.place
            asked = operations.TailEvents(text, org, reader.place)
            try:
                cli.stream(operations.tail, asked, reader.take)
            except CommandFailed as failed:
                # A failure of the first request is a mistake of the operator. Later, the server may only be
                # restarting.
                if begun is None:
                    raise
                if failed.lines != report:
                    report = failed.lines
                    sys.stderr.write("".join(f"{one_line(line)}; trying again\n" for line in report))
                time.sleep(_AGAIN_AFTER_SECONDS)


def _page_by_id(cli: Cli, asked: SearchEvents) -> EventPage | None:
    """Return the events with the IDs in the filter, if the filter has no other conditions.

    Return None if the filter also has conditions on other fields, or if no event has the given IDs.
    """
    from controlplane.operations.audit import EventPage
    from controlplane.operations.event_lookup import LookUpEvents, look_up
    from controlplane.search.given_ids import asks_for_ids

    if asked.from_ or asked.to or asked.cursor or not asks_for_ids(asked.filter):
        return None
    found = cli.call(look_up, LookUpEvents(asked.filter, asked.org))
    return EventPage(found.events[: asked.limit], None) if found.events else None


def _event(cli: Cli, given_id: str, org: str | None) -> EventDetails:
    """Return the audit event whose ID is on the command line.

    If several events have this ID, list them and raise CommandFailed.
    """
    import orjson

    from controlplane.operations.event_details import EventReference, event
    from controlplane.operations.event_lookup import LookUpEvents, look_up

    if org is not None:
        with contextlib.suppress(CommandFailed):  # The text may be an ID of the request and not of the event.
            return cli.call(event, EventReference(org, given_id))
    with named_as_options({"text": "ID"}):
        found = cli.call(look_up, LookUpEvents(given_id, org))
    if not found.events:
        raise CommandFailed(FAILED, *found.notes)
    ids = [orjson.loads(bytes(each))["id"] for each in found.events]
    if len(ids) > 1:
        names = _names(cli)
        rows = [event_cells(bytes(each), names) for each in found.events]
        print_list(CANDIDATES, rows, as_json=False)
        raise CommandFailed(
            FAILED, f"{len(ids)} audit events have this ID: give the event ID of one event in the list"
        )
    return cli.call(event, EventReference(found.org_ids[0], ids[0]))


def _joined(arguments: list[str] | None) -> str:
    for argument in arguments or ():
        if argument.startswith("--"):
            raise CommandFailed(INVALID_INPUT, f"No such option: {argument}")
    return " ".join(arguments or ())


def _notes_on_name(cli: Cli, org: str | None) -> Iterator[str]:
    """Yield a note for each deleted organisation that had the name of an existing organisation."""
    from controlplane.operations import deletions

    if org is None:
        return
    deleted = cli.call(deletions.list_all, deletions.ListDeletions()).deletions
    same = [each.label for each in deleted if (each.kind, each.name) == ("org", org)]
    if same and org in org_names(cli).values():
        for label in same:
            what = f"a deleted organisation also had the name {org}"
            yield f"{what}: --org {quote(label)} finds its events"


def _names(cli: Cli) -> dict[str, str]:
    from controlplane.operations import apps, deletions

    dead = {each.id: each.label for each in cli.call(deletions.list_all, deletions.ListDeletions()).deletions}
    living = {app.app_id: app.name for app in cli.call(apps.list_all, apps.ListApps()).apps}
    return dead | org_names(cli) | living


def _print_page(page: EventPage) -> None:
    """Print a page of events as JSON, with the bytes of each event as they arrived from the server."""
    import msgspec

    events = b", ".join(map(bytes, page.events))
    doubts = b', "notes": %b' % msgspec.json.encode(page.doubts) if page.doubts else b""
    write_json(b'{"events": [%b], "next": %b%b}' % (events, msgspec.json.encode(page.next), doubts))


def _print_notes(notes: Sequence[str]) -> None:
    """Print notes on standard error, so that they do not mix with the output for programs."""
    from proxy.wire.log_line import one_line

    for note in notes:
        typer.echo(one_line(note), err=True)


def _print_table(page: EventPage, names: dict[str, str], fit: Fit) -> None:
    print_list(EVENTS, [event_cells(bytes(body), names) for body in page.events], as_json=False, fit=fit)
    if page.next is not None:
        sys.stdout.write(f"more: --cursor {page.next}\n")


def event_cells(body: bytes, names: dict[str, str]) -> dict[str, Any]:
    """Return the cells of one audit event in a table of events."""
    import orjson

    made = orjson.loads(body)
    values = {title: made.get(key) for key, title in _COLUMNS.items()}
    if problem := made.get("credentialProblem"):
        values["reason"] = f"{values['reason']}: {problem}"
    return values | {title: names.get(str(values[title]), values[title]) for title in ("org", "app")}


# Responses that arrive in pieces


def _print_line(body: bytes, names: dict[str, str], *, as_json: bool) -> None:
    from proxy.wire.log_line import one_line

    if as_json:
        write_json(body)
    else:
        row = {
            name: value
            for name, value in event_cells(body, names).items()
            if value is not None and name != "id"
        }
        sys.stdout.write("  ".join(one_line(str(value)) for value in row.values()) + "\n")
    sys.stdout.flush()


class _Events:
    """Parser for server-sent events. The parser receives its input in pieces of any length."""

    def __init__(self, show: Callable[[bytes], None]) -> None:
        self._show = show
        self._left = b""
        self.place: str | None = None  # ID of the last complete event

    def take(self, piece: bytes) -> None:
        *blocks, self._left = (self._left + piece).split(b"\n\n")
        for block in blocks:
            fields = dict(line.split(b": ", 1) for line in block.split(b"\n") if b": " in line)
            if b"event" in fields:
                sys.stderr.write(f"{fields[b'data'].decode()}\n")
            elif b"data" in fields:
                self._show(fields[b"data"])
            if b"id" in fields:
                self.place = fields[b"id"].decode()


@contextlib.contextmanager
def _without_manifest(
    manifest: Path | None,
) -> Iterator[Callable[[Callable[[bytes], None]], Callable[[bytes], None]]]:
    """Separate the manifest, which is the last line of an export, and write it to its own file."""
    if manifest is None:
        yield lambda write: write
        return
    held = b""

    def split(write: Callable[[bytes], None]) -> Callable[[bytes], None]:
        def take(piece: bytes) -> None:
            nonlocal held
            held += piece
            end = held.rfind(b"\n", 0, len(held) - 1) + 1
            write(held[:end])
            held = held[end:]

        return take

    yield split
    with written(manifest) as write_manifest:
        write_manifest(held)


def _write(piece: bytes) -> None:
    if sys.stdout.isatty():
        from proxy.wire.log_line import escaped

        piece = b"\n".join(escaped(line).encode() for line in piece.decode().split("\n"))
    try:
        sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()
    except BrokenPipeError:  # The reader closed the pipe.
        leave_standard_output()
        raise CommandFailed(FAILED) from None


@contextlib.contextmanager
def _counted() -> Iterator[Callable[[bytes], None]]:
    """Show the progress of an export on a terminal."""
    if not sys.stderr.isatty():
        yield lambda piece: None
        return
    lines = 0

    def count(piece: bytes) -> None:
        nonlocal lines
        lines += piece.count(b"\n")
        sys.stderr.write(f"\r{lines} lines")
        sys.stderr.flush()

    try:
        yield count
    finally:
        sys.stderr.write("\r\x1b[K")
