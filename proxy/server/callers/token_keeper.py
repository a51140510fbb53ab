"""Issue the proxy's JWT, and check it on every pass-through request.

docs/reference/token-endpoint.md describes the token for developers of applications.

Only the proxy chooses the algorithm and the keys: a token can only name one of the proxy's active keys. The
token keeper caches each checked token with its caller, until the token expires or until rules or signing keys
change. For most requests, the check of a token is therefore one look-up in the cache.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import jwt
import msgspec

from proxy.policy.bounded_memo import BoundedMemo, WhenFull
from proxy.rules.credentials import Certificate, Credential, Secret
from proxy.server.callers.claims import Claims, Header
from proxy.server.callers.rulebook import Caller, Rulebook
from proxy.server.errors import STOPPED, Refusal

ALGORITHM: Final = "HS256"
# proxy tokens have about 450; a longer token is rejected before any cryptography
MAX_TOKEN_BYTES: Final = 4096
_MOST_TOKENS: Final = 10_000  # tokens whose caller one worker remembers
CLOCK_LEEWAY_SECONDS: Final = 5  # only for nbf and iat: another proxy of the fleet can have issued the token

_PLAIN_START: Final = len("Bearer ")
_BEARER: Final = re.compile(
    rb"[Bb][Ee][Aa][Rr][Ee][Rr] +([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]+)"
)


@dataclass(frozen=True, slots=True)
class TokenSettings:
    issuer: str
    audience: str
    lifetime_seconds: int


def kid_of(key: bytes) -> str:
    """Return the identifier of a signing key, for the `kid` in token headers.

    The identifier is a digest, so it does not reveal the signing key.
    """
    return hashlib.sha256(b"graphward-kid:" + key).hexdigest()[:16]


class UnknownToken(Refusal):
    """Error for a token that identifies no caller.

    If the token identifies no caller, the organisation of the request is unknown. A request whose token
    identifies no caller has no audit event.
    """


class RefusedToken(Refusal):
    """A token that this proxy issued, but that is no longer valid.

    `caller` is the application to which the token was issued.
    """

    def __init__(self, message: str, reason: str, caller: Caller) -> None:
        super().__init__("InvalidAuthenticationToken", message, reason)
        self.caller = caller


class BoundToken(RefusedToken):
    """A token that is valid only over a TLS connection with the client certificate that it is bound to.

    The proxy refuses the request unless its connection uses the client certificate to which the token is
    bound.
    """

    def __init__(self, caller: Caller, thumbprint: str, credential_id: str | None) -> None:
        message = "The access token is bound to a client certificate that this connection does not have."
        super().__init__(message, "invalidToken", caller)
        self.thumbprint = thumbprint
        self.credential_id = credential_id


class StoppedCaller(Refusal):
    """A caller whose requests an emergency stop refuses, even if the token is valid."""

    def __init__(self, caller: Caller) -> None:
        super().__init__("emergencyStop", STOPPED, "stopped")
        self.caller = caller


@dataclass(frozen=True, slots=True)
class _Binding:
    """A checked token that is bound to a client certificate."""

    caller: Caller
    ends_at: int
    thumbprint: str
    credential_id: str | None

    def token(self) -> BoundToken:
        return BoundToken(self.caller, self.thumbprint, self.credential_id)


class TokenKeeper:
    """Issuer of the proxy's tokens, with a cache of the tokens that the issuer has checked."""

    def __init__(self, settings: TokenSettings, keys: Sequence[bytes] = ()) -> None:
        self._settings = settings
        self._rulebook = Rulebook()
        # Caller and expiry by the value of Authorization. Its length is checked before.
        self._remembered: BoundedMemo[bytes, tuple[Caller, int]] = BoundedMemo(
            _MOST_TOKENS, None, WhenFull.CLEAR
        )
        self._bound: BoundedMemo[bytes, _Binding] = BoundedMemo(_MOST_TOKENS, None, WhenFull.CLEAR)
        self.use_keys(keys)

    def use_keys(self, keys: Sequence[bytes]) -> None:
        """Sign tokens with the first key from now on, and accept tokens of all `keys`.

        A token signed by a key outside of `keys` is invalid.
        """
        self._keys = {kid_of(key): key for key in keys}
        self._forget()
        self.ready = bool(keys)

    def use(self, rulebook: Rulebook) -> None:
        """Check tokens with the rules in `rulebook` from now on.

        The token keeper clears its cache and checks each token again at its next use, so a revoked token
        becomes invalid.
        """
        self._rulebook = rulebook
        self._forget()

    def _forget(self) -> None:
        self._remembered.entries.clear()
        self._bound.entries.clear()

    def issue(
        self, caller: Caller, *, now: float, token_id: str, credential: Credential | None = None
    ) -> str:
        """Return a new token for the caller.

        A token names the credential with which the caller authenticated. If the caller proved its identity
        with a client secret, the token does not name the credential.
        """
        issued = int(now)
        settings = self._settings
        claims: dict[str, object] = {
            "iss": settings.issuer,
            "aud": settings.audience,
            "sub": caller.client_id,
            "org": caller.org_id,
            "ver": caller.secret_version,
            "iat": issued,
            "nbf": issued,
            "exp": issued + self.lifetime(caller, now, credential),
            "jti": token_id,
        }
        if credential is not None and not isinstance(credential, Secret):
            claims["cid"] = credential.id
        if isinstance(credential, Certificate):
            claims["cnf"] = {"x5t#S256": credential.thumbprint}
        kid, key = next(iter(self._keys.items()))
        return jwt.encode(claims, key, algorithm=ALGORITHM, headers={"kid": kid})

    def lifetime(self, caller: Caller, now: float, credential: Credential | None) -> int:
        """Return the lifetime in seconds of a token that is issued at `now`.

        A token expires no later than the credential with which the client authenticated.
        """
        issued = int(now)
        ends = [issued + self._settings.lifetime_seconds]
        if credential is not None and credential.ends_at is not None:
            ends.append(int(credential.ends_at))
        if credential is None or isinstance(credential, Secret):
            end = caller.secret_end_after(issued)
            ends.extend([] if end is None else [end])
        return max(0, min(ends) - issued)

    def caller(self, authorization: bytes | None, now: float) -> Caller:
        """Return the application that sent a request.

        Raise UnknownToken or RefusedToken for an unusable token (401), or StoppedCaller (403). If the token
        is bound to a certificate, raise BoundToken, which is a subclass of RefusedToken.
        """
        if authorization is not None:
            known = self._remembered.entries.get(authorization)
            if known is not None and now < known[1]:
                return known[0]
        return self._check(authorization, now)

    def issued_to(self, authorization: bytes | None, now: float) -> Caller | None:
        """Return the caller that a proxy token was issued to, even if the token has expired or was revoked.

        Return None if the header field `authorization` identifies no caller.
        """
        try:
            return self.caller(authorization, now)
        except (RefusedToken, StoppedCaller) as refused:
            return refused.caller
        except UnknownToken:
            return None

    def _check(self, authorization: bytes | None, now: float) -> Caller:
        if authorization is None:
            raise _unknown("The request has no access token.")
        binding = self._bound.entries.get(authorization)
        if binding is not None and now < binding.ends_at:
            raise binding.token()
        parts = _parts_of(authorization)
        claims = self._verified_claims(parts[1], parts[2], parts[3])
        rulebook = self._rulebook
        caller = rulebook.callers.get(claims.sub)
        if caller is not None and rulebook.stops and rulebook.stops.concern(caller.org_id, caller.app_id):
            raise StoppedCaller(caller)
        if caller is None or caller.org_id != claims.org:
            gone = Caller(app_id=None, org_id=claims.org, client_id=claims.sub)
            raise RefusedToken("The application no longer exists.", "invalidToken", gone)
        if now >= claims.exp:
            raise RefusedToken("The access token has expired.", "invalidToken", caller)
        if now + CLOCK_LEEWAY_SECONDS < max(claims.nbf, claims.iat):
            raise RefusedToken("The access token is not valid yet.", "invalidToken", caller)
        ends = _end_of(claims, caller, now) if caller.enabled else None
        if ends is None:
            raise RefusedToken("The access token was revoked.", "invalidToken", caller)
        # other forms have any number of spellings, so they are not remembered
        is_plain = parts.start(1) == _PLAIN_START
        if claims.cnf is not None:
            binding = _Binding(caller, ends, claims.cnf.thumbprint, claims.cid)
            if is_plain:
                self._bound.keep(authorization, binding)
            raise binding.token()
        if is_plain:
            self._remembered.keep(authorization, (caller, ends))
        return caller

    def _verified_claims(self, header: bytes, payload: bytes, signature: bytes) -> Claims:
        settings = self._settings
        try:
            fields = msgspec.json.decode(_decoded(header), type=Header)
        except msgspec.ValidationError:  # the header of another issuer's token
            raise _unknown("The access token was not issued by this proxy.") from None
        except (
            msgspec.DecodeError,
            UnicodeDecodeError,
        ):  # anyone can send this, because no signature was checked yet
            raise _unknown("The access token is malformed.") from None
        key = self._keys.get(fields.kid)
        if key is None or fields.alg != ALGORITHM:
            raise _unknown("The access token was not issued by this proxy.")
        expected = hmac.digest(key, header + b"." + payload, "sha256")
        if not hmac.compare_digest(expected, _decoded(signature)):
            raise _unknown("The access token's signature is not valid.")
        try:
            claims = msgspec.json.decode(_decoded(payload), type=Claims)
        except msgspec.DecodeError:
            raise _unknown("The access token is malformed.") from None
        if claims.iss != settings.issuer or claims.aud != settings.audience:
            raise _unknown("The access token was not issued for this proxy.")
        return claims


def _parts_of(authorization: bytes) -> re.Match[bytes]:
    """Split a Bearer token into header, payload and signature."""
    if len(authorization) > MAX_TOKEN_BYTES:
        raise _unknown("The access token is too long.")
    parts = _BEARER.fullmatch(authorization)
    if parts is None:
        is_bearer = authorization[:_PLAIN_START].lower() == b"bearer "
        raise _unknown(
            "The access token is malformed."
            if is_bearer
            else "The Authorization header field does not contain a Bearer token."
        )
    return parts


def _end_of(claims: Claims, caller: Caller, now: float) -> int | None:
    """Return the Unix time at which a token expires.

    Return None if the secret or other credential behind the token is no longer valid.
    """
    if claims.cid is None:
        if caller.secret_version != claims.ver:
            return None
        end = caller.secret_end_after(claims.iat)
        ends = claims.exp if end is None else min(claims.exp, end)
        return ends if now < ends else None
    credential = caller.credential_in_force(claims.cid, now)
    if credential is None:
        return None
    return claims.exp if credential.ends_at is None else min(claims.exp, int(credential.ends_at))


def _decoded(part: bytes) -> bytes:
    """Decode base64url text, and refuse any encoding of the bytes other than the canonical one.

    A text whose last character was changed must not decode to the bytes of the original text (RFC 7515 §2).
    """
    try:
        raw = base64.urlsafe_b64decode(part + b"=" * (-len(part) % 4))
    except binascii.Error:
        raise _unknown("The access token is malformed.") from None
    if base64.urlsafe_b64encode(raw).rstrip(b"=") != part:
        raise _unknown("The access token is malformed.")
    return raw


def _unknown(message: str) -> UnknownToken:
    return UnknownToken("InvalidAuthenticationToken", message, "invalidToken")
