"""Tests of stored secrets, of the master key's file, and of log lines that can't be forged."""

from __future__ import annotations

import logging
import stat
from pathlib import Path

import pytest
from argon2 import PasswordHasher, extract_parameters

from controlplane.secrets import MasterKeyError, Vault, digest, hash_client_secret, mint, read_master_key
from proxy.wire.log_line import LineFormatter, one_line


@pytest.fixture
def cheap_hashes() -> None:
    """Override the fixture of cheap hashes: this module uses the real parameters of password hashes."""


def test_secrets_hold_256_bits_and_are_safe_in_headers_and_forms() -> None:
    minted = {mint("gws") for _ in range(100)}
    assert len(minted) == 100
    for secret in minted:
        assert secret.startswith("gws_")
        assert len(secret) == 4 + 43
        assert secret.replace("_", "").replace("-", "").isalnum()
        assert secret.isascii()


def test_client_secrets_are_argon2id() -> None:
    hashed = hash_client_secret("gws_x")
    parameters = extract_parameters(hashed)
    assert (parameters.type.name, parameters.time_cost, parameters.memory_cost) == ("ID", 2, 19456)
    assert PasswordHasher().verify(hashed, "gws_x")
    assert hash_client_secret("gws_x") != hashed


def test_a_digest_takes_any_text() -> None:
    assert len({digest("a"), digest("\udcff"), digest("é"), digest("")}) == 4


def test_a_sealed_secret_opens_only_in_its_own_row_under_its_own_key() -> None:
    vault = Vault(bytes(32))
    sealed = vault.seal("proxy-1", "secret")
    assert b"secret" not in sealed
    assert vault.open("proxy-1", sealed) == "secret"
    assert vault.seal("proxy-1", "secret") != sealed
    with pytest.raises(MasterKeyError):
        vault.open("proxy-2", sealed)
    with pytest.raises(MasterKeyError):
        Vault(bytes(31) + b"\1").open("proxy-1", sealed)
    for length in range(len(sealed)):
        with pytest.raises(MasterKeyError):
            vault.open("proxy-1", sealed[:length])


def test_the_master_key_is_made_once_and_private(tmp_path: Path) -> None:
    path = tmp_path / "var" / "master.key"
    key = read_master_key("", path)
    assert len(key) == 32
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert read_master_key("", path) == key
    assert [each.name for each in path.parent.iterdir()] == ["master.key"]


@pytest.mark.parametrize("text", ["", "short", "zz" * 32, "00" * 31, "00" * 33, "é" * 64])
def test_a_file_that_holds_no_key_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "master.key"
    path.write_text(text)
    with pytest.raises(MasterKeyError, match=str(path)):
        read_master_key("", path)


@pytest.mark.parametrize("text", ["a\r\nb", "\x1b[31m", "a\u2028b", "a\u202eb", "\x85", "\udcff", "\0"])
def test_a_log_line_stays_one_line_of_harmless_text(text: str) -> None:
    for style in ("text", "json"):
        record = logging.LogRecord("name", logging.INFO, "file", 1, "got %s", (text,), None)
        line = LineFormatter(style).format(record)
        assert line.isprintable()
        assert line.encode("utf-8")


def test_a_log_line_is_bounded() -> None:
    assert len(one_line("x" * 65536)) < 9000
