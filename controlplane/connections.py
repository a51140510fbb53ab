"""Limits on the connections of clients.

A connection without a signed request has a short time limit, and is closed early if too many connections
without a signed request are open.
"""

from __future__ import annotations

import asyncio
import resource
from typing import Final

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from controlplane.errors import Refused, error_response

# Time between two requests of a proxy's kept-alive connection, and time for a later head to arrive.
_KEEP_ALIVE_SECONDS: Final = 75.0
HANDSHAKE_SECONDS: Final = 10.0
_FIRST_HEAD_SECONDS: Final = 10.0
# Time for a client that reads at a normal rate to receive the largest response.
_RESPONSE_SECONDS: Final = 60.0
# Number of open connections of unauthenticated clients. A further one closes the oldest of them, but never
# one of a proxy.
_MOST_UNPROVED: Final = 1024
_DESCRIPTORS: Final = 65_536


class Connections:
    """Factory of connection objects, which counts the connections of unauthenticated clients."""

    def __init__(self, runner: web.AppRunner) -> None:
        self._runner = runner
        self._unproved: dict[Connection, None] = {}  # Insertion order: the oldest is first.

    def __call__(self) -> Connection:
        assert self._runner.server is not None
        return Connection(self, self._runner.server)

    def arrived(self, connection: Connection) -> None:
        self._unproved[connection] = None
        if len(self._unproved) > _MOST_UNPROVED:
            next(iter(self._unproved)).abort()

    def proved(self, connection: Connection) -> None:
        self._unproved.pop(connection, None)


class Connection(web.RequestHandler):
    __slots__ = ("_closes", "_connections", "_first_head")

    def __init__(self, connections: Connections, server: web.Server) -> None:
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            access_log=None,  # type: ignore[arg-type]  # AppRunner passes None too
            auto_decompress=False,  # The signature covers the bytes as sent.
            keepalive_timeout=_KEEP_ALIVE_SECONDS,
        )
        self._connections = connections
        self._first_head: asyncio.TimerHandle | None = None
        self._closes = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._first_head = self._loop.call_later(_FIRST_HEAD_SECONDS, self.abort)
        self._connections.arrived(self)

    def connection_lost(self, exc: BaseException | None) -> None:
        self.proved()
        self.asked()
        super().connection_lost(exc)

    def asked(self) -> None:
        """Record that a complete request head has arrived on the connection."""
        if self._first_head is not None:
            self._first_head.cancel()
            self._first_head = None

    def proved(self) -> None:
        """Record that the connection has received a signed request or has ended."""
        self._connections.proved(self)

    def close_after_response(self) -> None:
        """Close the connection after its next response.

        If a client is not authenticated, one response on its connection is enough.
        """
        self._closes = True

    def abort(self) -> None:
        self.proved()
        if self.transport is not None:
            self.transport.abort()

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        if self._closes:
            resp.force_close()
        overdue = self._loop.call_later(_RESPONSE_SECONDS, self.abort)
        try:
            return await super().finish_response(request, resp, start_time)
        finally:
            overdue.cancel()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Respond to malformed HTTP with an error as JSON, and close the connection."""
        if not isinstance(exc, HttpProcessingError) or request.writer.output_size:
            return super().handle_error(request, status, exc, message)
        self.asked()
        response = error_response(Refused("badRequest", "the request is not well-formed HTTP"))
        response.headers["Server"] = "graphward"  # Otherwise aiohttp sends its own version and Python's.
        response.force_close()
        return response


def allow_all_descriptors() -> None:
    """Raise the process's limit of open files, because each connection needs a file descriptor.

    Programs that use select() need a soft limit of 1024 open files, which is therefore the usual limit of a
    process.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
