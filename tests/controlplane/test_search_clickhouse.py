"""Tests of ClickHouse as search index: each event once despite kills, and retention by tier."""

from __future__ import annotations

import asyncio
import signal
import ssl
import sys
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from controlplane.index_writer import IndexWriter
from controlplane.search import open_index
from controlplane.search.clickhouse import ClickHouseIndex, _TooLongError
from controlplane.search.clickhouse_table import TABLE, create_table
from controlplane.search.interface import IndexUnavailableError, SearchQuery
from controlplane.settings import read_settings
from controlplane.store.sqlite import SqliteStore
from proxy.wire.audit_event import rfc3339
from tests.controlplane.new_store import open_new_store
from tests.controlplane.plane import FakeClock, batch, started, write_settings
from tests.controlplane.processes import facts
from tests.controlplane.search_events import ORG, OTHER_ORG, START_MS, accepted, event, numbers
from tests.controlplane.test_index_writer import commit
from tests.fakes.certificates import CertificateAuthority
from tests.fakes.clickhouse import HOW_TO_GET, IS_HERE, ClickHouse, clickhouse
from tests.patience import PATIENCE_SECONDS

pytestmark = pytest.mark.skipif(not IS_HERE, reason=HOW_TO_GET)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClickHouse]:
    with clickhouse(tmp_path_factory.mktemp("clickhouse")) as running:
        yield running


class Tiers:
    """A fake store that returns each organisation's retention in days."""

    def __init__(self) -> None:
        self.days: dict[str, int] = {}

    async def __call__(self) -> dict[str, int]:
        return dict(self.days)


@pytest.fixture
def tiers() -> Tiers:
    return Tiers()


@pytest.fixture
async def index(server: ClickHouse, tiers: Tiers) -> AsyncIterator[ClickHouseIndex]:
    opened = ClickHouseIndex(f"{server.url}/test_{uuid.uuid4().hex}", tiers=tiers)
    yield opened
    await opened.close()


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    opened = await open_new_store(tmp_path / "store.db", FakeClock())
    yield opened
    await opened.close()


async def rows(index: ClickHouseIndex, what: str = "count()", where: str = "1") -> Any:
    """Return the rows of the ClickHouse table. A row that was written twice occurs twice in the result."""
    await index.outbox_name()
    ((found,),) = await index._rows(f"SELECT {what} FROM {TABLE} WHERE {where}", {})
    return found


async def test_a_range_that_is_written_again_after_a_sigkill_adds_nothing(
    server: ClickHouse, index: ClickHouseIndex, store: SqliteStore, tmp_path: Path
) -> None:
    """Kill an index writer in mid-write, and add more events before the second attempt.

    The second attempt writes the interrupted range of events again, together with the new events.
    """
    await commit(store, range(5))
    module = [sys.executable, "-m", "tests.controlplane.killed_writer"]
    arguments = [str(tmp_path / "store.db"), f"{server.url}/{index._database}"]
    killed = await asyncio.create_subprocess_exec(*module, *arguments)
    assert await killed.wait() == -signal.SIGKILL
    assert await store.outbox_position(await index.outbox_name()) == 0
    assert await rows(index) == 5
    await commit(store, range(5, 8))
    assert await IndexWriter(store, index).drain() == 8
    assert await rows(index) == 8
    assert await store.outbox_position(await index.outbox_name()) == 8
    page = await index.search(SearchQuery((ORG,)))
    assert numbers(page.events) == [7, 6, 5, 4, 3, 2, 1, 0]


async def test_several_writers_at_once_write_each_event_once(
    server: ClickHouse, index: ClickHouseIndex, store: SqliteStore, tiers: Tiers
) -> None:
    """Three writers index the events of one outbox at the same time, in batches of different sizes."""
    await commit(store, range(60))
    others = [ClickHouseIndex(f"{server.url}/{index._database}", tiers=tiers) for _ in range(3)]
    writers = [
        IndexWriter(store, each, batch_events=size) for each, size in zip(others, (7, 20, 9), strict=True)
    ]
    await asyncio.gather(*(writer.drain() for writer in writers))
    for each in others:
        await each.close()
    assert await rows(index) == 60
    assert await store.outbox_position(await index.outbox_name()) == 60


async def test_what_was_accepted_while_clickhouse_was_away_is_there_after_it(
    tmp_path: Path, store: SqliteStore, tiers: Tiers
) -> None:
    """ClickHouse is killed, and started again with the same files."""
    with clickhouse(tmp_path / "clickhouse") as running:
        index = ClickHouseIndex(running.url, tiers=tiers)
        writer = IndexWriter(store, index, first_pause_seconds=0.01, longest_pause_seconds=0.05)
        await commit(store, range(3))
        task = asyncio.create_task(writer.run())
        await until(lambda: writer.position == 3)
        running.kill()
        for first in (3, 5):
            await commit(store, range(first, first + 2))
            writer.wake(first + 2)
            await until(lambda: writer.problem is not None)
            assert writer.lag == first - 1
        with pytest.raises(IndexUnavailableError):
            await index.search(SearchQuery((ORG,)))
        running.start()
        await until(lambda: writer.position == 7)
        writer.stop()
        await task
        assert await rows(index) == 7
        await index.close()


async def test_a_clickhouse_that_does_not_respond_delays_no_acknowledgement(
    server: ClickHouse, index: ClickHouseIndex, store: SqliteStore
) -> None:
    writer = IndexWriter(store, index, linger_seconds=0)
    await commit(store, [0])
    await writer.drain()
    task = asyncio.create_task(writer.run())
    server.stop_short()
    try:
        for number in range(1, 6):
            async with asyncio.timeout(PATIENCE_SECONDS):
                await commit(store, [number])
            writer.wake(number + 1)
        await asyncio.sleep(0)
        assert writer.position == 1
    finally:
        server.go_on()
    await until(lambda: writer.position == 6)
    writer.stop()
    await task
    assert await rows(index) == 6


async def until(holds: Any) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not holds():  # noqa: ASYNC110 - what it waits for is in another process
            await asyncio.sleep(0.01)


async def test_a_table_that_was_dropped_is_made_and_filled_again(
    index: ClickHouseIndex, store: SqliteStore
) -> None:
    await commit(store, range(4))
    writer = IndexWriter(store, index)
    await writer.drain()
    before = await index.outbox_name()
    await index._command(f"DROP TABLE {TABLE} SYNC")
    await commit(store, [4])
    with pytest.raises(IndexUnavailableError):
        await writer.drain()
    await writer.drain()
    assert await index.outbox_name() != before
    assert await rows(index) == 5


async def test_events_that_a_restored_table_lacks_are_written_again(
    index: ClickHouseIndex, store: SqliteStore, server: ClickHouse, tiers: Tiers
) -> None:
    await commit(store, range(6))
    await IndexWriter(store, index, batch_events=2).drain()
    await index._command(f"ALTER TABLE {TABLE} DELETE WHERE position > 3 SETTINGS mutations_sync = 1")
    await commit(store, [6])
    again = ClickHouseIndex(f"{server.url}/{index._database}", tiers=tiers)
    await IndexWriter(store, again).drain()
    await again.close()
    assert await rows(index) == 7


async def test_a_database_with_a_table_of_somebody_else_is_left_alone(index: ClickHouseIndex) -> None:
    await index._make_database()
    await index._command(f"CREATE TABLE {TABLE} (x Int64) ENGINE = MergeTree ORDER BY x")
    with pytest.raises(IndexUnavailableError, match="belongs to another program"):
        await index.write(accepted(event(1)))


async def test_fields_of_a_later_release_are_added_to_the_table(index: ClickHouseIndex) -> None:
    await index._make_database()
    older = create_table(f"graphward search index, format 1, {uuid.uuid4()}")
    await index._command(
        older.replace("trace Nullable(String) CODEC(ZSTD(1)), ", "").replace(
            "INDEX of_trace lower(trace) TYPE bloom_filter(0.01) GRANULARITY 1, ", ""
        )
    )
    await index.write(accepted(event(1, traceId="a-trace")))
    assert await rows(index, where="trace = 'a-trace'") == 1


async def test_a_control_plane_with_clickhouse_finds_what_it_accepted(
    server: ClickHouse, tmp_path: Path, clock: FakeClock
) -> None:
    section = f'Kind = "clickhouse"\nUrl = "{server.url}/of_a_control_plane"'
    async with started(tmp_path, clock, SearchIndex=section) as plane:
        acme = await plane.org("acme")
        proxy = await plane.proxy("edge-1", "acme")
        assert (await proxy.audit(batch("a", acme, range(1, 8)))).status == 202
        searched = await asyncio.to_thread(
            facts, tmp_path / "controlplane.toml", "audit", "search", "verdict:allow", "--org", "acme"
        )
    assert sorted(each["seq"] for each in searched["events"]) == list(range(1, 8))


# -- retention -------------------------------------------------------------------------------------


async def test_each_event_is_kept_as_long_as_its_organisations_tier_says(
    index: ClickHouseIndex, tiers: Tiers
) -> None:
    """ClickHouse removes expired events by itself.

    This test makes ClickHouse remove the expired events at once.
    """
    tiers.days = {ORG: 30, OTHER_ORG: 90}
    now = datetime.now(UTC)
    made = [
        event(number, orgId=org, time=rfc3339(int((now - timedelta(days=days)).timestamp() * 1000)))
        for number, (org, days) in enumerate(((ORG, 0), (ORG, 40), (OTHER_ORG, 40), (OTHER_ORG, 100)))
    ]
    await index.write(accepted(*made))
    written = (now - timedelta(days=95)).date()
    await index._command(
        f"ALTER TABLE {TABLE} UPDATE written = '{written}' WHERE 1 SETTINGS mutations_sync = 1"
    )
    await index._command(f"OPTIMIZE TABLE {TABLE} FINAL")
    assert sorted(await rows(index, "groupArray(seq)")) == [0, 2]


async def test_an_event_that_was_indexed_today_is_not_removed_for_its_age(
    index: ClickHouseIndex, tiers: Tiers
) -> None:
    """Retention counts the age of a late event from the receipt of the event, not from the event's time."""
    tiers.days = {ORG: 30}
    await index.write(accepted(event(1, time=rfc3339(START_MS))))
    await index._command(f"OPTIMIZE TABLE {TABLE} FINAL")
    assert await rows(index) == 1


async def test_a_changed_tier_reaches_what_is_there(index: ClickHouseIndex, tiers: Tiers) -> None:
    tiers.days = {ORG: 2557}
    await index.write(accepted(event(1)))
    tiers.days = {ORG: 30, OTHER_ORG: 90}  # the second organisation is new
    await index.write(accepted(event(2, orgId=OTHER_ORG), first_position=2))
    assert await index.purge(ORG, START_MS, limit=10) == 0
    await until_done(index)
    assert sorted(await rows(index, "groupArray((org, keep_days))")) == [(ORG, 30), (OTHER_ORG, 90)]


async def until_done(index: ClickHouseIndex) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        pending = "SELECT 1 FROM system.mutations WHERE NOT is_done"
        while await index._rows(pending, {}):  # noqa: ASYNC110 - another process works
            await asyncio.sleep(0.01)


async def test_a_page_ends_with_its_time_and_the_next_one_goes_on(
    index: ClickHouseIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Make the query of a page exceed its time limit if the query finds more than two events."""
    hour = 3_600_000
    times = [START_MS - age * hour for age in (2000, 1999, 100, 24, 1)]
    await index.write(accepted(*(event(n, time=rfc3339(ms)) for n, ms in enumerate(times))))
    asked = index._rows

    async def in_time(sql: str, values: Any, settings: Any = None) -> Any:
        found = await asked(sql, values, settings)
        if settings and len(found) > 2:
            raise _TooLongError
        return found

    monkeypatch.setattr(index, "_rows", in_time)
    query = SearchQuery((ORG,), to_ms=START_MS, limit=10)
    seen = []
    for _ in range(3):
        page = await index.search(query)
        seen.append(numbers(page.events))
        query = replace(query, cursor=page.next)
    assert seen == [[4, 3], [2], [1, 0]]
    assert query.cursor is None


async def test_a_query_that_takes_too_long_is_ended_by_the_server(index: ClickHouseIndex) -> None:
    slow = "SELECT sleepEachRow(0.2) FROM numbers(50) SETTINGS max_block_size = 1"
    with pytest.raises(_TooLongError):
        await index._rows(slow, {}, {"max_execution_time": 0.2})


async def test_times_that_can_not_be_true_share_one_partition(index: ClickHouseIndex) -> None:
    """A hostile proxy must not be able to create a partition for every possible month."""
    odd = [
        event(year, time=f"{year}-01-01T00:00:00Z", implausibleTime="future") for year in range(2101, 2400)
    ]
    await index.write(accepted(event(1), *odd))
    parts = f"SELECT uniqExact(partition) FROM system.parts WHERE database = '{index._database}' AND active"
    assert await index._rows(parts, {}) == [(2,)]


async def test_without_its_package_the_engine_is_refused_with_what_to_install(
    tmp_path: Path, store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "clickhouse_connect.driver", None)
    monkeypatch.delitem(sys.modules, "controlplane.search.clickhouse")
    section = 'Kind = "clickhouse"\nUrl = "http://127.0.0.1:9"'
    settings = read_settings(write_settings(tmp_path, SearchIndex=section), {})
    with pytest.raises(IndexUnavailableError, match=r"pip install \"graphward\[clickhouse\]\""):
        await open_index(settings.search_index, store, tmp_path / "store.db")


# -- secrets ---------------------------------------------------------------------------------------


async def test_a_wrong_password_is_told_and_not_shown(tmp_path: Path, tiers: Tiers) -> None:
    with clickhouse(tmp_path / "clickhouse", "right~password") as running:
        refused = ClickHouseIndex(running.url, username="default", password="wrong~password", tiers=tiers)
        with pytest.raises(IndexUnavailableError, match="516") as caught:
            await refused.outbox_name()
        assert "wrong~password" not in f"{caught.value} {refused!r}"
        await refused.close()
        known = ClickHouseIndex(running.url, username="default", password="right~password", tiers=tiers)
        await known.write(accepted(event(1)))
        await known.close()


async def test_a_server_with_tls_is_checked_by_the_authorities_of_ca_file(
    server: ClickHouse, tmp_path: Path, tiers: Tiers
) -> None:
    authority = CertificateAuthority(tmp_path / "ca")
    stranger = CertificateAuthority(tmp_path / "stranger")
    context = authority.server("localhost").server_context()
    async with with_tls(server, context) as url:
        known = ClickHouseIndex(f"{url}/of_tls", ca_file=authority.ca_file, tiers=tiers)
        await known.write(accepted(event(1)))
        assert await rows(known) == 1
        await known.close()
        refused = ClickHouseIndex(f"{url}/of_tls", ca_file=stranger.ca_file, tiers=tiers)
        with pytest.raises(IndexUnavailableError, match="certificate"):
            await refused.outbox_name()
        await refused.close()


@asynccontextmanager
async def with_tls(server: ClickHouse, context: ssl.SSLContext) -> AsyncIterator[str]:
    """Run a TLS terminator in front of the ClickHouse server."""
    port = int(server.url.rpartition(":")[2])

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        behind, to_behind = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(pipe(reader, to_behind), pipe(behind, writer))

    async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
        writer.close()

    front = await asyncio.start_server(relay, "127.0.0.1", 0, ssl=context)
    async with front:
        yield f"https://localhost:{front.sockets[0].getsockname()[1]}"
