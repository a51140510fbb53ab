"""Verify a client by the client certificate of the connection (RFC 8705 §2)."""

from __future__ import annotations

import time
from typing import Final

from proxy.server.callers.client_certificates import (
    NO_CERTIFICATE,
    CertificateRefused,
    has_certificate,
)
from proxy.server.token_endpoint.form import NOTHING_GIVEN, is_basic
from proxy.server.token_endpoint.token_request import Access, TokenRequest

_BAD_CERTIFICATE: Final = "The client certificate is not valid."


def has_certificate_alone(request: TokenRequest, form: dict[str, str]) -> bool:
    """Return True if only the certificate of the connection can authenticate the client."""
    client_id = form.get("client_id")
    if not client_id or form.get("client_secret") or is_basic(request.head.fields.authorization):
        return False
    if request.connection.thumbprint != NO_CERTIFICATE:
        return True
    caller = request.context.rulebook.callers.get(client_id)
    return caller is not None and has_certificate(caller)  # the audit event then names the application


def prove_by_certificate(request: TokenRequest, client_id: str) -> None:
    """Respond to a client whose TLS handshake proved that it has the key of its certificate."""
    context, pending = request.context, request.pending
    caller = pending.caller = context.rulebook.callers.get(client_id)
    thumbprint = request.connection.thumbprint
    try:
        if thumbprint == NO_CERTIFICATE:
            raise CertificateRefused("noCertificate")
        if caller is None:
            raise CertificateRefused("certificate")
        credential = context.client_certificates.judge(thumbprint, caller, time.time())
    except CertificateRefused as refused:
        _refuse(request, refused)
        return
    pending.credential = credential.id, None
    access = request.access_of(caller)
    if access is Access.GRANTED:
        request.issue(caller, credential)
    else:
        request.refuse_access(access, _BAD_CERTIFICATE)


def _refuse(request: TokenRequest, refused: CertificateRefused) -> None:
    request.count_problem(refused.problem, refused.credential_id)
    has_none = request.connection.thumbprint == NO_CERTIFICATE
    description = NOTHING_GIVEN if has_none else _BAD_CERTIFICATE  # the same text as for an unknown client
    request.refuse_unguessable(description, "certificateRefused")
