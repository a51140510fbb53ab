"""Pages at /apps: applications, their secrets, and the ruleset that evaluates each application.

A client secret is shown only once.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from controlplane.console.lists import LIST_MEMBERS, Column, list_members, list_view
from controlplane.console.outcomes import outcomes_in_time
from controlplane.console.pages import Page, PageRequest, Redirect, filled, form, page
from controlplane.console.rulesets import PROPOSED
from controlplane.console.traffic import Period, traffic, window
from controlplane.operations.actor import Actor
from controlplane.operations.apps import (
    AddApp,
    AppDetails,
    AppFacts,
    AppReference,
    BindApp,
    ListApps,
    PromoteShadow,
    RotateSecret,
    SetApp,
    SetShadow,
    add,
    bind,
    disable,
    enable,
    list_all,
    promote_shadow,
    rotate_secret,
    set_about,
    shadow,
    show,
)
from controlplane.operations.context import OperationContext
from controlplane.operations.credentials import list_all as list_credentials
from controlplane.operations.fleet import ListFleet
from controlplane.operations.fleet import list_all as list_fleet
from controlplane.operations.operation import InvalidRequest
from controlplane.operations.perform import perform
from controlplane.operations.rulesets import ListRulesets
from controlplane.operations.rulesets import list_all as list_rulesets
from controlplane.operations.time_axis import HOUR_MS
from controlplane.store.pages import Unused
from controlplane.usage import DAY_MS
from proxy.wire.audit_event import rfc3339

_GRACES: Final = (
    ("3600", "1 hour"),
    ("86400", "24 hours"),
    ("604800", "7 days"),
    ("2592000", "30 days"),
    ("0", "no time: its tokens end too"),
)
# The index keeps hourly counts of each application. For shorter intervals, every event would have to be
# counted.
_DAY: Final = Period("24h", "24 hours", HOUR_MS, 24)
_HOST: Final = re.compile(r"[a-z0-9-]+(?:\.[a-z0-9-]+)+", re.IGNORECASE)

_COLUMNS: Final = (
    Column("App", "name"),
    Column("Organisation", "org"),
    Column("Ruleset", "ruleset"),
    Column("Last seen", "lastSeen"),
    Column("Owner", "owner"),
    Column("Secret"),
    Column("Added", "createdAt"),
    Column("State"),
)
_FILTERS: Final = ("unused", "ruleset", "shadow")
_MOST_RULESETS: Final = 200  # options of a select element
OLD_SECRET_DAYS: Final = 180  # age in days from which a secret is marked
SOON_DAYS: Final = 30  # days before the end of a secret from which it is marked
_ENDS: Final = (
    ("", "never"),
    ("90d", "in 90 days"),
    ("180d", "in 180 days"),
    ("365d", "in 1 year"),
    ("730d", "in 2 years"),
)
_UNUSED: Final[Mapping[str, Unused]] = {"never": "never", "idle": "idle"}


class Source(Enum):
    """Source of the proxy address that a code sample contains."""

    HEARTBEAT = "a proxy reported it"
    NAME = "a proxy of the organisation has a host name for a name"
    NOWHERE = "a placeholder"


@dataclass(frozen=True, slots=True)
class Sample:
    """Proxy address for a code sample. If no proxy address is known, `address` is a placeholder."""

    address: str
    source: Source

    @property
    def host(self) -> str:
        return self.address.partition("://")[2]


@page("GET", "/apps", *_FILTERS, *LIST_MEMBERS)
async def apps(context: OperationContext, actor: Actor, request: PageRequest) -> Page:
    org = request.org.org_id if request.org else None
    given = {name: request.query.get(name) or None for name in _FILTERS}
    remarks = []
    if (wanted := given["unused"]) is not None and wanted not in _UNUSED:
        remarks.append(f"Unknown filter {wanted}: unused must be one of {', '.join(_UNUSED)}.")
    asked = ListApps(
        org=org,
        ruleset=given["ruleset"],
        shadow=given["shadow"],
        unused=_UNUSED.get(wanted or ""),
        **list_members(request),
    )
    found = await perform(list_all, context, actor, asked)
    rulesets = await perform(
        list_rulesets, context, actor, ListRulesets(org=org, sort="org", limit=_MOST_RULESETS)
    )
    columns = [each for each in _COLUMNS if org is None or each.sort != "org"]
    values: dict[str, object] = {
        "found": found.apps,
        "list": list_view(request, columns, found, len(found.apps), keep=_FILTERS),
        "unused": asked.unused,
        "of_ruleset": given["ruleset"] or given["shadow"],
        "has_rulesets": bool(rulesets.rulesets),
        "rulesets": [each for each in rulesets.rulesets if actor.may("admin", each.org_id)],
        "more_rulesets": bool(rulesets.next),
        "old_secret": _old_secret(request),
        "old_secret_days": OLD_SECRET_DAYS,
        "ends": _ENDS,
        "soon": _soon(request),
        "now": rfc3339(request.now_ms),
    }
    return Page("apps.html", "Apps", values, remarks=tuple(remarks))


def _old_secret(request: PageRequest) -> str:
    """Return the age limit of client secrets: a secret created before this time counts as old.

    Two RFC 3339 times in UTC can be compared as texts.
    """
    return rfc3339(request.now_ms - OLD_SECRET_DAYS * DAY_MS)


def _soon(request: PageRequest) -> str:
    """Return a time: the page marks each client secret that ends before this time."""
    return rfc3339(request.now_ms + SOON_DAYS * DAY_MS)


@form("/apps", again=apps)
async def add_app(context: OperationContext, actor: Actor, request: PageRequest) -> Page | Redirect:
    """Add an application, and respond with the page that shows the client secret.

    The page with the client secret is the direct response to the POST request, so that nobody can open the
    page again. If the browser reloads the page, it sends the form again. The repeated request fails, because
    an application with the name exists already.
    """
    org, _, ruleset = request.form.get("ruleset", "").partition(" ")
    if not ruleset:
        raise InvalidRequest("Choose a ruleset.")
    with_secret = request.form.get("secret") != "no"
    asked = filled(AddApp, request.form, org=org, ruleset=ruleset, secret=with_secret)
    made = await perform(add, context, actor, asked)
    if made.client_secret is None:
        said = f"{request.form.get('name', 'The app')} was added without a client secret."
        return Redirect(request.link(f"/apps/{made.app_id}"), f"{said} Add a credential for it.")
    app = await perform(show, context, actor, AppReference(app=made.app_id))
    return await _secret_page(context, actor, app, made.client_secret, "was added")


@page("GET", "/apps/{app}")
async def app(context: OperationContext, actor: Actor, request: PageRequest) -> Page:
    found = await perform(show, context, actor, AppReference(app=request.place["app"]))
    day = window(request, _DAY, found.org_id, f"app:{found.app_id}")
    rulesets, credentials, counted, known = await asyncio.gather(
        perform(list_rulesets, context, actor, ListRulesets(org=found.org_id)),
        perform(list_credentials, context, actor, AppReference(app=found.app_id)),
        traffic(context, actor, day),
        outcomes_in_time(context, actor, day),
    )
    values = {
        "app": found,
        "traffic": counted,
        "outcomes": known if counted.total else (),
        "rulesets": rulesets.rulesets,
        "newest": found.newest_secret,
        "graces": _GRACES,
        "ends_of_new": _ENDS,
        "credentials": credentials.credentials,
        "kinds": list(dict.fromkeys(each.kind for each in credentials.credentials if each.state != "ended")),
        "sample": await _sample(context, actor, found.org_id),
        "old_secret": _old_secret(request),
    }
    return Page("app.html", found.name, values, (("Apps", "/apps"),))


@form("/apps/{app}/secret", again=app)
async def rotate(context: OperationContext, actor: Actor, request: PageRequest) -> Page:
    """Replace a client secret of an application, and respond with the page that shows the new secret.

    The new secret is shown only once, so nobody can open this page again. The form contains the expected
    version of the secret, so a second submission of the same form fails.
    """
    seen = request.form.get("expected") or 0
    asked = filled(RotateSecret, request.form, app=request.place["app"], expected=seen)
    made = await perform(rotate_secret, context, actor, asked)
    after = await perform(show, context, actor, AppReference(app=request.place["app"]))
    return await _secret_page(context, actor, after, made.client_secret, "has a new secret")


@form("/apps/{app}/about", again=app)
async def describe(context: OperationContext, actor: Actor, request: PageRequest) -> Redirect:
    given = request.form.get
    asked = SetApp(app=request.place["app"], owner=given("owner", ""), note=given("note", ""))
    done = await perform(set_about, context, actor, asked)
    return Redirect(request.link(f"/apps/{done.app_id}"), f"Owner and note of {done.name} are saved.")


@form("/apps/{app}/ruleset", again=app)
async def bind_to(context: OperationContext, actor: Actor, request: PageRequest) -> Redirect:
    asked = filled(BindApp, request.form, app=request.place["app"])
    bound = await perform(bind, context, actor, asked)
    if bound.proposal is not None:
        return Redirect(request.link(f"/proposals/{bound.proposal}"), PROPOSED)
    return Redirect(request.link(f"/apps/{bound.app_id}"), _switched(bound))


@form("/apps/{app}/shadow", again=app)
async def try_beside(context: OperationContext, actor: Actor, request: PageRequest) -> Redirect:
    """Set the shadow ruleset of an application. If the form names no ruleset, remove the shadow ruleset."""
    asked = filled(SetShadow, request.form, app=request.place["app"])
    tried = await perform(shadow, context, actor, asked)
    said = (
        f"{tried.shadow_ruleset} shadows {tried.name} from the next sync of each proxy."
        if tried.shadow_ruleset
        else f"{tried.name} has no shadow ruleset from the next sync of each proxy."
    )
    return Redirect(request.link(f"/apps/{tried.app_id}"), said)


@form("/apps/{app}/promote-shadow", again=app)
async def switch_over(context: OperationContext, actor: Actor, request: PageRequest) -> Redirect:
    seen = request.form.get("expected", "")
    asked = PromoteShadow(app=request.place["app"], expected=seen)
    bound = await perform(promote_shadow, context, actor, asked)
    if bound.proposal is not None:
        return Redirect(request.link(f"/proposals/{bound.proposal}"), PROPOSED)
    return Redirect(request.link(f"/apps/{bound.app_id}"), _switched(bound))


@page("POST", "/apps/{app}/disable")
async def cut_off(context: OperationContext, actor: Actor, request: PageRequest) -> Redirect:
    done = await perform(disable, context, actor, AppReference(app=request.place["app"]))
    said = f"Proxies refuse {done.name} and its tokens from their next sync."
    return Redirect(request.link(f"/apps/{done.app_id}"), said)


@page("POST", "/apps/{app}/enable")
async def let_in(context: OperationContext, actor: Actor, request: PageRequest) -> Redirect:
    done = await perform(enable, context, actor, AppReference(app=request.place["app"]))
    return Redirect(request.link(f"/apps/{done.app_id}"), f"Proxies serve {done.name} again.")


def _switched(app: AppFacts) -> str:
    return f"{app.name} has the ruleset {app.ruleset} from the next sync of each proxy."


async def _sample(context: OperationContext, actor: Actor, org_id: str) -> Sample:
    """Return the proxy address for a code sample: an address that one of the proxies reports.

    If no proxy reports an address, make the address from a proxy name that is a valid host name.
    """
    found = await perform(list_fleet, context, actor, ListFleet(org=org_id, sort="health", limit=20))
    address = next((each.public_base_url for each in found.proxies if each.public_base_url), None)
    if address is not None:
        return Sample(address, Source.HEARTBEAT)
    host = next((each.name for each in found.proxies if _HOST.fullmatch(each.name)), None)
    return Sample(f"https://{host or 'your-proxy.example'}", Source.NAME if host else Source.NOWHERE)


async def _secret_page(
    context: OperationContext, actor: Actor, app: AppDetails, client_secret: str, done: str
) -> Page:
    sample = await _sample(context, actor, app.org_id)
    values = {"app": app, "client_secret": client_secret, "done": done, "sample": sample}
    return Page(
        "app_secret.html", "Client secret", values, (("Apps", "/apps"), (app.name, f"/apps/{app.app_id}"))
    )
