"""Tests of files that root created with a command, and of files that the service's user can't open."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from proxy.process.own_process import foreign, foreign_above, make_file
from tests.controlplane.plane import write_settings
from tests.controlplane.processes import ROOT, facts
from tests.fakes import commands
from tests.fakes.readable import as_if_all_could_read_the_checkout
from tests.patience import PATIENCE_SECONDS

NOBODY = 65534
NO_STORE = (
    "there is no store yet: the first start makes it, and so does the first command that changes something"
)

MAKES_A_STORE_WITHOUT_DESCRIPTORS = """
import resource, sys
from pathlib import Path
from controlplane.store.sqlite_database import _make_private
from controlplane.store.interface import StoreError
resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))
try:
    _make_private(Path(sys.argv[1]))
except StoreError as error:
    print(error)
"""

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user"),
]


@pytest.fixture
def config() -> Iterator[Path]:
    """Write a settings file in a directory of the service's user.

    Every user can access the directory of this settings file, unlike the temporary directories that pytest
    creates.
    """
    directory = Path(tempfile.mkdtemp(prefix="graphward-"))
    config = write_settings(directory)
    state = directory / "state"
    state.mkdir()
    config.write_text(config.read_text("utf-8").replace('"var/', '"state/var/'), "utf-8")
    for each in (directory, config):
        each.chmod(0o755)
    os.chown(state, NOBODY, NOBODY)
    yield config
    shutil.rmtree(directory)


def _search(config: Path) -> None:
    """Run a search command as root, which creates the search index and finds no events."""
    done = commands.run("--config", str(config), "audit", "search")
    assert done.returncode == 0, done.stderr


def test_what_root_makes_belongs_to_the_owner_of_the_directory(config: Path) -> None:
    facts(config, "org", "add", "acme")
    facts(config, "proxy", "add", "edge-1", "--org", "acme")
    _search(config)
    made = [config.parent / "state", *(config.parent / "state").rglob("*")]
    assert {each.name for each in made} >= {"var", "controlplane.db", "controlplane.db.search.sqlite"}
    assert {(each.stat().st_uid, each.stat().st_gid) for each in made} == {(NOBODY, NOBODY)}


@pytest.mark.parametrize(
    "command",
    [
        ["org", "list"],
        ["audit", "search"],
        ["audit", "verify"],
        ["operator", "list"],
        ["proxies", "list"],
        ["audit", "export", "--org", "acme", "--output", "out.ndjson"],
        ["doctor"],
        ["doctor", "--json"],
    ],
)
def test_a_command_that_only_reads_makes_no_store(config: Path, command: list[str]) -> None:
    done = commands.run("--config", str(config), *command)
    path = config.parent / "state" / "var" / "controlplane.db"
    if command[0] != "doctor":
        assert (done.returncode, done.stderr) == (1, f"{path}: {NO_STORE}\n")
    assert list((config.parent / "state").rglob("*")) == []
    assert not Path("out.ndjson").exists()


def test_a_command_that_only_reads_makes_no_master_key(config: Path) -> None:
    facts(config, "org", "add", "acme")
    facts(config, "audit", "verify")
    _search(config)
    assert not (config.parent / "state" / "var" / "master.key").exists()
    facts(config, "proxy", "add", "edge-1", "--org", "acme")  # the store has no mark of another key
    assert _as_nobody(config, "org", "list").returncode == 0


def test_a_file_in_a_directory_that_cannot_be_entered_names_the_directory(config: Path) -> None:
    facts(config, "org", "add", "acme")
    facts(config, "proxy", "add", "edge-1", "--org", "acme")
    var = config.parent / "state" / "var"
    os.chown(var, 0, 0)
    done = _as_nobody(config)
    assert done.returncode == 1
    assert f"{var} belongs to root, and this process runs as nobody: chown nobody {var}\n" in done.stderr


def test_an_export_belongs_to_the_owner_of_its_directory(config: Path) -> None:
    facts(config, "org", "add", "acme")
    out = config.parent / "state" / "out.ndjson"
    done = commands.run("--config", str(config), "audit", "export", "--org", "acme", "--output", str(out))
    assert done.returncode == 0, done.stderr
    assert out.stat().st_uid == NOBODY


def test_the_service_starts_after_the_first_commands_were_roots(config: Path) -> None:
    facts(config, "org", "add", "acme")
    facts(config, "proxy", "add", "edge-1", "--org", "acme")
    _search(config)
    assert _as_nobody(config, "audit", "search").returncode == 0
    assert _as_nobody(config, "proxy", "add", "edge-2", "--org", "acme").returncode == 0


@pytest.mark.parametrize("name", ["controlplane.db", "controlplane.db.search.sqlite", "master.key"])
def test_a_file_of_somebody_else_is_one_line_with_what_to_type(config: Path, name: str) -> None:
    facts(config, "org", "add", "acme")
    facts(config, "proxy", "add", "edge-1", "--org", "acme")
    _search(config)
    file = config.parent / "state" / "var" / name
    os.chown(file, 0, 0)
    done = _as_nobody(config)
    user = "nobody"
    report = f"{file} belongs to root, and this process runs as {user}: chown {user} {file}\n"
    assert (done.returncode, done.stderr) == (1, report)


def test_a_directory_that_can_be_written_but_not_read_blames_no_owner(config: Path) -> None:
    """The store can't be created, because the process may open no more files."""
    state = config.parent / "state"
    os.chown(state, 0, 0)
    state.chmod(0o733)
    store = state / "controlplane.db"
    done = _python_as_nobody(config, "-c", MAKES_A_STORE_WITHOUT_DESCRIPTORS, str(store))
    assert (done.stdout, done.stderr) == (f"{store}: Too many open files\n", "")


def test_a_file_that_root_makes_has_the_group_of_its_directory(tmp_path: Path) -> None:
    os.chown(tmp_path, 0, 1234)
    os.close(make_file(tmp_path / "made", os.O_WRONLY))
    found = (tmp_path / "made").stat()
    assert (found.st_uid, found.st_gid) == (0, 1234)


@pytest.mark.parametrize("mode", [0o755, 0o700])
def test_a_directory_of_somebody_else_is_named(config: Path, mode: int) -> None:
    state = config.parent / "state"
    os.chown(state, 0, 0)
    state.chmod(mode)
    done = _as_nobody(config)
    assert done.returncode == 1
    assert f"{state} belongs to root, and this process runs as nobody: chown nobody {state}\n" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def _as_nobody(config: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return _python_as_nobody(config, "-m", "controlplane", "--config", str(config), *arguments)


def _python_as_nobody(config: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    readable = as_if_all_could_read_the_checkout(config.parent / "mounts")
    return subprocess.run(
        [*readable, "setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", *command],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )


def test_a_file_of_ones_own_that_cannot_be_written_blames_no_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file can be unwritable for another reason than its owner, such as a read-only file system."""
    file = tmp_path / "control.db"
    file.touch()
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert foreign([file]) is None
    assert foreign_above(file) is None


@pytest.mark.parametrize(
    ("owner", "group", "mode", "told"),
    [
        (0, NOBODY, 0o440, ""),  # the mode that Kubernetes gives a Secret in a pod
        (0, NOBODY, 0o460, "0460"),
        (0, NOBODY, 0o444, "0444"),
        (0, 0, 0o440, "0440"),
        (NOBODY, NOBODY, 0o440, "0440"),
        (NOBODY, NOBODY, 0o600, ""),
    ],
)
def test_a_secret_that_root_gives_to_the_group_of_the_service_is_for_the_service_alone(
    config: Path, owner: int, group: int, mode: int, told: str
) -> None:
    secret = config.parent / "secret"
    secret.touch(mode)
    secret.chmod(mode)
    os.chown(secret, owner, group)
    program = (
        "import sys; from pathlib import Path; from proxy.process.own_process import mode_if_open; "
        "print(mode_if_open(Path(sys.argv[1])))"
    )
    assert _python_as_nobody(config, "-c", program, str(secret)).stdout.strip() == told
