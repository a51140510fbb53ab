"""Collect the facts about one request during the request, and write its audit event to the spool."""

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
# They apply no matter which status the application received.
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

_RECORD_BYTES: Final = 2048  # bytes of a record in addition to the texts of the application
_clock: Final = time.perf_counter  # Final, so that compiled code needs no look-up


def pending_event_of_refused(context: Context, received: bytes, peer: str) -> PendingEvent:
    """Return the pending audit event of a request whose head was refused or is incomplete.

    The audit event names a caller only if the bytes `received` contain a valid proxy token.
    """
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
    """Facts that are known so far about one request.

    The method `write` makes one audit event from the known facts.
    """

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
        self.transforms: tuple[str, ...] = ()  # names of transforms that removed something from the response
        self.trace: str | None = None  # trace, span and flags of the caller
        self.reason = "internalError"
        self.upstream_status: int | None = None
        self.upstream_started = 0.0
        self.upstream_us: int | None = None
        self.upstream_request_id: bytes | None = None
        self.request_bytes = 0
        self.response_bytes = 0
        self.parent: tuple[int, int] | None = None
        self.evaluated = True  # False for a token request, which no ruleset evaluates
        self.shadow: ShadowEvaluation | None = None
        # id of the credential that the caller used, and the problem with it
        self.credential: tuple[str | None, str | None] | None = None
        self.written = False

    def close(self, context: Context, refusal: Refusal, response_bytes: int) -> bool:
        """Complete the audit event of a request that the proxy refuses before its exchange begins.

        Return False if the spool has no room for the audit event. If the audit event cannot be written, the
        proxy must not send the response.
        """
        self.status = refusal.status
        self.reason = refusal.reason
        self.response_bytes = response_bytes
        return self.write(context)

    def forget_upstream(self) -> None:
        """Reset the recorded facts about the upstream's response, because the request is sent again."""
        self.upstream_status = None
        self.upstream_us = None  # the time runs on, because it covers all attempts
        self.upstream_request_id = None

    def upstream_ended(self) -> None:
        """Record how long the request waited for the upstream, if the upstream sent no response."""
        if self.upstream_us is None and self.upstream_started:
            self.upstream_us = int((_clock() - self.upstream_started) * 1e6)

    @property
    def record_bytes(self) -> int:
        """Approximate number of bytes that the record of the audit event needs.

        The size of a spool record depends mostly on texts from the application, such as the path.
        """
        own = len(self.path) + len(self.query or "") + len(self.client_request_id or b"")
        return min(_RECORD_BYTES + own, MAX_RECORD)

    def request_id(self, context: Context) -> str:
        """Return the ID of the audit event. Error responses contain the same ID as `request-id`."""
        return request_id(self.time_ms, context.spool.id_prefix, self.number)

    @property
    def client_request_id_text(self) -> str | None:
        value = self.client_request_id
        return None if value is None else value.decode("latin-1")

    def take(self, decision: Decision) -> None:
        """Store the decision of the policy in the audit event.

        Raise Refusal if the decision blocks the request.
        """
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
        """Record that the proxy blocked the request for a reason other than a rule."""
        self.verdict, self.rule_id, self.several_rule_ids = "block", None, ()

    def write(self, context: Context) -> bool:
        """Write the audit event to the spool. Return False if the spool has no room for the audit event.

        If the audit event was not written, the response must not be completed. A request of an unknown
        application has no audit event. If the application is unknown, the code that refuses the request also
        counts and logs it.
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
        if self.evaluated and self.caller is not None:  # so the counter equals the number of events
            values[_VERDICT_COUNTER[self.verdict]] += 1
            counters.observe_latency(duration_us)
        if self.parent is None:  # the bytes of a sub-request are part of those of its batch
            if self.request_bytes:
                values[BYTES_IN] += self.request_bytes
            values[BYTES_OUT] += self.response_bytes
        status = self.upstream_status
        if (status is not None and status >= 500) or reason in _UPSTREAM_FAILED:
            values[UPSTREAM_ERRORS] += 1
        if reason in _REASON_COUNTER:
            values[_REASON_COUNTER[reason]] += 1
