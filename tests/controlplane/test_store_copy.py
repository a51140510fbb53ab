"""Tests of `store copy`, from SQLite to PostgreSQL: the copy is complete, even after a killed attempt."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from controlplane.doctor.postgres import postgres
from controlplane.settings import StoreSettings
from controlplane.store.alone import Alone
from controlplane.store.interface import LogQuery, StoreError
from controlplane.store.open_store import open_store
from controlplane.store.sqlite import SqliteStore
from tests.controlplane.plane import FakeClock, Plane, batch, started, write_settings
from tests.fakes.postgres import PostgresServer

pytest.importorskip("psycopg")

from controlplane.store.postgres_database import connect
from controlplane.store.store_copy import Progress, copy_rows, finish

# Each copy is killed when it reaches a table.
KILLED = """
import os, signal, sys
from pathlib import Path
from controlplane.store.store_copy import Progress, copy_rows, finish
def tell(progress):
    if progress.table == sys.argv[3]:
        os.kill(os.getpid(), signal.SIGKILL)
copy_rows(Path(sys.argv[1]), sys.argv[2], tell)
"""


@pytest.fixture
def target(postgres: PostgresServer) -> Iterator[str]:
    with postgres.new_database("copied") as url:
        yield url


@pytest.fixture
async def file(tmp_path: Path, clock: FakeClock) -> Path:
    """Create a store as after some use: an organisation, a ruleset, a proxy and 200 events."""
    async with started(tmp_path, clock) as plane:
        await _fill(plane)
        return plane.settings.store.path


async def _fill(plane: Plane) -> None:
    org = await plane.org("acme")
    await plane.ruleset("acme", "hr")
    proxy = await plane.proxy("edge-1", "acme")
    for number in range(2):
        sent = batch(f"b{number}", org, range(100 * number + 1, 100 * number + 101))
        assert (await proxy.audit(sent)).status == 202
    assert (await proxy.sync()).status == 200
    await plane.store.add_metrics(proxy.proxy_id, "a\0b", "{}")  # PostgreSQL stores no NUL
    app = (await plane.inventory.add_app("gone", "acme", "hr")).app
    await plane.store.delete_app(app.app_id, "ada")


# The command is interrupted when it reports its first rows.
INTERRUPTED = """
import os, signal, sys
from controlplane.cli import main, store
store._Told.__call__ = lambda told, progress: os.kill(os.getpid(), signal.SIGINT)
sys.exit(main(sys.argv[1:]))
"""


def _copy(folder: Path, url: str, file: Path, *program: str) -> subprocess.CompletedProcess[str]:
    config = write_settings(folder, Store=f'Url = "{url}"', SearchIndex='Kind = "postgresql"')
    command = [
        sys.executable,
        *(program or ("-m", "controlplane")),
        "--config",
        str(config),
        "store",
        "copy",
        str(file),
        "--json",
    ]
    return subprocess.run(command, capture_output=True, text=True, check=False)


async def _compare(file: Path, url: str, clock: FakeClock) -> None:
    before = await SqliteStore.open(file, clock)
    after = await open_store(Path(), url, clock, None)
    try:
        assert await after.events_after(0, 1000) == await before.events_after(0, 1000)
        assert await after.orgs() == await before.orgs()
        assert await after.proxies(None) == await before.proxies(None)
        assert await after.rulesets(None) == await before.rulesets(None)
        gone = await before.tombstones_named("gone")
        assert await after.tombstones_named("gone") == gone
        assert len(gone) == 1
        (org,) = await after.chained_orgs()
        assert await after.chain_head(org) == await before.chain_head(org)
        assert await after.last_position() == await before.last_position()
    finally:
        await before.close()
        await after.close()


async def test_a_copy_has_all_of_the_store_and_goes_on(
    tmp_path: Path, file: Path, target: str, clock: FakeClock
) -> None:
    copied = _copy(tmp_path, target, file)
    assert copied.returncode == 0, copied.stderr
    facts = json.loads(copied.stdout)
    assert facts["events"] == 200
    assert facts["verifiedLinks"] > 0
    assert "blocks: " in copied.stderr
    assert " of 0 rows" not in copied.stderr
    assert copied.stderr.endswith(f"the copy is complete: start the control plane, and move {file} away\n")
    assert not [each.name for each in file.parent.glob("*-wal")]
    await _compare(file, target, clock)
    sections = {"Store": f'Url = "{target}"', "SearchIndex": 'Kind = "postgresql"'}
    async with started(tmp_path, clock, **sections) as plane:
        (org,) = await plane.store.orgs()
        proxy = await plane.proxy("edge-2", "acme")
        assert [each.operation for each in await plane.store.operator_log(LogQuery(limit=1))] == [
            "store.copy"
        ]
        assert (await proxy.audit(batch("b9", org.org_id, range(900, 910)))).json["accepted"] == 10
        assert [each.position for each in await plane.store.events_after(200, 100)] == list(range(201, 211))


@pytest.mark.parametrize("table", ["event_ids", "orgs"])
async def test_a_copy_that_was_killed_goes_on(file: Path, target: str, clock: FakeClock, table: str) -> None:
    killed = await asyncio.create_subprocess_exec(sys.executable, "-c", KILLED, file, target, table)
    assert await killed.wait() == -signal.SIGKILL
    with pytest.raises(StoreError, match="not finished"):
        await open_store(Path(), target, clock, None)
    (found, *_) = postgres(StoreSettings(url=target))
    assert (found.status, found.fix) == ("fail", "run the same `store copy` again: it continues")
    copy_rows(file, target, lambda _: None)
    finish(target)
    await _compare(file, target, clock)


def test_a_database_with_other_content_is_refused(file: Path, target: str) -> None:
    copy_rows(file, target, lambda _: None)
    finish(target)
    with pytest.raises(StoreError, match="has this store already: the copy is complete"):
        copy_rows(file, target, lambda _: None)
    with closing(connect(target)) as raw:
        raw.execute("UPDATE master_key_check SET sealed = 'another'")
    with pytest.raises(StoreError, match="has content already"):
        copy_rows(file, target, lambda _: None)


def test_a_file_that_a_control_plane_uses_is_refused(tmp_path: Path, file: Path, target: str) -> None:
    alone = Alone(file)
    try:
        refused = _copy(tmp_path, target, file)
    finally:
        os.close(alone._file)
    assert refused.returncode == 1
    assert "is in use by a control plane: stop it until the copy is complete" in refused.stderr


def test_a_copy_that_is_interrupted_says_how_to_go_on(tmp_path: Path, file: Path, target: str) -> None:
    interrupted = _copy(tmp_path, target, file, "-c", INTERRUPTED)
    assert (interrupted.returncode, interrupted.stderr) == (
        130,
        "the copy was interrupted: run the same command again to continue\n",
    )
    missing = _copy(tmp_path, target, tmp_path / "no.db")
    assert (missing.returncode, missing.stderr) == (2, f"{tmp_path / 'no.db'}: no such file\n")


def test_a_copy_does_not_go_on_with_a_file_that_was_changed(file: Path, target: str) -> None:
    def interrupt(progress: Progress) -> None:
        if progress.table == "chain":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        copy_rows(file, target, interrupt)
    with closing(sqlite3.connect(file)) as raw, raw:
        raw.execute("UPDATE last_position SET position = position + 1")
    with pytest.raises(StoreError, match="changed since"):
        copy_rows(file, target, interrupt)
