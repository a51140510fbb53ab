"""Set the state of a client connection and its deadline. No other module sets the state or the deadline.

| State   | Deadline                                                     | At the deadline        |
|---------|--------------------------------------------------------------|------------------------|
| IDLE    | `idle_timeout`; before the first request `head_timeout`      | close                  |
| HEAD    | `head_timeout` from the first byte; no byte renews it        | 408, close             |
| BODY    | `body_grace`, then each second at least `min_body_rate`;     | 408, close             |
|         | no deadline while the client waits for 100 Continue or the   |                        |
|         | handler pauses the body, unless the handler sets a deadline  |                        |
| WAITING | what the handler sets                                        | the handler is called  |
| DISCARD | `LINGER_SECONDS`                                             | close                  |
| CLOSING | `SLOW_READER_SECONDS`, for the client to take what is left   | abort                  |

A client that reads its response slowly has the deadline `SLOW_READER_SECONDS` instead, renewed if the client
read enough. After the client has read the response, the deadline of the connection's current state applies
again.
"""

from __future__ import annotations

from typing import Final

from proxy.server.client.read_gate import HANDLER, ReadGate
from proxy.server.client.state import State
from proxy.server.context import Limits
from proxy.server.loop.deadlines import NEVER, Deadlines
from proxy.server.loop.iteration import BatchedConnection

LINGER_SECONDS: Final = 2.0  # seconds to discard the body of a request that already has its response
SLOW_READER_SECONDS: Final = 60.0  # seconds between two checks of how much of its response a client has read
_RATE_SECONDS: Final = 1.0  # seconds between two checks of the rate of a body

_IDLE: Final = State.IDLE
_HEAD: Final = State.HEAD
_BODY: Final = State.BODY
_WAITING: Final = State.WAITING
_DISCARD: Final = State.DISCARD
_CLOSING: Final = State.CLOSING


class Pace:
    """State of one client connection, and the deadline of this state."""

    __slots__ = (
        "_body_bytes",
        "_body_since",
        "_clock",
        "_connection",
        "_due",
        "_gate",
        "_limits",
        "_unsent",
        "continue_awaited",
        "state",
        "write_paused",
    )

    def __init__(
        self, connection: BatchedConnection, gate: ReadGate, deadlines: Deadlines, limits: Limits
    ) -> None:
        self._connection: BatchedConnection | None = connection
        self._gate = gate
        self._clock = deadlines
        self._limits = limits
        self.state = _IDLE
        self.write_paused = False  # the client reads its response more slowly than the proxy writes it
        self.continue_awaited = False  # the client waits for 100 (Continue) before it sends the body
        self._body_bytes = 0
        self._body_since = 0.0
        self._unsent = 0  # bytes that the client had not read at the last check
        self._due = 0.0  # the deadline of the state, even while the deadline of a slow reader applies
        self.wait_until(deadlines.now + limits.head_timeout)

    def enter(self, state: State) -> None:
        """Put the client connection into `state`, and set the first deadline of this state."""
        self.state = state
        if state is _WAITING:
            self.wait_until(NEVER)
        elif state is _IDLE or state is _DISCARD or state is _CLOSING:
            self._rest()
        elif state is _BODY:
            self._start_body_clock()
        else:
            self.wait_until(self._clock.now + self._limits.head_timeout)

    def _rest(self) -> None:
        """Set the deadline of a connection state in which no request handler runs.

        If the client has not read all output, the deadline for slow readers applies instead of the deadline
        of the state.
        """
        if self.write_paused:
            self._apply(self._clock.now + SLOW_READER_SECONDS)
        elif self.state is _IDLE:
            self.wait_until(self._clock.now + self._limits.idle_timeout)
        else:
            seconds = LINGER_SECONDS if self.state is _DISCARD else SLOW_READER_SECONDS
            self.wait_until(self._clock.now + seconds)

    def hurry(self) -> None:
        """Shorten the close of an idle connection, because its client may never respond to close_notify."""
        if not self.write_paused:
            self.wait_until(self._clock.now + LINGER_SECONDS)

    def stop(self) -> None:
        """Remove the deadline of the connection, because the connection is lost."""
        self._apply(NEVER)
        self._connection = None

    def wait_until(self, deadline: float) -> None:
        """Set the deadline of the current connection state, in monotonic seconds.

        While the client reads its response slowly, the deadline of the slow reader replaces the given
        deadline.
        """
        self._due = deadline
        connection = self._connection
        if connection is not None and not self.write_paused:
            connection.deadline = deadline

    # Body of a request

    def body_arrived(self, size: int) -> None:
        """Count received bytes of the request body.

        A client that sends the first body bytes no longer waits for 100 (Continue).
        """
        if self.continue_awaited:
            self.body_continued()
        self._body_bytes += size

    def body_continued(self) -> None:
        """Start to measure the rate at which the request body arrives.

        Call this method after 100 (Continue) was sent, or when the client sends the body without waiting
        for 100.
        """
        self.continue_awaited = False
        self.body_resumed()

    def body_paused(self) -> None:
        """Remove the deadline of the request body while the handler does not read the body."""
        if self.state is _BODY:
            self.wait_until(NEVER)

    def body_resumed(self) -> None:
        """Start to measure how fast the request body arrives, unless the handler pauses the body."""
        if self.body_is_due():
            self._start_body_clock()

    def body_is_due(self) -> bool:
        """Return True if the current deadline belongs to the request body, and not to the handler."""
        return self.state is _BODY and not self._gate.is_shut_by(HANDLER)

    def body_is_slow(self, now: float) -> bool:
        """Return True if the request body arrived more slowly than the minimum rate.

        If the request body arrives fast enough, set the next check of the body's rate in one second.
        """
        limits = self._limits
        elapsed = now - self._body_since
        if self._body_bytes < (elapsed - limits.body_grace) * limits.min_body_rate:
            return True
        self.wait_until(now + _RATE_SECONDS)
        return False

    # Clients that read their response slowly

    def response_stalled(self, unsent: int) -> None:
        """Start the deadline of a slow reader, because the client has `unsent` bytes left to read."""
        self.write_paused = True
        self._unsent = unsent
        self._apply(self._clock.now + SLOW_READER_SECONDS)

    def response_taken(self) -> None:
        """Set the deadline of the connection state again, because the client has read all output."""
        self.write_paused = False
        state = self.state
        if self.body_is_due():
            self._start_body_clock()
        elif state is _HEAD or state is _BODY or state is _WAITING:
            self.wait_until(self._due)
        else:
            self._rest()

    def reader_is_slow(self, now: float, unsent: int) -> bool:
        """Return True if the client reads its response below the minimum rate of a body.

        If the client reads fast enough, set the next check in `SLOW_READER_SECONDS`.
        """
        least = SLOW_READER_SECONDS * self._limits.min_body_rate
        if unsent and self._unsent - unsent >= least:
            self._unsent = unsent
            self._apply(now + SLOW_READER_SECONDS)
            return False
        return True

    # Private helpers

    def _start_body_clock(self) -> None:
        self._body_bytes = 0
        self._body_since = self._clock.now
        grace = self._limits.body_grace
        self.wait_until(NEVER if self.continue_awaited else self._body_since + grace)

    def _apply(self, deadline: float) -> None:
        connection = self._connection
        if connection is not None:
            connection.deadline = deadline
