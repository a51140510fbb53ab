"""Provider that gets upstream tokens in exchange for a client secret from the settings or the environment."""

from proxy.agent.credentials.entra import Entra
from proxy.agent.credentials.provider import UpstreamToken


class EnvironmentProvider:
    def __init__(self, entra: Entra, client_secret: str) -> None:
        self._entra = entra
        self._client_secret = client_secret

    async def fetch(self, *, refused: bool = False) -> UpstreamToken:
        return await self._entra.by_secret(self._client_secret)
