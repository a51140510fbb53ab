"""Emergency stops: each stops one application, one organisation, or all organisations.

A stop lasts until an operator lifts the stop.

Lifting an emergency stop needs a higher role than setting the stop. An editor may stop an application that
causes damage. Only an admin may lift the emergency stop of an application, because an admin decides that the
application is safe again.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from controlplane.operations.actor import Actor
from controlplane.operations.context import OperationContext
from controlplane.operations.operation import Request, Response, operation
from controlplane.store.interface import NotFound, Stop
from proxy.wire.audit_event import rfc3339

MAX_REASON: Final = 500  # characters of a reason
Reason = Annotated[str, msgspec.Meta(max_length=MAX_REASON)]


class StopFacts(Response):
    scope: Literal["app", "org", "all"]
    org: str | None  # name of the organisation
    org_id: str | None
    app: str | None
    app_id: str | None
    reason: str
    stopped_by: str
    stopped_at: str


class StopList(Response):
    stops: tuple[StopFacts, ...]  # stops, oldest first


class AppToStop(Request):
    app: str  # id, client id or name
    org: str | None = None
    reason: Reason = ""


class OrgToStop(Request):
    org: str
    reason: Reason = ""


class AllToStop(Request):
    reason: Reason = ""


class StoppedApp(Request):
    app: str
    org: str | None = None


class StoppedOrg(Request):
    org: str


class Everything(Request):
    pass


@operation("kill.list", "GET", "/stops")
async def list_all(context: OperationContext, actor: Actor, request: Everything) -> StopList:
    """List all emergency stops that are set now."""
    stops = await context.store.stops()
    if not stops:  # common case; every page of the console runs this operation
        return StopList(stops=())
    orgs = await context.resolve.org_names(actor, {each.org_id for each in stops if each.org_id})
    apps = await context.resolve.app_names(actor, {each.app_id for each in stops if each.app_id})
    seen = [each for each in stops if each.org_id is None or each.org_id in orgs]
    return StopList(
        stops=tuple(_facts(each, orgs.get(each.org_id or ""), apps.get(each.app_id or "")) for each in seen)
    )


@operation("kill.app", "POST", "/stops/apps/{app}")
async def stop_app(context: OperationContext, actor: Actor, request: AppToStop) -> StopFacts:
    """Stop an app: from its next sync on, each proxy refuses the app's new and running requests."""
    app = await context.resolve.app(actor, "editor", request.app, request.org)
    stop = await _stop(context, actor, app.org_id, app.app_id, request.reason)
    org = await context.resolve.org(actor, "viewer", app.org_id)
    context.results.append(f"stopped app {app.name}")
    return _facts(stop, org.name, app.name)


@operation("kill.org", "POST", "/stops/orgs/{org}")
async def stop_org(context: OperationContext, actor: Actor, request: OrgToStop) -> StopFacts:
    """Refuse the requests of all apps of an organisation, including apps that are added later."""
    org = await context.resolve.org(actor, "editor", request.org)
    stop = await _stop(context, actor, org.org_id, None, request.reason)
    context.results.append(f"stopped organisation {org.name}")
    return _facts(stop, org.name, None)


@operation("kill.all", "POST", "/stops/all")
async def stop_all(context: OperationContext, actor: Actor, request: AllToStop) -> StopFacts:
    """Refuse the requests of all apps of all organisations, including apps that are added later."""
    actor.require("admin", None)
    return _facts(await _stop(context, actor, None, None, request.reason), None, None)


@operation("unkill.app", "DELETE", "/stops/apps/{app}")
async def lift_app(context: OperationContext, actor: Actor, request: StoppedApp) -> StopList:
    """Lift the emergency stop of an app, and return the stops that remain."""
    app = await context.resolve.app(actor, "admin", request.app, request.org)
    if not await context.store.lift_stop(app.org_id, app.app_id):
        raise NotFound(
            f"no emergency stop is set for app {app.name}; stops of its organisation or of"
            " everything are lifted"
            " separately"
        )
    context.results.append(f"lifted the stop of app {app.name}")
    return await list_all.perform(context, actor, Everything())


@operation("unkill.org", "DELETE", "/stops/orgs/{org}")
async def lift_org(context: OperationContext, actor: Actor, request: StoppedOrg) -> StopList:
    """Lift the emergency stop of an organisation, and return the stops that remain."""
    org = await context.resolve.org(actor, "admin", request.org)
    if not await context.store.lift_stop(org.org_id, None):
        raise NotFound(f"organisation {org.name} is not stopped")
    context.results.append(f"lifted the stop of organisation {org.name}")
    return await list_all.perform(context, actor, Everything())


@operation("unkill.all", "DELETE", "/stops/all")
async def lift_all(context: OperationContext, actor: Actor, request: Everything) -> StopList:
    """Lift the emergency stop of all organisations, and return the stops that remain."""
    actor.require("admin", None)
    if not await context.store.lift_stop(None, None):
        raise NotFound("there is no emergency stop for all organisations")
    return await list_all.perform(context, actor, Everything())


async def _stop(
    context: OperationContext, actor: Actor, org_id: str | None, app_id: str | None, reason: str
) -> Stop:
    """Set an emergency stop.

    If the same target is stopped already, return the existing stop with its first reason and time.
    """
    return await context.store.add_stop(Stop(org_id, app_id, reason, actor.name, context.clock.wall_ms()))


def _facts(stop: Stop, org: str | None, app: str | None) -> StopFacts:
    return StopFacts(
        scope="all" if stop.org_id is None else "org" if stop.app_id is None else "app",
        org=org,
        org_id=stop.org_id,
        app=app,
        app_id=stop.app_id,
        reason=stop.reason,
        stopped_by=stop.stopped_by,
        stopped_at=rfc3339(stop.stopped_ms),
    )
