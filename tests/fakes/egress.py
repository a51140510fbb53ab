"""A fake HTTP egress proxy, with `CONNECT` tunnels and plain forwarding.

A test configures the fake egress proxy as the only way out of its network.

Only the fake proxy can resolve the host names in `names`, like an egress proxy with its own resolver. The
fake egress proxy records the bytes that it received, so that a test can check them. `says` replaces the fake
proxy's response to `CONNECT`, so that a test can simulate faults.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
from types import TracebackType
from typing import Final, Self
from urllib.parse import urlsplit

_PIECE: Final = 65536
ESTABLISHED: Final = b"HTTP/1.1 200 Connection established\r\nVia: 1.1 egress\r\n\r\n"
UNREACHABLE: Final = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n"
WANTS_CREDENTIALS: Final = (
    b'HTTP/1.1 407 Proxy Authentication Required\r\nProxy-Authenticate: Basic realm="egress"\r\n'
    b"Content-Length: 0\r\n\r\n"
)


class FakeEgress:
    def __init__(self, names: dict[str, tuple[str, int]] | None = None, *, credentials: str = "") -> None:
        """Create the fake proxy with the host names that it can resolve.

        `names` maps each known `host:port` to an address. The fake egress proxy can reach only the hosts in
        `names`. `credentials` is the text `user:password` that the fake proxy requires from clients.
        """
        self.names = names if names is not None else {}
        self.says: bytes | None = None  # replaces its own response to CONNECT; b"" sends no response
        self.closes = False  # close the connection after `says`
        self.preface = b""  # sent before its response to a CONNECT that succeeds
        self.targets: list[str] = []  # target of every request
        self.heads: list[bytes] = []
        self.tunnelled = bytearray()  # bytes from all clients, within tunnels
        self._wanted = f"Basic {base64.b64encode(credentials.encode()).decode()}" if credentials else ""
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accepted, "127.0.0.1", 0)
        self.host, self.port = self._server.sockets[0].getsockname()
        self.url = f"http://{self.host}:{self.port}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.stop()

    async def stop(self) -> None:
        """Stop listening, and close all tunnels through the fake proxy."""
        self._server.close()
        await self.end_tunnels()

    async def end_tunnels(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                await self._request(reader, writer)
        finally:
            writer.transport.abort()

    async def _request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        method, target, _ = lines[0].split(" ")
        self.heads.append(head)
        self.targets.append(target)
        fields = dict(line.split(": ", 1) for line in lines[1:] if line)
        refusal = self._refusal(fields)
        place = self.names.get(target if method == "CONNECT" else _place_of(target))
        if refusal is not None or place is None:
            writer.write(UNREACHABLE if refusal is None else refusal)
            await (writer.drain() if self.says is None or self.closes else reader.read())
            return
        behind_reader, behind = await asyncio.open_connection(*place)
        if method == "CONNECT":
            writer.write(self.preface + ESTABLISHED)
        else:
            behind.write(_forwarded(method, target, lines[1:]))
        await self._joined(reader, writer, behind_reader, behind)

    def _refusal(self, fields: dict[str, str]) -> bytes | None:
        if self.says is not None:
            return self.says
        is_refused = self._wanted and fields.get("Proxy-Authorization") != self._wanted
        return WANTS_CREDENTIALS if is_refused else None

    async def _joined(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        behind_reader: asyncio.StreamReader,
        behind: asyncio.StreamWriter,
    ) -> None:
        try:
            await asyncio.gather(
                self._copied(reader, behind, self.tunnelled), self._copied(behind_reader, writer, bytearray())
            )
        finally:
            behind.transport.abort()

    @staticmethod
    async def _copied(source: asyncio.StreamReader, sink: asyncio.StreamWriter, kept: bytearray) -> None:
        while piece := await source.read(_PIECE):
            kept += piece
            sink.write(piece)
            await sink.drain()
        if sink.can_write_eof():
            sink.write_eof()


def _place_of(target: str) -> str:
    parts = urlsplit(target)
    return f"{parts.hostname}:{parts.port or 80}"


def _forwarded(method: str, target: str, lines: list[str]) -> bytes:
    """Return the head of a forwarded request: its target in origin form, and no proxy header fields."""
    parts = urlsplit(target)
    kept = [line for line in lines if line and not line.lower().startswith(("proxy-", "connection:"))]
    path = f"{parts.path or '/'}{'?' if parts.query else ''}{parts.query}"
    return "\r\n".join([f"{method} {path} HTTP/1.1", *kept, "Connection: close", "", ""]).encode("latin-1")
