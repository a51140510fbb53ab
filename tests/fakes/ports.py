"""Ports for servers that must get a port number before they start."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

# Ports below those that the system gives to outgoing connections, so that no program takes a port between the
# check and the server's start.
_FIRST: Final = 10_000
_EACH: Final = 500  # ports of a block
_BLOCKS: Final = 40


def _candidates() -> Iterator[int]:
    """Yield the ports of a block that no other test process uses, and begin again at the end of the block.

    A process owns a block of ports as long as it has bound a Unix socket with the block's name in the
    abstract namespace. A test process in a chroot uses the same abstract namespace, because it uses the same
    network.
    """
    with socket.socket(socket.AF_UNIX) as claim:
        first = _FIRST + _claimed(claim) * _EACH
        while True:
            yield from range(first, first + _EACH)


def _claimed(claim: socket.socket) -> int:
    for block in range(_BLOCKS):
        with suppress(OSError):
            claim.bind(f"\0graphward-test-ports-{block}")
            return block
    raise AssertionError(f"{_BLOCKS} test processes use all blocks of ports")


_ports = _candidates()


def free_port() -> int:
    """Return a loopback port on which no program listens."""
    for port in _ports:
        try:
            with socket.create_server(("127.0.0.1", port)):
                return port
        except OSError:
            continue
    raise AssertionError("unreachable: the ports have no end")


def this_program() -> str:
    """Return the words by which an error message names the test process as the owner of a port."""
    return f"{Path('/proc/self/comm').read_text('utf-8').strip()}, process {os.getpid()}"
