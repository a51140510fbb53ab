"""Evaluate one request and its response.

Each sub-request of a batch is evaluated separately, with its own `Evaluation`.

Each decision is recorded in the pending event of the request. If the decision is to block the request, the
method raises Refusal.
"""

from __future__ import annotations

from collections.abc import Sequence

from proxy.policy.batch import envelope_decision
from proxy.policy.canonical import Target
from proxy.policy.decision import BodyNeeded, Decision, Plan, RequestFacts, ResponseFacts, blocked_by_path
from proxy.policy.facts import Looks
from proxy.policy.filters import Filtered
from proxy.policy.items import ItemNotFound
from proxy.policy.plain_responses import MediaType, NamesHidden, without_hidden
from proxy.policy.transforms import ITEMS
from proxy.server.callers.shadow import ShadowEvaluation, ShadowRules
from proxy.server.context import Context
from proxy.server.errors import item_not_found
from proxy.server.record.request_record import PendingEvent


class Evaluation:
    """Evaluation of one request against the rules of its application.

    `envelope` marks an outer $batch request.
    """

    __slots__ = (
        "_envelope",
        "_facts",
        "_fallback",
        "_pending",
        "_response_decided",
        "decision",
        "plan",
        "target",
    )

    decision: Decision  # set by the first decision
    _facts: RequestFacts  # not set if the plan is constant

    def __init__(self, pending: PendingEvent, target: Target, plan: Plan, *, envelope: bool = False) -> None:
        self._pending = pending
        self.target = target
        self.plan = plan
        self._envelope = envelope
        self._fallback: Decision | None = None
        self._response_decided = False

    def take(self, decision: Decision) -> None:
        """Apply the decision of the rules to the request. Raise Refusal if the decision is to block."""
        if self._envelope:
            decision = envelope_decision(decision)
        self.decision = decision
        self._pending.take(decision)

    # Request rules

    def facts_with(
        self,
        headers: Sequence[tuple[bytes, bytes]],
        body: bytes | None,
        looks: Looks | None = None,
        *,
        unread: bool = False,
    ) -> RequestFacts:
        """Return the facts of the request, for the rules to read.

        `unread` means that the proxy has not read the request body into memory.
        """
        pending = self._pending
        return RequestFacts(
            pending.method,
            self.target,
            headers,
            pending.client_ip,
            pending.time_ms / 1000,
            body,
            looks,
            unread=unread,
        )

    def try_shadow(self, rules: ShadowRules, facts: RequestFacts, *, body_known: bool) -> None:
        """Evaluate the shadow ruleset, and record its verdict only in the audit event."""
        self._pending.shadow = ShadowEvaluation(rules, facts, body_known=body_known, envelope=self._envelope)

    def decide(self, facts: RequestFacts) -> None:
        """Decide the verdict on a request from all facts of the request.

        Raise Refusal if a rule blocks the request. Raise MalformedBody or MalformedTarget if the rules cannot
        read the request.
        """
        self._facts = facts
        self._fallback = None
        self.take(self.plan.decide(facts))

    def decision_without_body(self, facts: RequestFacts, *, collectable: bool) -> Decision | None:
        """Return the decision if it does not depend on the request body.

        Return None if the proxy must collect the body.

        If only rules that log need the body, the proxy collects the body only if `collectable` is true. If
        the proxy collects the body, it stores the decision that was made without the body. The proxy uses the
        stored decision if it cannot collect the body.
        """
        self._facts = facts
        try:
            decision = self.plan.decide(facts)
        except BodyNeeded:
            return None
        if facts.wanted_for_the_log and collectable:
            self._fallback = decision
            return None
        return decision

    def take_fallback(self) -> Decision | None:
        """Return the fallback decision for a request whose body the proxy cannot collect.

        Return None if a rule other than a log rule needs the request body.
        """
        decision, self._fallback = self._fallback, None
        return decision

    # Response rules

    @property
    def may_change_response(self) -> bool:
        """True if a filter or a response rule may change the response.

        Rules cannot evaluate a part (range) of a response. A response to a range request also reveals how
        many bytes of the unfiltered response precede the range.
        """
        return self.decision.transforms is not None or self.plan.response_decides

    @property
    def reads_response_body(self) -> bool:
        """True if a filter, or a rule other than a log rule, reads the response body."""
        return self.decision.transforms is not None or self.plan.response_body_decides

    @property
    def filters_response(self) -> bool:
        """True if the decisions so far apply a filter to the response."""
        decision = self.decision if self._fallback is None else self._fallback
        return decision.transforms is not None

    @property
    def keeps_items(self) -> bool:
        """True if a filter keeps only some objects of a response.

        A filter that keeps only some objects must read every object of the response.
        """
        transforms = self.decision.transforms
        return transforms is not None and bool(transforms.keep)

    @property
    def awaits_response_body(self) -> bool:
        """True if the response rules have no decision yet, because the rules need the response body."""
        return not self._response_decided and self.plan.response_needs_body

    def decide_response(self, facts: ResponseFacts) -> None:
        """Apply the response rules to a response, including its body.

        Raise Refusal if a rule blocks the response. Raise MalformedBody or MalformedTarget if the rules
        cannot read the response.
        """
        self._take_response(self.plan.decide_response(self._facts, self.decision, facts))

    def decide_response_without_body(self, facts: ResponseFacts, *, filterable: bool, json: bool) -> bool:
        """Apply the response rules to the status and headers of a response.

        Return False if at least one response rule, even one that only logs, needs the response body.

        `filterable` means that a filter could process a response with the given status and headers. A rule
        that only logs reads the body only if `json` is true.
        """
        try:
            decision = self.plan.decide_response(self._facts, self.decision, facts)
        except BodyNeeded:
            return False
        if facts.wanted_for_the_log and decision.verdict != "block":
            if self._envelope or (filterable and decision.transforms is not None):
                return False
            if json:
                self._fallback = decision
                return False
        self._take_response(decision)
        return True

    def decide_response_by_fallback(self) -> bool:
        """If only log rules need the response body, apply their decision without the body.

        Return False if a filter, or a rule other than a log rule, needs the response body.
        """
        decision = self._fallback
        if decision is None:
            return False
        self._take_response(decision)
        return True

    def _take_response(self, decision: Decision) -> None:
        self._response_decided = True
        self._fallback = None
        if decision is not self.decision:
            self.take(decision)

    def without_hidden(self, context: Context, kind: MediaType, body: bytes) -> Filtered:
        """Return the filtered response, and the names of the transforms that removed something.

        Raise FilterFailed if the response body cannot be filtered. Raise Refusal if the path may name a
        hidden property, or if the filter removes the requested object.
        """
        transforms = self.decision.transforms
        assert transforms is not None
        asked = (self._pending.method.upper(), self.target)
        try:
            return without_hidden(context.filter_for(transforms), transforms, asked, kind, body)
        except ItemNotFound:
            self._pending.transforms = (ITEMS,)
            raise item_not_found(self.decision.reason) from None
        except NamesHidden:
            self.take(blocked_by_path(self.decision))
            raise
