"""A fake firewall, gateway or captive portal between proxy and control plane.

The fake intermediary responds to some requests itself, and forwards the other requests unchanged.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self

import aiohttp
from aiohttp import web

from tests.patience import PATIENCE_SECONDS

_OWN_TO_A_CONNECTION: Final = {"host", "content-length", "transfer-encoding", "connection"}


@dataclass(frozen=True, slots=True)
class Foreign:
    """A response that the fake intermediary sends instead of the control plane's response."""

    status: int
    body: bytes = b""
    content_type: str = "text/plain"
    headers: dict[str, str] = field(default_factory=dict)


class Between:
    """A fake intermediary between proxy and control plane.

    `answers` has the intermediary's own responses, by the last segment of the request path. `changes` has the
    changes that the intermediary makes to responses of the control plane.
    """

    def __init__(self, behind: str = "", tls: ssl.SSLContext | None = None) -> None:
        self.behind = behind
        self.responses: dict[str, Foreign] = {}
        self.relabels: dict[int, int] = {}  # status of the control plane -> the status that is forwarded
        self.redirects: dict[str, str] = {}  # last part of a path -> the endpoint that gets the request
        # Changes that a gateway makes to responses from the control plane, by the last part of the request's
        # path.
        self.changes: dict[str, Callable[[web.Response], web.Response]] = {}
        self.counts: Counter[str] = Counter()  # requests, by the last part of the path
        self._tls = tls

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(auto_decompress=False)
        app = web.Application(client_max_size=16 << 20)
        app.router.add_route("*", "/{path:.*}", self._relay)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        ((host, port),) = self._runner.addresses
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._runner.cleanup()
        await self._session.close()

    async def asked(self, name: str, more: int = 2) -> None:
        """Wait for `more` further requests of an endpoint of the control plane."""
        target = self.counts[name] + more
        async with asyncio.timeout(PATIENCE_SECONDS):
            while self.counts[name] < target:  # noqa: ASYNC110 - another process asks
                await asyncio.sleep(0.02)

    async def _relay(self, request: web.Request) -> web.Response:
        body = await request.read()
        name = request.path.rpartition("/")[2]
        self.counts[name] += 1
        if foreign := self.responses.get(name):
            return web.Response(
                status=foreign.status,
                body=foreign.body,
                headers={"Content-Type": foreign.content_type, **foreign.headers},
            )
        path = request.path.removesuffix(name) + self.redirects.get(name, name)
        sent = [(k, v) for k, v in request.headers.items() if k.lower() not in _OWN_TO_A_CONNECTION]
        async with self._session.request(
            request.method, self.behind + path, data=body or None, headers=sent, ssl=self._tls or True
        ) as theirs:
            back = [(k, v) for k, v in theirs.headers.items() if k.lower() not in _OWN_TO_A_CONNECTION]
            status = self.relabels.get(theirs.status, theirs.status)
            response = web.Response(status=status, body=await theirs.read() or None)
        response.headers.popall("Content-Type", None)
        response.headers.extend(back)
        change = self.changes.get(name)
        return response if change is None else change(response)
