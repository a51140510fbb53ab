"""Proxy instances: their credentials, and the organisations that they serve.

The module `fleet` reports the health of proxies.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from controlplane.names import new_id
from controlplane.operations.actor import Actor
from controlplane.operations.context import OperationContext
from controlplane.operations.naming import add_named
from controlplane.operations.operation import InvalidRequest, Request, Response, operation
from controlplane.secrets import digest, mint
from controlplane.store.interface import Acknowledgement, Losses, NewKeys, Proxy
from proxy.wire.audit_event import rfc3339

MAX_GRACE_SECONDS: Final = 366 * 86_400


class ProxyFacts(Response):
    proxy_id: str
    name: str
    orgs: tuple[str, ...]  # names of the organisations that the actor has permission to look at
    enabled: bool
    last_seen: str | None


class NewProxySecrets(Response):
    """A proxy with its new API key and HMAC secret, which are shown only once."""

    proxy_id: str
    api_key: str
    hmac_secret: str


class AddProxy(Request):
    name: str
    orgs: tuple[str, ...]


class ProxyReference(Request):
    proxy: str  # id or name


class RotateProxySecret(ProxyReference):
    expected: int | None = None  # version of the secrets; refused if it is another one
    grace_seconds: Annotated[int, msgspec.Meta(ge=0, le=MAX_GRACE_SECONDS)] = (
        0  # time during which the old and the new secrets both work
    )


class OrgOfProxy(ProxyReference):
    org: str


class ExpectedLosses(Request):
    missing: int
    repeated: int
    implausible: int


class AcknowledgeLosses(ProxyReference):
    note: str  # explanation of the losses, stored in the operator log
    org: str | None = None  # default: all of the proxy's organisations
    expected: ExpectedLosses | None = None  # expected losses of the organisation; refused if they differ


class Acknowledged(Response):
    """Numbers of missing, repeated and implausible events that an API request acknowledged."""

    proxy_id: str
    name: str
    missing: int
    repeated: int
    implausible: int


@operation("proxy.add", "POST", "/proxies")
async def add(context: OperationContext, actor: Actor, request: AddProxy) -> NewProxySecrets:
    """Add a proxy instance.

    The response shows the proxy's API key and HMAC secret only once.
    """
    if not request.orgs:
        raise InvalidRequest("orgs: is empty; a proxy serves at least one organisation")
    org_ids = [(await context.resolve.org(actor, "admin", org)).org_id for org in request.orgs]
    vault = await context.vault()
    proxy = Proxy(
        proxy_id=new_id(context.clock),
        name=request.name,
        enabled=True,
        created_ms=context.clock.wall_ms(),
        last_seen_ms=None,
        secret_version=1,
        org_ids=tuple(dict.fromkeys(org_ids)),
    )
    secrets = _mint(proxy.proxy_id)
    sealed = vault.seal(proxy.proxy_id, secrets.hmac_secret)
    await add_named(
        context.store,
        proxy.name,
        lambda store: store.proxies(None),
        lambda store: store.add_proxy(proxy, digest(secrets.api_key), sealed),
    )
    return secrets


@operation("proxy.grant", "PUT", "/proxies/{proxy}/orgs/{org}")
async def grant(context: OperationContext, actor: Actor, request: OrgOfProxy) -> ProxyFacts:
    """Add an organisation to the organisations that a proxy serves."""
    org = await context.resolve.org(actor, "admin", request.org)
    proxy = await context.resolve.proxy(actor, "admin", request.proxy)
    return await _facts(context, actor, await context.store.grant(proxy.proxy_id, org.org_id))


@operation("proxy.revoke", "DELETE", "/proxies/{proxy}/orgs/{org}")
async def revoke(context: OperationContext, actor: Actor, request: OrgOfProxy) -> ProxyFacts:
    """Remove an organisation from the organisations that a proxy serves.

    The control plane immediately refuses the organisation's events from the proxy. At the next sync, the
    proxy drops the rules of the removed organisation.
    """
    org = await context.resolve.org(actor, "admin", request.org)
    proxy = await context.resolve.proxy(actor, "viewer", request.proxy)
    return await _facts(context, actor, await context.store.revoke(proxy.proxy_id, org.org_id))


@operation("proxy.acknowledge", "POST", "/proxies/{proxy}/acknowledge")
async def acknowledge(context: OperationContext, actor: Actor, request: AcknowledgeLosses) -> Acknowledged:
    """Acknowledge a proxy's missing events, repeated sequence numbers and implausible times.

    Losses that happened before the acknowledgement no longer count against the health of the proxy.
    """
    if not request.note.strip():
        raise InvalidRequest("note: enter an explanation of the lost events")
    proxy = await context.resolve.proxy(actor, "viewer", request.proxy)
    orgs = [
        await context.resolve.org(actor, "admin", org)
        for org in (proxy.org_ids if request.org is None else (request.org,))
    ]
    given = Acknowledgement(context.clock.wall_ms(), actor.name, request.note)
    expected = None if request.expected is None else Losses(*msgspec.structs.astuple(request.expected))
    if expected is not None and len(orgs) != 1:
        raise InvalidRequest("expected: also give org, the organisation of the expected losses")
    found = [
        await context.store.acknowledge_losses(proxy.proxy_id, org.org_id, given, expected) for org in orgs
    ]
    missing, repeated, implausible = (sum(each) for each in zip(*found, strict=True)) if found else (0, 0, 0)
    return Acknowledged(
        proxy_id=proxy.proxy_id,
        name=proxy.name,
        missing=missing,
        repeated=repeated,
        implausible=implausible,
    )


@operation("proxy.rotate-secret", "POST", "/proxies/{proxy}/rotate-secret")
async def rotate_secret(
    context: OperationContext, actor: Actor, request: RotateProxySecret
) -> NewProxySecrets:
    """Make a new API key and HMAC secret for a proxy, which the response shows only once.

    Without a grace period, the old API key and HMAC secret end immediately.
    """
    proxy = await context.resolve.proxy(actor, "admin", request.proxy)
    vault, secrets = await context.vault(), _mint(proxy.proxy_id)
    keys = NewKeys(digest(secrets.api_key), vault.seal(proxy.proxy_id, secrets.hmac_secret))
    grace_ms = request.grace_seconds * 1000
    await context.store.set_proxy_credentials(proxy.proxy_id, keys, request.expected, grace_ms)
    return secrets


@operation("proxy.disable", "POST", "/proxies/{proxy}/disable")
async def disable(context: OperationContext, actor: Actor, request: ProxyReference) -> ProxyFacts:
    """Disable a proxy: refuse its API key from now on."""
    return await _set_enabled(context, actor, request.proxy, False)


@operation("proxy.enable", "POST", "/proxies/{proxy}/enable")
async def enable(context: OperationContext, actor: Actor, request: ProxyReference) -> ProxyFacts:
    """Enable a proxy: accept its API key again."""
    return await _set_enabled(context, actor, request.proxy, True)


async def _set_enabled(context: OperationContext, actor: Actor, reference: str, enabled: bool) -> ProxyFacts:
    proxy = await context.resolve.proxy(actor, "admin", reference)
    return await _facts(context, actor, await context.store.set_proxy_enabled(proxy.proxy_id, enabled))


async def _facts(context: OperationContext, actor: Actor, proxy: Proxy) -> ProxyFacts:
    names = await context.resolve.org_names(actor, proxy.org_ids)
    return ProxyFacts(
        proxy_id=proxy.proxy_id,
        name=proxy.name,
        orgs=tuple(names[org_id] for org_id in proxy.org_ids if org_id in names),
        enabled=proxy.enabled,
        last_seen=None if proxy.last_seen_ms is None else rfc3339(proxy.last_seen_ms),
    )


def _mint(proxy_id: str) -> NewProxySecrets:
    return NewProxySecrets(proxy_id=proxy_id, api_key=mint("gwk"), hmac_secret=mint("gwh"))
