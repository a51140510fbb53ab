"""Parse the form of a token request, and its client credentials.

The module `form` also defines the OAuth errors of RFC 6749.

The module `form` does no input or output.
"""

from __future__ import annotations

import base64
import binascii
from typing import Final
from urllib.parse import parse_qsl, unquote_plus

MAX_FORM_FIELDS: Final = 64

NOTHING_GIVEN: Final = "The request has no secret, no assertion and no client certificate."

_FORM: Final = b"application/x-www-form-urlencoded"


class OAuthError(Exception):
    """An error response of OAuth 2.0 (RFC 6749 §5.2)."""

    def __init__(self, status: int, error: str, description: str, *, retry_after: int = 0) -> None:
        super().__init__(description)
        self.retry_after = retry_after
        self.status = status
        self.error = error
        self.description = description


def client_credentials_form(content_type: bytes | None, body: bytes) -> dict[str, str]:
    """Return the fields of a token request's form (grant type `client_credentials`). Raise OAuthError."""
    form = _parse_form(content_type, body)
    grant = form.get("grant_type")
    if grant is None:
        raise OAuthError(400, "invalid_request", "The form has no grant_type.")
    if grant != "client_credentials":
        raise OAuthError(
            400, "unsupported_grant_type", "The only supported grant_type is client_credentials."
        )
    return form


def id_and_secret(form: dict[str, str], authorization: bytes | None) -> tuple[str, str]:
    """Return client ID and client secret, either from HTTP Basic or from the form. Raise OAuthError."""
    if authorization is not None and is_basic(authorization):
        if "client_secret" in form:
            raise OAuthError(
                400, "invalid_request", "Credentials are given twice, in Authorization and in the form."
            )
        return _parse_basic(authorization[6:])
    client_id, secret = form.get("client_id"), form.get("client_secret")
    if not client_id:
        raise OAuthError(401, "invalid_client", "The form has no client_id.")
    if not secret:
        raise OAuthError(401, "invalid_client", NOTHING_GIVEN)
    return client_id, secret


def is_basic(authorization: bytes | None) -> bool:
    """Return True if an `Authorization` header field has HTTP Basic credentials."""
    return authorization is not None and authorization[:6].lower() == b"basic "


def _parse_form(content_type: bytes | None, body: bytes) -> dict[str, str]:
    if content_type is None or content_type.partition(b";")[0].strip(b" \t").lower() != _FORM:
        raise OAuthError(
            400, "invalid_request", "The request body must be application/x-www-form-urlencoded."
        )
    if body.count(b"&") >= MAX_FORM_FIELDS:
        raise OAuthError(400, "invalid_request", f"The form has more than {MAX_FORM_FIELDS} fields.")
    try:
        fields = parse_qsl(body.decode("utf-8"), keep_blank_values=True, errors="strict")
    except ValueError:
        raise OAuthError(400, "invalid_request", "The form is not UTF-8 text.") from None
    form = dict(fields)
    if len(form) != len(fields):
        raise OAuthError(400, "invalid_request", "A form field is given more than once.")
    return form


def _parse_basic(encoded: bytes) -> tuple[str, str]:
    """Return client ID and client secret from HTTP Basic credentials (RFC 7617).

    The client ID and the secret are form-encoded, as RFC 6749 §2.3.1 requires.
    """
    try:
        text = base64.b64decode(encoded.strip(), validate=True).decode("utf-8")
        user, mark, password = text.partition(":")
        if not mark:
            raise ValueError
        return unquote_plus(user, errors="strict"), unquote_plus(password, errors="strict")
    except (binascii.Error, ValueError):
        raise OAuthError(401, "invalid_client", "The Basic credentials are malformed.") from None
