"""Upstream server for benchmarks on machines without nginx, and for benchmarks of uploads.

The upstream responds to a GET with a user object, and discards request bodies.

Every response has its own `request-id`, like the responses of Graph.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections.abc import Iterator
from typing import Final, cast

import uvloop

from bench.load_client import LENGTH
from bench.samples import ONE_USER, RESPONSE_HEAD

_ID: Final = b"0cd7b1b6-2b1b-4c1e-8d5e-1f1f1f1f1f1f"
_BEFORE, _BETWEEN, _AFTER = (RESPONSE_HEAD % len(ONE_USER) + ONE_USER).split(_ID)
_DONE: Final = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


class _Connection(asyncio.Protocol):
    def __init__(self, numbers: Iterator[int]) -> None:
        self._numbers = numbers
        self._transport: asyncio.Transport
        self._head = b""
        self._left = 0  # remaining bytes of a request's body

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._left:
            self._read_body(len(data))
            return
        head = self._head + data
        end = head.find(b"\r\n\r\n")
        if end < 0:
            self._head = head
            return
        self._head = b""
        length = LENGTH.search(head, 0, end + 2)
        if length is None:
            own = b"0cd7b1b6-2b1b-4c1e-8d5e-%012x" % next(self._numbers)
            self._transport.write(b"".join((_BEFORE, own, _BETWEEN, own, _AFTER)))
            return
        self._left = int(length[1])
        self._read_body(len(head) - end - 4)

    def _read_body(self, count: int) -> None:
        self._left -= count
        if not self._left:
            self._transport.write(_DONE)


async def serve(port: int) -> None:
    loop, numbers = asyncio.get_running_loop(), itertools.count()
    server = await loop.create_server(lambda: _Connection(numbers), "127.0.0.1", port, backlog=4096)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1])))
