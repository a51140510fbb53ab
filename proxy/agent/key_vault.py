"""Azure Key Vault through the machine's managed identity: the only module that imports Azure's SDK.

It takes a fifth of a second and 20 MB, so it is imported by the agent alone, once a setting asks for a vault.
"""

import asyncio
import contextlib
import json
import logging
import math
import re
import time
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Final

import aiohttp
from azure.core.exceptions import AzureError, ClientAuthenticationError, HttpResponseError
from azure.core.pipeline.transport import AioHttpTransport
from azure.core.rest import AsyncHttpResponse
from azure.identity import CredentialUnavailableError
from azure.identity.aio import ManagedIdentityCredential
from azure.keyvault.secrets import KeyVaultSecret, SecretProperties
from azure.keyvault.secrets.aio import SecretClient

from proxy.agent.retry import retry_after
from proxy.agent.vault import SecretVersion, VaultError, VaultSecret

_TOTAL_SECONDS: Final = 20.0  # for the challenge, the identity's token and the secret together
_CONNECT_SECONDS: Final = 5.0
_READ_SECONDS: Final = 15.0
_LONGEST_PAUSE: Final = 300.0
_MAX_VERSIONS: Final = 1000
_CODE: Final = re.compile(r"[0-9A-Za-z_.-]{1,64}")
_HINTS: Final = {
    403: "; the identity needs the role Key Vault Secrets User, and the vault's firewall must let it in",
    404: "; there is no such secret, or it has no version that can be read",
}


class KeyVault:
    def __init__(self, client: SecretClient, identity: str) -> None:
        self._client = client
        self._identity = identity

    async def secret(self, name: str, version: str = "") -> VaultSecret:
        async with self._failures_of(name):
            return _secret(await self._client.get_secret(name, version or None))

    async def versions(self, name: str) -> list[SecretVersion]:
        found: list[SecretVersion] = []
        async with self._failures_of(name):
            async for each in self._client.list_properties_of_secret_versions(name):
                found.append(_version(each))
                if len(found) > _MAX_VERSIONS:
                    raise ValueError("too many versions")
        return found

    @contextlib.asynccontextmanager
    async def _failures_of(self, name: str) -> AsyncIterator[None]:
        """Whatever the SDK raises as one line. Its own messages quote answers, so none is passed on."""
        try:
            async with asyncio.timeout(_TOTAL_SECONDS):
                yield
        except TimeoutError:
            raise self._error(name, "timed out") from None
        except AzureError as error:
            what, pause = self._described(error)
            raise self._error(name, what, pause) from None
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            if "challenge resource" in str(error):
                raise self._error(
                    name, "the challenge is for another vault than Credentials.VaultUrl"
                ) from None
            raise self._error(name, "the answer makes no sense") from None

    def _error(self, name: str, what: str, pause: float = 0.0) -> VaultError:
        vault = self._client.vault_url
        return VaultError(f"key vault {vault}, secret {name}, as {self._identity}: {what}", pause)

    def _described(self, error: AzureError) -> tuple[str, float]:
        origin = error.__cause__ if isinstance(error, CredentialUnavailableError) else error
        response = origin.response if isinstance(origin, HttpResponseError) else None
        if not isinstance(response, AsyncHttpResponse):
            if isinstance(error, ClientAuthenticationError):
                return "the managed identity gives no token: its endpoint is not there or says nonsense", 0.0
            return f"can't be reached: {type(error).__name__}: {error.message}", 0.0
        asked = retry_after(response.headers.get("Retry-After"), time.time()) or 0.0
        status, code = response.status_code, _error_code(response.content)
        if not response.request.url.startswith(self._client.vault_url):
            return f"the managed identity gives no token: answered {status}{code}", min(asked, _LONGEST_PAUSE)
        if status < 300:
            return f"answered {status} with something that is no secret", 0.0
        return f"answered {status}{code}{_HINTS.get(status, '')}", min(asked, _LONGEST_PAUSE)


@contextlib.asynccontextmanager
async def open_key_vault(
    url: str, session: aiohttp.ClientSession, *, managed_identity_client_id: str
) -> AsyncIterator[KeyVault]:
    """The vault at `url`, whose certificate is judged by the session's authorities. Retries are the caller's,
    so that what waits for them shows in health and log."""
    for name in ("azure", "msal"):  # what matters is told by VaultError; they also tell of heads and answers
        logging.getLogger(name).setLevel(logging.CRITICAL)
    transport = AioHttpTransport(
        session=session,
        session_owner=False,
        connection_timeout=_CONNECT_SECONDS,
        read_timeout=_READ_SECONDS,
    )
    user_assigned = managed_identity_client_id or None
    identity = f"identity {user_assigned}" if user_assigned else "the system-assigned identity"
    async with (
        ManagedIdentityCredential(client_id=user_assigned, transport=transport, retry_total=0) as credential,
        SecretClient(url, credential, transport=transport, retry_total=0, permit_redirects=False) as client,
    ):
        yield KeyVault(client, identity)


def _secret(found: KeyVaultSecret) -> VaultSecret:
    properties = found.properties
    if not found.value or not properties.version:
        raise ValueError("no value")
    return VaultSecret(
        found.value,
        properties.content_type or "",
        properties.version,
        _unix(properties.expires_on, math.inf),
    )


def _version(found: SecretProperties) -> SecretVersion:
    if not found.version:
        raise ValueError("no version")
    begins_at = max(_unix(found.created_on, 0.0), _unix(found.not_before, 0.0))
    return SecretVersion(
        found.version, found.enabled is not False, begins_at, _unix(found.expires_on, math.inf)
    )


def _unix(time: datetime | None, otherwise: float) -> float:
    return otherwise if time is None else time.timestamp()


def _error_code(body: bytes) -> str:
    """The codes of a vault's or identity's error answer; never its message."""
    try:
        error = json.loads(body)["error"]
        codes = (
            [error]
            if isinstance(error, str)
            else [error["code"], (error.get("innererror") or {}).get("code")]
        )
    except (ValueError, TypeError, KeyError, AttributeError):
        return ""
    told = [code for code in codes if isinstance(code, str) and _CODE.fullmatch(code)]
    return f" {' '.join(told)}" if told else ""
