"""Tests of signing keys in a vault: all proxies choose the same key; tokens stay valid after rotation."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest

from proxy.agent.signing_keys import SigningKeyKeeper, in_force
from proxy.config.tls import client_tls
from proxy.ipc.channel import SigningKeys
from proxy.outbound.egress import DIRECT
from proxy.outbound.key_vault import KeyVault, open_key_vault
from proxy.outbound.machine_identity import ManagedIdentity
from proxy.outbound.session import open_session
from proxy.outbound.vault import SecretVersion
from tests.fakes.certificates import CertificateAuthority
from tests.fakes.key_vault import FakeKeyVault, FakeManagedIdentity

NAME = "token-signing-key"
INF = float("inf")
INTERVAL = 30.0
SETTLE = 91.0  # three polls and one second
LIFETIME = 3600.0


def version(name: str, begins_at: float, *, enabled: bool = True, expires_at: float = INF) -> SecretVersion:
    return SecretVersion(name, enabled, begins_at, expires_at)


def names(now: float, *versions: SecretVersion) -> str:
    return "".join(each.version for each in in_force(versions, now, settle=SETTLE, token_lifetime=LIFETIME))


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        (1000, "ab"),  # new: every proxy accepts it before any signs with it
        (1000 + SETTLE - 1, "ab"),
        (1000 + SETTLE, "ba"),
        (1000 + SETTLE + LIFETIME, "ba"),  # signed by a proxy that saw the rotation late
        (1000 + 2 * SETTLE + LIFETIME - 1, "ba"),
        (1000 + 2 * SETTLE + LIFETIME, "b"),
    ],
)
def test_a_newer_version_is_accepted_then_signs_then_is_alone(now: float, expected: str) -> None:
    assert names(now, version("a", 0), version("b", 1000)) == expected
    assert names(now, version("b", 1000), version("a", 0)) == expected


def test_the_only_version_signs_at_once() -> None:
    assert names(0, version("a", 0)) == "a"
    assert names(0) == ""


def test_a_disabled_or_ended_version_is_not_accepted_from_then_on() -> None:
    assert names(1000, version("a", 0, enabled=False), version("b", 1000)) == "b"
    assert names(1000, version("a", 0, expires_at=1000), version("b", 1000)) == "b"
    assert names(1000, version("a", 0), version("b", 1000, enabled=False)) == "a"


def test_there_are_never_more_than_a_few_keys() -> None:
    many = [version(str(at), 1000 + at) for at in range(9)]
    assert names(1000 + 8 + SETTLE, *many) == "87654"


@dataclass
class Fleet:
    vault: FakeKeyVault
    reader: KeyVault
    now: float = field(default_factory=time.time)
    report: list[SigningKeys] = field(default_factory=list)

    def proxy(self) -> SigningKeyKeeper:
        return SigningKeyKeeper(
            self.reader,
            NAME,
            token_lifetime=LIFETIME,
            interval=INTERVAL,
            announce=self.report.append,
            clock=lambda: self.now,
        )

    def put(self, letter: str, expires: float | None = None) -> None:
        self.vault.put(NAME, letter * 40, created=self.now, expires=expires)


def letters(keys: SigningKeys | None) -> str:
    assert keys is not None
    return "".join(key.decode()[0] for key in keys.keys)


@pytest.fixture
async def fleet(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Fleet]:
    authority = CertificateAuthority(tmp_path_factory.mktemp("authority"))
    async with (
        FakeManagedIdentity() as identity,
        FakeKeyVault(identity, tls=authority.server()) as vault,
        open_session(client_tls(authority.ca_file), DIRECT) as session,
    ):
        for name, value in identity.environment.items():
            monkeypatch.setenv(name, value)
        async with open_key_vault(vault.base_url, session, ManagedIdentity()) as reader:
            yield Fleet(vault, reader)


async def test_workers_are_told_of_the_key_and_of_each_change(fleet: Fleet) -> None:
    fleet.put("a")
    keeper = fleet.proxy()
    assert keeper.current() is None
    await keeper.read()
    assert letters(keeper.current()) == "a"
    fleet.now += 7200
    await keeper.read()
    assert len(fleet.report) == 1
    fleet.put("b")
    await keeper.read()
    fleet.now += SETTLE + 1
    await keeper.read()
    fleet.now += LIFETIME + SETTLE
    await keeper.read()
    assert [letters(keys) for keys in fleet.report] == ["a", "ab", "ba", "b"]
    assert len(fleet.vault.reads) == 2  # the value of each version is read once


async def test_a_proxy_that_starts_amid_a_rotation_agrees_with_the_others(fleet: Fleet) -> None:
    for letter in "xyza":  # more than one page of the vault's list
        fleet.put(letter)
        fleet.now += 10_000
    fleet.put("b")
    fleet.now += SETTLE / 2
    late = fleet.proxy()
    await late.read()
    assert letters(late.current()) == "ab"
    assert sorted(fleet.vault.reads) == [NAME, NAME]


async def test_keys_stay_in_force_while_the_vault_is_away(fleet: Fleet) -> None:
    fleet.put("a", expires=fleet.now + 5000)
    keeper = fleet.proxy()
    await keeper.read()
    fleet.vault.mode = "down"
    await keeper.read()
    assert letters(keeper.current()) == "a"
    assert keeper.check().status == "degraded"
    assert f"secret {NAME}" in keeper.check().detail
    fleet.now += 5001
    assert letters(keeper.current()) == ""
    assert keeper.check().status == "failed"


async def test_before_the_vault_was_read_there_is_no_key_and_a_reason(fleet: Fleet) -> None:
    fleet.vault.mode = "forbidden"
    keeper = fleet.proxy()
    await keeper.read()
    assert keeper.current() is None
    assert fleet.report == []
    assert keeper.check().status == "failed"
    assert "403 Forbidden ForbiddenByRbac" in keeper.check().detail


async def test_a_secret_that_is_not_there_is_named_and_a_deleted_one_changes_nothing(fleet: Fleet) -> None:
    keeper = fleet.proxy()
    await keeper.read()
    assert keeper.check().status == "failed"
    assert keeper.check().detail.endswith("the key vault does not have this secret")
    fleet.put("a")
    await keeper.read()
    fleet.vault.delete(NAME)
    await keeper.read()
    assert letters(keeper.current()) == "a"
    assert keeper.check().status == "degraded"


@pytest.mark.parametrize(
    "value", ["too-short-to-sign", "too-long-to-be-meant" * 52, "half-a-character-\ud800-is-no-text"]
)
async def test_a_version_that_can_be_no_key_changes_nothing(
    fleet: Fleet, caplog: pytest.LogCaptureFixture, value: str
) -> None:
    fleet.put("a")
    fleet.now += 10_000
    short = fleet.vault.put(NAME, value, created=fleet.now)
    fleet.now += 2 * SETTLE
    keeper = fleet.proxy()
    await keeper.read()
    assert letters(keeper.current()) == "a"
    assert keeper.check().status == "degraded"
    assert f"version {short.id} of secret {NAME} can't be a signing key" in keeper.check().detail
    assert value not in caplog.text + keeper.check().detail


async def test_an_error_that_nobody_foresaw_changes_nothing(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def versions(name: str) -> list[SecretVersion]:
        raise LookupError

    fleet.put("a")
    keeper = fleet.proxy()
    await keeper.read()
    monkeypatch.setattr(fleet.reader, "versions", versions)
    await keeper.read()
    assert letters(keeper.current()) == "a"
    assert keeper.check().status == "degraded"
    assert "unexpected LookupError at test_agent_signing_keys.py line " in keeper.check().detail


async def test_no_version_left_means_no_key(fleet: Fleet) -> None:
    only = fleet.vault.put(NAME, "a" * 40)
    keeper = fleet.proxy()
    await keeper.read()
    only.enabled = False
    await keeper.read()
    assert [letters(keys) for keys in fleet.report] == ["a", ""]
    assert keeper.check().status == "failed"


async def test_no_key_is_told(fleet: Fleet, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    fleet.put("a")
    keeper = fleet.proxy()
    await keeper.read()
    fleet.vault.mode = "garbage"
    await keeper.read()
    assert "a" * 40 not in caplog.text + repr(keeper.current()) + repr(keeper.check()) + repr(fleet.report)
