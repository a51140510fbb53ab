"""One pass-through request's life: phases by name, in order; its audit event is closed in one place.

authenticate - canonicalise - decide - attach_credential - forward - (upstream) - filter_response - record -
respond

The event is in the spool before the last byte of the answer is given to the kernel, whichever way the
exchange ends.
"""

from __future__ import annotations

import time
from enum import Enum
from typing import Final

from proxy.ipc.counters import (
    LIMIT_FILTER_BYTES,
    LIMIT_HELD_BYTES,
)
from proxy.policy.batch import MalformedBatch, is_batch
from proxy.policy.canonical import MalformedTarget, canonicalise
from proxy.policy.decision import AnswerFacts, Decision, MalformedBody
from proxy.policy.filters import FilterFailed
from proxy.policy.plain_answers import media_type
from proxy.policy.unserved import carries_query
from proxy.rules.stops import Stops
from proxy.server.callers.token_keeper import RefusedToken, StoppedCaller, UnknownToken
from proxy.server.client.connection import ClientConnection
from proxy.server.content.charset import is_utf8
from proxy.server.content.content_coding import ContentCodingError, UnfoldsTooFar
from proxy.server.content.links import LinkRewriter
from proxy.server.context import Context
from proxy.server.errors import NO_ROOM, Refusal, filter_failed, overloaded
from proxy.server.exchange.batch import Batch, version_of
from proxy.server.exchange.evaluation import Evaluation
from proxy.server.exchange.held_response import AnswerReader, decoded_answer
from proxy.server.exchange.owner import ExchangeOwner
from proxy.server.exchange.request_body import NO_BODY, RequestBody, body_too_large
from proxy.server.exchange.upstream_call import UpstreamCall, credential_refused
from proxy.server.http1 import own_responses as answers
from proxy.server.http1.body_reader import CHUNKED
from proxy.server.http1.chunked import chunk_frame, framed_chunk
from proxy.server.http1.forwarded_headers import KEPT, head_for_client, head_for_upstream
from proxy.server.http1.request_head import RequestHead
from proxy.server.http1.response_head import AnswerHead
from proxy.server.record.request_record import AuditDraft
from proxy.server.upstream.connection import UpstreamLost
from proxy.wire.audit_event import STATUS_CLIENT_LEFT, STATUS_FAULT

_now: Final = time.time  # Final: what is compiled finds it without a look-up
_clock: Final = time.perf_counter


class Phase(Enum):
    """Phases in the life of an exchange."""

    JUDGING = "judging"  # the head is enough, or the body is whole
    COLLECTING = "collecting"  # the body is buffered, for rules or for the log
    CALLING = "calling"  # the upstream call is under way, and no response has begun
    HOLDING = "holding"  # a response is buffered before its head leaves
    STREAMING = "streaming"  # the response's head has left
    ENDED = "ended"  # it is recorded, and its last bytes have left, if it has any


class Ending(Enum):
    """Bytes that leave at the end of an exchange."""

    WHOLE = "whole"  # head and body of a response, together
    LAST_BYTES = "last bytes"  # the end of a response that has begun
    TRUNCATED = "truncated"  # nothing: the connection is aborted, so that no client takes it for whole
    UNANSWERED = "unanswered"  # nothing, because the connection is closed


# Final names: the interpreted form reads an enum's member slowly.
_JUDGING: Final = Phase.JUDGING
_COLLECTING: Final = Phase.COLLECTING
_CALLING: Final = Phase.CALLING
_HOLDING: Final = Phase.HOLDING
_STREAMING: Final = Phase.STREAMING
_ENDED: Final = Phase.ENDED
_WHOLE: Final = Ending.WHOLE
_LAST_BYTES: Final = Ending.LAST_BYTES
_TRUNCATED: Final = Ending.TRUNCATED
_UNANSWERED: Final = Ending.UNANSWERED


class Exchange(ExchangeOwner):
    """One request and its answer."""

    __slots__ = (
        "_answer",
        "_answer_bytes",
        "_batch",
        "_call",
        "_evaluation",
        "_held",
        "_reader",
        "phase",
        "to_head_request",
    )

    _evaluation: Evaluation  # once the target is known
    _answer: AnswerHead

    def __init__(self, context: Context, connection: ClientConnection, head: RequestHead) -> None:
        self.context = context
        self.connection = connection
        self.head = head
        context.requests += 1
        self.draft = AuditDraft(
            context.requests,
            int(_now() * 1000),
            head.method,
            head.target,
            connection.client_ip
            if head.fields.forwarded_for is None
            else context.client_ip(connection.client_ip, head.fields.forwarded_for),
            head.client_request_id,
        )
        self.draft.trace_id = head.trace_id
        self.to_head_request = head.method == "HEAD"
        length = head.fields.length
        self.body = RequestBody(length) if length else NO_BODY
        self.phase = _JUDGING
        self._held = 0  # bytes that count against what this worker may hold
        self._batch: Batch | None = None
        self._call: UpstreamCall | None = None
        # The answer's body
        self._answer_bytes = 0
        self._reader: AnswerReader | None = None

    def __repr__(self) -> str:
        return f"<Exchange {self.phase.value}>"

    # Phases of the request

    def begin(self) -> None:
        """Runs every phase that needs no more than the head."""
        try:
            self.authenticate()
            self.canonicalise()
            if self._batch is None and not self._evaluation.plan.needs_body:
                self.decide(None)
            elif self.body.whole:
                self.decide(b"")
            elif self._batch is not None or not self._decided_without_body():
                self._collect()
                return
            self.attach_credential()
        except Refusal as refusal:
            self.refuse(refusal)
            return
        self.forward()

    def authenticate(self) -> None:
        context = self.context
        draft = self.draft
        now = draft.time_ms / 1000
        why = context.why_not_ready(draft.record_bytes)
        if why is not None:
            if why != NO_ROOM and context.can_record(draft.record_bytes):
                draft.caller = context.tokens.issued_to(self.head.fields.authorization, now)
            raise Refusal("notReady", why, "notReady", retry_after=5)
        try:
            draft.caller = context.tokens.caller(self.head.fields.authorization, now)
        except (RefusedToken, StoppedCaller) as refused:
            draft.caller = refused.caller
            raise

    def canonicalise(self) -> None:
        head = self.head
        override = head.fields.method_override
        if override is not None and override.strip().decode("latin-1") != head.method:
            raise Refusal("badRequest", "A method override is not served here.", "unsupported")
        try:
            target = canonicalise(head.target, self.context.interpretations)
        except MalformedTarget as error:
            raise Refusal(
                "badRequest", f"The request target is malformed: {error}.", "malformedTarget"
            ) from None
        if carries_query(head.method, target):
            raise Refusal("badRequest", "A query in a body is not served here.", "unsupported")
        caller = self.draft.caller
        assert caller is not None
        if caller.rules is None:
            raise Refusal("policyBlocked", "No ruleset is bound to this application.", "noRuleset")
        envelope = is_batch(head.method, target)
        plan = caller.rules.plan(head.method, target)
        self._evaluation = Evaluation(self.draft, target, plan, envelope=envelope)
        if envelope:
            self._batch = Batch(self.context, caller, self.draft, version_of(target))

    def decide(self, body: bytes | None) -> None:
        """Evaluate the request; `body` is None if no rule has to read it."""
        self._try_shadow(body)
        evaluation = self._evaluation
        constant = evaluation.plan.constant
        if constant is not None:
            evaluation.take(constant)
        else:
            try:
                evaluation.decide(evaluation.facts_with(self.head.headers, body))
            except MalformedTarget as error:
                raise _unreadable(error) from None
        if self._batch is not None:
            self._decide_batch(self._batch, body or b"")

    def _decided_without_body(self) -> bool:
        """Decide without the body if no rule that decides needs it. Return False if it must be collected."""
        evaluation = self._evaluation
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
        self._evaluation.take(decision)

    def _try_shadow(self, body: bytes | None) -> None:
        caller = self.draft.caller
        if caller is None or caller.shadow is None:
            return
        if body is None and self.head.fields.length == 0:
            body = b""
        facts = self._evaluation.facts_with(self.head.headers, body)
        self._evaluation.try_shadow(caller.shadow, facts, body_known=body is not None)

    def _decide_batch(self, batch: Batch, body: bytes) -> None:
        """Evaluate each sub-request. Of the batch itself, only a rule that names it can block it."""
        batch.judge(body, self.context.own_base(self.connection.scheme, self.connection.host_for(self.head)))
        if not batch.unchanged:
            self.body.replace(batch.reduced(body))

    def attach_credential(self) -> None:
        caller = self.draft.caller
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
            whole=self.head.fields.ranged and self._evaluation.may_change_response,
            read=(context.rewrite_links or self._batch is not None or self._evaluation.may_change_response),
        )

    def forward(self) -> None:
        self.phase = _CALLING
        self.draft.upstream_started = _clock()
        body = self.body
        if not body.whole:
            if body.keep_if_small(awaited=self.head.fields.expect_continue):
                return  # until it is whole, however slowly it comes, no connection waits for it
            self.connection.pause_body()
        assert self._call is not None
        self._call.start()

    # The request's body

    def _collect(self) -> None:
        if self.head.fields.length > self.context.limits.max_buffered_body:
            raise body_too_large()
        self.phase = _COLLECTING
        self.body.collect()
        if self.head.fields.expect_continue:
            self.connection.write_continue()

    def request_body(self, chunk: bytes, last: bool) -> None:
        """A piece of the request's body has come; `last` ends it."""
        self.draft.request_bytes += len(chunk)
        body = self.body
        body.whole = last
        if self.phase is _ENDED:
            return
        if self._call is not None and self._call.upstream is not None:
            self._call.send(chunk)
            return
        body.add(chunk)
        if self.phase is _COLLECTING:
            if self.hold(len(chunk)):
                self._body_collected(last)
            else:
                self.refuse(overloaded("The proxy holds as many bodies as it may.", close=True))
        elif last and body.kept:
            self.forward()

    def hold(self, size: int) -> bool:
        """Whether `size` bytes more may be held for rules to read."""
        context = self.context
        if context.memory.take(size):
            self._held += size
            return True
        context.counters.values[LIMIT_HELD_BYTES] += 1
        return False

    def hold_no_longer(self) -> None:
        self.context.memory.give(self._held)
        self._held = 0

    def _body_collected(self, last: bool) -> None:
        if self.draft.request_bytes > self.context.limits.max_buffered_body:
            fallback = self._evaluation.take_fallback()
            if fallback is None:
                self.refuse(body_too_large())
            else:
                self._go_on_without_body(fallback)
            return
        if not last:
            return
        self.phase = _JUDGING
        try:
            self._decide_by_body()
            if self._batch is not None and self._batch.none_kept:
                self._answer_batch_alone(self._batch)
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
            fallback = self._evaluation.take_fallback()
            if fallback is None:
                raise
            self._take_without_body(fallback)
        else:
            self.decide(body)

    def _go_on_without_body(self, decision: Decision) -> None:
        """Pass on as it comes a body that is too long for the log."""
        self.phase = _JUDGING
        self.hold_no_longer()
        try:
            self._take_without_body(decision)
            self.attach_credential()
        except Refusal as refusal:
            self.refuse(refusal)
            return
        self.body.pass_on()
        self.forward()

    def _answer_batch_alone(self, batch: Batch) -> None:
        body = batch.own_answer()
        close = not self.connection.persists()
        head = answers.head(200, len(body), answers.JSON, close=close, now=_now())
        self._answer_bytes = len(body)
        self._end(_WHOLE, 200, head, body, close=close)

    # From the upstream call

    def call_failed(self, error: UpstreamLost) -> None:
        reason = _LOST_REASON[error.code] if self.phase is not _STREAMING else "upstreamAborted"
        self.refuse(Refusal(error.code, error.message, reason))

    def informational(self, head: AnswerHead) -> None:
        if not self.head.http10:
            self.connection.write(self._head_for_client(head, KEPT))
        if head.status == 100:
            self.connection.body_continued()

    def response_started(self, answer: AnswerHead, chunk: bytes, last: bool) -> None:
        draft = self.draft
        self._answer = answer
        draft.upstream_us = int((_clock() - draft.upstream_started) * 1e6)
        draft.upstream_status = answer.status
        draft.upstream_request_id = answer.request_id
        status = answer.status
        if status == 401:
            assert self._call is not None
            if not self._call.renew():
                self._refuse_answer(credential_refused())
        elif status in self.context.statuses_as_502:
            self._refuse_answer(
                Refusal(
                    "upstreamError",
                    f"The upstream answered {status}.",
                    "upstreamError",
                    upstream_status=status,
                )
            )
        else:
            self._begin_answer(answer, chunk, last)

    def _refuse_answer(self, refusal: Refusal) -> None:
        """The application doesn't get the answer; response rules judge its status and headers though, and so
        does a shadow ruleset."""
        self._show_shadow(self._answer, body_known=True)
        if self._evaluation.plan.has_response_rules:
            try:
                self._decide_response(b"")
            except Refusal as blocked:
                refusal = blocked
            except (MalformedBody, MalformedTarget):
                pass  # no rule of theirs holds
        self.refuse(refusal)

    def response_continued(self, chunk: bytes, last: bool) -> None:
        if self._reader is not None:
            self._reader.take(chunk, last)
        elif self._answer.length < 0:
            self.send_chunk(chunk, last)
        else:
            self._send_piece(chunk, last)

    # Phases of the answer

    def _begin_answer(self, answer: AnswerHead, chunk: bytes, last: bool) -> None:
        self._show_shadow(answer, body_known=answer.length == 0)
        try:
            for_rules = self._rules_read(answer)
        except (MalformedBody, MalformedTarget) as error:
            self.refuse(filter_failed(str(error)))
            return
        except Refusal as refusal:
            self.refuse(refusal)
            return
        if not for_rules and not self._may_have_links(answer):
            self._start_answer(chunk, last)
        elif last and not for_rules and answer.fields.content_encoding is None:
            self.send_whole(chunk, self.rewriter().rewrite(chunk))
        else:
            self.phase = _HOLDING
            self._reader = AnswerReader(self, answer, for_rules=for_rules)
            self._reader.take(chunk, last)

    def _show_shadow(self, answer: AnswerHead, *, body_known: bool) -> None:
        """Have a shadow ruleset judge the answer; `body_known` means that no body reaches the application."""
        shadow = self.draft.shadow
        if shadow is not None and shadow.wants_answer:
            shadow.answered(answer.status, answer.headers, None, body_known=body_known)

    def _rules_read(self, answer: AnswerHead) -> bool:
        """Whether rules have to read the answer's body. Those that don't need it judge here."""
        evaluation = self._evaluation
        plan = evaluation.plan
        filterable = 200 <= answer.status < 300 and answer.length != 0
        if plan.has_response_rules:
            if not plan.response_needs_body or answer.length == 0:
                self._decide_response(None)
            elif not evaluation.decide_response_without_body(
                AnswerFacts(answer.status, answer.headers, None, unread=True),
                filterable=filterable,
                json=_is_json(answer.fields.content_type),
            ):
                return True
        return self._batch is not None or (filterable and evaluation.decision.transforms is not None)

    def _may_have_links(self, answer: AnswerHead) -> bool:
        """Whether the answer is one in which an SDK would follow links."""
        return (
            answer.length != 0
            and self.context.rewrite_links
            and answer.status != 206  # whose place and length in the whole have to be true
            and _is_json(answer.fields.content_type)
        )

    def _decide_response(self, body: bytes | None) -> None:
        answer = self._answer
        self._evaluation.decide_response(AnswerFacts(answer.status, answer.headers, body))

    def judged_unread(self) -> bool:
        """Whether the answer may pass though it can't be read: only the log would have had it."""
        return self._evaluation.decide_response_by_fallback()

    def filter_response(self, body: bytes) -> bool:
        """Judges the whole answer and takes out what the rules hide; never lets an unfiltered one pass. False
        where it can't be read and need not be."""
        answer = self._answer
        try:
            awaited = self._evaluation.awaits_response_body
            if awaited and answer.status == 206:
                raise FilterFailed("it is a part of a larger whole")
            decoded = decoded_answer(body, answer, self.context.limits.max_filter_bytes)
            _require_utf8(answer, decoded)
            if awaited:
                self._decide_response(decoded)
            changed, removed = self._without_hidden(decoded)
        except (FilterFailed, ContentCodingError, MalformedBatch, MalformedBody, MalformedTarget) as error:
            if self.judged_unread():
                return False
            if isinstance(error, UnfoldsTooFar):
                self.context.counters.values[LIMIT_FILTER_BYTES] += 1
            self.refuse(filter_failed(str(error)))
            return True
        except Refusal as refusal:
            self.refuse(refusal)
            return True
        if self._may_have_links(answer):
            relinked = self.rewriter().rewrite(decoded if changed is None else changed)
            changed = changed if relinked is None else relinked
        self.draft.transforms = removed
        self.send_whole(body, changed)
        return True

    def _without_hidden(self, body: bytes) -> tuple[bytes | None, tuple[str, ...]]:
        """The body without what the rules hide, or None if they hide nothing of it; and the names of the
        transforms that removed something."""
        answer = self._answer
        transforms = self._evaluation.decision.transforms
        if not body or not 200 <= answer.status < 300 or (self._batch is None and transforms is None):
            return None, ()
        if answer.status == 206:
            raise FilterFailed("it is a part of a larger whole")
        if self._batch is not None:
            return self._batch.answer(body, self._relocated), ()  # each part's event has its own
        kind = media_type(answer.fields.content_type or b"")
        return self._evaluation.without_hidden(self.context, kind, body)

    def send_whole(self, body: bytes, changed: bytes | None) -> None:
        """Sends an answer that was held whole: as it came, or `changed` and uncoded."""
        final = body if changed is None else changed
        head = self._head_for_client(self._answer, len(final), changed=changed is not None)
        self._answer_bytes = len(final)
        self._end(_WHOLE, self._answer.status, head, final)

    def pass_unread(self, held: bytes, *, last: bool) -> bool:
        """Lets an answer pass as it comes that was held for the log alone. False where its links are to be
        turned."""
        if self._may_have_links(self._answer):
            return False
        self.hold_no_longer()
        self._reader = None
        self._start_answer(held, last)
        return True

    def start_rewritten(self) -> None:
        """Sends the head of an answer that is rewritten as it comes."""
        self._send_head(self._head_for_client(self._answer, CHUNKED, changed=True))

    def _start_answer(self, chunk: bytes, last: bool) -> None:
        """Sends the head with what came of the body along with it."""
        answer = self._answer
        sized = answer.length >= 0
        head = self._head_for_client(answer, KEPT if sized else CHUNKED)
        self._answer_bytes = len(chunk)
        if last:
            if not sized:
                chunk = self._chunk(chunk, last=True)
            self._end(_WHOLE, answer.status, head, chunk)
            return
        self._send_head(head, chunk if sized else self._chunk(chunk, last=False))

    def _send_head(self, head: bytes, first: bytes = b"") -> None:
        self.phase = _STREAMING
        self.draft.status = self._answer.status
        self.connection.write_framed(head, first, b"")

    def _send_piece(self, chunk: bytes, last: bool) -> None:
        self._answer_bytes += len(chunk)
        if last:
            self._end(_LAST_BYTES, self._answer.status, b"", chunk)
        else:
            self.connection.write(chunk)

    def send_chunk(self, chunk: bytes, last: bool) -> None:
        self._answer_bytes += len(chunk)
        before, behind = (b"", b"") if self.head.http10 else chunk_frame(len(chunk), last)
        if last:
            self._end(_LAST_BYTES, self._answer.status, before, chunk, behind)
        elif chunk:
            self.connection.write_framed(before, chunk, behind)

    def _chunk(self, chunk: bytes, last: bool) -> bytes:
        return chunk if self.head.http10 else framed_chunk(chunk, last)

    def _head_for_client(self, answer: AnswerHead, length: int, *, changed: bool = False) -> bytes:
        status = answer.status
        # Of a body that isn't here, but would be filtered or judged if it were.
        hidden = self._evaluation.reads_response_body and (
            status == 304 or (self.to_head_request and 200 <= status < 300)
        )
        return head_for_client(
            answer,
            length,
            changed=changed or hidden,
            length_hidden=hidden,
            http10=self.head.http10,
            close=status >= 200 and not self.connection.persists(),
            relocated=self._relocated,
        )

    def _relocated(self, value: bytes) -> bytes:
        if not self.context.rewrite_links:
            return value
        return self.rewriter().header(value)

    def rewriter(self) -> LinkRewriter:
        return self.context.rewriter(self.connection.scheme, self.connection.host_for(self.head))

    # The end, one way or another

    def refuse(self, refusal: Refusal) -> None:
        """Ends the exchange with an answer of ours, or, where one has begun, by cutting it."""
        if self.phase is _ENDED:
            return
        context = self.context
        draft = self.draft
        draft.reason = refusal.reason
        if isinstance(refusal, UnknownToken):
            self.connection.count_unauthenticated(refusal)
        self._let_go_of_upstream()
        if self._batch is not None:
            self._batch.withdraw()
        if self.phase is _STREAMING:
            self._end(_TRUNCATED, draft.status)
            return
        close = refusal.close or not self.connection.persists()
        head, body = answers.refusal_answer(
            refusal,
            request_id=draft.request_id(context),
            client_request_id=draft.client_request_id_text,
            close=close,
            now=_now(),
        )
        if self.to_head_request:
            body = b""
        self._answer_bytes = len(body)
        self._end(_WHOLE, refusal.status, head, body, close=close)

    def client_left(self) -> None:
        """The client is gone; what is under way for it is cut."""
        self._end_without_answer("clientAborted", STATUS_CLIENT_LEFT)

    def fail(self) -> None:
        """Ends the exchange for a fault of the proxy; its connection is cut already."""
        self._end_without_answer("internalError", STATUS_FAULT)

    def _end_without_answer(self, reason: str, status: int) -> None:
        if self.phase is _ENDED:
            return
        self.draft.reason = reason
        self._let_go_of_upstream()
        if self._batch is not None:
            self._batch.withdraw()
        self._end(_UNANSWERED, self.draft.status if self.phase is _STREAMING else status)

    def stop(self, stops: Stops) -> None:
        """An operator's stop doesn't wait for answers: one that has begun is cut, any other is a 403."""
        caller = self.draft.caller
        if caller is not None and stops.concern(caller.org_id, caller.app_id):
            if self.phase is not _STREAMING:
                self.draft.block_without_rule()
                if self._batch is not None:
                    self._batch.stop()
            self.refuse(StoppedCaller(caller))

    def waited_too_long(self) -> None:
        """No upstream connection, or no new upstream token, came in time."""
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
        """End the exchange: write its records, and only then send its last bytes. Nothing else ends it.

        If the records can't be stored, the connection is aborted: a response without an event must not be
        completed.
        """
        if self._held:
            self.hold_no_longer()
        self._reader = None  # and what it holds is free at once, not when the collector comes by
        draft = self.draft
        draft.status = status
        draft.response_bytes = self._answer_bytes
        batch = self._batch
        recorded = (batch is None or batch.record(status, draft.reason)) and draft.write(self.context)
        self.phase = _ENDED
        connection = self.connection
        if not recorded or ending is _TRUNCATED:
            self._let_go_of_upstream()
            connection.abort(reset=self.head.http10)
            return
        if ending is _WHOLE:
            connection.write_answer(before, body)
        elif ending is _UNANSWERED:
            return
        elif before or behind:
            connection.write_framed(before, body, behind)
        elif body:
            connection.write(body)
        self._let_go_of_upstream()
        connection.exchange_done(close=close)

    @property
    def record_bytes(self) -> int:
        """About what its records will take of the spool, its parts' too."""
        parts = 0 if self._batch is None else self._batch.record_bytes
        return self.draft.record_bytes + parts

    def pause_answer(self) -> None:
        if self._call is not None:
            self._call.pause_reading()

    def resume_answer(self) -> None:
        if self._reader is not None and not self._reader.resume():
            return
        if self._call is not None:
            self._call.resume_reading()

    def _let_go_of_upstream(self) -> None:
        call = self._call
        if call is not None:
            self._call = None  # the two hold each other, and only the collector would free such a pair
            call.end()


_LOST_REASON: Final = {
    "upstreamUnreachable": "upstreamUnreachable",
    "upstreamTimeout": "upstreamTimeout",
    "upstreamError": "upstreamProtocol",
}


_json_types: Final[dict[bytes, bool]] = {}


def _unreadable(error: MalformedTarget) -> Refusal:
    """Return the refusal of a request that the rules cannot read."""
    if isinstance(error, MalformedBody):
        return Refusal("badRequest", f"A rule can't read the body: {error}.", "malformedRequest")
    return Refusal("badRequest", f"The request target is ambiguous: {error}.", "ambiguousTarget")


def _is_json(content_type: bytes | None) -> bool:
    if content_type is None:
        return False
    known = _json_types.get(content_type)
    if known is None:
        known = media_type(content_type).is_json
        if len(_json_types) < 256 and len(content_type) <= 256:
            _json_types[content_type] = known
    return known


def _require_utf8(answer: AnswerHead, body: bytes) -> None:
    """Raises FilterFailed: what names a hidden property in another charset would be passed on."""
    content_type = answer.fields.content_type
    if _is_json(content_type) and not is_utf8((content_type or b"").decode("latin-1"), body):
        raise FilterFailed("it is not in UTF-8")
