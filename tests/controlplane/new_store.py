"""An empty SQLite store: a copy of the file that the product made once in this test process.

Creating an empty store runs all migrations, which took a fifth of the time of these tests.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path

from controlplane.store.sqlite import SqliteStore
from proxy.process.own_process import make_directory, make_file
from tests.fakes.clock import FakeClock

_made: list[bytes] = []  # content of the file, after the first use


async def put_new_store(path: Path) -> None:
    """Write an empty store to the path, unless a file exists at the path."""
    if not _made:
        await _make()
    _put(path)


async def _make() -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "store.db"
        store = await SqliteStore.open(file, FakeClock())
        await store.close()
        _made.append(file.read_bytes())


def _put(path: Path) -> None:
    make_directory(path.parent)
    with suppress(FileExistsError), os.fdopen(make_file(path, os.O_WRONLY), "wb") as file:
        file.write(_made[0])


async def open_new_store(path: Path, clock: FakeClock) -> SqliteStore:
    """Open the store at the path. If the file does not exist, begin with an empty store."""
    await put_new_store(path)
    return await SqliteStore.open(path, clock)
