"""Writer of ranges of the store's audit events to an archive.

Writing the same range again changes nothing in the archive.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from hashlib import sha256
from typing import Final

from controlplane.archive.manifest import (
    EVENTS_SUFFIX,
    FORM,
    MANIFEST_SUFFIX,
    ArchivedLink,
    EventsObject,
    EventsWriter,
    Manifest,
    NotAnArchive,
    archived_link,
    each_line,
    manifest_bytes,
    read_manifest,
    stem_of,
)
from controlplane.archive.object_store import ObjectStore
from controlplane.store.chain import BEFORE_THE_FIRST
from controlplane.store.interface import ArchiveSource, ChainedLink, LinkSpan, StoreError

_OTHER: Final = "exists already with other content, and is not overwritten; move it away, or archive to"
_OTHER_PLACE: Final = "another prefix under another name of the sink"


class ArchiveConflict(Exception):
    """Error because the archive has an object with the same name, but with different content.

    The archive sink stops until an operator has examined the object.
    """


class ArchiveWriter:
    def __init__(self, store: ArchiveSource, objects: ObjectStore) -> None:
        self._store = store
        self._objects = objects

    async def write(self, after: int, upto: int, org_ids: Collection[str] | None = None) -> int:
        """Write the events between two positions, of the given organisations or of all organisations.

        Return the number of written events. Raise StorageUnavailable, ArchiveConflict or StoreError if the
        write fails. If the write of a range of events fails, the caller writes the same range again.
        """
        written = 0
        for org_id in await self._store.orgs_between(after, upto):
            if org_ids is None or org_id in org_ids:
                span = await self._store.links_between(org_id, after, upto)
                written += await self._write_org(org_id, span)
        return written

    async def _write_org(self, org_id: str, span: LinkSpan) -> int:
        before = await self._store.chain_link(org_id, span.after) if span.after else None
        writer, links = EventsWriter(), list[ArchivedLink]()
        while (at := links[-1].number if links else span.after) < span.upto:
            step = await self._store.chained_blocks(org_id, LinkSpan(at, span.upto))
            if not step:
                raise StoreError(
                    f"organisation {org_id}: the audit chain has no link after link {at}: verify the chain"
                )
            await asyncio.to_thread(_add, step, writer, links)
        blocks = [link for link in links if link.kind != "purge"]
        first, last = blocks[0], blocks[-1]
        last_position = last.position + last.count - 1
        stem = stem_of(org_id, first.chained_ms, first.position, last_position)
        body, events = writer.finish(stem + EVENTS_SUFFIX)
        if events.events:
            events = await self._create_events(body, events)
        manifest = Manifest(
            format=FORM,
            org_id=org_id,
            first_position=first.position,
            last_position=last_position,
            received_from_ms=first.chained_ms,
            received_to_ms=last.chained_ms,
            absent=sum(link.count for link in blocks) - events.events,
            previous_number=span.after,
            previous_link=(BEFORE_THE_FIRST if before is None else before.link).hex(),
            events=events if events.events else None,
            links=tuple(links),
        )
        await self._create_manifest(stem + MANIFEST_SUFFIX, manifest)
        return events.events

    async def _create_events(self, body: bytes, events: EventsObject) -> EventsObject:
        """Create the events object if it is missing, and return its description for the manifest."""
        if await self._objects.create(events.name, body):
            return events
        found = await self._objects.read(events.name)
        if sha256(found).hexdigest() == events.sha256:
            return events
        return await asyncio.to_thread(_same_content, found, events)

    async def _create_manifest(self, name: str, manifest: Manifest) -> None:
        body = await asyncio.to_thread(manifest_bytes, manifest)
        if await self._objects.create(name, body):
            return
        found = await self._objects.read(name)
        if found != body and not await asyncio.to_thread(_says_the_same, found, manifest):
            raise ArchiveConflict(f"{name} {_OTHER} {_OTHER_PLACE}")


def _add(step: list[ChainedLink], writer: EventsWriter, links: list[ArchivedLink]) -> None:
    there = []
    for link, block in step:
        events = None if block is None else block.events
        links.append(archived_link(link, events, () if block is None else block.digests))
        there += [event for event in events or () if event is not None]
    writer.add(there)


def _same_content(found: bytes, events: EventsObject) -> EventsObject:
    """Return the description of the archived object `found`, if it has the same audit events as `events`.

    Another release of zlib may compress the same events into other bytes.
    """
    content, size = sha256(), 0
    try:
        for line in each_line(found):
            content.update(line + b"\n")
            size += len(line) + 1
    except NotAnArchive as error:
        raise ArchiveConflict(f"{events.name} {_OTHER} {_OTHER_PLACE}: {error}") from None
    if content.hexdigest() != events.content_sha256:
        raise ArchiveConflict(f"{events.name} {_OTHER} {_OTHER_PLACE}")
    digest = sha256(found).hexdigest()
    return EventsObject(events.name, events.events, len(found), digest, size, events.content_sha256)


def _says_the_same(found: bytes, manifest: Manifest) -> bool:
    """Return True if two manifests of a range describe the same blocks and events.

    Retention may have purged some events of the range after one manifest was written and before the other
    manifest was written.
    """
    try:
        other = read_manifest(found)
    except NotAnArchive:
        return False
    both = [
        (each.previous_link, each.events, [link for link in each.links if link.kind != "purge"])
        for each in (other, manifest)
    ]
    return both[0] == both[1]
