"""Request tokens for the identity that Azure or Kubernetes gives to this machine."""

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import aiohttp
from azure.core.credentials import AccessTokenInfo, TokenRequestOptions
from azure.core.exceptions import AzureError
from azure.identity.aio import ManagedIdentityCredential, WorkloadIdentityCredential

from proxy.outbound.azure_sdk import NONSENSE, failure_of, open_transport
from proxy.outbound.failures import AttemptFailed

TOTAL_SECONDS: Final = 20.0
_NOT_ASSIGNED: Final = "; is it assigned to this machine?"


class NoMachineToken(AttemptFailed):
    """Error because the managed or workload identity of this machine gave no token."""


@dataclass(frozen=True, slots=True)
class ManagedIdentity:
    """Managed identity of this machine: system-assigned, or user-assigned if a client ID is given.

    Azure's library uses a pod's federated token instead if the variables of Azure Workload Identity are set.
    """

    client_id: str = ""

    def __str__(self) -> str:
        return f"identity {self.client_id}" if self.client_id else "the machine's own identity"


@dataclass(frozen=True, slots=True)
class WorkloadIdentity:
    """Entra application that trusts a token file. A platform such as Kubernetes writes the token file."""

    tenant_id: str
    client_id: str
    token_file: Path
    authority_url: str

    def __str__(self) -> str:
        return f"application {self.client_id}"


MachineIdentity = ManagedIdentity | WorkloadIdentity


def open_identity(identity: MachineIdentity, session: aiohttp.ClientSession) -> "_Managed | _Workload":
    """Return a credential for Azure's SDK. The credential raises NoMachineToken if it gets no token."""
    transport = open_transport(session)
    if isinstance(identity, ManagedIdentity):
        return _Managed(client_id=identity.client_id or None, transport=transport, retry_total=0)
    return _Workload(
        tenant_id=identity.tenant_id,
        client_id=identity.client_id,
        token_file_path=str(identity.token_file),
        authority=identity.authority_url,
        transport=transport,
        retry_total=0,
    )


async def machine_token(
    identity: ManagedIdentity, session: aiohttp.ClientSession, scope: str
) -> AccessTokenInfo:
    """Request a token from Azure or Kubernetes now, without the token cache of the SDK."""
    try:
        async with asyncio.timeout(TOTAL_SECONDS):
            with _failures("the managed identity"):  # its environment may be contradictory
                credential = open_identity(identity, session)
            found: AccessTokenInfo = await credential.get_token_info(scope)
    except TimeoutError:
        raise NoMachineToken("the managed identity gives no token: timed out") from None
    return found


class _Managed(ManagedIdentityCredential):
    async def get_token_info(
        self, *scopes: str, options: TokenRequestOptions | None = None
    ) -> AccessTokenInfo:
        with _failures("the managed identity", _NOT_ASSIGNED):
            found: AccessTokenInfo = await super().get_token_info(*scopes, options=options)
        return found


class _Workload(WorkloadIdentityCredential):
    async def get_token_info(
        self, *scopes: str, options: TokenRequestOptions | None = None
    ) -> AccessTokenInfo:
        with _failures("the workload identity"):
            return await super().get_token_info(*scopes, options=options)


@contextlib.contextmanager
def _failures(what: str, of_400: str = "") -> Iterator[None]:
    """Convert errors of the machine's identity to NoMachineToken.

    The SDK raises the same exception types for the key vault and the machine's identity.
    """
    try:
        yield
    except OSError as error:
        raise NoMachineToken(f"{what} gives no token: its file can't be read: {error.strerror}") from None
    except (AzureError, *NONSENSE) as error:
        failure = failure_of(error, lambda status, code: of_400 if status == 400 else "")
        raise NoMachineToken(f"{what} gives no token: {failure.what}", failure.retry_after) from None
