"""Operators: their sign-in, their roles in organisations, and API tokens for their programs.

Operators can't give other operators more permissions than they have themselves. An admin of an organisation
adds and removes roles in that organisation. Anybody with an operator's password or token can act as that
operator. Only the operator, or an admin of every organisation of the operator, can set the operator's
password or tokens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Annotated, Final

import msgspec

from controlplane.names import new_id, valid_name
from controlplane.operations.actor import EVERY_ORG, Actor, Forbidden, Role
from controlplane.operations.context import OperationContext
from controlplane.operations.lists import ListRequest, ListResponse, by_column, read_list
from controlplane.operations.naming import add_named
from controlplane.operations.operation import InvalidRequest, Request, Response, Secret, operation
from controlplane.secrets import digest, hash_password, is_password, mint
from controlplane.store.database import is_text
from controlplane.store.interface import (
    Conflict,
    LinkedPerson,
    LogQuery,
    NotFound,
    Operator,
    OperatorToken,
    Store,
)
from controlplane.store.pages import ListPage, ListQuery
from proxy.wire.audit_event import rfc3339

SHORTEST_PASSWORD: Final = 12
LONGEST_PASSWORD: Final = 1024
_DAY_MS: Final = 86_400_000
_MOST_GUESSES: Final = 5  # wrong guesses of an operator's current password within `_GUESSES_MS`
_GUESSES_MS: Final = 15 * 60_000


class RoleFacts(msgspec.Struct, rename="camel"):
    org_id: str  # id of the organisation; "*" is every organisation
    org: str  # name of the organisation, or "*"
    role: Role
    mapping: str | None = None  # table of Console.OidcRoles that gives the role; null: an admin added it


class IdentityFacts(msgspec.Struct, rename="camel"):
    """Identity of an operator, as the identity provider stated it at the last sign-in."""

    issuer: str
    subject: str  # permanent identifier of the person at the issuer
    display_name: str
    roles_until: str  # latest time for the next sign-in, after which the API tokens stop working too
    roles_ended: bool = False  # true after that time


class LinkFacts(msgspec.Struct, rename="camel"):
    """The person at the identity provider who may sign in as a local operator."""

    issuer: str
    subject: str
    linked_at: str


class OperatorFacts(Response):
    operator_id: str
    name: str
    enabled: bool
    password: bool  # true: a password is set; without one, only single sign-on and tokens work
    roles: tuple[RoleFacts, ...]
    created_at: str
    signed_in_at: str | None = None
    identity: IdentityFacts | None = None  # null: a local operator
    link: LinkFacts | None = None  # null: no person is linked; operators from a provider have no link


class OperatorList(ListResponse):
    operators: tuple[OperatorFacts, ...]


class TokenFacts(Response):
    token_id: str
    name: str
    created_at: str
    expires_at: str
    good_until: str | None = None  # end of the token, or earlier end of roles from the identity provider
    awaits_sign_in: bool = False  # refused until the operator signs in again, because the roles have ended


class NewToken(Response):
    token_id: str
    name: str
    expires_at: str
    token: str  # the token, shown only this once
    good_until: str | None = None  # end of the token, or earlier end of roles from the identity provider
    awaits_sign_in: bool = False  # refused until the operator signs in again, because the roles have ended


class TokenList(Response):
    tokens: tuple[TokenFacts, ...]


class ListOperators(ListRequest):
    org: str | None = None  # only operators with a role there, or in every organisation
    sort: Annotated[str, by_column("operators")] | None = None


class OperatorReference(Request):
    operator: str  # id or name


class AddOperator(Request):
    name: str
    password: Secret | None = None
    role: Role | None = None
    org: str | None = None  # organisation of the role; "*" is every organisation


class SetPassword(OperatorReference):
    password: Secret
    current_password: Secret | None = None  # needed to change your own password


class LinkOperator(OperatorReference):
    subject: str  # permanent identifier of the person at the identity provider


class GrantRole(OperatorReference):
    org: str
    role: Role


class RevokeRole(OperatorReference):
    org: str


class AddToken(OperatorReference):
    name: str
    expires_in_days: Annotated[int, msgspec.Meta(ge=1, le=366)] = 90


class RevokeToken(OperatorReference):
    token: str  # id or name


@operation("operator.add", "POST", "/operators")
async def add(context: OperationContext, actor: Actor, request: AddOperator) -> OperatorFacts:
    """Add an operator, optionally with a first role.

    An operator without a password can sign in only by single sign-on, or use an API token.
    """
    if (request.role is None) is not (request.org is None):
        raise InvalidRequest("role and org: give both of them, or neither")
    org_id = None if request.org is None else await _org_id(context, actor, request.org)
    actor.require("admin", None if org_id == EVERY_ORG else org_id)
    name = _operator_name(request.name)
    operator = Operator(
        new_id(context.clock),
        name,
        None if request.password is None else await _hashed(request.password),
        True,
        context.clock.wall_ms(),
        {} if org_id is None or request.role is None else {org_id: request.role},
    )

    async def others(store: Store) -> list[Operator]:
        """Return all operators except those that already have the new name, ignoring letter case.

        The store refuses a name that differs from an existing name only in letter case.
        """
        return [each for each in await store.operators() if each.name.casefold() != name.casefold()]

    await add_named(context.store, name, others, lambda store: store.add_operator(operator))
    return await _facts(context, actor, operator)


@operation("operator.list", "GET", "/operators")
async def list_all(context: OperationContext, actor: Actor, request: ListOperators) -> OperatorList:
    """List yourself and the operators of organisations in which you are admin: all, or one page."""
    org_id = await context.resolve.org_id(actor, request.org)

    async def read(query: ListQuery) -> ListPage[Operator]:
        return await context.resolve.list_operators(actor, query, org_id)

    found = await read_list("operators", request, None, read)
    names = await _names(context, actor, found.rows)
    now = context.clock.wall_ms()
    rows = tuple(_named(each, names, now) for each in found.rows)
    return OperatorList(operators=rows, **found.place)


@operation("operator.show", "GET", "/operators/{operator}")
async def show(context: OperationContext, actor: Actor, request: OperatorReference) -> OperatorFacts:
    """Show one operator and the operator's roles."""
    operator = await context.resolve.operator(actor, request.operator)
    return await _facts(context, actor, operator)


@operation("operator.set-password", "PUT", "/operators/{operator}/password")
async def set_password(context: OperationContext, actor: Actor, request: SetPassword) -> OperatorFacts:
    """Set the password of an operator, and end the operator's sessions.

    To change your own password, also give the current one.
    """
    operator = await context.resolve.operator(actor, request.operator)
    _require_local(operator, "signs in only at the identity provider, and can't have a password")
    if actor.is_named(operator.name):
        await _require_few_guesses(context, actor)
        await _check_current(operator, request.current_password)
    else:
        require_all_of(actor, operator)
    await context.store.set_password(operator.operator_id, await _hashed(request.password))
    return await _shown(context, actor, operator)


@operation("operator.link", "PUT", "/operators/{operator}/link")
async def link(context: OperationContext, actor: Actor, request: LinkOperator) -> OperatorFacts:
    """Link one person of the identity provider to a local operator.

    When a person is linked to an operator, all earlier sessions of the operator end.
    """
    operator = await context.resolve.operator(actor, request.operator)
    require_all_of(actor, operator)
    _require_local(operator, "is known by issuer and subject, and needs no link")
    issuer = context.settings.console.oidc_issuer
    if not issuer:
        raise Conflict("there is no identity provider: set Console.OidcIssuer first")
    if not request.subject or not is_text(request.subject):
        raise InvalidRequest("subject: copy the `subject` of the person's sign-in from the operator log")
    await context.store.link_operator(operator.operator_id, issuer, request.subject)
    return await _shown(context, actor, operator)


@operation("operator.unlink", "DELETE", "/operators/{operator}/link")
async def unlink(context: OperationContext, actor: Actor, request: OperatorReference) -> OperatorFacts:
    """Remove the link of a local operator to a person of the identity provider.

    Removing the link also ends all sessions of the operator.
    """
    operator = await context.resolve.operator(actor, request.operator)
    require_all_of(actor, operator)
    await context.store.unlink_operator(operator.operator_id)
    return await _shown(context, actor, operator)


@operation("operator.disable", "POST", "/operators/{operator}/disable")
async def disable(context: OperationContext, actor: Actor, request: OperatorReference) -> OperatorFacts:
    """Disable an operator: end the operator's sessions, and refuse the operator's API tokens."""
    return await _set_enabled(context, actor, request.operator, False)


@operation("operator.enable", "POST", "/operators/{operator}/enable")
async def enable(context: OperationContext, actor: Actor, request: OperatorReference) -> OperatorFacts:
    """Enable a disabled operator and the operator's API tokens again."""
    return await _set_enabled(context, actor, request.operator, True)


@operation("operator.grant", "PUT", "/operators/{operator}/roles/{org}")
async def grant(context: OperationContext, actor: Actor, request: GrantRole) -> OperatorFacts:
    """Give an operator a role in an organisation.

    The new role replaces the operator's previous role in the organisation.
    """
    org_id = await _org_id(context, actor, request.org)
    actor.require("admin", None if org_id == EVERY_ORG else org_id)
    operator = await context.resolve.operator(actor, request.operator, role_in=org_id)
    _require_local(operator, _BY_GROUP)
    await context.store.set_role(operator.operator_id, org_id, request.role)
    return await _shown(context, actor, operator)


@operation("operator.revoke", "DELETE", "/operators/{operator}/roles/{org}")
async def revoke(context: OperationContext, actor: Actor, request: RevokeRole) -> OperatorFacts:
    """Remove the operator's role in an organisation."""
    org_id = await _org_id(context, actor, request.org)
    actor.require("admin", None if org_id == EVERY_ORG else org_id)
    operator = await context.resolve.operator(actor, request.operator, role_in=org_id)
    _require_local(operator, _BY_GROUP)
    await context.store.remove_role(operator.operator_id, org_id)
    return await _shown(context, actor, operator)


@operation("operator.token.add", "POST", "/operators/{operator}/tokens")
async def add_token(context: OperationContext, actor: Actor, request: AddToken) -> NewToken:
    """Make an API token with the permissions of the operator.

    The token is shown only once.
    """
    operator = await _own_or_managed(context, actor, request.operator)
    now, secret = context.clock.wall_ms(), mint("gwt")
    token = OperatorToken(
        new_id(context.clock),
        operator.operator_id,
        valid_name(request.name),
        now,
        now + request.expires_in_days * _DAY_MS,
    )
    await context.store.add_token(token, digest(secret))
    return NewToken(
        token_id=token.token_id,
        name=token.name,
        expires_at=rfc3339(token.expires_ms),
        token=secret,
        good_until=rfc3339(_good_until_ms(token, operator)),
        awaits_sign_in=operator.roles_ended(now),
    )


@operation("operator.token.list", "GET", "/operators/{operator}/tokens")
async def list_tokens(context: OperationContext, actor: Actor, request: OperatorReference) -> TokenList:
    """List the API tokens of an operator, without the tokens themselves."""
    operator = await _own_or_managed(context, actor, request.operator)
    found, now = await context.store.tokens(operator.operator_id), context.clock.wall_ms()
    return TokenList(tokens=tuple(_token_facts(each, operator, now) for each in found))


@operation("operator.token.revoke", "DELETE", "/operators/{operator}/tokens/{token}")
async def revoke_token(context: OperationContext, actor: Actor, request: RevokeToken) -> TokenFacts:
    """End an operator's API token immediately."""
    operator = await _own_or_managed(context, actor, request.operator)
    for token in await context.store.tokens(operator.operator_id):
        if request.token in (token.token_id, token.name):
            await context.store.remove_token(token.token_id)
            return _token_facts(token, operator, context.clock.wall_ms())
    raise NotFound(f"operator {operator.name} has no API token {request.token}")


async def _set_enabled(
    context: OperationContext, actor: Actor, reference: str, enabled: bool
) -> OperatorFacts:
    operator = await context.resolve.operator(actor, reference)
    require_all_of(actor, operator)
    await context.store.set_operator_enabled(operator.operator_id, enabled)
    return await _shown(context, actor, operator)


# Permission to manage other operators

_BY_GROUP: Final = (
    "has roles only from groups of the identity provider: change the groups there, or Console.OidcRoles"
)


def _require_local(operator: Operator, said: str) -> None:
    if operator.provided is not None:
        raise Conflict(f"{operator.name} {said}")


async def _own_or_managed(context: OperationContext, actor: Actor, reference: str) -> Operator:
    operator = await context.resolve.operator(actor, reference)
    if not actor.is_named(operator.name):
        require_all_of(actor, operator)
    return operator


def require_all_of(actor: Actor, operator: Operator) -> None:
    """Raise Forbidden unless the actor is admin in every organisation of the operator.

    An actor who sets the password or a token of an operator could act as that operator.
    """
    everywhere = not operator.roles or EVERY_ORG in operator.roles
    for org_id in (None,) if everywhere else operator.roles:
        if not actor.may("admin", org_id):
            raise Forbidden("this operation needs the role admin in every organisation of the operator")


async def _org_id(context: OperationContext, actor: Actor, reference: str) -> str:
    if reference == EVERY_ORG:
        return EVERY_ORG
    return (await context.resolve.org(actor, "viewer", reference)).org_id


# Names and passwords


def _operator_name(name: str) -> str:
    """Check the name of a new operator, and return the name unchanged.

    Raise InvalidRequest if the name is not valid, or has a colon.

    In the operator log, a colon distinguishes users of the host (`local:ada`) from operators.
    """
    if ":" in name or name == EVERY_ORG or name.casefold() == "unknown":
        raise InvalidRequest(f"{name} is not a valid operator name")
    return valid_name(name)


async def _hashed(password: str) -> str:
    if not SHORTEST_PASSWORD <= len(password) <= LONGEST_PASSWORD:
        raise InvalidRequest(f"a password must have {SHORTEST_PASSWORD} to {LONGEST_PASSWORD} characters")
    return await asyncio.to_thread(hash_password, password)


async def _require_few_guesses(context: OperationContext, actor: Actor) -> None:
    """Raise Forbidden if the operator log has too many wrong passwords, including the current attempt.

    Without a limit on guesses, an intruder at an unattended session could guess the operator's password.
    """
    guesses = LogQuery(
        limit=_MOST_GUESSES + 1,
        from_ms=context.clock.wall_ms() - _GUESSES_MS,
        operator=actor.name,
        operation=set_password.name,
        outcome="forbidden",
    )
    if len(await context.store.operator_log(guesses)) > _MOST_GUESSES:
        raise Forbidden("the current password was wrong too often: try again in 15 minutes")


async def _check_current(operator: Operator, current: str | None) -> None:
    """Check the current password of an operator who changes the password.

    A person with access to an unattended browser or a leaked token must not be able to lock out the operator.
    """
    if operator.password_hash is None:
        return
    given = (current or "")[: LONGEST_PASSWORD + 1]
    if not await asyncio.to_thread(is_password, operator.password_hash, given):
        raise Forbidden("the current password is wrong")


# Facts of operators


async def _shown(context: OperationContext, actor: Actor, operator: Operator) -> OperatorFacts:
    """Read the operator's row from the store again, and return the row."""
    return await _facts(context, actor, await context.store.operator(operator.operator_id) or operator)


async def _facts(context: OperationContext, actor: Actor, operator: Operator) -> OperatorFacts:
    return _named(operator, await _names(context, actor, (operator,)), context.clock.wall_ms())


async def _names(context: OperationContext, actor: Actor, operators: Sequence[Operator]) -> dict[str, str]:
    """Return the operators' organisations by name, but only those that the actor may look at."""
    held = {org_id for each in operators for org_id in each.roles}
    return await context.resolve.org_names(actor, held) | {EVERY_ORG: EVERY_ORG}


def _named(operator: Operator, names: Mapping[str, str], now_ms: int) -> OperatorFacts:
    """Return the operator with the roles in organisations that the actor may look at."""
    mappings = {} if operator.provided is None else operator.provided.mappings
    roles = [
        RoleFacts(org_id, names[org_id], role, mappings.get(org_id))
        for org_id, role in operator.roles.items()
        if org_id in names
    ]
    return OperatorFacts(
        operator_id=operator.operator_id,
        name=operator.name,
        enabled=operator.enabled,
        password=operator.password_hash is not None,
        roles=tuple(sorted(roles, key=lambda each: (each.org, each.org_id))),
        created_at=rfc3339(operator.created_ms),
        signed_in_at=None if operator.signed_in_ms is None else rfc3339(operator.signed_in_ms),
        identity=_identity(operator, now_ms),
        link=_link(operator.link),
    )


def _identity(operator: Operator, now_ms: int) -> IdentityFacts | None:
    provided = operator.provided
    if provided is None:
        return None
    until, ended = rfc3339(provided.roles_until_ms), operator.roles_ended(now_ms)
    return IdentityFacts(provided.issuer, provided.subject, provided.display_name, until, ended)


def _link(linked: LinkedPerson | None) -> LinkFacts | None:
    return None if linked is None else LinkFacts(linked.issuer, linked.subject, rfc3339(linked.linked_ms))


def _good_until_ms(token: OperatorToken, operator: Operator) -> int:
    if operator.provided is None:
        return token.expires_ms
    return min(token.expires_ms, operator.provided.roles_until_ms)


def _token_facts(token: OperatorToken, operator: Operator, now_ms: int) -> TokenFacts:
    return TokenFacts(
        token_id=token.token_id,
        name=token.name,
        created_at=rfc3339(token.created_ms),
        awaits_sign_in=operator.roles_ended(now_ms),
        expires_at=rfc3339(token.expires_ms),
        good_until=rfc3339(_good_until_ms(token, operator)),
    )
