"""Pages at /stops: emergency stops with operator and reason, the proxies that received them, and actions."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from controlplane.console.choices import choice_of_apps
from controlplane.console.pages import Page, PageRequest, Redirect, Refusal, filled, form, page, reasons
from controlplane.operations.actor import Actor
from controlplane.operations.context import OperationContext
from controlplane.operations.emergency import (
    MAX_REASON,
    AllToStop,
    AppToStop,
    Everything,
    OrgToStop,
    StopFacts,
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
from controlplane.operations.stop_effects import (
    StopPlace,
    StopReach,
    StopToCome,
    effect,
    reach,
    seconds_after,
)
from controlplane.operations.stop_words import consequences, name_of, remaining, what_stops

_MOST_PROXIES: Final = 50  # proxies listed for a stop; the rest are counted


@page("GET", "/stops", "app")
async def stops(context: OperationContext, actor: Actor, request: PageRequest) -> Page:
    found = (await perform(list_all, context, actor, Everything())).stops
    org = request.org.org_id if request.org else None
    chosen = request.form.get("app") or request.query.get("app")
    apps = await choice_of_apps(context, actor, org, chosen)
    values = {
        "found": found,
        "remaining": {_key(each): remaining(each, found) for each in found},
        "reached": {_key(each): await _reached(context, actor, each) for each in found},
        "most_proxies": _MOST_PROXIES,
        "seconds_after": seconds_after,
        "key_of": _key,
        "name_of": name_of,
        "apps": [each for each in apps.apps if actor.may("editor", each.org_id)],
        "has_more_apps": apps.has_more,
        "stoppable": [each for each in await context.resolve.orgs(actor) if actor.may("editor", each.org_id)],
        "chosen_app": chosen,
        "chosen_org": request.form.get("org"),
        "longest_reason": MAX_REASON,
    }
    return Page("stops.html", "Emergency stop", values)


def _key(stop: StopFacts) -> str:
    return f"{stop.org_id or ''}/{stop.app_id or ''}"


async def _reached(context: OperationContext, actor: Actor, stop: StopFacts) -> StopReach:
    return await perform(reach, context, actor, StopPlace(org=stop.org_id, app=stop.app_id))


@page("POST", "/stops")
async def stop(context: OperationContext, actor: Actor, request: PageRequest) -> Page | Redirect:
    """Set an emergency stop after the operator confirmed it.

    When the operator sends the form for the first time, the page only shows which requests the stop would
    refuse. To confirm the emergency stop, the operator sends the same form again with the field `sure`.
    """
    if request.form.get("sure") != "yes":
        return await _ask(context, actor, request)
    try:
        what = await _stop(context, actor, request)
    except Refusal as error:
        return await _again(context, actor, request, reasons(error))
    said = f"The stop of {what} is set. Proxies refuse its requests from their next sync."
    return Redirect(request.link("/stops"), said)


async def _again(
    context: OperationContext, actor: Actor, request: PageRequest, refused: tuple[str, ...]
) -> Page | Redirect:
    shown = await stops.handler(context, actor, request)
    return replace(shown, status=422, refused=refused) if isinstance(shown, Page) else shown


async def _ask(context: OperationContext, actor: Actor, request: PageRequest) -> Page | Redirect:
    to_come = _to_come(request)
    if to_come is None:
        return await _again(context, actor, request, ("Choose what to stop.",))
    await _require_role(context, actor, to_come)
    found = await perform(effect, context, actor, to_come)
    values = {
        "what": what_stops(found),
        "consequences": consequences(found),
        "longest_reason": MAX_REASON,
    }
    return Page("stop_sure.html", f"Stop {what_stops(found)}?", values, (("Emergency stop", "/stops"),))


async def _require_role(context: OperationContext, actor: Actor, to_come: StopToCome) -> None:
    """Raise Forbidden if the operator may not set the emergency stop, before the page requests a reason."""
    if to_come.app is not None:
        await context.resolve.app(actor, "editor", to_come.app, to_come.org)
    elif to_come.org is not None:
        await context.resolve.org(actor, "editor", to_come.org)
    else:
        actor.require("admin", None)


def _to_come(request: PageRequest) -> StopToCome | None:
    """Return the target that the form gives for the emergency stop, or None if it gives no target."""
    scope, app, org = (request.form.get(name) or None for name in ("scope", "app", "org"))
    if scope == "app" and app is not None:
        return StopToCome(org=org, app=app)
    if scope == "org" and org is not None:
        return StopToCome(org=org)
    return StopToCome() if scope == "all" else None


@form("/stops/lift", again=stops)
async def lift(context: OperationContext, actor: Actor, request: PageRequest) -> Redirect:
    scope = request.form.get("scope")
    if scope == "app":
        left = await perform(lift_app, context, actor, filled(StoppedApp, request.form))
    elif scope == "org":
        left = await perform(lift_org, context, actor, filled(StoppedOrg, request.form))
    elif scope == "all":
        left = await perform(lift_all, context, actor, Everything())
    else:
        raise InvalidRequest("Choose the stop to lift.")
    names = ", ".join(map(name_of, left.stops))
    said = f"The stop is lifted. Still stopped: {names}." if names else "The stop is lifted."
    return Redirect(request.link("/stops"), said)


async def _stop(context: OperationContext, actor: Actor, request: PageRequest) -> str:
    """Set the emergency stop, and return the name of the stopped application or organisation."""
    scope = request.form.get("scope")
    if scope == "app":
        stopped = await perform(stop_app, context, actor, filled(AppToStop, request.form))
    elif scope == "org":
        stopped = await perform(stop_org, context, actor, filled(OrgToStop, request.form))
    elif scope == "all":
        stopped = await perform(stop_all, context, actor, filled(AllToStop, request.form))
    else:
        raise InvalidRequest("Choose what to stop.")
    return name_of(stopped)
