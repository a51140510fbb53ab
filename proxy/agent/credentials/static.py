"""Provider of the fixed upstream token that the settings contain, for tests."""

import math

from proxy.agent.credentials.provider import UpstreamToken


class StaticProvider:
    def __init__(self, access_token: str) -> None:
        self._token = UpstreamToken(access_token, math.inf)

    async def fetch(self, *, refused: bool = False) -> UpstreamToken:
        return self._token
