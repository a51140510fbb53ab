"""Command `audit verify-archive`, which verifies an archive of audit events without access to the store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from controlplane.cli.context import (
    Cli,
    Json,
    NoTrunc,
    Wide,
    clock,
    facts_of,
    print_json,
    print_list,
    print_text,
)
from controlplane.cli.failure import FAILED, INVALID_INPUT, CommandFailed
from controlplane.cli.integrity import read_checkpoint
from controlplane.cli.layouts import Column, Layout, fit_of
from proxy.wire.audit_event import rfc3339
from proxy.wire.figures import counted

if TYPE_CHECKING:
    from controlplane.archive.object_store import ObjectReader
    from controlplane.archive.verification import ArchiveVerdict, KnownLink

app = typer.Typer()

VERDICTS: Final = Layout(
    "orgs",
    (
        Column("orgId", title="Organisation"),
        Column("result"),
        Column("events", "number"),
        Column("purged", "number"),
        Column("unexplained", "number"),
        Column("receivedFrom", "time", "From"),
        Column("receivedTo", "time", "To"),
        Column("firstLink", "number", "First link"),
        Column("lastLink", "number", "Last link"),
        Column("objects", "number"),
    ),
    leads=("orgId", "result"),
    drops=("objects", "firstLink", "purged", "receivedFrom", "receivedTo"),
)


@app.command(name="verify-archive")
def verify_archive(
    ctx: typer.Context,
    directory: Annotated[
        Path | None,
        typer.Argument(metavar="[DIR]", help="Directory with a copy of the archive."),
    ] = None,
    sink: Annotated[
        str | None,
        typer.Option("--sink", metavar="NAME", help="Read the archive of this sink instead of DIR."),
    ] = None,
    org: Annotated[
        str | None, typer.Option("--org", metavar="ORG_ID", help="ID of the only organisation to verify.")
    ] = None,
    head: Annotated[
        str | None,
        typer.Option(
            "--head",
            metavar="HEX",
            help="Link that the archived audit chain of the organisation in --org must contain.",
        ),
    ] = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            "--checkpoint",
            metavar="FILE",
            help="Output of `audit head --json`; the archive must contain its links.",
        ),
    ] = None,
    from_link: Annotated[
        int | None,
        typer.Option(
            "--from-link",
            metavar="NUMBER",
            min=1,
            help="Number of the chain link with which the archive of the organisation in --org begins (1).",
        ),
    ] = None,
    since: Annotated[
        Path | None,
        typer.Option(
            "--since",
            metavar="FILE",
            help=(
                "Output of `audit head --json`. The archive of each organisation begins after the chain link "
                "in the file."
            ),
        ),
    ] = None,
    wide: Wide = False,
    no_trunc: NoTrunc = False,
    json: Json = False,
) -> None:
    """Verify that no archived event was changed, inserted, reordered or removed.

    The command `audit verify-archive` does not read the store.
    """
    cli: Cli = ctx.obj
    if (directory is None) == (sink is None):
        raise CommandFailed(INVALID_INPUT, "name the archive: give either its directory or --sink NAME")
    if directory is not None and not directory.is_dir():
        raise CommandFailed(INVALID_INPUT, f"{directory}: is not a directory")
    if head is not None and org is None:
        raise CommandFailed(
            INVALID_INPUT, "--head: also give --org, the organisation that the chain link belongs to"
        )
    if from_link is not None and org is None:
        raise CommandFailed(
            INVALID_INPUT, "--from-link: also give --org, the organisation that the chain link belongs to"
        )
    known = _known(org, head, checkpoint)
    begins_after = _begins_after(org, from_link, since)
    verdicts = asyncio.run(_verdicts(cli, directory, sink, org, known, begins_after))
    if not verdicts:
        raise CommandFailed(FAILED, f"{directory or sink}: contains no archive{f' of {org}' if org else ''}")
    if json:
        intact = all(each.is_whole for each in verdicts)
        print_json({"intact": intact, "orgs": [_facts(each) for each in verdicts]})
    else:
        rows = [_facts(each) | {"result": _result(each)} for each in verdicts]
        print_list(VERDICTS, rows, as_json=False, fit=fit_of(wide, no_trunc))
        print_text("\n".join(map(_sentence, verdicts)))
    faults = [_describe(each) for each in verdicts if not each.is_whole]
    missing = sorted(set(known) - {each.org_id for each in verdicts}) if org is None else []
    faults += [
        f"{each}: the checkpoint names a link of this organisation, but the archive has no events of it"
        for each in missing
    ]
    if faults:
        raise CommandFailed(FAILED, *faults)


def _known(org: str | None, head: str | None, checkpoint: Path | None) -> dict[str, KnownLink]:
    from controlplane.archive.verification import KnownLink

    known = {}
    if checkpoint is not None:
        heads = read_checkpoint(checkpoint)
        known = {
            each.org_id: KnownLink(each.link, each.number) for each in heads if org in (None, each.org_id)
        }
    if head is not None and org is not None:
        known[org] = KnownLink(head.lower())
    return known


def _begins_after(org: str | None, from_link: int | None, since: Path | None) -> dict[str, int]:
    heads = read_checkpoint(since) if since is not None else []
    found = {each.org_id: each.number for each in heads}
    if from_link is not None and org is not None:
        found[org] = from_link - 1
    return found


async def _verdicts(
    cli: Cli,
    directory: Path | None,
    sink: str | None,
    org: str | None,
    known: Mapping[str, KnownLink],
    begins_after: Mapping[str, int],
) -> list[ArchiveVerdict]:
    from controlplane.archive.manifest import NotAnArchive
    from controlplane.archive.object_store import StorageUnavailable
    from controlplane.archive.verification import verify_archive as verified
    from controlplane.sinks.interface import SinkUnavailable

    try:
        async with _opened(cli, directory, sink) as archive:
            prefix = f"{org}/" if org else ""
            return [each async for each in verified(archive, known, prefix, begins_after)]
    except NotAnArchive as error:
        raise CommandFailed(INVALID_INPUT, f"{directory or sink}: {error}") from None
    except (StorageUnavailable, SinkUnavailable) as error:
        raise CommandFailed(FAILED, f"{directory or sink}: {error}") from None


@asynccontextmanager
async def _opened(cli: Cli, directory: Path | None, sink: str | None) -> AsyncIterator[ObjectReader]:
    from controlplane.archive.object_store import Folder
    from controlplane.sinks.settings import BlobSettings

    if directory is not None:
        yield Folder(directory)
        return
    archives = [each for each in cli.settings.sinks if isinstance(each, BlobSettings)]
    found = next((each for each in archives if each.name == sink), None)
    if found is None:
        names = ", ".join(each.name for each in archives) or "none"
        raise CommandFailed(
            INVALID_INPUT, f"--sink: {sink!r} is not a sink of kind blob; sinks of that kind: {names}"
        )
    from controlplane.sinks.blob import open_objects

    objects = open_objects(found, cli.egress)
    try:
        yield objects
    finally:
        await objects.close()


def _facts(verdict: ArchiveVerdict) -> dict[str, object]:
    found = facts_of(verdict)
    times = {"receivedFrom": found.pop("receivedFromMs"), "receivedTo": found.pop("receivedToMs")}
    return found | {name: rfc3339(ms) if ms else None for name, ms in times.items()}


def _result(verdict: ArchiveVerdict) -> str:
    if verdict.fault is not None:
        return "fault"
    return "verified" if verdict.is_whole else "incomplete"


def _sentence(verdict: ArchiveVerdict) -> str:
    """Return the sentence that describes the verification result of an archive."""
    org = verdict.org_id
    if verdict.fault is not None:
        return f"{org}: NOT VERIFIED. The first fault is below."
    from_, to = (clock().whole(rfc3339(ms)) for ms in (verdict.received_from_ms, verdict.received_to_ms))
    said = f"{org}: {counted(verdict.events, 'event')}, received from {from_} to {to}, unchanged since then."
    if verdict.first_link > 1:
        said += f" The archive begins with link {verdict.first_link} of the chain."
    if verdict.purged:
        said += f" Retention had removed {counted(verdict.purged, 'event')} before."
    if verdict.known_link is None:
        return (
            f"{said} Nothing proves that the end is complete: give a known link with --checkpoint or --head."
        )
    if verdict.absent_links:
        return (
            f"{said} The known link {verdict.known_link} is present, but the links before the first one are "
            "not."
        )
    first = f" from link {verdict.first_link} on" if verdict.first_link > 1 else ""
    return f"{said} The known link {verdict.known_link} is present: nothing before it is missing{first}."


def _describe(verdict: ArchiveVerdict) -> str:
    fault = verdict.fault
    if fault is None and verdict.absent_links:
        last, first = verdict.first_link - 1, verdict.first_link - verdict.absent_links
        cure = f"--org {verdict.org_id} --from-link {verdict.first_link}, or --since FILE"
        return f"{verdict.org_id}: the archive has no links from {first} to {last}; if it began later: {cure}"
    if fault is None:
        absent = counted(verdict.unexplained, "event")
        return f"{verdict.org_id}: {absent} absent, and no link states that retention deleted them"
    places = {"object": fault.object or None, "link": fault.link, "position": fault.position}
    where = ", ".join(f"{name} {place}" for name, place in places.items() if place is not None)
    return f"{verdict.org_id}: {fault.explanation}" + (f" ({where})" if where else "")
