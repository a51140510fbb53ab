"""The events' own texts, read from the store's blocks: the index holds none of them itself."""

from __future__ import annotations

import sqlite3
from typing import Final

import msgspec

from controlplane.search.document import Document, UnsearchableError, read_document
from controlplane.store.interface import StoredEvent

_decode_block: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode
_PURGED: Final = b"null"


class Bodies:
    """For one search, on a connection that has the store attached: neighbours in time share a block, so the
    last one is kept."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._first = 0
        self._held: list[msgspec.Raw] = []

    def read(self, position: int) -> bytes | None:
        """None where retention has taken the event from the store, and soon will from the index."""
        at = position - self._first
        if not 0 <= at < len(self._held):
            self._hold(position)
            at = position - self._first
        body = bytes(self._held[at]) if at < len(self._held) else _PURGED
        return None if body == _PURGED else body

    def _hold(self, position: int) -> None:
        rows = self._db.execute(
            "SELECT position, body FROM store.blocks WHERE position <= ? ORDER BY position DESC LIMIT 1",
            (position,),
        ).fetchall()
        self._first, self._held = (rows[0][0], _decode_block(rows[0][1])) if rows else (position, [])

    def document(self, org_id: str, position: int, time_ms: int) -> Document:
        """With no values where there is no event any more, or none that can be searched."""
        body = self.read(position)
        try:
            return read_document(StoredEvent(position, org_id, body or b""))
        except UnsearchableError:
            return Document(org_id, "", position, time_ms, {}, b"")
