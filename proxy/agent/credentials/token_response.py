"""Pure check of a token response: find the reason why the response has no usable token.

The checked token response comes from an identity provider.
"""

import re
from typing import Final

import msgspec

from proxy.agent.credentials.provider import CredentialError
from proxy.outbound.retry import retry_after
from proxy.policy.json_text import readable

_PROVIDER: Final = "identity provider"
_LONGEST_PAUSE: Final = 300.0
_LONGEST_TOKEN: Final = 16 * 1024  # characters; a longer token hardly fits the header limit of an upstream
_LONGEST_LIFE: Final = 7 * 86400
# Seconds; a token with a shorter lifetime would be requested again as soon as it arrives.
_SHORTEST_LIFE: Final = 2.0
_TOKEN: Final = re.compile(
    r"[0-9A-Za-z._~+/=-]+"
)  # b64token of RFC 6750 §2.1, which can't break a header field
_DIGITS: Final = re.compile(r"[0-9]{1,9}")
_CODE: Final = re.compile(r"[0-9A-Za-z_.-]{1,64}")
_ENTRA_CODE: Final = re.compile(r"\bAADSTS([0-9]{2,9})\b", re.ASCII)
_FEDERATED: Final = (
    "compare issuer, subject and audience of the application's federated credential with those of the "
    "assertion, letter for letter"
)
_CURES: Final = {
    53003: "a conditional access policy for workload identities refuses this client",
    70011: "Credentials.Scope must be one resource and /.default",
    70021: _FEDERATED,
    90002: "there is no such tenant: check TenantId, and that AuthorityUrl is of its cloud",
    500011: "the tenant has no application for the resource in Credentials.Scope",
    700016: "the tenant has no application ClientId: check both ids, and that an administrator consented",
    700024: "the assertion is not valid now: check the clock of this machine",
    700027: "the certificate is not registered with the application, or has expired",
    700211: _FEDERATED,
    700212: _FEDERATED,
    700213: _FEDERATED,
    1002012: "Credentials.Scope must be one resource and /.default",
    7000112: "the application is disabled in the tenant",
    7000215: "the client secret is wrong: it must be the secret's value, not its id",
    7000222: "the client secret has expired: register a new one",
    7000229: "the tenant has no service principal of the application: add it there, and consent",
}


class _Response(msgspec.Struct):
    access_token: str
    expires_in: int | float | str
    token_type: str = "Bearer"  # noqa: S105 - a type, not a token


class _Error(msgspec.Struct):
    error: str = ""
    error_description: str = ""


class ClientRefused(CredentialError):
    """Error because the identity provider refuses the client's secret or certificate (`invalid_client`)."""


def check_response(status: int, pause: str | None, body: bytes, now: float) -> None:
    """Raise CredentialError unless the token response contains a usable token."""
    if status != 200:
        raise _refusal(status, pause, body, now)
    try:
        response = msgspec.json.decode(readable(body), type=_Response)
    except ValueError:
        raise CredentialError(
            f"{_PROVIDER} responded with 200, but without a token and its lifetime"
        ) from None
    check_token(_PROVIDER, response.access_token, response.token_type, _lifetime(response.expires_in))


def check_token(giver: str, token: str, token_type: str, life: float) -> None:
    """Raise CredentialError for a token that can't be in a header field or has an unusable lifetime."""
    if _TOKEN.fullmatch(token) is None:
        raise CredentialError(f"{giver} responded with 200 and an empty or malformed token")
    if len(token) > _LONGEST_TOKEN:
        raise CredentialError(f"{giver} responded with a token over {_LONGEST_TOKEN} characters")
    if token_type.lower() != "bearer":
        raise CredentialError(f"{giver} responded with a token whose type is not Bearer")
    if not _SHORTEST_LIFE <= life <= _LONGEST_LIFE:
        raise CredentialError(f"{giver} responded with 200 and a token lifetime that can't be used")


def _lifetime(expires_in: float | str) -> float:
    """Return the lifetime of a token in seconds, or 0 if the given text is not a number."""
    if isinstance(expires_in, str):
        return float(expires_in) if _DIGITS.fullmatch(expires_in) else 0.0
    return expires_in


def _refusal(status: int, pause: str | None, body: bytes, now: float) -> CredentialError:
    """Describe why the identity provider refused a request, by the error codes in its response.

    The text never contains the error description, because this description quotes the request.
    """
    asked = min(retry_after(pause, now) or 0.0, _LONGEST_PAUSE)
    try:
        error = msgspec.json.decode(readable(body), type=_Error)
    except ValueError:
        error = _Error()
    code = error.error if _CODE.fullmatch(error.error) else ""
    entra = _ENTRA_CODE.search(error.error_description)
    named = " ".join(filter(None, (code, f"AADSTS{entra[1]}" if entra else "")))
    cure = _CURES.get(int(entra[1]), "") if entra else ""
    text = f"{_PROVIDER} responded with {status} {named}".rstrip()
    kind = ClientRefused if code == "invalid_client" else CredentialError
    return kind(f"{text}; {cure}" if cure else text, asked)
