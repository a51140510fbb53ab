"""Pause reading from a client connection while at least one reason to pause applies."""

from __future__ import annotations

import asyncio
from typing import Final

# Reasons are bits, because several can apply at once.
HANDLER: Final = 1  # the handler cannot pass the body on yet
PIPELINE_FULL: Final = 2  # more than PIPELINE_BYTES of pipelined requests are buffered
YIELD: Final = 4  # other connections are served first

_NAMES: Final = ((HANDLER, "handler"), (PIPELINE_FULL, "pipeline full"), (YIELD, "yield"))


class ReadGate:
    """Gate that pauses reading on one transport.

    The gate lets the transport read while no reason to pause applies.

    The gate pauses the transport when the first reason is added, and resumes it when the last reason is
    removed. The gate counts each reason only once, even if the code pauses reading twice for the same reason.
    """

    __slots__ = ("_reasons", "_transport")

    def __init__(self, transport: asyncio.ReadTransport) -> None:
        self._transport = transport
        self._reasons = 0

    def __repr__(self) -> str:
        held = [name for reason, name in _NAMES if self._reasons & reason]
        return f"<ReadGate {', '.join(held) or 'open'}>"

    def shut(self, reason: int) -> None:
        """Pause reading for `reason`, which is one of the constants of this module."""
        if not self._reasons:
            self._transport.pause_reading()
        self._reasons |= reason

    def open(self, reason: int) -> None:
        """Remove one reason for the pause of reading.

        The transport resumes reading if it is open and no other reason to pause applies.
        """
        before = self._reasons
        self._reasons = before & ~reason
        if before and not self._reasons and not self._transport.is_closing():
            self._transport.resume_reading()

    def is_shut_by(self, reason: int) -> bool:
        """Return True if reading is paused for `reason`."""
        return self._reasons & reason != 0
