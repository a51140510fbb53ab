"""Checks of credentials that an operator adds to an application, and their form for proxies.

The check refuses a private or symmetric key, and no error message repeats any of the key. The code of this
module does no I/O itself.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha1, sha256
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_public_key
from cryptography.x509.oid import ExtendedKeyUsageOID
from jwt.algorithms import ECAlgorithm, RSAAlgorithm
from jwt.exceptions import InvalidKeyError

from proxy.policy.visible import named, unseen_in

DEFAULT_AUDIENCE: Final = "api://AzureADTokenExchange"
GITHUB_ISSUER: Final = "https://token.actions.githubusercontent.com"
LONGEST_KEYS: Final = 64 * 1024  # characters of a JWKS, a key or a certificate
_LONGEST_TEXT: Final = 1000  # characters of an issuer, a subject or an audience
_MOST_KEYS: Final = 20  # keys of an issuer
_LEAST_RSA_BITS: Final = 2048
_MOST_RSA_BITS: Final = 8192  # a larger key would make each verification slow
_EXPONENTS: Final = 1 << 32  # limit of the public exponent; a proxy does not verify with a longer one
MOST_UNNAMED_KEYS: Final = 4  # keys without a name that a proxy tries for one assertion
_CURVES: Final = {"secp256r1": "P-256", "secp384r1": "P-384", "secp521r1": "P-521"}
# Members of a JWK, and the lengths of their digests in bytes.
_THUMBPRINTS: Final = {"x5t": 20, "x5t#S256": 32}
_PRIVATE: Final = frozenset(("d", "p", "q", "dp", "dq", "qi", "oth"))
_CERTIFICATE: Final = re.compile(r"-----BEGIN CERTIFICATE-----[A-Za-z0-9+/=\s]+-----END CERTIFICATE-----")
_LEAKED: Final = (
    "is a private key. Only the application must have it: give its public key or its"
    " certificate. Nothing of it was stored"
)


class InvalidCredential(ValueError):
    """Error for a text that can't be used as a credential.

    The error message is one line that begins with the name of the field.
    """


class PrivateKeyGiven(InvalidCredential):
    """Error for a text that contains a private key."""


@dataclass(frozen=True, slots=True)
class GivenKey:
    """Public key, with the thumbprints and the expiry of the certificate that contained the key."""

    jwk: Mapping[str, str]
    thumbprints: tuple[str, ...]
    ends_at: datetime | None
    identity: str  # JWK thumbprint (RFC 7638)


@dataclass(frozen=True, slots=True)
class GivenCertificate:
    """Client certificate whose public key is strong enough."""

    der: bytes
    subject: str
    thumbprint: str  # SHA-256 as base64url
    ends_at: datetime


def checked_issuer(text: str) -> str:
    """Return the issuer exactly as given, because a token must contain the same text as its issuer."""
    _require_text("issuer", text)
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise InvalidCredential(f"issuer: is not a URL: {text}") from None
    if parts.scheme != "https" or not parts.hostname or not text.startswith("https://"):
        raise InvalidCredential(f"issuer: must be a URL that begins with https://, not {text}")
    if "?" in text or "#" in text or "@" in parts.netloc or " " in text or port == 0:
        raise InvalidCredential(f"issuer: must have no query, fragment, space or user name: {text}")
    if any(unquote(segment) in (".", "..") for segment in parts.path.split("/")):
        raise InvalidCredential(f"issuer: must have no dot segments, which would change its address: {text}")
    return text


def checked_text(name: str, text: str) -> str:
    """Return a subject or an audience exactly as given, because a token must contain the same text."""
    _require_text(name, text)
    return text


def _require_text(name: str, text: str) -> None:
    if not 0 < len(text) <= _LONGEST_TEXT:
        raise InvalidCredential(f"{name}: must have 1 to {_LONGEST_TEXT} characters")
    if (unseen := unseen_in(text)) is not None:
        raise InvalidCredential(f"{name}: contains the invisible character {named(unseen)}")
    if not text.isprintable() or text != text.strip():
        raise InvalidCredential(f"{name}: must be one line without leading or trailing spaces")


def checked_jwks(text: str) -> dict[str, Any]:
    """Return an issuer's public keys for signatures, with the JWK members that proxies use."""
    document = _json("keys", text)
    keys = document.get("keys")
    if not isinstance(keys, list) or not keys:
        raise InvalidCredential("keys: must be a JWKS: a JSON object with a list `keys` that is not empty")
    usable = []
    for at, key in enumerate(keys):
        name = f"keys: key {at + 1}"
        if not isinstance(key, dict):
            raise InvalidCredential(f"{name}: must be a JSON object")
        _require_public(name, key)
        if key.get("use", "sig") == "sig" and key.get("kty") in ("RSA", "EC"):
            usable.append(_jwk(name, key))
    if not usable:
        raise InvalidCredential("keys: has no RSA or EC key for signatures")
    if len(usable) > _MOST_KEYS:
        raise InvalidCredential(f"keys: has {len(usable)} keys, but at most {_MOST_KEYS} are allowed")
    kids = [key["kid"] for key in usable if "kid" in key]
    if len(usable) > 1 and len(set(kids)) != len(usable):
        raise InvalidCredential("keys: if there are several keys, each needs its own `kid`")
    return {"keys": usable}


def checked_key(text: str) -> GivenKey:
    """Return the public key in a PEM public key, a PEM certificate or a JWK."""
    _require_no_private_pem("key", text)
    if "-----BEGIN CERTIFICATE-----" in text:
        certificate = _pem_certificate("key", text)
        return _key_of_certificate(certificate)
    if text.lstrip().startswith("{"):
        document = _json("key", text)
        _require_public("key", document)
        jwk = _jwk("key", document)
        return GivenKey(jwk, _thumbprints_in(document), None, _identity(jwk))
    try:
        key = load_pem_public_key(text.encode())
    except (ValueError, TypeError):
        what = "must be a PEM public key, a PEM certificate or a JWK"
        raise InvalidCredential(f"key: {what}") from None
    jwk = _jwk_of("key", key)
    return GivenKey(jwk, (), None, _identity(jwk))


def _thumbprints_in(jwk: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the thumbprints of a certificate that a JWK names (RFC 7517 §4.8, §4.9)."""
    found = []
    for member, size in _THUMBPRINTS.items():
        if member in jwk:
            _require_thumbprint(member, jwk[member], size)
            found.append(jwk[member])
    return tuple(found)


def _require_thumbprint(member: str, value: object, size: int) -> None:
    try:
        digest = _decoded(value) if isinstance(value, str) else b""
        is_one = len(digest) == size and base64.urlsafe_b64encode(digest).rstrip(b"=").decode() == value
    except ValueError:
        is_one = False
    if not is_one:
        raise InvalidCredential(f"key: {member}: must be {size} bytes as base64url")


def with_thumbprints(jwk: Mapping[str, Any], thumbprints: Sequence[str]) -> dict[str, Any]:
    """Add the thumbprints of a certificate to the JWK of the certificate's public key."""
    sizes = {len(_decoded(each)): each for each in thumbprints}
    return {**jwk, **{member: sizes[size] for member, size in _THUMBPRINTS.items() if size in sizes}}


def checked_certificate(text: str) -> GivenCertificate:
    """Return the first certificate in a PEM text, or the certificate whose base64-encoded DER is given."""
    _require_no_private_pem("certificate", text)
    certificate = (
        _pem_certificate("certificate", text) if "-----" in text else _der_certificate("certificate", text)
    )
    _jwk_of("certificate", certificate.public_key())
    _require_client_usage(certificate)
    der = certificate.public_bytes(Encoding.DER)
    return GivenCertificate(
        der, certificate.subject.rfc4514_string(), _base64url(sha256(der)), certificate.not_valid_after_utc
    )


def _require_client_usage(certificate: x509.Certificate) -> None:
    """Refuse a certificate that TLS servers would not accept from a client."""
    try:
        extensions = list(certificate.extensions)
    except ValueError:
        raise InvalidCredential("certificate: has an extension that is malformed") from None
    for each in extensions:
        value, what = each.value, ""
        if isinstance(value, x509.ExtendedKeyUsage) and ExtendedKeyUsageOID.CLIENT_AUTH not in value:
            what = "its extended key usages lack clientAuth"
        elif isinstance(value, x509.KeyUsage) and not (value.digital_signature or value.key_agreement):
            what = "its key usages lack digitalSignature"
        elif isinstance(value, x509.UnrecognizedExtension) and each.critical:
            what = f"its extension {each.oid.dotted_string} is critical and unknown"
        if what:
            what += ", so a TLS server refuses it"
            raise InvalidCredential(f"certificate: {what}: ask for a client certificate")


def is_text_of_key(text: str) -> bool:
    """Return True if the text is PEM or JSON, and False if it can be the name of a file."""
    return "-----BEGIN" in text or text.lstrip().startswith("{")


def certificate_text(content: bytes) -> str:
    """Return the content of a PEM or DER file as the text that an API request contains."""
    if content.startswith(b"0"):  # start of a DER sequence
        return base64.b64encode(content).decode()
    return content.decode("utf-8", "replace")


def key_words(jwk: Mapping[str, Any]) -> str:
    """Return the kind and the size of a key, such as `RSA 2048`."""
    if jwk["kty"] == "EC":
        return f"EC {jwk['crv']}"
    return f"RSA {int.from_bytes(_decoded(jwk['n'])).bit_length()}"


def _require_no_private_pem(name: str, text: str) -> None:
    if len(text) > LONGEST_KEYS:
        raise InvalidCredential(f"{name}: is longer than {LONGEST_KEYS} characters")
    if "PRIVATE KEY" in text:
        raise PrivateKeyGiven(f"{name}: {_LEAKED}")


def _require_public(name: str, jwk: Mapping[str, Any]) -> None:
    if not _PRIVATE.isdisjoint(jwk):
        raise PrivateKeyGiven(f"{name}: {_LEAKED}")
    if jwk.get("kty") == "oct" or "k" in jwk:
        raise InvalidCredential(f"{name}: is a symmetric key, which is a shared secret: give a public key")


def _json(name: str, text: str) -> dict[str, Any]:
    if len(text) > LONGEST_KEYS:
        raise InvalidCredential(f"{name}: is longer than {LONGEST_KEYS} characters")
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        raise InvalidCredential(f"{name}: is not JSON") from None
    if not isinstance(document, dict):
        raise InvalidCredential(f"{name}: must be a JSON object")
    return document


def _jwk(name: str, given: Mapping[str, Any]) -> dict[str, str]:
    """Return a public JWK that contains only the JWK members that proxies use."""
    try:
        read = {"RSA": RSAAlgorithm.from_jwk, "EC": ECAlgorithm.from_jwk}[given["kty"]]
        key: object = read(json.dumps(given))
    except (KeyError, TypeError, ValueError, binascii.Error, InvalidKeyError):
        raise InvalidCredential(f"{name}: is not a JWK of an RSA or EC key") from None
    jwk = _jwk_of(name, key)
    kept = {member: given[member] for member in ("kid", "alg") if isinstance(given.get(member), str)}
    for member, value in kept.items():
        _require_text(f"{name}: {member}", value)
    return jwk | kept


def _jwk_of(name: str, key: object) -> dict[str, str]:
    """Return the JWK of a key, or raise InvalidCredential if the key is too weak."""
    if isinstance(key, RSAPublicKey):
        if not _LEAST_RSA_BITS <= key.key_size <= _MOST_RSA_BITS:
            what = f"an RSA key must have {_LEAST_RSA_BITS} to {_MOST_RSA_BITS} bits, not {key.key_size}"
            raise InvalidCredential(f"{name}: {what}")
        numbers = key.public_numbers()
        if numbers.e >= _EXPONENTS or numbers.n % 2 == 0:
            raise InvalidCredential(f"{name}: an RSA key must have an odd modulus and an exponent below 2^32")
        jwk = RSAAlgorithm.to_jwk(key, as_dict=True)
        return {"kty": "RSA", "n": jwk["n"], "e": jwk["e"]}
    if isinstance(key, EllipticCurvePublicKey) and key.curve.name in _CURVES:
        jwk = ECAlgorithm.to_jwk(key, as_dict=True)
        return {"kty": "EC", "crv": _CURVES[key.curve.name], "x": jwk["x"], "y": jwk["y"]}
    raise InvalidCredential(f"{name}: must be an RSA key, or an EC key on {', '.join(_CURVES.values())}")


def _identity(jwk: Mapping[str, str]) -> str:
    members = {"RSA": ("e", "kty", "n"), "EC": ("crv", "kty", "x", "y")}[jwk["kty"]]
    text = json.dumps({member: jwk[member] for member in members}, separators=(",", ":"))
    return _base64url(sha256(text.encode()))


def _pem_certificate(name: str, text: str) -> x509.Certificate:
    found = _CERTIFICATE.search(text)
    if found is None:
        raise InvalidCredential(f"{name}: has no certificate in PEM")
    try:
        return x509.load_pem_x509_certificate(found[0].encode())
    except ValueError:
        raise InvalidCredential(f"{name}: the certificate can't be read") from None


def _der_certificate(name: str, text: str) -> x509.Certificate:
    try:
        return x509.load_der_x509_certificate(base64.b64decode(text, validate=True))
    except ValueError:
        raise InvalidCredential(f"{name}: must be a certificate in PEM or DER") from None


def _key_of_certificate(certificate: x509.Certificate) -> GivenKey:
    jwk = _jwk_of("key", certificate.public_key())
    der = certificate.public_bytes(Encoding.DER)
    # Entra's libraries may name the certificate of an assertion by either thumbprint.
    thumbprints = (_base64url(sha1(der, usedforsecurity=False)), _base64url(sha256(der)))
    return GivenKey(jwk, thumbprints, certificate.not_valid_after_utc, _identity(jwk))


def _base64url(digest: Any) -> str:
    return base64.urlsafe_b64encode(digest.digest()).rstrip(b"=").decode()


def _decoded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
