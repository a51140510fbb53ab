"""Run a proxy whose upstream sends `hello` and then never ends the response.

A test runs `endless_response.py` as a separate program, and kills the program.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import uvloop

from tests.bytes.data_path import UpstreamPeer, data_path, silent, until

BEGINNING = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"


async def main(directory: Path) -> None:
    asked: list[UpstreamPeer] = []
    async with data_path(silent(asked), directory) as proxy:
        sys.stdout.write(f"{proxy.port} {proxy.token}\n")
        sys.stdout.flush()
        await until(lambda: asked)
        asked[0].send(BEGINNING)
        await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(main(Path(sys.argv[1])))
