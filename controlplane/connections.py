"""Connections: one that carried no signed request yet lasts briefly and makes room for others."""

from __future__ import annotations

import asyncio
import resource
from typing import Final

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from controlplane.errors import Refused, error_response

# Between two requests of a proxy's kept-alive connection; also what a later head must come within.
_KEEP_ALIVE_SECONDS: Final = 75.0
HANDSHAKE_SECONDS: Final = 10.0
_FIRST_HEAD_SECONDS: Final = 10.0
_RESPONSE_SECONDS: Final = 60.0  # for the largest response to be taken by a reader who wants it
# Strangers' connections at a time. The next one costs the oldest of them its place, never a proxy.
_MOST_UNPROVED: Final = 1024
_DESCRIPTORS: Final = 65_536


class Connections:
    """Makes the protocol of each connection, and knows which of them are strangers'."""

    def __init__(self, runner: web.AppRunner) -> None:
        self._runner = runner
        self._unproved: dict[Connection, None] = {}  # oldest first

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
            access_log=None,  # type: ignore[arg-type]  # as AppRunner hands it on
            auto_decompress=False,  # the bytes as sent are what is signed
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
        """A whole head has come."""
        if self._first_head is not None:
            self._first_head.cancel()
            self._first_head = None

    def proved(self) -> None:
        """A signed request has come, or nothing will any more."""
        self._connections.proved(self)

    def close_after_response(self) -> None:
        """Keep nothing for a next request of a stranger who needs one response."""
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
        """What was no HTTP gets the contract's JSON too, and the end of its connection."""
        if not isinstance(exc, HttpProcessingError) or request.writer.output_size:
            return super().handle_error(request, status, exc, message)
        self.asked()
        response = error_response(Refused("badRequest", "the request is not well-formed HTTP"))
        response.headers["Server"] = "graphward"  # or aiohttp tells its version and Python's
        response.force_close()
        return response


def allow_all_descriptors() -> None:
    """Each connection is one. The usual soft limit of 1024 is for programs that still use select()."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
