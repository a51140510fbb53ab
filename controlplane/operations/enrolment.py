"""Enrolment tokens, with which proxies add themselves to organisations."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Final

import msgspec

from controlplane.names import InvalidName, new_id, valid_name
from controlplane.operations.actor import Actor, Forbidden
from controlplane.operations.context import OperationContext
from controlplane.operations.operation import InvalidRequest, Request, Response, Secret, operation
from controlplane.operations.times import as_rfc3339, end_of
from controlplane.secrets import digest, mint
from controlplane.store.interface import EnrolmentToken, NotFound, Proxy, TokenState
from proxy.wire.audit_event import rfc3339
from proxy.wire.figures import counted

PREFIX: Final = "gwe"
MOST_USES: Final = 100_000  # because a token without a limit would be a password of the fleet
LONGEST_DAYS: Final = 366  # longest time in days until a token expires
_LONGEST_ROTATION: Final = 366  # longest key rotation interval in days
_LONGEST_SILENCE: Final = 3660  # longest time of silence in days before a proxy is retired

_EXPIRES: Final = "End of the token: RFC 3339, a date, or a time from now such as 30d. By default 24h."
_ROTATE: Final = "Days after which each proxy renews its keys by itself. By default it does not."
_RETIRE: Final = "Days of silence after which a proxy is retired. By default it never is."


class AddEnrolmentToken(Request):
    orgs: tuple[str, ...]
    name: str | None = None  # default: a generated name
    uses: Annotated[int, msgspec.Meta(ge=1, le=MOST_USES)] = 1  # number of proxies that can enrol with it
    expires: Annotated[str, msgspec.Meta(description=_EXPIRES)] = "24h"
    rotate_days: Annotated[int, msgspec.Meta(ge=1, le=_LONGEST_ROTATION, description=_ROTATE)] | None = None
    retire_days: Annotated[int, msgspec.Meta(ge=1, le=_LONGEST_SILENCE, description=_RETIRE)] | None = None


class EnrolmentTokenReference(Request):
    token: str  # id, name or the token itself


class RevokeEnrolmentToken(Request):
    token: Secret  # id, name or the token itself, which must not be logged
    with_proxies: bool = False  # disable every proxy that enrolled with it


class ListEnrolmentTokens(Request):
    org: str | None = None


class EnrolmentTokenFacts(Response):
    token_id: str
    name: str
    orgs: tuple[str, ...]  # names of the organisations that the actor has permission to look at
    state: TokenState
    uses: int
    used: int
    expires_at: str
    rotate_days: int | None
    retire_days: int | None
    created_at: str
    created_by: str
    revoked_at: str | None


class NewEnrolmentToken(EnrolmentTokenFacts):
    """A new enrolment token with its secret, which is shown only once."""

    token: str


class EnrolmentTokenList(Response):
    tokens: tuple[EnrolmentTokenFacts, ...]


class EnrolledProxy(Response):
    proxy_id: str
    name: str
    enabled: bool
    enrolled_at: str
    last_seen: str | None
    retired_at: str | None


class EnrolmentTokenDetails(EnrolmentTokenFacts):
    # proxies that enrolled with it and that the actor has permission to look at
    proxies: tuple[EnrolledProxy, ...]


@operation("proxy.enrol-token.add", "POST", "/enrolment-tokens")
async def add(context: OperationContext, actor: Actor, request: AddEnrolmentToken) -> NewEnrolmentToken:
    """Make an enrolment token, with which proxies add themselves to organisations.

    The enrolment token is shown only once.
    """
    if not request.orgs:
        raise InvalidRequest("orgs: is empty; a token needs at least one organisation")
    org_ids = [(await context.resolve.org(actor, "admin", org)).org_id for org in request.orgs]
    now_ms = context.clock.wall_ms()
    expires_ms = end_of("expires", request.expires, now_ms, LONGEST_DAYS)
    token_id, secret = new_id(context.clock), mint(PREFIX)
    made = EnrolmentToken(
        token_id=token_id,
        name=_valid_name(request.name) if request.name else f"enrol-{token_id[-8:]}",
        org_ids=tuple(sorted(set(org_ids))),
        uses=request.uses,
        used=0,
        created_ms=now_ms,
        created_by=actor.name,
        expires_ms=expires_ms,
        rotate_days=request.rotate_days,
        retire_days=request.retire_days,
    )
    await context.store.add_enrolment_token(made, digest(secret))
    context.results.append(f"made enrolment token {made.name}")
    (facts,) = await _facts(context, actor, [made])
    return NewEnrolmentToken(**msgspec.structs.asdict(facts), token=secret)


@operation("proxy.enrol-token.list", "GET", "/enrolment-tokens")
async def list_all(
    context: OperationContext, actor: Actor, request: ListEnrolmentTokens
) -> EnrolmentTokenList:
    """List the enrolment tokens, newest first."""
    org_id = await context.resolve.org_id(actor, request.org)
    found = _visible(actor, await context.store.enrolment_tokens())
    chosen = [each for each in found if org_id is None or org_id in each.org_ids]
    return EnrolmentTokenList(tokens=await _facts(context, actor, chosen))


@operation("proxy.enrol-token.show", "GET", "/enrolment-tokens/{token}")
async def show(
    context: OperationContext, actor: Actor, request: EnrolmentTokenReference
) -> EnrolmentTokenDetails:
    """Show one enrolment token, and the proxies that enrolled with this token."""
    token = await _token(context, actor, request.token)
    came = await context.store.proxies_by_token(token.token_id)
    seen = [each for each in came if any(actor.may("viewer", org_id) for org_id in each.org_ids or (None,))]
    (facts,) = await _facts(context, actor, [token])
    return EnrolmentTokenDetails(**msgspec.structs.asdict(facts), proxies=tuple(map(_enrolled, seen)))


@operation("proxy.enrol-token.revoke", "POST", "/enrolment-tokens/{token}/revoke")
async def revoke(
    context: OperationContext, actor: Actor, request: RevokeEnrolmentToken
) -> EnrolmentTokenDetails:
    """Revoke an enrolment token, so that no proxy can enrol with the token any more.

    Proxies that enrolled with the token keep working, unless `with_proxies` is set, which disables the
    proxies.
    """
    token = await _token(context, actor, request.token)
    context.about.update(token.org_ids)
    await _require_admin_of_one(context, actor, token)
    if request.with_proxies:
        for proxy in await context.store.proxies_by_token(token.token_id):
            context.about.update(proxy.org_ids)
            await _require_admin(context, actor, proxy)
    revoked = await context.store.revoke_enrolment_token(token.token_id, with_proxies=request.with_proxies)
    came = await context.store.proxies_by_token(token.token_id)
    number = counted(len(came), "proxy", "proxies")
    disabled = f", and disabled {number} that enrolled with it" if request.with_proxies else ""
    context.results.append(f"revoked enrolment token {token.name}{disabled}")
    (facts,) = await _facts(context, actor, [revoked])
    return EnrolmentTokenDetails(**msgspec.structs.asdict(facts), proxies=tuple(map(_enrolled, came)))


def _valid_name(name: str) -> str:
    if name.startswith(f"{PREFIX}_"):
        raise InvalidName(
            f"the name of an enrolment token must not begin with {PREFIX}_, the prefix of the secret"
        )
    return valid_name(name)


async def _require_admin_of_one(context: OperationContext, actor: Actor, token: EnrolmentToken) -> None:
    """Raise Forbidden unless the actor is admin in an organisation for which the token is valid.

    An enrolment token for several organisations can be revoked by an admin of any of these organisations.
    """
    exist = {org.org_id for org in await context.store.orgs()}
    of_token = [org_id for org_id in token.org_ids if org_id in exist] or [*token.org_ids]
    if not any(actor.may("admin", org_id) for org_id in of_token):
        actor.require("admin", of_token[0])


async def _require_admin(context: OperationContext, actor: Actor, proxy: Proxy) -> None:
    """Raise Forbidden unless the actor is admin in every organisation of the proxy.

    The error message contains the name of an organisation only if the actor may look at the organisation.
    """
    names = await context.resolve.org_names(actor, set(proxy.org_ids))
    for org_id in proxy.org_ids:
        if not actor.may("admin", org_id):
            org = names.get(org_id, "an organisation that you can't look at")
            raise Forbidden(
                f"this operation needs the role admin in {org}, which proxy {proxy.name} serves: revoke the"
                " token alone, and ask an admin of that organisation about the proxy"
            )


async def _token(context: OperationContext, actor: Actor, reference: str) -> EnrolmentToken:
    """Return the enrolment token whose ID or name is `reference`.

    A person who found the secret of an enrolment token can give this secret in place of the token's ID or
    name.
    """
    if reference.startswith(f"{PREFIX}_"):
        itself = await context.store.enrolment_token(digest(reference))
        if found := _visible(actor, [] if itself is None else [itself]):
            return found[0]
        # the reference may be a secret, which a message must not repeat
        raise NotFound("no enrolment token has this secret")
    if found := _visible(actor, await context.store.find_enrolment_tokens(reference)):
        return found[0]
    raise NotFound(f"there is no enrolment token {reference}")


def _visible(actor: Actor, tokens: Iterable[EnrolmentToken]) -> list[EnrolmentToken]:
    return [each for each in tokens if any(actor.may("viewer", org_id) for org_id in each.org_ids)]


async def _facts(
    context: OperationContext, actor: Actor, tokens: list[EnrolmentToken]
) -> tuple[EnrolmentTokenFacts, ...]:
    names = await context.resolve.org_names(actor, {each for token in tokens for each in token.org_ids})
    now_ms = context.clock.wall_ms()
    return tuple(
        EnrolmentTokenFacts(
            token_id=token.token_id,
            name=token.name,
            orgs=tuple(names[org_id] for org_id in token.org_ids if org_id in names),
            state=token.state_at(now_ms),
            uses=token.uses,
            used=token.used,
            expires_at=rfc3339(token.expires_ms),
            rotate_days=token.rotate_days,
            retire_days=token.retire_days,
            created_at=rfc3339(token.created_ms),
            created_by=token.created_by,
            revoked_at=as_rfc3339(token.revoked_ms),
        )
        for token in tokens
    )


def _enrolled(proxy: Proxy) -> EnrolledProxy:
    return EnrolledProxy(
        proxy_id=proxy.proxy_id,
        name=proxy.name,
        enabled=proxy.enabled,
        enrolled_at=rfc3339(proxy.created_ms),
        last_seen=as_rfc3339(proxy.last_seen_ms),
        retired_at=as_rfc3339(proxy.retired_ms),
    )
