"""App identities: their secrets, and the ruleset that evaluates them."""

from __future__ import annotations

import uuid
from typing import Annotated, Final

import msgspec

from controlplane.names import new_id, valid_name
from controlplane.operations.actor import Actor, Role
from controlplane.operations.context import OperationContext
from controlplane.operations.lists import PART, ListRequest, ListResponse, by_column, read_list
from controlplane.operations.operation import Request, Response, operation
from controlplane.secrets import hash_client_secret, mint
from controlplane.store.interface import App, AppSecret
from proxy.wire.audit_event import rfc3339

MAX_GRACE_SECONDS: Final = 99_999 * 86_400


class AppFacts(Response):
    app_id: str
    name: str
    org_id: str
    client_id: str
    ruleset: str
    shadow_ruleset: str | None  # tried beside the other, for the audit events alone
    enabled: bool
    secret_version: int
    created_at: str


class SecretFacts(msgspec.Struct, rename="camel"):
    version: int
    expires_at: str | None


class AppDetails(AppFacts):
    ruleset_id: str
    secrets: tuple[SecretFacts, ...]  # the valid ones, newest first


class AppList(ListResponse):
    apps: tuple[AppFacts, ...]


class NewApp(Response):
    app_id: str
    client_id: str
    client_secret: str  # shown this once


class NewSecret(NewApp):
    secret_version: int


class AddApp(Request):
    name: str
    org: str
    ruleset: str


class ListApps(ListRequest, kw_only=True):
    org: str | None = None
    search: Annotated[str, msgspec.Meta(description=PART.replace("id", "id or client id"))] | None = None
    sort: Annotated[str, by_column("apps")] | None = None


class AppReference(Request):
    app: str  # id, client id or name
    org: str | None = None


class BindApp(AppReference, kw_only=True):
    ruleset: str


class SetShadow(AppReference):
    ruleset: str | None = None  # none any more


class PromoteShadow(AppReference):
    expected: str | None = None  # refused if a ruleset of another name than this is tried


class RotateSecret(AppReference):
    # How long the old secret stays valid; with 0 it and its tokens end at once.
    grace_seconds: Annotated[int, msgspec.Meta(ge=0, le=MAX_GRACE_SECONDS)] = 0
    expected: int | None = None  # refused if the newest secret has another version than this


@operation("app.add", "POST", "/apps")
async def add(context: OperationContext, actor: Actor, request: AddApp) -> NewApp:
    """Add an app identity. Its client secret is shown this once."""
    org = await context.resolve.org(actor, "admin", request.org)
    ruleset = await context.resolve.ruleset(actor, "viewer", request.ruleset, org.org_id)
    client_secret = mint("gws")
    app = App(
        app_id=new_id(context.clock),
        org_id=org.org_id,
        name=valid_name(request.name),
        client_id=str(uuid.uuid4()),
        ruleset_id=ruleset.ruleset_id,
        ruleset_name=ruleset.name,
        enabled=True,
        created_ms=context.clock.wall_ms(),
        secrets=(AppSecret(1, hash_client_secret(client_secret), None),),
    )
    await context.store.add_app(app)
    return NewApp(app_id=app.app_id, client_id=app.client_id, client_secret=client_secret)


@operation("app.list", "GET", "/apps")
async def list_all(context: OperationContext, actor: Actor, request: ListApps) -> AppList:
    """App identities, all of them or a page."""
    org_ids = await context.resolve.sight(actor, request.org)
    found = await read_list("apps", request, org_ids, context.store.list_apps)
    return AppList(apps=tuple(map(_facts, found.rows)), **found.place)


@operation("app.show", "GET", "/apps/{app}")
async def show(context: OperationContext, actor: Actor, request: AppReference) -> AppDetails:
    """One app identity, with its valid secrets by version."""
    app = await context.resolve.app(actor, "viewer", request.app, request.org)
    return AppDetails(
        **msgspec.structs.asdict(_facts(app)),
        ruleset_id=app.ruleset_id,
        secrets=tuple(
            SecretFacts(each.version, None if each.expires_ms is None else rfc3339(each.expires_ms))
            for each in app.secrets
        ),
    )


@operation("app.bind", "PUT", "/apps/{app}/ruleset")
async def bind(context: OperationContext, actor: Actor, request: BindApp) -> AppFacts:
    """Let another ruleset of its organisation evaluate the app identity."""
    app = await context.resolve.app(actor, "editor", request.app, request.org)
    ruleset = await context.resolve.ruleset(actor, "viewer", request.ruleset, app.org_id)
    return _facts(await context.store.bind_app(app.app_id, ruleset.ruleset_id))


@operation("app.shadow", "PUT", "/apps/{app}/shadow")
async def shadow(context: OperationContext, actor: Actor, request: SetShadow) -> AppFacts:
    """Try a ruleset beside the app identity's own: its verdicts stand in the audit events, and only there."""
    app = await context.resolve.app(actor, "editor", request.app, request.org)
    if request.ruleset is None:
        return _facts(await context.store.set_shadow(app.app_id, None))
    ruleset = await context.resolve.ruleset(actor, "viewer", request.ruleset, app.org_id)
    return _facts(await context.store.set_shadow(app.app_id, ruleset.ruleset_id))


@operation("app.promote-shadow", "POST", "/apps/{app}/promote-shadow")
async def promote_shadow(context: OperationContext, actor: Actor, request: PromoteShadow) -> AppFacts:
    """Let the shadow ruleset evaluate the app identity from now on."""
    app = await context.resolve.app(actor, "editor", request.app, request.org)
    return _facts(await context.store.promote_shadow(app.app_id, request.expected))


@operation("app.rotate-secret", "POST", "/apps/{app}/rotate-secret")
async def rotate_secret(context: OperationContext, actor: Actor, request: RotateSecret) -> NewSecret:
    """A new client secret, shown this once. Without a grace the old one and its tokens end at once."""
    app = await context.resolve.app(actor, "admin", request.app, request.org)
    client_secret = mint("gws")
    rotated = await context.store.rotate_secret(
        app.app_id, hash_client_secret(client_secret), request.grace_seconds * 1000, request.expected
    )
    return NewSecret(
        app_id=rotated.app_id,
        client_id=rotated.client_id,
        client_secret=client_secret,
        secret_version=rotated.secret_version,
    )


@operation("app.disable", "POST", "/apps/{app}/disable")
async def disable(context: OperationContext, actor: Actor, request: AppReference) -> AppFacts:
    """Refuse the app identity and every token of it, from the proxies' next sync on."""
    return await _set_enabled(context, actor, "editor", request, False)


@operation("app.enable", "POST", "/apps/{app}/enable")
async def enable(context: OperationContext, actor: Actor, request: AppReference) -> AppFacts:
    """Serve the app identity again."""
    return await _set_enabled(context, actor, "admin", request, True)


async def _set_enabled(
    context: OperationContext, actor: Actor, role: Role, request: AppReference, enabled: bool
) -> AppFacts:
    app = await context.resolve.app(actor, role, request.app, request.org)
    return _facts(await context.store.set_app_enabled(app.app_id, enabled))


def _facts(app: App) -> AppFacts:
    return AppFacts(
        app_id=app.app_id,
        name=app.name,
        org_id=app.org_id,
        client_id=app.client_id,
        ruleset=app.ruleset_name,
        shadow_ruleset=app.shadow_ruleset_name,
        enabled=app.enabled,
        secret_version=app.secret_version,
        created_at=rfc3339(app.created_ms),
    )
