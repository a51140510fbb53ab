"""Tests that the files that a proxy creates as root belong to the user of the service.

If the file belongs to another user than the proxy, the proxy's error message names the file.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes.system import ROOT
from tests.patience import PATIENCE_SECONDS
from tests.process.proxy_parts import client_of, stored_paths, until, whole_system
from tests.process.test_proxy_start import AS_NOBODY, config, open_directory

__all__ = ["config", "open_directory"]

NOBODY = 65534

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user"),
]


async def test_what_a_proxy_makes_as_root_belongs_to_the_owner_of_the_directory(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    os.chown(state, NOBODY, NOBODY)
    environment = {
        "Audit__LocalRetentionPath": str(state / "var" / "audit"),
        "RuleSync__CachePath": str(state / "rules" / "snapshot.json"),
        "Token__SigningKeyFile": str(state / "keys" / "token-signing.key"),
    }
    async with whole_system(tmp_path, workers=1, environment=environment) as system:
        async with client_of(system) as client:
            assert (await client.get("/v1.0/users")).status == 200
        await until(lambda: "/v1.0/users" in stored_paths(system))
        made = list(state.rglob("*"))
    names = {each.name for each in made}
    assert names >= {"var", "spool", "agent.lock", "budget.lock", "journal", "snapshot.json", "keys"}
    foreign = [each for each in made if each.exists() and each.stat().st_uid != NOBODY]
    assert foreign == []


@pytest.fixture
def nobodys(config: Path, open_directory: Path) -> Path:
    """Return the settings of a proxy that runs as the user nobody, in a separate directory."""
    for name in ("server.pem", "server.key", "proxy.toml"):
        shutil.copy(config.parent / name, open_directory / name)
        os.chown(open_directory / name, NOBODY, NOBODY)
    return open_directory / "proxy.toml"


@pytest.mark.parametrize(
    ("name", "setting", "fix"),
    [
        ("audit", "Audit.LocalRetentionPath", "-R nobody {directory}/audit"),
        ("audit/journal", "Audit.LocalRetentionPath", "-R nobody {directory}/audit"),
        ("audit/agent.lock", "Audit.LocalRetentionPath", "-R nobody {directory}/audit"),
        ("snapshot.json", "RuleSync.CachePath", "nobody {directory}/snapshot.json"),
        ("token.key", "Token.SigningKeyFile", "nobody {directory}/token.key"),
    ],
)
def test_a_file_of_somebody_else_ends_the_start_in_one_line(
    nobodys: Path, name: str, setting: str, fix: str
) -> None:
    directory = nobodys.parent
    file = directory / name
    if name == "token.key":
        text = nobodys.read_text("utf-8")
        kept = [each for each in text.splitlines() if not each.startswith("SigningKey")]
        kept.insert(kept.index("[Token]") + 1, 'SigningKeyFile = "token.key"')
        nobodys.write_text("\n".join(kept), "utf-8")
    if name.startswith("audit/"):
        file.parent.mkdir(mode=0o700)
        os.chown(file.parent, NOBODY, NOBODY)
    if name in ("audit", "audit/journal"):
        file.mkdir(mode=0o700)
    else:
        file.touch(mode=0o600)
    done = _as_nobody(nobodys)
    report = f"belongs to root, and this process runs as nobody: chown {fix.format(directory=directory)}\n"
    assert done.stderr == f"{setting}: {file} {report}"
    assert done.returncode in (1, 2)


def test_a_directory_of_somebody_else_ends_the_start_in_one_line(nobodys: Path) -> None:
    os.chown(nobodys.parent, 0, 0)
    nobodys.parent.chmod(0o755)
    done = _as_nobody(nobodys)
    directory = nobodys.parent
    report = f"{directory} belongs to root, and this process runs as nobody: chown nobody {directory}\n"
    assert done.stderr == f"Audit.LocalRetentionPath: {report}"


def _as_nobody(config: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", AS_NOBODY, str(NOBODY), str(NOBODY), str(config)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
