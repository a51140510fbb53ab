"""/apps: app identities, their secrets, which are shown once, and the ruleset that evaluates each."""

from __future__ import annotations

from typing import Final

from controlplane.console.lists import LIST_MEMBERS, Column, list_members, list_view
from controlplane.console.pages import Page, PageRequest, Redirect, filled, form, page
from controlplane.console.traffic import PERIODS, traffic
from controlplane.operations.actor import Actor
from controlplane.operations.apps import (
    AddApp,
    AppDetails,
    AppReference,
    BindApp,
    ListApps,
    PromoteShadow,
    RotateSecret,
    SetShadow,
    add,
    bind,
    disable,
    enable,
    list_all,
    promote_shadow,
    rotate_secret,
    shadow,
    show,
)
from controlplane.operations.context import OperationContext
from controlplane.operations.perform import perform
from controlplane.operations.rulesets import ListRulesets
from controlplane.operations.rulesets import list_all as list_rulesets

_GRACES: Final = (
    ("3600", "1 hour"),
    ("86400", "24 hours"),
    ("604800", "7 days"),
    ("2592000", "30 days"),
    ("0", "not at all: its tokens end too"),
)

_COLUMNS: Final = (
    Column("Name", "name"),
    Column("Organisation", "org"),
    Column("Ruleset", "ruleset"),
    Column("Client id"),
    Column("Added", "createdAt"),
    Column("State"),
)


@page("GET", "/apps", *LIST_MEMBERS)
async def apps(context: OperationContext, actor: Actor, request: PageRequest) -> Page:
    org = request.org.org_id if request.org else None
    found = await perform(list_all, context, actor, ListApps(org=org, **list_members(request)))
    columns = [each for each in _COLUMNS if org is None or each.sort != "org"]
    values: dict[str, object] = {
        "found": found.apps,
        "list": list_view(request, columns, found, len(found.apps)),
        "rulesets": (),
    }
    if org is not None:  # an app is added to one organisation
        rulesets = await perform(list_rulesets, context, actor, ListRulesets(org=org))
        values["rulesets"] = rulesets.rulesets
    return Page("apps.html", "Apps", values)


@form("/apps", again=apps)
async def add_app(context: OperationContext, actor: Actor, request: PageRequest) -> Page:
    """The page with the secret is the response to the form itself, so that it can't be opened again: a reload
    sends the form once more, and its name is taken by then."""
    made = await perform(add, context, actor, filled(AddApp, request.form))
    app = await perform(show, context, actor, AppReference(app=made.app_id))
    return _secret_page(app, made.client_secret, "was added")


@page("GET", "/apps/{app}")
async def app(context: OperationContext, actor: Actor, request: PageRequest) -> Page:
    found = await perform(show, context, actor, AppReference(app=request.place["app"]))
    rulesets = await perform(list_rulesets, context, actor, ListRulesets(org=found.org_id))
    counted = await traffic(context, actor, request, PERIODS[1], found.org_id, f"app:{found.app_id}")
    values = {
        "app": found,
        "traffic": counted,
        "rulesets": rulesets.rulesets,
        "newest": found.secrets[0].version,
        "graces": _GRACES,
    }
    return Page("app.html", found.name, values, (("Apps", "/apps"),))


@form("/apps/{app}/secret", again=app)
async def rotate(context: OperationContext, actor: Actor, request: PageRequest) -> Page:
    """As above: the form says which secret it expects, which a second sending no longer finds."""
    seen = request.form.get("expected") or 0
    asked = filled(RotateSecret, request.form, app=request.place["app"], expected=seen)
    made = await perform(rotate_secret, context, actor, asked)
    after = await perform(show, context, actor, AppReference(app=request.place["app"]))
    return _secret_page(after, made.client_secret, "has a new secret")


@form("/apps/{app}/ruleset", again=app)
async def bind_to(context: OperationContext, actor: Actor, request: PageRequest) -> Redirect:
    asked = filled(BindApp, request.form, app=request.place["app"])
    bound = await perform(bind, context, actor, asked)
    said = f"From the proxies' next sync on, {bound.ruleset} evaluates {bound.name}."
    return Redirect(request.link(f"/apps/{bound.app_id}"), said)


@form("/apps/{app}/shadow", again=app)
async def try_beside(context: OperationContext, actor: Actor, request: PageRequest) -> Redirect:
    """Without a ruleset the trial ends."""
    asked = filled(SetShadow, request.form, app=request.place["app"])
    tried = await perform(shadow, context, actor, asked)
    said = f"is tried on {tried.name} from the proxies' next sync on."
    said = f"{tried.shadow_ruleset} {said}" if tried.shadow_ruleset else f"No ruleset {said}"
    return Redirect(request.link(f"/apps/{tried.app_id}"), said)


@form("/apps/{app}/promote-shadow", again=app)
async def switch_over(context: OperationContext, actor: Actor, request: PageRequest) -> Redirect:
    seen = request.form.get("expected", "")
    asked = PromoteShadow(app=request.place["app"], expected=seen)
    bound = await perform(promote_shadow, context, actor, asked)
    said = f"From the proxies' next sync on, {bound.ruleset} evaluates {bound.name}."
    return Redirect(request.link(f"/apps/{bound.app_id}"), said)


@page("POST", "/apps/{app}/disable")
async def cut_off(context: OperationContext, actor: Actor, request: PageRequest) -> Redirect:
    done = await perform(disable, context, actor, AppReference(app=request.place["app"]))
    said = f"{done.name} and its tokens are refused from the proxies' next sync on."
    return Redirect(request.link(f"/apps/{done.app_id}"), said)


@page("POST", "/apps/{app}/enable")
async def let_in(context: OperationContext, actor: Actor, request: PageRequest) -> Redirect:
    done = await perform(enable, context, actor, AppReference(app=request.place["app"]))
    return Redirect(request.link(f"/apps/{done.app_id}"), f"{done.name} is served again.")


def _secret_page(app: AppDetails, client_secret: str, done: str) -> Page:
    values = {"app": app, "client_secret": client_secret, "done": done}
    return Page(
        "app_secret.html", "Client secret", values, (("Apps", "/apps"), (app.name, f"/apps/{app.app_id}"))
    )
