"""`audit head`, `audit verify`: the newest link of each chain of events, and whether everything fits."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from controlplane.cli.context import (
    AnyOrg,
    Cli,
    Json,
    Open,
    print_json,
    print_list,
    print_text,
    this_user,
    with_org_names,
)
from controlplane.cli.failure import FAILED, INVALID_INPUT, CommandFailed
from proxy.policy.json_text import readable

if TYPE_CHECKING:
    from rich.progress import TaskID

    from controlplane.operations.integrity import KnownHead, Verdict, Verify
    from controlplane.operations.integrity import Progress as OrgProgress
    from controlplane.store.interface import Misfit

app = typer.Typer()


@app.command()
def head(ctx: typer.Context, org: AnyOrg = None, json: Json = False) -> None:
    """The newest link of each organisation's chain of events: to be kept elsewhere, for `audit verify`."""
    from controlplane.operations.integrity import HeadsAsked
    from controlplane.operations.integrity import head as heads

    cli: Cli = ctx.obj
    found = cli.call(heads, HeadsAsked(org=org))
    if json:
        print_json(found)
    else:
        print_list("heads", with_org_names(cli, found.heads), as_json=False)


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
    from controlplane.operations.integrity import Verify, in_words, verified
    from controlplane.operations.integrity import verify as verify_all

    cli: Cli = ctx.obj
    if head is not None and org is None:
        raise CommandFailed(
            INVALID_INPUT, "--head: a link is of one organisation's chain: say which with --org"
        )
    request = Verify(org=org, head=head, checkpoint=() if checkpoint is None else _read(checkpoint))
    if cli.is_remote:
        verdicts = list(cli.call(verify_all, request).orgs)
    else:
        verdicts = cli.run(lambda opened: _walked(opened, request), reads=True)
    intact = all(each.misfit is None for each in verdicts)
    if json:
        print_json(verified(verdicts))
        lines = []
    else:
        rows = with_org_names(cli, verdicts)
        print_list("orgs", list(map(_row, rows)), as_json=False)
        for row, each in zip(rows, verdicts, strict=True):
            print_text(f"{row['org']}: {'; but '.join(filter(None, in_words(each)))}")
        lines = [
            _describe(row["org"], each.misfit)
            for row, each in zip(rows, verdicts, strict=True)
            if each.misfit
        ]
    if not intact:
        raise CommandFailed(FAILED, *lines)


async def _walked(opened: Open, request: Verify) -> list[Verdict]:
    """With a bar to look at meanwhile."""
    from controlplane.operations.integrity import Verdict, verification

    verdicts = []
    with _bar() as show:
        async for each in verification(opened.context, this_user(), request):
            if isinstance(each, Verdict):
                verdicts.append(each)
            else:
                show(each)
    return verdicts


def _read(checkpoint: Path) -> tuple[KnownHead, ...]:
    from controlplane.operations.integrity import KnownHead

    try:
        text = readable(checkpoint.read_bytes())
        return msgspec.json.decode(text, type=dict[str, tuple[KnownHead, ...]])["heads"]
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


def _row(verdict: dict[str, Any]) -> dict[str, Any]:
    misfit = verdict["misfit"]
    return verdict | {"misfit": None if misfit is None else misfit["what"]}


def _describe(org: str, misfit: Misfit) -> str:
    places = {"link": misfit.link, "position": misfit.position, "event": misfit.event_id}
    where = ", ".join(f"{name} {place}" for name, place in places.items() if place is not None)
    return f"{org}: {misfit.what}: {misfit.explanation}" + (f" ({where})" if where else "")
