"""Exports of audit events: all events that match a filter, as a file with a signed manifest."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from dataclasses import replace
from hashlib import sha256
from typing import Final, Literal

import msgspec

from controlplane import __version__
from controlplane.operations.actor import Actor
from controlplane.operations.context import OperationContext
from controlplane.operations.event_formats import FORMATS, Form
from controlplane.operations.event_notes import doubts, held_within, notes_on_index
from controlplane.operations.event_queries import Selection, page_of, query_of, response_of
from controlplane.operations.held import written
from controlplane.operations.operation import Streamed, stream
from controlplane.operations.report_key import signer_of
from controlplane.operations.times import as_rfc3339
from controlplane.report.manifest import KIND as MANIFEST
from controlplane.report.manifest import HeadOfOrg, Manifest, header_fields
from controlplane.report.signed import Signer, payload_of
from controlplane.search.interface import SearchIndex, SearchPage, SearchQuery
from controlplane.store.interface import Org, StoreBusy
from proxy.wire.audit_event import rfc3339

MOST_EXPORTS: Final = 32  # exports that run at the same time
MOST_EXPORTS_OF_ONE: Final = 4
MOST_HEADS_IN_HEADER: Final = 8  # an export of more organisations names its chain heads only in its manifest


class ExportEvents(Selection):
    format: Literal["csv", "ndjson"] = "ndjson"
    manifest: bool = False  # True: a last line has the signed manifest of all lines before it


@stream("audit.export", "/audit/export", *(each.media_type for each in FORMATS.values()))
async def export(context: OperationContext, actor: Actor, request: ExportEvents) -> Streamed:
    """Export all matching audit events, newest first, as CSV or as one line of JSON for each event."""
    query = await query_of(context, actor, request)
    if request.manifest and query.to_ms is None:
        query = replace(query, to_ms=context.clock.wall_ms())
    index = await response_of(context.index())
    form = FORMATS[request.format]
    orgs = await context.resolve.orgs_of_events(actor, request.org)
    heads = await _heads(context, orgs) if request.manifest or len(orgs) <= MOST_HEADS_IN_HEADER else ()
    begun = await _begun(context, actor, request, query, heads) if request.manifest else None
    pieces = _exported(actor, index, query, await page_of(actor, index, query), form)
    if begun is not None:
        pieces = _with_manifest(pieces, begun, await signer_of(context), is_table=bool(form.head))
    _require_room(actor)
    named = heads if len(heads) <= MOST_HEADS_IN_HEADER else ()
    now = rfc3339(context.clock.wall_ms())
    headers = header_fields(request.filter, as_rfc3339(query.from_ms), as_rfc3339(query.to_ms), now, named)
    return Streamed(form.media_type, pieces, f"audit-events.{request.format}", headers)


async def _heads(context: OperationContext, orgs: Iterable[Org]) -> tuple[HeadOfOrg, ...]:
    heads = []
    for org in orgs:
        head = await context.store.chain_head(org.org_id)
        if head is not None:
            newest = head.newest
            heads.append(HeadOfOrg(org.org_id, org.name, newest.record.number, newest.link.hex()))
    return tuple(heads)


async def _begun(
    context: OperationContext,
    actor: Actor,
    request: ExportEvents,
    query: SearchQuery,
    heads: tuple[HeadOfOrg, ...],
) -> Manifest:
    """Return the manifest of an export to which no event has been added yet."""
    now_ms = context.clock.wall_ms()
    wrong = await doubts(context, actor, request.org, query)
    looked_at = await held_within(context, actor, request.org, query, count_missing=True)
    return Manifest(
        kind=MANIFEST,
        key=(await signer_of(context)).key,
        filter=request.filter,
        org=request.org,
        from_=as_rfc3339(query.from_ms),
        to=rfc3339(now_ms if query.to_ms is None else query.to_ms),
        format=request.format,
        exported_at=rfc3339(now_ms),
        exported_by=actor.name,
        release=__version__,
        events=0,
        bytes=0,
        sha256="",
        heads=heads,
        oldest=None if looked_at.span is None else written(looked_at.span[0]),
        notes=(*notes_on_index(context), *wrong, *looked_at.notes_on_nothing(query.from_ms)),
    )


async def _with_manifest(
    pieces: AsyncGenerator[bytes, None], begun: Manifest, signer: Signer, *, is_table: bool
) -> AsyncGenerator[bytes, None]:
    """Yield the pieces of an export, and then the signed manifest of the export."""
    digest, size, lines = sha256(), 0, 0
    async with aclosing(pieces):
        async for piece in pieces:
            digest.update(piece)
            size += len(piece)
            lines += piece.count(b"\n")
            yield piece
    events = lines - is_table
    whole = msgspec.structs.replace(begun, events=events, bytes=size, sha256=digest.hexdigest())
    yield signer.sign(payload_of(whole))


# Each export keeps a page of events in memory for as long as its reader takes to read the page.
_exporting: Final[Counter[str]] = Counter()


def _require_room(actor: Actor) -> None:
    if _exporting[actor.name] >= MOST_EXPORTS_OF_ONE or _exporting.total() >= MOST_EXPORTS:
        raise StoreBusy("too many exports are running: try again when one has finished")


async def _exported(
    actor: Actor, index: SearchIndex, query: SearchQuery, page: SearchPage, form: Form
) -> AsyncGenerator[bytes, None]:
    """Yield the exported events one page at a time, so that any number of events fits in memory."""
    _require_room(actor)
    _exporting[actor.name] += 1
    try:
        if form.head:
            yield form.head
        while True:
            if page.events:
                yield await asyncio.to_thread(form.lines, page.events)
            if page.next is None:
                return
            page = await page_of(actor, index, replace(query, cursor=page.next))
    finally:
        _exporting[actor.name] -= 1
