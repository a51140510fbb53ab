"""Process `$batch`: evaluate each sub-request, send one smaller batch upstream, and filter each response.

docs/reference/token-endpoint.md and docs/reference/rules.md describe the behaviour.

A `$batch` request cannot bypass a ruleset. Each sub-request is evaluated as if it arrived as a separate
request. Each sub-request has an audit event, which names the batch in the field `parentRequestId`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from proxy.policy.batch import (
    BatchPart,
    BatchResponse,
    MalformedBatch,
    as_if_alone,
    made_response,
    merged_response,
    parse_batch,
    parse_batch_response,
    reduced_batch,
)
from proxy.policy.canonical import MalformedTarget, Target, canonicalise
from proxy.policy.decision import MalformedBody, ResponseFacts
from proxy.policy.facts import Looks
from proxy.policy.filters import FilterFailed
from proxy.policy.plain_responses import media_type
from proxy.policy.redirects import ELSEWHERE, host_elsewhere, is_redirect
from proxy.policy.unsupported_requests import carries_query, names_method_override
from proxy.server.callers.rulebook import Caller
from proxy.server.content.charset import is_utf8
from proxy.server.context import Context
from proxy.server.errors import NO_ROOM, NO_RULESET, UNCHANGED, Refusal
from proxy.server.exchange.evaluation import Evaluation
from proxy.server.http1.own_responses import error_body
from proxy.server.record.request_record import PendingEvent
from proxy.wire.trace_context import trace_of

_JSON: Final = {"Content-Type": "application/json"}
_OF_THE_VERDICT: Final = frozenset({"rule", "default"})
_LONGEST_ID: Final = 256  # bytes of an id to record; longer ids are not used to join events


def version_of(target: Target) -> str:
    """Return the API version in the target of a `$batch` request.

    Raise Refusal if another server could find a different API version in the target of a `$batch` request.

    If the target were ambiguous, the upstream could serve other resources than the resources that the proxy
    evaluated.
    """
    names = {name.folded for reading in target.readings for name in reading.names}
    first, *others = names
    if others or len(first) != 2:
        raise Refusal("badRequest", "The target of the batch is ambiguous.", "ambiguousTarget")
    return first[0]


class _Part:
    """A sub-request with its evaluation.

    If the proxy itself makes the response to a sub-request, this response is stored with the sub-request.
    """

    __slots__ = ("evaluation", "part", "pending", "response")

    def __init__(self, part: BatchPart, pending: PendingEvent) -> None:
        self.part = part
        self.pending = pending
        # missing if the sub-request is refused before its evaluation
        self.evaluation: Evaluation | None = None
        self.response: bytes | None = None  # made by the proxy, for a sub-request that is not sent upstream


class Batch:
    """The sub-requests of one `$batch` request, with their evaluations."""

    def __init__(self, context: Context, caller: Caller, envelope: PendingEvent, version: str) -> None:
        self._context = context
        self._version = version
        self._caller = caller
        self._envelope = envelope
        self._looks = Looks()
        self._parts: list[_Part] = []

    def evaluate(self, body: bytes, proxy_base: bytes) -> None:
        """Evaluate each sub-request of a `$batch` request.

        Raise Refusal if the `$batch` request itself is malformed.
        """
        try:
            parts = parse_batch(
                body,
                self._version,
                (*self._context.upstream_bases, proxy_base.decode("latin-1")),
            )
        except MalformedBatch as error:
            raise Refusal("badRequest", f"The batch is malformed: {error}.", "malformedBatch") from None
        evaluated = [self._evaluated(part) for part in parts]
        if not self._context.can_record(_record_bytes(evaluated)):
            raise Refusal("notReady", NO_ROOM, "notReady", retry_after=5)
        self._parts = evaluated
        self._fail_dependants()

    @property
    def record_bytes(self) -> int:
        """Approximate number of bytes that the audit records of the sub-requests need in the spool."""
        return _record_bytes(self._parts)

    @property
    def unchanged(self) -> bool:
        """True if the proxy sends the upstream exactly the bytes of the `$batch` request that arrived."""
        return all(each.response is None and not each.part.changed for each in self._parts)

    @property
    def none_kept(self) -> bool:
        return all(each.response is not None for each in self._parts)

    @property
    def reads_responses(self) -> bool:
        """True if any sub-request has a filter or a deciding rule that reads the response."""
        evaluations = [each.evaluation for each in self._parts]
        return any(each.reads_response_body for each in evaluations if each is not None)

    def reduced(self, body: bytes) -> bytes:
        """Return the `$batch` request without the refused sub-requests.

        The sub-requests that stay in the batch keep the bytes that the application sent.
        """
        keep = {each.part.id for each in self._parts if each.response is None}
        return reduced_batch(body, [each.part for each in self._parts], keep)

    def own_response(self) -> bytes:
        """Return the response to a batch if none of its sub-requests is sent upstream."""
        return self._merged(b'{"responses":[]}', [])

    def response(self, body: bytes, relocated: Callable[[bytes], bytes]) -> bytes | None:
        """Return the application's `$batch` response; None if the upstream's response needs no change.

        The method filters the response to each sub-request, and rewrites its locations with the function
        `relocated`. The method also adds the responses that the proxy itself made. Raise MalformedBatch if
        the upstream's response cannot be read; the application never receives such a response.
        """
        asked = {each.part.id.casefold(): each for each in self._parts if each.response is None}
        responses = parse_batch_response(body)
        finished: list[tuple[str, bytes]] = []
        for response in responses:
            part = asked.pop(response.id.casefold(), None)
            if part is None:
                raise MalformedBatch("the batch response names a sub-request that was not sent upstream")
            finished.append((part.part.id, self._evaluated_response(part, response.relocated(relocated))))
        for part in asked.values():
            self._refuse(
                part,
                Refusal(
                    "upstreamError",
                    "The upstream's response has nothing for this sub-request.",
                    "upstreamProtocol",
                ),
            )
        if len(finished) == len(self._parts) and all(
            text == response.raw for (_, text), response in zip(finished, responses, strict=True)
        ):
            return None
        return self._merged(body, finished)

    def stop(self) -> None:
        """Record that an emergency stop blocks the sub-requests that the rules allowed."""
        for each in self._parts:
            if each.pending.upstream_status is not None or not each.pending.status:
                each.pending.block_without_rule()

    def withdraw(self) -> None:
        """Record that the application does not receive the upstream's responses to the sub-requests."""
        for each in self._parts:
            if each.pending.upstream_status is not None:
                each.pending.status = 0
                each.pending.response_bytes = 0
                each.pending.transforms = ()

    def record(self, status: int, reason: str) -> bool:
        """Write the audit events of the sub-requests to the spool.

        Return False if the spool has no room for one of the audit events.

        If a sub-request has no response of its own, its audit event gets `status` and `reason`.
        """
        envelope = self._envelope
        for each in self._parts:
            pending = each.pending
            if not pending.status:
                pending.status = status
                if reason not in _OF_THE_VERDICT:  # otherwise the event keeps the reason of its own verdict
                    pending.reason = reason
                if pending.upstream_status is None and _says_of_every_part(envelope.upstream_status):
                    pending.upstream_status = envelope.upstream_status
                    pending.upstream_request_id = envelope.upstream_request_id
                pending.upstream_us = envelope.upstream_us
            if not pending.write(self._context):
                return False
        return True

    # Evaluation of sub-requests

    def _evaluated(self, part: BatchPart) -> _Part:
        context, envelope = self._context, self._envelope
        context.requests += 1
        pending = PendingEvent(
            context.requests,
            envelope.time_ms,
            part.method,
            part.target,
            envelope.client_ip,
            _id_in(part.headers, "client-request-id") or envelope.client_request_id,
        )
        pending.caller = self._caller
        pending.trace = _trace_in(part.headers) or envelope.trace
        pending.parent = (envelope.number, envelope.time_ms)
        pending.request_bytes = len(part.body or b"")
        evaluated = _Part(part, pending)
        try:
            self._decide(evaluated)
        except Refusal as refusal:
            self._refuse(evaluated, refusal)
        return evaluated

    def _decide(self, evaluated: _Part) -> None:
        part, pending = evaluated.part, evaluated.pending
        # the same limit as for a request that arrives alone
        if len(part.target) > self._context.limits.max_header_bytes:
            raise Refusal("headersTooLarge", "The URL of the sub-request is too long.", "headersTooLarge")
        if (
            sum(len(name) + len(value) for name, value in part.headers)
            > self._context.limits.max_header_bytes
        ):
            raise Refusal(
                "headersTooLarge", "The headers of the sub-request are too large.", "headersTooLarge"
            )
        for name, value in part.headers:
            if name.lower() == "content-type" and not is_utf8(value, as_if_alone(part.body) or b""):
                raise Refusal("badRequest", "The body of a sub-request must be in UTF-8.", "malformedRequest")
        headers = [(name.encode("latin-1", "replace"), value.encode("utf-8")) for name, value in part.headers]
        if any(names_method_override(name) and value != part.method.encode() for name, value in headers):
            raise Refusal("badRequest", "The proxy does not support method overrides.", "unsupported")
        rules = self._caller.rules
        if rules is None:
            raise Refusal("policyBlocked", NO_RULESET, "noRuleset")
        try:
            target = canonicalise(part.target, self._context.interpretations)
            if carries_query(part.method, target):
                raise Refusal(
                    "badRequest", "The proxy does not support a query in a request body.", "unsupported"
                )
            evaluation = evaluated.evaluation = Evaluation(pending, target, rules.plan(part.method, target))
            facts = evaluation.facts_with(headers, as_if_alone(part.body), self._looks)
            if self._caller.shadow is not None:
                evaluation.try_shadow(self._caller.shadow, facts, body_known=True)
            evaluation.decide(facts)
        except MalformedBody as error:
            raise Refusal(
                "badRequest", f"The sub-request can't be evaluated: {error}.", "malformedRequest"
            ) from None
        except MalformedTarget as odd:
            raise Refusal(
                "badRequest", f"The sub-request can't be evaluated: {odd}.", "malformedTarget"
            ) from None

    def _fail_dependants(self) -> None:
        """Refuse each sub-request that depends on a sub-request that the proxy does not send upstream.

        A sub-request can depend on an unsent sub-request indirectly, through other sub-requests.
        """
        failed = {each.part.id for each in self._parts if each.response is not None}
        before = -1
        while failed and len(failed) != before:
            before = len(failed)
            for each in self._parts:
                if each.response is None and any(id_ in failed for id_ in each.part.depends_on):
                    failed.add(each.part.id)
                    refusal = Refusal(
                        "failedDependency",
                        "A sub-request that this one depends on was refused.",
                        "dependencyFailed",
                    )
                    self._refuse(each, refusal)

    def _refuse(self, evaluated: _Part, refusal: Refusal) -> bytes:
        pending = evaluated.pending
        pending.status = refusal.status
        pending.reason = refusal.reason
        if refusal.reason == "dependencyFailed":
            pending.block_without_rule()
        body = error_body(
            refusal,
            request_id=pending.request_id(self._context),
            client_request_id=pending.client_request_id_text,
            contact=self._context.contact,
            now=pending.time_ms / 1000,
        )
        pending.response_bytes = len(body)
        evaluated.response = made_response(evaluated.part.id, refusal.status, _JSON, body)
        return evaluated.response

    # Responses to sub-requests

    def _evaluated_response(self, evaluated: _Part, response: BatchResponse) -> bytes:
        """Evaluate the response to one sub-request, and return the response that the application receives.

        If nothing changes in a sub-request's response, the response keeps its original bytes.
        """
        pending = evaluated.pending
        pending.upstream_status = response.status
        pending.upstream_us = self._envelope.upstream_us
        pending.upstream_request_id = (
            _id_in(response.headers, "request-id") or self._envelope.upstream_request_id
        )
        if pending.shadow is not None and pending.shadow.wants_response:
            body_alone = as_if_alone(response.body)
            pending.shadow.responded(response.status, _encoded(response.headers), body_alone, body_known=True)
        try:
            body = self._filtered(evaluated, response)
        except Refusal as refusal:
            return self._refuse(evaluated, refusal)
        pending.status = response.status
        pending.response_bytes = len(body if body is not None else response.body or b"")
        return response.raw if body is None else response.with_body(body)

    def _filtered(self, evaluated: _Part, response: BatchResponse) -> bytes | None:
        evaluation = evaluated.evaluation
        assert evaluation is not None
        status = response.status
        if status == 401 or status in self._context.statuses_as_502:
            # without the body, which the application does not receive
            _evaluate_response(evaluation, response, b"")
            raise Refusal(
                "upstreamError",
                f"The upstream responded with {status}.",
                "upstreamUnauthorised" if status == 401 else "upstreamError",
                upstream_status=status,
            )
        elsewhere = False
        if is_redirect(status):
            pending = evaluated.pending
            pending.redirect = host_elsewhere(_encoded(response.headers), self._context.upstream_bases)
            elsewhere = pending.redirect is not None
        if elsewhere and evaluation.reads_response_body:
            # a response rule may block it, which takes precedence
            _evaluate_response(evaluation, response, b"")
            raise _filter_failed(ELSEWHERE)
        if status == 206 and evaluation.reads_response_body:
            raise _filter_failed("the response is partial content (206)")
        _evaluate_response(evaluation, response, as_if_alone(response.body))
        # true only after a response rule decided to filter it
        if elsewhere and evaluation.decision.transforms is not None:
            raise _filter_failed(ELSEWHERE)
        if status == 304 and evaluation.keeps_items:
            raise _filter_failed(UNCHANGED)
        if evaluation.decision.transforms is None or not 200 <= status < 300 or response.body is None:
            return None
        kind = media_type(_content_type(response.headers))
        body = response.body if kind.is_json else as_if_alone(response.body) or b""
        try:
            left = evaluation.without_hidden(self._context, kind, body)
        except FilterFailed as error:
            raise _filter_failed(str(error)) from None
        evaluated.pending.transforms = left.removed
        return left.body if kind.is_json else None

    def _merged(self, body: bytes, finished: list[tuple[str, bytes]]) -> bytes:
        done = {part_id for part_id, _ in finished}
        own = {
            each.part.id: each.response for each in self._parts if each.response and each.part.id not in done
        }
        return merged_response(body, [each.part.id for each in self._parts], finished, own)


def _evaluate_response(evaluation: Evaluation, response: BatchResponse, body: bytes | None) -> None:
    """Evaluate the upstream's response to one sub-request.

    Raise Refusal if rules block the response, or if the response cannot be read.
    """
    if evaluation.plan.has_response_rules:
        try:
            evaluation.decide_response(ResponseFacts(response.status, _encoded(response.headers), body))
        except MalformedTarget as error:
            raise _filter_failed(str(error)) from None


def _id_in(headers: Iterable[tuple[str, str]], name: str) -> bytes | None:
    """Return the value of the sub-request's header `name`, if the value is valid in an HTTP header."""
    for each, value in headers:
        if each.lower() == name and value.isascii() and value.isprintable() and len(value) <= _LONGEST_ID:
            return value.encode()
    return None


def _content_type(headers: Iterable[tuple[str, str]]) -> bytes:
    """Return the media type of the body of a sub-request.

    The media type is JSON if the sub-request has no Content-Type header or several different ones.
    """
    named = {value for name, value in headers if name.lower() == "content-type"}
    return named.pop().encode() if len(named) == 1 else b"application/json"


def _says_of_every_part(status: int | None) -> bool:
    """Return True if the status of a `$batch` response also applies to each of its sub-requests.

    The success status of a `$batch` response does not apply to the sub-requests.
    """
    return status is not None and not 200 <= status < 300


def _trace_in(headers: Iterable[tuple[str, str]]) -> str | None:
    """Return trace ID, span ID and flags of a sub-request's `traceparent`, if exactly one is present."""
    values = [value for name, value in headers if name.lower() == "traceparent"]
    return trace_of(values[0].encode("utf-8", "replace")) if len(values) == 1 else None


def _record_bytes(parts: Iterable[_Part]) -> int:
    return sum([each.pending.record_bytes for each in parts])


def _encoded(headers: Iterable[tuple[str, str]]) -> list[tuple[bytes, bytes]]:
    return [(name.encode("utf-8"), value.encode("utf-8")) for name, value in headers]


def _filter_failed(why: str) -> Refusal:
    return Refusal("filterFailed", f"The upstream's response can't be filtered: {why}.", "filterFailed")
