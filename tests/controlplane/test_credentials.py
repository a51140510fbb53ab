"""Tests of application credentials: the data that proxies receive, expiry times, and the last use."""

from __future__ import annotations

import json
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from jwt.algorithms import ECAlgorithm

from controlplane.operations import apps, credentials
from controlplane.operations.actor import local_actor
from controlplane.operations.credentials import CredentialFacts
from controlplane.operations.operation import InvalidRequest
from controlplane.operations.perform import perform
from controlplane.store.interface import AlreadyExists, Conflict, LogQuery, NotFound
from proxy.wire.audit_event import rfc3339
from tests.controlplane.plane import Plane, ProxyClient, context_of
from tests.fakes.certificates import client_certificate

DAY_MS = 86_400_000
ISSUER = "https://token.actions.githubusercontent.com"
SUBJECT = "repo:contoso/api:environment:production"
OWNER = local_actor("test")
KEY = ec.generate_private_key(ec.SECP256R1())
PUBLIC = KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
PRIVATE = KEY.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


async def add_app(plane: Plane, *, secret: bool = True) -> apps.NewApp:
    await plane.ruleset("acme", "one")
    asked = apps.AddApp("payroll", "acme", "one", secret=secret)
    return await perform(apps.add, context_of(plane), OWNER, asked)


async def add_federated(plane: Plane, **changes: Any) -> CredentialFacts:
    asked = credentials.AddFederated("payroll", **({"issuer": ISSUER, "subject": SUBJECT} | changes))
    return (await perform(credentials.add_federated, context_of(plane), OWNER, asked)).credential


async def remove(plane: Plane, credential_id: str) -> None:
    asked = credentials.CredentialReference("payroll", credential=credential_id)
    await perform(credentials.remove, context_of(plane), OWNER, asked)


async def held(plane: Plane) -> tuple[CredentialFacts, ...]:
    asked = apps.AppReference("payroll")
    return (await perform(credentials.list_all, context_of(plane), OWNER, asked)).credentials


async def synced(proxy: ProxyClient) -> tuple[dict[str, Any], str]:
    response = await proxy.sync()
    (app,) = response.json["apps"]
    return app, response.headers["ETag"]


async def test_an_app_without_a_secret_has_federated_credentials_that_proxies_receive(
    plane: Plane, proxy: ProxyClient
) -> None:
    made = await add_app(plane, secret=False)
    assert made.client_secret is None
    app, before = await synced(proxy)
    assert (app["secretHashes"], app["secretVersion"], app["credentials"]) == ([], 0, [])
    assert await held(plane) == ()
    added = await add_federated(plane)
    app, after = await synced(proxy)
    assert after != before
    assert app["credentials"] == [
        {
            "kind": "federated",
            "id": added.id,
            "endsAt": None,
            "issuer": ISSUER,
            "subject": SUBJECT,
            "audience": "api://AzureADTokenExchange",
            "reuse": "once",
            "keys": None,
        }
    ]
    with pytest.raises(AlreadyExists, match="already"):
        await add_federated(plane, reuse="untilEnd")
    other = await add_federated(plane, audience="api://other")
    await remove(plane, added.id)
    assert [each.id for each in await held(plane)] == [other.id]
    app, _ = await synced(proxy)
    assert [each["id"] for each in app["credentials"]] == [other.id]
    with pytest.raises(NotFound, match="has no credential"):
        await remove(plane, added.id)


async def test_two_apps_may_pin_the_same_token_because_the_client_id_chooses(plane: Plane) -> None:
    await plane.org("acme")
    await add_app(plane)
    context = context_of(plane)
    await perform(apps.add, context, OWNER, apps.AddApp("other", "acme", "one"))
    await add_federated(plane)
    asked = credentials.AddFederated("other", issuer=ISSUER, subject=SUBJECT)
    assert (await perform(credentials.add_federated, context, OWNER, asked)).credential.subject == SUBJECT


async def test_a_credential_ends_at_its_time_by_a_new_version(plane: Plane, proxy: ProxyClient) -> None:
    await add_app(plane)
    ends_ms = plane.clock.wall_ms() + 60_000
    added = await add_federated(plane, expires=rfc3339(ends_ms))
    app, before = await synced(proxy)
    assert [each["endsAt"] for each in app["credentials"]] == [None, rfc3339(ends_ms)]
    plane.clock.advance(seconds=59.0)
    assert (await proxy.sync(before)).status == 304
    plane.clock.advance(seconds=1.0)
    app, after = await synced(proxy)
    assert after != before
    assert [each["kind"] for each in app["credentials"]] == ["secret"]
    (ended,) = app["endedCredentials"]  # the proxy reports this to the operator
    assert (ended["id"], ended["endsAt"]) == (added.id, rfc3339(ends_ms))
    assert [each.state for each in await held(plane)] == ["valid", "ended"]
    asked = credentials.EndCredential("payroll", credential=added.id, expires="30d")
    with pytest.raises(Conflict, match="has ended"):
        await perform(credentials.end, context_of(plane), OWNER, asked)


async def test_a_secret_that_is_removed_takes_its_tokens_along_and_its_version_never_comes_back(
    plane: Plane, proxy: ProxyClient
) -> None:
    await add_app(plane)
    context = context_of(plane)
    rotated = await perform(apps.rotate_secret, context, OWNER, apps.RotateSecret("payroll", None, 3600))
    assert rotated.secret_version == 1
    newest, oldest = await held(plane)
    await remove(plane, newest.id)
    app, _ = await synced(proxy)
    assert [each["id"] for each in app["credentials"]] == [oldest.id]
    assert app["secretVersion"] == 3  # tokens of both secrets had version 1
    await remove(plane, oldest.id)
    app, _ = await synced(proxy)
    assert (app["secretHashes"], app["secretVersion"]) == ([], 0)
    rotated = await perform(apps.rotate_secret, context, OWNER, apps.RotateSecret("payroll"))
    assert rotated.secret_version > 3
    (last,) = await held(plane)
    assert last.id not in (newest.id, oldest.id)


async def test_proxies_know_for_two_weeks_which_credentials_have_ended(
    plane: Plane, proxy: ProxyClient
) -> None:
    await add_app(plane)
    first, _ = await synced(proxy)
    assert "endedCredentials" not in first
    rotated = apps.RotateSecret("payroll", None, 3600)
    await perform(apps.rotate_secret, context_of(plane), OWNER, rotated)
    newest, replaced = await held(plane)
    plane.clock.advance(seconds=3600.0)
    app, after = await synced(proxy)
    assert [each["id"] for each in app["credentials"]] == [newest.id]
    (ended,) = app["endedCredentials"]
    assert (ended["id"], ended["kind"]) == (replaced.id, "secret")
    assert ended["hash"] not in app["secretHashes"]
    plane.clock.advance(seconds=14 * 86_400.0 - 60)
    assert (await proxy.sync(after)).status == 304
    plane.clock.advance(seconds=60.0)
    app, _ = await synced(proxy)
    assert "endedCredentials" not in app


async def test_an_end_of_a_secret_is_one_of_those_before_it_too(plane: Plane, proxy: ProxyClient) -> None:
    await add_app(plane)
    context = context_of(plane)
    await perform(apps.rotate_secret, context, OWNER, apps.RotateSecret("payroll", None, 7 * 86_400))
    newest, _ = await held(plane)
    asked = credentials.EndCredential("payroll", credential=newest.id, expires="1d")
    await perform(credentials.end, context, OWNER, asked)
    ends = rfc3339(plane.clock.wall_ms() + DAY_MS)
    assert [each.ends_at for each in await held(plane)] == [ends, ends]
    plane.clock.advance(seconds=86_400.0)
    app, _ = await synced(proxy)
    assert (app["secretHashes"], app["secretVersion"]) == ([], 0)


async def test_a_certificate_ends_with_its_own_end_and_no_operator_makes_it_last_longer(
    plane: Plane, proxy: ProxyClient
) -> None:
    await add_app(plane, secret=False)
    context = context_of(plane)
    made = client_certificate(days=30)
    begins = made.certificate.not_valid_before_utc.timestamp() + 60
    plane.clock.advance(seconds=begins - plane.clock.wall_ms() / 1000)
    end_ms = round(made.certificate.not_valid_after_utc.timestamp() * 1000)
    text = made.certificate.public_bytes(Encoding.PEM).decode()
    added = await perform(
        credentials.add_certificate, context, OWNER, credentials.AddCertificate("payroll", certificate=text)
    )
    key = await perform(credentials.add_key, context, OWNER, credentials.AddKey("payroll", key=text))
    assert added.credential.subject == "CN=graphward-client"
    assert (added.credential.ends_at, key.credential.ends_at) == (rfc3339(end_ms), rfc3339(end_ms))
    assert added.credential.thumbprint == key.credential.thumbprint
    app, _ = await synced(proxy)
    kinds = {each["kind"]: each for each in app["credentials"]}
    assert kinds["certificate"]["thumbprint"] == kinds["publicKey"]["thumbprints"][1]
    assert kinds["publicKey"]["key"]["kty"] == "RSA"
    for credential in (added.credential, key.credential):
        asked = credentials.EndCredential("payroll", credential=credential.id, expires="90d")
        with pytest.raises(InvalidRequest, match="the certificate expires at"):
            await perform(credentials.end, context, OWNER, asked)
    plane.clock.advance(seconds=(end_ms - plane.clock.wall_ms()) / 1000)
    with pytest.raises(InvalidRequest, match="ended"):
        await perform(credentials.add_key, context, OWNER, credentials.AddKey("payroll", key=text))


async def test_a_private_key_leaves_no_trace(plane: Plane) -> None:
    await plane.org("acme")
    await add_app(plane)
    context = context_of(plane)
    key = credentials.AddKey("payroll", key=PRIVATE)
    certificate = credentials.AddCertificate("payroll", certificate=PRIVATE)
    federated = credentials.AddFederated("payroll", issuer=ISSUER, subject="x", keys=PRIVATE)
    with pytest.raises(InvalidRequest, match=r"private key.*Make a new key pair"):
        await perform(credentials.add_key, context, OWNER, key)
    with pytest.raises(InvalidRequest, match="private key"):
        await perform(credentials.add_certificate, context, OWNER, certificate)
    with pytest.raises(InvalidRequest, match="not JSON"):
        await perform(credentials.add_federated, context, OWNER, federated)
    await perform(credentials.add_key, context, OWNER, credentials.AddKey("payroll", key=PUBLIC))
    lines = await plane.store.operator_log(LogQuery(limit=10, outcome=None, org_ids=None))
    assert not any(part in line.request for line in lines for part in PRIVATE.split() if len(part) > 20)
    said = [(line.operation, line.outcome) for line in lines[:4]]
    assert said == [
        ("app.key.add", "done"),
        ("app.federated.add", "invalidRequest"),
        ("app.certificate.add", "invalidRequest"),
        ("app.key.add", "invalidRequest"),
    ]
    assert "added publicKey crd-" in (lines[0].result or "")


def token_event(proxy: ProxyClient, app_id: str, at_ms: int, **members: Any) -> dict[str, Any]:
    return {
        "id": f"token-{at_ms}-{json.dumps(members)}",
        "time": rfc3339(at_ms),
        "orgId": proxy.org_ids[0],
        "appId": app_id,
        "method": "POST",
        "path": "/proxy/token",
        "status": 200,
        "verdict": "allow",
        "reason": "tokenIssued",
    } | members


async def test_the_last_use_of_each_credential_is_known_never_or_not_recorded(
    plane: Plane, proxy: ProxyClient
) -> None:
    made = await add_app(plane)
    federated = await add_federated(plane)
    (secret, _) = await held(plane)
    assert [each.use for each in await held(plane)] == ["never", "never"]
    now = plane.clock.wall_ms()
    events = [
        token_event(proxy, made.app_id, now - 5000, credentialId=secret.id),
        token_event(proxy, made.app_id, now - 1000, credentialId=secret.id),
        token_event(proxy, made.app_id, now - 500, credentialId=federated.id, reason="assertionRefused"),
        token_event(
            proxy, made.app_id, now - 400, credentialId=federated.id, laterMember=True, reason="allowed"
        ),
    ]
    assert (await proxy.audit({"batchId": "one", "events": events})).status == 202
    used, unused = await held(plane)
    assert (used.use, used.last_used) == ("used", rfc3339(now - 1000))
    assert (unused.use, unused.last_used) == ("never", None)
    # A proxy of an earlier release omits the credential. A false report changes no row of another app.
    plane.clock.advance(seconds=60.0)
    now = plane.clock.wall_ms()
    events = [token_event(proxy, made.app_id, now, credentialId=f"crd-{at:012x}") for at in range(150)]
    events += [token_event(proxy, made.app_id, now), token_event(proxy, made.app_id, now, credentialId=7)]
    assert (await proxy.audit({"batchId": "two", "events": events})).status == 202
    uses = (await plane.store.credential_uses([made.app_id]))[made.app_id]
    assert set(uses.last_ms) == {secret.id, ""}
    used, unused = await held(plane)
    assert (used.use, unused.use) == ("used", "unknown")
    plane.clock.advance(seconds=60.0)
    await add_federated(plane, subject="repo:contoso/api:ref:refs/heads/main")
    assert [each.use for each in await held(plane)] == ["used", "unknown", "never"]


async def test_what_ends_soon_is_listed_by_its_end_and_a_replaced_secret_is_not(
    plane: Plane, proxy: ProxyClient
) -> None:
    await add_app(plane)
    context = context_of(plane)
    await perform(apps.rotate_secret, context, OWNER, apps.RotateSecret("payroll", None, 3600))
    far = await add_federated(plane, expires="31d")
    near = await add_federated(plane, subject="near", expires="29d")

    async def ending() -> list[tuple[str, str]]:
        asked = credentials.ListEnding("acme")
        found = await perform(credentials.list_ending, context, OWNER, asked)
        return [(each.id, each.state) for each in found.credentials]

    assert await ending() == [(near.id, "soon")]
    plane.clock.advance(seconds=30 * 86_400.0)
    assert await ending() == [(near.id, "ended"), (far.id, "soon")]
    await perform(apps.disable, context, OWNER, apps.AppReference("payroll"))
    assert await ending() == []


async def test_an_app_has_so_many_credentials_and_no_more(plane: Plane) -> None:
    await plane.org("acme")
    await add_app(plane)
    for at in range(50):
        await add_federated(plane, subject=f"subject {at}")
    with pytest.raises(Conflict, match="50 credentials"):
        await add_federated(plane)


async def test_an_organisation_names_no_more_issuers_than_proxies_read(
    plane: Plane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(credentials, "MOST_ISSUERS_OF_ORG", 2)
    await plane.org("acme")
    await add_app(plane, secret=False)
    for host in ("one", "two"):
        await add_federated(plane, issuer=f"https://{host}.example")
    with pytest.raises(
        Conflict, match="use 2 issuers, and proxies fetch the keys of at most 2: remove the credentials"
    ):
        await add_federated(plane, issuer="https://three.example")
    await add_federated(plane, issuer="https://two.example", subject="another")
    keys = json.dumps({"keys": [jwt.algorithms.ECAlgorithm.to_jwk(KEY.public_key(), as_dict=True)]})
    assert (await add_federated(plane, issuer="https://three.example", keys=keys)).keys == 1


async def test_an_app_has_no_more_keys_without_a_name_than_a_proxy_tries(plane: Plane) -> None:
    await plane.org("acme")
    await add_app(plane, secret=False)
    context = context_of(plane)

    async def add(**name: str) -> credentials.AddedCredential:
        public = ec.generate_private_key(ec.SECP256R1()).public_key()
        jwk = json.dumps(ECAlgorithm.to_jwk(public, as_dict=True) | name)
        asked = credentials.AddKey("payroll", key=jwk)
        return await perform(credentials.add_key, context, OWNER, asked)

    added = [await add() for _ in range(4)]
    with pytest.raises(
        Conflict,
        match="4 public keys without a `kid`: end one of them, or give the new key as a JWK with a `kid`",
    ):
        await add()
    await add(kid="named")
    await remove(plane, added[0].credential.id)
    await add()
