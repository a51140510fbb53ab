"""One audit event, with all facts that the control plane has about the event."""

from __future__ import annotations

from typing import Any

import msgspec
import orjson

from controlplane.operations.actor import Actor
from controlplane.operations.context import OperationContext
from controlplane.operations.operation import Request, Response, operation
from controlplane.operations.rule_text import rule_lines
from controlplane.store.interface import NotFound
from proxy.wire.audit_event import CREDENTIAL_PROBLEMS, REASONS


class EventReference(Request):
    org: str  # id or name
    id: str


class RulesetOfEvent(msgspec.Struct, rename="camel"):
    """Ruleset version that evaluated an event, from the history of the application's present ruleset."""

    ruleset_id: str
    name: str
    version: int
    version_in_force: int
    yaml: str
    rule_lines: tuple[int, int] | None  # first and last line of the event's rule, counted from 1


class EventDetails(Response):
    event: msgspec.Raw  # the event as its proxy sent it
    reason: str | None  # the reason in words
    credential_problem: str | None  # the problem in words
    org_name: str
    proxy_name: str | None
    app_name: str | None
    ruleset: RulesetOfEvent | None


@operation("audit.event", "GET", "/audit/events/{org}/{id}")
async def event(context: OperationContext, actor: Actor, request: EventReference) -> EventDetails:
    """Show one audit event, with all facts that the control plane has about the event."""
    org = await context.resolve.org_of_events(actor, request.org)
    found = await context.store.event(org.org_id, request.id)
    if found is None:
        raise NotFound(f"there is no event {request.id} in {org.name}; it may have been purged")
    values: dict[str, Any] = orjson.loads(found.body)
    proxy_id, app_id = _text(values, "proxyId"), _text(values, "appId")
    return EventDetails(
        event=msgspec.Raw(found.body),
        reason=REASONS.get(_text(values, "reason")),
        credential_problem=CREDENTIAL_PROBLEMS.get(_text(values, "credentialProblem")),
        org_name=org.name,
        proxy_name=(await context.resolve.proxy_names(actor, (proxy_id,))).get(proxy_id),
        app_name=(await context.resolve.app_names(actor, (app_id,))).get(app_id),
        ruleset=await _ruleset(context, org.org_id, values),
    )


def _text(values: dict[str, Any], key: str) -> str:
    value = values.get(key)
    return value if isinstance(value, str) else ""


async def _ruleset(context: OperationContext, org_id: str, values: dict[str, Any]) -> RulesetOfEvent | None:
    app = await context.resolve.app_of_events(org_id, _text(values, "appId"))
    if app is None:
        return None
    versions = await context.store.ruleset_versions(app.ruleset_id)
    judged_by = next((each for each in versions if each.version == values.get("rulesetVersion")), None)
    yaml = None if judged_by is None else await context.store.ruleset_text(app.ruleset_id, judged_by.version)
    if judged_by is None or yaml is None:
        return None
    return RulesetOfEvent(
        app.ruleset_id,
        app.ruleset_name,
        judged_by.version,
        max(each.version for each in versions),
        yaml,
        rule_lines(yaml, _text(values, "ruleId")),
    )
