"""An index writer that is killed after ClickHouse stored the first range, before the confirmation.

python -m tests.controlplane.killed_writer STORE URL
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from controlplane.clock import SystemClock
from controlplane.index_writer import IndexWriter
from controlplane.search.clickhouse import ClickHouseIndex
from controlplane.search.interface import Event
from controlplane.store.sqlite import SqliteStore


class KilledIndex(ClickHouseIndex):
    async def _insert(self, events: Sequence[Event], token: str) -> None:
        await super()._insert(events, token)
        os.kill(os.getpid(), signal.SIGKILL)


async def no_tiers() -> dict[str, int]:
    return {}


async def main(store_path: str, url: str) -> None:
    store = await SqliteStore.open(Path(store_path), SystemClock())
    await IndexWriter(store, KilledIndex(url, tiers=no_tiers)).drain()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
