"""python -m bench.integrity: measure the cost of the audit chain and the speed of chain verification.

The cost is the processor time for the digests and the chain link of one batch of 500 events. The result also
shows the cost of the audit chain as a share of the time to commit the batch. The benchmark also times the
verification of the audit chain in a store with the requested number of events.
"""

import argparse
import asyncio
import tempfile
import time
from pathlib import Path
from statistics import median

from bench.events import ORG, batch
from controlplane.clock import SystemClock
from controlplane.ingest import parse_batch
from controlplane.integrity import begin_chain, walk
from controlplane.secrets import Vault
from controlplane.store import chain_table
from controlplane.store.interface import Org, RateLimits
from controlplane.store.sqlite import SqliteStore

BATCH = 500
LIMITS = RateLimits(1 << 30, 1 << 30)
_spent: list[float] = []
_add_blocks = chain_table.Chain.add_blocks


def _timed(*given: object) -> None:
    begun = time.thread_time()
    _add_blocks(*given)  # type: ignore[arg-type]
    _spent.append(time.thread_time() - begun)


async def measure(directory: Path, count: int) -> None:
    store = await SqliteStore.open(directory / "store.db", SystemClock())
    vault = Vault(b"k" * 32)
    await begin_chain(vault, store)
    await store.add_org(Org(ORG, "bench", "base", 0))
    chain_table.Chain.add_blocks = _timed  # type: ignore[method-assign, assignment]
    commits = []
    try:
        for first in range(0, count, BATCH):
            body = batch(f"b{first}", BATCH, first=first)
            begun = time.process_time()
            await store.commit_batch(parse_batch("proxy-1", body, time.time_ns() // 1_000_000)[0], LIMITS)
            commits.append(time.process_time() - begun)
        chained, whole = median(_spent) / BATCH * 1e6, median(commits) / BATCH * 1e6
        print(f"chained in {chained:.2f} µs of an event, of {whole:.2f} µs from parsing to the synced commit")
        begun, spent = time.monotonic(), time.process_time()
        async for at in walk(vault, store, ORG, None):
            last = at
        assert last.misfit is None, last
        assert last.reached.events == count // BATCH * BATCH
        spent, took = time.process_time() - spent, time.monotonic() - begun
        print(f"verified: {count / spent:,.0f} events for a second of processor time, {took:.1f} s in all")
    finally:
        await store.close()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.integrity", description=__doc__)
    parser.add_argument("--events", type=int, default=1_000_000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(measure(Path(directory), given.events))


if __name__ == "__main__":
    main()
