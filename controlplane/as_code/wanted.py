"""Organisations, applications and other objects that a configuration directory requests, as plain values.

If the configuration omits a key, the corresponding attribute of the object is None. If the configuration
omits a list, a plan does not add, change or delete any entry of the list. If the configuration omits a state
such as `enabled`, a plan does not change this state.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Any, Final, Literal

import msgspec

from controlplane.credential_input import (
    DEFAULT_AUDIENCE,
    checked_certificate,
    checked_jwks,
    checked_key,
    key_words,
)
from controlplane.store.interface import Retention, Role
from proxy.policy.ending import parse_until
from proxy.wire.audit_event import rfc3339
from proxy.wire.models import AssertionReuse


def as_end(text: str) -> str:
    """Return a time in RFC 3339 in the form that the control plane writes.

    Raise ValueError if the text is not a time in RFC 3339.
    """
    return rfc3339(round(parse_until(text).end * 1000))


class WantedRuleset(msgspec.Struct, rename="camel", frozen=True, forbid_unknown_fields=True):
    name: str  # name in the text
    yaml: str
    file: str = "yaml"  # name of the text's format in messages


class WantedFederated(msgspec.Struct, rename="camel", frozen=True, forbid_unknown_fields=True, order=True):
    issuer: str
    subject: str
    audience: str = DEFAULT_AUDIENCE
    reuse: AssertionReuse = "once"
    keys: str = ""  # JWKS; empty if proxies discover the keys of the issuer
    ends: str | None = None

    def __post_init__(self) -> None:
        _check_end(self.ends)
        if self.keys:
            checked_jwks(self.keys)

    @property
    def facts(self) -> dict[str, Any]:
        """Facts that identify a federated credential.

        If any of these facts differs, a plan treats the credential as a different credential.
        """
        own = {"issuer": self.issuer, "subject": self.subject, "audience": self.audience, "reuse": self.reuse}
        if not self.keys:
            return own
        keys = msgspec.json.encode(checked_jwks(self.keys), order="sorted")
        return own | {"keys": f"sha256:{sha256(keys).hexdigest()}"}


class WantedKey(msgspec.Struct, rename="camel", frozen=True, forbid_unknown_fields=True):
    key: str  # PEM public key, PEM certificate or JWK
    ends: str | None = None

    def __post_init__(self) -> None:
        _check_end(self.ends)
        checked_key(self.key)

    @property
    def facts(self) -> dict[str, Any]:
        """Facts that identify a public key when a plan compares credentials.

        If any fact of the key differs between the store and the configuration, the plan treats the public
        keys as two credentials.
        """
        given = checked_key(self.key)
        named = {each: given.jwk[each] for each in ("kid", "alg") if each in given.jwk}
        facts = {"key": key_words(given.jwk), "thumbprint": given.identity, **named}
        return facts | ({"certificate": given.thumbprints[-1]} if given.thumbprints else {})


class WantedCertificate(msgspec.Struct, rename="camel", frozen=True, forbid_unknown_fields=True):
    certificate: str  # PEM, or base64 of DER
    ends: str | None = None

    def __post_init__(self) -> None:
        _check_end(self.ends)
        checked_certificate(self.certificate)

    @property
    def facts(self) -> dict[str, Any]:
        """Facts that identify a certificate.

        If the subject or thumbprint differs between the store and the configuration, the plan treats the
        certificates as two credentials.
        """
        given = checked_certificate(self.certificate)
        return {"subject": given.subject, "thumbprint": given.thumbprint}


CredentialListName = Literal["federated", "keys", "certificates"]
CREDENTIAL_LISTS: Final[tuple[CredentialListName, ...]] = ("federated", "keys", "certificates")
WantedCredential = WantedFederated | WantedKey | WantedCertificate


def _check_end(ends: str | None) -> None:
    if ends is not None:
        as_end(ends)


class WantedApp(msgspec.Struct, rename="camel", frozen=True, forbid_unknown_fields=True):
    name: str
    ruleset: str
    shadow: str | None = None  # None: no shadow ruleset
    owner: str | None = None  # None: no owner
    note: str | None = None  # None: no note
    enabled: bool | None = None
    secret: bool | None = None  # false: a new app gets no client secret
    secret_ends: str | None = None  # end of the newest client secret
    federated: tuple[WantedFederated, ...] | None = None
    keys: tuple[WantedKey, ...] | None = None
    certificates: tuple[WantedCertificate, ...] | None = None

    def __post_init__(self) -> None:
        _check_end(self.secret_ends)

    def credentials(self, name: CredentialListName) -> tuple[WantedCredential, ...] | None:
        """Return the credentials of the app in the list `name` of the configuration file.

        Return None if the configuration file does not contain the list `name`.
        """
        lists = {"federated": self.federated, "keys": self.keys, "certificates": self.certificates}
        return lists[name]


class WantedSchema(msgspec.Struct, rename="camel", frozen=True, forbid_unknown_fields=True):
    root: str
    digest: str
    file: str = "document"
    document: str | None = None  # required only if the organisation gets the schema now


class WantedOrg(msgspec.Struct, rename="camel", frozen=True, forbid_unknown_fields=True):
    name: str
    retention: Retention | None = None
    second_person: bool | None = None
    rulesets: tuple[WantedRuleset, ...] | None = None
    apps: tuple[WantedApp, ...] | None = None
    schemas: tuple[WantedSchema, ...] | None = None


class WantedProxy(msgspec.Struct, rename="camel", frozen=True, forbid_unknown_fields=True):
    name: str
    orgs: tuple[str, ...]
    enabled: bool | None = None


class WantedOperator(msgspec.Struct, rename="camel", frozen=True, forbid_unknown_fields=True):
    name: str
    roles: dict[str, Role]  # keys are names of organisations; "*" means every organisation
    enabled: bool | None = None


class Wanted(msgspec.Struct, rename="camel", frozen=True, forbid_unknown_fields=True):
    organisations: tuple[WantedOrg, ...] = ()
    proxies: tuple[WantedProxy, ...] | None = None
    operators: tuple[WantedOperator, ...] | None = None
