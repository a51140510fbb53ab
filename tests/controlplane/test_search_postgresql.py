"""Tests of a search index in PostgreSQL: each event occurs once, despite kills and lost or changed tables."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

from controlplane.doctor.index import index as examine
from controlplane.index_writer import IndexWriter
from controlplane.search.interface import IndexUnavailableError, SearchQuery
from controlplane.search.postgresql import PostgresIndex
from controlplane.search.postgresql_table import STATE, TABLE, PostgresDialect, bound
from controlplane.search.query import parse_filter
from controlplane.search.sql import page_condition
from controlplane.settings import read_settings
from controlplane.store.sqlite import SqliteStore
from proxy.wire.finding import Finding
from tests.controlplane.new_store import open_new_store
from tests.controlplane.plane import FakeClock, write_settings
from tests.controlplane.search_events import ORG, OTHER_ORG, START_MS, accepted, event, numbers
from tests.controlplane.test_index_writer import commit
from tests.fakes.postgres import PostgresServer


@pytest.fixture
def url(postgres: PostgresServer) -> Iterator[str]:
    with postgres.new_database("search") as made:
        yield made


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    opened = await open_new_store(tmp_path / "store.db", FakeClock())
    yield opened
    await opened.close()


@pytest.fixture
async def index(url: str) -> AsyncIterator[PostgresIndex]:
    opened = PostgresIndex(url)
    yield opened
    await opened.close()


def run(url: str, statement: str) -> list[Any]:
    with psycopg.connect(url) as raw:
        cursor = raw.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


async def found(index: PostgresIndex) -> list[int]:
    return numbers((await index.search(SearchQuery((ORG,)))).events)


async def test_a_crash_between_write_and_note_repeats_the_batch_and_the_index_holds_it_once(
    index: PostgresIndex, store: SqliteStore, url: str
) -> None:
    await commit(store, range(10))
    await index.write(await store.events_after(0, 4))  # the process ended before it confirmed the write
    others = [PostgresIndex(url) for _ in range(3)]
    writers = [IndexWriter(store, other, batch_events=size) for size, other in enumerate(others, 2)]
    await asyncio.gather(*(writer.drain() for writer in writers))
    for other in others:
        await other.close()
    assert await found(index) == list(reversed(range(10)))
    assert run(url, f"SELECT count(*) FROM {TABLE}") == [(10,)]
    assert await store.outbox_position(await index.outbox_name()) == 10


async def test_a_server_that_crashes_and_comes_back_loses_nothing(
    postgres: PostgresServer, index: PostgresIndex, store: SqliteStore
) -> None:
    writer = IndexWriter(store, index)
    await commit(store, range(3))
    await writer.drain()
    postgres.kill()
    await commit(store, range(3, 6))
    with pytest.raises(IndexUnavailableError, match="postgresql://"):
        await writer.drain()
    postgres.start()
    await writer.drain()
    assert await found(index) == [5, 4, 3, 2, 1, 0]


@pytest.mark.parametrize(
    "statement",
    [
        f"DROP TABLE {STATE}, {TABLE}",
        f"UPDATE {STATE} SET format = 0",  # another release writes this value
        # a restore from a copy leaves this state
        f"DELETE FROM {TABLE} WHERE position > 2; UPDATE {STATE} SET reached = 2",
    ],
    ids=["dropped", "other-format", "restored"],
)
async def test_an_index_that_lacks_what_came_before_is_filled_again(
    index: PostgresIndex, store: SqliteStore, url: str, statement: str
) -> None:
    await commit(store, range(4))
    await IndexWriter(store, index).drain()
    run(url, statement)
    await commit(store, [4])
    again = PostgresIndex(url)
    await IndexWriter(store, again).drain()
    assert await found(again) == [4, 3, 2, 1, 0]
    await again.close()


async def test_fields_of_a_later_release_are_added_to_the_table(index: PostgresIndex, url: str) -> None:
    await index.write(accepted(event(0)))
    run(url, f"ALTER TABLE {TABLE} DROP COLUMN credential, DROP COLUMN problem")
    again = PostgresIndex(url)
    await again.write(accepted(event(1, credentialId="crd-0123456789ab")))
    assert await found(again) == [1, 0]
    assert run(url, f"SELECT count(*) FROM {TABLE} WHERE credential = 'crd-0123456789ab'") == [(1,)]
    await again.close()


async def test_a_process_that_knew_the_index_before_writes_to_the_one_that_was_made_since(
    index: PostgresIndex, store: SqliteStore, url: str
) -> None:
    await commit(store, range(4))
    writer = IndexWriter(store, index)
    await writer.drain()
    run(url, f"DROP TABLE {STATE}, {TABLE}")
    again = PostgresIndex(url)
    await again.outbox_name()
    await again.close()
    await commit(store, [4])
    await writer.drain()
    assert await found(index) == [4, 3, 2, 1, 0]


async def test_a_rare_word_is_looked_up_and_not_looked_for(index: PostgresIndex, url: str) -> None:
    await index.write(accepted(*(event(n, path=f"/v1.0/users/u{n}/messages") for n in range(2000))))
    run(url, f"SELECT gin_clean_pending_list('{TABLE}_terms')")
    run(url, f"ANALYZE {TABLE}")
    of_path = ("path:/v1.0/users/u7/*", "path:/v1.0/users/u7*", "path:/v1.0/users/u7/messages")
    for text in ("u7", "u7*", *of_path, "rule:nothing"):
        condition = page_condition(SearchQuery((ORG,), parse_filter(text)), PostgresDialect())
        with psycopg.connect(url) as raw:
            explained = f"EXPLAIN SELECT 1 FROM {TABLE} WHERE {bound(condition)}"
            plan = psycopg.RawCursor(raw).execute(explained.encode(), condition.parameters).fetchall()
        assert f"{TABLE}_terms" in str(plan), text


async def test_a_page_of_a_host_without_a_clock_is_read(index: PostgresIndex) -> None:
    """Events of a host without a clock have very small times, but their positions can be large numbers."""
    made = (event(number, time=f"1970-01-01T00:00:0{number}Z") for number in range(2))
    await index.write(accepted(*made, first_position=40_000))
    assert await found(index) == [1, 0]


async def test_a_page_ends_with_its_time_and_the_next_one_goes_on(slow: PostgresIndex) -> None:
    query = SearchQuery((ORG,), parse_filter("path:*s*r*"))
    seen, pages = [], 0
    while True:
        page = await slow.search(query)
        seen += numbers(page.events)
        pages += 1
        if page.next is None:
            break
        query = replace(query, cursor=page.next)
    assert seen == list(reversed(range(40)))
    assert pages > 1


async def test_counts_say_if_their_time_was_over(slow: PostgresIndex) -> None:
    facets = await slow.facets(SearchQuery((ORG,)), ["seq"], top=100)
    assert 0 < facets.counted < 40
    assert not facets.complete
    newest = range(40 - facets.counted, 40)
    assert sorted(int(value) for value, _ in facets.fields["seq"]) == list(newest)
    histogram = await slow.histogram(SearchQuery((ORG,)), 1000)
    assert not histogram.complete
    starts = [start for start, _ in histogram.buckets]
    assert starts == [START_MS + number * 1000 for number in range(40)][-len(starts) :]


@pytest.fixture
async def slow(index: PostgresIndex, url: str, monkeypatch: pytest.MonkeyPatch) -> PostgresIndex:
    """Create an index of 40 events. A search in the index needs 5 ms for each event."""
    await index.write(accepted(*map(event, range(40))))
    sleep = "CREATE FUNCTION slowly() RETURNS boolean AS 'SELECT pg_sleep(0.005); SELECT true' LANGUAGE sql"
    view = f"CREATE VIEW {TABLE} AS SELECT * FROM held WHERE slowly()"
    run(url, f"{sleep} VOLATILE; ALTER TABLE {TABLE} RENAME TO held; {view}")
    limits = {"newest.WHOLE_SECONDS": 0.05, "newest.WALK_SECONDS": 0.1, "newest._FIRST": 8}
    for name, value in limits.items():
        monkeypatch.setattr(f"controlplane.search.postgresql_{name}", value)
    monkeypatch.setattr("controlplane.search.postgresql._COUNT_SECONDS", 0.05)
    return index


async def test_many_pages_of_one_organisation_leave_room_for_another(index: PostgresIndex) -> None:
    await index.write(accepted(event(0), event(1, orgId=OTHER_ORG)))
    done: list[str] = []

    async def search(org: str) -> None:
        await index.search(SearchQuery((org,)))
        done.append(org)

    many = [asyncio.create_task(search(OTHER_ORG)) for _ in range(64)]
    await asyncio.sleep(0)
    await asyncio.gather(search(ORG), *many)
    # In the order of their arrival, all but a few others would end first. A busy machine lets some more pass.
    assert done.index(ORG) <= 32


async def test_doctor_tells_how_far_the_index_is_and_why_it_can_not_be_reached(
    index: PostgresIndex, tmp_path: Path, url: str, clock: FakeClock
) -> None:
    def told(address: str) -> Finding:
        section = f'Kind = "postgresql"\nUrl = "{address}"'
        (found,) = examine(read_settings(write_settings(tmp_path, SearchIndex=section), {}))
        return found

    path = read_settings(write_settings(tmp_path), {}).store.path
    store = await SqliteStore.open(path, clock)
    await commit(store, range(3))
    assert told(url).found == f"no table {STATE} yet; the next start makes it"
    await index.outbox_name()
    assert told(url).found == "3 events behind the store"
    await IndexWriter(store, index).drain()
    await store.close()
    assert told(url).found == "0 events behind the store"
    run(url, f"UPDATE {STATE} SET format = 0")
    assert told(url).status == "warn"
    away = told("postgresql://somebody:p~ssword@127.0.0.1:9/search")
    assert away.status == "fail"
    assert "correct host and port in SearchIndex.Url" in str(away.fix)
    assert "p~ssword" not in str(away)
