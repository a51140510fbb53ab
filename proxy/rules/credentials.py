"""Credentials of an application, as plain values that a worker and the agent share."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final, assert_never

import msgspec

from proxy.rules.snapshot import App
from proxy.wire.models import (
    AssertionReuse,
    SyncApp,
    SyncCertificate,
    SyncCredential,
    SyncFederated,
    SyncPublicKey,
    SyncSecret,
)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Secret:
    """A client secret of an application, stored as its argon2 hash."""

    id: str
    ends_at: float | None  # Unix time from which the credential is rejected, in seconds; None: no end
    hash: str


@dataclass(frozen=True, slots=True)
class Federated:
    """A federated credential: trusts an external issuer's tokens with a given subject and audience."""

    id: str
    ends_at: float | None
    issuer: str
    subject: str
    audience: str
    reuse: AssertionReuse
    keys: dict[str, Any] | None  # JWKS; None: the agent reads the issuer's keys from its discovery document


@dataclass(frozen=True, slots=True)
class PublicKey:
    """A public key with which the proxy verifies client assertions that the application signs."""

    id: str
    ends_at: float | None
    key: dict[str, Any]  # JWK
    thumbprints: tuple[str, ...]  # x5t and x5t#S256 of the certificate that the key came in


@dataclass(frozen=True, slots=True)
class Certificate:
    """A client certificate that an application uses for its TLS connections to the proxy."""

    id: str
    ends_at: float | None
    certificate: bytes  # DER
    thumbprint: str  # SHA-256 of the DER, as base64url


ENDED: Final = 0.0  # `ends_at` of a credential that has expired by the clock of the control plane

Credential = Secret | Federated | PublicKey | Certificate

_decoder = msgspec.json.Decoder(SyncCredential)


def readable_credentials(app: SyncApp) -> tuple[SyncCredential, ...] | None:
    """Return an application's credentials in a sync response, or None without a list of credentials.

    The proxy ignores a credential of an unsupported kind or form, so this credential authenticates nobody.
    The supported credentials of the application stay usable, even if another credential is ignored.
    """
    return None if app.credentials is msgspec.UNSET else _readable(app, app.credentials)


def readable_ended(app: SyncApp) -> tuple[SyncCredential, ...]:
    """Return the expired credentials of an application in a sync response."""
    return () if app.ended_credentials is msgspec.UNSET else _readable(app, app.ended_credentials)


def _readable(app: SyncApp, listed: Iterable[msgspec.Raw]) -> tuple[SyncCredential, ...]:
    readable = []
    for raw in listed:
        try:
            credential = _decoder.decode(raw)
            _unix_seconds(credential.ends_at)
        except ValueError as error:
            log.warning("application %s: ignored a credential of the sync response: %s", app.app_id, error)
            continue
        readable.append(credential)
    return tuple(readable)


def credentials_of(app: App) -> tuple[Credential, ...] | None:
    """Return an application's credentials from the snapshot; None if the snapshot has only secret hashes.

    The expired credentials are at the end of the returned tuple.
    """
    if app.credentials is None:
        return None
    ended = (replace(_plain(each), ends_at=ENDED) for each in app.ended_credentials)
    return (*map(_plain, app.credentials), *ended)


def _plain(held: SyncCredential) -> Credential:
    ends_at = _unix_seconds(held.ends_at)
    match held:
        case SyncSecret():
            return Secret(held.id, ends_at, held.hash)
        case SyncFederated():
            return Federated(
                *(held.id, ends_at, held.issuer, held.subject, held.audience, held.reuse), keys=held.keys
            )
        case SyncPublicKey():
            return PublicKey(held.id, ends_at, held.key, held.thumbprints)
        case SyncCertificate():
            return Certificate(held.id, ends_at, held.certificate, held.thumbprint)
        case _:
            assert_never(held)


def _unix_seconds(text: str | None) -> float | None:
    """Convert an RFC 3339 time in a sync response to Unix seconds.

    Raise ValueError if the text is not an RFC 3339 time.
    """
    if text is None:
        return None
    moment = datetime.fromisoformat(text)
    return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()
