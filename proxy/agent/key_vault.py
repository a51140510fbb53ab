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
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import aiohttp
from azure.core.credentials import AccessTokenInfo, TokenRequestOptions
from azure.core.exceptions import AzureError, HttpResponseError, ServiceRequestError, ServiceResponseError
from azure.core.pipeline.transport import AioHttpTransport
from azure.core.rest import AsyncHttpResponse
from azure.identity.aio import ManagedIdentityCredential
from azure.keyvault.secrets import KeyVaultSecret, SecretProperties
from azure.keyvault.secrets.aio import SecretClient

from proxy.agent.retry import retry_after
from proxy.agent.vault import SecretVersion, VaultError, VaultSecret
from proxy.config.given_text import secret_of
from proxy.policy.json_text import readable

_TOTAL_SECONDS: Final = 20.0  # for the challenge, the identity's token and the secret together
_CONNECT_SECONDS: Final = 5.0
_READ_SECONDS: Final = 15.0
_LONGEST_PAUSE: Final = 300.0
_MAX_VERSIONS: Final = 1000
_MAX_PAGES: Final = 100  # of 25 versions each
_CODE: Final = re.compile(r"[0-9A-Za-z_.-]{1,64}")
_VAULT_HINTS: Final = {
    403: "; the identity needs the role Key Vault Secrets User, and the vault's firewall must let it in",
    404: "; there is no such secret, or it has no version that can be read",
}
_DISABLED: Final = "SecretDisabled"  # a 403 too, but of no right that is missing
_DISABLED_HINT: Final = "; the newest version is disabled, and no older one is used in its place"
_IDENTITY_HINTS: Final = {400: "; is it assigned to this machine?"}
# What the SDK raises over a response that it can't read, beside errors of its own.
_NONSENSE: Final = (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError)


@dataclass(frozen=True, slots=True)
class _Failure:
    what: str
    retry_after: float = 0.0


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
            pages = 0
            # By page: from an empty one to the next the SDK's own iteration recurses.
            async for page in self._client.list_properties_of_secret_versions(name).by_page():
                found += [_version(each) async for each in page]
                pages += 1
                if len(found) > _MAX_VERSIONS or pages > _MAX_PAGES:
                    raise ValueError("too many versions")
        if not found:  # which is how a vault responds for a secret that it doesn't have
            raise self._error(name, _Failure("there is no such secret"))
        return found

    @contextlib.asynccontextmanager
    async def _failures_of(self, name: str) -> AsyncIterator[None]:
        """Whatever the SDK raises as one line. Its own messages quote responses, so none is passed on."""
        try:
            async with asyncio.timeout(_TOTAL_SECONDS):
                yield
        except TimeoutError:
            raise self._error(name, _Failure("timed out")) from None
        except _NoTokenError as error:
            what = f"the managed identity gives no token: {error.failure.what}"
            raise self._error(name, _Failure(what, error.failure.retry_after)) from None
        except (AzureError, *_NONSENSE) as error:
            if "challenge resource" in str(error):
                failure = _Failure("the challenge is for another vault than Credentials.VaultUrl")
            else:
                failure = _failure(error, _VAULT_HINTS)
            raise self._error(name, failure) from None

    def _error(self, name: str, failure: _Failure) -> VaultError:
        where = f"key vault {self._client.vault_url}, secret {name}, as {self._identity}"
        return VaultError(f"{where}: {failure.what}", failure.retry_after)


class _NoTokenError(Exception):
    """Tells the identity's failures from the vault's, which the SDK raises as the same types."""

    def __init__(self, failure: _Failure) -> None:
        super().__init__(failure.what)
        self.failure = failure


class _Identity(ManagedIdentityCredential):
    async def get_token_info(
        self, *scopes: str, options: TokenRequestOptions | None = None
    ) -> AccessTokenInfo:
        try:
            found: AccessTokenInfo = await super().get_token_info(*scopes, options=options)
        except (AzureError, *_NONSENSE) as error:
            raise _NoTokenError(_failure(error, _IDENTITY_HINTS)) from None
        return found


def _failure(error: Exception, hints: Mapping[int, str]) -> _Failure:
    """By what it got a response, if anything, which may be known to the error or to its cause."""
    chain = [error, error.__cause__]
    for each in chain:
        response = each.response if isinstance(each, HttpResponseError) else None
        if isinstance(response, AsyncHttpResponse):
            status = response.status_code
            if status < 300:
                return _Failure(f"responded with {status} with something that makes no sense")
            asked = retry_after(response.headers.get("Retry-After"), time.time()) or 0.0
            code = _error_code(response.content)
            hint = _DISABLED_HINT if code.endswith(_DISABLED) else hints.get(status, "")
            what = f"responded with {status}{code}{hint}"
            return _Failure(what, min(asked, _LONGEST_PAUSE))
    for each in chain:
        if isinstance(each, (ServiceRequestError, ServiceResponseError)):
            return _Failure(f"can't be reached: {type(each).__name__}: {each.message}")
    return _Failure("the response makes no sense")


@contextlib.asynccontextmanager
async def open_key_vault(
    url: str, session: aiohttp.ClientSession, *, managed_identity_client_id: str
) -> AsyncIterator[KeyVault]:
    """The vault at `url`, whose certificate is evaluated against the session's authorities. Retries are the
    caller's, so that what waits for them shows in health and log."""
    for name in ("azure", "msal"):  # what matters is told by VaultError; they also tell of heads and responds
        logging.getLogger(name).setLevel(logging.CRITICAL)
    transport = AioHttpTransport(
        session=session,
        session_owner=False,
        connection_timeout=_CONNECT_SECONDS,
        read_timeout=_READ_SECONDS,
    )
    user_assigned = managed_identity_client_id or None
    identity = f"identity {user_assigned}" if user_assigned else "the machine's own identity"
    async with (
        _Identity(client_id=user_assigned, transport=transport, retry_total=0) as credential,
        SecretClient(url, credential, transport=transport, retry_total=0, permit_redirects=False) as client,
    ):
        yield KeyVault(client, identity)


def _secret(found: KeyVaultSecret) -> VaultSecret:
    properties = found.properties
    value = secret_of(found.value or "")
    if not value:
        raise ValueError("no value")
    return VaultSecret(
        value,
        properties.content_type or "",
        _id_of(properties),
        _unix(properties.expires_on, math.inf),
    )


def _version(found: SecretProperties) -> SecretVersion:
    begins_at = max(_unix(found.created_on, 0.0), _unix(found.not_before, 0.0))
    return SecretVersion(
        _id_of(found), found.enabled is not False, begins_at, _unix(found.expires_on, math.inf)
    )


def _id_of(version: SecretProperties) -> str:
    """It is reported in log and health, where half a character can't be written."""
    if not version.version or not version.version.isascii():
        raise ValueError("no version")
    return version.version


def _unix(time: datetime | None, otherwise: float) -> float:
    return otherwise if time is None else time.timestamp()


def _error_code(body: bytes) -> str:
    """The codes of a vault's or identity's error response; never its message."""
    try:
        error = json.loads(readable(body))["error"]
        codes = (
            [error]
            if isinstance(error, str)
            else [error["code"], (error.get("innererror") or {}).get("code")]
        )
    except _NONSENSE:
        return ""
    report = [code for code in codes if isinstance(code, str) and _CODE.fullmatch(code)]
    return f" {' '.join(report)}" if report else ""
