"""`audit`: find audit events, count them, look into one, follow them, take them away."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Final, Literal

import typer

from controlplane.cli.context import (
    AnyOrg,
    Cli,
    Json,
    OneOrg,
    leave_standard_output,
    org_names,
    print_facts,
    print_json,
    print_list,
    write_json,
)
from controlplane.cli.failure import FAILED, INVALID_INPUT, CommandFailed, named_as_options
from proxy.process.own_process import make_file

if TYPE_CHECKING:
    from controlplane.operations.audit import EventPage

app = typer.Typer()

_MAX_LIMIT: Final = 1000
_COLUMNS: Final = {
    "time": "time", "orgId": "org", "appId": "app", "clientIp": "ip", "method": "method", "path": "path",
    "status": "status", "verdict": "verdict", "ruleId": "rule", "reason": "reason", "durationMs": "ms",
}  # fmt: skip
_TIME_HELP: Final = "RFC 3339, a date, or -15m, -2h, -7d."
# What a member of a request is called on the command line.
_OPTIONS: Final = {
    "filter": "FILTER", "from": "--from", "to": "--to", "cursor": "--cursor", "fields": "--field",
    "after": "--after",
}  # fmt: skip
_BAR: Final = 40  # characters
_AGAIN_AFTER_SECONDS: Final = 2.0

_Filter = Annotated[
    list[str] | None,
    typer.Argument(metavar="[FILTER]", help="Like: verdict:block path:/v1.0/users/* -rule:r7 status:>=400"),
]
_From = Annotated[
    str | None, typer.Option("--from", metavar="T", help=f"Events of this time and later: {_TIME_HELP}")
]
_To = Annotated[str | None, typer.Option("--to", metavar="T", help=f"Events before this time: {_TIME_HELP}")]
# A filter may begin with "-", and may come as one argument or as several.
_FILTERED: Final = {"ignore_unknown_options": True}


@app.callback()
def audit() -> None:
    """Audit events."""


@app.command(context_settings=_FILTERED)
def search(
    ctx: typer.Context,
    filter_: _Filter = None,
    org: AnyOrg = None,
    from_: _From = None,
    to: _To = None,
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", min=1, max=_MAX_LIMIT, help="Events of one page.")
    ] = 100,
    cursor: Annotated[
        str | None, typer.Option("--cursor", metavar="C", help="`next` of the page before.")
    ] = None,
    json: Json = False,
) -> None:
    """Find audit events, newest first. Everything that was accepted before is found."""
    from controlplane.operations import audit as operations

    cli: Cli = ctx.obj
    asked = operations.SearchEvents(_joined(filter_), org, from_, to, limit, cursor)
    with named_as_options(_OPTIONS):
        page = cli.call(operations.search, asked)
    if json:
        _print_page(page)
    else:
        _print_table(page, _names(cli))
    _print_notes(page.notes)


@app.command(context_settings=_FILTERED)
def facets(
    ctx: typer.Context,
    filter_: _Filter = None,
    org: AnyOrg = None,
    from_: _From = None,
    to: _To = None,
    field: Annotated[
        list[str] | None,
        typer.Option("--field", metavar="NAME", help="A field of a filter; several are given one by one."),
    ] = None,
    top: Annotated[int, typer.Option("--top", metavar="N", min=1, max=100, help="Values of each.")] = 10,
    json: Json = False,
) -> None:
    """The most frequent values of some fields among the events."""
    from controlplane.operations import audit as operations

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
    print_list("events", rows, as_json=False)
    _print_notes(found.notes)
    if not found.complete:
        sys.stdout.write(f"of the newest {found.counted} events\n")


@app.command(context_settings=_FILTERED)
def histogram(
    ctx: typer.Context,
    filter_: _Filter = None,
    org: AnyOrg = None,
    from_: _From = None,
    to: _To = None,
    json: Json = False,
) -> None:
    """How many events there are in each interval of the time."""
    from controlplane.operations import audit as operations

    cli: Cli = ctx.obj
    with named_as_options(_OPTIONS):
        found = cli.call(operations.histogram, operations.Selection(_joined(filter_), org, from_, to))
    if json:
        print_json(found)
        return
    most = max((bucket.count for bucket in found.buckets), default=1)
    rows = [
        {"from": bucket.start, "events": bucket.count, "": "█" * max(1, bucket.count * _BAR // most)}
        for bucket in found.buckets
    ]
    print_list("events", rows, as_json=False)
    _print_notes(found.notes)
    if not found.complete:
        sys.stdout.write("of the newest events only: there are more\n")


@app.command()
def event(
    ctx: typer.Context,
    event_id: Annotated[str, typer.Argument(metavar="ID")],
    org: OneOrg,
    json: Json = False,
) -> None:
    """One audit event, with everything known about it."""
    import orjson

    from controlplane.operations import audit as operations

    cli: Cli = ctx.obj
    found = cli.call(operations.event, operations.EventReference(org, event_id))
    if json:
        print_json(found)
        return
    known = {
        name: value for name, value in orjson.loads(bytes(found.event)).items() if value not in (None, [])
    }
    ruleset = found.ruleset
    print_facts(
        known
        | {"why": found.reason, "org": found.org_name, "proxy": found.proxy_name, "app": found.app_name}
        | {"ruleset": None if ruleset is None else f"{ruleset.name}@{ruleset.version}"},
        as_json=False,
    )


@app.command(context_settings=_FILTERED)
def export(
    ctx: typer.Context,
    filter_: _Filter = None,
    org: AnyOrg = None,
    from_: _From = None,
    to: _To = None,
    format_: Annotated[
        Literal["csv", "ndjson"], typer.Option("--format", help="A line of JSON for each, or a table.")
    ] = "ndjson",
    output: Annotated[
        Path | None, typer.Option("--output", metavar="FILE", help="Instead of standard output.")
    ] = None,
) -> None:
    """All audit events that match, newest first."""
    from controlplane.operations import audit as operations

    cli: Cli = ctx.obj
    asked = operations.ExportEvents(_joined(filter_), org, from_, to, format_)
    with named_as_options(_OPTIONS), _written(output) as write, _counted() as count:
        lines = 0

        def take(piece: bytes) -> None:
            nonlocal lines
            lines += piece.count(b"\n")
            write(piece)
            count(piece)

        cli.stream(operations.export, asked, take)
    if lines <= (format_ == "csv"):  # the head alone
        found = cli.call(operations.search, operations.SearchEvents(_joined(filter_), org, from_, to, 1))
        _print_notes(("no event matches", *found.notes))


@app.command(context_settings=_FILTERED)
def tail(
    ctx: typer.Context,
    filter_: _Filter = None,
    org: AnyOrg = None,
    json: Json = False,
) -> None:
    """Print audit events as they are stored, until it is interrupted."""
    from controlplane.operations import audit as operations
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
                # The first time it is a mistake; later the server may be on its way back.
                if begun is None:
                    raise
                if failed.lines != report:
                    report = failed.lines
                    sys.stderr.write("".join(f"{one_line(line)}; trying again\n" for line in report))
                time.sleep(_AGAIN_AFTER_SECONDS)


def _joined(arguments: list[str] | None) -> str:
    for argument in arguments or ():
        if argument.startswith("--"):
            raise CommandFailed(INVALID_INPUT, f"No such option: {argument}")
    return " ".join(arguments or ())


def _names(cli: Cli) -> dict[str, str]:
    from controlplane.operations import apps

    return org_names(cli) | {app.app_id: app.name for app in cli.call(apps.list_all, apps.ListApps()).apps}


def _print_page(page: EventPage) -> None:
    """The events as they came, byte for byte."""
    import msgspec

    events = b", ".join(map(bytes, page.events))
    notes = b', "notes": %b' % msgspec.json.encode(page.notes) if page.notes else b""
    write_json(b'{"events": [%b], "next": %b%b}' % (events, msgspec.json.encode(page.next), notes))


def _print_notes(notes: Sequence[str]) -> None:
    """On standard error, so that what a program reads stays as it is."""
    from proxy.wire.log_line import one_line

    for note in notes:
        typer.echo(one_line(note), err=True)


def _print_table(page: EventPage, names: dict[str, str]) -> None:
    print_list("events", [_row(bytes(body), names) for body in page.events], as_json=False)
    if page.next is not None:
        sys.stdout.write(f"more: --cursor {page.next}\n")


def _row(body: bytes, names: dict[str, str]) -> dict[str, Any]:
    import orjson

    made = orjson.loads(body)
    values = {title: made.get(key) for key, title in _COLUMNS.items()}
    return values | {title: names.get(str(values[title]), values[title]) for title in ("org", "app")}


# What comes in pieces


def _print_line(body: bytes, names: dict[str, str], *, as_json: bool) -> None:
    from proxy.wire.log_line import one_line

    if as_json:
        write_json(body)
    else:
        row = {name: value for name, value in _row(body, names).items() if value is not None}
        sys.stdout.write("  ".join(one_line(str(value)) for value in row.values()) + "\n")
    sys.stdout.flush()


class _Events:
    """Server-sent events out of pieces that end anywhere."""

    def __init__(self, show: Callable[[bytes], None]) -> None:
        self._show = show
        self._left = b""
        self.place: str | None = None  # after the last event that came whole

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
def _written(output: Path | None) -> Iterator[Callable[[bytes], None]]:
    """To standard output, or to a file that is there once it is whole. A device or a pipe is written to, and
    never replaced; a link goes on leading where it led."""
    if output is None:
        yield _write
        return
    try:
        if output.exists() and not output.is_file():
            with output.open("wb") as file:
                yield partial(_write_to, file)
            return
        whole = output.resolve()
        part = whole.with_name(f"{whole.name}.part")
        try:
            part.unlink(missing_ok=True)
            with os.fdopen(make_file(part, os.O_WRONLY), "wb") as file:
                yield partial(_write_to, file)
            part.replace(whole)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise CommandFailed(FAILED, f"{output}: {error.strerror}") from None


def _write_to(file: BinaryIO, piece: bytes) -> None:
    file.write(piece)


def _write(piece: bytes) -> None:
    if sys.stdout.isatty():
        from proxy.wire.log_line import escaped

        piece = b"\n".join(escaped(line).encode() for line in piece.decode().split("\n"))
    try:
        sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()
    except BrokenPipeError:  # who reads has enough
        leave_standard_output()
        raise CommandFailed(FAILED) from None


@contextlib.contextmanager
def _counted() -> Iterator[Callable[[bytes], None]]:
    """How far it has come, on a terminal."""
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
