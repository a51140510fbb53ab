"""A SQLite search index next to the file of a real store.

The helper writes blocks of events to the store before the events are indexed.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from controlplane.search.interface import Event
from controlplane.search.sqlite_index import SqliteIndex
from controlplane.store.migrate import migrate
from tests.patience import PATIENCE_SECONDS


class StoredIndex(SqliteIndex):
    store: Path

    async def write(self, events: Sequence[Event], after: int = 0) -> None:
        await asyncio.to_thread(put, self.store, events)
        await super().write(events, after)


def put(store: Path, events: Sequence[Event]) -> None:
    """Write each event as a separate block to the store and to the search index."""
    with closing(sqlite3.connect(store, timeout=PATIENCE_SECONDS)) as file:
        file.executemany(
            "INSERT OR IGNORE INTO blocks VALUES (?, 1, ?, 'proxy-1', 0, 0, ?)",
            [(event.position, event.org_id, b"[" + event.body + b"]") for event in events],
        )
        file.executemany(
            "INSERT OR IGNORE INTO event_ids SELECT ?1, json_extract(?2, '$.id'), ?3 WHERE json_valid(?2)"
            " AND json_type(?2, '$.id') = 'text'",
            [(event.org_id, event.body, event.position) for event in events if event.body.isascii()],
        )
        newest = max((event.position for event in events), default=0)
        file.execute("UPDATE last_position SET position = max(position, ?)", (newest,))
        file.commit()


@cache
def _migrated() -> bytes:
    """Return the content of the SQLite file of an empty store."""
    with TemporaryDirectory() as directory:
        store = Path(directory) / "store.db"
        migrate(store)
        return store.read_bytes()


@asynccontextmanager
async def opened(path: Path) -> AsyncIterator[StoredIndex]:
    """Open the search index at `path`, with a store in the same directory."""
    store = path.with_name("store.db")
    if not store.exists():
        store.write_bytes(_migrated())
    index = await StoredIndex.open(path, store)
    assert isinstance(index, StoredIndex)
    index.store = store
    try:
        yield index
    finally:
        await index.close()
