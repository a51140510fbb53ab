"""Lifecycle of one pass-through request. Only `_end` ends an exchange and writes its audit event.

The steps of an exchange are: authenticate, canonicalise, decide, attach_credential, forward, wait for the
upstream, filter the response (`response.py`), record, respond (both in `_end`). `Phase` shows the step at
which a request waits.

The audit event of an exchange is in the spool before the last byte of the response is sent, no matter how the
exchange ends.
"""

from __future__ import annotations

import time
from enum import Enum
from typing import Final

from proxy.ipc.counters import CREDENTIAL_PROBLEMS_FIRST, LIMIT_HELD_BYTES
from proxy.policy.batch import is_batch
from proxy.policy.canonical import MalformedTarget, canonicalise
from proxy.policy.decision import Decision, MalformedBody
from proxy.policy.unsupported_requests import carries_query
from proxy.rules.stops import Stops
from proxy.server.callers.token_keeper import BoundToken, RefusedToken, StoppedCaller, UnknownToken
from proxy.server.client.connection import ClientConnection
from proxy.server.context import Context
from proxy.server.errors import NO_ROOM, NO_RULESET, Refusal, overloaded
from proxy.server.exchange.batch import Batch, version_of
from proxy.server.exchange.client_response import client_head
from proxy.server.exchange.evaluation import Evaluation
from proxy.server.exchange.owner import ExchangeOwner, ResponseBody
from proxy.server.exchange.request_body import NO_BODY, RequestBody, body_too_large
from proxy.server.exchange.response import begin_response, refuse_response
from proxy.server.exchange.upstream_call import CallState, UpstreamCall, credential_refused
from proxy.server.http1 import own_responses as responses
from proxy.server.http1.forwarded_headers import KEPT, head_for_upstream
from proxy.server.http1.request_head import RequestHead
from proxy.server.http1.response_head import ResponseHead
from proxy.server.record.request_record import PendingEvent
from proxy.server.upstream.connection import UpstreamLost
from proxy.wire.audit_event import CREDENTIAL_PROBLEMS, STATUS_CLIENT_LEFT, STATUS_FAULT

_now: Final = time.time  # Final, so that compiled code needs no look-up
_clock: Final = time.perf_counter


_UNBOUND: Final = CREDENTIAL_PROBLEMS_FIRST + tuple(CREDENTIAL_PROBLEMS).index("binding")


class Phase(Enum):
    """Phase of an exchange, such as the wait for the upstream."""

    EVALUATING = "judging"  # the head is sufficient, or the body is complete
    COLLECTING = "collecting"  # the body is buffered, for rules or for the log
    CALLING = "calling"  # the upstream call is in progress, and no response has begun
    BUFFERING = "buffering"  # a response is buffered, and its head has not been sent
    STREAMING = "streaming"  # the response's head has been sent
    ENDED = "ended"  # the event is recorded, and the last bytes have been sent, if there are any


class Ending(Enum):
    """Output that the proxy sends to the client at the end of an exchange (a request and its response)."""

    WHOLE = "whole"  # head and body of a response, together
    LAST_BYTES = "last bytes"  # the end of a response that has begun
    # no output: the connection is aborted, so that no client takes the response for whole
    TRUNCATED = "truncated"
    WITHOUT_RESPONSE = "without response"  # no output, because the connection is closed


# Final names, because interpreted Python reads an enum's member slowly.
_CALL_ENDED: Final = CallState.ENDED
_EVALUATING: Final = Phase.EVALUATING
_COLLECTING: Final = Phase.COLLECTING
_CALLING: Final = Phase.CALLING
_BUFFERING: Final = Phase.BUFFERING
_STREAMING: Final = Phase.STREAMING
_ENDED: Final = Phase.ENDED
_WHOLE: Final = Ending.WHOLE
_LAST_BYTES: Final = Ending.LAST_BYTES
_TRUNCATED: Final = Ending.TRUNCATED
_WITHOUT_RESPONSE: Final = Ending.WITHOUT_RESPONSE


class Exchange(ExchangeOwner):
    """One pass-through request and its response."""

    __slots__ = (
        "_call",
        "_reserved",
        "_response_bytes",
        "phase",
    )

    def __init__(self, context: Context, connection: ClientConnection, head: RequestHead) -> None:
        self.context = context
        self.connection = connection
        self.head = head
        context.requests += 1
        self.pending = PendingEvent(
            context.requests,
            int(_now() * 1000),
            head.method,
            head.target,
            connection.client_ip
            if head.fields.forwarded_for is None
            else context.client_ip(connection.client_ip, head.fields.forwarded_for),
            head.client_request_id,
        )
        self.pending.trace = head.trace
        length = head.fields.length
        self.body = RequestBody(length) if length else NO_BODY
        self.phase = _EVALUATING
        self._reserved = 0  # bytes that count against the buffer budget of this worker
        self.batch = None
        self._call: UpstreamCall | None = None
        self._response_bytes = 0  # bytes of the response body, without framing
        self.response = None

    def __repr__(self) -> str:
        return f"<Exchange {self.phase.value}>"

    # Phases of the request

    def begin(self) -> None:
        """Run each phase of the exchange that needs only the head of the request."""
        try:
            self.authenticate()
            self.canonicalise()
            if self.batch is None and not self.evaluation.plan.needs_body:
                self.decide(None)
            elif self.body.whole:
                self.decide(b"")
            elif self.batch is not None or not self._decided_without_body():
                self._collect()
                return
            self.attach_credential()
        except Refusal as refusal:
            self.refuse(refusal)
            return
        self.forward()

    def authenticate(self) -> None:
        context = self.context
        pending = self.pending
        now = pending.time_ms / 1000
        why = context.why_not_ready(pending.record_bytes)
        if why is not None:
            if why != NO_ROOM and context.can_record(pending.record_bytes):
                pending.caller = context.tokens.issued_to(self.head.fields.authorization, now)
            raise Refusal("notReady", why, "notReady", retry_after=5)
        try:
            pending.caller = context.tokens.caller(self.head.fields.authorization, now)
        except BoundToken as bound:
            pending.caller = bound.caller
            if bound.thumbprint != self.connection.thumbprint:
                pending.credential = bound.credential_id, "binding"
                context.counters.values[_UNBOUND] += 1
                raise
        except (RefusedToken, StoppedCaller) as refused:
            pending.caller = refused.caller
            raise

    def canonicalise(self) -> None:
        head = self.head
        override = head.fields.method_override
        if override is not None and override.strip().decode("latin-1") != head.method:
            raise Refusal("badRequest", "The proxy does not support method overrides.", "unsupported")
        try:
            target = canonicalise(head.target, self.context.interpretations)
        except MalformedTarget as error:
            raise Refusal(
                "badRequest", f"The request target is malformed: {error}.", "malformedTarget"
            ) from None
        if carries_query(head.method, target):
            raise Refusal(
                "badRequest", "The proxy does not support a query in a request body.", "unsupported"
            )
        caller = self.pending.caller
        assert caller is not None
        if caller.rules is None:
            raise Refusal("policyBlocked", NO_RULESET, "noRuleset")
        envelope = is_batch(head.method, target)
        plan = caller.rules.plan(head.method, target)
        self.evaluation = Evaluation(self.pending, target, plan, envelope=envelope)
        if envelope:
            self.batch = Batch(self.context, caller, self.pending, version_of(target))

    def decide(self, body: bytes | None) -> None:
        """Evaluate the request against the rules of its application.

        `body` is None if no rule has to read the request body.
        """
        self._try_shadow(body)
        evaluation = self.evaluation
        constant = evaluation.plan.decides_without(evaluation.target)
        if constant is not None:
            evaluation.take(constant)
        else:
            try:
                evaluation.decide(evaluation.facts_with(self.head.headers, body))
            except MalformedTarget as error:
                raise _unreadable(error) from None
        if self.batch is not None:
            self._decide_batch(self.batch, body or b"")

    def _decided_without_body(self) -> bool:
        """Decide the request without its body, if the deciding rules do not need the body.

        Return False if the decision needs the request body, so that the proxy must collect it.
        """
        evaluation = self.evaluation
        facts = evaluation.facts_with(self.head.headers, None, unread=True)
        collectable = self.head.fields.length <= self.context.limits.max_buffered_body
        try:
            decision = evaluation.decision_without_body(facts, collectable=collectable)
        except MalformedTarget as error:
            raise _unreadable(error) from None
        if decision is None:
            return False
        self._take_without_body(decision)
        return True

    def _take_without_body(self, decision: Decision) -> None:
        self._try_shadow(None)
        self.evaluation.take(decision)

    def _try_shadow(self, body: bytes | None) -> None:
        caller = self.pending.caller
        if caller is None or caller.shadow is None:
            return
        if body is None and self.head.fields.length == 0:
            body = b""
        facts = self.evaluation.facts_with(self.head.headers, body)
        self.evaluation.try_shadow(caller.shadow, facts, body_known=body is not None)

    def _decide_batch(self, batch: Batch, body: bytes) -> None:
        """Evaluate each sub-request of a batch.

        Only a rule that applies to the outer $batch request can block the whole batch.
        """
        batch.evaluate(
            body, self.context.own_base(self.connection.scheme, self.connection.host_for(self.head))
        )
        if not batch.unchanged:
            self.body = self.body.replaced_by(batch.reduced(body))

    def attach_credential(self) -> None:
        caller = self.pending.caller
        assert caller is not None
        self._call = UpstreamCall(self, caller.credential)

    def head_for_upstream(self, authorization: bytes) -> bytes:
        context = self.context
        body = self.body
        return head_for_upstream(
            self.head,
            host=context.upstream_host,
            authorization=authorization,
            readable_codings=context.readable_codings,
            body_held=body.kept,
            replaced_length=body.replaced_length,
            whole=self.head.fields.ranged and self.evaluation.may_change_response,
            unconditional=self.head.fields.conditional and self._reads_items(),
            read=(context.rewrite_links or self.batch is not None or self.evaluation.may_change_response),
        )

    def _reads_items(self) -> bool:
        return self.pending.method in ("GET", "HEAD") and self.evaluation.keeps_items

    def forward(self) -> None:
        self.phase = _CALLING
        self.pending.upstream_started = _clock()
        body = self.body
        if not body.whole:
            if body.keep_if_small(awaited=self.head.fields.expect_continue):
                return  # no upstream connection waits for a body that is not complete, however slow it is
            self.connection.pause_body()
        assert self._call is not None
        self._call.start()

    # Body of the request

    def _collect(self) -> None:
        if self.head.fields.length > self.context.limits.max_buffered_body:
            raise body_too_large()
        self.phase = _COLLECTING
        self.body.collect()
        if self.head.fields.expect_continue:
            self.connection.write_continue()

    def request_body(self, chunk: bytes, last: bool) -> None:
        """Process a piece of the request body. If `last` is set, the piece ends the body."""
        self.pending.request_bytes += len(chunk)
        body = self.body
        body.whole = last
        if self.phase is _ENDED:
            return
        call = self._call
        if call is not None:
            if call.upstream is not None:
                call.send(chunk)
                return
            if call.state is _CALL_ENDED:
                return  # the upstream's response is complete, so the rest of the body is not needed
        body.add(chunk)
        if self.phase is _COLLECTING:
            if self.reserve_buffer(len(chunk)):
                self._body_collected(last)
            else:
                self.refuse(overloaded("The proxy's memory for buffered request bodies is full.", close=True))
        elif last and body.kept:
            self.forward()

    def reserve_buffer(self, size: int) -> bool:
        context = self.context
        if context.buffer_budget.reserve(size):
            self._reserved += size
            return True
        context.counters.values[LIMIT_HELD_BYTES] += 1
        return False

    def release_buffer(self) -> None:
        self.context.buffer_budget.release(self._reserved)
        self._reserved = 0

    def _body_collected(self, last: bool) -> None:
        if self.pending.request_bytes > self.context.limits.max_buffered_body:
            fallback = self.evaluation.take_fallback()
            if fallback is None:
                self.refuse(body_too_large())
            else:
                self._go_on_without_body(fallback)
            return
        if not last:
            return
        self.phase = _EVALUATING
        try:
            self._decide_by_body()
            if self.batch is not None and self.batch.none_kept:
                self._respond_to_batch_alone(self.batch)
                return
            self.attach_credential()
        except Refusal as refusal:
            self.refuse(refusal)
            return
        self.forward()

    def _decide_by_body(self) -> None:
        try:
            body = self.body.readable(self.head, self.context.limits.max_buffered_body)
        except Refusal:
            fallback = self.evaluation.take_fallback()
            if fallback is None:
                raise
            self._take_without_body(fallback)
        else:
            self.decide(body)

    def _go_on_without_body(self, decision: Decision) -> None:
        """Forward a request body without buffering it, if it is too long and only log rules would read it."""
        self.phase = _EVALUATING
        self.release_buffer()
        try:
            self._take_without_body(decision)
            self.attach_credential()
        except Refusal as refusal:
            self.refuse(refusal)
            return
        self.body.pass_on()
        self.forward()

    def _respond_to_batch_alone(self, batch: Batch) -> None:
        body = batch.own_response()
        close = not self.connection.persists()
        head = responses.head(200, len(body), responses.JSON, close=close, now=_now())
        self._response_bytes = len(body)
        self._end(_WHOLE, 200, head, body, close=close)

    # Calls of the upstream call

    def call_failed(self, error: UpstreamLost) -> None:
        reason = _LOST_REASON[error.code] if self.phase is not _STREAMING else "upstreamAborted"
        self.refuse(Refusal(error.code, error.message, reason))

    def informational(self, head: ResponseHead) -> None:
        if not self.head.http10:
            self.connection.write(client_head(self, head, KEPT))
        if head.status == 100:
            self.connection.body_continued()

    def response_started(self, response: ResponseHead, chunk: bytes, last: bool) -> None:
        pending = self.pending
        pending.upstream_us = int((_clock() - pending.upstream_started) * 1e6)
        pending.upstream_status = response.status
        pending.upstream_request_id = response.request_id
        status = response.status
        if status == 401:
            assert self._call is not None
            if not self._call.renew():
                refuse_response(self, response, credential_refused())
        elif status in self.context.statuses_as_502:
            message = f"The upstream responded with {status}."
            refusal = Refusal("upstreamError", message, "upstreamError", upstream_status=status)
            refuse_response(self, response, refusal)
        else:
            begin_response(self, response, chunk, last)

    def response_continued(self, chunk: bytes, last: bool) -> None:
        assert self.response is not None
        self.response.take(chunk, last)

    # Calls of the response

    def buffer(self, response: ResponseBody) -> None:
        self.phase = _BUFFERING
        self.response = response

    def send_head(self, status: int, head: bytes, first: bytes, size: int) -> None:
        self.phase = _STREAMING
        self.pending.status = status
        self._response_bytes = size
        if self.head.http10:
            self.connection.reset_on_loss(True)
        self.connection.write_framed(head, first, b"")

    def send_piece(self, before: bytes, chunk: bytes, behind: bytes, last: bool) -> None:
        self._response_bytes += len(chunk)
        if last:
            self._end(_LAST_BYTES, self.pending.status, before, chunk, behind)
        elif before:
            self.connection.write_framed(before, chunk, behind)
        elif chunk:
            self.connection.write(chunk)

    def send_whole(self, status: int, head: bytes, body: bytes, size: int) -> None:
        self._response_bytes = size
        self._end(_WHOLE, status, head, body)

    # Ends of the exchange

    def refuse(self, refusal: Refusal) -> None:
        """End the exchange with a response of the proxy, or abort the response that has begun."""
        if self.phase is _ENDED:
            return
        context = self.context
        pending = self.pending
        pending.reason = refusal.reason
        if isinstance(refusal, UnknownToken):
            self.connection.count_unauthenticated(refusal)
        self._let_go_of_upstream()
        if self.batch is not None:
            self.batch.withdraw()
        if self.phase is _STREAMING:
            self._end(_TRUNCATED, pending.status)
            return
        close = refusal.close or not self.connection.persists()
        head, body = responses.refusal_response(
            refusal,
            request_id=pending.request_id(context),
            client_request_id=pending.client_request_id_text,
            contact=context.contact,
            close=close,
            now=_now(),
        )
        if self.head.method == "HEAD":
            body = b""
        self._response_bytes = len(body)
        self._end(_WHOLE, refusal.status, head, body, close=close)

    def client_left(self) -> None:
        """End the exchange and its upstream call, because the client is gone."""
        self._end_without_response("clientAborted", STATUS_CLIENT_LEFT)

    def fail(self) -> None:
        """End the exchange after a fault of the proxy.

        When `fail` is called, the client connection of the exchange is already aborted.
        """
        self._end_without_response("internalError", STATUS_FAULT)

    def _end_without_response(self, reason: str, status: int) -> None:
        if self.phase is _ENDED:
            return
        self.pending.reason = reason
        self._let_go_of_upstream()
        if self.batch is not None:
            self.batch.withdraw()
        self._end(_WITHOUT_RESPONSE, self.pending.status if self.phase is _STREAMING else status)

    def stop(self, stops: Stops) -> None:
        """Stop the exchange: abort a response that has begun, and respond with 403 otherwise."""
        caller = self.pending.caller
        if caller is not None and stops.concern(caller.org_id, caller.app_id):
            if self.phase is not _STREAMING:
                self.pending.block_without_rule()
                if self.batch is not None:
                    self.batch.stop()
            self.refuse(StoppedCaller(caller))

    def waited_too_long(self) -> None:
        """End the exchange after it waited too long for an upstream connection or a new upstream token."""
        refusal = None if self._call is None else self._call.timed_out()
        if refusal is not None:
            self.refuse(refusal)

    def _end(
        self,
        ending: Ending,
        status: int,
        before: bytes = b"",
        body: bytes = b"",
        behind: bytes = b"",
        *,
        close: bool = False,
    ) -> None:
        """End the exchange: write its records to the spool, and only then send the end of its response.

        Only `_end` ends an exchange. If the spool cannot store the records, the proxy aborts the connection:
        no response may be complete without an audit event.
        """
        if self._reserved:
            self.release_buffer()
        self.response = None  # frees its memory at once, without waiting for the garbage collector
        pending = self.pending
        pending.status = status
        pending.response_bytes = self._response_bytes
        batch = self.batch
        recorded = (batch is None or batch.record(status, pending.reason)) and pending.write(self.context)
        self.phase = _ENDED
        connection = self.connection
        if not recorded or ending is _TRUNCATED:
            self._let_go_of_upstream()
            connection.abort(reset=self.head.http10)
            return
        if self.head.http10 and ending is _LAST_BYTES:
            connection.reset_on_loss(False)
        if ending is _WHOLE:
            connection.write_response(before, body)
        elif ending is _WITHOUT_RESPONSE:
            return
        elif before or behind:
            connection.write_framed(before, body, behind)
        elif body:
            connection.write(body)
        self._let_go_of_upstream()
        connection.exchange_done(close=close)

    @property
    def record_bytes(self) -> int:
        """Approximate size in bytes of the spool records of an exchange and its sub-requests."""
        parts = 0 if self.batch is None else self.batch.record_bytes
        return self.pending.record_bytes + parts

    def pause_response(self) -> None:
        if self._call is not None:
            self._call.pause_reading()

    def resume_response(self) -> None:
        if self.response is not None and not self.response.resume():
            return
        if self._call is not None:
            self._call.resume_reading()

    def _let_go_of_upstream(self) -> None:
        call = self._call
        if call is not None:
            self._call = None  # breaks a reference cycle, which only the garbage collector would free
            call.end()


_LOST_REASON: Final = {
    "upstreamUnreachable": "upstreamUnreachable",
    "upstreamTimeout": "upstreamTimeout",
    "upstreamError": "upstreamProtocol",
}


def _unreadable(error: MalformedTarget) -> Refusal:
    """Return the refusal of a request if the rules cannot read the request."""
    if isinstance(error, MalformedBody):
        return Refusal("badRequest", f"A rule can't read the request body: {error}.", "malformedRequest")
    return Refusal("badRequest", f"The request target is ambiguous: {error}.", "ambiguousTarget")
