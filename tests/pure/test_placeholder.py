"""Tests that example values in settings are recognised, and never confused with real values."""

from __future__ import annotations

from pathlib import Path

import pytest

from proxy.config import SettingsError
from proxy.config.placeholder import placeholder_problems
from proxy.startup.settings import load


@pytest.mark.parametrize(
    "value",
    [
        "https://login.microsoftonline.com/<tenant>/v2.0",
        "https://{tenant}.vault.azure.net",
        "https://${VAULT}.vault.azure.net",
        "https://your-vault.vault.azure.net",
        "https://YOUR_VAULT.vault.azure.net",
        "YOUR-CLIENT-ID",
        "your-tenant-id",
        "<client id>",
        "00000000-0000-0000-0000-000000000000",
        "11111111-1111-1111-1111-111111111111",
        "xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx",
        "12345678-1234-1234-1234-123456789012",
        "changeme",
        "change-me",
        "…",
        "https://vault.example.com",
        "https://example.org/issuer",
    ],
)
def test_a_placeholder_is_known(value: str) -> None:
    ((name, problem),) = placeholder_problems("Section.Key", value, "your own")
    assert name == "Section.Key"
    assert problem.endswith(": write your own")


@pytest.mark.parametrize(
    "value",
    [
        "",
        "https://login.microsoftonline.com/11111111-2222-3333-4444-555555555555/v2.0",
        "https://contoso.vault.azure.net",
        "https://login.example",
        "https://yourfirm.test/your-place",
        "https://example.com.contoso.test",
        "6f1e2a30-4b5c-4d6e-8f70-91a2b3c4d5e6",
        "0oa1b2c3d4e5f6g7h8i9",
        "console",
        "http://127.0.0.1:9",
        "http://[::1]:9",
    ],
)
def test_a_value_of_somebody_s_own_is_not_one(value: str) -> None:
    assert list(placeholder_problems("Section.Key", value, "your own")) == []


def test_a_secret_is_a_placeholder_as_a_whole_only_and_never_shown() -> None:
    assert list(placeholder_problems("S.K", "a<b>c", "it", secret=True)) == []
    ((_, problem),) = placeholder_problems("S.K", "<your secret>", "it", secret=True)
    assert "your secret" not in problem


PROXY = """[Agent]
ApiKey = "k"
HmacSecret = "h"
[RuleSync]
SaasBaseUrl = "https://control.contoso.test"
[Credentials]
"""
GOOD = {
    "Provider": "managed-identity-key-vault",
    "VaultUrl": "https://contoso.vault.azure.net",
    "SecretName": "s",
    "TenantId": "contoso.onmicrosoft.com",
    "ClientId": "c",
}


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("TenantId", "00000000-0000-0000-0000-000000000000", "is a placeholder: write your tenant's own id"),
        ("TenantId", "common", "'common' stands for many tenants"),
        ("TenantId", "Organizations", "'Organizations' stands for many tenants"),
        ("ClientId", "<client-id>", "'<client-id>' is a placeholder: write the application (client) id"),
        ("VaultUrl", "https://your-vault.vault.azure.net", "'your-vault' is a placeholder: write your key"),
        ("AuthorityUrl", "https://login.example.com", "login.example.com is a host for examples"),
        ("ClientSecret", "YOUR-SECRET", "the value is a placeholder"),
    ],
)
def test_a_proxy_whose_credentials_can_never_work_does_not_start(
    tmp_path: Path, key: str, value: str, words: str
) -> None:
    lines = [f'{name} = "{each}"' for name, each in {**GOOD, key: value}.items()]
    (tmp_path / "proxy.toml").write_text(PROXY + "\n".join(lines), "utf-8")
    with pytest.raises(SettingsError) as caught:
        load(tmp_path / "proxy.toml", {})
    (problem,) = caught.value.problems
    assert f"Credentials.{key}: " in problem
    assert words in problem


def test_a_token_that_is_given_needs_no_provider(tmp_path: Path) -> None:
    static = '\nProvider = "static"\nAccessToken = "t"\nTenantId = "<tenant>"'
    (tmp_path / "proxy.toml").write_text(PROXY + static, "utf-8")
    assert load(tmp_path / "proxy.toml", {}).credentials.access_token == "t"


def test_a_table_that_inherits_a_placeholder_is_told_once(tmp_path: Path) -> None:
    tenant = {**GOOD, "TenantId": "<tenant>"}
    lines = [f'{name} = "{each}"' for name, each in tenant.items()]
    lines += ["[[Credentials.Identities]]", 'Name = "mail"', 'ClientId = "m"', 'SecretName = "s"']
    (tmp_path / "proxy.toml").write_text("\n".join([PROXY, *lines, 'Applications = ["a"]']), "utf-8")
    with pytest.raises(SettingsError) as caught:
        load(tmp_path / "proxy.toml", {})
    assert len(caught.value.problems) == 1
