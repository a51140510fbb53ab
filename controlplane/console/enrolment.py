"""Pages at /enrolment: tokens with which proxies enrol, and the proxies that enrolled with each token."""

from __future__ import annotations

from typing import Final

from controlplane.console.pages import Page, PageRequest, Redirect, filled, form, page
from controlplane.operations.actor import Actor
from controlplane.operations.context import OperationContext
from controlplane.operations.enrolment import (
    AddEnrolmentToken,
    EnrolmentTokenFacts,
    EnrolmentTokenReference,
    ListEnrolmentTokens,
    RevokeEnrolmentToken,
    add,
    list_all,
    revoke,
    show,
)
from controlplane.operations.perform import perform

_CRUMBS: Final = (("Proxies", "/proxies"), ("Enrolment", "/enrolment"))
_KINDS: Final = {"valid": "good", "used up": "plain", "expired": "plain", "revoked": "bad"}
_ENDS: Final = (("1h", "1 hour"), ("24h", "1 day"), ("7d", "7 days"), ("90d", "90 days"), ("366d", "1 year"))
_DAYS: Final = (("", "never"), ("1", "1 day"), ("7", "7 days"), ("30", "30 days"), ("90", "90 days"))


@page("GET", "/enrolment")
async def tokens(context: OperationContext, actor: Actor, request: PageRequest) -> Page:
    org = request.org.org_id if request.org else None
    found = await perform(list_all, context, actor, ListEnrolmentTokens(org))
    administered = [each for each in await context.resolve.orgs(actor) if actor.may("admin", each.org_id)]
    values = {
        "tokens": [(each, _KINDS[each.state]) for each in found.tokens],
        "manageable": administered,
        "ends": _ENDS,
        "days": _DAYS,
    }
    return Page("enrolment.html", "Enrolment", values, _CRUMBS[:1])


@form("/enrolment", again=tokens)
async def make(context: OperationContext, actor: Actor, request: PageRequest) -> Page:
    """Make an enrolment token, and respond with the page that shows the token.

    The response to the POST request itself is the page that shows the token, so nobody can load the page
    again.
    """
    given = {name: value for name, value in request.form.items() if name != "org"}
    asked = filled(AddEnrolmentToken, given, orgs=(request.form.get("org", ""),))
    made = await perform(add, context, actor, asked)
    return Page("enrolment_made.html", "Enrolment token", {"made": made}, _CRUMBS)


@page("GET", "/enrolment/{token}")
async def token(context: OperationContext, actor: Actor, request: PageRequest) -> Page:
    found = await perform(show, context, actor, EnrolmentTokenReference(request.place["token"]))
    manages = await _manages(context, actor, found)
    values = {"token": found, "kind": _KINDS[found.state], "manages": manages}
    return Page("enrolment_token.html", found.name, values, _CRUMBS)


@form("/enrolment/{token}/revoke", again=token)
async def end(context: OperationContext, actor: Actor, request: PageRequest) -> Redirect:
    with_proxies = request.form.get("withProxies") == "yes"
    asked = RevokeEnrolmentToken(request.place["token"], with_proxies)
    done = await perform(revoke, context, actor, asked)
    said = f"The token {done.name} is revoked."
    if with_proxies:
        said += " The proxies that enrolled with it are disabled."
    return Redirect(request.link(f"/enrolment/{done.token_id}"), said)


async def _manages(context: OperationContext, actor: Actor, token: EnrolmentTokenFacts) -> bool:
    """Return whether the page shows the buttons that change an enrolment token.

    The operation behind a button checks the operator's roles again.
    """
    orgs = {each.name: each.org_id for each in await context.resolve.orgs(actor)}
    return any(actor.may("admin", orgs.get(each)) for each in token.orgs)
