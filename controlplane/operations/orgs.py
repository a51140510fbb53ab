"""Organisations: their names, and the retention of their audit events."""

from __future__ import annotations

from typing import Annotated

from controlplane.names import InvalidName, new_id
from controlplane.operations.actor import EVERY_ORG, Actor
from controlplane.operations.context import OperationContext
from controlplane.operations.lists import ListRequest, ListResponse, by_column, read_list
from controlplane.operations.naming import add_named
from controlplane.operations.operation import Request, Response, operation
from controlplane.store.interface import Org, Retention
from proxy.wire.audit_event import rfc3339


class OrgFacts(Response):
    org_id: str
    name: str
    retention: Retention
    created_at: str
    oldest_event: str | None  # time of the oldest stored event
    second_person: bool  # True: another operator must approve a change of the active rules


class NewOrg(Response):
    """Response to the addition of an organisation.

    The response to the addition of an organisation has fewer JSON fields than other responses about an
    organisation.
    """

    org_id: str
    name: str
    retention: Retention


class OrgList(ListResponse):
    orgs: tuple[OrgFacts, ...]


class AddOrg(Request):
    name: str
    retention: Retention = "base"


class OrgReference(Request):
    org: str  # id or name


class SetRetention(OrgReference):
    retention: Retention


class SetSecondPerson(OrgReference):
    needed: bool


class ListOrgs(ListRequest):
    sort: Annotated[str, by_column("orgs")] | None = None


@operation("org.add", "POST", "/orgs")
async def add(context: OperationContext, actor: Actor, request: AddOrg) -> NewOrg:
    """Add an organisation, with the retention of its audit events."""
    actor.require("admin", None)
    if request.name == EVERY_ORG:
        raise InvalidName(f"{EVERY_ORG} is reserved: it stands for every organisation")
    org = Org(new_id(context.clock), request.name, request.retention, context.clock.wall_ms())
    await add_named(context.store, org.name, lambda store: store.orgs(), lambda store: store.add_org(org))
    return NewOrg(org_id=org.org_id, name=org.name, retention=org.retention)


@operation("org.list", "GET", "/orgs")
async def list_all(context: OperationContext, actor: Actor, request: ListOrgs) -> OrgList:
    """List all organisations, or one page of organisations."""
    found = await read_list("orgs", request, actor.sees, context.store.list_orgs)
    return OrgList(orgs=await _facts(context, *found.rows), **found.place)


@operation("org.show", "GET", "/orgs/{org}")
async def show(context: OperationContext, actor: Actor, request: OrgReference) -> OrgFacts:
    """Show one organisation and its retention."""
    return await _one(context, await context.resolve.org(actor, "viewer", request.org))


@operation("org.set-retention", "PUT", "/orgs/{org}/retention")
async def set_retention(context: OperationContext, actor: Actor, request: SetRetention) -> OrgFacts:
    """Change how long an organisation's audit events are kept.

    A shorter retention purges older events.
    """
    org = await context.resolve.org(actor, "admin", request.org)
    return await _one(context, await context.store.set_retention(org.org_id, request.retention))


@operation("org.set-second-person", "PUT", "/orgs/{org}/second-person")
async def set_second_person(context: OperationContext, actor: Actor, request: SetSecondPerson) -> OrgFacts:
    """Require that a second operator approves changes of the active rules, or end this requirement."""
    org = await context.resolve.org(actor, "admin", request.org)
    return await _one(context, await context.store.set_approvals(org.org_id, 1 if request.needed else 0))


async def _one(context: OperationContext, org: Org) -> OrgFacts:
    (facts,) = await _facts(context, org)
    return facts


async def _facts(context: OperationContext, *orgs: Org) -> tuple[OrgFacts, ...]:
    oldest = await context.store.oldest_events([org.org_id for org in orgs])
    return tuple(
        OrgFacts(
            org_id=org.org_id,
            name=org.name,
            retention=org.retention,
            created_at=rfc3339(org.created_ms),
            oldest_event=rfc3339(oldest[org.org_id]) if org.org_id in oldest else None,
            second_person=org.approvals > 0,
        )
        for org in orgs
    )
