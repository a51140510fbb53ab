"""Deletions of objects, with their effects: objects that go, that stay, and that must be deleted first."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Final, Literal, get_args

import msgspec

from controlplane.operations.actor import Actor
from controlplane.operations.apps import AppReference
from controlplane.operations.context import OperationContext
from controlplane.operations.models import root_of
from controlplane.operations.operation import InvalidRequest, Request, Response, operation
from controlplane.operations.operators import OperatorReference, require_all_of
from controlplane.operations.orgs import OrgReference
from controlplane.operations.proxies import ProxyReference
from controlplane.operations.rulesets import RulesetReference
from controlplane.reports import Heartbeat
from controlplane.store.interface import (
    RETENTION_WORDS,
    App,
    Conflict,
    NotFound,
    Operator,
    Org,
    Ruleset,
    Tombstone,
    TombstoneKind,
)
from proxy.wire.audit_event import rfc3339

Kind = Literal["org", "app", "ruleset", "proxy", "operator", "model"]
_ROOT: Final = "Root path of the service, with or without the slash at its beginning."


class Deleted(Response):
    kind: Kind
    id: str  # id; a schema has its digest here
    name: str
    deleted_at: str
    deleted_by: str


class Effect(Response):
    """Effect that the deletion of an object, such as an application, would have if it happened now."""

    kind: Kind
    id: str
    name: str
    goes: tuple[str, ...]
    stays: tuple[str, ...]
    refused: str | None  # reason why the thing can't be deleted now
    version: int | None  # active version of a ruleset; give it as `expected` of the deletion


class DeletedFacts(msgspec.Struct, rename="camel"):
    kind: TombstoneKind
    id: str
    name: str
    label: str  # name and date; commands and filters accept this label too
    orgs: tuple[str, ...]  # ids of the organisations that the thing belonged to
    deleted_at: str
    deleted_by: str


class DeletionList(Response):
    deletions: tuple[DeletedFacts, ...]


class ListDeletions(Request):
    pass


class DeleteRuleset(RulesetReference):
    expected: Annotated[int, msgspec.Meta(description="Version that must be the active one.")] | None = None


class DeleteModel(Request):
    org: str
    root: Annotated[str, msgspec.Meta(description=_ROOT)]


class EffectOfDeletion(Request):
    kind: Kind
    thing: Annotated[str, msgspec.Meta(description="ID or name. For a schema, the root path of its service.")]
    org: Annotated[str, msgspec.Meta(description="Organisation of the app, ruleset or schema.")] | None = None


@operation("app.delete", "DELETE", "/apps/{app}")
async def delete_app(context: OperationContext, actor: Actor, request: AppReference) -> Deleted:
    """Delete an application, but no audit events: its secrets and tokens end at each proxy's next sync."""
    app = await context.resolve.app(actor, "admin", request.app, request.org)
    return _deleted(context, await context.store.delete_app(app.app_id, actor.name))


@operation("ruleset.delete", "DELETE", "/rulesets/{ruleset}")
async def delete_ruleset(context: OperationContext, actor: Actor, request: DeleteRuleset) -> Deleted:
    """Delete a ruleset, if no application uses the ruleset and no open proposal names it."""
    found = await context.resolve.ruleset(actor, "editor", request.ruleset, request.org)
    gone = await context.store.delete_ruleset(found.ruleset_id, actor.name, request.expected)
    return _deleted(context, gone)


@operation("proxy.delete", "DELETE", "/proxies/{proxy}")
async def delete_proxy(context: OperationContext, actor: Actor, request: ProxyReference) -> Deleted:
    """Delete a proxy, and end its keys at once.

    The control plane keeps the audit events that the proxy delivered before its deletion. Audit events that
    the proxy did not deliver before its deletion are lost.
    """
    proxy = await context.resolve.proxy(actor, "admin", request.proxy)
    return _deleted(context, await context.store.delete_proxy(proxy.proxy_id, actor.name))


@operation("org.delete", "DELETE", "/orgs/{org}")
async def delete_org(context: OperationContext, actor: Actor, request: OrgReference) -> Deleted:
    """Delete an organisation that has no applications, together with its rulesets and roles.

    The deletion of an organisation keeps its audit events until the retention of the events ends.
    """
    actor.require("admin", None)
    org = await context.resolve.org(actor, "admin", request.org)
    return _deleted(context, await context.store.delete_org(org.org_id, actor.name))


@operation("operator.delete", "DELETE", "/operators/{operator}")
async def delete_operator(context: OperationContext, actor: Actor, request: OperatorReference) -> Deleted:
    """Delete an operator: the sessions and API tokens of this operator end at once.

    Lines of the operator log still show the name of a deleted operator.
    """
    operator = await context.resolve.operator(actor, request.operator)
    require_all_of(actor, operator)
    _require_another(actor, operator)
    return _deleted(context, await context.store.delete_operator(operator.operator_id, actor.name))


@operation("model.delete", "DELETE", "/orgs/{org}/models/{root}")
async def delete_model(context: OperationContext, actor: Actor, request: DeleteModel) -> Deleted:
    """Delete the schema of a root path such as `/v1.0`, if no active ruleset uses the schema.

    Older ruleset versions keep the schemas that they use.
    """
    org = await context.resolve.org(actor, "editor", request.org)
    root = _root(request.root)
    digest = await context.store.delete_schema(org.org_id, root)
    context.results.append(f"deleted the schema {root}, digest {digest}")
    return Deleted(
        kind="model",
        id=digest,
        name=root,
        deleted_at=rfc3339(context.clock.wall_ms()),
        deleted_by=actor.name,
    )


@operation("deletion.list", "GET", "/deletions")
async def list_all(context: OperationContext, actor: Actor, request: ListDeletions) -> DeletionList:
    """List, by name, the deleted objects whose names still occur in audit events or in the operator log."""
    found = await context.resolve.all_deleted(actor, get_args(TombstoneKind))
    return DeletionList(
        tuple(
            DeletedFacts(
                kind=each.kind,
                id=each.id,
                name=each.name,
                label=each.label,
                orgs=each.org_ids,
                deleted_at=rfc3339(each.deleted_ms),
                deleted_by=each.deleted_by,
            )
            for each in sorted(found, key=lambda each: (each.name, each.deleted_ms))
        )
    )


@operation("deletion.effect", "GET", "/deletion-effect")
async def effect(context: OperationContext, actor: Actor, request: EffectOfDeletion) -> Effect:
    """Show the effect of a deletion without deleting anything, and the reason if the deletion is refused."""
    found = await _EFFECTS[request.kind](context, actor, request)
    return Effect(
        kind=request.kind,
        id=found.id,
        name=found.name,
        goes=found.goes,
        stays=found.stays,
        refused=found.refused,
        version=found.version,
    )


def _deleted(context: OperationContext, gone: Tombstone) -> Deleted:
    context.results.append(f"deleted {gone.kind} {gone.name}, id {gone.id}")
    return Deleted(
        kind=gone.kind,
        id=gone.id,
        name=gone.name,
        deleted_at=rfc3339(gone.deleted_ms),
        deleted_by=gone.deleted_by,
    )


def _require_another(actor: Actor, operator: Operator) -> None:
    if actor.is_named(operator.name):
        raise Conflict("you can't delete yourself: another admin must do it")


def _root(text: str) -> str:
    return root_of(text if text.startswith("/") else f"/{text}")


# Effects of deletions


@dataclass(frozen=True, slots=True)
class _Effect:
    id: str
    name: str
    goes: tuple[str, ...]
    stays: tuple[str, ...]
    refused: str | None = None
    version: int | None = None


async def _of_app(context: OperationContext, actor: Actor, request: EffectOfDeletion) -> _Effect:
    app: App = await context.resolve.app(actor, "viewer", request.thing, request.org)
    org = await context.resolve.org(actor, "viewer", app.org_id)
    return _Effect(
        app.app_id,
        app.name,
        (
            f"the client ID {app.client_id} with its secrets and tokens, at the next sync of each proxy",
            "open proposals for it, and its emergency stop",
        ),
        (_events_stay(org), f"the ruleset {app.ruleset_name}"),
    )


async def _of_ruleset(context: OperationContext, actor: Actor, request: EffectOfDeletion) -> _Effect:
    found: Ruleset = await context.resolve.ruleset(actor, "viewer", request.thing, request.org)
    users = await context.store.ruleset_users(found.ruleset_id)
    return _Effect(
        found.ruleset_id,
        found.name,
        (f"the ruleset with its history, version 1 to {found.version}",),
        ("the texts that explain stored audit events, as long as such events are stored",),
        "; ".join(users) or None,
        found.version,
    )


async def _of_proxy(context: OperationContext, actor: Actor, request: EffectOfDeletion) -> _Effect:
    proxy = await context.resolve.proxy(actor, "viewer", request.thing)
    newest = (await context.store.latest_reports([proxy.proxy_id], 0))[proxy.proxy_id].heartbeat
    said = None if newest is None else msgspec.json.decode(newest.body, type=Heartbeat)
    pending = "" if said is None else f"{said.audit_pending or 0} as of its last heartbeat; "
    seen = "it was never seen" if proxy.last_seen_ms is None else f"last seen {rfc3339(proxy.last_seen_ms)}"
    return _Effect(
        proxy.proxy_id,
        proxy.name,
        (
            "its API key and HMAC secret, at once: every request with them is refused",
            f"its audit events that did not arrive ({pending}{seen})",
            "its figures and its place in the fleet",
        ),
        (
            "its audit events that arrived, searchable by its name and id",
            "its last heartbeat and its missing numbers, for audit reports",
            "the running proxy itself, which serves with its last rules until you stop it",
        ),
    )


async def _of_org(context: OperationContext, actor: Actor, request: EffectOfDeletion) -> _Effect:
    org = await context.resolve.org(actor, "viewer", request.thing)
    apps = [each.name for each in await context.resolve.apps(actor, org.org_id)]
    rulesets = [each.name for each in await context.resolve.rulesets(actor, org.org_id)]
    proxies = [each.name for each in await context.resolve.proxies(actor, org.org_id)]
    return _Effect(
        org.org_id,
        org.name,
        (
            f"its rulesets: {', '.join(rulesets) or 'none'}",
            f"its place at these proxies, which stay: {', '.join(proxies) or 'none'}",
            "its schemas, proposals and emergency stops, and every operator's role in it",
        ),
        (
            _events_stay(org),
            "the chain of its events, which operators with a role in every organisation can verify",
            "the right of those proxies to deliver the events that they have not delivered yet",
        ),
        f"it has apps, which would lose service: {', '.join(apps)}" if apps else None,
    )


async def _of_operator(context: OperationContext, actor: Actor, request: EffectOfDeletion) -> _Effect:
    operator = await context.resolve.operator(actor, request.thing)
    return _Effect(
        operator.operator_id,
        operator.name,
        ("the account with its roles", "its sessions and API tokens, at once", "its open proposals"),
        _kept_of(operator),
        "it is your own account: another admin must delete it" if actor.is_named(operator.name) else None,
    )


def _kept_of(operator: Operator) -> tuple[str, ...]:
    if operator.provided is None:
        return ("the name in the operator log",)
    return (
        "the name in the operator log",
        "the person's groups, by which the next sign-in makes a new operator: disable this one instead",
    )


async def _of_model(context: OperationContext, actor: Actor, request: EffectOfDeletion) -> _Effect:
    if request.org is None:
        raise InvalidRequest("org: is missing; name the organisation of the schema")
    org = await context.resolve.org(actor, "viewer", request.org)
    root = _root(request.thing)
    held = [each for each in await context.store.org_schemas(org.org_id) if each.root == root]
    current = next((each for each in held if each.is_current), None)
    if current is None:
        raise NotFound(f"organisation {org.name} has no schema for the root path {root}")
    uses = await context.store.schema_uses(org.org_id, root)
    users = [f"{each.ruleset}@{each.version}" for each in uses if each.in_force]
    return _Effect(
        current.digest,
        root,
        (f"the schema of {root} for rulesets that are applied from now on",),
        ("the schemas that older versions of rulesets name",),
        f"active rulesets name it: {', '.join(users)}" if users else None,
    )


def _events_stay(org: Org) -> str:
    return f"its audit events, kept for {RETENTION_WORDS[org.retention]} and searchable by its name and id"


_Look = Callable[[OperationContext, Actor, EffectOfDeletion], Awaitable[_Effect]]
_EFFECTS: Final[Mapping[Kind, _Look]] = {
    "org": _of_org,
    "app": _of_app,
    "ruleset": _of_ruleset,
    "proxy": _of_proxy,
    "operator": _of_operator,
    "model": _of_model,
}
