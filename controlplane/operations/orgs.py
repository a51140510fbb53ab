"""Organisations: their names and how long their audit events are kept."""

from __future__ import annotations

from typing import Annotated

from controlplane.names import InvalidName, new_id, valid_name
from controlplane.operations.actor import EVERY_ORG, Actor
from controlplane.operations.context import OperationContext
from controlplane.operations.lists import ListRequest, ListResponse, by_column, read_list
from controlplane.operations.operation import Request, Response, operation
from controlplane.store.interface import Org, Retention
from proxy.wire.audit_event import rfc3339


class OrgFacts(Response):
    org_id: str
    name: str
    retention: Retention
    created_at: str


class NewOrg(Response):
    """A new organisation, with these members and no other."""

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


class ListOrgs(ListRequest):
    sort: Annotated[str, by_column("orgs")] | None = None


@operation("org.add", "POST", "/orgs")
async def add(context: OperationContext, actor: Actor, request: AddOrg) -> NewOrg:
    """Add an organisation."""
    actor.require("admin", None)
    if request.name == EVERY_ORG:
        raise InvalidName(f"{EVERY_ORG} stands for every organisation")
    name = valid_name(request.name)
    org = Org(new_id(context.clock), name, request.retention, context.clock.wall_ms())
    await context.store.add_org(org)
    return NewOrg(org_id=org.org_id, name=name, retention=org.retention)


@operation("org.list", "GET", "/orgs")
async def list_all(context: OperationContext, actor: Actor, request: ListOrgs) -> OrgList:
    """Organisations, all of them or a page."""
    found = await read_list("orgs", request, actor.sees, context.store.list_orgs)
    return OrgList(orgs=tuple(map(_facts, found.rows)), **found.place)


@operation("org.show", "GET", "/orgs/{org}")
async def show(context: OperationContext, actor: Actor, request: OrgReference) -> OrgFacts:
    """One organisation."""
    return _facts(await context.resolve.org(actor, "viewer", request.org))


@operation("org.set-retention", "PUT", "/orgs/{org}/retention")
async def set_retention(context: OperationContext, actor: Actor, request: SetRetention) -> OrgFacts:
    """Keep the organisation's audit events for longer, or shorter; what is past a shorter tier is purged."""
    org = await context.resolve.org(actor, "admin", request.org)
    return _facts(await context.store.set_retention(org.org_id, request.retention))


def _facts(org: Org) -> OrgFacts:
    return OrgFacts(
        org_id=org.org_id, name=org.name, retention=org.retention, created_at=rfc3339(org.created_ms)
    )
