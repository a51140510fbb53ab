"""Tests of credentials from a key vault, through a managed identity and Azure's own SDK.

The agent keeps vault credentials during an outage, reads refused credentials again, and reveals none.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
from azure.keyvault.secrets._shared import http_challenge_cache
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding

from proxy.agent.credentials.entra import Entra
from proxy.agent.credentials.key_vault import KeyVaultProvider
from proxy.agent.credentials.provider import CredentialError
from proxy.agent.credentials.sources import certificate_end
from proxy.agent.vault import HeldSecret, ending_check
from proxy.config.tls import client_tls
from proxy.outbound.egress import DIRECT
from proxy.outbound.key_vault import KeyVault, open_key_vault
from proxy.outbound.machine_identity import ManagedIdentity
from proxy.outbound.session import open_session
from proxy.outbound.vault import SecretVersion, VaultError, VaultSecret
from proxy.wire.models import Check
from tests.fakes.certificates import CertificateAuthority, client_certificate
from tests.fakes.identity import CLIENT_ID, CLIENT_SECRET, TENANT, FakeIdentityProvider
from tests.fakes.key_vault import (
    MANAGED_IDENTITY,
    FakeKeyVault,
    FakeManagedIdentity,
    IdentityMode,
    VaultMode,
)
from tests.fakes.server import Received, Response
from tests.patience import PATIENCE_SECONDS

SCOPE = "https://graph.microsoft.com/.default"
NAME = "graph-client"
PFX = "application/x-pkcs12"
PEM = "application/x-pem-file"


@dataclass
class Azure:
    """Fakes of Azure services, and parts of the agent that are connected to the fakes."""

    entra: FakeIdentityProvider
    identity: FakeManagedIdentity
    vault: FakeKeyVault
    reader: KeyVault
    held: HeldSecret
    provider: KeyVaultProvider


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> CertificateAuthority:
    return CertificateAuthority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
async def azure(
    authority: CertificateAuthority, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> AsyncIterator[Azure]:
    async with running(authority, monkeypatch, getattr(request, "param", "")) as azure:
        yield azure


@asynccontextmanager
async def running(
    authority: CertificateAuthority,
    monkeypatch: pytest.MonkeyPatch,
    managed_identity: str = "",
    *,
    machine: bool = False,
) -> AsyncIterator[Azure]:
    tls = authority.server()
    http_challenge_cache.clear()  # an earlier test's vault may have had the same port
    async with (
        FakeIdentityProvider(tls=tls) as entra,
        FakeManagedIdentity() as identity,
        FakeKeyVault(identity, tls=tls) as vault,
        open_session(client_tls(authority.ca_file), DIRECT) as session,
    ):
        environment = identity.machine_environment if machine else identity.environment
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        async with open_key_vault(vault.base_url, session, ManagedIdentity(managed_identity)) as reader:
            held = HeldSecret(reader, NAME, what="upstream credential", interval=60.0)
            endpoint = Entra(
                session,
                authority_url=entra.base_url,
                tenant_id=TENANT,
                client_id=CLIENT_ID,
                scope=SCOPE,
            )
            provider = KeyVaultProvider(endpoint, held, NAME)
            yield Azure(entra, identity, vault, reader, held, provider)


# Content of the vault


async def test_a_client_secret_is_read_and_exchanged(azure: Azure) -> None:
    azure.vault.put(NAME, CLIENT_SECRET)
    token = await azure.provider.fetch()
    assert azure.entra.accepts(token.token)
    assert azure.vault.reads == [NAME]
    assert azure.identity.identities == [""]
    assert azure.held.check().status == "ok"


@pytest.mark.parametrize("azure", [MANAGED_IDENTITY], indirect=True)
async def test_a_user_assigned_identity_is_asked_for_by_its_client_id(azure: Azure) -> None:
    azure.vault.put(NAME, CLIENT_SECRET)
    await azure.provider.fetch()
    assert azure.identity.identities == [MANAGED_IDENTITY]


async def test_a_virtual_machine_has_its_identity_from_the_metadata_service(
    authority: CertificateAuthority, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(authority, monkeypatch, MANAGED_IDENTITY, machine=True) as azure:
        azure.vault.put(NAME, CLIENT_SECRET)
        assert azure.entra.accepts((await azure.provider.fetch()).token)
        assert azure.identity.identities == [MANAGED_IDENTITY]
        assert [each.path for each in azure.identity.requests] == ["/metadata/identity/oauth2/token"]


async def test_the_vault_is_asked_as_it_challenges_and_its_token_goes_nowhere_else(azure: Azure) -> None:
    azure.vault.put(NAME, CLIENT_SECRET)
    await azure.provider.fetch()
    first, second = azure.vault.requests
    assert first.values("Authorization") == []
    assert list(azure.identity.tokens.values()) == [azure.vault.resource]
    (token,) = azure.identity.tokens
    assert second.value("Authorization") == f"Bearer {token}"
    assert not [each for each in azure.entra.requests if token.encode() in each.head + each.body]


@pytest.mark.parametrize("content_type", [PEM, PFX])
async def test_a_certificate_proves_the_client_by_an_assertion(azure: Azure, content_type: str) -> None:
    certificate = client_certificate()
    azure.entra.client_secrets.clear()
    azure.entra.certificates.append(certificate.certificate)
    azure.vault.put(NAME, certificate.pem if content_type == PEM else certificate.pfx, content_type)
    for _ in range(2):  # the fake accepts no assertion twice
        token = await azure.provider.fetch()
        assert azure.entra.accepts(token.token)
    assert azure.entra.refusals == []
    sent = b"".join(bytes(each.body) for each in azure.entra.requests)
    assert b"client_secret" not in sent
    assert b"PRIVATE" not in sent


@pytest.mark.parametrize("content_type", [PEM, PFX])
async def test_of_a_chain_the_certificate_of_the_key_is_shown(azure: Azure, content_type: str) -> None:
    own, issuer = client_certificate(), client_certificate("issuer")
    certificate = client_certificate(chain=[issuer.certificate])
    azure.entra.certificates += [issuer.certificate, own.certificate, certificate.certificate]
    azure.vault.put(NAME, certificate.pem if content_type == PEM else certificate.pfx, content_type)
    assert azure.entra.accepts((await azure.provider.fetch()).token)


def issuer_of_an_unknown_curve() -> x509.Certificate:
    """Return an issuer certificate whose key names an unsupported curve instead of P-256."""
    issuer = client_certificate("issuer", key=ec.generate_private_key(ec.SECP256R1())).certificate
    curve = bytes.fromhex("06082a8648ce3d0301")
    odd = issuer.public_bytes(Encoding.DER).replace(curve + b"\x07", curve + b"\x03")
    return x509.load_der_x509_certificate(odd)


@pytest.mark.parametrize("content_type", [PEM, PFX])
async def test_of_a_chain_the_issuers_may_have_keys_that_nobody_here_can_read(
    azure: Azure, content_type: str
) -> None:
    certificate = client_certificate(chain=[issuer_of_an_unknown_curve()])
    azure.entra.certificates.append(certificate.certificate)
    azure.vault.put(NAME, certificate.pem if content_type == PEM else certificate.pfx, content_type)
    assert azure.entra.accepts((await azure.provider.fetch()).token)


async def test_a_certificate_without_its_content_type_is_known_for_one(azure: Azure) -> None:
    certificate = client_certificate()
    azure.entra.certificates.append(certificate.certificate)
    azure.vault.put(NAME, certificate.pem)
    assert azure.entra.accepts((await azure.provider.fetch()).token)


def _unusable() -> dict[str, tuple[str, str | None, str]]:
    certificate, other = client_certificate(), client_certificate()
    elliptic = client_certificate(key=ec.generate_private_key(ec.SECP256R1()))
    ended = client_certificate(days=-1)
    small = client_certificate(key=rsa.generate_private_key(65537, 1024))
    private, _, public = certificate.pem.partition("-----BEGIN CERT")
    foreign = other.pem.partition("-----BEGIN CERT")[0] + "-----BEGIN CERT" + public
    return {
        "an elliptic key": (elliptic.pem, PEM, "has no RSA private key"),
        "a small key": (small.pem, PEM, "has an RSA key of 1024 bits; at least 2048 are required"),
        "no certificate": (
            private,
            PEM,
            "must be unencrypted PEM with a private key and the certificate of this key",
        ),
        "no key": ("-----BEGIN CERT" + public, PEM, "must be unencrypted PEM with a private key"),
        "another's certificate": (foreign, PEM, "no certificate that belongs to its private key"),
        "no PFX": (base64.b64encode(b"no PFX").decode(), PFX, "must be a PFX in base64 that has no password"),
        "no base64": ("päth", PFX, "must be a PFX in base64 that has no password"),
        "PEM called PFX": (certificate.pem, PFX, "must be a PFX in base64"),
        "PFX without its type": (certificate.pfx, None, "is too long for a client secret"),
        "an ended certificate": (ended.pem, PEM, "the certificate in the secret has expired"),
    }


UNUSABLE = _unusable()


@pytest.mark.parametrize("what", UNUSABLE)
async def test_what_is_no_credential_is_never_sent_out(azure: Azure, what: str) -> None:
    value, content_type, report = UNUSABLE[what]
    azure.vault.put(NAME, value, content_type)
    with pytest.raises(CredentialError, match=report) as failure:
        await azure.provider.fetch()
    assert NAME in str(failure.value)
    assert (value[30:60] or value) not in str(failure.value)
    assert azure.entra.requests == []


# Rotation


async def test_a_rotated_secret_is_read_again_once_the_identity_provider_refuses_the_old(
    azure: Azure,
) -> None:
    azure.vault.put(NAME, CLIENT_SECRET)
    await azure.provider.fetch()
    azure.entra.client_secrets = {"fake~second"}
    azure.vault.put(NAME, "fake~second")
    assert azure.entra.accepts((await azure.provider.fetch()).token)
    assert len(azure.vault.reads) == 2
    assert [b"second" in bytes(each.body) for each in azure.entra.requests] == [False, False, True]


async def test_a_refused_secret_without_a_newer_version_is_asked_for_once_more_and_no_more(
    azure: Azure,
) -> None:
    version = azure.vault.put(NAME, "fake~wrong")
    with pytest.raises(CredentialError) as failure:
        await azure.provider.fetch()
    assert len(azure.vault.reads) == 2
    assert len(azure.entra.requests) == 1
    assert "401 invalid_client" in str(failure.value)
    assert f"version {version.id} of secret {NAME}" in str(failure.value)
    assert "has no newer version" in str(failure.value)


async def test_a_token_that_the_upstream_refused_is_bought_with_the_newest_version(azure: Azure) -> None:
    azure.vault.put(NAME, CLIENT_SECRET)
    await azure.provider.fetch()
    azure.entra.client_secrets.add("fake~second")
    azure.vault.put(NAME, "fake~second")
    await azure.provider.fetch(refused=True)
    assert b"second" in bytes(azure.entra.requests[-1].body)


async def test_a_newer_version_is_found_without_any_refusal(azure: Azure) -> None:
    azure.vault.put(NAME, CLIENT_SECRET)
    held = HeldSecret(azure.reader, NAME, what="upstream credential", interval=0.05)
    task = asyncio.create_task(held.run())
    assert (await held.current()).value == CLIENT_SECRET
    azure.vault.put(NAME, "fake~second")
    async with asyncio.timeout(PATIENCE_SECONDS):
        while (await held.current()).value != "fake~second":
            await azure.vault.received(len(azure.vault.requests) + 1)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_the_vault_is_looked_into_ahead_of_the_end_of_what_is_held(azure: Azure) -> None:
    azure.vault.put(NAME, CLIENT_SECRET, expires=time.time() + 3)
    held = HeldSecret(azure.reader, NAME, what="upstream credential", interval=86400)
    task = asyncio.create_task(held.run())
    await asyncio.gather(held.current(), held.current())
    assert azure.vault.reads == [NAME]  # concurrent callers share one response
    azure.vault.put(NAME, "fake~second")
    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(azure.vault.reads) < 2:
            await azure.vault.received(len(azure.vault.requests) + 1)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_secret_and_a_certificate_that_end_soon_are_named_with_their_end(azure: Azure) -> None:
    certificate = client_certificate(days=10)
    held = HeldSecret(azure.reader, NAME, what="upstream credential", interval=60, own_end=certificate_end)
    for value, content_type, expires, ends in (
        (CLIENT_SECRET, None, None, None),
        (CLIENT_SECRET, None, time.time() + 20 * 86400, None),
        (CLIENT_SECRET, None, time.time() + 5 * 86400, time.time() + 5 * 86400),
        (certificate.pem, PEM, time.time() + 20 * 86400, time.time() + 10 * 86400),
        (client_certificate(days=-1).pfx, PFX, None, time.time() - 86400),
    ):
        azure.vault.put(NAME, value, content_type, expires=expires)
        await held.read()
        check = ending_check([held], time.time())
        if ends is None:
            assert check == Check("ok")
            continue
        assert held.ends_at == pytest.approx(ends, abs=3600)
        verb = "expires" if ends > time.time() else "expired"
        when = time.strftime("%Y-%m-%dT", time.gmtime(held.ends_at))
        assert check.status == "degraded"
        assert check.detail.startswith(f"secret {NAME} (upstream credential) {verb} at {when}")
        assert check.detail.endswith(": store a newer version")


# Outages of the vault


async def test_the_last_good_secret_serves_until_its_end_and_no_longer(
    azure: Azure, caplog: pytest.LogCaptureFixture
) -> None:
    clock = time.time()
    azure.vault.put(NAME, CLIENT_SECRET, expires=clock + 1000)
    held = HeldSecret(azure.reader, NAME, what="upstream credential", interval=60, clock=lambda: clock)
    assert (await held.current()).value == CLIENT_SECRET
    azure.vault.mode = "down"
    await held.read()
    assert (await held.current()).value == CLIENT_SECRET
    assert held.check().status == "degraded"
    assert held.check().detail.startswith("the last good upstream credential is in use until 20")
    assert f"key vault {azure.vault.base_url}, secret {NAME}" in held.check().detail
    assert "key vault" in caplog.text
    clock += 1001
    with pytest.raises(VaultError, match="key vault"):
        await held.current()
    assert held.check().status == "failed"
    azure.vault.mode = "ok"
    ended = f"secret {NAME} expired at .*, and the key vault has no newer version"
    with pytest.raises(VaultError, match=ended):
        await held.current()
    assert re.fullmatch(ended, held.check().detail)
    assert held.check().status == "failed"
    azure.vault.put(NAME, "fake~second")
    assert (await held.current()).value == "fake~second"
    assert held.check().status == "ok"


async def test_upstream_tokens_are_bought_while_the_vault_is_away(azure: Azure) -> None:
    azure.vault.put(NAME, CLIENT_SECRET)
    await azure.provider.fetch()
    azure.vault.mode = "down"
    assert azure.entra.accepts((await azure.provider.fetch()).token)
    assert azure.entra.accepts((await azure.provider.fetch(refused=True)).token)
    azure.entra.client_secrets.clear()
    with pytest.raises(CredentialError, match=r"invalid_client .* no newer version could be read: key vault"):
        await azure.provider.fetch()


@pytest.mark.parametrize(
    ("mode", "report"),
    [
        ("down", "can't be reached"),
        (
            "forbidden",
            "responded with 403 Forbidden ForbiddenByRbac; the identity needs the role Key Vault Secrets",
        ),
        ("error", "responded with 503 ServiceUnavailable"),
        ("garbage", "the response is invalid"),
        ("deaf", "responded with 401 Unauthorized"),
        ("foreign", "the challenge is for another vault: check the address of the vault"),
    ],
)
async def test_what_keeps_the_vault_from_responding_is_named(
    azure: Azure, mode: VaultMode, report: str
) -> None:
    azure.vault.put(NAME, CLIENT_SECRET)
    azure.vault.mode = mode
    with pytest.raises(CredentialError, match=report) as failure:
        await azure.provider.fetch()
    where = f"key vault {azure.vault.base_url}, secret {NAME}, as the machine's own identity: "
    assert str(failure.value).startswith(where)
    assert azure.held.check().status == "failed"
    assert azure.held.check().detail == str(failure.value)
    if mode == "foreign":
        assert azure.identity.tokens == {}


async def test_a_secret_that_is_not_there_is_named(azure: Azure) -> None:
    with pytest.raises(CredentialError, match="404 SecretNotFound; the key vault does not have this secret"):
        await azure.provider.fetch()
    azure.vault.put(NAME, CLIENT_SECRET, enabled=False)
    with pytest.raises(CredentialError, match="403 Forbidden SecretDisabled; the newest version is disabled"):
        await azure.provider.fetch()


async def test_a_throttling_vault_is_left_alone_as_long_as_it_asks(azure: Azure) -> None:
    azure.vault.mode = "throttled"
    with pytest.raises(CredentialError) as failure:
        await azure.provider.fetch()
    assert failure.value.retry_after == 3
    assert azure.held.maintenance.pause(0.1, failure.value.retry_after) >= 3
    assert len(azure.vault.requests) == 1


async def test_requests_that_wait_for_a_token_do_not_wait_for_a_slow_vault(
    azure: Azure, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.agent.credentials.key_vault._PATIENCE_SECONDS", 0.1)
    azure.vault.put(NAME, CLIENT_SECRET)
    await azure.provider.fetch()
    azure.vault.mode = "hang"
    assert azure.entra.accepts((await azure.provider.fetch(refused=True)).token)
    assert len(azure.vault.reads) == 1
    azure.vault.mode = "ok"
    await azure.held.read()
    assert azure.held.check().status == "ok"


@pytest.mark.parametrize("who", ["vault", "identity"])
async def test_a_slow_vault_or_identity_is_waited_for_only_so_long(
    azure: Azure, monkeypatch: pytest.MonkeyPatch, who: str
) -> None:
    monkeypatch.setattr("proxy.outbound.key_vault._TOTAL_SECONDS", 0.1)
    azure.vault.put(NAME, CLIENT_SECRET)
    slow = azure.vault if who == "vault" else azure.identity
    slow.mode = "hang"
    with pytest.raises(CredentialError, match="timed out"):
        await azure.provider.fetch()
    slow.mode = "ok"
    monkeypatch.setattr("proxy.outbound.key_vault._TOTAL_SECONDS", 20.0)
    assert azure.entra.accepts((await azure.provider.fetch()).token)


@pytest.mark.parametrize(
    ("mode", "report"),
    [
        ("down", "can't be reached: ServiceRequestError"),
        ("unassigned", "responded with 400; is it assigned to this machine?"),
        ("garbage", "responded with 200 and an invalid body"),
        ("error", "responded with 500"),
    ],
)
@pytest.mark.parametrize("machine", [False, True], ids=["in App Service", "on a machine"])
async def test_a_managed_identity_that_gives_no_token_is_named(
    authority: CertificateAuthority,
    monkeypatch: pytest.MonkeyPatch,
    mode: IdentityMode,
    report: str,
    machine: bool,
) -> None:
    async with running(authority, monkeypatch, MANAGED_IDENTITY, machine=machine) as azure:
        azure.vault.put(NAME, CLIENT_SECRET)
        azure.identity.mode = mode
        with pytest.raises(CredentialError) as failure:
            await azure.provider.fetch()
        where = f"key vault {azure.vault.base_url}, secret {NAME}, as identity {MANAGED_IDENTITY}: "
        assert str(failure.value).startswith(f"{where}the managed identity gives no token: {report}")


DEEP = b"[" * 100_000
NO_PAGE = b'{"value": [], "nextLink": "%s"}'


def says(status: int, body: bytes) -> Callable[[Received], Awaitable[Response]]:
    async def response(request: Received) -> Response:
        return Response(status, (("Content-Type", "application/json"),), body)

    return response


@pytest.mark.parametrize("status", [200, 403, 404, 429, 500])
async def test_a_vault_that_responses_what_nobody_can_read_is_a_vault_that_gives_nothing(
    azure: Azure, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    azure.vault.put(NAME, CLIENT_SECRET)
    await azure.reader.secret(NAME)  # the vault accepts the token without a challenge from now on
    monkeypatch.setattr(azure.vault, "response", says(status, DEEP))
    for call in (azure.reader.secret, azure.reader.versions):
        with pytest.raises(VaultError, match="the response is invalid"):
            await call(NAME)


async def test_a_list_of_versions_that_leads_to_itself_is_no_list(
    azure: Azure, monkeypatch: pytest.MonkeyPatch
) -> None:
    azure.vault.put(NAME, CLIENT_SECRET)
    await azure.reader.secret(NAME)
    itself = f"{azure.vault.base_url}/secrets/{NAME}/versions?api-version=7.6".encode()
    monkeypatch.setattr(azure.vault, "response", says(200, NO_PAGE % itself))
    with pytest.raises(VaultError, match="the response is invalid"):
        await azure.reader.versions(NAME)


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (200, DEEP),
        (400, DEEP),
        (500, DEEP),
        (200, b'{"access_token": "t", "expires_in": 1e999, "resource": "r", "token_type": "Bearer"}'),
    ],
)
async def test_a_managed_identity_that_responses_what_nobody_can_read_gives_no_token(
    azure: Azure, monkeypatch: pytest.MonkeyPatch, status: int, body: bytes
) -> None:
    azure.vault.put(NAME, CLIENT_SECRET)
    monkeypatch.setattr(azure.identity, "response", says(status, body))
    with pytest.raises(VaultError, match="the managed identity gives no token"):
        await azure.reader.secret(NAME)


async def test_a_vault_whose_certificate_is_not_trusted_gets_nothing(
    azure: Azure, authority: CertificateAuthority, tmp_path: Path
) -> None:
    stranger = CertificateAuthority(tmp_path)
    async with (
        open_session(client_tls(stranger.ca_file), DIRECT) as session,
        open_key_vault(azure.vault.base_url, session, ManagedIdentity()) as reader,
    ):
        with pytest.raises(VaultError, match=r"can.t be reached: .*certificate"):
            await reader.secret(NAME)
    assert azure.vault.requests == []


class Broken:
    """A fake vault that raises an unexpected error."""

    async def secret(self, name: str, version: str = "") -> VaultSecret:
        raise LookupError(CLIENT_SECRET)

    async def versions(self, name: str) -> list[SecretVersion]:
        raise LookupError(CLIENT_SECRET)


async def test_an_error_that_nobody_foresaw_leaves_what_is_held_in_use(
    azure: Azure, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    azure.vault.put(NAME, CLIENT_SECRET)
    await azure.held.read()
    monkeypatch.setattr(azure.held, "_vault", Broken())
    await azure.held.read()
    assert (await azure.held.current()).value == CLIENT_SECRET
    check = azure.held.check()
    assert check.status == "degraded"
    assert "unexpected LookupError at test_agent_vault.py line " in check.detail
    assert CLIENT_SECRET not in caplog.text + check.detail


async def test_half_a_character_in_what_the_vault_says_can_be_told_all_the_same(azure: Azure) -> None:
    azure.vault.put(NAME, "-----BEGIN", "application/\ud800")
    with pytest.raises(CredentialError, match="must be unencrypted PEM") as failure:
        await azure.provider.fetch()
    assert r"application/\ud800" in str(failure.value)
    msgspec.json.encode(str(failure.value))


@pytest.mark.parametrize("body", ['{"value": "v", "id": "%s"}', '{"value": [{"id": "%s"}]}'])
async def test_a_version_that_is_named_by_half_a_character_is_none(
    azure: Azure, monkeypatch: pytest.MonkeyPatch, body: str
) -> None:
    azure.vault.put(NAME, CLIENT_SECRET)
    await azure.reader.secret(NAME)
    odd = f"{azure.vault.base_url}/secrets/{NAME}/\\ud800"
    monkeypatch.setattr(azure.vault, "response", says(200, (body % odd).encode()))
    call = azure.reader.versions if "[" in body else azure.reader.secret
    with pytest.raises(VaultError, match="the response is invalid"):
        await call(NAME)


# Secrecy


async def test_no_secret_key_or_token_is_logged_at_any_level(
    azure: Azure, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    certificate = client_certificate()
    azure.entra.certificates.append(certificate.certificate)
    modes: list[VaultMode] = ["ok", "garbage", "forbidden", "down", "ok"]
    azure.vault.put(NAME, CLIENT_SECRET)
    for mode in modes:
        azure.vault.mode = mode
        await azure.provider.fetch(refused=True)
    azure.vault.put(NAME, certificate.pfx, PFX)
    await azure.provider.fetch(refused=True)
    azure.entra.mode = "garbage"
    with pytest.raises(CredentialError) as failure:
        await azure.provider.fetch(refused=True)
    said = caplog.text + str(failure.value) + repr(azure.held.check()) + repr(await azure.held.current())
    assertion = bytes(azure.entra.requests[-1].body).partition(b"client_assertion=")[2].partition(b"&")[0]
    assert len(assertion) > 300
    for secret in (CLIENT_SECRET, certificate.pfx[:40], *azure.identity.tokens, *azure.entra.tokens):
        assert secret not in said
    assert assertion.decode() not in said
