"""Find the application's credential that a client assertion proves, or the reason for finding none."""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from proxy.rules.credentials import Credential, Federated, PublicKey
from proxy.server.assertions.assertion import Assertion, AssertionRefused
from proxy.server.assertions.keys import MOST_CANDIDATES, Jwk, check_signature, named_keys

MAX_KEY_SECONDS: Final = 3600.0  # lifetime of an assertion by a registered key; SDKs use 10 to 30 minutes
MAX_FEDERATED_SECONDS: Final = 90_000.0  # 25 hours, because Kubernetes and Entra issue tokens for up to 24

_OWN_PATH: Final = re.compile(
    r"/?|/proxy/token|/(?!v1\.0/|beta/|proxy/)[^/?#]+/(?:oauth2/v2\.0/token|v2\.0)|/adfs"
)


class Reuse(enum.Enum):
    """Rule that limits how often one assertion may be used."""

    ONCE = "once"
    # repeatable from that address for a while: MSAL keeps an assertion for nine minutes
    SAME_ADDRESS = "same address"
    UNTIL_END = "until its end"


@dataclass(frozen=True, slots=True)
class Expectations:
    """Values of this proxy that each client assertion must match, such as the audience."""

    public_base: str  # `Proxy.PublicBaseUrl`; if empty, the proxy cannot check its own audience
    clock_skew: float


@dataclass(frozen=True, slots=True)
class Proof:
    """Application credential that a client assertion proved."""

    credential: Federated | PublicKey
    reuse: Reuse
    use_id: bytes
    ends_at: float  # Unix seconds at which the assertion expires


C = TypeVar("C", PublicKey, Federated)

IssuerKeysNow = Callable[[str], Sequence[Jwk] | None]
"""Function that returns the discovered keys of an issuer, or None if no recent keys exist."""


def judge(
    assertion: Assertion,
    client_id: str,
    credentials: Sequence[Credential],
    issuer_keys: IssuerKeysNow,
    expected: Expectations,
    now: float,
) -> Proof:
    """Return the credential that the assertion proves.

    Raise AssertionRefused with the reason if the assertion proves no credential.
    """
    if assertion.issuer == client_id:
        return _by_registered_key(assertion, client_id, credentials, expected, now)
    return _by_issuer(assertion, credentials, issuer_keys, expected, now)


def _by_registered_key(
    assertion: Assertion,
    client_id: str,
    credentials: Sequence[Credential],
    expected: Expectations,
    now: float,
) -> Proof:
    keys = [each for each in credentials if isinstance(each, PublicKey)]
    if not keys:
        raise AssertionRefused("issuer")
    if assertion.subject != client_id:
        raise AssertionRefused("subject", _only(keys))
    if not expected.public_base:
        raise AssertionRefused("audienceUnknown", _only(keys))
    if not is_own_audience(assertion.audience, expected.public_base):
        raise AssertionRefused("audience", _only(keys))
    ends_at = _checked_times(assertion, MAX_KEY_SECONDS, expected.clock_skew, now, _only(keys))
    known = _in_force(keys, now)
    try:
        credential = _signer(known, assertion)
    except AssertionRefused as refused:
        ended = _ended_signer([each for each in keys if each not in known], assertion)
        raise refused if ended is None else AssertionRefused("ended", ended.id) from None
    return Proof(credential, Reuse.SAME_ADDRESS, assertion.use_id, ends_at)


def _signer(keys: Sequence[PublicKey], assertion: Assertion) -> PublicKey:
    """Return the credential whose key signed the assertion.

    Raise AssertionRefused if no key signed the assertion.
    """
    named = [each for each in keys if _is_named(each, assertion)]
    if not named:
        raise AssertionRefused("key", _only(keys))
    if len(named) > MOST_CANDIDATES:
        named = [each for each in named if _has_name(each, assertion)] or named
    used = check_signature([each.key for each in named], assertion, _only(named))
    return next(each for each in named if each.key is used)


def _ended_signer(keys: Sequence[PublicKey], assertion: Assertion) -> PublicKey | None:
    """Return the expired credential that signed the assertion, or None if no expired credential signed it."""
    try:
        return _signer(keys, assertion)
    except AssertionRefused:
        return None


def _by_issuer(
    assertion: Assertion,
    credentials: Sequence[Credential],
    issuer_keys: IssuerKeysNow,
    expected: Expectations,
    now: float,
) -> Proof:
    pinned = [each for each in credentials if isinstance(each, Federated) and each.issuer == assertion.issuer]
    if not pinned:
        raise AssertionRefused("issuer")
    of_subject = [each for each in pinned if each.subject == assertion.subject]
    if not of_subject:
        raise AssertionRefused("subject", _only(pinned))
    of_audience = [each for each in of_subject if each.audience == assertion.audience]
    if not of_audience:
        raise AssertionRefused("audience", _only(of_subject))
    ends_at = _checked_times(assertion, MAX_FEDERATED_SECONDS, expected.clock_skew, now, _only(of_audience))
    # the first one, if several credentials pin the same subject and audience
    credential = _in_force(of_audience, now)[0]
    keys = _given_keys(credential.keys) if credential.keys is not None else issuer_keys(credential.issuer)
    if keys is None:
        raise AssertionRefused("keysUnavailable", credential.id, unknown_key_of=credential.issuer)
    named = named_keys(keys, assertion)
    try:
        if not named:
            raise AssertionRefused("key", credential.id)
        check_signature(named, assertion, credential.id)
    except AssertionRefused as refused:
        has_own_key = any("kid" in key and key["kid"] == assertion.key_id for key in named)
        if credential.keys is None and not has_own_key:  # the issuer may have published a new key
            refused.unknown_key_of = credential.issuer
        raise
    reuse = Reuse.UNTIL_END if credential.reuse == "untilEnd" else Reuse.ONCE
    return Proof(credential, reuse, assertion.use_id, ends_at)


def is_own_audience(audience: str | None, public_base: str) -> bool:
    """Return True if the audience is one of the proxy's token endpoint addresses or issuer names."""
    if audience is None or audience[: len(public_base)].lower() != public_base.lower():
        return False
    return _OWN_PATH.fullmatch(audience, len(public_base)) is not None


def _checked_times(
    assertion: Assertion, longest: float, skew: float, now: float, credential_id: str | None
) -> float:
    """Return the time at which the assertion ends, by the clock of the proxy."""
    begins = max(assertion.issued_at or 0.0, assertion.not_before or 0.0)
    ends = assertion.expires_at
    if ends is None:
        raise AssertionRefused("lifetime", credential_id)
    if now >= ends + skew:
        raise AssertionRefused("expired", credential_id)
    if begins > now + skew:
        raise AssertionRefused("notYetValid", credential_id)
    if ends - (begins or now) > longest or ends - now > longest + skew:
        raise AssertionRefused("lifetime", credential_id)
    return ends + skew


def _in_force(credentials: Sequence[C], now: float) -> list[C]:
    """Return the credentials that have not ended.

    Raise AssertionRefused if no credential of the application is still valid.
    """
    left = [each for each in credentials if each.ends_at is None or now < each.ends_at]
    if not left:
        raise AssertionRefused("ended", _only(credentials))
    return left


def _is_named(credential: PublicKey, assertion: Assertion) -> bool:
    """Return False if the assertion names a key ID or thumbprint that `credential` does not have."""
    own_id = credential.key.get("kid")
    if assertion.key_id is not None and own_id is not None and own_id != assertion.key_id:
        return False
    own = {each.rstrip("=") for each in credential.thumbprints}
    return not own or not assertion.thumbprints or not own.isdisjoint(assertion.thumbprints)


def _has_name(credential: PublicKey, assertion: Assertion) -> bool:
    """Return True if the assertion names the key of `credential`."""
    own = {each.rstrip("=") for each in credential.thumbprints}
    has_id = assertion.key_id is not None and credential.key.get("kid") == assertion.key_id
    return has_id or not own.isdisjoint(assertion.thumbprints)


def _given_keys(jwks: dict[str, Any]) -> list[Jwk]:
    keys = jwks.get("keys")
    return [each for each in keys if isinstance(each, dict)] if isinstance(keys, list) else []


def _only(credentials: Sequence[PublicKey] | Sequence[Federated]) -> str | None:
    """Return the ID of the only credential. Return None if there are several credentials."""
    return credentials[0].id if len(credentials) == 1 else None
