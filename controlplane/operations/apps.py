"""Applications: their secrets, and the ruleset that evaluates their requests."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Annotated, Final, Literal

import msgspec

from controlplane.names import new_id
from controlplane.operations.actor import Actor, Role
from controlplane.operations.context import OperationContext
from controlplane.operations.lists import PART, ListRequest, ListResponse, by_column, read_list
from controlplane.operations.naming import add_named
from controlplane.operations.operation import InvalidRequest, Request, Response, operation
from controlplane.operations.second_person import propose
from controlplane.operations.times import as_rfc3339, end_of
from controlplane.secrets import hash_client_secret, mint
from controlplane.store.interface import (
    App,
    Approval,
    AppSecret,
    AppUsage,
    Proposal,
    ProposalKind,
    SecondPersonNeeded,
    Stop,
)
from controlplane.store.pages import AppQuery, Unused
from controlplane.usage import DAY_MS, day_of
from proxy.wire.audit_event import rfc3339

MAX_GRACE_SECONDS: Final = 99_999 * 86_400
IDLE_DAYS: Final = 30  # days without a request after which an app is idle
_EXPIRES: Final = (
    "The end of the new secret: RFC 3339, a date, or a time from now such as 90d. By default it never ends."
)
LONGEST_DAYS: Final = 3660  # longest time in days until the end of a secret
_WITHOUT: Final = "Whether the app gets a client secret. Without one, add another credential."
_LONGEST_OWNER: Final = 200  # characters on one line
_LONGEST_NOTE: Final = 1000  # characters
_OWNER: Final = "Person or team responsible for the app."


class AppFacts(Response):
    app_id: str
    name: str
    org_id: str
    client_id: str
    ruleset: str
    shadow_ruleset: str | None  # ruleset whose verdicts only the audit events show
    enabled: bool
    stopped: Literal["app", "org", "all"] | None  # the widest emergency stop that covers the app
    secret_version: int
    created_at: str
    owner: str | None
    note: str | None
    secret_created_at: str | None  # time at which the newest secret was made
    secret_expires_at: str | None  # time at which the newest secret ends, or ended; null: it has no end
    last_seen: str | None  # time of the newest request that was counted
    counted_since: str  # start of the counts: earlier requests were not counted
    recent_requests: int  # requests of the last 30 days


class SecretFacts(msgspec.Struct, rename="camel"):
    version: int
    expires_at: str | None
    created_at: str


class BoundApp(AppFacts, omit_defaults=True):
    proposal: str | None = None  # id of the proposal if a second person must approve; nothing has changed yet


class AppDetails(AppFacts):
    ruleset_id: str
    secrets: tuple[SecretFacts, ...]  # valid secrets, newest first
    newest_secret: int  # version of the newest secret, even if it has ended


class AppList(ListResponse):
    apps: tuple[AppFacts, ...]


class NewApp(Response, omit_defaults=True):
    app_id: str
    client_id: str
    client_secret: str | None = None  # shown only this once; None: the app was added without a secret


class NewSecret(Response):
    app_id: str
    client_id: str
    client_secret: str  # shown only this once
    secret_version: int


class AddApp(Request):
    name: str
    org: str
    ruleset: str
    owner: Annotated[str, msgspec.Meta(description=_OWNER)] | None = None
    note: str | None = None
    expires: Annotated[str, msgspec.Meta(description=_EXPIRES)] | None = None
    secret: Annotated[bool, msgspec.Meta(description=_WITHOUT)] = True


class ListApps(ListRequest, kw_only=True):
    org: str | None = None
    ruleset: (
        Annotated[str, msgspec.Meta(description="Only apps with this ruleset, by ID or name.")] | None
    ) = None
    shadow: (
        Annotated[str, msgspec.Meta(description="Only apps with this shadow ruleset, by ID or name.")] | None
    ) = None
    unused: (
        Annotated[
            Unused,
            msgspec.Meta(
                description="Only unused apps: never used, or idle (no request in the last 30 days)."
            ),
        ]
        | None
    ) = None
    search: Annotated[str, msgspec.Meta(description=PART.replace("ID", "ID or client ID"))] | None = None
    sort: Annotated[str, by_column("apps")] | None = None


class AppReference(Request):
    app: str  # id, client id or name
    org: str | None = None


class SetApp(AppReference, kw_only=True):
    """Set the owner or the note of an app.

    The operation does not change a member that the request omits. An empty text in the request removes the
    owner or the note of the app.
    """

    owner: Annotated[str, msgspec.Meta(description=_OWNER)] | None = None
    note: str | None = None


class BindApp(AppReference, kw_only=True):
    ruleset: str


class SetShadow(AppReference):
    ruleset: str | None = None  # None: remove the shadow ruleset


class PromoteShadow(AppReference):
    expected: str | None = None  # name of the current shadow ruleset; refused if it is another one


class RotateSecret(AppReference):
    # Time that the old secret stays valid. With 0, the secret and its tokens end at once.
    grace_seconds: Annotated[int, msgspec.Meta(ge=0, le=MAX_GRACE_SECONDS)] = 0
    expected: int | None = None  # version of the newest secret; refused if it is another one
    expires: Annotated[str, msgspec.Meta(description=_EXPIRES)] | None = None


@operation("app.add", "POST", "/apps")
async def add(context: OperationContext, actor: Actor, request: AddApp) -> NewApp:
    """Add an app, and a client secret unless `secret` is false.

    The response shows the secret only once.
    """
    return await add_with(context, actor, request, new_client_secret() if request.secret else None)


@dataclass(frozen=True, slots=True)
class ClientSecret:
    """A new client secret, with the hash that the store saves."""

    text: str
    hash: str


def new_client_secret() -> ClientSecret:
    """Make a random client secret and its hash.

    To compute the hash of a client secret takes about 20 ms of processor time.
    """
    text = mint("gws")
    return ClientSecret(text, hash_client_secret(text))


async def add_with(
    context: OperationContext, actor: Actor, request: AddApp, secret: ClientSecret | None
) -> NewApp:
    """Add an app with the given client secret, or without a secret if `secret` is None."""
    if secret is None and request.expires:
        raise InvalidRequest("expires: is the end of a client secret, but this app gets no client secret")
    org = await context.resolve.org(actor, "admin", request.org)
    ruleset = await context.resolve.ruleset(actor, "viewer", request.ruleset, org.org_id)
    expires_ms = _end_of_secret(request.expires, context.clock.wall_ms())
    app = App(
        app_id=new_id(context.clock),
        org_id=org.org_id,
        name=request.name,
        client_id=str(uuid.uuid4()),
        ruleset_id=ruleset.ruleset_id,
        ruleset_name=ruleset.name,
        enabled=True,
        created_ms=context.clock.wall_ms(),
        secrets=() if secret is None else (AppSecret(1, secret.hash, expires_ms),),
        owner=_one_line("owner", request.owner, _LONGEST_OWNER),
        note=_one_line("note", request.note, _LONGEST_NOTE),
    )
    await add_named(
        context.store,
        app.name,
        lambda store: store.apps(org.org_id),
        lambda store: store.add_app(app),
    )
    return NewApp(
        app_id=app.app_id, client_id=app.client_id, client_secret=None if secret is None else secret.text
    )


@operation("app.list", "GET", "/apps")
async def list_all(context: OperationContext, actor: Actor, request: ListApps) -> AppList:
    """List all apps, or one page of apps."""
    org_ids = await context.resolve.sight(actor, request.org)
    chosen = await _chosen(context, actor, request)
    found = await read_list("apps", request, org_ids, lambda query: context.store.list_apps(query, chosen))
    return AppList(apps=await _described(context, *found.rows), **found.place)


async def _chosen(context: OperationContext, actor: Actor, request: ListApps) -> AppQuery:
    async def ruleset_id(reference: str | None) -> str | None:
        if reference is None:
            return None
        return (await context.resolve.ruleset(actor, "viewer", reference, request.org)).ruleset_id

    idle_since_ms = context.clock.wall_ms() - IDLE_DAYS * DAY_MS
    return AppQuery(
        await ruleset_id(request.ruleset), await ruleset_id(request.shadow), request.unused, idle_since_ms
    )


@operation("app.show", "GET", "/apps/{app}")
async def show(context: OperationContext, actor: Actor, request: AppReference) -> AppDetails:
    """Show one app, with the versions of its valid secrets."""
    app = await context.resolve.app(actor, "viewer", request.app, request.org)
    return AppDetails(
        **msgspec.structs.asdict(await _one(context, app)),
        ruleset_id=app.ruleset_id,
        secrets=tuple(
            SecretFacts(each.version, as_rfc3339(each.expires_ms), rfc3339(each.created_ms))
            for each in app.secrets
        ),
        newest_secret=0 if app.newest_secret is None else app.newest_secret.version,
    )


@operation("app.set", "PUT", "/apps/{app}/about")
async def set_about(context: OperationContext, actor: Actor, request: SetApp) -> AppFacts:
    """Set the owner and the note of an app."""
    app = await context.resolve.app(actor, "editor", request.app, request.org)
    owner = app.owner if request.owner is None else _one_line("owner", request.owner, _LONGEST_OWNER)
    note = app.note if request.note is None else _one_line("note", request.note, _LONGEST_NOTE)
    return await _one(context, await context.store.set_app_about(app.app_id, owner, note))


@operation("app.bind", "PUT", "/apps/{app}/ruleset")
async def bind(context: OperationContext, actor: Actor, request: BindApp) -> BoundApp:
    """Switch an app to a different ruleset of the app's organisation."""
    app = await context.resolve.app(actor, "editor", request.app, request.org)
    ruleset = await context.resolve.ruleset(actor, "viewer", request.ruleset, app.org_id)
    try:
        bound = await context.store.bind_app(app.app_id, ruleset.ruleset_id)
    except SecondPersonNeeded:
        return await _propose(context, actor, "bind", app, (ruleset.ruleset_id, ruleset.name))
    context.results.append(_switched(app, ruleset.name))
    return await _bound(context, bound)


@operation("app.shadow", "PUT", "/apps/{app}/shadow")
async def shadow(context: OperationContext, actor: Actor, request: SetShadow) -> AppFacts:
    """Set an app's shadow ruleset, whose verdicts appear only in audit events."""
    app = await context.resolve.app(actor, "editor", request.app, request.org)
    if request.ruleset is None:
        return await _one(context, await context.store.set_shadow(app.app_id, None))
    ruleset = await context.resolve.ruleset(actor, "viewer", request.ruleset, app.org_id)
    return await _one(context, await context.store.set_shadow(app.app_id, ruleset.ruleset_id))


@operation("app.promote-shadow", "POST", "/apps/{app}/promote-shadow")
async def promote_shadow(context: OperationContext, actor: Actor, request: PromoteShadow) -> BoundApp:
    """Make the shadow ruleset of an app its active ruleset."""
    app = await context.resolve.app(actor, "editor", request.app, request.org)
    try:
        bound = await context.store.promote_shadow(app.app_id, request.expected)
    except SecondPersonNeeded:
        if app.shadow_ruleset_id is None or app.shadow_ruleset_name is None:
            raise  # another actor changed the shadow ruleset after the app was read
        return await _propose(
            context, actor, "promote", app, (app.shadow_ruleset_id, app.shadow_ruleset_name)
        )
    context.results.append(_switched(app, bound.ruleset_name))
    return await _bound(context, bound)


async def _bound(context: OperationContext, app: App, proposal: str | None = None) -> BoundApp:
    return BoundApp(**msgspec.structs.asdict(await _one(context, app)), proposal=proposal)


def _switched(app: App, ruleset: str) -> str:
    """Return a text for the operator log about the assignment of another ruleset to an app.

    `app` contains the values of the app before the change. `ruleset` is the name of the new ruleset.
    """
    if app.ruleset_name == ruleset:
        return f"{app.name} unchanged: {ruleset} is already its ruleset"
    return f"switched {app.name} from {app.ruleset_name} to {ruleset}"


async def _propose(
    context: OperationContext, actor: Actor, kind: ProposalKind, app: App, ruleset: tuple[str, str]
) -> BoundApp:
    """Store a proposal to assign another ruleset to an app. A second person must approve the proposal.

    `ruleset` is the ID and the name of the new ruleset.
    """
    proposal = await propose(
        context, actor, kind, app.org_id, *ruleset, None, app_id=app.app_id, base_ruleset_id=app.ruleset_id
    )
    context.results.append(f"proposed to switch {app.name} from {app.ruleset_name} to {ruleset[1]}")
    return await _bound(context, app, proposal)


async def bind_proposed(context: OperationContext, proposal: Proposal, approval: Approval) -> None:
    """Switch an app to the ruleset that an approved proposal names.

    Raise Conflict if the app or its shadow ruleset has changed since the proposal.
    """
    app_id = proposal.app_id or ""
    if proposal.kind == "promote":
        app = await context.store.promote_shadow(
            app_id, proposal.ruleset, approval, expected_ruleset_id=proposal.base_ruleset_id
        )
    else:
        app = await context.store.bind_app(
            app_id, proposal.ruleset_id, approval, expected_ruleset_id=proposal.base_ruleset_id
        )
    context.results.append(f"switched {app.name} to {app.ruleset_name}, proposed by {proposal.proposed_by}")


@operation("app.rotate-secret", "POST", "/apps/{app}/rotate-secret")
async def rotate_secret(context: OperationContext, actor: Actor, request: RotateSecret) -> NewSecret:
    """Make a new client secret, which the response shows only once.

    Without a grace period in the request, the old client secret and its tokens end at the next sync of each
    proxy.
    """
    app = await context.resolve.app(actor, "admin", request.app, request.org)
    expires_ms = _end_of_secret(request.expires, context.clock.wall_ms())
    secret = new_client_secret()
    rotated = await context.store.rotate_secret(
        app.app_id,
        secret.hash,
        request.grace_seconds * 1000,
        request.expected,
        expires_ms,
    )
    return NewSecret(
        app_id=rotated.app_id,
        client_id=rotated.client_id,
        client_secret=secret.text,
        secret_version=rotated.secret_version,
    )


def _end_of_secret(text: str | None, now_ms: int) -> int | None:
    """Return the expiry time of a new secret in Unix ms, or None if the secret never expires."""
    return end_of("expires", text, now_ms, LONGEST_DAYS) if text else None


@operation("app.disable", "POST", "/apps/{app}/disable")
async def disable(context: OperationContext, actor: Actor, request: AppReference) -> AppFacts:
    """Disable an app for every proxy. After its next sync, a proxy refuses the app and the app's tokens."""
    return await _set_enabled(context, actor, "editor", request, False)


@operation("app.enable", "POST", "/apps/{app}/enable")
async def enable(context: OperationContext, actor: Actor, request: AppReference) -> AppFacts:
    """Enable a disabled app again."""
    return await _set_enabled(context, actor, "admin", request, True)


async def _set_enabled(
    context: OperationContext, actor: Actor, role: Role, request: AppReference, enabled: bool
) -> AppFacts:
    app = await context.resolve.app(actor, role, request.app, request.org)
    return await _one(context, await context.store.set_app_enabled(app.app_id, enabled))


def _one_line(member: str, given: str | None, longest: int) -> str | None:
    """Return a text without spaces around it, or None if the text has only spaces.

    Raise InvalidRequest if the text is too long or does not fit on one line.
    """
    text = (given or "").strip()
    if len(text) > longest or not text.isprintable():
        raise InvalidRequest(f"{member}: must be at most {longest} printable characters on one line")
    return text or None


async def _one(context: OperationContext, app: App) -> AppFacts:
    (facts,) = await _described(context, app)
    return facts


async def _described(context: OperationContext, *apps: App) -> tuple[AppFacts, ...]:
    stops = await context.store.stops()
    from_day = day_of(context.clock.wall_ms()) - IDLE_DAYS
    usage = await context.store.app_usage([app.app_id for app in apps], from_day)
    return tuple(_facts(app, stops, usage[app.app_id]) for app in apps)


async def stopped_among(context: OperationContext, actor: Actor, app_ids: Collection[str]) -> frozenset[str]:
    """Return the IDs in `app_ids` of apps that the actor may see and that an emergency stop covers."""
    stops = await context.store.stops()
    if not stops:
        return frozenset()
    apps = await context.resolve.apps_with(actor, app_ids)
    return frozenset(app.app_id for app in apps if _stopped_by(app, stops))


def _stopped_by(app: App, stops: Sequence[Stop]) -> Literal["app", "org", "all"] | None:
    if any(stop.org_id is None for stop in stops):
        return "all"
    own = [stop for stop in stops if stop.org_id == app.org_id]
    if any(stop.app_id is None for stop in own):
        return "org"
    return "app" if any(stop.app_id == app.app_id for stop in own) else None


def _facts(app: App, stops: Sequence[Stop], usage: AppUsage) -> AppFacts:
    newest = app.newest_secret
    return AppFacts(
        app_id=app.app_id,
        name=app.name,
        org_id=app.org_id,
        client_id=app.client_id,
        ruleset=app.ruleset_name,
        shadow_ruleset=app.shadow_ruleset_name,
        enabled=app.enabled,
        stopped=_stopped_by(app, stops),
        secret_version=app.secret_version,
        created_at=rfc3339(app.created_ms),
        owner=app.owner,
        note=app.note,
        secret_created_at=as_rfc3339(None if newest is None else newest.created_ms),
        secret_expires_at=as_rfc3339(None if newest is None else newest.expires_ms),
        last_seen=as_rfc3339(usage.last_ms),
        counted_since=rfc3339(usage.since_ms),
        recent_requests=usage.requests,
    )
