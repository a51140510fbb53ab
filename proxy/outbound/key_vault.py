"""Client of Azure Key Vault that uses the identity of this machine."""

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Final

import aiohttp
from azure.core.exceptions import AzureError
from azure.keyvault.secrets import KeyVaultSecret, SecretProperties
from azure.keyvault.secrets.aio import SecretClient

from proxy.config.given_text import secret_of
from proxy.outbound.azure_sdk import NONSENSE, Failure, failure_of, open_transport
from proxy.outbound.machine_identity import MachineIdentity, NoMachineToken, open_identity
from proxy.outbound.vault import SecretVersion, VaultError, VaultSecret

_TOTAL_SECONDS: Final = 20.0  # seconds for the challenge, the identity's token and the secret together
_MAX_VERSIONS: Final = 1000
_MAX_PAGES: Final = 100  # pages of 25 versions each
_HINTS: Final = {
    403: "; the identity needs the role Key Vault Secrets User, and the vault's firewall must allow it",
    404: "; the key vault does not have this secret, or it has no version that can be read",
}
_DISABLED: Final = "SecretDisabled"  # also a 403, but not because of a missing permission
_DISABLED_HINT: Final = "; the newest version is disabled, and no older one is used in its place"


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
            # Read page by page, because the SDK's own iteration recurses after each empty page.
            async for page in self._client.list_properties_of_secret_versions(name).by_page():
                found += [_version(each) async for each in page]
                pages += 1
                if len(found) > _MAX_VERSIONS or pages > _MAX_PAGES:
                    raise ValueError("too many versions")
        if not found:  # a vault responds like this for a secret that it does not have
            raise self._error(name, Failure("the key vault does not have this secret"))
        return found

    @contextlib.asynccontextmanager
    async def _failures_of(self, name: str) -> AsyncIterator[None]:
        """Convert each error of Azure's SDK to an error with a text of one line.

        Error messages of Azure's SDK quote responses, so the converted error does not contain the SDK's
        message.
        """
        try:
            async with asyncio.timeout(_TOTAL_SECONDS):
                yield
        except TimeoutError:
            raise self._error(name, Failure("timed out")) from None
        except NoMachineToken as error:
            raise self._error(name, Failure(str(error), error.retry_after)) from None
        except (AzureError, *NONSENSE) as error:
            if "challenge resource" in str(error):
                failure = Failure("the challenge is for another vault: check the address of the vault")
            else:
                failure = failure_of(error, _hint)
            raise self._error(name, failure) from None

    def _error(self, name: str, failure: Failure) -> VaultError:
        where = f"key vault {self._client.vault_url}, secret {name}, as {self._identity}"
        return VaultError(f"{where}: {failure.what}", failure.retry_after)


def _hint(status: int, code: str) -> str:
    return _DISABLED_HINT if code.endswith(_DISABLED) else _HINTS.get(status, "")


@contextlib.asynccontextmanager
async def open_key_vault(
    url: str, session: aiohttp.ClientSession, identity: MachineIdentity
) -> AsyncIterator[KeyVault]:
    """Open the key vault at `url` with the TLS authorities that the session trusts.

    The caller of the key vault retries, not the SDK, so that the health report and the log show the retries.
    """
    transport = open_transport(session)
    async with (
        open_identity(identity, session) as credential,
        SecretClient(url, credential, transport=transport, retry_total=0, permit_redirects=False) as client,
    ):
        yield KeyVault(client, str(identity))


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
    """Return the ID of a secret's version in the key vault.

    The version ID is written to the log and the health report, so it must be ASCII.
    """
    if not version.version or not version.version.isascii():
        raise ValueError("no version")
    return version.version


def _unix(time: datetime | None, otherwise: float) -> float:
    return otherwise if time is None else time.timestamp()
