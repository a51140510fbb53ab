"""Request a token without a shared secret, with every credential class that an application may use."""

import asyncio
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import azure.identity
import azure.identity.aio
import msal
from azure.core.exceptions import ClientAuthenticationError
from tokens import AUTHORITY, SCOPE, async_credential, sync_credential, used

CLIENT_ID = os.environ["AZURE_CLIENT_ID"]
CERTIFICATE = os.environ["CERTIFICATE_FILE"]  # a certificate with its private key
OTHER_CERTIFICATE = os.environ["OTHER_CERTIFICATE_FILE"]
OWN = {"authority": AUTHORITY}
OTHER = {"authority": AUTHORITY, "disable_instance_discovery": True}
CONTOSO = "contoso.onmicrosoft.com"
unused = Path(os.environ["ASSERTIONS_FILE"]).read_text().split()  # each proves one token request


def fresh() -> str:
    return unused.pop()


def certificate_of_msal() -> dict[str, str]:
    pem = Path(CERTIFICATE).read_text()
    return {"private_key": pem, "public_certificate": pem[pem.index("-----BEGIN CERTIFICATE") :]}


def of_msal(tenant: str, credential: dict[str, Any], **options: Any) -> dict[str, Any]:
    application = msal.ConfidentialClientApplication(
        CLIENT_ID, client_credential=credential, authority=f"{AUTHORITY}/{tenant}", **options
    )
    first = application.acquire_token_for_client([SCOPE])
    cached = application.acquire_token_for_client([SCOPE])
    renewed = application.acquire_token_for_client([SCOPE], claims_challenge='{"access_token":{}}')
    return {
        "status": used(first["access_token"]),
        "cached": cached["access_token"] == first["access_token"],
        "renewed": renewed["access_token"] != first["access_token"],
        "expires": isinstance(first["expires_in"], int),
    }


def refused(get_token: Callable[[], Any]) -> dict[str, Any]:
    try:
        get_token()
    except ClientAuthenticationError as error:
        return {"error": type(error).__name__, "message": error.message}
    return {}


def main() -> None:
    sync, aio = azure.identity, azure.identity.aio
    one = fresh()
    again = sync.ClientAssertionCredential("adfs", CLIENT_ID, lambda: one, **OWN)
    again.get_token(SCOPE)
    renewing = {"claims": '{"access_token":{}}', "enable_cae": True}
    stranger = sync.CertificateCredential("adfs", CLIENT_ID, OTHER_CERTIFICATE, **OWN)
    results = {
        "ClientAssertionCredential": sync_credential(
            sync.ClientAssertionCredential("adfs", CLIENT_ID, fresh, **OWN)
        ),
        "aio.ClientAssertionCredential of a tenant": asyncio.run(
            async_credential(aio.ClientAssertionCredential(CONTOSO, CLIENT_ID, fresh, **OTHER))
        ),
        "WorkloadIdentityCredential": sync_credential(sync.WorkloadIdentityCredential()),
        "DefaultAzureCredential": sync_credential(sync.DefaultAzureCredential()),
        "aio.WorkloadIdentityCredential": asyncio.run(async_credential(aio.WorkloadIdentityCredential())),
        "CertificateCredential": sync_credential(
            sync.CertificateCredential("adfs", CLIENT_ID, CERTIFICATE, **OWN)
        ),
        "CertificateCredential of a tenant": sync_credential(
            sync.CertificateCredential(CONTOSO, CLIENT_ID, CERTIFICATE, **OTHER)
        ),
        "aio.CertificateCredential": asyncio.run(
            async_credential(aio.CertificateCredential("adfs", CLIENT_ID, CERTIFICATE, **OWN))
        ),
        "msal with a certificate": of_msal("adfs", certificate_of_msal()),
        "msal with a certificate, of a tenant": of_msal(
            CONTOSO, certificate_of_msal(), instance_discovery=False
        ),
        "msal with an assertion": of_msal("adfs", {"client_assertion": fresh}),
        "assertion used twice": refused(lambda: again.get_token(SCOPE, **renewing)),
        "certificate of another": refused(lambda: stranger.get_token(SCOPE)),
    }
    print(json.dumps(results))


if __name__ == "__main__":
    main()
