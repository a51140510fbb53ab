"""Credentials of apps in addition to client secrets: token issuers, public keys and certificates."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

import msgspec

from controlplane import credential_input as given
from controlplane.as_code.present import PresentCredential, PresentSecret
from controlplane.as_code.wanted import (
    CREDENTIAL_LISTS,
    CredentialListName,
    WantedCertificate,
    WantedCredential,
    WantedFederated,
    WantedKey,
)
from controlplane.names import new_credential_id, secret_id
from controlplane.operations.actor import Actor
from controlplane.operations.apps import LONGEST_DAYS, AppReference
from controlplane.operations.context import OperationContext
from controlplane.operations.operation import InvalidRequest, Request, Response, Secret, operation
from controlplane.operations.times import as_rfc3339, end_of
from controlplane.store.interface import (
    App,
    AppCredential,
    Conflict,
    CredentialKind,
    CredentialUses,
    NotFound,
)
from controlplane.usage import DAY_MS
from proxy.wire.audit_event import rfc3339
from proxy.wire.models import (
    MOST_ISSUERS_OF_ORG,
    AssertionReuse,
    SyncCertificate,
    SyncFederated,
    SyncPublicKey,
)

SOON_DAYS: Final = 30  # days before the end of a credential from which it is marked as ending soon
_EXPIRES: Final = "End of the credential: RFC 3339, a date, or a time from now such as 90d."
_FILE: Final = "Text of the file. A private key is refused, and nothing of it is stored."
_REUSE: Final = (
    "once: an assertion brings one token. untilEnd: the same assertion brings tokens until it ends, for"
    " libraries that read it from a file, such as that of a Kubernetes service account."
)

Use = Literal["used", "never", "unknown"]
State = Literal["valid", "soon", "ended"]


class CredentialFacts(msgspec.Struct, rename="camel", omit_defaults=True):
    id: str
    kind: Literal["secret", CredentialKind]
    state: State  # soon: the credential ends within 30 days
    created_at: str
    use: Use  # never: not used since it was made; unknown: uses were not always recorded
    ends_at: str | None = None  # None: the credential never ends
    last_used: str | None = None  # time of the newest token that the credential brought
    version: int | None = None  # version of a client secret
    issuer: str | None = None
    subject: str | None = None  # subject of a token, or of a certificate
    audience: str | None = None
    reuse: AssertionReuse | None = None
    keys: int | None = None  # number of stored keys; None: the keys come from the issuer's discovery document
    key: str | None = None  # kind and size of the key
    thumbprint: str | None = None  # SHA-256 of a certificate, as base64url

    @property
    def pinned_by(self) -> str:
        """Return one line with the facts that an app's proof of identity must match."""
        match self.kind:
            case "secret":
                return f"version {self.version}"
            case "federated":
                return f"{self.issuer} {self.subject}"
            case "publicKey":
                return f"{self.key}, certificate {self.thumbprint}" if self.thumbprint else self.key or ""
            case "certificate":
                return f"{self.subject}, {self.thumbprint}"


class CredentialList(Response):
    credentials: tuple[CredentialFacts, ...]  # secrets first, newest secret first


class AddedCredential(Response):
    app_id: str
    client_id: str
    credential: CredentialFacts


class RemovedCredential(Response):
    app_id: str
    id: str


class EndingFacts(msgspec.Struct, rename="camel"):
    app_id: str
    app: str
    org_id: str
    id: str
    ends_at: str
    state: State


class EndingList(Response):
    credentials: tuple[EndingFacts, ...]  # credentials, soonest end first


class ListEnding(Request):
    org: str | None = None


class AddFederated(AppReference, kw_only=True):
    issuer: str
    subject: str
    audience: str = given.DEFAULT_AUDIENCE
    reuse: Annotated[AssertionReuse, msgspec.Meta(description=_REUSE)] = "once"
    keys: (
        Annotated[
            Secret,
            msgspec.Meta(description="JWKS of an issuer whose keys can't be discovered. " + _FILE),
        ]
        | None
    ) = None
    expires: Annotated[str, msgspec.Meta(description=_EXPIRES)] | None = None


class AddKey(AppReference, kw_only=True):
    key: Annotated[Secret, msgspec.Meta(description="PEM public key, PEM certificate or JWK. " + _FILE)]
    expires: Annotated[str, msgspec.Meta(description=_EXPIRES)] | None = None


class AddCertificate(AppReference, kw_only=True):
    certificate: Annotated[Secret, msgspec.Meta(description="PEM, or base64 of DER. " + _FILE)]
    expires: Annotated[str, msgspec.Meta(description=_EXPIRES)] | None = None


class CredentialReference(AppReference, kw_only=True):
    credential: str  # id of the credential


class EndCredential(CredentialReference, kw_only=True):
    expires: Annotated[str, msgspec.Meta(description=_EXPIRES)]


@operation("app.federated.add", "POST", "/apps/{app}/federated")
async def add_federated(context: OperationContext, actor: Actor, request: AddFederated) -> AddedCredential:
    """Let an app prove its identity with a token from an issuer such as Entra, Kubernetes or GitHub."""
    app = await context.resolve.app(actor, "admin", request.app, request.org)
    with _as_request():
        pins = SyncFederated(
            id="",
            issuer=given.checked_issuer(request.issuer),
            subject=given.checked_text("subject", request.subject),
            audience=given.checked_text("audience", request.audience),
            reuse=request.reuse,
            keys=None if request.keys is None else given.checked_jwks(request.keys),
        )
    if pins.keys is None:
        await _require_few_issuers(context, app.org_id, pins.issuer)
    identity = "\n".join((pins.issuer, pins.subject, pins.audience))
    return await _add(context, app, _New("federated", _pins(pins), identity), request.expires)


@operation("app.key.add", "POST", "/apps/{app}/keys")
async def add_key(context: OperationContext, actor: Actor, request: AddKey) -> AddedCredential:
    """Let an app prove its identity with assertions that it signs.

    Proxies verify the assertions of the app by the public key that this operation adds.
    """
    app = await context.resolve.app(actor, "admin", request.app, request.org)
    with _as_request():
        key = given.checked_key(request.key)
    if "kid" not in key.jwk and not key.thumbprints:
        _require_few_unnamed(app, context.clock.wall_ms())
    latest = None if key.ends_at is None else round(key.ends_at.timestamp() * 1000)
    pins = SyncPublicKey(id="", key=dict(key.jwk), thumbprints=key.thumbprints)
    identity = " ".join((key.identity, *key.thumbprints))
    return await _add(context, app, _New("publicKey", _pins(pins), identity, latest), request.expires)


def _require_few_unnamed(app: App, now_ms: int) -> None:
    """Raise Conflict if the app has too many public keys without a key ID.

    For an assertion, a proxy would have to try each key that has no key ID.
    """
    keys = [
        msgspec.json.decode(each.pins)
        for each in app.credentials
        if each.kind == "publicKey" and each.is_valid_at(now_ms)
    ]
    unnamed = [each for each in keys if "kid" not in each["key"] and not each.get("thumbprints")]
    if len(unnamed) >= given.MOST_UNNAMED_KEYS:
        raise Conflict(
            f"app {app.name} has {len(unnamed)} public keys without a `kid`: end one of them, or give the"
            " new key as a JWK with a `kid`, or give its certificate"
        )


@operation("app.certificate.add", "POST", "/apps/{app}/certificates")
async def add_certificate(
    context: OperationContext, actor: Actor, request: AddCertificate
) -> AddedCredential:
    """Let an app prove its identity with a client certificate of its TLS connection."""
    app = await context.resolve.app(actor, "admin", request.app, request.org)
    with _as_request():
        found = given.checked_certificate(request.certificate)
    latest = round(found.ends_at.timestamp() * 1000)
    pins = SyncCertificate(id="", certificate=found.der, thumbprint=found.thumbprint)
    return await _add(
        context, app, _New("certificate", _pins(pins), found.thumbprint, latest), request.expires
    )


@operation("app.credential.list", "GET", "/apps/{app}/credentials")
async def list_all(context: OperationContext, actor: Actor, request: AppReference) -> CredentialList:
    """List all credentials of an app, with the end time and the time of the last use of each."""
    app = await context.resolve.app(actor, "viewer", request.app, request.org)
    return CredentialList(credentials=await _described(context, app))


@operation("app.credential.ending", "GET", "/ending-credentials")
async def list_ending(context: OperationContext, actor: Actor, request: ListEnding) -> EndingList:
    """List the expired credentials of enabled apps, and those that expire within 30 days, soonest first."""
    org_ids = await context.resolve.sight(actor, request.org)
    now_ms = context.clock.wall_ms()
    found = await context.store.ending_credentials(org_ids, now_ms + SOON_DAYS * DAY_MS)
    return EndingList(
        credentials=tuple(
            EndingFacts(
                *(each.app_id, each.app, each.org_id, each.credential_id, rfc3339(each.ends_ms)),
                state=state_at(each.ends_ms, now_ms),
            )
            for each in found
        )
    )


@operation("app.credential.end", "PUT", "/apps/{app}/credentials/{credential}/end")
async def end(context: OperationContext, actor: Actor, request: EndCredential) -> AddedCredential:
    """Set the time when a credential ends.

    If the credential is a client secret, each older secret of the app ends at the same time or earlier.
    """
    app = await context.resolve.app(actor, "admin", request.app, request.org)
    held = await _held(context, app, request.credential)
    ends_ms = end_of("expires", request.expires, context.clock.wall_ms(), LONGEST_DAYS)
    if held.state == "ended":
        raise Conflict(f"credential {held.id} has ended already: add a new one")
    if held.thumbprint is not None and held.ends_at is not None and rfc3339(ends_ms) > held.ends_at:
        raise InvalidRequest(
            f"expires: the certificate expires at {held.ends_at}, and can't be used for longer"
        )
    after = await context.store.end_credential(app.app_id, held.id, ends_ms)
    context.results.append(f"{held.kind} {held.id} of {app.name} ends {rfc3339(ends_ms)}")
    return await _added(context, after, held.id)


@operation("app.credential.remove", "DELETE", "/apps/{app}/credentials/{credential}")
async def remove(context: OperationContext, actor: Actor, request: CredentialReference) -> RemovedCredential:
    """Remove a credential: the credential and its tokens end at the next sync of each proxy."""
    app = await context.resolve.app(actor, "admin", request.app, request.org)
    held = await _held(context, app, request.credential)
    await context.store.remove_credential(app.app_id, held.id)
    context.results.append(f"removed {held.kind} {held.id} of {app.name}: {held.pinned_by}")
    return RemovedCredential(app_id=app.app_id, id=held.id)


def state_at(ends_ms: int | None, now_ms: int) -> State:
    """Return the state (`valid`, `soon` or `ended`) of a credential at the time `now_ms`.

    The end time decides the state of client secrets, public keys, certificates and federated credentials
    alike.
    """
    if ends_ms is None or ends_ms - now_ms > SOON_DAYS * DAY_MS:
        return "valid"
    return "soon" if now_ms < ends_ms else "ended"


async def _require_few_issuers(context: OperationContext, org_id: str, issuer: str) -> None:
    """Raise Conflict if the organisation already has the maximum number of token issuers."""
    issuers = {
        pins["issuer"]
        for app in await context.store.apps(org_id)
        for each in app.credentials
        if each.kind == "federated" and (pins := msgspec.json.decode(each.pins))["keys"] is None
    }
    if len(issuers | {issuer}) > MOST_ISSUERS_OF_ORG and issuer not in issuers:
        raise Conflict(
            f"the apps of the organisation use {len(issuers)} issuers, and proxies fetch the keys of at most"
            f" {MOST_ISSUERS_OF_ORG}: remove the credentials of one issuer, or add the new one with its keys"
        )


@contextmanager
def _as_request() -> Iterator[None]:
    """Raise InvalidRequest for a text that can't be used as a credential."""
    try:
        yield
    except given.PrivateKeyGiven as error:
        raise InvalidRequest(
            f"{error}. Make a new key pair, because the private key has left the application"
        ) from None
    except given.InvalidCredential as error:
        raise InvalidRequest(str(error)) from None


def _pins(wire: SyncFederated | SyncPublicKey | SyncCertificate) -> str:
    """Return those JSON members of a credential, as proxies receive it, that have no column in the store."""
    members: dict[str, Any] = msgspec.to_builtins(wire)
    return msgspec.json.encode(
        {name: value for name, value in members.items() if name not in ("id", "kind", "endsAt")}
    ).decode()


@dataclass(frozen=True, slots=True)
class _New:
    """A new credential that passed its checks and is not stored yet."""

    kind: CredentialKind
    pins: str
    identity: str  # value that only one credential of this kind of an app can have
    latest_ms: int | None = None  # end of the certificate in Unix ms


async def _add(context: OperationContext, app: App, new: _New, expires: str | None) -> AddedCredential:
    """Add a credential that ends at the requested time, but no later than its certificate."""
    now_ms = context.clock.wall_ms()
    if new.latest_ms is not None and new.latest_ms <= now_ms:
        raise InvalidRequest(f"the certificate ended {rfc3339(new.latest_ms)}: give a valid certificate")
    asked_ms = end_of("expires", expires, now_ms, LONGEST_DAYS) if expires else None
    ends = [each for each in (asked_ms, new.latest_ms) if each is not None]
    credential = AppCredential(new_credential_id(), new.kind, new.pins, now_ms, min(ends, default=None))
    after = await context.store.add_credential(app.app_id, credential, new.identity)
    added = await _added(context, after, credential.credential_id)
    context.results.append(
        f"added {new.kind} {added.credential.id} of {app.name}: {added.credential.pinned_by}"
    )
    return added


async def _added(context: OperationContext, app: App, credential_id: str) -> AddedCredential:
    return AddedCredential(
        app_id=app.app_id, client_id=app.client_id, credential=await _held(context, app, credential_id)
    )


async def _held(context: OperationContext, app: App, credential_id: str) -> CredentialFacts:
    found = await _described(context, app)
    held = next((each for each in found if each.id == credential_id), None)
    if held is None:
        raise NotFound(
            f"app {app.name} has no credential {credential_id}: `app credential list` shows the IDs"
            " of credentials"
        )
    return held


async def _described(context: OperationContext, app: App) -> tuple[CredentialFacts, ...]:
    uses = (await context.store.credential_uses([app.app_id]))[app.app_id]
    return tuple(credentials_of(app, uses, context.clock.wall_ms()))


def credentials_of(app: App, uses: CredentialUses, now_ms: int) -> list[CredentialFacts]:
    """Return all credentials of an app: client secrets first, with the newest secret first.

    The result omits an expired client secret if the app has a newer secret.
    """
    secrets = list(app.secrets)
    if app.newest_secret is not None and app.newest_secret not in secrets:
        secrets.insert(0, app.newest_secret)
    found = [
        CredentialFacts(
            id=secret_id(app.app_id, each.version),
            kind="secret",
            state=state_at(each.expires_ms, now_ms),
            created_at=rfc3339(each.created_ms),
            use="unknown",
            ends_at=as_rfc3339(each.expires_ms),
            version=each.version,
        )
        for each in secrets
    ]
    found += (
        CredentialFacts(
            id=each.credential_id,
            kind=each.kind,
            state=state_at(each.ends_ms, now_ms),
            created_at=rfc3339(each.created_ms),
            use="unknown",
            ends_at=as_rfc3339(each.ends_ms),
            **_pinned(each),
        )
        for each in app.credentials
    )
    return [_with_use(each, uses) for each in found]


def _pinned(credential: AppCredential) -> dict[str, Any]:
    pins: dict[str, Any] = msgspec.json.decode(credential.pins)
    match credential.kind:
        case "federated":
            keys = pins.pop("keys")
            return pins | {"keys": None if keys is None else len(keys["keys"])}
        case "publicKey":
            return {
                "key": given.key_words(pins["key"]),
                "thumbprint": next(reversed(pins["thumbprints"]), None),
            }
        case "certificate":
            subject = given.checked_certificate(pins["certificate"]).subject
            return {"subject": subject, "thumbprint": pins["thumbprint"]}


def present_secret(app: App) -> PresentSecret | None:
    """Return the newest client secret of an app in the form that a plan compares."""
    newest = app.newest_secret
    if newest is None:
        return None
    return PresentSecret(secret_id(app.app_id, newest.version), as_rfc3339(newest.expires_ms))


def present_credentials(app: App) -> dict[CredentialListName, tuple[PresentCredential, ...]]:
    """Return an app's credentials except client secrets, in the groups and form that a plan compares."""
    found: dict[CredentialListName, list[PresentCredential]] = {name: [] for name in CREDENTIAL_LISTS}
    for each in app.credentials:
        ends = as_rfc3339(each.ends_ms)
        name, wanted = _as_wanted(each, ends)
        found[name].append(PresentCredential(each.credential_id, wanted, ends))
    return {name: tuple(credentials) for name, credentials in found.items()}


def _as_wanted(credential: AppCredential, ends: str | None) -> tuple[CredentialListName, WantedCredential]:
    pins: dict[str, Any] = msgspec.json.decode(credential.pins)
    match credential.kind:
        case "federated":
            keys = pins.pop("keys")
            text = "" if keys is None else msgspec.json.encode(keys).decode()
            return "federated", WantedFederated(**pins, keys=text, ends=ends)
        case "publicKey":
            jwk = given.with_thumbprints(pins["key"], pins["thumbprints"])
            return "keys", WantedKey(msgspec.json.encode(jwk).decode(), ends)
        case "certificate":
            text = pins["certificate"]
            own = given.checked_certificate(text).ends_at
            is_own = ends == rfc3339(round(own.timestamp() * 1000))
            return "certificates", WantedCertificate(text, None if is_own else ends)


def _with_use(credential: CredentialFacts, uses: CredentialUses) -> CredentialFacts:
    last_ms = uses.last_ms.get(credential.id)
    if last_ms is not None:
        return msgspec.structs.replace(credential, use="used", last_used=rfc3339(last_ms))
    # An earlier release of a proxy does not report which credential brought a token.
    unnamed_ms = uses.last_ms.get("", 0)
    if credential.created_at <= rfc3339(max(unnamed_ms, uses.since_ms)):
        return credential
    return msgspec.structs.replace(credential, use="never")
