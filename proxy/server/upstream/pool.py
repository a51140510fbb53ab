"""Pool of the upstream connections of one worker.

The pool assigns connections to requests, queues requests, and opens connections.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
from collections import deque
from typing import Final

from proxy.ipc.counters import LIMIT_RESPONSE_HEAD_BYTES, UPSTREAM_OPENED, UPSTREAM_REUSED, Counters
from proxy.outbound.tunnel import EgressFailed, EgressProblem, dial
from proxy.server.loop.deadlines import Deadlines
from proxy.server.loop.iteration import LoopIteration
from proxy.server.upstream.connection import ConnectionOwner, UpstreamConnection, UpstreamLost, UpstreamUser
from proxy.server.upstream.settings import UpstreamSettings

logger = logging.getLogger(__name__)

# seconds between two log lines about the same problem of the egress proxy
REPEATED_LOG_SECONDS: Final = 600.0
NEXT_LOG_SECONDS: Final = 10.0  # seconds between two log lines after this number of different problems:
_MOST_PROBLEMS: Final = 16
# Seconds after which an idle connection may be dead, so it serves only requests that can be repeated.
STALE_SECONDS: Final = 5.0


class UpstreamPool(ConnectionOwner):
    """Connections of one worker to its upstream."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        settings: UpstreamSettings,
        deadlines: Deadlines,
        counters: Counters,
        iteration: LoopIteration,
    ) -> None:
        self.iteration = iteration
        self.settings = settings
        self.deadlines = deadlines
        self._loop = loop
        self._counters = counters.values
        self._idle: list[UpstreamConnection] = []
        self._waiting: deque[UpstreamUser] = deque()
        self._opening: set[asyncio.Task[None]] = set()
        self._open = 0
        self._closing = False
        self._egress_logged_at: dict[str, float] = {}  # time of the last log line, by problem

    def __repr__(self) -> str:
        return (
            f"<UpstreamPool open={self._open} idle={len(self._idle)} "
            f"opening={len(self._opening)} waiting={len(self._waiting)}>"
        )

    def count_large_head(self) -> None:
        """Count a response whose head reached the size limit."""
        self._counters[LIMIT_RESPONSE_HEAD_BYTES] += 1

    @property
    def open_connections(self) -> int:
        """Number of upstream connections that are open or being opened."""
        return self._open

    def acquire(self, user: UpstreamUser, *, fresh: bool = False) -> None:
        """Call `upstream_ready` of `user` with an upstream connection, now or later.

        Call `upstream_lost` if no connection can be opened, or `upstream_queue_full` if too many users
        already wait for a connection. `fresh` requests a new connection instead of an idle connection.
        """
        idle = self._idle
        while idle and not fresh:
            upstream = idle.pop()
            if not upstream.is_quiet:
                upstream.transport.abort()
            elif user.repeatable or self.deadlines.now - upstream.idle_since <= STALE_SECONDS:
                self._counters[UPSTREAM_REUSED] += 1
                upstream.serve(user)
                user.upstream_ready(upstream)
                return
            elif self._open >= self.settings.max_connections:
                upstream.transport.abort()  # close it, to make room for a new connection
                break
            else:
                idle.append(upstream)
                break
        if self._open >= self.settings.max_connections:
            behind_others = len(self._waiting) - len(self._opening)
            if behind_others >= self.settings.max_waiting:
                user.upstream_queue_full()
                return
        self._waiting.append(user)
        self._open_for_waiting()

    def withdraw(self, user: UpstreamUser) -> None:
        """Remove `user` from the queue for a connection.

        If a connection is being opened for `user`, the next user in the queue gets this connection.
        """
        if user in self._waiting:
            self._waiting.remove(user)

    def release(self, upstream: UpstreamConnection) -> None:
        """Give a reusable or new connection to a waiting user, or keep an idle connection for later."""
        if self._closing or (self._waiting and upstream.used and not upstream.is_quiet):
            upstream.transport.abort()
        elif self._waiting:
            self._hand_over(upstream)
        else:
            now = self.deadlines.now
            upstream.idle_since = now
            upstream.deadline = now + self.settings.idle_timeout
            self._idle.append(upstream)

    def discard(self, upstream: UpstreamConnection) -> None:
        """Mark this upstream connection as unusable, so that no other user gets the connection."""
        if upstream in self._idle:
            self._idle.remove(upstream)

    def forget(self, upstream: UpstreamConnection) -> None:
        """Stop counting a closed upstream connection.

        After the upstream connection is closed, the pool may open another connection to replace it.
        """
        if not upstream.adopted:
            return  # `_connect` counts connections that failed to open
        self._open -= 1
        self.discard(upstream)
        self._open_for_waiting()

    def close(self) -> None:
        """Close idle connections now, and each busy connection when its exchange ends."""
        self._closing = True
        for task in self._opening:
            task.cancel()
        for upstream in self._idle[:]:
            upstream.transport.abort()

    def _hand_over(self, upstream: UpstreamConnection) -> None:
        user = self._waiting.popleft()
        upstream.serve(user)
        user.upstream_ready(upstream)

    def _open_for_waiting(self) -> None:
        while len(self._waiting) > len(self._opening) and self._open < self.settings.max_connections:
            self._open += 1
            task = self._loop.create_task(self._connect())
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    async def _connect(self) -> None:
        settings = self.settings
        try:
            async with asyncio.timeout(settings.connect_timeout):
                # Each connection looks up the name again, and uses the first of its addresses that responds.
                connected = await dial(settings.host, settings.port, settings.egress)
                _, upstream = await self._loop.create_connection(
                    lambda: UpstreamConnection(self),
                    sock=connected,
                    ssl=settings.tls,
                    server_hostname=settings.host if settings.tls is not None else None,
                )
        except TimeoutError:
            self._connect_failed(UpstreamLost("upstreamTimeout", self._too_late()))
        except EgressFailed as failed:
            self._report_egress(str(failed))
            code = "upstreamTimeout" if failed.problem is EgressProblem.TIMEOUT else "upstreamUnreachable"
            what = f"The upstream can't be reached: {failed.problem.value}."
            self._connect_failed(UpstreamLost(code, what))
        except OSError as error:  # includes ssl.SSLError
            self._connect_failed(
                UpstreamLost("upstreamUnreachable", f"The upstream can't be reached: {_why(error)}.")
            )
        else:
            self._counters[UPSTREAM_OPENED] += 1
            if upstream.closed:
                self._connect_failed(
                    UpstreamLost("upstreamUnreachable", "The upstream closed the connection at once.")
                )
                return
            upstream.adopted = True
            if task := asyncio.current_task():
                self._opening.discard(task)
            self.release(upstream)

    def _report_egress(self, text: str) -> None:
        """Log why the egress proxy fails: immediately for a new problem, rarely for a repeated problem."""
        now = self.deadlines.now
        logged_at = self._egress_logged_at
        if now < logged_at.get(text, -REPEATED_LOG_SECONDS) + REPEATED_LOG_SECONDS:
            return
        if text not in logged_at and len(logged_at) >= _MOST_PROBLEMS:
            if now < max(logged_at.values()) + NEXT_LOG_SECONDS:
                return
            del logged_at[min(logged_at, key=logged_at.__getitem__)]
        logged_at[text] = now
        logger.warning("cannot connect to the upstream: %s", text)

    def _too_late(self) -> str:
        """Return the message for an upstream connection that took too long to open.

        Log a failed connection through an egress proxy.
        """
        proxy = self.settings.egress
        if proxy is None:
            return "Connecting to the upstream took too long."
        waited = f"within {self.settings.connect_timeout:g} s"
        self._report_egress(f"egress proxy {proxy}: no connection to {self.settings.host} {waited}")
        return "Connecting to the upstream through the egress proxy took too long."

    def _connect_failed(self, error: UpstreamLost) -> None:
        self._open -= 1
        if task := asyncio.current_task():
            self._opening.discard(task)
        if self._waiting:
            self._waiting.popleft().upstream_lost(error)
        self._open_for_waiting()


def _why(error: OSError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate was not accepted ({error.verify_message})"
    if isinstance(error, ssl.SSLError | socket.gaierror):
        return error.strerror or type(error).__name__
    # Only the reason, without asyncio's text around it, which has addresses that are for operators only.
    return os.strerror(error.errno) if error.errno else "no connection was made"
