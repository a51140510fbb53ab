"""A syslog server over TCP or TLS that reads messages with a length prefix (RFC 5425, RFC 6587)."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class SyslogServer:
    def __init__(self) -> None:
        self.messages: list[bytes] = []
        self.connections = 0
        self.port = 0
        self.reads = asyncio.Event()  # while cleared, arriving bytes are not read
        self.reads.set()
        self.arrived = asyncio.Semaphore(0)  # released for each message
        self._writers: set[asyncio.StreamWriter] = set()

    async def connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)
        try:
            while True:
                await self.reads.wait()
                length = (await reader.readuntil(b" ")).decode()
                assert length.strip().isdecimal(), length
                self.messages.append(await reader.readexactly(int(length)))
                self.arrived.release()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    def end_connections(self) -> None:
        """Close all connections, as a server does when it restarts."""
        for writer in self._writers:
            writer.close()


@asynccontextmanager
async def syslog_server(tls: ssl.SSLContext | None = None) -> AsyncIterator[SyslogServer]:
    server = SyslogServer()
    listener = await asyncio.start_server(server.connection, "127.0.0.1", 0, ssl=tls)
    server.port = listener.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listener.close()
        server.end_connections()
