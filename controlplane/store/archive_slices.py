"""Ranges of whole event blocks for an archive, and the links of the audit chain that cover the blocks."""

from __future__ import annotations

from typing import Final

from controlplane.store.block_body import events_of
from controlplane.store.chain import Link, each_digest
from controlplane.store.chain_table import PURGED, head, links_after, read_digests
from controlplane.store.database import Connection
from controlplane.store.interface import ArchiveRange, ChainedBlock, ChainedLink, LinkSpan

MOST_EVENTS: Final = 50_000  # limit of one range, to keep objects small enough to handle
# limit of one range in stored bytes, which is about 35 MB decompressed
MOST_STORED_BYTES: Final = 4 * 1024 * 1024
MOST_READ_BYTES: Final = 4 * 1024 * 1024  # limit of the events in memory at once; one block may have 5 MB
_LINKS_AT_ONCE: Final = 256
# The query moves along the index once for each organisation. DISTINCT would read all links.
_ORGS: Final = (
    "WITH RECURSIVE each_org (org_id) AS (SELECT min(org_id) FROM chain UNION ALL"
    " SELECT (SELECT min(org_id) FROM chain WHERE org_id > each_org.org_id) FROM each_org"
    " WHERE each_org.org_id IS NOT NULL) SELECT org_id FROM each_org WHERE EXISTS"
    " (SELECT 1 FROM chain WHERE chain.org_id = each_org.org_id AND kind <> 'purge'"
    " AND position > ? AND position <= ?) ORDER BY org_id"
)
_LAST_BLOCK: Final = (
    "SELECT number FROM chain WHERE org_id = ? AND kind <> 'purge' AND position <= ?"
    " ORDER BY position DESC LIMIT 1"
)
_NEXT_BLOCK: Final = (
    "SELECT number FROM chain WHERE org_id = ? AND kind <> 'purge' AND position > ? ORDER BY position LIMIT 1"
)


def archive_range(connection: Connection, after: int, settled: int) -> ArchiveRange | None:
    rows = connection.each(
        "SELECT position, count, length(body) FROM blocks WHERE position > ? AND position <= ?"
        " ORDER BY position",
        (after, settled),
    )
    first, upto, events, size = 0, 0, 0, 0
    with rows as blocks:
        for position, count, stored in blocks:
            events, size = events + count, size + stored
            if upto and (events > MOST_EVENTS or size > MOST_STORED_BYTES):
                return ArchiveRange(upto, True, _received_ms(connection, first))
            first, upto = first or position, position + count - 1
    return ArchiveRange(upto, False, _received_ms(connection, first)) if upto else None


def _received_ms(connection: Connection, position: int) -> int:
    row = connection.row("SELECT received_ms FROM receipts WHERE position = ?", (position,))
    return 0 if row is None else int(row[0])


def orgs_between(connection: Connection, after: int, upto: int) -> list[str]:
    return [org_id for (org_id,) in connection.rows(_ORGS, (after, upto))]


def links_between(connection: Connection, org_id: str, after: int, upto: int) -> LinkSpan:
    before = connection.row(_LAST_BLOCK, (org_id, after))
    following = connection.row(_NEXT_BLOCK, (org_id, upto))
    if following is not None:
        last = following[0] - 1
    else:
        newest = head(connection, org_id)
        last = 0 if newest is None else newest.record.number
    return LinkSpan(before[0] if before else 0, last)


def chained_blocks(connection: Connection, org_id: str, span: LinkSpan) -> list[ChainedLink]:
    found: list[ChainedLink] = []
    size = 0
    with connection.damaged_text():
        for link in links_after(connection, org_id, span.after, _LINKS_AT_ONCE):
            if link.record.number > span.upto:
                break
            block = None if link.record.kind == "purge" else _block(connection, link)
            found.append(ChainedLink(link, block))
            size += 0 if block is None else block.size
            if size >= MOST_READ_BYTES:
                break
    return found


def _block(connection: Connection, link: Link) -> ChainedBlock | None:
    position, count = link.record.position, link.record.count
    row = connection.row("SELECT body FROM blocks WHERE position = ?", (position,))
    if row is None:
        return None
    digests = tuple(each_digest(read_digests(connection, position)))
    try:
        texts = [bytes(event) for event in events_of(row[0])]
    except (ValueError, RecursionError):
        return ChainedBlock((None,) * count, digests)
    return ChainedBlock(tuple(None if text == PURGED else text for text in texts), digests)
