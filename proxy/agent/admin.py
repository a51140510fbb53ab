"""Admin listener for operators: liveness, readiness and metrics.

The admin listener listens on loopback by default. No response of the admin listener contains a secret, and no
request changes the proxy.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Final

import msgspec
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from proxy import __version__
from proxy.agent.exposition import end_of, exposition
from proxy.agent.health import AuditStatus, Health
from proxy.agent.sync import Sync
from proxy.ipc.counters import CounterPages

# Limit of connections, because any client that reaches the listener can open them, and each uses a
# descriptor.
MAX_CONNECTIONS: Final = 64
# Seconds to wait for a request, including the first one. A scraper that is disconnected opens a new
# connection, which is cheap.
IDLE_SECONDS: Final = 12.0
_ACCEPT_RETRY_SECONDS: Final = 1.0
_JSON: Final = "application/json"


async def _guarded(request: web.Request, response: web.StreamResponse) -> None:
    """Set response headers that forbid browsers to render, frame or cache the response."""
    response.headers.popall("Server", None)  # aiohttp sends its own version and Python's
    response.headers["Cache-Control"] = "no-store"
    response.headers["Content-Security-Policy"] = "default-src 'none'; frame-ancestors 'none'"
    response.headers["X-Content-Type-Options"] = "nosniff"


class Admin:
    def __init__(
        self,
        counters: CounterPages,
        sync: Sync,
        health: Health,
        audit: Callable[[], Awaitable[AuditStatus | None]],
        certificate: Path | None,
        unsigned: Callable[[], Mapping[str, int]],
    ) -> None:
        self._counters = counters
        self._sync = sync
        self._health = health
        self._audit = audit
        self._certificate_ends_at = end_of(certificate)
        self._unsigned = unsigned

    async def serve(self, listener: socket.socket) -> None:
        """Serve requests to the admin listener until the task is cancelled."""
        application = web.Application()
        application.on_response_prepare.append(_guarded)
        application.router.add_get("/healthz", self._alive)
        application.router.add_get("/readyz", self._ready)
        application.router.add_get("/metrics", self._metrics)
        runner = web.AppRunner(
            application,
            access_log=None,
            handle_signals=False,
            keepalive_timeout=IDLE_SECONDS,
            shutdown_timeout=1.0,
        )
        await runner.setup()
        assert runner.server is not None
        try:
            await _accept(listener, runner.server)
        finally:
            listener.close()
            await runner.cleanup()

    async def _alive(self, request: web.Request) -> web.Response:
        return web.Response(text=f"ok {__version__}\n")

    async def _ready(self, request: web.Request) -> web.Response:
        await self._audit()
        reasons = self._health.not_ready()
        snapshot = self._sync.snapshot
        body = {
            "ready": not reasons,
            "reasons": reasons,
            "loadedRules": snapshot.rule_count if snapshot is not None else 0,
            "syncVersion": snapshot.version if snapshot is not None else None,
            "syncAgeSeconds": self._sync.age_seconds,
            "checks": self._health.checks(),
        }
        return web.Response(
            body=msgspec.json.encode(body), status=503 if reasons else 200, content_type=_JSON
        )

    async def _metrics(self, request: web.Request) -> web.Response:
        text = exposition(
            self._counters,
            self._sync,
            self._health,
            await self._audit(),
            self._certificate_ends_at,
            self._unsigned(),
        )
        return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE_LATEST})


async def _accept(listener: socket.socket, server: web.Server) -> None:
    """Accept connections to the admin listener, one connection at a time.

    Each connection counts towards the limit before the next connection is accepted.
    """
    loop = asyncio.get_running_loop()
    listener.setblocking(False)
    while True:
        try:
            connection, _ = await loop.sock_accept(listener)
            if len(server.connections) < MAX_CONNECTIONS:
                await loop.connect_accepted_socket(server, connection)
            else:
                connection.close()
                await asyncio.sleep(0)  # let other tasks run between two rejected connections
        except OSError:  # no descriptors are left
            await asyncio.sleep(_ACCEPT_RETRY_SECONDS)
