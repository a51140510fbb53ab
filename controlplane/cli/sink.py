"""Commands of `sink`, which show the progress of sinks and handle events that sinks refused."""

from __future__ import annotations

import sys
from typing import Annotated, Final

import typer

from controlplane.cli.context import Cli, Json, NoTrunc, Wide, facts_of, print_facts, print_list
from controlplane.cli.failure import FAILED, CommandFailed
from controlplane.cli.layouts import Column, Layout, fit_of
from proxy.wire.figures import counted

app = typer.Typer()

SINKS: Final = Layout(
    "sinks",
    (
        Column("name"),
        Column("kind"),
        Column("status"),
        Column("lagEvents", "number", "Behind"),
        Column("lagSeconds", "number", "Age (s)"),
        Column("delivered", "number"),
        Column("deadLetters", "number", "Dead letters"),
        Column("lastDelivery", "time", "Last delivery"),
        Column("problem", "prose"),
    ),
    leads=("name", "status"),
    drops=("lastDelivery", "delivered", "kind", "problem"),
)
LETTERS: Final = Layout(
    "deadLetters",
    (
        Column("position", "number"),
        Column("refusedAt", "moment", "Refused"),
        Column("org", title="Organisation"),
        Column("reason", "prose"),
        Column("retrying"),
        Column("eventId", title="Event"),
    ),
    leads=("position", "reason"),
    drops=("retrying", "eventId", "org"),
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the sink in the settings.")]
Positions = Annotated[
    list[int] | None,
    typer.Argument(
        metavar="[POSITION]...",
        help="Positions of the dead letters, which are refused events (by default, all dead letters).",
    ),
]


@app.callback()
def sink() -> None:
    """Show the progress of each sink, and handle the events that sinks refused."""


@app.command("list")
def list_sinks(ctx: typer.Context, wide: Wide = False, no_trunc: NoTrunc = False, json: Json = False) -> None:
    """List the sinks of the settings, with the progress of each sink."""
    from controlplane.operations.sinks import ListSinks, list_all

    cli: Cli = ctx.obj
    found = cli.call(list_all, ListSinks())
    if json:
        print_facts(found, as_json=True)
        return
    print_list(SINKS, [facts_of(each) for each in found.sinks], as_json=False, fit=fit_of(wide, no_trunc))


@app.command()
def show(ctx: typer.Context, name: Name, json: Json = False) -> None:
    """Show one sink and the progress of its deliveries."""
    from controlplane.operations.sinks import SinkReference
    from controlplane.operations.sinks import show as operation_of_it

    cli: Cli = ctx.obj
    print_facts(cli.call(operation_of_it, SinkReference(sink=name)), as_json=json)


@app.command("test")
def try_sink(ctx: typer.Context, name: Name, json: Json = False) -> None:
    """Test the connection to a sink without sending an event.

    Exit 1 if the sink does not accept deliveries.
    """
    from controlplane.operations.sinks import SinkReference
    from controlplane.operations.sinks import test as operation_of_it

    cli: Cli = ctx.obj
    found = cli.call(operation_of_it, SinkReference(sink=name))
    if json:
        print_facts(found, as_json=True)
    elif found.ok:
        sys.stdout.write(f"{name}: {found.result}\n")
    if not found.ok:
        raise CommandFailed(FAILED, f"{name}: {found.result}")


@app.command("dead-letters")
def dead_letters(
    ctx: typer.Context,
    name: Name,
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", min=1, max=1000, help="Dead letters per page (1 to 1000).")
    ] = 100,
    after: Annotated[
        int,
        typer.Option("--after", metavar="POSITION", min=0, help="Position that the previous page printed."),
    ] = 0,
    wide: Wide = False,
    no_trunc: NoTrunc = False,
    json: Json = False,
) -> None:
    """List the events that a sink refused permanently, with the reasons."""
    from controlplane.operations.sinks import ListDeadLetters
    from controlplane.operations.sinks import dead_letters as operation_of_it

    cli: Cli = ctx.obj
    page = cli.call(operation_of_it, ListDeadLetters(sink=name, limit=limit, after=after))
    if json:
        print_facts(page, as_json=True)
        return
    rows = [facts_of(each) for each in page.dead_letters]
    print_list(LETTERS, rows, as_json=False, fit=fit_of(wide, no_trunc))
    if page.next is not None:
        sys.stdout.write(f"more: --after {page.next}\n")


@app.command()
def retry(ctx: typer.Context, name: Name, positions: Positions = None, json: Json = False) -> None:
    """Resend to a sink the events that the sink refused."""
    from controlplane.operations.sinks import ChooseDeadLetters
    from controlplane.operations.sinks import retry as operation_of_it

    cli: Cli = ctx.obj
    found = cli.call(operation_of_it, ChooseDeadLetters(sink=name, positions=_chosen(positions)))
    if json:
        print_facts(found, as_json=True)
    else:
        sys.stdout.write(f"{counted(found.count, 'dead letter')} will be sent again within seconds\n")


@app.command()
def discard(ctx: typer.Context, name: Name, positions: Positions = None, json: Json = False) -> None:
    """Delete events from the list of the events that a sink refused.

    The store keeps the audit events that you delete from the list of a sink.
    """
    from controlplane.operations.sinks import ChooseDeadLetters
    from controlplane.operations.sinks import discard as operation_of_it

    cli: Cli = ctx.obj
    found = cli.call(operation_of_it, ChooseDeadLetters(sink=name, positions=_chosen(positions)))
    if json:
        print_facts(found, as_json=True)
    else:
        sys.stdout.write(f"discarded {counted(found.count, 'dead letter')}\n")


@app.command()
def rewind(
    ctx: typer.Context,
    name: Name,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="T",
            help="Time of receipt: an RFC 3339 time, a date, or a time before now such as -15m, -2h or -7d.",
        ),
    ],
    json: Json = False,
) -> None:
    """Resend to a sink all events that the control plane received at or after a given time."""
    from controlplane.operations.sinks import RewindSink
    from controlplane.operations.sinks import rewind as operation_of_it

    cli: Cli = ctx.obj
    print_facts(cli.call(operation_of_it, RewindSink(sink=name, to=to)), as_json=json)


def _chosen(positions: list[int] | None) -> tuple[int, ...] | None:
    return tuple(positions) if positions else None
