"""Decide which client certificates the TLS listener accepts.

Find the application that registered a client's certificate (RFC 8705 §2.2).

Each certificate that an application registered is a trust anchor of the listener, self-signed or not. The TLS
handshake proves only that the client has the private key of the certificate. Each token request checks who
owns the certificate, whether it is still registered, and whether it is within its validity period.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import logging
import ssl
from dataclasses import dataclass
from typing import Final

from proxy.rules.credentials import Certificate
from proxy.server.callers.rulebook import Caller, Rulebook

logger = logging.getLogger(__name__)

NO_CERTIFICATE: Final = ""  # thumbprint of a connection without a client certificate
_AT_ONCE: Final = 50  # certificates to read before yielding to the event loop, which takes some milliseconds


class CertificateRefused(Exception):
    """A client certificate that does not authenticate an application.

    `problem` is one of CREDENTIAL_PROBLEMS. `credential_id` names the credential of the certificate, if a
    credential was found.
    """

    def __init__(self, problem: str, credential_id: str | None = None) -> None:
        super().__init__(problem)
        self.problem = problem
        self.credential_id = credential_id


@dataclass(frozen=True, slots=True)
class _Validity:
    """Validity period of a certificate, in Unix seconds."""

    begins_at: float
    ends_at: float


def thumbprint_of(certificate: bytes) -> str:
    """Return the SHA-256 of a DER certificate, as base64url: the value of `x5t#S256`."""
    digest = hashlib.sha256(certificate).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode("ascii")


class ClientCertificates:
    """Registered client certificates of one worker, and the trust anchors of its listener."""

    def __init__(self, tls: ssl.SSLContext | None) -> None:
        """Use the TLS context of the listener for client certificates.

        `tls` is None if the listener requests no client certificate.
        """
        self._tls = tls
        # validity period by thumbprint; None for a damaged certificate
        self._known: dict[str, _Validity | None] = {}

    @property
    def are_asked_for(self) -> bool:
        return self._tls is not None

    async def trust(self, rulebook: Rulebook) -> None:
        """Accept the client certificates of the applications in `rulebook` in TLS handshakes.

        A removed certificate stays a trust anchor until the worker ends, because OpenSSL cannot remove a
        trust anchor. The method `judge` accepts only certificates that are credentials of the application
        now, so a removed certificate authenticates no client.
        """
        if self._tls is None:
            return
        read = 0
        for caller in rulebook.callers.values():
            for credential in caller.credentials or ():
                if isinstance(credential, Certificate) and credential.thumbprint not in self._known:
                    self._known[credential.thumbprint] = _anchor(self._tls, credential)
                    read += 1
                    if read % _AT_ONCE == 0:
                        await asyncio.sleep(0)

    def judge(self, thumbprint: str, caller: Caller, now: float) -> Certificate:
        """Return the credential of `caller` that has the client's certificate.

        Raise CertificateRefused otherwise.
        """
        found: Certificate | None = None
        for credential in caller.credentials or ():
            if isinstance(credential, Certificate) and credential.thumbprint == thumbprint:
                found = credential
                if found.ends_at is None or now < found.ends_at:
                    break
        if found is None:
            raise CertificateRefused("certificate")
        validity = self._known.get(thumbprint)
        if validity is None:
            raise CertificateRefused("certificate", found.id)
        if now < validity.begins_at:
            raise CertificateRefused("notYetValid", found.id)
        if now >= validity.ends_at:
            raise CertificateRefused("expired", found.id)
        if found.ends_at is not None and now >= found.ends_at:
            raise CertificateRefused("ended", found.id)
        return found


def has_certificate(caller: Caller) -> bool:
    """Return True if an application can authenticate with a client certificate."""
    return any(isinstance(each, Certificate) for each in caller.credentials or ())


def _anchor(tls: ssl.SSLContext, credential: Certificate) -> _Validity | None:
    from cryptography import x509  # imported here, because many proxies use no client certificates

    try:
        if thumbprint_of(credential.certificate) != credential.thumbprint:
            raise ValueError("the certificate of the credential does not have the registered thumbprint")
        certificate = x509.load_der_x509_certificate(credential.certificate)
        tls.load_verify_locations(cadata=credential.certificate)
    except (ValueError, ssl.SSLError) as error:
        logger.error("rejected the certificate of credential %s: %s", credential.id, error)
        return None
    return _Validity(
        certificate.not_valid_before_utc.timestamp(), certificate.not_valid_after_utc.timestamp()
    )
