"""Explain the verdict on the request of a stored event, or the verdict that a draft ruleset would give."""

from __future__ import annotations

import msgspec

from controlplane.operations.actor import Actor
from controlplane.operations.context import OperationContext
from controlplane.operations.explanations import Explained, explained
from controlplane.operations.given_rules import GivenRules, Source, given_rules, with_schemas
from controlplane.operations.operation import InvalidRequest, Request, operation
from controlplane.operations.recorded import FormerRules, decoded
from controlplane.operations.replays import OutcomeFacts, outcome_facts
from controlplane.operations.worker_process import run_trial
from controlplane.store.interface import NotFound, Org
from controlplane.workshop.explain import Explainer, Explanation
from controlplane.workshop.replay import Event, Outcome, outcome_of, sample_of
from proxy.policy.redaction import is_cut
from proxy.wire.audit_event import REASONS


class ExplainEvent(Request):
    org: str
    id: str
    # the draft or version to explain with; default: the version that the event names
    source: Source | None = None


class ExplainedEvent(Explained, kw_only=True):
    """Explanation of the verdict on a stored audit event.

    The explanation of an event treats headers and bodies as unknown, because audit events do not contain
    them.
    """

    method: str
    target: str
    judged_by: str  # label of a draft, or NAME@VERSION of the application's current ruleset
    recorded: OutcomeFacts
    recorded_reason: str  # the reason in words
    reached_rules: bool  # False: the request was refused before any rule was evaluated
    fits: bool  # True if the recorded outcome is, or may be, the outcome of these rules


@operation("audit.explain", "POST", "/audit/events/{org}/{id}/explanation", changes=False)
async def explain_event(context: OperationContext, actor: Actor, request: ExplainEvent) -> ExplainedEvent:
    """Explain the verdict on the request of a stored event, or the verdict of a draft ruleset."""
    org = await context.resolve.org_of_events(actor, request.org)
    event = await _event(context, org, request.id)
    former = FormerRules(context, actor, org)
    given = await _rules(context, actor, org, former, event, request.source)
    recorded = await former.outcome_of(event)
    report, fits = await run_trial(actor, _explained, given, event, recorded)
    return ExplainedEvent(
        **msgspec.structs.asdict(report),
        method=event.method,
        target=event.target,
        judged_by=given.label,
        recorded=outcome_facts(recorded),
        recorded_reason=REASONS.get(event.reason or "", ""),
        reached_rules=event.reached_rules,
        fits=fits,
    )


def _explained(given: GivenRules, event: Event, recorded: Outcome) -> tuple[Explained, bool]:
    """Return the explanation of an event, and True if the explanation agrees with the recorded outcome."""
    sample, response = sample_of(event)
    report = Explainer(*with_schemas(given)).explain(sample, response)
    return explained(report), _fits(recorded, report)


async def _event(context: OperationContext, org: Org, event_id: str) -> Event:
    found = await context.store.event(org.org_id, event_id)
    if found is None:
        raise NotFound(f"there is no event {event_id} in {org.name}; it may have been purged")
    event = decoded(found.body)
    if event is None:
        raise InvalidRequest(f"event {event_id} did not come from a proxy and can't be evaluated")
    if is_cut(event.target):
        raise InvalidRequest(f"event {event_id} can't be evaluated: its target was too long to store in full")
    return event


async def _rules(
    context: OperationContext,
    actor: Actor,
    org: Org,
    former: FormerRules,
    event: Event,
    source: Source | None,
) -> GivenRules:
    if source is not None:
        return await given_rules(context, actor, source, org.org_id)
    version = await former.version_of(event)
    text = None if version is None else await former.text(*version)
    if version is None or text is None:
        raise NotFound(
            f"the rules that evaluated event {event.id} are no longer stored: name a ruleset to"
            " evaluate the event"
        )
    names = await context.resolve.names(actor, version[:1])
    schemas = await context.store.version_schemas(*version)
    return GivenRules(f"{names.get(version[0], version[0])}@{version[1]}", text, schemas)


def _fits(recorded: Outcome, report: Explanation) -> bool:
    only = report.decision if report.refused is None else report.refused
    evaluations = report.possible if only is None else (only,)
    effects = [outcome_of(each).effect for each in evaluations]
    if recorded.transforms is None:
        return recorded.verdict in [verdict for verdict, _ in effects]
    return recorded.effect in effects
