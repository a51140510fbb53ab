"""Reader for a certificate and its private key from a key vault, in each form that the vault stores."""

import base64
from dataclasses import dataclass, field
from typing import Final

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.serialization import pkcs12

PFX: Final = "application/x-pkcs12"
PEM: Final = "application/x-pem-file"
_SMALLEST_KEY: Final = 2048  # bits, RFC 7518 §3.5


@dataclass(frozen=True, slots=True)
class Certificate:
    """A private key and its certificate in PEM format.

    In the PEM text, the private key precedes the certificate.
    """

    pem: bytes = field(repr=False)
    ends_at: float


def is_certificate(value: str, content_type: str) -> bool:
    """Return True if a vault secret contains a certificate, even if the secret's content type is missing.

    A certificate must never be sent to the identity provider as if it were a client secret.
    """
    return content_type in (PFX, PEM) or "-----BEGIN" in value


def read_certificate(value: str, content_type: str) -> Certificate:
    """Read a certificate with its private key from the value of a secret.

    Raise ValueError with the fault of the secret, but without any part of its value.
    """
    key, certificates = _from_pfx(value) if content_type == PFX else _from_pem(value)
    if not isinstance(key, RSAPrivateKey):
        raise ValueError("the secret has no RSA private key, or that key is encrypted")
    if key.key_size < _SMALLEST_KEY:
        raise ValueError(
            f"the secret has an RSA key of {key.key_size} bits; at least {_SMALLEST_KEY} are required"
        )
    own = [each for each in certificates if _belongs(each, key)]
    if not own:
        raise ValueError("the secret has no certificate that belongs to its private key")
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    pem += own[0].public_bytes(serialization.Encoding.PEM)
    return Certificate(pem, own[0].not_valid_after_utc.timestamp())


def _belongs(certificate: x509.Certificate, key: RSAPrivateKey) -> bool:
    """Return True if the private key belongs to the certificate.

    An issuer's certificate can have a key of an unsupported kind. An unsupported key in an issuer's
    certificate is not an error, because the proxy does not need that certificate.
    """
    try:
        return certificate.public_key() == key.public_key()
    except (ValueError, UnsupportedAlgorithm):
        return False


def _from_pfx(value: str) -> tuple[object, list[x509.Certificate]]:
    try:
        key, own, others = pkcs12.load_key_and_certificates(base64.b64decode(value, validate=True), None)
    except (ValueError, UnsupportedAlgorithm):
        raise ValueError("the secret must be a PFX in base64 that has no password") from None
    return key, [*([own] if own is not None else []), *others]


def _from_pem(value: str) -> tuple[object, list[x509.Certificate]]:
    pem = value.encode("utf-8", "surrogatepass")
    try:
        return serialization.load_pem_private_key(pem, None), x509.load_pem_x509_certificates(pem)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise ValueError(
            "the secret must be unencrypted PEM with a private key and the certificate of this key"
        ) from None
