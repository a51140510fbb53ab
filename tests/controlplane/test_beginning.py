"""Tests that a lost store does not count as a first start, and that a killed first start can be repeated."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from controlplane.store.beginning import StoreLost, require_store_or_first_start
from tests.controlplane.plane import FakeClock, started, write_settings
from tests.patience import PATIENCE_SECONDS


def _cli(config: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "controlplane", "--config", str(config), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS)


@pytest.fixture
async def used(tmp_path: Path, clock: FakeClock) -> Path:
    """Return the directory of a store that was in use, with its key, its reserve and its index."""
    async with started(tmp_path, clock) as plane:
        await plane.org("acme")
        await plane.proxy("edge-1", "acme")
    return tmp_path / "var"


def _empty(store: Path) -> None:
    store.write_bytes(b"")


def _without_tables(store: Path) -> None:
    store.unlink()
    with closing(sqlite3.connect(store)) as file:
        file.execute("VACUUM")
        file.execute("PRAGMA user_version = 1")


@pytest.mark.parametrize(
    ("lose", "lack"),
    [(Path.unlink, "is missing"), (_empty, "is empty"), (_without_tables, "has no tables")],
)
def test_a_lost_store_is_refused_by_everything_in_one_line(used: Path, lose: object, lack: str) -> None:
    store = used / "controlplane.db"
    for log in ("-wal", "-shm"):
        store.with_name(store.name + log).unlink(missing_ok=True)
    lose(store)  # type: ignore[operator]
    before = sorted(used.iterdir())
    config = write_settings(used.parent)
    for arguments in (("org", "list"), (), ("org", "add", "beta")):
        done = _cli(config, *arguments)
        assert done.returncode == 1
        (line,) = done.stderr.splitlines()[-1:]
        assert f"{store} {lack}" in line
        assert str(used / "master.key") in line
        assert "restore the backup" in line
        assert "store new" in line
    done = _cli(config, "doctor")
    assert done.returncode == 1
    assert f"{store} {lack}" in done.stdout
    assert sorted(used.iterdir()) == before


def test_a_directory_in_the_place_of_the_store_is_named(used: Path) -> None:
    """A container runtime creates a directory if the file of a mount is missing."""
    store = used / "controlplane.db"
    store.unlink()
    store.mkdir()
    config = write_settings(used.parent)
    for arguments in (("org", "list"), ()):
        done = _cli(config, *arguments)
        assert done.returncode == 1
        assert done.stderr.splitlines()[-1].endswith(f"{store} is a directory: Store.Path must name a file")
    assert f"{store} is a directory" in _cli(config, "doctor").stdout


@pytest.mark.parametrize("left", ["master.key", "controlplane.db.reserve", "controlplane.db.search.sqlite"])
def test_each_file_that_belongs_to_a_store_tells_that_there_was_one(used: Path, left: str) -> None:
    for path in used.iterdir():
        if path.name != left:
            path.unlink()
    with pytest.raises(StoreLost, match=left):
        require_store_or_first_start(used / "controlplane.db", used / "master.key")


async def test_a_new_store_is_made_on_demand(used: Path, clock: FakeClock) -> None:
    store = used / "controlplane.db"
    config = write_settings(used.parent)
    done = _cli(config, "store", "new")
    assert (done.returncode, "already" in done.stderr) == (1, True)
    _empty(store)
    assert _cli(config, "store", "new").returncode == 0
    async with started(used.parent, clock) as plane:
        assert await plane.store.proxies(None) == []
    (line,) = json.loads(_cli(config, "record", "search", "--json").stdout)["lines"]
    assert (line["operation"], line["outcome"]) == ("store.new", "done")


def test_a_directory_without_anything_is_a_first_start(tmp_path: Path) -> None:
    config = write_settings(tmp_path)
    assert _cli(config, "org", "add", "acme").returncode == 0
    assert "acme" in _cli(config, "org", "list").stdout


def test_a_first_start_that_was_killed_at_any_step_comes_up(tmp_path: Path) -> None:
    config = write_settings(tmp_path)
    command = [sys.executable, "-m", "tests.controlplane.killed_first_start", str(tmp_path), str(config)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    statuses = done.stdout.split()
    assert len(statuses) > 12
    assert set(statuses) == {"0"}, done.stderr
