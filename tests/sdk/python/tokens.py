"""Request a token with each SDK credential class that an application may use.

Use each token for one request.
"""

import asyncio
import json
import os
from typing import Any

import azure.identity
import azure.identity.aio
import msal
import requests
from azure.core.exceptions import ClientAuthenticationError

AUTHORITY = os.environ["AZURE_AUTHORITY_HOST"]  # the proxy's address, under DefaultAzureCredential's own name
CLIENT = {
    "client_id": os.environ["AZURE_CLIENT_ID"],
    "client_secret": os.environ.get("AZURE_CLIENT_SECRET", ""),
}
SCOPE = "https://graph.microsoft.com/.default"


def used(token: str) -> int:
    response = requests.get(
        f"{AUTHORITY}/v1.0/echo/token", headers={"Authorization": f"Bearer {token}"}, timeout=20
    )
    return response.status_code


def sync_credential(credential: Any) -> dict[str, Any]:
    with credential:
        first = credential.get_token(SCOPE)
        cached = credential.get_token(SCOPE)
        renewed = credential.get_token(
            SCOPE, claims='{"access_token":{"nbf":{"essential":true,"value":"1"}}}', enable_cae=True
        )
        return {
            "status": used(first.token),
            "cached": cached.token == first.token,
            "renewed": renewed.token != first.token,
            "expires": isinstance(first.expires_on, int),
        }


async def async_credential(credential: Any) -> dict[str, Any]:
    async with credential:
        first = await credential.get_token(SCOPE)
        cached = await credential.get_token(SCOPE)
        renewed = await credential.get_token(
            SCOPE, claims='{"access_token":{"nbf":{"essential":true,"value":"1"}}}', enable_cae=True
        )
        return {
            "status": used(first.token),
            "cached": cached.token == first.token,
            "renewed": renewed.token != first.token,
            "expires": isinstance(first.expires_on, int),
        }


def msal_application(tenant: str, **options: Any) -> dict[str, Any]:
    application = msal.ConfidentialClientApplication(
        CLIENT["client_id"],
        client_credential=CLIENT["client_secret"],
        authority=f"{AUTHORITY}/{tenant}",
        **options,
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


def refused(tenant: str) -> dict[str, Any]:
    credential = azure.identity.ClientSecretCredential(
        tenant, CLIENT["client_id"], "wrong", authority=AUTHORITY, disable_instance_discovery=True
    )
    try:
        credential.get_token(SCOPE)
    except ClientAuthenticationError as error:
        return {"error": type(error).__name__, "message": error.message}
    return {}


def main() -> None:
    own = {"authority": AUTHORITY}
    other = {"authority": AUTHORITY, "disable_instance_discovery": True}
    sync, aio = azure.identity, azure.identity.aio
    contoso = "contoso.onmicrosoft.com"
    results = {
        "DefaultAzureCredential": sync_credential(sync.DefaultAzureCredential()),
        "EnvironmentCredential": sync_credential(sync.EnvironmentCredential()),
        "ClientSecretCredential": sync_credential(sync.ClientSecretCredential("adfs", **CLIENT, **own)),
        "ClientSecretCredential of a tenant": sync_credential(
            sync.ClientSecretCredential(contoso, **CLIENT, **other)
        ),
        "aio.DefaultAzureCredential": asyncio.run(async_credential(aio.DefaultAzureCredential())),
        "aio.EnvironmentCredential": asyncio.run(async_credential(aio.EnvironmentCredential())),
        "aio.ClientSecretCredential": asyncio.run(
            async_credential(aio.ClientSecretCredential("adfs", **CLIENT, **own))
        ),
        "aio.ClientSecretCredential of a tenant": asyncio.run(
            async_credential(aio.ClientSecretCredential(contoso, **CLIENT, **other))
        ),
        "msal": msal_application("adfs"),
        "msal of a tenant": msal_application(contoso, instance_discovery=False),
        "wrong secret": refused("adfs"),
        "wrong secret of a tenant": refused(contoso),
    }
    print(json.dumps(results))


if __name__ == "__main__":
    main()
