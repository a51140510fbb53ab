"""The audit event of one request while the request is under way, and its one way into the spool."""

from __future__ import annotations

import time
from typing import Final

from proxy.audit.payload import encode
from proxy.audit.record import Record, request_id
from proxy.audit.segment import MAX_RECORD
from proxy.audit.spool import SpoolFull
from proxy.ipc.counters import (
    ALLOWED,
    BLOCKED,
    BYTES_IN,
    BYTES_OUT,
    CLIENT_ABORTED,
    FILTER_FAILED,
    FILTERED,
    LIMIT_BODY_BYTES,
    LIMIT_RESPONSE_TIMEOUT,
    LOGGED_ONLY,
    NOT_READY,
    UPSTREAM_ABORTED,
    UPSTREAM_ERRORS,
)
from proxy.policy.decision import Decision
from proxy.policy.redaction import without_secrets
from proxy.server.callers.rulebook import Caller
from proxy.server.callers.shadow import ShadowEvaluation
from proxy.server.context import Context
from proxy.server.errors import Refusal, blocked_by
from proxy.server.http1.refused_head import read_refused_head

_VERDICT_COUNTER: Final = {
    "allow": ALLOWED,
    "block": BLOCKED,
    "filter": FILTERED,
    "log_only": LOGGED_ONLY,
}
_REASON_COUNTER: Final = {
    "clientAborted": CLIENT_ABORTED,
    "filterFailed": FILTER_FAILED,
    "notReady": NOT_READY,
    "credentialUnavailable": NOT_READY,
    "overloaded": NOT_READY,
    "payloadTooLarge": LIMIT_BODY_BYTES,
    "upstreamAborted": UPSTREAM_ABORTED,
    "upstreamTimeout": LIMIT_RESPONSE_TIMEOUT,
}
# Whatever status the application was given.
_UPSTREAM_FAILED: Final = frozenset(
    (
        "upstreamAborted",
        "upstreamError",
        "upstreamProtocol",
        "upstreamTimeout",
        "upstreamUnauthorised",
        "upstreamUnreachable",
    )
)

_RECORD_BYTES: Final = 2048  # beside what the application wrote
_clock: Final = time.perf_counter  # Final: what is compiled finds it without a look-up


def pending_event_of_refused(context: Context, received: bytes, peer: str) -> PendingEvent:
    """Return the pending event of a request whose head is refused, or was never received whole. Its caller is
    None unless the bytes `received` hold a token of ours."""
    head = read_refused_head(received)
    context.requests += 1
    now = time.time()
    address = context.client_ip(peer, head.forwarded_for)
    pending = PendingEvent(
        context.requests, int(now * 1000), head.method, head.target, address, head.client_request_id
    )
    pending.trace = head.trace
    pending.caller = context.tokens.issued_to(head.authorization, now)
    return pending


class PendingEvent:
    """What is known so far of one request; `write` makes it an event, once."""

    __slots__ = (
        "caller",
        "client_ip",
        "client_request_id",
        "credential",
        "evaluated",
        "implied",
        "logged_rule_ids",
        "method",
        "number",
        "parent",
        "path",
        "query",
        "reason",
        "redirect",
        "request_bytes",
        "response_bytes",
        "rule_id",
        "several_rule_ids",
        "shadow",
        "started",
        "status",
        "time_ms",
        "trace",
        "transforms",
        "upstream_request_id",
        "upstream_started",
        "upstream_status",
        "upstream_us",
        "verdict",
        "written",
    )

    def __init__(
        self,
        number: int,
        time_ms: int,
        method: str,
        target: str,
        client_ip: str,
        client_request_id: bytes | None,
    ) -> None:
        self.number = number
        self.time_ms = time_ms
        self.started = _clock()
        self.method = method
        path, mark, query = target.partition("?")
        self.path = path
        self.query = query if mark else None
        self.client_ip = client_ip
        self.client_request_id = client_request_id
        self.caller: Caller | None = None
        self.status = 0
        self.verdict = "block"
        self.rule_id: str | None = None
        self.several_rule_ids: tuple[str, ...] = ()
        self.logged_rule_ids: tuple[str, ...] = ()
        self.implied = ""  # the implied request that made the verdict stricter
        self.redirect: str | None = None  # the other host that the upstream redirected to
        self.transforms: tuple[str, ...] = ()  # those that removed something from what goes out
        self.trace: str | None = None  # trace, span and flags of the caller
        self.reason = "internalError"
        self.upstream_status: int | None = None
        self.upstream_started = 0.0
        self.upstream_us: int | None = None
        self.upstream_request_id: bytes | None = None
        self.request_bytes = 0
        self.response_bytes = 0
        self.parent: tuple[int, int] | None = None
        self.evaluated = True  # a request for a token is not: no ruleset evaluates it
        self.shadow: ShadowEvaluation | None = None
        # id of the credential that the caller gave, and the problem with it
        self.credential: tuple[str | None, str | None] | None = None
        self.written = False

    def close(self, context: Context, refusal: Refusal, response_bytes: int) -> bool:
        """Make this the event of a request that is refused before its exchange began. Return False if there
        is no room for the event: the response must not be sent."""
        self.status = refusal.status
        self.reason = refusal.reason
        self.response_bytes = response_bytes
        return self.write(context)

    def forget_upstream(self) -> None:
        """Note that the request is sent again: what the upstream responded before is not its response."""
        self.upstream_status = None
        self.upstream_us = None  # all attempts are the upstream's part, so the time goes on
        self.upstream_request_id = None

    def upstream_ended(self) -> None:
        """No response has begun: how long one was waited for."""
        if self.upstream_us is None and self.upstream_started:
            self.upstream_us = int((_clock() - self.upstream_started) * 1e6)

    @property
    def record_bytes(self) -> int:
        """About what its record will take: what the application wrote is most of what varies."""
        own = len(self.path) + len(self.query or "") + len(self.client_request_id or b"")
        return min(_RECORD_BYTES + own, MAX_RECORD)

    def request_id(self, context: Context) -> str:
        """The event's id, and the `request-id` of an error body."""
        return request_id(self.time_ms, context.spool.id_prefix, self.number)

    @property
    def client_request_id_text(self) -> str | None:
        value = self.client_request_id
        return None if value is None else value.decode("latin-1")

    def take(self, decision: Decision) -> None:
        """Note what the policy decided. Raises Refusal for a block."""
        self.verdict = decision.verdict
        self.rule_id = decision.rule_id
        self.logged_rule_ids = decision.logged_rule_ids
        self.several_rule_ids = decision.several_rule_ids
        self.reason = decision.reason
        self.implied = decision.implied
        if decision.verdict == "block":
            message = blocked_by(decision.rule_id)
            raise Refusal("policyBlocked", message, decision.reason, rule_id=decision.rule_id)

    def block_without_rule(self) -> None:
        """Note that the request is blocked, and not for any rule."""
        self.verdict, self.rule_id, self.several_rule_ids = "block", None, ()

    def write(self, context: Context) -> bool:
        """Puts the event into the spool. False where there is no room: the response must not be completed
        then.

        A request of nobody that we know leaves no event; it is counted and logged where that was found out.
        """
        if self.written:
            return True
        caller = self.caller
        duration_us = int((_clock() - self.started) * 1e6)
        if caller is not None:
            try:
                context.spool.append(caller.org_id, self._record(caller, duration_us))
            except SpoolFull:
                context.counters.values[NOT_READY] += 1
                return False
        self.written = True
        self._count(context, duration_us)
        return True

    def _record(self, caller: Caller, duration_us: int) -> bytes:
        query = self.query
        upstream_request_id = self.upstream_request_id
        shadow = self.shadow
        return encode(
            Record(
                self.number,
                self.time_ms,
                caller.org_id,
                caller.app_id,
                caller.client_id,
                self.client_ip or None,
                self.client_request_id_text,
                self.method,
                self.path,
                None if query is None else without_secrets(query),
                self.status,
                self.verdict,
                self.rule_id,
                self.logged_rule_ids or None,
                self.transforms or None,
                self.upstream_status,
                duration_us,
                self.upstream_us,
                self.request_bytes,
                self.response_bytes,
                self.parent,
                self.reason,
                caller.ruleset_version,
                None if upstream_request_id is None else upstream_request_id.decode("latin-1"),
                None if shadow is None else (shadow.verdict, shadow.rule_id, shadow.version),
                self.several_rule_ids,
                self.trace,
                self.implied or None,
                self.redirect,
                self.credential,
            )
        )

    def _count(self, context: Context, duration_us: int) -> None:
        counters = context.counters
        values = counters.values
        reason = self.reason
        if self.evaluated and self.caller is not None:  # as many as there are events
            values[_VERDICT_COUNTER[self.verdict]] += 1
            counters.observe_latency(duration_us)
        if self.parent is None:  # a part's bytes are among those of its batch
            if self.request_bytes:
                values[BYTES_IN] += self.request_bytes
            values[BYTES_OUT] += self.response_bytes
        status = self.upstream_status
        if (status is not None and status >= 500) or reason in _UPSTREAM_FAILED:
            values[UPSTREAM_ERRORS] += 1
        if reason in _REASON_COUNTER:
            values[_REASON_COUNTER[reason]] += 1
