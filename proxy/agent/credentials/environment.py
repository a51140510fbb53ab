"""A client secret from settings or environment, exchanged at the identity provider."""

from proxy.agent.credentials.identity_provider import IdentityProvider
from proxy.agent.credentials.provider import UpstreamToken


class EnvironmentProvider:
    def __init__(self, identity: IdentityProvider, client_secret: str) -> None:
        self._identity = identity
        self._proof = {"client_secret": client_secret}

    async def fetch(self, *, refused: bool = False) -> UpstreamToken:
        return await self._identity.token(self._proof)
