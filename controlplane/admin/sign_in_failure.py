"""Failures of sign-ins at the identity provider, with texts for the page, the log and the operator log."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final

from controlplane.store.interface import Operator
from proxy.wire.log_line import escaped

_LONGEST: Final = 500  # characters of a provider's text that are stored

# RFC 6749 sections 4.1.2.1 and 5.2; OpenID Connect Core section 3.1.2.6.
_REGISTRATION: Final = frozenset(
    {
        "invalid_client",
        "invalid_request",
        "invalid_request_object",
        "invalid_request_uri",
        "invalid_redirect_uri",
        "invalid_resource",
        "invalid_scope",
        "redirect_uri_mismatch",
        "registration_not_supported",
        "request_not_supported",
        "request_uri_not_supported",
        "unauthorized_client",
        "unsupported_grant_type",
        "unsupported_response_type",
    }
)
_TRY_LATER: Final = frozenset({"server_error", "temporarily_unavailable"})


_AT_THE_LOG: Final = "the control plane's log and the operator log say"
_ROLELESS: Final = (
    "your account has none of the roles that let people in here (examined claim: {claim}): ask an "
    f"administrator of the identity provider for one; {_AT_THE_LOG} which values came"
)
_UNLINKED: Final = (
    "your account is not linked to the operator that has its name here: ask an administrator of this "
    f"console to link it; {_AT_THE_LOG} which operator and subject these are"
)
_OVERAGE: Final = (
    "your account is in more groups than the identity provider names (the claim {claim}): its administrator "
    "must use app roles, or send only the groups assigned to the application"
)


class Cause(Enum):
    """Cause of a failed sign-in.

    Each cause has an error code, a text for the page, and a flag that is True if the visitor is at fault.
    """

    DENIED = (
        "unauthenticated",
        False,
        f"the identity provider refused the sign-in{{error}}: {_AT_THE_LOG} its reason",
    )
    CODE = "unauthenticated", True, "the identity provider did not accept the sign-in's code: sign in again"
    FORGED = "unauthenticated", True, "this sign-in was not started here or at this provider: sign in again"
    TOKEN = (
        "unauthenticated",
        False,
        f"the identity provider's response could not be verified: {_AT_THE_LOG} why",
    )
    NOBODY = (
        "unauthenticated",
        True,
        f"no operator here has the name that you signed in with: {_AT_THE_LOG} which names were looked for",
    )
    NAMELESS = (
        "unauthenticated",
        False,
        f"the identity provider gave no valid name: {_AT_THE_LOG} which claims came",
    )
    UNLINKED = (
        "unauthenticated",
        True,
        _UNLINKED,
    )
    DISABLED = (
        "unauthenticated",
        False,
        f"you are not allowed to sign in here: ask an administrator of this console; {_AT_THE_LOG} why",
    )
    ROLELESS = (
        "unauthenticated",
        False,
        _ROLELESS,
    )
    OVERAGE = (
        "unauthenticated",
        False,
        _OVERAGE,
    )
    REGISTRATION = (
        "unavailable",
        False,
        f"single sign-on is not set up correctly{{error}}: tell its administrator; {_AT_THE_LOG} why",
    )
    UNREACHABLE = "unavailable", False, "the identity provider can't be reached now: try again later"

    def __init__(self, code: str, counts: bool, sentence: str) -> None:
        self.code = code
        self.counts = counts
        self.sentence = sentence

    @property
    def word(self) -> str:
        """Name of the failure's cause in the operator log."""
        return self.name.lower()


class SignInFailed(Exception):
    """Error because a sign-in at the identity provider failed. The exception's text is one line for the log.

    `details` are facts for the operator log, such as the provider's reason. `operator` is the operator that
    the person tried to sign in as, or None if the operator is unknown.
    """

    def __init__(
        self,
        cause: Cause,
        text: str,
        details: Mapping[str, str] | None = None,
        operator: Operator | None = None,
    ) -> None:
        super().__init__(text)
        self.cause = cause
        self.details = dict(details or {})
        self.operator = operator

    @property
    def sentence(self) -> str:
        """Sentence about the failed sign-in for the visitor, with the provider's error code.

        The sentence for the visitor contains the provider's error code, but no other text of the provider. If
        the sentence for the visitor names a claim, the claim's name comes from the settings, not from the
        provider.
        """
        error, claim = self.details.get("error", ""), self.details.get("claim", "")
        return self.cause.sentence.format(error=f" ({error})" if error else "", claim=claim)


def check_enabled(operator: Operator, details: Mapping[str, str]) -> None:
    """Raise SignInFailed if the operator who signs in is disabled."""
    if not operator.enabled:
        raise SignInFailed(Cause.DISABLED, f"the operator {operator.name} is disabled", details, operator)


def said(text: object) -> str:
    """Return a text from the provider with unsafe characters escaped.

    If the text is longer than the limit, the end of the returned text states how many characters are missing.
    """
    safe = escaped(text if isinstance(text, str) else repr(text))
    return safe if len(safe) <= _LONGEST else f"{safe[:_LONGEST]}…({len(safe) - _LONGEST} more characters)"


def refused_by_provider(
    where: str, error: object, description: object = None, *, at_token_endpoint: bool = False
) -> SignInFailed:
    """Return the sign-in failure for an OAuth error response.

    `where` is a text for the log that describes the OAuth error response.
    """
    details = {"error": said(error)}
    if description not in (None, ""):
        details["description"] = said(description)
    words = f"{where}: {': '.join(details.values())}"
    known = error if isinstance(error, str) else ""
    if known in _REGISTRATION:
        fix = "fix the registration there, or Console.OidcClientId, OidcClientSecret or PublicBaseUrl"
        return SignInFailed(Cause.REGISTRATION, f"{words} ({fix})", details)
    if known in _TRY_LATER:
        return SignInFailed(Cause.UNREACHABLE, words, details)
    return SignInFailed(Cause.CODE if at_token_endpoint else Cause.DENIED, words, details)
