"""/stops: what is stopped in an emergency, by whom and why; stop more, or lift it."""

from __future__ import annotations

from controlplane.console.choices import choice_of_apps
from controlplane.console.pages import Page, PageRequest, Redirect, filled, form, page
from controlplane.operations.actor import Actor
from controlplane.operations.context import OperationContext
from controlplane.operations.emergency import (
    MAX_REASON,
    AllToStop,
    AppToStop,
    Everything,
    OrgToStop,
    StoppedApp,
    StoppedOrg,
    lift_all,
    lift_app,
    lift_org,
    list_all,
    stop_all,
    stop_app,
    stop_org,
)
from controlplane.operations.operation import InvalidRequest
from controlplane.operations.perform import perform


@page("GET", "/stops", "app")
async def stops(context: OperationContext, actor: Actor, request: PageRequest) -> Page:
    found = await perform(list_all, context, actor, Everything())
    org = request.org.org_id if request.org else None
    chosen = request.form.get("app") or request.query.get("app")
    apps = await choice_of_apps(context, actor, org, chosen)
    values = {
        "found": found.stops,
        "apps": [each for each in apps.apps if actor.may("editor", each.org_id)],
        "has_more_apps": apps.has_more,
        "stoppable": [each for each in await context.resolve.orgs(actor) if actor.may("editor", each.org_id)],
        "chosen_app": chosen,
        "chosen_org": request.form.get("org") or org,
        "longest_reason": MAX_REASON,
    }
    return Page("stops.html", "Emergency stop", values)


@form("/stops", again=stops)
async def stop(context: OperationContext, actor: Actor, request: PageRequest) -> Redirect:
    what = await _stop(context, actor, request)
    return Redirect(request.link("/stops"), f"Proxies refuse {what} from their next sync on.")


@form("/stops/lift", again=stops)
async def lift(context: OperationContext, actor: Actor, request: PageRequest) -> Redirect:
    scope = request.form.get("scope")
    if scope == "app":
        await perform(lift_app, context, actor, filled(StoppedApp, request.form))
    elif scope == "org":
        await perform(lift_org, context, actor, filled(StoppedOrg, request.form))
    elif scope == "all":
        await perform(lift_all, context, actor, Everything())
    else:
        raise InvalidRequest("Say which stop to lift.")
    return Redirect(request.link("/stops"), "The stop is lifted.")


async def _stop(context: OperationContext, actor: Actor, request: PageRequest) -> str:
    """What was stopped, in words."""
    scope = request.form.get("scope")
    if scope == "app":
        return f"the app {(await perform(stop_app, context, actor, filled(AppToStop, request.form))).app}"
    if scope == "org":
        stopped = await perform(stop_org, context, actor, filled(OrgToStop, request.form))
        return f"every app of {stopped.org}"
    if request.form.get("sure") != "yes":
        raise InvalidRequest("To stop everything, say that you mean it.")
    await perform(stop_all, context, actor, filled(AllToStop, request.form))
    return "every app of every organisation"
