"""Files that root's commands make, and files that the service's user can't open."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.controlplane.plane import write_settings
from tests.controlplane.processes import ROOT, facts

NOBODY = 65534

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user"),
]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Settings in a directory of the service's user."""
    config = write_settings(tmp_path)
    state = tmp_path / "state"
    state.mkdir()
    config.write_text(config.read_text("utf-8").replace('"var/', '"state/var/'), "utf-8")
    for each in (tmp_path, *tmp_path.parents):
        if str(each).startswith("/tmp/pytest"):
            each.chmod(0o755)
    os.chown(state, NOBODY, NOBODY)
    return config


def test_what_root_makes_belongs_to_the_owner_of_the_directory(config: Path) -> None:
    facts(config, "org", "add", "acme")
    facts(config, "proxy", "add", "edge-1", "--org", "acme")
    facts(config, "audit", "search", "--org", "acme")
    made = [config.parent / "state", *(config.parent / "state").rglob("*")]
    assert {each.name for each in made} >= {"var", "controlplane.db", "controlplane.db.search.sqlite"}
    assert {(each.stat().st_uid, each.stat().st_gid) for each in made} == {(NOBODY, NOBODY)}


@pytest.mark.parametrize("name", ["controlplane.db", "controlplane.db.search.sqlite", "master.key"])
def test_a_file_of_somebody_else_is_one_line_with_what_to_type(config: Path, name: str) -> None:
    facts(config, "org", "add", "acme")
    facts(config, "proxy", "add", "edge-1", "--org", "acme")
    facts(config, "audit", "search", "--org", "acme")
    file = config.parent / "state" / "var" / name
    os.chown(file, 0, 0)
    done = _as_nobody(config)
    user = "nobody"
    told = f"{file} belongs to root, and this process runs as {user}: chown {user} {file}\n"
    assert (done.returncode, done.stderr) == (1, told)


def test_a_directory_of_somebody_else_is_named(config: Path) -> None:
    os.chown(config.parent / "state", 0, 0)
    done = _as_nobody(config)
    assert done.returncode == 1
    assert "belongs to root, and this process runs as nobody: chown nobody" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def _as_nobody(config: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "controlplane", "--config", str(config)]
    return subprocess.run(
        ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", *command],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
