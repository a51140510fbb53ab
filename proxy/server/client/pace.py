"""The state of a client connection and its deadline, which no other module sets.

| State   | Deadline                                                     | At the deadline        |
|---------|--------------------------------------------------------------|------------------------|
| IDLE    | `idle_timeout`; before the first request `head_timeout`      | close                  |
| HEAD    | `head_timeout` from the first byte; no byte renews it        | 408, close             |
| BODY    | `body_grace`, then each second at least `min_body_rate`;     | 408, close             |
|         | none while the handler pauses the body, except the handler's |                        |
|         | own, and none while the client waits for 100 Continue        |                        |
| WAITING | what the handler sets                                        | the handler is told    |
| DISCARD | `LINGER_SECONDS`                                             | close                  |
| CLOSING | `SLOW_READER_SECONDS`, for the client to take what is left   | abort                  |

A client that takes its response slowly has `SLOW_READER_SECONDS` in place of all these, renewed if it took
enough. Once it has taken the response, the deadline of its state counts again.
"""

from __future__ import annotations

from typing import Final

from proxy.server.client.read_gate import HANDLER, ReadGate
from proxy.server.client.state import State
from proxy.server.context import Limits
from proxy.server.loop.deadlines import NEVER, Deadlines
from proxy.server.loop.iteration import BatchedConnection

LINGER_SECONDS: Final = 2.0  # time to discard the body of a request that has its response
SLOW_READER_SECONDS: Final = 60.0  # between two looks at what a client has taken of its response
_RATE_SECONDS: Final = 1.0  # between two looks at the rate of a body

_IDLE: Final = State.IDLE
_HEAD: Final = State.HEAD
_BODY: Final = State.BODY
_WAITING: Final = State.WAITING
_DISCARD: Final = State.DISCARD
_CLOSING: Final = State.CLOSING


class Pace:
    """The state of one client connection, and how long it may last."""

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
        self.write_paused = False  # the client takes its response more slowly than it comes
        self.continue_awaited = False  # the client holds its body back until it is asked for it
        self._body_bytes = 0
        self._body_since = 0.0
        self._unsent = 0  # bytes that the client had not taken at the last look
        self._due = 0.0  # the deadline of the state, even if a slow reader's goes first
        self.wait_until(deadlines.now + limits.head_timeout)

    def enter(self, state: State) -> None:
        """Go on in `state`, with the deadline that it begins with."""
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
        """Set the deadline of a state without a handler: what was written is for the client to take first."""
        if self.write_paused:
            self._apply(self._clock.now + SLOW_READER_SECONDS)
        elif self.state is _IDLE:
            self.wait_until(self._clock.now + self._limits.idle_timeout)
        else:
            seconds = LINGER_SECONDS if self.state is _DISCARD else SLOW_READER_SECONDS
            self.wait_until(self._clock.now + seconds)

    def hurry(self) -> None:
        """Shorten the close of an idle connection: its client may never respond to TLS's close_notify."""
        if not self.write_paused:
            self.wait_until(self._clock.now + LINGER_SECONDS)

    def stop(self) -> None:
        """Set no deadline any more: the connection is lost."""
        self._apply(NEVER)
        self._connection = None

    def wait_until(self, deadline: float) -> None:
        """Set the deadline of the state, monotonic seconds. A client that takes its response slowly has the
        time for that first."""
        self._due = deadline
        connection = self._connection
        if connection is not None and not self.write_paused:
            connection.deadline = deadline

    # The body of a request

    def body_arrived(self, size: int) -> None:
        """Count bytes of the body. They also show that the client waits for 100 Continue no longer."""
        if self.continue_awaited:
            self.body_continued()
        self._body_bytes += size

    def body_continued(self) -> None:
        """The client was asked for the body, or sends it unasked: its rate counts from now on."""
        self.continue_awaited = False
        self.body_resumed()

    def body_paused(self) -> None:
        """The handler takes no more of the body at present: the client cannot be blamed for that."""
        if self.state is _BODY:
            self.wait_until(NEVER)

    def body_resumed(self) -> None:
        """The handler takes the body: its rate counts from now on, unless the handler pauses it."""
        if self.body_is_due():
            self._start_body_clock()

    def body_is_due(self) -> bool:
        """Return True if the deadline is the body's, and not the handler's."""
        return self.state is _BODY and not self._gate.is_shut_by(HANDLER)

    def body_is_slow(self, now: float) -> bool:
        """Return True if the body came at less than the least rate; else look again in a second."""
        limits = self._limits
        elapsed = now - self._body_since
        if self._body_bytes < (elapsed - limits.body_grace) * limits.min_body_rate:
            return True
        self.wait_until(now + _RATE_SECONDS)
        return False

    # A client that takes its response slowly

    def response_stalled(self, unsent: int) -> None:
        """The client has left `unsent` bytes, and takes no more at present."""
        self.write_paused = True
        self._unsent = unsent
        self._apply(self._clock.now + SLOW_READER_SECONDS)

    def response_taken(self) -> None:
        """The client has caught up: the deadline of the state counts again."""
        self.write_paused = False
        state = self.state
        if self.body_is_due():
            self._start_body_clock()
        elif state is _HEAD or state is _BODY or state is _WAITING:
            self.wait_until(self._due)
        else:
            self._rest()

    def reader_is_slow(self, now: float, unsent: int) -> bool:
        """Return True if the client takes what was written at less than the least rate of a body; else look
        again in `SLOW_READER_SECONDS`."""
        least = SLOW_READER_SECONDS * self._limits.min_body_rate
        if unsent and self._unsent - unsent >= least:
            self._unsent = unsent
            self._apply(now + SLOW_READER_SECONDS)
            return False
        return True

    # Own means

    def _start_body_clock(self) -> None:
        self._body_bytes = 0
        self._body_since = self._clock.now
        grace = self._limits.body_grace
        self.wait_until(NEVER if self.continue_awaited else self._body_since + grace)

    def _apply(self, deadline: float) -> None:
        connection = self._connection
        if connection is not None:
            connection.deadline = deadline
