"""Upstream tokens from Azure's identity library: exchange a client's proof for a usable token.

Each token request uses its own credential object, so that the library never returns a token from its cache.
"""

import asyncio
import time
from typing import Any, Final
from urllib.parse import urlsplit

import aiohttp
from azure.core.credentials import AccessTokenInfo
from azure.core.credentials_async import AsyncSupportsTokenInfo
from azure.core.exceptions import AzureError
from azure.core.pipeline import PipelineRequest, PipelineResponse
from azure.core.rest import AsyncHttpResponse, HttpRequest
from azure.identity.aio import CertificateCredential, ClientAssertionCredential, ClientSecretCredential

from proxy.agent.credentials.provider import CredentialError, UpstreamToken
from proxy.agent.credentials.token_response import check_response, check_token
from proxy.outbound.azure_sdk import NONSENSE, failure_of, open_transport

_TOTAL_SECONDS: Final = 30.0


class Entra:
    """Client that requests upstream tokens from its identity provider."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        *,
        authority_url: str,
        tenant_id: str,
        client_id: str,
        scope: str,
    ) -> None:
        self._tenant_id = tenant_id
        self._client_id = client_id
        self._scope = scope
        parts = urlsplit(authority_url)
        self._options: dict[str, Any] = {
            "authority": parts._replace(scheme="https").geturl(),
            "transport": open_transport(session),
            "retry_total": 0,  # the caller retries, so that retries show in health and log
            "raw_response_hook": _check,
        }
        if parts.scheme == "http":  # the library rejects an http:// authority
            self._options["raw_request_hook"] = _without_tls

    async def by_secret(self, client_secret: str) -> UpstreamToken:
        return await self._token(
            ClientSecretCredential(self._tenant_id, self._client_id, client_secret, **self._options)
        )

    async def by_certificate(self, pem: bytes) -> UpstreamToken:
        """Request a token with a private key and its certificate, which `pem` contains in this order."""
        return await self._token(
            CertificateCredential(self._tenant_id, self._client_id, certificate_data=pem, **self._options)
        )

    async def by_assertion(self, assertion: str) -> UpstreamToken:
        """Request a token for the client, without a secret of the client.

        The client's proof is a token of another identity provider, and the client's registration trusts that
        provider.
        """
        return await self._token(
            ClientAssertionCredential(self._tenant_id, self._client_id, lambda: assertion, **self._options)
        )

    async def _token(self, credential: AsyncSupportsTokenInfo) -> UpstreamToken:
        try:
            async with asyncio.timeout(_TOTAL_SECONDS):
                return usable(await credential.get_token_info(self._scope), "identity provider")
        except TimeoutError:
            raise CredentialError("identity provider: the token request timed out") from None
        except (AzureError, *NONSENSE) as error:
            failure = failure_of(error, lambda status, code: "")
            raise CredentialError(f"identity provider: {failure.what}", failure.retry_after) from None


def usable(found: AccessTokenInfo, giver: str) -> UpstreamToken:
    """Return the found token, or raise CredentialError if the token can't be used."""
    check_token(giver, found.token, found.token_type, found.expires_on - time.time())
    return UpstreamToken(found.token, float(found.expires_on))


def _check(response: PipelineResponse[HttpRequest, AsyncHttpResponse]) -> None:
    """Check a token response before the Azure library reads it.

    The Azure library accepts some token responses that the proxy refuses. The error messages of the Azure
    library quote more of a response than the proxy's own messages.
    """
    given = response.http_response
    check_response(given.status_code, given.headers.get("Retry-After"), given.content, time.time())


def _without_tls(request: PipelineRequest[HttpRequest]) -> None:
    parts = urlsplit(request.http_request.url)
    request.http_request.url = parts._replace(scheme="http").geturl()
