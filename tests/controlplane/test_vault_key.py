"""Tests of a master key in a key vault: commands read the key, never create it, and can move it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from controlplane.settings import read_settings
from proxy.config import SettingsError
from tests.controlplane.plane import write_settings
from tests.controlplane.processes import cli
from tests.fakes.certificates import CertificateAuthority
from tests.fakes.key_vault import MANAGED_IDENTITY, FakeKeyVault, FakeManagedIdentity

NAME = "master-key"


@dataclass
class Moved:
    """A control plane with its master key in a file, and a key vault to which a test may move the key."""

    config: Path
    vault: FakeKeyVault
    identity: FakeManagedIdentity
    environment: dict[str, str]

    @property
    def file(self) -> Path:
        return self.config.parent / "var" / "master.key"

    async def cli(self, *arguments: str) -> Any:
        return await asyncio.to_thread(cli, self.config, *arguments, **self.environment)

    async def facts(self, *arguments: str) -> Any:
        done = await self.cli(*arguments, "--json")
        assert (done.returncode, done.stderr) == (0, "")
        return json.loads(done.stdout)

    async def master_key(self) -> dict[str, str]:
        """Return the finding of `doctor` on the master key."""
        found = json.loads((await self.cli("doctor", "--json")).stdout)["findings"]
        (finding,) = (each for each in found if each["check"] == "master key")
        return dict(finding)

    def use_vault(self) -> None:
        text = self.config.read_text()
        instead = (
            f'MasterKeyVaultUrl = "{self.vault.base_url}"\nMasterKeySecretName = "{NAME}"\n'
            f'ManagedIdentityClientId = "{MANAGED_IDENTITY}"'
        )
        self.config.write_text(text.replace('MasterKeyFile = "var/master.key"', instead))


@pytest.fixture
async def moved(tmp_path: Path) -> AsyncIterator[Moved]:
    authority = CertificateAuthority(tmp_path)
    async with (
        FakeManagedIdentity() as identity,
        FakeKeyVault(identity, tls=authority.server()) as vault,
    ):
        environment = {**identity.machine_environment, "SSL_CERT_FILE": str(authority.ca_file)}
        yield Moved(write_settings(tmp_path), vault, identity, environment)


async def test_a_key_moves_from_its_file_into_the_vault_and_back(moved: Moved) -> None:
    await moved.facts("org", "add", "acme")
    await moved.facts("proxy", "add", "edge-1", "--org", "acme")
    key = moved.file.read_text()
    before = moved.config.read_text()
    moved.use_vault()
    moved.file.unlink()
    assert (await moved.cli("--check")).returncode == 0  # `--check` makes no connection
    refused = await moved.cli("proxy", "add", "edge-2", "--org", "acme")
    assert refused.returncode == 1
    assert refused.stderr.startswith(
        f"the master key can't be read: key vault {moved.vault.base_url}, secret {NAME}, as identity "
        f"{MANAGED_IDENTITY}: responded with 404 SecretNotFound"
    ), refused.stderr
    assert "Check Secrets.MasterKeyVaultUrl and MasterKeySecretName" in refused.stderr
    moved.vault.put(NAME, key)  # the stored value includes the line end
    await moved.facts("proxy", "add", "edge-2", "--org", "acme")
    source = f"secret {NAME} of {moved.vault.base_url}"
    assert await moved.master_key() == {
        "check": "master key",
        "status": "ok",
        "found": f"{source} opens the store's secrets",
        "fix": "",
    }
    assert set(moved.identity.identities) == {MANAGED_IDENTITY}
    assert not moved.file.exists()
    moved.file.write_text(key)
    moved.config.write_text(before)
    await moved.facts("proxy", "rotate-secret", "edge-2")


async def test_a_key_that_is_not_the_stores_opens_nothing(moved: Moved) -> None:
    await moved.facts("org", "add", "acme")
    await moved.facts("proxy", "add", "edge-1", "--org", "acme")
    moved.use_vault()
    source = f"secret {NAME} of {moved.vault.base_url}"
    for value, problem in (
        ("ab" * 32, f"{source}: the master key does not belong to this store"),
        ("no key", f"{source}, version "),
    ):
        moved.vault.put(NAME, value)
        refused = await moved.cli("proxy", "rotate-secret", "edge-1")
        assert refused.returncode == 1
        assert refused.stderr.startswith(problem), refused.stderr
        assert value not in refused.stderr
    assert (
        "the key must contain 64 hex digits: write the master key of this store as the newest version of the "
        "secret" in refused.stderr
    )
    moved.vault.put(NAME, moved.file.read_text(), expires=2_000_000_000)
    assert (await moved.master_key())["status"] == "ok"
    moved.vault.put(NAME, moved.file.read_text(), expires=1_000_000_000)
    ending = await moved.master_key()
    assert (ending["status"], "expires on 2001-09-09" in ending["found"]) == ("warn", True)
    moved.identity.mode = "unassigned"
    unassigned = await moved.master_key()
    assert "is it assigned to this machine?" in unassigned["found"]
    assert unassigned["fix"].startswith("let this machine reach the vault")  # the remedy is not another key


def test_a_file_beside_the_vault_is_told_with_its_line(tmp_path: Path) -> None:
    config = tmp_path / "controlplane.toml"
    vault = 'MasterKeyVaultUrl = "https://v.vault.azure.net"\nMasterKeySecretName = "k"\n'
    config.write_text(f'[Secrets]\n{vault}MasterKeyFile = "master.key"\n')
    what = "Secrets.MasterKeyFile: has no effect, because MasterKeyVaultUrl is given: remove it"
    assert read_settings(config, {}).without_effect == (f"{config}:4: {what}",)
    config.write_text(f"[Secrets]\n{vault}")
    assert read_settings(config, {}).without_effect == ()


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        (
            'MasterKeyVaultUrl = "http://v.vault.azure.net"',
            "MasterKeyVaultUrl: the value must be an https:// address",
        ),
        ('MasterKeyVaultUrl = "https://v.vault.azure.net"', "MasterKeySecretName: missing"),
        ('MasterKeySecretName = "key"', "MasterKeySecretName: has no effect without MasterKeyVaultUrl"),
        ('ManagedIdentityClientId = "7"', "ManagedIdentityClientId: has no effect without MasterKeyVaultUrl"),
        ('MasterKeySecretName = "a/b"', "MasterKeySecretName: the value must be 1 to 127 letters"),
        (
            'MasterKeyVaultUrl = "https://v.vault.azure.net"\nMasterKeySecretName = "k"\nMasterKey = "'
            + "ab" * 32
            + '"',
            "MasterKeyVaultUrl: given in addition to MasterKey",
        ),
    ],
)
def test_settings_that_name_no_one_place_are_refused(tmp_path: Path, lines: str, problem: str) -> None:
    config = tmp_path / "controlplane.toml"
    config.write_text(f"[Secrets]\n{lines}\n")
    with pytest.raises(SettingsError) as refused:
        read_settings(config, {})
    assert any(f"Secrets.{problem}" in each for each in refused.value.problems), refused.value.problems
