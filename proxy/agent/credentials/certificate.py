"""A certificate out of a key vault, and the assertions that prove who the client is (RFC 7523 §2.2)."""

import base64
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import jwt
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.serialization import pkcs12

ASSERTION_TYPE: Final = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
PFX: Final = "application/x-pkcs12"
PEM: Final = "application/x-pem-file"
_ALGORITHM: Final = "PS256"
_SMALLEST_KEY: Final = 2048  # bits, RFC 7518 §3.5
_LIFETIME_SECONDS: Final = 300  # Entra advises five to ten minutes at most


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate with its private key."""

    key: RSAPrivateKey = field(repr=False)
    thumbprint: str  # x5t#S256, RFC 7515 §4.1.8
    ends_at: float

    def assertion(
        self, client_id: str, token_url: str, clock: Callable[[], float] = time.time
    ) -> dict[str, str]:
        """The form fields that stand in for a client secret; good once and for a short time."""
        now = int(clock())
        claims = {
            "aud": token_url,
            "iss": client_id,
            "sub": client_id,
            "jti": str(uuid.uuid4()),
            "iat": now,
            "nbf": now,
            "exp": now + _LIFETIME_SECONDS,
        }
        text = jwt.encode(claims, self.key, algorithm=_ALGORITHM, headers={"x5t#S256": self.thumbprint})
        return {"client_assertion_type": ASSERTION_TYPE, "client_assertion": text}


def is_certificate(value: str, content_type: str) -> bool:
    """Also one that was stored without its content type, which must never be sent out as if it were a client
    secret."""
    return content_type in (PFX, PEM) or "-----BEGIN" in value


def read_certificate(value: str, content_type: str) -> Certificate:
    """ValueError says what is wrong with it, and quotes nothing of it."""
    key, certificates = _from_pfx(value) if content_type == PFX else _from_pem(value)
    if not isinstance(key, RSAPrivateKey):
        raise ValueError("has no RSA private key, or it is encrypted")
    if key.key_size < _SMALLEST_KEY:
        raise ValueError(f"has an RSA key of {key.key_size} bits, and {_SMALLEST_KEY} are the least")
    own = [each for each in certificates if _belongs(each, key)]
    if not own:
        raise ValueError("has no certificate that belongs to its private key")
    thumbprint = base64.urlsafe_b64encode(own[0].fingerprint(hashes.SHA256())).rstrip(b"=").decode()
    return Certificate(key, thumbprint, own[0].not_valid_after_utc.timestamp())


def _belongs(certificate: x509.Certificate, key: RSAPrivateKey) -> bool:
    """An issuer's, of which we need nothing, may have a key of any kind."""
    try:
        return certificate.public_key() == key.public_key()
    except (ValueError, UnsupportedAlgorithm):
        return False


def _from_pfx(value: str) -> tuple[object, list[x509.Certificate]]:
    try:
        key, own, others = pkcs12.load_key_and_certificates(base64.b64decode(value, validate=True), None)
    except (ValueError, UnsupportedAlgorithm):
        raise ValueError("is not a PFX in base64 without a password") from None
    return key, [*([own] if own is not None else []), *others]


def _from_pem(value: str) -> tuple[object, list[x509.Certificate]]:
    pem = value.encode("utf-8", "surrogatepass")
    try:
        return serialization.load_pem_private_key(pem, None), x509.load_pem_x509_certificates(pem)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise ValueError("is not PEM with a private key and its certificate, unencrypted") from None
