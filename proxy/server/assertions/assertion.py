"""Parse a client assertion (RFC 7523) into typed values, before its signature is checked.

The module `assertion` does no input or output.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import math
import re
from dataclasses import dataclass
from typing import Any, Final

ASSERTION_TYPE: Final = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
MAX_BYTES: Final = 16 * 1024  # characters of an assertion; a certificate chain in `x5c` takes some 6 KB
# characters of one issuer, subject, audience or id (names of identity providers are far shorter)
MAX_NAME: Final = 1024
ALGORITHMS: Final = frozenset(
    ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512")
)

_PARTS: Final = re.compile(r"([A-Za-z0-9_-]+={0,2})\.([A-Za-z0-9_-]+={0,2})\.([A-Za-z0-9_-]*={0,2})")
_TYPES: Final = frozenset(("jwt", "application/jwt", "at+jwt", "client-authentication+jwt"))
# Each of these parameters would let the sender choose a key, a coding or an interpretation.
_FORBIDDEN: Final = frozenset(("jwk", "jku", "x5u", "crit", "b64", "zip", "enc", "epk", "cty"))
_LATEST: Final = 1e11  # Unix seconds in the year 5138, the latest time that is accepted


class AssertionRefused(Exception):
    """Error because a client assertion does not authenticate a client.

    `problem` is a code of CREDENTIAL_PROBLEMS.
    """

    def __init__(self, problem: str, credential_id: str | None = None, *, unknown_key_of: str = "") -> None:
        super().__init__(problem)
        self.problem = problem
        self.credential_id = credential_id  # the only credential that the assertion can refer to
        # the issuer whose key set lacks the key that the assertion names
        self.unknown_key_of = unknown_key_of


@dataclass(frozen=True, slots=True)
class Assertion:
    """Header and claims of a client assertion, before the signature of the assertion is checked."""

    algorithm: str
    key_id: str | None
    thumbprints: tuple[str, ...]  # x5t and x5t#S256 of a certificate, without padding
    issuer: str
    subject: str
    audience: str | None  # None if the assertion has no audience or several
    issued_at: float | None
    not_before: float | None
    expires_at: float | None
    use_id: bytes  # equal for every presentation of one assertion
    signed: bytes
    signature: bytes


def parse_assertion(text: str) -> Assertion:
    """Return the header and the claims of a client assertion.

    Raise AssertionRefused if the text is not an acceptable signed JWT.
    """
    parts = _PARTS.fullmatch(text) if len(text) <= MAX_BYTES else None
    if parts is None:
        raise AssertionRefused("malformed")
    header, claims = _object(parts[1]), _object(parts[2])
    algorithm = _required(header, "alg")
    if algorithm not in ALGORITHMS:
        raise AssertionRefused("algorithm")
    kind = _optional(header, "typ")
    if not _FORBIDDEN.isdisjoint(header) or (kind is not None and kind.lower() not in _TYPES):
        raise AssertionRefused("malformed")
    issuer, jwt_id = _required(claims, "iss"), _optional(claims, "jti")
    signed = f"{parts[1]}.{parts[2]}".encode()
    return Assertion(
        algorithm=algorithm,
        key_id=_optional(header, "kid"),
        thumbprints=_thumbprints(header),
        issuer=issuer,
        subject=_required(claims, "sub"),
        audience=_audience(claims.get("aud")),
        issued_at=_moment(claims, "iat"),
        not_before=_moment(claims, "nbf"),
        expires_at=_moment(claims, "exp"),
        use_id=_use_id(issuer, jwt_id, signed),
        signed=signed,
        signature=_decoded(parts[3]),
    )


def _thumbprints(header: dict[str, Any]) -> tuple[str, ...]:
    given = (_optional(header, "x5t"), _optional(header, "x5t#S256"))
    return tuple([each.rstrip("=") for each in given if each is not None])


def _use_id(issuer: str, jwt_id: str | None, signed: bytes) -> bytes:
    """Return a digest that identifies the assertion and does not depend on the signature.

    An elliptic curve signature has two valid forms, so the signature cannot identify the assertion.
    """
    what = b"s" + signed if jwt_id is None else f"j{len(issuer)} {issuer}{jwt_id}".encode()
    return hashlib.sha256(what).digest()


def _object(part: str) -> dict[str, Any]:
    """Return the JSON object that one part of a JWT encodes.

    Raise AssertionRefused if the JSON object is ambiguous or malformed.
    """
    try:
        value = json.loads(
            _decoded(part).decode("utf-8"), object_pairs_hook=_without_duplicates, parse_constant=_no_constant
        )
    except (ValueError, RecursionError):
        raise AssertionRefused("malformed") from None
    if not isinstance(value, dict):
        raise AssertionRefused("malformed")
    return value


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a JSON object has two fields with the same name")
    return members


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is not valid JSON")


def _decoded(part: str) -> bytes:
    """Return the bytes of base64url text.

    azure-identity pads the text and signs the padding, unlike RFC 7515. The function therefore accepts
    padding in base64url text.
    """
    try:
        raw = base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))
    except binascii.Error:
        raise AssertionRefused("malformed") from None
    padded = base64.urlsafe_b64encode(raw).decode()
    if part not in (padded, padded.rstrip("=")):
        raise AssertionRefused("malformed")
    return raw


def _optional(members: dict[str, Any], name: str) -> str | None:
    """Return the field `name` of a JSON object. The value of the JSON field must be a string.

    Return None if the JSON object does not have the field.
    """
    return _required(members, name) if name in members else None


def _required(members: dict[str, Any], name: str) -> str:
    value = members.get(name)
    if not isinstance(value, str) or not 0 < len(value) <= MAX_NAME or not _is_text(value):
        raise AssertionRefused("malformed")
    return value


def _audience(value: object) -> str | None:
    """Return the only audience of an assertion.

    Return None if there are several audiences, because each audience could replay the assertion.
    """
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    return value if isinstance(value, str) and _is_text(value) else None


def _is_text(value: str) -> bool:
    """Return False if the text has an unpaired surrogate, which JSON can express and UTF-8 cannot."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _moment(claims: dict[str, Any], name: str) -> float | None:
    if name not in claims:
        return None
    value = claims[name]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise AssertionRefused("malformed")
    if (isinstance(value, float) and not math.isfinite(value)) or not 0 <= value <= _LATEST:
        raise AssertionRefused("malformed")
    return float(value)
