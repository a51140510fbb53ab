"""Tests of the store's file: migrations, other releases, concurrent starts, a full disk, a full queue."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from pathlib import Path
from typing import TypeVar

import pytest

from controlplane.secrets import MasterKeyError
from controlplane.store import waiting
from controlplane.store.database import NO_LOCKS, Connection
from controlplane.store.interface import NewBatch, RateLimits, StoreBusy, Stored, StoreError
from controlplane.store.migrate import DatabaseTooNew, _migrations, migrate, read_migrations, refusal
from controlplane.store.sqlite import SqliteStore
from controlplane.store.sqlite_database import SqliteDatabase
from tests.controlplane.plane import (
    AUDIT,
    HEARTBEAT,
    SYNC,
    FakeClock,
    Plane,
    ProxyClient,
    batch,
    event,
    started,
)

T = TypeVar("T")
LIMITS = RateLimits(org=100, proxy=60)


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[SqliteDatabase]:
    opened = await SqliteDatabase.open(tmp_path / "store.db", FakeClock())
    yield opened
    await opened.close()


def _versions(path: Path) -> list[tuple[int, str]]:
    connection = sqlite3.connect(path)
    try:
        return connection.execute("SELECT version, name FROM schema_version ORDER BY version").fetchall()
    finally:
        connection.close()


def _numbers() -> list[int]:
    return [number for number, _, _ in _migrations()]


def test_migrations_are_applied_once_each_in_their_order(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    migrate(path)
    first = _versions(path)
    numbers = [number for number, _ in first]
    assert numbers == sorted(set(numbers)) == _numbers()
    migrate(path)
    assert _versions(path) == first


async def test_a_database_of_an_earlier_release_is_brought_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: FakeClock
) -> None:
    """The earlier release had one table row for each event.

    An upgrade from the earlier release keeps the positions, bytes, times and ids of the events.
    """
    path = tmp_path / "store.db"
    with monkeypatch.context() as patched:
        patched.setattr("controlplane.store.migrate._migrations", lambda: _migrations()[:3])
        migrate(path)
    connection = sqlite3.connect(path)
    for position, ms in ((7, 5), (8, 9)):
        body = f'{{"id": "e{ms}", "time":"1970-01-01T00:00:00.00{ms}Z"}}'
        row = (position, "o", "p", b"", ms, f"e{ms}", None, body)
        connection.execute("INSERT INTO events VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
    connection.commit()
    connection.close()
    migrate(path)
    assert [number for number, _ in _versions(path)] == _numbers()
    store = await SqliteStore.open(path, clock)
    stored = await store.events_after(0, 9)
    assert [(each.position, json.loads(each.body)["id"]) for each in stored] == [(7, "e5"), (8, "e9")]
    time = "1970-01-01T00:00:00.009Z"
    events = [json.dumps({"id": each, "time": time}).encode() for each in ("e9", "e3")]
    again = NewBatch("p", "o", "b", ["e9", "e3"], [None, None], [9, 9], events)
    assert await store.commit_batch(again, LIMITS) == Stored(1)
    assert [stored.position for stored in await store.events_after(0, 9)] == [7, 8, 9]
    assert await store.purge_events("o", 6, 10) == 1
    assert [stored.position for stored in await store.events_after(0, 9)] == [8, 9]
    await store.close()


# Schemas of the releases from which control planes are upgraded one by one.
_BEFORE = {"migrations": 28, "migrations/postgres": 10}


@pytest.mark.parametrize("folder", _BEFORE)
def test_a_control_plane_of_the_schema_before_runs_beside_this_one(folder: str) -> None:
    applied = {number: name for number, name, _ in read_migrations(folder)}
    assert refusal(applied, _BEFORE[folder]) is None


def test_an_older_program_can_write_and_delete_without_the_tables_and_columns_added_since(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "store.db"
    older = [each for each in read_migrations("migrations") if each[0] <= _BEFORE["migrations"]]
    with monkeypatch.context() as patched:
        patched.setattr("controlplane.store.migrate._migrations", lambda: older)
        migrate(path)
    before = _columns(path)
    migrate(path)
    after = _columns(path)
    assert before.items() <= after.items()
    tables = {table for table, _ in before}
    added = {name: kind for name, kind in after.items() if name[0] in tables and name not in before}
    assert set(added.values()) == {"optional"}
    with closing(sqlite3.connect(path)) as raw:
        references = raw.execute(
            "SELECT t.name, f.on_delete FROM sqlite_schema AS t JOIN pragma_foreign_key_list(t.name) AS f"
            " WHERE t.type = 'table'"
        ).fetchall()
    assert {rule for table, rule in references if table not in tables} == {"CASCADE"}


def _columns(path: Path) -> dict[tuple[str, str], str]:
    """Return for each column whether an insert must name it (`required`) or may omit it (`optional`)."""
    with closing(sqlite3.connect(path)) as raw:
        rows = raw.execute(
            'SELECT t.name, c.name, c."notnull" AND c.dflt_value IS NULL'
            " FROM sqlite_schema AS t JOIN pragma_table_info(t.name) AS c WHERE t.type = 'table'"
        )
        return {(table, column): "required" if needed else "optional" for table, column, needed in rows}


def test_a_database_of_a_later_release_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    migrate(path)
    connection = sqlite3.connect(path)
    connection.execute("INSERT INTO schema_version VALUES (999, '0999_future.sql')")
    connection.commit()
    connection.close()
    before = path.read_bytes()
    with pytest.raises(DatabaseTooNew, match="newer release"):
        migrate(path)
    assert path.read_bytes() == before


def test_a_migration_that_fails_leaves_nothing_of_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "store.db"
    broken = [
        (1, "0001_a.sql", "CREATE TABLE a (x);\nCREATE TABLE b (x);\nINSERT INTO nowhere VALUES (1);\n")
    ]
    monkeypatch.setattr("controlplane.store.migrate._migrations", lambda: broken)
    with pytest.raises(StoreError, match="nowhere"):
        migrate(path)
    connection = sqlite3.connect(path)
    assert connection.execute("SELECT name FROM sqlite_schema").fetchall() == []
    connection.close()


@pytest.mark.parametrize(
    "content", [b"not a database at all, but long enough to be read as one" * 20, b"SQLite"]
)
def test_a_file_that_is_no_database_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "store.db"
    path.write_bytes(content)
    with pytest.raises(StoreError, match=str(path)):
        migrate(path)


async def test_two_first_starts_at_once_make_one_store(tmp_path: Path, clock: FakeClock) -> None:
    stores = await asyncio.gather(*(SqliteStore.open(tmp_path / "store.db", clock) for _ in range(5)))
    for store in stores:
        await store.close()
    assert [number for number, _ in _versions(tmp_path / "store.db")] == _numbers()


async def test_commits_are_synced_to_disk(database: SqliteDatabase) -> None:
    """SQLite syncs the log to disk once for each commit, in WAL mode with synchronous = FULL."""

    def pragmas(connection: Connection) -> list[int | str]:
        names = ("synchronous", "journal_mode", "foreign_keys")
        return [connection.row(f"PRAGMA {name}")[0] for name in names]

    assert await database.write(pragmas, NO_LOCKS) == [2, "wal", 1]


async def test_a_job_that_fails_takes_nobody_with_it(database: SqliteDatabase) -> None:

    def good(connection: Connection) -> str:
        connection.run("INSERT INTO outbox_cursor VALUES ('good', 1)")
        return "done"

    def bad(connection: Connection) -> None:
        connection.run("INSERT INTO outbox_cursor VALUES ('bad', 1)")
        connection.run("INSERT INTO nowhere VALUES (1)")

    results = await asyncio.gather(
        database.write(bad, NO_LOCKS), database.write(good, NO_LOCKS), return_exceptions=True
    )
    assert isinstance(results[0], StoreError)
    assert results[1] == "done"
    assert await database.fetch("SELECT index_name FROM outbox_cursor") == [("good",)]


async def test_a_job_that_fails_uses_up_no_position(database: SqliteDatabase) -> None:
    """A failed job in a group uses no position, so the positions of other jobs are consecutive."""

    def batch_of(count: int, *, fails: bool = False) -> Callable[[Connection], int]:
        def job(connection: Connection) -> int:
            first = connection.first_position(count)
            connection.positions_used(first + count - 1)
            if fails:
                raise ValueError
            return first

        return job

    jobs = batch_of(2), batch_of(3, fails=True), batch_of(4)
    results = await asyncio.gather(*(database.write(job, NO_LOCKS) for job in jobs), return_exceptions=True)
    assert (results[0], results[2]) == (1, 3)
    assert isinstance(results[1], ValueError)
    assert await database.newest_position() == 6


async def test_jobs_that_wait_together_commit_together(database: SqliteDatabase) -> None:
    states: list[int] = []

    def job(connection: Connection) -> None:
        states.append(len(database._reader.rows("SELECT * FROM outbox_cursor")))
        connection.run(f"INSERT INTO outbox_cursor VALUES ('{len(states)}', 1)")

    await asyncio.gather(*(database.write(job, NO_LOCKS) for _ in range(20)))
    # No transaction saw the writes of another: all became visible in one commit.
    assert states == [0] * 20
    assert len(await database.fetch("SELECT * FROM outbox_cursor")) == 20


async def test_a_crowded_queue_says_so_at_once(
    database: SqliteDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limits of the store's queue count both writes and bytes.

    The store's queue has room for one call from every proxy of a large fleet.
    """
    assert waiting.MOST_WAITING >= 8000
    release = threading.Event()

    def slow(connection: Connection) -> None:
        release.wait()

    first = asyncio.create_task(database.write(slow, NO_LOCKS))
    await asyncio.sleep(0)
    monkeypatch.setattr(waiting, "MOST_WAITING", 3)
    writes = [asyncio.create_task(database.write(slow, NO_LOCKS)) for _ in range(3)]
    await asyncio.sleep(0)
    assert [task.done() for task in writes] == [False, False, True]
    assert isinstance(writes[2].exception(), StoreBusy)
    monkeypatch.setattr(waiting, "MOST_WAITING", 99)
    large = waiting.MOST_WAITING_BYTES
    several = [asyncio.create_task(database.write(slow, NO_LOCKS, size)) for size in (large, 1)]
    await asyncio.sleep(0)
    assert [task.done() for task in several] == [False, True]
    assert isinstance(several[1].exception(), StoreBusy)
    release.set()
    await asyncio.gather(first, *writes[:2], several[0])


async def test_a_full_disk_stores_nothing_and_is_over_once_there_is_room(
    plane: Plane, proxy: ProxyClient, clock: FakeClock
) -> None:
    """SQLite's page limit makes a write fail as a full disk does: with SQLITE_FULL, during a statement."""
    store = await SqliteStore.open(plane.settings.store.path, clock)
    ids = [f"e{n}" for n in range(99)]
    events = [json.dumps({"id": each, "pad": "x" * 9999}).encode() for each in ids]
    new = NewBatch(proxy.proxy_id, proxy.org_ids[0], "b1", ids, range(99), [0] * 99, events)
    await _limit_pages(store, 1)
    with pytest.raises(StoreError, match="full"):
        await store.commit_batch(new, LIMITS)
    assert await plane.stored() == []
    await _limit_pages(store, 1_000_000)
    assert await store.commit_batch(new, LIMITS) == Stored(99)
    await store.close()


async def _limit_pages(store: SqliteStore, pages: int) -> None:
    # Not in a job: the limit belongs to the connection, and is never below the present size.
    database = store._database
    assert isinstance(database, SqliteDatabase)
    database._writer.raw.execute(f"PRAGMA max_page_count = {pages}")


@pytest.mark.parametrize("path", [SYNC, AUDIT, HEARTBEAT])
async def test_a_store_that_fails_is_503_with_retry_after(
    plane: Plane, proxy: ProxyClient, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    async def fails(*_: object) -> None:
        raise StoreError("the store failed: database or disk is full")

    monkeypatch.setattr(SqliteDatabase, "write", fails)
    monkeypatch.setattr(SqliteDatabase, "write_even_if_full", fails)
    audit = json.dumps(batch("b1", proxy.org_ids[0], [1])).encode()
    response = await proxy.send(path, {SYNC: b"", AUDIT: audit, HEARTBEAT: b"{}"}[path])
    assert (response.status, response.code) == (503, "unavailable")
    assert int(response.headers["Retry-After"]) > 0
    assert "disk" not in response.body.decode()


async def test_the_outbox_hands_events_out_in_order_and_remembers_how_far(
    plane: Plane, proxy: ProxyClient
) -> None:
    (org,) = proxy.org_ids
    await proxy.audit({"batchId": "b1", "events": [event(org, number) for number in (3, 1, 2)]})
    await proxy.audit(batch("b2", org, [0]))
    store = plane.store
    assert await store.outbox_position("test") == 0
    first = await store.events_after(0, 3)
    assert [json.loads(stored.body)["seq"] for stored in first] == [3, 1, 2]
    await store.set_outbox_position("test", first[-1].position)
    assert await store.outbox_position("test") == first[-1].position
    assert await store.outbox_position("another") == 0
    assert [stored.position for stored in await store.events_after(first[-1].position, 10)] == [4]


async def test_the_outbox_hands_out_no_more_than_memory_should_hold(plane: Plane, proxy: ProxyClient) -> None:
    (org,) = proxy.org_ids
    for number in range(5):
        await proxy.audit(
            {"batchId": f"b{number}", "events": [{**event(org, number), "note": "x" * 4_000_000}]}
        )
    seen: list[int] = []
    while events := await plane.store.events_after(seen[-1] if seen else 0, 1000):
        assert sum(len(each.body) for each in events) < 21_000_000
        seen += [each.position for each in events]
    assert seen == [1, 2, 3, 4, 5]


async def test_a_store_without_its_master_key_starts_not_and_makes_none(
    tmp_path: Path, clock: FakeClock
) -> None:
    """The restored store lacks its master key, and a new key would hide that loss."""
    async with started(tmp_path, clock) as plane:
        await plane.org("acme")
        await plane.proxy("edge-1", "acme")
    key = tmp_path / "var" / "master.key"
    kept = key.read_bytes()
    key.unlink()
    with pytest.raises(MasterKeyError, match=f"{key} is missing, but the store has secrets"):
        async with started(tmp_path, clock):
            pass
    assert not key.exists()
    key.write_bytes(kept)
    async with started(tmp_path, clock):
        pass


async def test_who_is_interrupted_leaves_no_thread_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python waits for the database thread at the end of a command, and Ctrl-C would not end the thread."""
    threads: list[threading.Thread] = []
    begun = asyncio.Event()

    class Thread(threading.Thread):
        def start(self) -> None:
            threads.append(self)
            begun.set()
            super().start()

    monkeypatch.setattr("aiosqlite.core.Thread", Thread)

    async def interrupted(task: asyncio.Task[T], slots: int) -> T | BaseException:
        for _ in range(slots):
            await asyncio.sleep(0)
        task.cancel()
        return (await asyncio.gather(task, return_exceptions=True))[0]

    for slots in range(1, 25):
        begun.clear()
        opening = asyncio.create_task(SqliteStore.open(tmp_path / "store.db", FakeClock()))
        await begun.wait()
        store = await interrupted(opening, slots)
        if isinstance(store, SqliteStore):
            await interrupted(asyncio.create_task(store.close()), slots)
        store = await SqliteStore.open(tmp_path / "store.db", FakeClock())
        await interrupted(asyncio.create_task(store.close()), slots)
        for each in threads:
            await asyncio.to_thread(each.join, 10.0)
            assert not each.is_alive(), slots
