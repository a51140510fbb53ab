"""/operators: who may use the console and the admin API, with which role where, and their API tokens."""

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
    list_all,
    list_tokens,
    revoke,
    revoke_token,
    set_password,
    show,
)
from controlplane.operations.perform import perform

_ROLES: Final = (
    ("viewer", "viewer: reads"),
    ("editor", "editor: changes rules"),
    ("admin", "admin: hands out secrets and roles"),
)
_DAYS: Final = (("7", "7 days"), ("30", "30 days"), ("90", "90 days"), ("366", "a year"))


_COLUMNS: Final = (
    Column("Name", "name"),
    Column("Roles"),
    Column("Sign-in"),
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
    }
    return Page("operator.html", found.name, values, (("Operators", "/operators"),))


@form("/operators/{operator}/roles", again=operator)
async def give_role(context: OperationContext, actor: Actor, request: PageRequest) -> Redirect:
    asked = filled(GrantRole, request.form, operator=request.place["operator"])
    done = await perform(grant, context, actor, asked)
    return _back(request, done.operator_id, f"{done.name} is {asked.role} there from now on.")


@form("/operators/{operator}/roles/revoke", again=operator)
async def take_role(context: OperationContext, actor: Actor, request: PageRequest) -> Redirect:
    asked = filled(RevokeRole, request.form, operator=request.place["operator"])
    done = await perform(revoke, context, actor, asked)
    return _back(request, done.operator_id, f"{done.name} has no role there any more.")


@form("/operators/{operator}/password", again=operator, also=(Forbidden,))
async def new_password(context: OperationContext, actor: Actor, request: PageRequest) -> Redirect:
    asked = filled(SetPassword, request.form, operator=request.place["operator"])
    done = await perform(set_password, context, actor, asked)
    return _back(request, done.operator_id, f"{done.name} has a new password, and no session.")


@form("/operators/{operator}/tokens", again=operator)
async def new_token(context: OperationContext, actor: Actor, request: PageRequest) -> Page:
    """The page with the token is the response to the form itself, so that it can't be opened again: a reload
    sends the form once more, and its name is taken by then."""
    asked = filled(AddToken, request.form, operator=request.place["operator"])
    made = await perform(add_token, context, actor, asked)
    found = await perform(show, context, actor, OperatorReference(operator=asked.operator))
    crumbs = (("Operators", "/operators"), (found.name, f"/operators/{found.operator_id}"))
    return Page("operator_token.html", "API token", {"operator": found, "made": made}, crumbs)


@page("POST", "/operators/{operator}/tokens/revoke")
async def end_token(context: OperationContext, actor: Actor, request: PageRequest) -> Redirect:
    asked = filled(RevokeToken, request.form, operator=request.place["operator"])
    done = await perform(revoke_token, context, actor, asked)
    return _back(request, request.place["operator"], f"The token {done.name} has ended.")


@form("/operators/{operator}/disable", again=operator)
async def keep_out(context: OperationContext, actor: Actor, request: PageRequest) -> Redirect:
    reference = OperatorReference(operator=request.place["operator"])
    done = await perform(disable, context, actor, reference)
    return _back(request, done.operator_id, f"{done.name} is refused from now on, tokens too.")


@page("POST", "/operators/{operator}/enable")
async def let_in(context: OperationContext, actor: Actor, request: PageRequest) -> Redirect:
    done = await perform(enable, context, actor, OperatorReference(operator=request.place["operator"]))
    return _back(request, done.operator_id, f"{done.name} may sign in again.")


def _back(request: PageRequest, operator_id: str, said: str) -> Redirect:
    return Redirect(request.link(f"/operators/{operator_id}"), said)


def _manages(actor: Actor, operator: OperatorFacts) -> bool:
    """Which buttons to show; the operation asks again, and knows of roles that the actor may not see."""
    if actor.may("admin", None):
        return True
    held = [role.org_id for role in operator.roles]
    return bool(held) and EVERY_ORG not in held and all(actor.may("admin", org_id) for org_id in held)
