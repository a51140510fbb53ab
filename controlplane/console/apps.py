"""/apps: app identities, their secrets, which are shown once, and the ruleset that judges each."""

from __future__ import annotations

from typing import Final

from controlplane.console.pages import (
    NO_FORM,
    Page,
    PageRequest,
    Redirect,
    Refusal,
    filled,
    page,
    problems,
)
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
from controlplane.operations.desk import Desk
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


@page("GET", "/apps")
async def apps(desk: Desk, actor: Actor, request: PageRequest) -> Page:
    return await _list(desk, actor, request)


@page("POST", "/apps")
async def add_app(desk: Desk, actor: Actor, request: PageRequest) -> Page:
    """The page with the secret is the answer to the form itself, so that it can't be opened again: a reload
    sends the form once more, and its name is taken by then."""
    try:
        made = await perform(add, desk, actor, filled(AddApp, request.form))
    except Refusal as error:
        return await _list(desk, actor, request, problems(error))
    app = await perform(show, desk, actor, AppReference(app=made.app_id))
    return _secret_page(app, made.client_secret, "was added")


@page("GET", "/apps/{app}")
async def app(desk: Desk, actor: Actor, request: PageRequest) -> Page:
    return await _details(desk, actor, request)


@page("POST", "/apps/{app}/secret")
async def rotate(desk: Desk, actor: Actor, request: PageRequest) -> Page:
    """As above: the form says which secret it expects, which a second sending no longer finds."""
    reference = AppReference(app=request.place["app"])
    try:
        seen = request.form.get("expected") or 0
        asked = filled(RotateSecret, request.form, app=request.place["app"], expected=seen)
        made = await perform(rotate_secret, desk, actor, asked)
    except Refusal as error:
        return await _details(desk, actor, request, problems(error))
    after = await perform(show, desk, actor, reference)
    return _secret_page(after, made.client_secret, "has a new secret")


@page("POST", "/apps/{app}/ruleset")
async def bind_to(desk: Desk, actor: Actor, request: PageRequest) -> Page | Redirect:
    try:
        asked = filled(BindApp, request.form, app=request.place["app"])
        bound = await perform(bind, desk, actor, asked)
    except Refusal as error:
        return await _details(desk, actor, request, problems(error))
    said = f"From the proxies' next sync on, {bound.ruleset} judges {bound.name}."
    return Redirect(request.link(f"/apps/{bound.app_id}"), said)


@page("POST", "/apps/{app}/shadow")
async def try_beside(desk: Desk, actor: Actor, request: PageRequest) -> Page | Redirect:
    """Without a ruleset the trial ends."""
    try:
        asked = filled(SetShadow, request.form, app=request.place["app"])
        tried = await perform(shadow, desk, actor, asked)
    except Refusal as error:
        return await _details(desk, actor, request, problems(error))
    said = f"is tried on {tried.name} from the proxies' next sync on."
    said = f"{tried.shadow_ruleset} {said}" if tried.shadow_ruleset else f"No ruleset {said}"
    return Redirect(request.link(f"/apps/{tried.app_id}"), said)


@page("POST", "/apps/{app}/promote-shadow")
async def switch_over(desk: Desk, actor: Actor, request: PageRequest) -> Page | Redirect:
    try:
        seen = request.form.get("expected", "")
        asked = PromoteShadow(app=request.place["app"], expected=seen)
        bound = await perform(promote_shadow, desk, actor, asked)
    except Refusal as error:
        return await _details(desk, actor, request, problems(error))
    said = f"From the proxies' next sync on, {bound.ruleset} judges {bound.name}."
    return Redirect(request.link(f"/apps/{bound.app_id}"), said)


@page("POST", "/apps/{app}/disable")
async def cut_off(desk: Desk, actor: Actor, request: PageRequest) -> Redirect:
    done = await perform(disable, desk, actor, AppReference(app=request.place["app"]))
    said = f"{done.name} and its tokens are refused from the proxies' next sync on."
    return Redirect(request.link(f"/apps/{done.app_id}"), said)


@page("POST", "/apps/{app}/enable")
async def let_in(desk: Desk, actor: Actor, request: PageRequest) -> Redirect:
    done = await perform(enable, desk, actor, AppReference(app=request.place["app"]))
    return Redirect(request.link(f"/apps/{done.app_id}"), f"{done.name} is served again.")


async def _list(desk: Desk, actor: Actor, request: PageRequest, refused: tuple[str, ...] = ()) -> Page:
    org = request.org.name if request.org else None
    found = await perform(list_all, desk, actor, ListApps(org=org))
    rulesets = await perform(list_rulesets, desk, actor, ListRulesets(org=org))
    values = {
        "found": found.apps,
        "rulesets": rulesets.rulesets,
        "refused": refused,
        "form": request.form if refused else NO_FORM,
    }
    return Page("apps.html", "Apps", values, status=422 if refused else 200)


async def _details(desk: Desk, actor: Actor, request: PageRequest, refused: tuple[str, ...] = ()) -> Page:
    found = await perform(show, desk, actor, AppReference(app=request.place["app"]))
    rulesets = await perform(list_rulesets, desk, actor, ListRulesets(org=found.org_id))
    counted = await traffic(desk, actor, request, PERIODS[1], found.org_id, f"app:{found.app_id}")
    values = {
        "app": found,
        "traffic": counted,
        "rulesets": rulesets.rulesets,
        "newest": found.secrets[0].version,
        "graces": _GRACES,
        "refused": refused,
    }
    return Page("app.html", found.name, values, (("Apps", "/apps"),), status=422 if refused else 200)


def _secret_page(app: AppDetails, client_secret: str, done: str) -> Page:
    values = {"app": app, "client_secret": client_secret, "done": done}
    return Page(
        "app_secret.html", "Client secret", values, (("Apps", "/apps"), (app.name, f"/apps/{app.app_id}"))
    )
