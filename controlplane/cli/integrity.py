"""Commands `audit head` and `audit verify`, which show chain heads and verify the audit chains."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import typer

from controlplane.cli.context import (
    AnyOrg,
    Cli,
    Json,
    NoTrunc,
    Open,
    Wide,
    clock,
    facts_of,
    names_with_deleted,
    print_json,
    print_list,
    print_text,
    this_user,
    with_org_names,
)
from controlplane.cli.failure import FAILED, INVALID_INPUT, CommandFailed
from controlplane.cli.layouts import Column, Layout, fit_of
from proxy.policy.json_text import readable
from proxy.wire.figures import counted, number

if TYPE_CHECKING:
    from rich.progress import TaskID

    from controlplane.cli.moments import Clock
    from controlplane.operations.integrity import KnownHead, Verdict, Verify
    from controlplane.operations.integrity import Progress as OrgProgress
    from controlplane.store.interface import Misfit

app = typer.Typer()

HEADS: Final = Layout(
    "heads",
    (
        Column("org", title="Organisation"),
        Column("number", "number", "Link"),
        Column("at", "moment", "Made"),
        Column("events", "number"),
        Column("purged", "number"),
        Column("link", title="Digest"),
    ),
    leads=("org",),
)
VERDICTS: Final = Layout(
    "orgs",
    (
        Column("org", title="Organisation"),
        Column("result"),
        Column("events", "number"),
        Column("purged", "number"),
        Column("missingEvents", "number", "Missing"),
        Column("repeatedEvents", "number", "Repeated"),
        Column("receivedFrom", "time", "From"),
        Column("receivedTo", "time", "To"),
        Column("links", "number"),
    ),
    leads=("org", "result"),
    drops=("links", "repeatedEvents", "purged", "receivedFrom", "receivedTo"),
)


@app.command()
def head(
    ctx: typer.Context,
    org: AnyOrg = None,
    wide: Wide = False,
    no_trunc: NoTrunc = False,
    json: Json = False,
) -> None:
    """Print the newest link of each organisation's audit chain.

    Keep the output of `audit head` at another site. A later `audit verify` can compare the stored audit chain
    with the kept output.
    """
    from controlplane.operations.integrity import HeadsAsked
    from controlplane.operations.integrity import head as heads

    cli: Cli = ctx.obj
    found = cli.call(heads, HeadsAsked(org=org))
    if json:
        print_json(found)
    else:
        print_list(
            HEADS,
            with_org_names(cli, found.heads, names_with_deleted),
            as_json=False,
            fit=fit_of(wide, no_trunc),
        )


@app.command()
def verify(
    ctx: typer.Context,
    org: AnyOrg = None,
    head: Annotated[
        str | None,
        typer.Option(
            "--head",
            metavar="HEX",
            help="Link that the audit chain of the organisation in --org must still contain.",
        ),
    ] = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            "--from-checkpoint",
            metavar="FILE",
            help="Output of `audit head --json`. Only the events after the chain links in the file are"
            " verified.",
        ),
    ] = None,
    wide: Wide = False,
    no_trunc: NoTrunc = False,
    json: Json = False,
) -> None:
    """Verify that no stored audit event was changed, inserted, reordered or removed.

    If an audit chain has a fault, the command exits with status 1.
    """
    from controlplane.operations.integrity import Verify, verified
    from controlplane.operations.integrity import verify as verify_all

    cli: Cli = ctx.obj
    if head is not None and org is None:
        raise CommandFailed(
            INVALID_INPUT, "--head: also give --org, the organisation that the chain link belongs to"
        )
    request = Verify(org=org, head=head, checkpoint=() if checkpoint is None else read_checkpoint(checkpoint))
    if cli.is_remote:
        verdicts = list(cli.call(verify_all, request).orgs)
    else:
        verdicts = cli.run(lambda opened: _walked(opened, request), reads=True)
    intact = all(each.misfit is None for each in verdicts)
    if json:
        print_json(verified(verdicts))
        lines = []
    else:
        names = names_with_deleted(cli) if verdicts else {}
        named = [(names.get(each.org_id, each.org_id), each) for each in verdicts]
        print_list(
            VERDICTS,
            [facts_of(each) | {"org": org, "result": _result(each)} for org, each in named],
            as_json=False,
            fit=fit_of(wide, no_trunc),
        )
        print_text("\n".join(_sentence(org, each, clock()) for org, each in named))
        lines = [_describe(org, each.misfit) for org, each in named if each.misfit]
    if not intact:
        raise CommandFailed(FAILED, *lines)


async def _walked(opened: Open, request: Verify) -> list[Verdict]:
    """Verify the audit chains, and show a progress bar during the verification."""
    from controlplane.operations.integrity import Verdict, verification

    verdicts = []
    with _bar() as show:
        async for each in verification(opened.context, this_user(), request):
            if isinstance(each, Verdict):
                verdicts.append(each)
            else:
                show(each)
    return verdicts


def read_checkpoint(checkpoint: Path) -> tuple[KnownHead, ...]:
    from controlplane.operations.integrity import KnownHead

    try:
        text = readable(checkpoint.read_bytes())
        return msgspec.json.decode(text, type=dict[str, tuple[KnownHead, ...]])["heads"]
    except OSError as error:
        raise CommandFailed(INVALID_INPUT, f"{checkpoint}: {error.strerror}") from None
    except (ValueError, KeyError) as error:
        raise CommandFailed(
            INVALID_INPUT, f"{checkpoint}: is not the output of `audit head --json`: {error}"
        ) from None


@contextlib.contextmanager
def _bar() -> Iterator[Callable[[OrgProgress], None]]:
    """Show a progress bar for each organisation, on a terminal only."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        tasks: dict[str, TaskID] = {}

        def show(at: OrgProgress) -> None:
            if at.org_id not in tasks:
                tasks[at.org_id] = bar.add_task(at.org_id)
            bar.update(tasks[at.org_id], completed=at.done, total=at.total)

        yield show


def _result(verdict: Verdict) -> str:
    if verdict.misfit is not None:
        return verdict.misfit.what
    if verdict.received_from is None:
        return "no events"
    return "incomplete" if verdict.missing_events or verdict.repeated_events else "verified"


def _sentence(org: str, verdict: Verdict, clock: Clock) -> str:
    """Return a sentence on the result of the verification of an organisation's events."""
    if verdict.misfit is not None:
        return f"{org}: NOT VERIFIED. Stored events were changed; the first fault is below."
    if verdict.received_from is None or verdict.received_to is None:
        return f"{org}: no events to verify."
    period = f"received from {clock.whole(verdict.received_from)} to {clock.whole(verdict.received_to)}"
    if verdict.purged:
        said = f"{org}: verified. Of {counted(verdict.events, 'event')}, {period}, retention removed"
        left = verdict.events - verdict.purged
        are = "is" if left == 1 else "are"
        rest = f"{counted(left, 'event')} {are} left, unchanged since then" if left > 0 else "none is left"
        said += f" {number(verdict.purged)}; {rest}."
    else:
        said = f"{org}: verified. {counted(verdict.events, 'stored event')}, {period}, unchanged since then."
    if verdict.missing_events:
        said += f" NOT COMPLETE: {counted(verdict.missing_events, 'event')} never arrived from the proxies."
    if verdict.repeated_events:
        said += (
            f" NOT COMPLETE: {counted(verdict.repeated_events, 'event')} reused a sequence number that "
            "another event had."
        )
    return said


def _describe(org: str, misfit: Misfit) -> str:
    places = {"link": misfit.link, "position": misfit.position, "event": misfit.event_id}
    where = ", ".join(f"{name} {place}" for name, place in places.items() if place is not None)
    return f"{org}: {misfit.what}: {misfit.explanation}" + (f" ({where})" if where else "")
