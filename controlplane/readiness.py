"""Liveness and readiness of a control plane, for a load balancer or an orchestrator."""

from __future__ import annotations

import asyncio
from typing import Final

from aiohttp import web

from controlplane import __version__
from controlplane.store.interface import Store, StoreError

_LONGEST_SECONDS: Final = 2.0  # Load balancers wait only slightly longer.
_RETRY_AFTER: Final = {"Retry-After": "5"}


class Readiness:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._looking: asyncio.Task[None] | None = None

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/healthz", self._health), web.get("/readyz", self._ready)]

    async def _health(self, request: web.Request) -> web.Response:
        """Respond with 200 in any case, because a restart of the process would not repair the store."""
        return web.json_response({"status": "ok", "version": __version__})

    async def _ready(self, request: web.Request) -> web.Response:
        """Respond with 200 if the store responds, otherwise with 503."""
        if not await self._store_responds():
            return web.json_response({"status": "store unavailable"}, status=503, headers=_RETRY_AFTER)
        return web.json_response({"status": "ready"})

    async def _store_responds(self) -> bool:
        # All requests share one check, so that a store that does not respond gets no further ones.
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._store.ping())
        try:
            async with asyncio.timeout(_LONGEST_SECONDS):
                await asyncio.shield(self._looking)
        except (StoreError, TimeoutError):
            return False
        return True
