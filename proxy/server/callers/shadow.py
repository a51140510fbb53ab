"""Evaluate an application's shadow ruleset in addition to its active ruleset, only for the audit event.

The shadow ruleset never changes the request or the response. The proxy does not enforce the shadow ruleset's
verdict, and buffers no body for the shadow ruleset. The shadow verdict is "unknown" if the rules need a body
that was not read, or if the evaluation fails.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from proxy.policy.canonical import MalformedTarget
from proxy.policy.decision import Decision, Plan, RequestFacts, ResponseFacts
from proxy.policy.ruleset import DEFAULT_RULE_ID

if TYPE_CHECKING:
    from proxy.policy.compile import CompiledRuleset

logger = logging.getLogger(__name__)

UNKNOWN: Final = "unknown"
ShadowVerdict = Literal["allow", "filter", "block", "log_only", "unknown"]


@dataclass(slots=True, eq=False)
class ShadowRules:
    rules: CompiledRuleset
    version: int
    failed: bool = False  # logged once, because every request can have the same failure


class ShadowEvaluation:
    """Evaluation of one request against the shadow ruleset."""

    __slots__ = ("_facts", "_plan", "_request_decision", "_rules", "rule_id", "verdict")

    def __init__(
        self, rules: ShadowRules, facts: RequestFacts, *, body_known: bool, envelope: bool = False
    ) -> None:
        """Evaluate the shadow ruleset's request rules.

        An empty `facts.body` can stand for a missing body or for an unread body. `body_known` is False for an
        unread body. `envelope` marks an outer `$batch` request. A rule for `$batch` can block an outer
        `$batch` request, but the default verdict cannot.
        """
        self._rules = rules
        self._facts = facts
        self._plan: Plan | None = None
        self._request_decision: Decision | None = None
        self.verdict: ShadowVerdict = UNKNOWN
        self.rule_id: str | None = None
        try:
            self._evaluate(body_known, envelope)
        except MalformedTarget:  # if this ruleset were active, the response would be 400
            self.verdict = "block"
        except Exception:
            self._fail()

    @property
    def version(self) -> int:
        return self._rules.version

    def _evaluate(self, body_known: bool, envelope: bool) -> None:
        facts = self._facts
        self._plan = plan = self._rules.rules.plan(facts.method, facts.target)
        if plan.needs_body and not body_known:
            return
        decision = plan.decide(facts)
        if envelope and decision.verdict == "block" and decision.rule_id == DEFAULT_RULE_ID:
            self.verdict, self.rule_id = "allow", DEFAULT_RULE_ID
            return
        self._take(decision)
        self._request_decision = decision

    @property
    def wants_response(self) -> bool:
        """True if the response rules of the shadow ruleset can still change the shadow verdict."""
        plan, decision = self._plan, self._request_decision
        return (
            plan is not None
            and plan.has_response_rules
            and decision is not None
            and decision.verdict != "block"
        )

    def responded(
        self, status: int, headers: Sequence[tuple[bytes, bytes]], body: bytes | None, *, body_known: bool
    ) -> None:
        """Evaluate the shadow ruleset's response rules with the facts about the response.

        Call `responded` only if the property `wants_response` is true.
        """
        plan, decision = self._plan, self._request_decision
        assert plan is not None
        assert decision is not None
        try:
            if plan.response_needs_body and not body_known:
                self.verdict, self.rule_id = UNKNOWN, None
            else:
                facts = ResponseFacts(status, headers, body)
                self._take(plan.decide_response(self._facts, decision, facts))
        except MalformedTarget:  # the body cannot be read
            self.verdict, self.rule_id = UNKNOWN, None
        except Exception:
            self._fail()

    def _take(self, decision: Decision) -> None:
        self.verdict = decision.verdict
        self.rule_id = decision.rule_id

    def _fail(self) -> None:
        self.verdict, self.rule_id = UNKNOWN, None
        if not self._rules.failed:
            self._rules.failed = True
            logger.exception("could not evaluate a shadow ruleset; its verdicts are recorded as unknown")
