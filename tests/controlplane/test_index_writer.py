"""Tests that each event of the outbox reaches the search index in order, even after failures."""

import asyncio
import sqlite3
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any, Final
from unittest.mock import ANY, AsyncMock, patch

import orjson
import pytest

from controlplane.index_writer import IndexWriter
from controlplane.ingest import Ingest
from controlplane.search.interface import Event, IndexUnavailableError, SearchQuery
from controlplane.search.known_event import Parsed
from controlplane.search.query import FIELDS, parse_filter
from controlplane.search.sqlite_index import SqliteIndex
from controlplane.store.interface import NewBatch, RateLimits
from controlplane.store.sqlite import SqliteStore
from tests.controlplane.new_store import open_new_store
from tests.controlplane.plane import FakeClock
from tests.controlplane.search_events import ORG, START_MS, event, numbers
from tests.patience import PATIENCE_SECONDS


@asynccontextmanager
async def store_at(path: Path) -> AsyncIterator[SqliteStore]:
    opened = await open_new_store(path, FakeClock())
    try:
        yield opened
    finally:
        await opened.close()


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    async with store_at(tmp_path / "store.db") as opened:
        yield opened


async def commit(store: SqliteStore, numbers: Sequence[int]) -> None:
    """Store a batch of audit events with the same code as the ingestion."""
    made = [event(number) for number in numbers]
    ids, seqs = [one["id"] for one in made], [one["seq"] for one in made]
    bodies = [orjson.dumps(one) for one in made]
    new = NewBatch("proxy-1", ORG, f"batch-{numbers}", ids, seqs, [START_MS] * len(ids), bodies)
    await store.commit_batch(new, RateLimits(10**6, 10**6))


class ScriptedIndex:
    """A search index for tests, which stores its events, and raises the failures that the test gave."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.seen: list[int] = []
        self.largest = 0
        self.attempts = asyncio.Semaphore(0)
        self.written = asyncio.Semaphore(0)

    async def outbox_name(self) -> str:
        return "scripted"

    async def write(self, events: Sequence[Event], after: int = 0) -> None:
        self.attempts.release()
        self.largest = max(self.largest, len(events))
        if self.failures:
            raise self.failures.pop(0)
        for number in numbers([one.body for one in events]):
            self.seen.append(number)
            self.written.release()


def index_writer(store: SqliteStore, index: object, **options: float) -> IndexWriter:
    quick = {"poll_seconds": 3600.0, "first_pause_seconds": 0.001, "longest_pause_seconds": 0.002}
    return IndexWriter(store, index, **(quick | options))  # type: ignore[arg-type]


@asynccontextmanager
async def running(index_writer: IndexWriter) -> AsyncIterator[asyncio.Task[None]]:
    async with asyncio.timeout(PATIENCE_SECONDS):
        task = asyncio.create_task(index_writer.run())
        try:
            yield task
        finally:
            index_writer.stop()
            await task


async def take(semaphore: asyncio.Semaphore, count: int) -> None:
    for _ in range(count):
        await semaphore.acquire()


async def test_events_come_in_order_each_once_and_in_bounded_batches(store: SqliteStore) -> None:
    index = ScriptedIndex()
    await commit(store, range(25))
    async with running(index_writer(store, index, batch_events=10)) as _:
        await take(index.written, 25)
    assert index.seen == list(range(25))
    assert index.largest == 10


async def test_an_index_that_has_much_to_take_logs_how_far_it_is(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("controlplane.index_writer._MUCH_EVENTS", 5)
    monkeypatch.setattr("controlplane.index_writer._REPORT_SECONDS", 0)
    caplog.set_level("INFO", logger="controlplane.index_writer")
    await commit(store, range(25))
    subject = index_writer(store, ScriptedIndex(), batch_events=5)
    await subject.drain()
    assert [record.getMessage() for record in caplog.records] == [
        "5 of 25 events are indexed (20 %)",
        "10 of 25 events are indexed (40 %)",
        "15 of 25 events are indexed (60 %)",
    ]
    assert subject.percent == 100


async def test_a_wake_brings_what_was_committed_before_it(store: SqliteStore) -> None:
    index = ScriptedIndex()
    subject = index_writer(store, index)
    async with running(subject):
        for number in range(5):
            await commit(store, [number])
            subject.wake()
            await take(index.written, 1)
    assert index.seen == [0, 1, 2, 3, 4]


async def test_without_a_wake_it_looks_by_itself(store: SqliteStore) -> None:
    """The commit of events by another process does not wake the index writer."""
    index = ScriptedIndex()
    async with running(index_writer(store, index, poll_seconds=0.001)):
        await commit(store, [1])
        await take(index.written, 1)


async def test_an_index_that_is_down_misses_nothing(
    store: SqliteStore, caplog: pytest.LogCaptureFixture
) -> None:
    index = ScriptedIndex(*[IndexUnavailableError("away")] * 5, RuntimeError("a fault of ours"))
    subject = index_writer(store, index, batch_events=2)
    await commit(store, range(3))
    async with running(subject):
        await take(index.attempts, 5)
        assert subject.problem == "away"
        assert subject.lag >= 2
        assert await store.outbox_position("scripted") == 0
        await commit(store, range(3, 6))
        subject.wake()
        await take(index.written, 6)
    assert f"{subject.problem} {subject.lag}" == "None 0"
    assert index.seen == [0, 1, 2, 3, 4, 5]
    assert "away" in caplog.text
    assert "a fault of ours" in caplog.text


async def test_an_event_that_no_index_can_take_keeps_none_of_the_others_out(
    store: SqliteStore, caplog: pytest.LogCaptureFixture
) -> None:
    class Choosy(ScriptedIndex):
        async def write(self, events: Sequence[Event], after: int = 0) -> None:
            if 3 in numbers([one.body for one in events]):
                raise TypeError("not that one")
            await super().write(events, after)

    index = Choosy()
    await commit(store, range(7))
    assert await index_writer(store, index).drain() == 7
    assert index.seen == [0, 1, 2, 4, 5, 6]
    assert "event at position 4 is omitted from the search index" in caplog.text


async def test_wakes_do_not_shorten_the_pause_after_a_failure(store: SqliteStore) -> None:
    """Even a busy control plane must not send more requests to a search index that is down."""
    index = ScriptedIndex(*[IndexUnavailableError("away")] * 100)
    subject = index_writer(store, index, first_pause_seconds=3600, longest_pause_seconds=3600)
    await commit(store, [1])
    async with running(subject):
        await take(index.attempts, 1)
        for _ in range(100):
            subject.wake()
            await asyncio.sleep(0)
    assert len(index.failures) == 99


async def test_a_crash_between_write_and_note_repeats_the_batch_and_the_index_holds_it_once(
    tmp_path: Path, store: SqliteStore
) -> None:
    index = await SqliteIndex.open(tmp_path / "search.sqlite", tmp_path / "store.db")
    try:
        await commit(store, range(10))
        await index.write(await store.events_after(0, 4))  # the process ended before it confirmed the write
        assert await IndexWriter(store, index, batch_events=3).drain() == 10
        page = await index.search(SearchQuery((ORG,), parse_filter("verdict:allow")))
        assert numbers(page.events) == list(reversed(range(10)))
        assert await store.outbox_position(await index.outbox_name()) == 10
        assert await IndexWriter(store, index).drain() == 0
    finally:
        await index.close()


_VALUES: Final = {"text": "x", "texts": ["a", "b"], "number": 1.5, "time": None}


def written(path: Path) -> list[list[tuple[Any, ...]]]:
    """Return all table rows in the file of the search index."""
    with closing(sqlite3.connect(path)) as file:
        return [
            file.execute(f"SELECT * FROM {table}").fetchall()
            for table in ("rows_0", "words_0_data", "codes_0", "counts_0", "parts", "reached")
        ]


async def accept(store: SqliteStore, subject: IndexWriter, *made: dict[str, Any]) -> None:
    """Store a batch of events in the same way as a running control plane."""

    def stored(parsed: Parsed | None) -> None:
        if parsed is not None:
            subject.take(parsed)

    body = orjson.dumps({"batchId": str(uuid.uuid4()), "events": made})
    await Ingest(store, RateLimits(10**6, 10**6), FakeClock(START_MS), stored).accept("proxy-1", {ORG}, body)


async def test_what_was_read_at_ingestion_is_found_as_if_it_had_been_read_again(
    tmp_path: Path, store: SqliteStore
) -> None:
    """The test compares the segment files of an audit index byte for byte.

    Each event field occurs in one of the events and is missing in another event.
    """
    index = await SqliteIndex.open(tmp_path / "search.sqlite", tmp_path / "store.db")
    again = await SqliteIndex.open(tmp_path / "again.sqlite", tmp_path / "store.db")
    subject = IndexWriter(store, index)
    full = {field.event_key: _VALUES[field.kind] for field in FIELDS.values()}
    must_be = {"id", "time", "orgId", "proxyId", "seq", "status", "verdict", "implausibleTime"}
    given = {key: value for key, value in full.items() if key not in must_be}
    await accept(store, subject, event(0) | given, event(1), event(2) | given | {"rulesetVersion": 7})
    try:
        with patch.object(store, "events_after", AsyncMock(return_value=[])) as read:
            assert await subject.drain() == 3
        read.assert_awaited_once_with(3, ANY)  # only the end was read from the store
        await again.write(await store.events_after(0, 9))
    finally:
        await index.close()
        await again.close()
    assert written(tmp_path / "search.sqlite") == written(tmp_path / "again.sqlite")


async def test_what_does_not_follow_is_read_from_the_store(tmp_path: Path, store: SqliteStore) -> None:
    """The index writer reads events from the store if another process stored them, or if a batch is unusual.

    A batch is unusual if it contains, for example, an event twice or an unknown member.
    """
    index = await SqliteIndex.open(tmp_path / "search.sqlite", tmp_path / "store.db")
    subject = IndexWriter(store, index)
    try:
        await accept(store, subject, event(0), event(1))
        await commit(store, [2])
        await accept(store, subject, event(3))
        await accept(store, subject, event(3), event(4))
        await accept(store, subject, event(5, new="member"))
        await accept(store, subject, event(6, proxyId="another"))
        await accept(store, subject, event(7))
        assert await subject.drain() == 8
        page = await index.search(SearchQuery((ORG,), parse_filter("")))
        assert numbers(page.events) == list(reversed(range(8)))
        page = await index.search(SearchQuery((ORG,), parse_filter("proxy:proxy-1 seq:6")))
        assert numbers(page.events) == [6]
    finally:
        await index.close()


async def test_no_more_waits_as_it_was_read_than_memory_should_hold(
    tmp_path: Path, store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controlplane.index_writer.MOST_PARSED_BYTES", 2000)
    index = await SqliteIndex.open(tmp_path / "search.sqlite", tmp_path / "store.db")
    subject = IndexWriter(store, index)
    try:
        for number in range(9):
            await accept(store, subject, event(number))
        assert 1 <= len(subject._parsed) < 9
        assert await subject.drain() == 9
        assert len(subject._parsed) == 0
    finally:
        await index.close()


async def test_server_and_command_line_drain_together(tmp_path: Path, store: SqliteStore) -> None:
    await commit(store, range(300))
    async with store_at(tmp_path / "store.db") as other_store:
        first = await SqliteIndex.open(tmp_path / "search.sqlite", tmp_path / "store.db")
        second = await SqliteIndex.open(tmp_path / "search.sqlite", tmp_path / "store.db")
        try:
            await asyncio.gather(
                IndexWriter(store, first, batch_events=7).drain(),
                IndexWriter(other_store, second, batch_events=11).drain(),
            )
            page = await second.search(SearchQuery((ORG,), limit=1000))
        finally:
            await first.close()
            await second.close()
    assert numbers(page.events) == list(reversed(range(300)))


async def test_an_index_that_was_deleted_is_built_again(tmp_path: Path, store: SqliteStore) -> None:
    await commit(store, range(5))
    path = tmp_path / "search.sqlite"
    for _ in range(2):
        index = await SqliteIndex.open(path, tmp_path / "store.db")
        try:
            assert await IndexWriter(store, index).drain() == 5
        finally:
            await index.close()
        path.unlink()


@pytest.mark.parametrize("is_read", [True, False])
async def test_an_index_that_another_process_made_anew_is_filled_whole(
    tmp_path: Path, store: SqliteStore, is_read: bool
) -> None:
    path = tmp_path / "search.sqlite"
    index = await SqliteIndex.open(path, tmp_path / "store.db")
    subject = IndexWriter(store, index)
    try:
        await accept(store, subject, *map(event, range(5)))
        assert await subject.drain() == 5
        with closing(sqlite3.connect(path)) as file:
            file.execute("PRAGMA user_version = 1")
        other = await SqliteIndex.open(path, tmp_path / "store.db")
        await other.write(await store.events_after(0, 2))
        await other.close()
        if is_read:
            await accept(store, subject, *map(event, range(5, 8)))
        else:
            await commit(store, range(5, 8))
        await subject.drain()
        page = await index.search(SearchQuery((ORG,)))
        assert numbers(page.events) == [7, 6, 5, 4, 3, 2, 1, 0]
        assert await store.outbox_position(await other.outbox_name()) == 8
    finally:
        await index.close()


async def test_an_older_index_in_the_place_of_the_newer_one_is_filled_whole(
    tmp_path: Path, store: SqliteStore
) -> None:
    """Test an index file that an older copy replaced, so that the store's cursor is ahead of the index."""
    index = await SqliteIndex.open(tmp_path / "search.sqlite", tmp_path / "store.db")
    try:
        await commit(store, range(5))
        await index.write(await store.events_after(0, 2))
        await store.set_outbox_position(await index.outbox_name(), 5)
        await commit(store, range(5, 8))
        await IndexWriter(store, index).drain()
        page = await index.search(SearchQuery((ORG,)))
        assert numbers(page.events) == [7, 6, 5, 4, 3, 2, 1, 0]
    finally:
        await index.close()


async def test_stop_ends_it_at_once(store: SqliteStore) -> None:
    for number, index in enumerate((ScriptedIndex(), ScriptedIndex(IndexUnavailableError("away")))):
        subject = index_writer(store, index, first_pause_seconds=3600, longest_pause_seconds=3600)
        await commit(store, [number])
        async with running(subject):
            await take(index.attempts, 1)


async def test_who_searches_waits_a_moment_for_the_index_and_no_longer(store: SqliteStore) -> None:
    free = asyncio.Event()

    class Slow(ScriptedIndex):
        async def write(self, events: Sequence[Event], after: int = 0) -> None:
            await free.wait()
            await super().write(events, after)

    index = Slow()
    await commit(store, range(3))
    made = index_writer(store, index)
    await made.catch_up(0.02)
    assert (made.is_behind, index.seen) == (True, [])
    free.set()
    await made.catch_up(10)
    assert (made.is_behind, index.seen) == (False, [0, 1, 2])
