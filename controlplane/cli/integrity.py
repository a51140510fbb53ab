"""`audit head`, `audit verify`: the newest link of each chain of events, and whether everything fits."""

from __future__ import annotations

import contextlib
import getpass
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from controlplane.cli.context import (
    FAILED,
    INVALID_INPUT,
    AnyOrg,
    Cli,
    CommandFailed,
    Json,
    Open,
    print_json,
    print_list,
)

if TYPE_CHECKING:
    from rich.progress import TaskID

    from controlplane.operations.desk import Desk
    from controlplane.operations.integrity import KnownHead, Verdict
    from controlplane.operations.integrity import Progress as OrgProgress

app = typer.Typer()


@app.command()
def head(ctx: typer.Context, org: AnyOrg = None, json: Json = False) -> None:
    """The newest link of each organisation's chain of events: to be kept elsewhere, for `audit verify`."""
    from controlplane.operations.actor import local_actor
    from controlplane.operations.integrity import Heads, HeadsAsked
    from controlplane.operations.integrity import head as heads

    cli: Cli = ctx.obj

    async def work(opened: Open) -> Heads:
        return await heads.perform(_desk(opened), local_actor(getpass.getuser()), HeadsAsked(org=org))

    found = cli.run(work)
    if json:
        print_json(found)
    else:
        print_list("heads", [msgspec.to_builtins(each) for each in found.heads], as_json=False)


@app.command()
def verify(
    ctx: typer.Context,
    org: AnyOrg = None,
    head: Annotated[
        str | None, typer.Option("--head", metavar="HEX", help="A link of --org that must be there still.")
    ] = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            "--from-checkpoint", metavar="FILE", help="What `audit head --json` printed: goes on from there."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Whether all events are as they were stored. Exit 1, naming the first that isn't, if not."""
    from controlplane.operations.actor import local_actor
    from controlplane.operations.integrity import Verdict, Verified, Verify, verification
    from controlplane.operations.operation import InvalidRequest

    cli: Cli = ctx.obj
    request = Verify(org=org, head=head, checkpoint=() if checkpoint is None else _read(checkpoint))

    async def work(opened: Open) -> list[Verdict]:
        verdicts = []
        with _bar() as show:
            async for each in verification(_desk(opened), local_actor(getpass.getuser()), request):
                if isinstance(each, Verdict):
                    verdicts.append(each)
                else:
                    show(each)
        return verdicts

    try:
        verdicts = cli.run(work)
    except InvalidRequest as error:
        raise CommandFailed(INVALID_INPUT, *error.problems) from None
    intact = all(each.misfit is None for each in verdicts)
    if json:
        print_json(Verified(intact=intact, orgs=tuple(verdicts)))
    else:
        print_list("orgs", [_row(each) for each in verdicts], as_json=False)
    if not intact:
        raise CommandFailed(FAILED, *(() if json else map(_told, filter(_is_misfit, verdicts))))


def _desk(opened: Open) -> Desk:
    from controlplane.clock import SystemClock
    from controlplane.operations.desk import Desk
    from controlplane.search.interface import SearchIndex
    from controlplane.tail import Tail

    async def no_index() -> SearchIndex:
        raise NotImplementedError

    return Desk(
        opened.settings,
        opened.store,
        opened.registry,
        SystemClock(),
        opened.vault,
        no_index,
        Tail(opened.store),
    )


def _read(checkpoint: Path) -> tuple[KnownHead, ...]:
    from controlplane.operations.integrity import KnownHead

    try:
        return msgspec.json.decode(checkpoint.read_bytes(), type=dict[str, tuple[KnownHead, ...]])["heads"]
    except OSError as error:
        raise CommandFailed(INVALID_INPUT, f"{checkpoint}: {error.strerror}") from None
    except (ValueError, KeyError) as error:
        raise CommandFailed(
            INVALID_INPUT, f"{checkpoint}: is not what `audit head --json` prints: {error}"
        ) from None


@contextlib.contextmanager
def _bar() -> Iterator[Callable[[OrgProgress], None]]:
    """A bar for each organisation, on a terminal only."""
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


def _row(verdict: Verdict) -> dict[str, object]:
    facts: dict[str, object] = msgspec.to_builtins(verdict)
    facts["misfit"] = None if verdict.misfit is None else verdict.misfit.what
    return facts


def _is_misfit(verdict: Verdict) -> bool:
    return verdict.misfit is not None


def _told(verdict: Verdict) -> str:
    misfit = verdict.misfit
    assert misfit is not None
    places = {"link": misfit.link, "position": misfit.position, "event": misfit.event_id}
    where = ", ".join(f"{name} {place}" for name, place in places.items() if place is not None)
    return f"{verdict.org_id}: {misfit.what}: {misfit.explanation}" + (f" ({where})" if where else "")
