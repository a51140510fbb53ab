"""Measure latency at a fixed rate: each request has a due time that does not depend on earlier requests.

The latency of a request is counted from its due time. So if the server stalls, the latency of every delayed
request grows, and not only of the requests in progress. `bench.open_loop` takes a port, a file with a request
head, the requests per second, and the duration in seconds. The program prints percentiles in microseconds as
JSON.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import socket
import sys
import time
from collections import deque
from pathlib import Path
from typing import Final

from bench.load_client import LENGTH, requests

CONNECTIONS: Final = 64
WARM_UP_SECONDS: Final = 0.5
_PR_SET_TIMERSLACK: Final = 29


class _Connection:
    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.due = 0.0
        self._left = -1  # remaining bytes of the response; -1 before its head
        self._head = b""

    def fileno(self) -> int:
        return self.socket.fileno()

    def ask(self, request: bytes, due: float) -> None:
        self.due, self._left, self._head = due, -1, b""
        self.socket.sendall(request)

    def responded(self) -> bool:
        """Read available bytes, and return True if the response is complete."""
        data = self.socket.recv(65536)
        if not data:
            raise ConnectionError("the measured server closed a connection")
        if self._left < 0:
            self._head += data
            end = self._head.find(b"\r\n\r\n")
            if end < 0:
                return False
            length = LENGTH.search(self._head, 0, end + 2)
            if length is None or not self._head.startswith(b"HTTP/1.1 200 "):
                raise ConnectionError(f"unexpected response: {self._head[:100]!r}")
            self._left = int(length[1]) - (len(self._head) - end - 4)
        else:
            self._left -= len(data)
        return self._left == 0


def latencies(port: int, head: bytes, rate: int, seconds: float) -> list[float]:
    """Return seconds from each request's due time to the end of its response, without the warm-up."""
    sequence = requests(head)
    idle = deque(_Connection(port) for _ in range(CONNECTIONS))
    waiting: deque[float] = deque()  # requests that were due while no connection was free
    busy: set[_Connection] = set()
    taken: list[float] = []
    start = time.perf_counter()
    first, count, sent = start + WARM_UP_SECONDS, int((seconds + WARM_UP_SECONDS) * rate), 0
    while sent < count or busy or waiting:
        now = time.perf_counter()
        while sent < count and start + sent / rate <= now:
            waiting.append(start + sent / rate)
            sent += 1
        while waiting and idle:
            connection = idle.popleft()
            connection.ask(next(sequence), waiting.popleft())
            busy.add(connection)
        pause = max(0.0, start + sent / rate - time.perf_counter()) if sent < count else 5.0
        for connection in select.select(busy, [], [], pause)[0]:
            if connection.responded():
                if connection.due >= first:
                    taken.append(time.perf_counter() - connection.due)
                busy.remove(connection)
                idle.append(connection)
    return taken


def main(port: str, head_file: str, rate: str, seconds: str) -> None:
    with contextlib.suppress(PermissionError):
        os.nice(-10)  # Otherwise, waiting for the core that is shared with the upstream counts as latency.
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1)  # Otherwise, every pause is up to 50 µs too long.
    taken = sorted(latencies(int(port), Path(head_file).read_bytes(), int(rate), float(seconds)))
    at = {str(share): taken[min(len(taken) - 1, int(len(taken) * share / 100))] for share in (50, 99, 99.9)}
    print(json.dumps({name: value * 1e6 for name, value in at.items()} | {"max": taken[-1] * 1e6}))


if __name__ == "__main__":
    main(*sys.argv[1:])
