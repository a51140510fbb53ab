"""Archive a store's events in a directory, in small ranges.

The process runs until it finishes or a test kills it.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from controlplane.archive.object_store import Folder
from controlplane.clock import SystemClock
from controlplane.sinks.blob import BlobSink
from controlplane.sinks.consumer import Consumer
from controlplane.sinks.settings import AnySink, BlobSettings
from controlplane.store import archive_slices
from controlplane.store.sqlite import SqliteStore

SETTINGS = BlobSettings(name="archive", kind="blob", url="s3://audit", region="x", from_="beginning")


class Directory:
    """Object storage in a directory, in which each object is written completely and only once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._folder = Folder(path)

    async def create(self, name: str, body: bytes) -> bool:
        file = self._path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        whole = self._path.with_name("upload")
        whole.write_bytes(body)
        try:
            os.link(whole, file)
        except FileExistsError:
            return False
        finally:
            whole.unlink()
        return True

    async def read(self, name: str) -> bytes:
        return await self._folder.read(name)

    def names(self, prefix: str = "") -> AsyncIterator[str]:
        return self._folder.names(prefix)

    async def close(self) -> None:
        """Do nothing, because object storage in a directory needs no close."""


async def archive(store_path: Path, directory: Path) -> None:
    store = await SqliteStore.open(store_path, SystemClock())

    def opened(_: AnySink) -> BlobSink:
        raise AssertionError("the sink is given")

    sys.stdout.write("ready\n")
    sys.stdout.flush()
    await Consumer(SETTINGS, store, SystemClock(), opened).drain(BlobSink(Directory(directory), 0.0))
    await store.close()


if __name__ == "__main__":
    archive_slices.MOST_EVENTS = 20  # type: ignore[misc]
    asyncio.run(archive(Path(sys.argv[1]), Path(sys.argv[2])))
