"""Access tokens for Azure services, for the identity that the settings of a sink name."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

import aiohttp
from azure.core.credentials_async import AsyncTokenCredential
from azure.core.exceptions import AzureError
from azure.identity.aio import ClientSecretCredential

from controlplane.sinks.interface import SinkUnavailable
from controlplane.sinks.settings import AzureSinkSettings
from proxy.outbound.azure_sdk import NONSENSE, failure_of, open_transport
from proxy.outbound.failures import AttemptFailed
from proxy.outbound.machine_identity import ManagedIdentity, WorkloadIdentity, open_identity

_RENEW_SECONDS: Final = 300.0  # time before the expiry of a token at which a new one is requested


def open_credential(settings: AzureSinkSettings, session: aiohttp.ClientSession) -> AsyncTokenCredential:
    """Return a credential of the Azure SDK; the credential sends its requests over the session."""
    match settings.identity:
        case "client-secret":
            return ClientSecretCredential(
                settings.tenant_id,
                settings.client_id,
                settings.client_secret,
                authority=settings.authority_url,
                transport=open_transport(session),
                retry_total=0,
            )
        case "workload-identity":
            assert settings.token_file is not None, "the settings were checked"
            return open_identity(
                WorkloadIdentity(
                    settings.tenant_id, settings.client_id, settings.token_file, settings.authority_url
                ),
                session,
            )
        case "managed-identity":
            return open_identity(ManagedIdentity(settings.client_id), session)


@dataclass(slots=True)
class ServiceToken:
    """An access token for one Azure service.

    A new access token is requested shortly before the current token expires.
    """

    credential: AsyncTokenCredential
    scope: str
    _token: str = ""
    _ends: float = 0.0

    async def value(self) -> str:
        """Return an access token that is valid now.

        Raise SinkUnavailable if no access token can be obtained.
        """
        if time.time() >= self._ends - _RENEW_SECONDS:
            try:
                found = await self.credential.get_token(self.scope)
            except AttemptFailed as error:
                raise SinkUnavailable(str(error), error.retry_after or None) from None
            except (AzureError, *NONSENSE) as error:
                failure = failure_of(error, lambda status, code: "")
                what = f"no token for the sink: the identity provider {failure.what}"
                raise SinkUnavailable(what, failure.retry_after or None) from None
            self._token, self._ends = found.token, float(found.expires_on)
        return self._token

    def forget(self) -> None:
        """Request another access token next time, because the service rejected the current token."""
        self._ends = 0.0
