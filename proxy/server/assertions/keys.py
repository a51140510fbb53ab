"""Choose the keys that can verify an assertion, limit each key type's algorithms, and check signatures.

The module `keys` does no input or output.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from jwt.algorithms import ECAlgorithm, RSAAlgorithm, get_default_algorithms
from jwt.exceptions import PyJWTError

from proxy.server.assertions.assertion import Assertion, AssertionRefused

# keys to try for one assertion; if an issuer has more, the assertion must name one
MOST_CANDIDATES: Final = 4
MIN_RSA_BITS: Final = 2048
MAX_RSA_BITS: Final = 8192  # a check takes about 0.4 ms at this size
MAX_EXPONENT: Final = 1 << 32  # a longer RSA exponent would make each check slow
_RSA: Final = frozenset(("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"))
_OF_CURVE: Final[dict[object, str]] = {"P-256": "ES256", "P-384": "ES384", "P-521": "ES512"}
_VERIFIERS: Final = get_default_algorithms()

Jwk = Mapping[str, Any]


def named_keys(keys: Sequence[Jwk], assertion: Assertion) -> list[Jwk]:
    """Return the keys that may verify the assertion: keys with the assertion's key ID or without a key ID.

    If the assertion has no key ID, return all `keys`.

    If every key has a key ID that differs from the assertion's key ID, return an empty list.
    """
    key_id = assertion.key_id
    return [key for key in keys if key_id is None or key.get("kid") in (None, key_id)]


def fits(key: Jwk, algorithm: str) -> bool:
    """Return True if the key's type and JWK members allow the algorithm."""
    kind = key.get("kty")
    if kind == "RSA":
        by_type = algorithm in _RSA
    else:
        by_type = kind == "EC" and _OF_CURVE.get(_text(key, "crv")) == algorithm
    operations = key.get("key_ops", ["verify"])
    return (
        by_type
        and key.get("use", "sig") == "sig"
        and key.get("alg", algorithm) == algorithm
        and isinstance(operations, list)
        and "verify" in operations
        and "d" not in key  # a published private key proves nothing
    )


def check_signature(keys: Sequence[Jwk], assertion: Assertion, credential_id: str | None) -> Jwk:
    """Return the key that signed the assertion, from the list `keys`.

    Raise AssertionRefused if none of the `keys` signed the assertion.
    """
    fitting = [key for key in keys if fits(key, assertion.algorithm)]
    if not fitting:
        raise AssertionRefused("algorithm", credential_id)
    if len(fitting) > MOST_CANDIDATES:
        raise AssertionRefused("key", credential_id)
    for key in fitting:
        if _signed(key, assertion):
            return key
    raise AssertionRefused("signature", credential_id)


def _signed(key: Jwk, assertion: Assertion) -> bool:
    try:
        public = _public_key(key)
        return public is not None and bool(
            _VERIFIERS[assertion.algorithm].verify(assertion.signed, public, assertion.signature)
        )
    except (PyJWTError, ValueError, TypeError):  # the JWK is malformed
        return False


def _public_key(key: Jwk) -> RSAPublicKey | EllipticCurvePublicKey | None:
    """Return the public key that a JWK contains.

    Return None if the key is weak, or so large that each signature check would be slow.
    """
    if key.get("kty") == "EC":
        curve = ECAlgorithm.from_jwk(dict(key))
        return curve if isinstance(curve, EllipticCurvePublicKey) else None
    if len(_text(key, "n")) > MAX_RSA_BITS // 4 or len(_text(key, "e")) > MAX_RSA_BITS // 4:
        return None
    public = RSAAlgorithm.from_jwk(dict(key))
    if not isinstance(public, RSAPublicKey) or not MIN_RSA_BITS <= public.key_size <= MAX_RSA_BITS:
        return None
    return public if public.public_numbers().e < MAX_EXPONENT else None


def _text(key: Jwk, member: str) -> str:
    value = key.get(member)
    return value if isinstance(value, str) else ""
