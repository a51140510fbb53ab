"""Load client for machines without wrk: each connection sends its next request after each response.

The load client's arguments are an address, the number of connections, the duration in seconds, and a file
with a request head. The load client prints a result line in the same format as requests.lua.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import re
import ssl
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, cast
from urllib.parse import urlsplit

import uvloop

USERS: Final = 100_000
LENGTH: Final = re.compile(rb"(?i)\r\nContent-Length: *([0-9]+)\r\n")


def requests(head: bytes) -> Iterator[bytes]:
    """Yield the request head again and again, each time with new values in its variable parts."""
    numbers = random.Random(1)
    for sequence in itertools.count():
        own = b"%08x-2b1b-4c1e-8d5e-%012x" % (numbers.randrange(1 << 31), sequence)
        yield head.replace(b"#user#", b"%d" % numbers.randint(1, USERS)).replace(b"#id#", own)


class Count:
    """Sums over all connections of the load client."""

    def __init__(self) -> None:
        self.responses = 0
        self.bytes_read = 0
        self.errors = 0


class _Connection(asyncio.Protocol):
    def __init__(self, next_request: Callable[[], bytes], count: Count) -> None:
        self._next_request = next_request
        self._count = count
        self._transport: asyncio.Transport
        self._left = 0  # remaining bytes of a response's body

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(self._next_request())

    def data_received(self, data: bytes) -> None:
        self._count.bytes_read += len(data)
        if self._left:
            self._left -= len(data)
        else:
            # Every server here sends its head in one segment.
            end = data.index(b"\r\n\r\n")
            length = LENGTH.search(data, 0, end + 2)
            if length is None or not data.startswith(b"HTTP/1.1 200 "):
                self._count.errors += 1
                self._transport.close()
                return
            self._left = int(length[1]) - (len(data) - end - 4)
        if not self._left:
            self._count.responses += 1
            self._transport.write(self._next_request())


async def load(url: str, connections: int, seconds: float, head: bytes) -> tuple[Count, float]:
    address, count, loop = urlsplit(url), Count(), asyncio.get_running_loop()
    context = None
    if address.scheme == "https":
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE  # wrk does the same.
    sequence = requests(head)
    started = time.monotonic()
    made = [
        await loop.create_connection(
            lambda: _Connection(sequence.__next__, count), "127.0.0.1", address.port or 80, ssl=context
        )
        for _ in range(connections)
    ]
    await asyncio.sleep(seconds)
    elapsed = time.monotonic() - started
    for transport, _ in made:
        transport.abort()
    return count, elapsed


def main(url: str, connections: str, seconds: str, head_file: str) -> None:
    count, elapsed = uvloop.run(load(url, int(connections), float(seconds), Path(head_file).read_bytes()))
    print(f"RESULT {count.responses} {elapsed * 1e6:.0f} {count.bytes_read} {count.errors}")


if __name__ == "__main__":
    main(*sys.argv[1:])
