"""Reader of the texts of events in the store's blocks, because the search index has no texts of events."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from controlplane.search.document import Document, UnsearchableError, read_document
from controlplane.search.query import fold
from controlplane.store.block_body import events_of
from controlplane.store.chain_table import PURGED
from controlplane.store.interface import StoredEvent

_log = logging.getLogger(__name__)

# number of cached blocks; several, because events of different proxies alternate in time
_MOST_HELD: Final = 64


class Bodies:
    """Reader of the texts of events for one search, on a database connection that has the store attached.

    Events that are close in time are often in the same block.
    """

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._first = 0
        self._events: list[msgspec.Raw] = []
        self._held: dict[int, list[msgspec.Raw]] = {}  # the most recently used block is last

    def read(self, position: int) -> bytes | None:
        """Return the text of an event.

        Return None for an event that retention has deleted from the store. The index soon deletes its own
        entry for an event that the store has deleted.
        """
        at = position - self._first
        if not 0 <= at < len(self._events):
            self._hold(position)
            at = position - self._first
        body = bytes(self._events[at]) if at < len(self._events) else PURGED
        return None if body == PURGED else body

    def _hold(self, position: int) -> None:
        rows = self._db.execute(
            "SELECT position FROM store.blocks WHERE position <= ? ORDER BY position DESC LIMIT 1",
            (position,),
        ).fetchall()
        self._first = rows[0][0] if rows else position
        self._events = self._block(self._first)

    def _block(self, first: int) -> list[msgspec.Raw]:
        events = self._held.pop(first, None)
        if events is None:
            sql = "SELECT body FROM store.blocks WHERE position = ?"
            rows = self._db.execute(sql, (first,)).fetchall()
            events = _readable(rows[0][0]) if rows else []
        if len(self._held) == _MOST_HELD:
            del self._held[next(iter(self._held))]
        self._held[first] = events
        return events

    def document(self, org_id: str, position: int, time_ms: int) -> Document:
        """Return the searchable values of an event as a Document.

        If the event was deleted or can't be searched, return a Document without values.
        """
        body = self.read(position)
        try:
            return read_document(StoredEvent(position, org_id, body or b""))
        except UnsearchableError:
            return Document(org_id, "", position, time_ms, {}, b"")

    def named(self, org_ids: Iterable[str], ids: Iterable[str]) -> Iterator[Document]:
        """Yield the events whose ID is one of the given IDs.

        Each ID is looked up as given, in lower case and in upper case.
        """
        spelled = {each for text in ids for each in (text, fold(text), text.upper())}
        for org_id in org_ids:
            for event_id in spelled:
                rows = self._db.execute(
                    "SELECT block FROM store.event_ids WHERE org_id = ? AND id = ?", (org_id, event_id)
                ).fetchall()
                for (first,) in rows:
                    block = (self.document(org_id, first + at, 0) for at in range(len(self._block(first))))
                    yield from (each for each in block if each.event_id == event_id)


def _readable(body: bytes) -> list[msgspec.Raw]:
    """Return the events of a block, or no events if the block is damaged.

    Damaged blocks are reported by the verification of the audit chain. A search continues without the events
    of a damaged block.
    """
    try:
        return events_of(body)
    except ValueError as error:
        _log.error("a search omitted the events of a damaged block: %s", error)
        return []
