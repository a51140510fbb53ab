"""Pages at /operators: operators of the console and the admin API, their roles and their API tokens."""

from __future__ import annotations

from typing import Final

from controlplane.console.lists import LIST_MEMBERS, Column, list_members, list_view
from controlplane.console.pages import Page, PageRequest, Redirect, filled, form, page
from controlplane.operations.actor import EVERY_ORG, Actor, Forbidden
from controlplane.operations.context import OperationContext
from controlplane.operations.operators import (
    AddOperator,
    AddToken,
    GrantRole,
    LinkOperator,
    ListOperators,
    OperatorFacts,
    OperatorReference,
    RevokeRole,
    RevokeToken,
    SetPassword,
    add,
    add_token,
    disable,
    enable,
    grant,
    link,
    list_all,
    list_tokens,
    revoke,
    revoke_token,
    set_password,
    show,
    unlink,
)
from controlplane.operations.perform import perform

_ROLES: Final = (
    ("viewer", "viewer: reads"),
    ("editor", "editor: changes rules"),
    ("admin", "admin: manages secrets and roles"),
)
_DAYS: Final = (("7", "7 days"), ("30", "30 days"), ("90", "90 days"), ("366", "a year"))


_COLUMNS: Final = (
    Column("Name", "name"),
    Column("Roles"),
    Column("Sign-in"),
    Column("Last sign-in", "signedInAt"),
    Column("Added", "createdAt"),
    Column("State"),
)


@page("GET", "/operators", *LIST_MEMBERS)
async def operators(context: OperationContext, actor: Actor, request: PageRequest) -> Page:
    org_id = request.org.org_id if request.org else None
    found = await perform(list_all, context, actor, ListOperators(org=org_id, **list_members(request)))
    values = {
        "found": found.operators,
        "list": list_view(request, _COLUMNS, found, len(found.operators)),
        "roles": _ROLES,
    }
    return Page("operators.html", "Operators", values)


@form("/operators", again=operators)
async def add_operator(context: OperationContext, actor: Actor, request: PageRequest) -> Redirect:
    added = await perform(add, context, actor, filled(AddOperator, request.form))
    return Redirect(request.link(f"/operators/{added.operator_id}"), f"Operator {added.name} was added.")


@page("GET", "/operators/{operator}")
async def operator(context: OperationContext, actor: Actor, request: PageRequest) -> Page:
    reference = OperatorReference(operator=request.place["operator"])
    found = await perform(show, context, actor, reference)
    is_self = actor.is_named(found.name)
    manages = _manages(actor, found)
    tokens = await perform(list_tokens, context, actor, reference) if is_self or manages else None
    values = {
        "operator": found,
        "tokens": tokens.tokens if tokens else None,
        "is_self": is_self,
        "manages": manages,
        "roles": _ROLES,
        "days": _DAYS,
        "offers_sign_on": bool(context.settings.console.oidc_issuer),
    }
    return Page("operator.html", found.name, values, (("Operators", "/operators"),))


@form("/operators/{operator}/roles", again=operator)
async def give_role(context: OperationContext, actor: Actor, request: PageRequest) -> Redirect:
    asked = filled(GrantRole, request.form, operator=request.place["operator"])
    done = await perform(grant, context, actor, asked)
    return _back(request, done.operator_id, f"{done.name} now has the role {asked.role}.")


@form("/operators/{operator}/roles/revoke", again=operator)
async def take_role(context: OperationContext, actor: Actor, request: PageRequest) -> Redirect:
    asked = filled(RevokeRole, request.form, operator=request.place["operator"])
    done = await perform(revoke, context, actor, asked)
    return _back(request, done.operator_id, f"{done.name} no longer has this role.")


@form("/operators/{operator}/password", again=operator, also=(Forbidden,))
async def new_password(context: OperationContext, actor: Actor, request: PageRequest) -> Redirect:
    asked = filled(SetPassword, request.form, operator=request.place["operator"])
    done = await perform(set_password, context, actor, asked)
    return _back(request, done.operator_id, f"{done.name} has a new password. All sessions have ended.")


@form("/operators/{operator}/link", again=operator)
async def link_person(context: OperationContext, actor: Actor, request: PageRequest) -> Redirect:
    asked = filled(LinkOperator, request.form, operator=request.place["operator"])
    done = await perform(link, context, actor, asked)
    return _back(request, done.operator_id, f"{done.name} is linked to this person. All sessions have ended.")


@page("POST", "/operators/{operator}/unlink")
async def unlink_person(context: OperationContext, actor: Actor, request: PageRequest) -> Redirect:
    done = await perform(unlink, context, actor, OperatorReference(operator=request.place["operator"]))
    said = f"{done.name} is no longer linked to a person. All sessions have ended."
    return _back(request, done.operator_id, said)


@form("/operators/{operator}/tokens", again=operator)
async def new_token(context: OperationContext, actor: Actor, request: PageRequest) -> Page:
    """Make an API token, and respond with the page that shows the token.

    The page with the API token is the response to the POST request itself, so that nobody can open the page
    again. A reload of the page sends the form again and fails, because the name of the token is in use.
    """
    asked = filled(AddToken, request.form, operator=request.place["operator"])
    made = await perform(add_token, context, actor, asked)
    found = await perform(show, context, actor, OperatorReference(operator=asked.operator))
    crumbs = (("Operators", "/operators"), (found.name, f"/operators/{found.operator_id}"))
    address = context.settings.console.public_base_url or "https://console.example"
    values = {"operator": found, "made": made, "address": address}
    return Page("operator_token.html", "API token", values, crumbs)


@page("POST", "/operators/{operator}/tokens/revoke")
async def end_token(context: OperationContext, actor: Actor, request: PageRequest) -> Redirect:
    asked = filled(RevokeToken, request.form, operator=request.place["operator"])
    done = await perform(revoke_token, context, actor, asked)
    return _back(request, request.place["operator"], f"The token {done.name} is revoked.")


@form("/operators/{operator}/disable", again=operator)
async def keep_out(context: OperationContext, actor: Actor, request: PageRequest) -> Redirect:
    reference = OperatorReference(operator=request.place["operator"])
    done = await perform(disable, context, actor, reference)
    return _back(
        request,
        done.operator_id,
        f"{done.name} is disabled and can no longer sign in. Its tokens are refused.",
    )


@page("POST", "/operators/{operator}/enable")
async def let_in(context: OperationContext, actor: Actor, request: PageRequest) -> Redirect:
    done = await perform(enable, context, actor, OperatorReference(operator=request.place["operator"]))
    return _back(request, done.operator_id, f"{done.name} can sign in again.")


def _back(request: PageRequest, operator_id: str, said: str) -> Redirect:
    return Redirect(request.link(f"/operators/{operator_id}"), said)


def _manages(actor: Actor, operator: OperatorFacts) -> bool:
    """Return whether the page shows the buttons that change an operator.

    The operation behind a button checks the roles again, including roles that the signed-in operator may not
    see.
    """
    if actor.may("admin", None):
        return True
    held = [role.org_id for role in operator.roles]
    return bool(held) and EVERY_ORG not in held and all(actor.may("admin", org_id) for org_id in held)
