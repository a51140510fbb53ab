"""Fakes of Microsoft Graph and Entra, with the services' names at port 443 of this network namespace."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Final

from tests.fakes.certificates import CertificateAuthority
from tests.fakes.graph import FakeGraph
from tests.fakes.identity import FakeIdentityProvider
from tests.fakes.server import Received, Response

GRAPH: Final = "graph.microsoft.com"
ENTRA: Final = "login.microsoftonline.com"


class BothHosts(FakeGraph):
    def __init__(self, authority: CertificateAuthority) -> None:
        self.identity = FakeIdentityProvider()
        tls = authority.server(names=(GRAPH, ENTRA))
        super().__init__(tls=tls, port=443, accepts=self.identity.accepts, record=False)

    async def response(self, request: Received) -> Response:
        if request.value("Host") == ENTRA:
            return await self.identity.response(request)
        return await super().response(request)


async def serve(authority: CertificateAuthority) -> None:
    async with BothHosts(authority):
        print("ready", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(CertificateAuthority(Path(sys.argv[1]))))
