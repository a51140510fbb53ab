"""python -m bench.search: measure searches over many events, written through the store and its index writer.

For each filter, the first page and two more pages are requested, newest events first, as an operator would.
The benchmark also requests the facets and the histogram of the console. If the command line names a
directory, the benchmark keeps the directory and uses its data again.
"""

import argparse
import asyncio
import resource
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from statistics import median, quantiles

from bench.events import ORG, START_MS, batch
from bench.index_engines import ENGINES, IndexSettings, cpu_seconds, engine
from controlplane.clock import SystemClock
from controlplane.index_writer import IndexWriter
from controlplane.ingest import parse_batch
from controlplane.search import open_index
from controlplane.search.interface import SearchIndex, SearchQuery
from controlplane.search.query import parse_filter
from controlplane.store.interface import RateLimits
from controlplane.store.sqlite import SqliteStore

BATCH = 500
SPAN_MS = 28 * 24 * 3_600_000  # period of the events in ms
LIMITS = RateLimits(1 << 30, 1 << 30)
HOUR_MS = 3_600_000
PERIODS = ((HOUR_MS, HOUR_MS // 60), (24 * HOUR_MS, HOUR_MS // 2), (7 * 24 * HOUR_MS, 3 * HOUR_MS))
FACETS = ("verdict", "status", "reason", "rule", "app", "method", "path", "ip")
FILTERS = (
    "",
    "verdict:block",
    "-verdict:allow",
    "status:403",
    "status:>=400",
    "status:502 verdict:filter",
    "rule:rule-7",
    "rule:rule-7 verdict:block status:403",
    "app:0193f6b2-0000-7000-8000-000000000007",
    "client:0193f6b2-0000-7001-8000-000000000007 status:429",
    "ip:10.0.3.7",
    "ip:10.0.3.* verdict:block",
    "path:/v1.0/users/*",
    "path:/v1.0/groups/* verdict:block status:403",
    "path:/v1.0/users/user4711@contoso.com",
    "path:/v1.0/users/user4711@contoso.com/*",
    "path:/v1.0/users/user4711*",
    "user4711",
    "user4711 verdict:block",
    "user4711@contoso.com -verdict:allow status:>=400 rule:rule-3",
    "duration:>99.9 verdict:block",
    "verdict:log_only ip:10.0.1.99",
    "rule:rule-7 ip:10.0.3.7 app:0193f6b2-0000-7000-8000-000000000007",
    "rule:no-such-rule",
    "nosuchword",
    "ip:192.0.2.1",
    "path:/v1.0/nothing/*",
)


@asynccontextmanager
async def opened(directory: Path, settings: IndexSettings) -> AsyncIterator[tuple[SqliteStore, SearchIndex]]:
    async with AsyncExitStack() as stack:
        store = await SqliteStore.open(directory / "store.db", SystemClock())
        stack.push_async_callback(store.close)
        index = await open_index(settings, store, directory / "store.db")
        stack.push_async_callback(index.close)
        yield store, index


async def build(directory: Path, count: int, settings: IndexSettings) -> None:
    spent = cpu_seconds(settings.process) if settings.process else 0.0
    written = 0
    async with opened(directory, settings) as (store, index):
        index_writer = IndexWriter(store, index)
        every_ms = SPAN_MS / count
        here = 0.0
        ((have,),) = await store._database.fetch("SELECT position FROM last_position")
        for first in range(have, count, BATCH):
            body = batch(f"b{first}", BATCH, first=first, every_ms=every_ms)
            await store.commit_batch(parse_batch("proxy-1", body, time.time_ns() // 1_000_000)[0], LIMITS)
            if first % (BATCH * 16) == 0:
                begun = time.process_time()
                written += await index_writer.drain()
                here += time.process_time() - begun
        written += await index_writer.drain()
    if written:
        print(f"indexing, with reading from the store: {here / written * 1e6:.1f} µs of CPU an event")
    for file in (directory / "store.db", directory / "store.db.search.sqlite"):
        if file.exists():
            print(f"{file.name}: {file.stat().st_size / count:.0f} bytes an event")
    if settings.process and written:
        spent = cpu_seconds(settings.process) - spent
        print(f"{settings.kind}: {spent / written * 1e6:.1f} µs of its CPU for each of {written} events")


async def ask(
    index: SearchIndex, text: str, span: tuple[int, int] | None
) -> tuple[list[tuple[float, float]], int]:
    """Search for three result pages; return each page's wall and CPU time in ms, and the event count."""
    from_ms, to_ms = span or (None, None)
    cursor, took, events = None, [], 0
    for _ in range(3):
        begun, spent = time.perf_counter(), time.process_time()
        query = SearchQuery((ORG,), parse_filter(text), from_ms, to_ms, cursor=cursor)
        page = await index.search(query)
        took.append(((time.perf_counter() - begun) * 1000, (time.process_time() - spent) * 1000))
        events += len(page.events)
        cursor = page.next
        if cursor is None:
            break
    return took, events


async def count(index: SearchIndex, text: str) -> tuple[float, float, int, bool]:
    """Measure the requests for facets and for a histogram, and return their milliseconds.

    Also return the number of events in the histogram, and True if the histogram is complete.
    """
    query = SearchQuery((ORG,), parse_filter(text))
    begun = time.perf_counter()
    await index.facets(query, FACETS)
    between = time.perf_counter()
    histogram = await index.histogram(query, HOUR_MS)
    ended = time.perf_counter()
    counted = sum(each for _, each in histogram.buckets)
    return (between - begun) * 1000, (ended - between) * 1000, counted, histogram.complete


async def measure_overview(index: SearchIndex, end_ms: int) -> None:
    """Measure the queries of the console's overview: verdicts in three periods, and blocked requests."""
    took = []
    for period_ms, interval_ms in PERIODS:
        from_ms = end_ms // interval_ms * interval_ms - period_ms + interval_ms
        begun = time.perf_counter()
        for verdict in ("allow", "filter", "log_only", "block"):
            query = SearchQuery((ORG,), parse_filter(f"verdict:{verdict}"), from_ms, from_ms + period_ms)
            assert (await index.histogram(query, interval_ms)).complete
        blocked = SearchQuery((ORG,), parse_filter("verdict:block"), from_ms)
        await index.facets(blocked, ("app", "ruleid"), top=6)
        took.append((time.perf_counter() - begun) * 1000)
    begun = time.perf_counter()
    facets = await index.facets(SearchQuery((ORG,)), ("verdict", "rule", "reason", "status", "app", "method"))
    took.append((time.perf_counter() - begun) * 1000)
    print("overview of an hour, a day, a week: {:.1f}, {:.1f}, {:.1f} ms".format(*took))
    print(f"facets of all {facets.counted} events without a filter: {took[-1]:.1f} ms")


async def measure_counts(index: SearchIndex) -> None:
    for text in FILTERS:
        facets, histogram, counted, is_complete = await count(index, text)
        of = "" if is_complete else " of more"
        print(f"facets {facets:7.1f} ms, histogram {histogram:7.1f} ms, {counted:8}{of} events  {text!r}")


async def measure(directory: Path, repeat: int, settings: IndexSettings) -> None:
    middle = START_MS + SPAN_MS // 2
    every: list[tuple[float, float]] = []
    async with opened(directory, settings) as (_, index):
        for text in FILTERS:
            for name, span in (("", None), ("  an hour amid", (middle, middle + HOUR_MS))):
                took: list[tuple[float, float]] = []
                for _ in range(repeat):
                    pages, events = await ask(index, text, span)
                    took += pages
                every += took
                wall, cpu = zip(*took, strict=True)
                print(
                    f"{median(wall):8.1f} ms, at most {max(wall):8.1f}, CPU {median(cpu):6.1f} ms,"
                    f" {events:4} events  {text!r}{name}"
                )
        await measure_counts(index)
        await measure_overview(index, START_MS + SPAN_MS)
    for what, values in zip(("on the wall", "of CPU"), zip(*every, strict=True), strict=True):
        cuts = quantiles(values, n=100)
        percentiles = f"median {cuts[49]:.1f} ms, p95 {cuts[94]:.1f} ms, p99 {cuts[98]:.1f} ms"
        print(f"{len(every)} pages {what}: {percentiles}")
    print(f"memory: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024} MB at most")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.search", description=__doc__)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument(
        "--directory",
        type=Path,
        help="directory for the files of the measurement; missing files are made, and all files are kept",
    )
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--engine", choices=ENGINES, default="sqlite", help="database of the search index")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as passing:
        directory = given.directory or Path(passing)
        directory.mkdir(parents=True, exist_ok=True)
        with engine(given.engine, directory) as settings:
            asyncio.run(build(directory, given.events, settings))
            asyncio.run(measure(directory, given.repeat, settings))


if __name__ == "__main__":
    main()
