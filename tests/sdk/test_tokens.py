"""Tests of identity libraries that get their tokens from the proxy because of changed settings.

A library must also drop a token that the proxy no longer accepts.
"""

from __future__ import annotations

import json

import pytest

from tests.sdk.conftest import Harness

pytestmark = [pytest.mark.process, pytest.mark.asyncio(loop_scope="session")]

WORKS = {"status": 200, "cached": True, "renewed": True, "expires": True}
CLASSES = {
    "python": {
        "DefaultAzureCredential",
        "EnvironmentCredential",
        "ClientSecretCredential",
        "ClientSecretCredential of a tenant",
        "aio.DefaultAzureCredential",
        "aio.EnvironmentCredential",
        "aio.ClientSecretCredential",
        "aio.ClientSecretCredential of a tenant",
        "msal",
        "msal of a tenant",
    },
    "javascript": {
        "DefaultAzureCredential",
        "EnvironmentCredential",
        "ClientSecretCredential",
        "ClientSecretCredential of a tenant",
        "msal",
        "msal of a tenant",
    },
}
REFUSED = {"python": "ClientAuthenticationError", "javascript": "AuthenticationRequiredError"}


@pytest.mark.parametrize("language", ["python", "javascript"])
async def test_every_credential_class_gets_a_token_that_works(harness: Harness, language: str) -> None:
    results = await harness.run(language, "tokens")
    for name in ("wrong secret", "wrong secret of a tenant"):
        refused = results.pop(name)
        assert refused["error"] == REFUSED[language]
        assert "The client id or secret is not valid." in refused["message"]
    assert results == dict.fromkeys(CLASSES[language], WORKS)
    harness.assert_nothing_leaked()


WITHOUT_SECRET = {
    "python": {
        "ClientAssertionCredential",
        "aio.ClientAssertionCredential of a tenant",
        "WorkloadIdentityCredential",
        "DefaultAzureCredential",
        "aio.WorkloadIdentityCredential",
        "CertificateCredential",
        "CertificateCredential of a tenant",
        "aio.CertificateCredential",
        "msal with a certificate",
        "msal with a certificate, of a tenant",
        "msal with an assertion",
    },
    "javascript": {
        "ClientAssertionCredential",
        "ClientAssertionCredential of a tenant",
        "WorkloadIdentityCredential",
        "ClientCertificateCredential",
        "ClientCertificateCredential of a tenant",
        "msal with an assertion",
    },
}


@pytest.mark.parametrize("language", ["python", "javascript"])
async def test_every_class_without_a_secret_gets_a_token_that_works(harness: Harness, language: str) -> None:
    results = await harness.run(language, "assertions", harness.assertions(20))
    for name in ("assertion used twice", "certificate of another"):
        refused = results.pop(name)
        assert refused["error"] == REFUSED[language]
        assert "The client assertion is not valid." in refused["message"]
    assert results == dict.fromkeys(WITHOUT_SECRET[language], WORKS)
    harness.assert_nothing_leaked()


@pytest.mark.parametrize("language", ["python", "javascript"])
async def test_what_becomes_of_a_token_that_died_early(harness: Harness, language: str) -> None:
    program = await harness.start(language, "dead_token")
    await program.says("ready")
    system = harness.system
    await system.proxy.stop()
    (system.directory / "token-signing.key").unlink()  # earlier tokens are no longer accepted
    await system.start_proxy()
    results = await program.results(b"go on\n")
    if language == "python":
        went_on = ["Ada Lovelace", False, "Ada Lovelace"]
        assert results == {"sync": went_on, "aio": went_on}
        sent = [bytes(each.body) for each in system.graph.requests if each.method == "POST"]
        assert [json.loads(body)["displayName"] for body in sent] == ["sync", "aio"]
    else:
        # The SDK leaves the challenge to the application, which gets all the data for it.
        error = {"status": 401, "code": "InvalidAuthenticationToken", "challenged": True}
        assert results == {"before": "Ada Lovelace", "error": error, "after": "Ada Lovelace"}
    harness.assert_nothing_leaked()
