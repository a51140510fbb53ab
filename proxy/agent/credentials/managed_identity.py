"""Providers that use this machine's managed identity.

One provider returns an upstream token that Microsoft Entra issued to the managed identity itself. The second
provider returns a token that Microsoft Entra issued to an application that trusts the managed identity.
"""

import aiohttp

from proxy.agent.credentials.entra import Entra, usable
from proxy.agent.credentials.provider import CredentialError, UpstreamToken
from proxy.outbound.machine_identity import ManagedIdentity, NoMachineToken, machine_token


class ManagedIdentityProvider:
    """Provider of upstream tokens that Microsoft Entra issued to the managed identity itself."""

    def __init__(self, identity: ManagedIdentity, session: aiohttp.ClientSession, scope: str) -> None:
        self._identity = identity
        self._session = session
        self._scope = scope

    async def fetch(self, *, refused: bool = False) -> UpstreamToken:
        return await _own_token(self._identity, self._session, self._scope)


class FederatedManagedIdentityProvider:
    """Provider of an application's upstream token.

    The managed identity's token proves the application's identity. The registration of the application at the
    identity provider trusts the managed identity.
    """

    def __init__(
        self, entra: Entra, identity: ManagedIdentity, session: aiohttp.ClientSession, exchange_scope: str
    ) -> None:
        self._entra = entra
        self._identity = identity
        self._session = session
        self._exchange_scope = exchange_scope

    async def fetch(self, *, refused: bool = False) -> UpstreamToken:
        assertion = await _own_token(self._identity, self._session, self._exchange_scope)
        return await self._entra.by_assertion(assertion.token)


async def _own_token(identity: ManagedIdentity, session: aiohttp.ClientSession, scope: str) -> UpstreamToken:
    try:
        found = await machine_token(identity, session, scope)
    except NoMachineToken as error:
        raise CredentialError(f"{identity}: {error}", error.retry_after) from None
    return usable(found, f"managed identity ({identity})")
