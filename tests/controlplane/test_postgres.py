"""Tests of two control planes on one PostgreSQL database: exact shared counts, and no lost events."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import re
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from controlplane.doctor.examination import examine
from controlplane.settings import read_settings
from controlplane.store.database import NO_LOCKS, Connection, of_org
from controlplane.store.interface import (
    Duplicate,
    Limited,
    NewBatch,
    RateLimits,
    Reached,
    Stop,
    Stored,
    StoreError,
)
from controlplane.store.migrate import DatabaseTooNew, migrate, read_migrations, refusal
from proxy.config import SettingsError
from tests.controlplane.plane import NOON_MS, FakeClock, batch, started, write_settings
from tests.fakes.postgres import PostgresServer

psycopg = pytest.importorskip("psycopg")

from controlplane.store.postgres import PostgresStore  # noqa: E402
from controlplane.store.postgres_connection import PostgresConnection  # noqa: E402
from controlplane.store.postgres_database import bring_up_at, connect  # noqa: E402

LIMITS = RateLimits(org=1000, proxy=1000)
KEY = bytes(32)


@pytest.fixture
async def two(postgres_url: str, clock: FakeClock) -> AsyncIterator[tuple[PostgresStore, PostgresStore]]:
    stores = await PostgresStore.open(postgres_url, clock), await PostgresStore.open(postgres_url, clock)
    for store in stores:
        store.sign_links(KEY)
    yield stores
    for store in stores:
        await store.close()


def new(batch_id: str, org: str = "acme", proxy: str = "p1", count: int = 1) -> NewBatch:
    ids = [f"{batch_id}-{number}" for number in range(count)]
    events = [f'{{"id":"{each}","time":"2026-11-21T12:00:00Z"}}'.encode() for each in ids]
    return NewBatch(proxy, org, batch_id, ids, [None] * count, [NOON_MS] * count, events)


async def read(store: PostgresStore, position: int = 0) -> list[str]:
    """Return the batches after a position, in the order in which a reader receives the batches."""
    return [each.body.decode()[7:9] for each in await store.events_after(position, 100)]


async def test_no_event_appears_behind_a_reader(two: tuple[PostgresStore, PostgresStore]) -> None:
    """A delayed batch gets its positions before another batch, but is committed after that batch."""
    slow, other = two
    has_position, may_end = threading.Event(), threading.Event()

    def add_late(connection: Connection) -> None:
        first = connection.first_position(1)
        has_position.set()
        may_end.wait()
        connection.run(
            "INSERT INTO blocks (position, count, org_id, proxy_id, least_ms, most_ms, body)"
            " VALUES (?, 1, 'acme', 'p1', 1, 1, ?)",
            (first, b'[{"id":"b1-0","time":"2026-11-21T12:00:00Z"}]'),
        )

    late = asyncio.create_task(slow._database.write(add_late, of_org("acme")))
    await asyncio.to_thread(has_position.wait)
    assert await other.commit_batch(new("b2", "globex"), LIMITS) == Stored(1)
    assert await other.commit_batch(new("b3", "globex"), LIMITS) == Stored(1)
    assert await read(other) == []
    assert await other.last_position() == 0
    may_end.set()
    await late
    assert await read(other) == ["b1", "b2", "b3"]
    assert await read(slow) == ["b1", "b2", "b3"]


async def test_each_of_many_readers_gets_what_was_committed_before(
    two: tuple[PostgresStore, PostgresStore],
) -> None:
    for rounds in (1, 2):
        batches = (new(f"{rounds}{number}", f"org{number}") for number in range(8))
        await asyncio.gather(*(two[0].commit_batch(each, LIMITS) for each in batches))
        for found in await asyncio.gather(*(read(two[number % 2]) for number in range(30))):
            assert len(found) == 8 * rounds


async def test_a_transaction_without_positions_holds_no_reader_up(
    two: tuple[PostgresStore, PostgresStore], postgres_url: str
) -> None:
    """A backup of the database may take hours, but must not delay the readers of events."""
    with closing(connect(postgres_url)) as raw:
        raw.execute("BEGIN")
        raw.execute("INSERT INTO outbox_cursor (index_name, position) VALUES ('slow', 1)")
        await two[0].commit_batch(new("b1"), LIMITS)
        assert await read(two[1]) == ["b1"]


async def test_positions_rise_and_the_chain_holds_whoever_stores_a_batch(
    two: tuple[PostgresStore, PostgresStore],
) -> None:
    batches = [new(f"{n:02}", proxy=f"p{n % 7}", count=1 + n % 3 * 70) for n in range(30)]
    await asyncio.gather(*(two[n % 2].commit_batch(each, LIMITS) for n, each in enumerate(batches)))
    events = await two[0].events_after(0, 10_000)
    assert len(events) == sum(len(each.ids) for each in batches)
    assert [each.position for each in events] == sorted({each.position for each in events})
    head = await two[1].chain_head("acme")
    assert head is not None
    reached = Reached()
    while reached.number < head.newest.record.number:
        reached, misfit = await two[0].walk_chain("acme", reached, head.newest.record.number, KEY)
        assert misfit is None
    assert reached.events == len(events)
    assert await two[0].mismatch_at_chain_end("acme") is None


async def test_limits_are_exact_over_both(two: tuple[PostgresStore, PostgresStore]) -> None:
    limits = RateLimits(org=1000, proxy=20)
    outcomes = await asyncio.gather(*(two[n % 2].commit_batch(new(f"b{n}"), limits) for n in range(50)))
    assert sum(isinstance(each, Stored) for each in outcomes) == 20
    assert sum(isinstance(each, Limited) for each in outcomes) == 30


async def test_limits_are_measured_with_the_clock_of_the_database(
    postgres: PostgresServer, clock: FakeClock
) -> None:
    """The clock of the control plane's host is fixed in this test, in the year 2026."""
    store = await PostgresStore.open(postgres.url("migrated"), clock)
    try:
        await store.commit_batch(new("b1"), LIMITS)
        ((accepted, now),) = await store._database.fetch(
            "SELECT accepted_ms, CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint) FROM batches"
        )
    finally:
        await store.close()
        postgres.empty("migrated")
    assert 0 <= now - accepted < 60_000


async def test_a_batch_that_comes_to_both_is_stored_once(two: tuple[PostgresStore, PostgresStore]) -> None:
    outcomes = await asyncio.gather(*(store.commit_batch(new("b1"), LIMITS) for store in two * 5))
    assert outcomes.count(Stored(1)) == 1
    assert outcomes.count(Duplicate(1)) == 9


async def test_a_note_with_a_nul_is_kept_with_a_mark(two: tuple[PostgresStore, PostgresStore]) -> None:
    """SQLite can store the NUL character, but PostgreSQL cannot."""
    assert (await two[0].add_stop(Stop(None, None, "a\0b", "ada", 1))).reason == "a\ufffdb"
    assert await two[0].find_orgs("acme\0") == []


# Loss of the server


async def test_a_job_runs_again_if_its_connection_was_lost_before_the_commit(
    two: tuple[PostgresStore, PostgresStore],
) -> None:
    tries: list[int] = []

    def job(connection: Connection) -> str:
        (pid,) = connection.row("SELECT pg_backend_pid()")
        connection.run("INSERT INTO outbox_cursor (index_name, position) VALUES (?, 1)", (f"x{pid}",))
        tries.append(pid)
        if len(tries) == 1:
            connection.row("SELECT pg_terminate_backend(CAST(? AS int))", (pid,))
        return "done"

    assert await two[0]._database.write(job, NO_LOCKS) == "done"
    assert len(tries) == 2
    rows = await two[0]._database.fetch("SELECT index_name FROM outbox_cursor")
    assert rows == [(f"x{tries[1]}",)]


@pytest.mark.parametrize("reads_on", [True, False], ids=["at the next rows", "at the end"])
def test_rows_whose_connection_is_lost_leave_no_cursor_open(postgres_url: str, reads_on: bool) -> None:
    """If a cursor is still open at garbage collection, Python raises a warning, which fails this test."""

    def read_of_a_lost_connection() -> None:
        with PostgresConnection(raw).each("SELECT generate_series(1, 100000)") as rows:
            next(iter(rows))
            other.execute("SELECT pg_terminate_backend(CAST(%s AS int))", (raw.info.backend_pid,))
            if reads_on:
                list(rows)

    with closing(connect(postgres_url)) as raw, closing(connect(postgres_url)) as other:
        raw.execute("BEGIN")
        with pytest.raises(psycopg.OperationalError):
            read_of_a_lost_connection()
    gc.collect()


async def test_a_commit_that_may_have_succeeded_is_an_error_and_runs_once(
    two: tuple[PostgresStore, PostgresStore], postgres_url: str
) -> None:
    """Let a database trigger close the connection at the end of the commit.

    The store cannot find out the commit's result.
    """
    with closing(connect(postgres_url)) as raw:
        raw.execute(
            "CREATE FUNCTION cut() RETURNS trigger LANGUAGE plpgsql AS"
            " $$ BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NULL; END $$"
        )
        raw.execute(
            "CREATE CONSTRAINT TRIGGER cut AFTER INSERT ON outbox_cursor DEFERRABLE INITIALLY DEFERRED"
            " FOR EACH ROW EXECUTE FUNCTION cut()"
        )
        tries: list[int] = []

        def job(connection: Connection) -> None:
            tries.append(1)
            connection.run("INSERT INTO outbox_cursor (index_name, position) VALUES ('x', 1)")

        try:
            with pytest.raises(StoreError, match="may have succeeded"):
                await two[0]._database.write(job, NO_LOCKS)
        finally:
            raw.execute("DROP FUNCTION cut CASCADE")
    assert tries == [1]


async def test_connections_come_back_after_the_server_was_killed(
    two: tuple[PostgresStore, PostgresStore], postgres: PostgresServer
) -> None:
    await two[0].commit_batch(new("b1"), LIMITS)
    postgres.kill()
    with pytest.raises(StoreError):
        await two[0].commit_batch(new("b2"), LIMITS)
    with pytest.raises(StoreError):
        await two[0].ping()
    postgres.start()
    assert await two[0].commit_batch(new("b2"), LIMITS) == Stored(1)
    assert await two[1].commit_batch(new("b1"), LIMITS) == Duplicate(1)
    assert await read(two[1]) == ["b1", "b2"]


async def test_an_error_names_the_database_and_no_password(
    postgres: PostgresServer, clock: FakeClock
) -> None:
    url = postgres.url("nowhere").replace("@", ":secret-word@")
    with pytest.raises(StoreError) as raised:
        await PostgresStore.open(url, clock)
    assert "/nowhere" in str(raised.value)
    assert "secret-word" not in str(raised.value)


# The schema


def _columns(path: Path) -> set[tuple[str, str]]:
    import sqlite3

    with closing(sqlite3.connect(path)) as raw:
        return set(
            raw.execute(
                "SELECT t.name, c.name FROM sqlite_schema AS t JOIN pragma_table_info(t.name) AS c"
                " WHERE t.type = 'table' AND t.name NOT LIKE 'sqlite_%' AND t.name <> 'last_position'"
            )
        )


def test_both_engines_have_the_same_tables_and_columns(postgres: PostgresServer, tmp_path: Path) -> None:
    migrate(tmp_path / "store.db")
    with closing(connect(postgres.url("migrated"))) as raw:
        rows = raw.execute(
            "SELECT table_name, column_name FROM information_schema.columns JOIN information_schema.tables"
            " USING (table_schema, table_name) WHERE table_schema = 'public' AND table_type = 'BASE TABLE'"
            " AND table_name NOT LIKE 'search%'"
        ).fetchall()
    assert set(rows) == _columns(tmp_path / "store.db")


@pytest.fixture
def empty_url(postgres: PostgresServer) -> Iterator[str]:
    with postgres.new_database("first") as url:
        yield url


async def test_first_starts_at_once_make_one_store(empty_url: str, clock: FakeClock) -> None:
    stores = await asyncio.gather(*(PostgresStore.open(empty_url, clock) for _ in range(3)))
    for store in stores:
        await store.ping()
        await store.close()


def test_a_later_schema_is_refused_unless_it_says_that_this_release_can_run_on_it(empty_url: str) -> None:
    bring_up_at(empty_url)
    with closing(connect(empty_url)) as raw:
        raw.execute("INSERT INTO schema_version (version, name) VALUES (998, '0998_next.from_1.sql')")
        bring_up_at(empty_url)
        raw.execute("INSERT INTO schema_version (version, name) VALUES (999, '0999_other.sql')")
    with pytest.raises(DatabaseTooNew, match="newer release"):
        bring_up_at(empty_url)


@pytest.mark.parametrize(
    ("newer", "is_refused"),
    [
        ({}, False),
        ({19: "0019_a.from_18.sql"}, False),
        ({19: "0019_a.from_18.sql", 20: "0020_b.from_18.sql"}, False),
        ({19: "0019_a.from_18.sql", 20: "0020_b.from_19.sql"}, True),
        ({19: "0019_a.sql", 20: "0020_b.from_18.sql"}, True),
    ],
)
def test_a_server_of_schema_18_runs_on_what_only_adds(newer: dict[int, str], is_refused: bool) -> None:
    assert (refusal({17: "0017_x.sql", 18: "0018_y.sql", **newer}, 18) is not None) is is_refused


# Settings, doctor and commands


def _settings(folder: Path, url: str, **sections: str) -> Path:
    return write_settings(
        folder, **{"Store": f'Url = "{url}"', "SearchIndex": 'Kind = "postgresql"', **sections}
    )


@pytest.mark.parametrize(
    ("sections", "problem"),
    [
        ({"Store": 'Url = "postgresql://h/db"\nPath = "a.db"'}, r"Store\.Path: .*a file or a database"),
        ({"SearchIndex": 'Kind = "sqlite"'}, r"SearchIndex\.Kind: .*Store\.Url"),
        (
            {"Store": 'Url = "mysql://u:secret-word@h/db"'},
            r"Store\.Url: the URL must begin with postgresql://",
        ),
        ({"Store": 'Url = "postgresql://u:secret-word@h"'}, r"Store\.Url: the URL must name a database"),
    ],
)
def test_settings_that_cannot_be_used_are_refused_with_the_line(
    tmp_path: Path, sections: dict[str, str], problem: str
) -> None:
    path = _settings(tmp_path, "postgresql://h/db", **sections)
    with pytest.raises(SettingsError, match=problem) as raised:
        read_settings(path, {})
    assert re.search(r"controlplane\.toml:\d+: ", str(raised.value))
    assert "secret-word" not in str(raised.value)


def test_the_url_comes_from_a_file_or_the_environment(tmp_path: Path) -> None:
    index = {"SearchIndex": 'Kind = "postgresql"'}
    (tmp_path / "url").write_text("postgresql://h/of-file\n")
    named = write_settings(tmp_path, **index, Store='UrlFile = "url"')
    assert read_settings(named, {}).store.url == "postgresql://h/of-file"
    unnamed = write_settings(tmp_path, **index, Store="")
    environment = {"Store__Url": "postgresql://h/of-environment"}
    assert read_settings(unnamed, environment).store.url == "postgresql://h/of-environment"


def test_a_doctor_examines_the_database(tmp_path: Path, postgres_url: str) -> None:
    settings = read_settings(_settings(tmp_path, postgres_url.replace("@", ":secret-word@")), {})
    findings = {each.check: each for each in examine(settings, tmp_path / "controlplane.toml")}
    assert findings["store: schema"].status == "ok"
    assert findings["store: connections"].status == "ok"
    assert findings["store: durability"].status == "fail"  # the server of the tests does not sync to disk
    assert "secret-word" not in str(findings)


def test_a_doctor_says_that_the_database_is_away(tmp_path: Path) -> None:
    settings = read_settings(_settings(tmp_path, "postgresql://u:secret-word@127.0.0.1:9/db"), {})
    findings = {each.check: each for each in examine(settings, tmp_path / "controlplane.toml")}
    assert findings["store"].status == "fail"
    assert findings["store"].fix == "start the server, or correct host and port in Store.Url (or UrlFile)"
    assert (findings["search index"].status, findings["master key"].status) == ("warn", "warn")
    assert "secret-word" not in str(findings)


def test_a_start_and_a_doctor_ask_for_the_authority_of_the_database(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        answers = threading.Thread(target=_agree_to_tls, args=(server,), daemon=True)
        answers.start()
        missing = f"{tmp_path}/ca.crt".replace("/", "%2F")
        at = f"127.0.0.1:{server.getsockname()[1]}/db?sslmode=verify-full&sslrootcert={missing}"
        url = f"postgresql://u:secret-word@{at}"
        with pytest.raises(StoreError, match=r"database's authority in the URL: &sslrootcert=FILE"):
            bring_up_at(url)
        settings = read_settings(_settings(tmp_path, url), {})
        findings = {each.check: each for each in examine(settings, tmp_path / "controlplane.toml")}
    assert "Store.Url (or UrlFile): &sslrootcert=FILE" in findings["store"].fix
    assert "ca-certificates.crt" in findings["store"].fix


def _agree_to_tls(server: socket.socket) -> None:
    with contextlib.suppress(OSError):  # until the socket is closed
        while True:
            asking, _ = server.accept()
            with asking:
                asking.recv(8)
                asking.sendall(b"S")


async def test_a_command_beside_two_servers_works_on_their_store(
    tmp_path: Path, clock: FakeClock, postgres_url: str
) -> None:
    store = f'Url = "{postgres_url}"'
    sections = {"Store": store, "SearchIndex": 'Kind = "postgresql"'}
    async with started(tmp_path, clock, **sections) as one, started(tmp_path, clock, **sections) as other:
        org = await one.org("acme")
        proxy = await other.proxy("edge-1", "acme")
        assert (await proxy.audit(batch("b1", org, [1]))).status == 202
        proxy.base_url = one.base_url
        assert (await proxy.audit(batch("b1", org, [1]))).json["duplicate"] is True
        assert (await proxy.sync()).status == 200
        command = [sys.executable, "-m", "controlplane", "--config", str(tmp_path / "controlplane.toml")]
        listing = await asyncio.create_subprocess_exec(*command, "org", "list", stdout=subprocess.PIPE)
        listed, _ = await listing.communicate()
    assert b"acme" in listed


@pytest.mark.parametrize("folder", ["migrations", "migrations/postgres"])
def test_each_migration_has_a_number_of_its_own(folder: str) -> None:
    numbers = [number for number, _, _ in read_migrations(folder)]
    assert len(set(numbers)) == len(numbers)
