"""Signed tokens of an identity provider: find the key that can verify a token, and check the token's claims.

The token checks follow OpenID Connect Core sections 3.1.3.7 (ID token) and 5.3.2 (signed userinfo).
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import jwt

from controlplane.admin.sign_in_failure import Cause, SignInFailed, said

# Signatures that a published key verifies: the key's type, and for ECDSA its curve (RFC 7518).
_ALGORITHMS: Final[Mapping[str, tuple[str, str | None]]] = {
    **{f"{family}{bits}": ("RSA", None) for family in ("RS", "PS") for bits in (256, 384, 512)},
    "ES256": ("EC", "P-256"),
    "ES384": ("EC", "P-384"),
    "ES512": ("EC", "P-521"),
    "EdDSA": ("OKP", "Ed25519"),
}
_LEEWAY_SECONDS: Final = 60
_OLDEST_SECONDS: Final = 600  # age in seconds of an ID token that was requested just now
# OpenID Connect Core section 15.6.2: Google may leave out the scheme of its issuer.
_ALSO_NAMED: Final = {"https://accounts.google.com": "accounts.google.com"}


def header_of(token: str, what: str) -> Mapping[str, Any]:
    """Return the header of a signed token, before any check of the signature.

    `what` is the name of the token in the error messages.
    """
    if token.count(".") == 4:
        raise _refused(f"{what} is encrypted (JWE): have the provider send it signed and not encrypted")
    try:
        header: Mapping[str, Any] = jwt.get_unverified_header(token)
    except jwt.PyJWTError as error:
        raise _refused(f"{what} is not a signed token: {said(str(error))}") from None
    algorithm = header.get("alg")
    if algorithm not in _ALGORITHMS:
        taken = ", ".join(_ALGORITHMS)
        raise _refused(
            f"{what} has the signature algorithm {said(algorithm)}: have the provider use one of {taken}"
        )
    return header


def fitting_key(
    header: Mapping[str, Any], published: Sequence[Mapping[str, Any]], what: str
) -> jwt.PyJWK | None:
    """Return the published key with the token's key ID and algorithm, or None if no key fits.

    If no key fits the token, a newer key set of the provider may contain a fitting key. A provider with a
    single key may omit the key ID, in the token and in its key set (OpenID Connect Core section 10.1).
    """
    fitting = [each for each in published if _fits(each, header)]
    named = [each for each in fitting if each.get("kid") == header.get("kid")]
    if len(named or fitting) > 1:
        raise _refused(
            f"{what} does not say which of {len(named or fitting)} published keys signed it: "
            f"`kid` is {said(header.get('kid', 'missing'))}"
        )
    if not fitting:
        return None
    try:
        return jwt.PyJWK(dict((named or fitting)[0]), header["alg"])
    except (jwt.PyJWTError, ValueError, TypeError) as error:
        raise _refused(f"the provider's key for {what} is not usable: {said(str(error))}") from None


def _fits(key: Mapping[str, Any], header: Mapping[str, Any]) -> bool:
    kind, curve = _ALGORITHMS[header["alg"]]
    return (
        key.get("kty") == kind
        and (curve is None or key.get("crv") == curve)
        and key.get("use", "sig") == "sig"
        and key.get("alg", header["alg"]) == header["alg"]
        and (header.get("kid") is None or key.get("kid") in (None, header["kid"]))
    )


def verified(token: str, key: jwt.PyJWK, algorithm: str, what: str) -> Mapping[str, Any]:
    """Return the claims of a token after a check of the token's signature.

    The values of the claims are checked later, by `check_id_token` and `check_parties`.
    """
    unchecked = {f"verify_{name}": False for name in ("exp", "iat", "nbf", "aud", "iss", "sub", "jti")}
    try:
        claims: Mapping[str, Any] = jwt.decode(token, key, algorithms=[algorithm], options=unchecked)  # type: ignore[arg-type]
    except (jwt.PyJWTError, ValueError) as error:
        raise _refused(f"{what} is not valid: {said(str(error))}") from None
    return claims


def check_id_token(claims: Mapping[str, Any], *, issuer: str, client_id: str, nonce: str, now: float) -> None:
    for name in ("iss", "sub", "aud", "exp", "iat"):
        if claims.get(name) is None:
            raise _refused(f"the ID token has no `{name}`")
    if not isinstance(claims["sub"], str) or not claims["sub"]:
        raise _refused("the ID token's `sub` is not text")
    check_parties(claims, issuer=issuer, client_id=client_id, what="the ID token")
    # A token for several clients must say that it was issued to this one.
    if claims["aud"] not in (client_id, [client_id]) and claims.get("azp") != client_id:
        raise _refused("the ID token is for several clients, and `azp` does not name this console")
    if claims.get("nonce") is None:
        raise _refused("the ID token has no `nonce`: have the provider repeat the nonce of the request")
    if not hmac.compare_digest(str(claims["nonce"]).encode("utf-8", "replace"), nonce.encode()):
        raise SignInFailed(Cause.FORGED, "the ID token has the nonce of another sign-in")
    _check_times(claims, now)


def check_parties(claims: Mapping[str, Any], *, issuer: str, client_id: str, what: str) -> None:
    """Check the token's claims `iss` and `aud`, if the token has these claims."""
    if "iss" in claims and not is_same_issuer(claims["iss"], issuer):
        raise _refused(f"{what} is from the issuer {said(claims['iss'])}, not from {said(issuer)}")
    audience = claims.get("aud", client_id)
    if client_id not in (audience if isinstance(audience, list) else [audience]):
        raise _refused(f"{what} has the audience {said(audience)}, not Console.OidcClientId")


def is_same_issuer(given: object, issuer: str) -> bool:
    """Return True if two issuer identifiers name the same issuer.

    The comparison ignores a slash at the end, because some providers end the issuer identifier with a slash
    and others do not.
    """
    known = issuer.removesuffix("/")
    return isinstance(given, str) and given.removesuffix("/") in (known, _ALSO_NAMED.get(known, known))


def check_access_token(claims: Mapping[str, Any], algorithm: str, access_token: str) -> None:
    """Check the claim `at_hash` of the ID token, which binds the access token to this ID token."""
    given = claims.get("at_hash")
    if given is None:
        return
    bits = "512" if algorithm == "EdDSA" else algorithm[-3:]
    digest = hashlib.new(f"sha{bits}", access_token.encode()).digest()
    expected = base64.urlsafe_b64encode(digest[: len(digest) // 2]).rstrip(b"=").decode()
    if given != expected:
        raise _refused("the access token does not match `at_hash` of the ID token")


def _check_times(claims: Mapping[str, Any], now: float) -> None:
    expires, issued, begins = claims["exp"], claims["iat"], claims.get("nbf", 0)
    if not all(_is_time(each) for each in (expires, issued, begins)):
        raise _refused("`exp`, `iat` or `nbf` of the ID token is not a number")
    clocks = "compare this machine's clock with the provider's"
    if expires <= now - _LEEWAY_SECONDS:
        raise _refused(f"the ID token expired {now - expires:.0f} s ago: {clocks}")
    if issued < now - _OLDEST_SECONDS:
        raise _refused(f"the ID token was issued {now - issued:.0f} s ago, but requested just now: {clocks}")
    if max(issued, begins) > now + _LEEWAY_SECONDS:
        raise _refused(f"the ID token becomes valid in {max(issued, begins) - now:.0f} s: {clocks}")


def _is_time(claim: object) -> bool:
    """Return True if the value of a claim is a finite number.

    NaN and Infinity are not accepted as a time, although JSON libraries accept them as numbers.
    """
    return isinstance(claim, int | float) and not isinstance(claim, bool) and math.isfinite(claim)


def _refused(text: str) -> SignInFailed:
    return SignInFailed(Cause.TOKEN, text)
