"""Ports for servers that must get a port number before they start."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Final

# Ports below those that the system gives to outgoing connections, with one range for each parallel test
# process. So no program takes a port between the check and the server's start. Each process begins at another
# place in its range, so that another run on the same machine picks other ports.
_FIRST: Final = 10_000
_EACH: Final = 2_000


def _candidates() -> Iterator[int]:
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    first = _FIRST + number % 10 * _EACH
    start = os.getpid() * 37 % _EACH
    return cycle(first + (start + offset) % _EACH for offset in range(_EACH))


_ports = _candidates()


def free_port() -> int:
    """Return a loopback port on which no program listens."""
    for port in _ports:
        try:
            with socket.create_server(("127.0.0.1", port)):
                return port
        except OSError:
            continue
    raise AssertionError("unreachable: a cycle has no end")


def this_program() -> str:
    """Return the words by which an error message names the test process as the owner of a port."""
    return f"{Path('/proc/self/comm').read_text('utf-8').strip()}, process {os.getpid()}"
