"""Tests of upstream tokens without a secret: by a token in a file of the platform, or by managed identity."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import jwt
import pytest

from proxy.agent.credentials.provider import CredentialError, CredentialProvider
from proxy.agent.credentials.sources import open_providers, open_vault
from proxy.config.tls import client_tls
from proxy.outbound.vault import VaultError
from proxy.startup.settings import load
from tests.fakes.certificates import CertificateAuthority
from tests.fakes.identity import CLIENT_ID, TENANT, FakeIdentityProvider
from tests.fakes.key_vault import MANAGED_IDENTITY, FakeKeyVault, FakeManagedIdentity
from tests.fakes.server import Response

ISSUER = "https://cluster.example/"
SUBJECT = "system:serviceaccount:graphward:proxy"
EXCHANGE = "api://AzureADTokenExchange"
KEY = "a key of a cluster that signs with HMAC, for once"


def service_account_token(audience: str = EXCHANGE) -> str:
    claims = {"iss": ISSUER, "sub": SUBJECT, "aud": [audience], "exp": int(time.time()) + 3600}
    return jwt.encode(claims, KEY, "HS256")


def of_the_cluster(assertion: str) -> str:
    """Return the error code with which Entra refuses a service account's token; empty if Entra accepts it."""
    try:
        jwt.decode(assertion, KEY, ["HS256"], audience=EXCHANGE, issuer=ISSUER, subject=SUBJECT)
    except jwt.InvalidAudienceError:
        return "AADSTS700212"
    except jwt.InvalidTokenError:
        return "AADSTS700211"
    return ""


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> CertificateAuthority:
    return CertificateAuthority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
async def entra(authority: CertificateAuthority) -> AsyncIterator[FakeIdentityProvider]:
    async with FakeIdentityProvider(tls=authority.server()) as entra:
        entra.client_secrets.clear()
        yield entra


@pytest.fixture
async def managed(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FakeManagedIdentity]:
    async with FakeManagedIdentity() as managed:
        for name, value in managed.machine_environment.items():
            monkeypatch.setenv(name, value)
        yield managed


@asynccontextmanager
async def providers(
    directory: Path,
    authority: CertificateAuthority,
    credentials: str,
    upstream: str = "https://graph.microsoft.com",
) -> AsyncIterator[dict[str, CredentialProvider]]:
    """Yield the credential providers that the agent creates from these settings."""
    path = directory / "proxy.toml"
    path.write_text(
        f'[Agent]\nApiKey = "k"\nHmacSecret = "s"\n[RuleSync]\nSaasBaseUrl = "https://control"\n'
        f'[Upstream]\nBaseUrl = "{upstream}"\n[Credentials]\n{credentials}'
    )
    async with AsyncExitStack() as stack:
        settings = load(path, {})
        yield await open_providers(settings, client_tls(authority.ca_file), {}, stack)


def workload(entra: FakeIdentityProvider, more: str = "") -> str:
    return (
        f'Provider = "workload-identity"\nAuthorityUrl = "{entra.base_url}"\nTenantId = "{TENANT}"\n'
        f'ClientId = "{CLIENT_ID}"\nTokenFile = "token"\n{more}'
    )


async def test_a_service_account_proves_the_application_with_the_token_that_its_file_holds_now(
    tmp_path: Path,
    authority: CertificateAuthority,
    entra: FakeIdentityProvider,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    entra.federation = of_the_cluster
    file = tmp_path / "token"
    async with providers(tmp_path, authority, workload(entra)) as found:
        default = found["default"]
        with pytest.raises(CredentialError, match=r"TokenFile /.*/token can.t be read: No such file"):
            await default.fetch()
        for unusable in (b"", b"no token", b"a.b.c d", b"\xff\xfe"):
            file.write_bytes(unusable)
            with pytest.raises(CredentialError, match="does not contain a signed token"):
                await default.fetch()
        assert entra.requests == []
        file.write_text(service_account_token("api://another"))
        with pytest.raises(CredentialError, match=r"401 invalid_client AADSTS700212; compare .*audience"):
            await default.fetch()
        file.write_text(service_account_token() + "\n")  # the kubelet replaced it
        token = await default.fetch()
        assert entra.client_of(token.token) == CLIENT_ID
        assert token.expires_at == pytest.approx(time.time() + 3599, abs=3)
        assert (await default.fetch()).token != token.token, "a cache of the library was asked"
    assert [each.path for each in entra.requests] == [f"/{TENANT}/oauth2/v2.0/token"] * 3
    for secret in (file.read_text().strip(), *entra.tokens):
        assert secret not in caplog.text


async def test_identities_of_one_file_are_applications_of_their_own(
    tmp_path: Path, authority: CertificateAuthority, entra: FakeIdentityProvider
) -> None:
    entra.federation = of_the_cluster
    (tmp_path / "token").write_text(service_account_token())
    more = '[[Credentials.Identities]]\nName = "mail"\nClientId = "other"\nApplications = ["app"]\n'
    async with providers(tmp_path, authority, workload(entra, more)) as found:
        assert entra.client_of((await found["default"].fetch()).token) == CLIENT_ID
        with pytest.raises(CredentialError, match="invalid_client"):
            await found["mail"].fetch()
    assert b"client_id=other&" in bytes(entra.requests[-1].body)


async def test_the_vault_is_read_as_the_application_that_the_file_proves(
    tmp_path: Path,
    authority: CertificateAuthority,
    entra: FakeIdentityProvider,
    managed: FakeManagedIdentity,
) -> None:
    entra.federation = of_the_cluster
    async with FakeKeyVault(managed, tls=authority.server()) as vault, AsyncExitStack() as stack:
        vault.put("signing", "value")
        path = tmp_path / "proxy.toml"
        path.write_text(
            f'[Agent]\nApiKey = "k"\nHmacSecret = "s"\n[RuleSync]\nSaasBaseUrl = "https://control"\n'
            f'[Token]\nSigningKeySecretName = "signing"\n'
            f'[Credentials]\nVaultUrl = "{vault.base_url}"\n{workload(entra)}'
        )
        reader = await open_vault(load(path, {}), client_tls(authority.ca_file), stack)
        with pytest.raises(VaultError, match=f"as application {CLIENT_ID}: the workload identity gives no"):
            await reader.secret("signing")
        (tmp_path / "token").write_text(service_account_token())
        vault.applications = entra
        assert (await reader.secret("signing")).value == "value"
    assert managed.requests == []


def of_the_managed(managed: FakeManagedIdentity, audience: str) -> Callable[[str], str]:
    return lambda assertion: "" if managed.tokens.get(assertion) == audience else "AADSTS700212"


@pytest.mark.parametrize(
    ("upstream", "audience"),
    [
        ("https://graph.microsoft.com", EXCHANGE),
        ("https://graph.microsoft.us", f"{EXCHANGE}USGov"),
        ("https://microsoftgraph.chinacloudapi.cn", f"{EXCHANGE}China"),
    ],
)
async def test_a_managed_identity_proves_an_application(
    tmp_path: Path,
    authority: CertificateAuthority,
    entra: FakeIdentityProvider,
    managed: FakeManagedIdentity,
    upstream: str,
    audience: str,
) -> None:
    entra.federation = of_the_managed(managed, audience)
    credentials = (
        f'Provider = "managed-identity"\nAuthorityUrl = "{entra.base_url}"\nTenantId = "{TENANT}"\n'
        f'ClientId = "{CLIENT_ID}"\nManagedIdentityClientId = "{MANAGED_IDENTITY}"\n'
    )
    async with providers(tmp_path, authority, credentials, upstream) as found:
        token = await found["default"].fetch()
    assert entra.client_of(token.token) == CLIENT_ID
    assert managed.identities == [MANAGED_IDENTITY]
    assert list(managed.tokens.values()) == [audience]
    host = upstream.removeprefix("https://")
    assert f"scope=https%3A%2F%2F{host}%2F.default".encode() in bytes(entra.requests[0].body)


async def test_a_managed_identity_goes_upstream_itself_if_no_application_is_named(
    tmp_path: Path, authority: CertificateAuthority, managed: FakeManagedIdentity
) -> None:
    more = (
        f'[[Credentials.Identities]]\nName = "mail"\nManagedIdentityClientId = "{MANAGED_IDENTITY}"\n'
        f'Applications = ["app"]\n'
    )
    async with providers(tmp_path, authority, f'Provider = "managed-identity"\n{more}') as found:
        token = await found["default"].fetch()
        assert managed.tokens[token.token] == "https://graph.microsoft.com"
        await found["mail"].fetch()
        assert managed.identities == ["", MANAGED_IDENTITY]
        assert (await found["default"].fetch()).token != token.token, "a cache of the library was asked"
        managed.mode = "unassigned"
        with pytest.raises(CredentialError) as failure:
            await found["mail"].fetch()
        assert str(failure.value) == (
            f"identity {MANAGED_IDENTITY}: the managed identity gives no token: responded with 400; "
            "is it assigned to this machine?"
        )


@pytest.mark.parametrize(
    "members",
    [
        b'"access_token": "", "expires_on": "%d"',
        b'"access_token": "two words", "expires_on": "%d"',
        b'"access_token": "t", "expires_on": "7", "x": "%d"',
        b'"access_token": "t", "expires_on": "9%d"',
        b'"access_token": "%0300000d", "expires_on": "7"',
    ],
)
async def test_what_a_managed_identity_gives_must_be_a_token_that_is_good_now(
    tmp_path: Path,
    authority: CertificateAuthority,
    managed: FakeManagedIdentity,
    monkeypatch: pytest.MonkeyPatch,
    members: bytes,
) -> None:
    given = members % int(time.time() + 3600)
    body = b'{"resource": "https://graph.microsoft.com", "token_type": "Bearer", ' + given + b"}"

    async def response(request: object) -> Response:
        return Response(200, (("Content-Type", "application/json"),), body)

    monkeypatch.setattr(managed, "response", response)
    async with providers(tmp_path, authority, 'Provider = "managed-identity"\n') as found:
        with pytest.raises(CredentialError, match="managed identity"):
            await found["default"].fetch()
