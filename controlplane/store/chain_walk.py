"""Verifies, link by link, that an organisation's audit chain and its events are unchanged.

Each step of the verification is one transaction, so that ingestion, purges and checkpoints continue between
steps. Each verification step reads a block and the purges of this block in the same state of the database.
The chain only grows, so a later verification need not verify the same links again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from hmac import compare_digest
from itertools import zip_longest
from typing import Final

import msgspec

from controlplane.store.block_body import events_of
from controlplane.store.blocks import hidden_event
from controlplane.store.chain import (
    Link,
    Purged,
    Record,
    content_of,
    digests_of,
    each_digest,
    make_link,
    make_mac,
)
from controlplane.store.chain_table import (
    PURGED,
    each_link,
    links_after,
    purged_places,
    read_digests,
)
from controlplane.store.database import Connection
from controlplane.store.interface import Misfit, Reached, What

LINKS_AT_ONCE: Final = 64
# The positions of all rows, including those that a forger may choose. The first received block has 1.
_LEAST_POSITION: Final = -(1 << 63)
_LAST_POSITION: Final = (1 << 63) - 1


def walk(
    connection: Connection, org_id: str, reached: Reached, last: int, key: bytes
) -> tuple[Reached, Misfit | None]:
    """Verify the links of an audit chain that follow `reached`, up to the link with the number `last`.

    Stop the verification before the first link that does not match.
    """
    with connection.damaged_text():
        return _walk(connection, org_id, reached, last, key)


def _walk(
    connection: Connection, org_id: str, reached: Reached, last: int, key: bytes
) -> tuple[Reached, Misfit | None]:
    links = links_after(connection, org_id, reached.number, LINKS_AT_ONCE)
    if not links:
        text = "the newest links disappeared during the verification"
        return reached, Misfit("removed", text, reached.number + 1)
    for link in links:
        record = link.record
        if record.number > last:
            break
        misfit = _mismatch_of_link(connection, reached, link, key)
        if misfit is None:
            is_purge = record.kind == "purge"
            misfit = (
                _mismatch_of_purge(record) if is_purge else _mismatch_of_block(connection, reached, record)
            )
        if misfit is not None:
            return reached, misfit
        reached = _further(reached, link)
    return reached, None


def _further(reached: Reached, link: Link) -> Reached:
    record = link.record
    if record.kind == "purge":
        return replace(reached, number=record.number, link=link.link, purged=reached.purged + record.count)
    return Reached(record.number, link.link, record.position, reached.events + record.count, reached.purged)


def mismatch_at_end(connection: Connection, org_id: str) -> Misfit | None:
    """Check the end of an organisation's audit chain in one transaction, and return a mismatch, if any.

    A mismatch is a link that the verification cannot reach, or a block of events that the newest link does
    not cover.
    """
    row = connection.row(
        "SELECT number, position FROM chain WHERE org_id = ? AND number < 1 LIMIT 1", (org_id,)
    )
    if row is not None:
        number, position = row
        return Misfit("forged", "the link is stored before the first one", number, position)
    row = connection.row(
        "SELECT position FROM chain WHERE org_id = ? AND kind <> 'purge' ORDER BY number DESC LIMIT 1",
        (org_id,),
    )
    return _mismatch_between(connection, org_id, _LEAST_POSITION, 0) or _mismatch_between(
        connection, org_id, row[0] + 1 if row else 1, _LAST_POSITION
    )


# -- links -----------------------------------------------------------------------------------------


def _mismatch_of_link(connection: Connection, reached: Reached, link: Link, key: bytes) -> Misfit | None:
    if make_link(reached.link, link.record) != link.link:
        return _why_not(connection, reached, link, key)
    if not _is_signed(link, key):
        text = "the link is not signed with this store's master key: the chain was made again from here on"
        return Misfit("forged", text, link.record.number, link.record.position)
    return None


def _is_signed(link: Link, key: bytes) -> bool:
    return link.mac is not None and compare_digest(link.mac, make_mac(key, link.link))


def _why_not(connection: Connection, reached: Reached, link: Link, key: bytes) -> Misfit:
    """Return the mismatch that explains why a chain link is not the expected next link."""
    record = link.record
    number = reached.number + 1
    moved = _find_next(connection, record.org_id, reached)
    if moved is not None and (record.number > number or _is_signed(link, key)):
        return Misfit("reordered", f"the link has the number {moved.number} now", number, moved.position)
    if moved is not None:
        return Misfit("inserted", "the link belongs to no chain", number, record.position)
    if record.number > number:
        text = f"no link is left from {number} to {record.number - 1}"
        return Misfit("removed", text, number)
    if _is_followed(connection, reached, link) or _mismatch_of_block(connection, reached, record):
        return Misfit("changed", "the content of the link is not what was hashed", number, record.position)
    return Misfit("removed", "the link before this one is gone", number, record.position)


def _find_next(connection: Connection, org_id: str, reached: Reached) -> Record | None:
    """Return the record of the chain link that directly follows the last verified link.

    Find the link by its hash and not by its stored number, because an attacker may have changed the number.
    """
    with each_link(connection, org_id) as links:
        for link in links:
            if make_link(reached.link, replace(link.record, number=reached.number + 1)) == link.link:
                return link.record
    return None


def _is_followed(connection: Connection, reached: Reached, link: Link) -> bool:
    """Return True if the next stored chain link was computed from the stored or recomputed hash of `link`."""
    made = (link.link, make_link(reached.link, link.record))
    for following in links_after(connection, link.record.org_id, link.record.number, 1):
        return any(make_link(each, following.record) == following.link for each in made)
    return False


def _mismatch_of_purge(record: Record) -> Misfit | None:
    unfit = msgspec.json.decode(record.content, type=Purged).unfit
    if not unfit:
        return None
    text = "the event was changed before retention deleted it"
    return Misfit("changed", text, record.number, record.position + unfit[0])


# -- blocks ----------------------------------------------------------------------------------------


def _mismatch_between(connection: Connection, org_id: str, first: int, last: int) -> Misfit | None:
    """Return a mismatch if the range of positions contains a block of events that no link covers."""
    row = connection.row(
        "SELECT position, body FROM blocks WHERE org_id = ? AND position BETWEEN ? AND ?"
        " ORDER BY position LIMIT 1",
        (org_id, first, last),
    )
    if row is None:
        return None
    text = "no link covers the block: the block was inserted, or its link was deleted"
    return Misfit("inserted", text, None, row[0], _id_at(_events(row[1]), 0))


def _mismatch_of_block(connection: Connection, reached: Reached, record: Record) -> Misfit | None:
    stranger = _mismatch_between(connection, record.org_id, reached.position + 1, record.position - 1)
    if stranger is not None:
        return stranger
    gone = purged_places(connection, record.org_id, record.position, record.number)
    row = connection.row(
        "SELECT count, proxy_id, least_ms, most_ms, body FROM blocks WHERE position = ? AND org_id = ?",
        (record.position, record.org_id),
    )
    if row is None:
        if len(gone) == record.count:
            return None
        return Misfit("removed", "the block is gone, but was not purged", record.number, record.position)
    count, proxy_id, least_ms, most_ms, body = row
    misfit = _mismatch_of_events(connection, record, gone, body)
    if misfit is not None:
        return misfit
    if (count, proxy_id) != (record.count, record.proxy_id):
        return Misfit("changed", "the block's count or proxy is another", record.number, record.position)
    hidden = hidden_event(connection, record.org_id, record.position, (least_ms, most_ms), body)
    if hidden is not None:
        at, event_id = hidden
        text = "the event is unchanged, but can't be found by its time or its id any more"
        return Misfit("changed", text, record.number, record.position + at, event_id)
    return None


def _events(body: bytes) -> Sequence[bytes] | None:
    """Return the events in a block's body, or None if this body is not a JSON array."""
    try:
        return events_of(body)
    except (ValueError, RecursionError):
        return None


def _mismatch_of_events(connection: Connection, record: Record, gone: set[int], body: bytes) -> Misfit | None:
    events = _events(body)
    if events is None:
        text = "the block's body is no JSON array any more"
        return Misfit("changed", text, record.number, record.position)
    found = digests_of(events)
    digests = read_digests(connection, record.position)
    if content_of(digests) != record.content:
        all_fit = content_of(b"".join(found)) == record.content
        text = f"the digests of its events were changed{'' if all_fit else ', and events too'}"
        return Misfit("changed", text, record.number, record.position)
    known = each_digest(digests)
    for at, (digest, wanted) in enumerate(zip_longest(found, known)):
        is_purged = at in gone and at < len(events) and bytes(events[at]) == PURGED
        if digest != wanted and not is_purged:
            return _mismatch_of_event(connection, record, events, found, known, at)
        if at in gone and not is_purged:
            text = "retention had deleted the event"
            return Misfit("inserted", text, record.number, record.position + at, _id_at(events, at))
    return None


def _mismatch_of_event(
    connection: Connection, record: Record, events: Sequence[bytes], found: Sequence[bytes],
    known: Sequence[bytes], at: int,
) -> Misfit:  # fmt: skip
    what: What = "changed"
    text = "the event is not what was stored"
    is_null = at < len(events) and bytes(events[at]) == PURGED
    if sorted(found) == sorted(known) or _is_of_another_block(connection, record, found):
        what, text = "reordered", "the events are in another order"
    elif len(found) > len(known):
        what, text = "inserted", "the event at this place was never received"
    elif len(found) < len(known) or is_null:
        what, text = "removed", "an event is gone, but was not purged"
    event_id = None if what == "removed" else _id_at(events, at)
    return Misfit(what, text, record.number, record.position + at, event_id)


def _is_of_another_block(connection: Connection, record: Record, found: Sequence[bytes]) -> bool:
    row = connection.row(
        "SELECT 1 FROM chain WHERE org_id = ? AND content = ? AND number <> ?",
        (record.org_id, content_of(b"".join(found)), record.number),
    )
    return row is not None


def _id_at(events: Sequence[bytes] | None, at: int) -> str | None:
    try:
        event = msgspec.json.decode(events[at]) if events else None
    except (ValueError, IndexError):
        return None
    event_id = event.get("id") if isinstance(event, dict) else None
    return event_id if isinstance(event_id, str) else None
