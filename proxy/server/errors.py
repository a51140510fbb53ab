"""Failures of one exchange: the party at fault, the HTTP status, and the reason in the audit event.

If the proxy refuses a request, or if the request fails, the proxy makes the response from a `Refusal`. The
token endpoint uses `OAuthError` instead. `STATUS_OF` is the only table from code to status
(docs/reference/errors.md).
"""

from __future__ import annotations

from typing import Final

UNCHANGED: Final = "the response says that the object has not changed, and not whether the filter keeps it"
NO_ROOM: Final = "The proxy has no room to record the request."

NO_RULESET: Final = "Graphward blocked this request: no ruleset is assigned to this application."
STOPPED: Final = "Graphward blocked this request: an operator has stopped this application."
BLOCKED: Final = frozenset(("policyBlocked", "emergencyStop"))  # codes of refusals that an operator decided

STATUS_OF: Final[dict[str, int]] = {
    "badRequest": 400,
    "InvalidAuthenticationToken": 401,
    "policyBlocked": 403,
    "emergencyStop": 403,
    "itemNotFound": 404,
    "methodNotAllowed": 405,
    "requestTimeout": 408,
    "payloadTooLarge": 413,
    "expectationFailed": 417,
    "failedDependency": 424,
    "headersTooLarge": 431,
    "upstreamError": 502,
    "upstreamUnreachable": 502,
    "filterFailed": 502,
    "notReady": 503,
    "upstreamTimeout": 504,
}


class Refusal(Exception):
    """Refusal that ends an exchange with a response that the proxy makes.

    `code` is a key of `STATUS_OF`; `reason` is a code of `proxy.wire.audit_event.REASONS`. `close` means that
    the connection cannot be used afterwards, because the start of the next request is unknown.
    """

    __slots__ = ("allow", "close", "code", "message", "reason", "retry_after", "rule_id", "upstream_status")

    def __init__(
        self,
        code: str,
        message: str,
        reason: str,
        *,
        rule_id: str | None = None,
        retry_after: int | None = None,
        upstream_status: int | None = None,
        allow: str | None = None,
        close: bool = False,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.reason = reason
        self.rule_id = rule_id
        self.retry_after = retry_after
        self.upstream_status = upstream_status
        self.allow = allow
        self.close = close

    @property
    def status(self) -> int:
        return STATUS_OF[self.code]


_REASON_OF_HEAD: Final = {
    "badRequest": "malformedRequest",
    "methodNotAllowed": "unsupported",
    "expectationFailed": "unsupported",
    "headersTooLarge": "headersTooLarge",
    "requestTimeout": "requestTimeout",
}


class MalformedHead(ValueError):
    """A request head that breaks RFC 9112, or that has more than one interpretation.

    `code` is a key of `STATUS_OF`. `reason` is a code of `proxy.wire.audit_event.REASONS`; the default is the
    reason that belongs to `code`.
    """

    def __init__(self, message: str, code: str = "badRequest", reason: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason or _REASON_OF_HEAD[code]


class MalformedBody(ValueError):
    """A chunked body that breaks RFC 9112 §7.1."""


def blocked_by(rule_id: str) -> str:
    """Return the error message for a request that the rule `rule_id` blocks.

    The ID `default` stands for the verdict if no rule matches.
    """
    if rule_id == "default":
        return "Graphward blocked this request: no rule allows it (default)."
    return f"Graphward blocked this request by rule '{rule_id}'."


def filter_failed(why: str) -> Refusal:
    """Refuse an upstream response, because it cannot be filtered.

    A response that cannot be filtered never reaches the application.
    """
    return Refusal("filterFailed", f"The upstream's response can't be filtered: {why}.", "filterFailed")


def item_not_found(reason: str) -> Refusal:
    """Refuse a request for an object that the filter hides, without revealing that the object exists.

    `reason` is the audit reason of the decision that applied the filter.
    """
    return Refusal("itemNotFound", "The item was not found.", reason)


def overloaded(message: str, *, close: bool = False) -> Refusal:
    """Refuse a request early because of overload.

    Applications' libraries retry after any 503 with Retry-After.
    """
    return Refusal("notReady", message, "overloaded", retry_after=1, close=close)


def unreadable_response(why: str, status: int) -> Refusal:
    return Refusal(
        "upstreamError",
        f"The upstream's response can't be read: {why}.",
        "upstreamProtocol",
        upstream_status=status,
    )
