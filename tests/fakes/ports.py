"""Ports for servers that have to know theirs before they start."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Final

# Below what the system gives to outgoing connections, and a range for each process that runs tests beside
# others: so nobody takes a port between our look and the server's start. Where in its range a process begins
# differs, for another run of the tests or of the demo on the same machine.
_FIRST: Final = 10_000
_EACH: Final = 2_000


def _candidates() -> Iterator[int]:
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    first = _FIRST + number % 10 * _EACH
    start = os.getpid() * 37 % _EACH
    return cycle(first + (start + offset) % _EACH for offset in range(_EACH))


_ports = _candidates()


def free_port() -> int:
    """A port on loopback that nobody listens on."""
    for port in _ports:
        try:
            with socket.create_server(("127.0.0.1", port)):
                return port
        except OSError:
            continue
    raise AssertionError("unreachable: a cycle has no end")


def this_program() -> str:
    """How an error names the process that runs the tests, as the one that holds a port."""
    return f"{Path('/proc/self/comm').read_text('utf-8').strip()}, process {os.getpid()}"
