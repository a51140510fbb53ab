"""Call the upstream for one request: get a connection and a token, and retry once if either fails.

An upstream call ends before its exchange: at the last byte of the response, or when the upstream connection
is lost.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from proxy.ipc.counters import (
    LIMIT_UPSTREAM_CONNECTIONS,
    LIMIT_UPSTREAM_WAITING,
    UPSTREAM_RETRIED,
)
from proxy.server.errors import Refusal, overloaded
from proxy.server.exchange.owner import ExchangeOwner
from proxy.server.http1.response_head import ResponseHead
from proxy.server.loop.deadlines import NEVER
from proxy.server.upstream.connection import UpstreamConnection, UpstreamLost, UpstreamUser
from proxy.server.upstream.credentials import UpstreamCredential

_REPEATABLE: Final = frozenset({"GET", "HEAD", "OPTIONS"})


class CallState(Enum):
    """State of an upstream call."""

    READY = "ready"  # it has a token; its body may be incomplete
    QUEUED = "queued"  # it waits for a connection from the pool
    SENT = "sent"  # it has a connection
    RENEWING = "renewing"  # the upstream refused the token, and the call waits for another
    ENDED = "ended"


# Final names, because interpreted Python reads an enum's member slowly.
_READY: Final = CallState.READY
_QUEUED: Final = CallState.QUEUED
_SENT: Final = CallState.SENT
_RENEWING: Final = CallState.RENEWING
_ENDED: Final = CallState.ENDED

_LOST: Final = 1  # bits of the retries that were made: a new connection, a new token
_TOKEN: Final = 2


class UpstreamCall(UpstreamUser):
    """Upstream side of one exchange."""

    __slots__ = ("_credential", "_generation", "_head", "_owner", "_retried", "state", "upstream")

    def __init__(self, owner: ExchangeOwner, credential: UpstreamCredential) -> None:
        """Prepare the upstream call of an exchange.

        Raise Refusal if the upstream token is missing or has expired.
        """
        method = owner.head.method
        self._owner = owner
        self._credential = credential
        self._generation = 0
        self._head = b""
        self._retried = 0
        self.state = _READY
        self.upstream: UpstreamConnection | None = None
        self.repeatable = owner.head.fields.length == 0 and method in _REPEATABLE
        self.to_head_request = method == "HEAD"
        self._attach_credential()

    def __repr__(self) -> str:
        return f"<UpstreamCall {self.state.value}>"

    def _attach_credential(self) -> None:
        owner, credential = self._owner, self._credential
        if not credential.valid(owner.context.deadlines.now):
            raise Refusal(
                "notReady",
                "The proxy has no valid upstream token.",
                "credentialUnavailable",
                retry_after=credential.retry_after,
            )
        self._take_token()

    def _take_token(self) -> None:
        credential = self._credential
        self._generation = credential.generation
        self._head = self._owner.head_for_upstream(credential.authorization)

    # Calls of the exchange

    def start(self, *, fresh: bool = False) -> None:
        """Request an upstream connection from the pool.

        If `fresh` is set, use a new connection instead of an idle connection.
        """
        self.state = _QUEUED
        context = self._owner.context
        self._owner.connection.wait_until(context.deadlines.now + context.limits.upstream_wait)
        context.pool.acquire(self, fresh=fresh)

    def send(self, piece: bytes) -> None:
        """Send a piece of the request body as it arrives."""
        body, upstream = self._owner.body, self.upstream
        assert upstream is not None
        upstream.send(body.framed(piece), done=body.whole)

    def timed_out(self) -> Refusal | None:
        """Return the refusal of a request that waited too long for an upstream connection or a new token."""
        if self.upstream is not None:
            return None
        if self._retried & _TOKEN:
            return credential_refused()
        self._owner.context.counters.values[LIMIT_UPSTREAM_CONNECTIONS] += 1
        return overloaded("Every upstream connection is busy.")

    def renew(self) -> bool:
        """Send the request again with another upstream token, because the upstream responded with 401.

        Return False if the request was already sent with a second upstream token, or if its body cannot be
        sent again. Return False also if the upstream refused a token that had replaced another token shortly
        before.
        """
        self._release()
        credential, context = self._credential, self._owner.context
        now = context.deadlines.now
        if (
            self._retried & _TOKEN
            or not self._owner.body.repeatable
            or credential.just_replaced(self._generation, now)
        ):
            credential.rejected(self._generation, now)
            return False
        self._retried |= _TOKEN
        self.state = _RENEWING
        self._owner.connection.wait_until(now + context.limits.upstream_wait)
        if credential.generation != self._generation:
            self.credential_renewed()
        else:
            credential.waiting.add(self)
            credential.rejected(self._generation, now)
        return True

    def credential_renewed(self) -> None:
        """Send the request with the upstream token that has just arrived."""
        if self.state is not _RENEWING:
            return
        self._take_token()
        self._owner.pending.forget_upstream()
        self._owner.context.counters.values[UPSTREAM_RETRIED] += 1
        self.start()

    def end(self) -> None:
        """End the upstream call: close its connection, or leave the queue for a connection.

        Call `end` when the exchange needs no more data from the upstream.
        """
        if self.state is _ENDED:
            return
        self._release()
        self._credential.waiting.discard(self)
        self.state = _ENDED

    def pause_reading(self) -> None:
        if self.upstream is not None:
            self.upstream.pause_reading()

    def resume_reading(self) -> None:
        if self.upstream is not None:
            self.upstream.resume_reading()

    def _release(self) -> None:
        upstream = self.upstream
        if upstream is not None:
            self.upstream = None
            self._owner.pending.upstream_ended()
            upstream.abandon()
        elif self.state is _QUEUED:
            self._owner.context.pool.withdraw(self)

    # Calls of the pool and the upstream connection

    def upstream_ready(self, upstream: UpstreamConnection) -> None:
        self.upstream = upstream
        self.state = _SENT
        owner, credential = self._owner, self._credential
        if credential.generation != self._generation or not credential.valid(owner.context.deadlines.now):
            # The token was renewed, or expired, while the request waited in the queue.
            try:
                self._attach_credential()
            except Refusal as refusal:
                owner.refuse(refusal)
                return
        connection = owner.connection
        begun = self._head
        body = owner.body
        if body.length:
            begun += body.take_for_upstream()
        if body.whole:
            connection.wait_until(NEVER)  # only the upstream's own deadline applies now
            upstream.send_whole(begun)
        else:
            connection.resume_body()
            upstream.send(begun, done=False)
        if connection.write_paused:  # paused by output of a response from the previous upstream connection
            upstream.pause_reading()

    def upstream_lost(self, error: UpstreamLost) -> None:
        self.upstream = None
        owner = self._owner
        again = owner.body.repeatable if error.unsent else error.without_response and self.repeatable
        if again and not self._retried & _LOST:
            # The upstream had closed a kept connection, so it processed nothing of this request.
            self._retried |= _LOST
            owner.context.counters.values[UPSTREAM_RETRIED] += 1
            self.start(fresh=True)
            return
        self.state = _ENDED
        owner.pending.upstream_ended()
        owner.call_failed(error)

    def upstream_queue_full(self) -> None:
        self.state = _ENDED
        self._owner.context.counters.values[LIMIT_UPSTREAM_WAITING] += 1
        self._owner.refuse(overloaded("Too many requests wait for an upstream connection."))

    def upstream_full(self) -> None:
        self._owner.connection.pause_body()

    def upstream_drained(self) -> None:
        self._owner.connection.resume_body()

    def response_informational(self, head: ResponseHead) -> None:
        self._owner.informational(head)

    def response_started(self, response: ResponseHead, chunk: bytes, last: bool) -> None:
        if last:
            self.upstream = None
            self.state = _ENDED
        self._owner.response_started(response, chunk, last)

    def response_continued(self, chunk: bytes, last: bool) -> None:
        if last:
            self.upstream = None
            self.state = _ENDED
        self._owner.response_continued(chunk, last)

    def awaits_continue(self) -> bool:
        return self._owner.connection.continue_awaited

    def fail(self) -> None:
        self._owner.connection.fail()


def credential_refused() -> Refusal:
    """Return the refusal of a request whose upstream token is not accepted."""
    return Refusal(
        "upstreamError",
        "The upstream did not accept the proxy's own token.",
        "upstreamUnauthorised",
        upstream_status=401,
    )
