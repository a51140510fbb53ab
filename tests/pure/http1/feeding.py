"""Ways to split a message into the pieces in which a transport may deliver it."""

from __future__ import annotations

from collections.abc import Iterator


def every_split(data: bytes) -> Iterator[list[bytes]]:
    """Yield `data` in one piece, byte by byte, and in two pieces for each place between two of its bytes."""
    yield [data]
    yield [data[at : at + 1] for at in range(len(data))]
    for at in range(1, len(data)):
        yield [data[:at], data[at:]]
