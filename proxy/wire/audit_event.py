"""Definitions for audit events: the fields, all reasons, the ID and the time format."""

from datetime import UTC, datetime
from functools import lru_cache
from types import MappingProxyType
from typing import Final

EVENT_FIELDS: Final = (
    "id", "time", "orgId", "proxyId", "appId", "clientId", "clientIp", "requestId", "clientRequestId",
    "method", "path", "query", "status", "verdict", "ruleId", "loggedRuleIds", "transforms",
    "upstreamStatus", "durationMs", "upstreamMs", "requestBytes", "responseBytes", "parentRequestId",
    "seq", "reason", "rulesetVersion", "upstreamRequestId", "shadowVerdict", "shadowRuleId",
    "shadowRulesetVersion", "ruleIds", "traceId", "impliedRequest", "redirect",
    "credentialId", "credentialProblem",
)  # fmt: skip
REQUIRED_FIELDS: Final = ("id", "time", "orgId", "method", "path", "status", "verdict")
VERDICTS: Final = ("allow", "filter", "block", "log_only")

# Verdicts of a shadow ruleset. "unknown": it needed a request body that was not buffered.
SHADOW_VERDICTS: Final = (*VERDICTS, "unknown")

STATUS_FAULT: Final = 500  # a fault of the proxy before a response began; only recorded, never sent
STATUS_CLIENT_LEFT: Final = 499  # the client left before a response began; only recorded, never sent

REASONS: Final = MappingProxyType(
    {
        # Decisions of the policy.
        "rule": "a request rule decided the verdict",
        "default": "no rule matched, so the ruleset's default verdict applied",
        "hiddenProperty": "the path or query of the request names a property that a rule hides",
        "responseRule": "a response rule decided the verdict after the upstream had responded",
        "impliedRequest": "this request implies another request, for example by `$expand`, and "
        "the rules give that other request a stricter verdict",
        "noRuleset": "the application has no ruleset, so the proxy blocks all its requests",
        # Decision of an operator, which overrides the policy.
        "stopped": "an operator has stopped the application, its organisation or all traffic",
        # Outcomes of the token endpoint.
        "tokenIssued": "the proxy issued a token to the application",
        "tokenRefused": "the application's credentials were wrong, or the application is disabled",
        "assertionRefused": "the proxy refused a client assertion; `credentialProblem` has the reason",
        "certificateRefused": "the proxy refused a client certificate; `credentialProblem` has the reason",
        "tooManyFailures": "the proxy compared no secret: the client or its address failed too often before",
        # Requests that were refused before their rules were evaluated.
        "invalidToken": "the request's proxy token is expired or revoked, or the application is disabled",
        "malformedRequest": "the request is not HTTP that the proxy accepts",
        "malformedTarget": "the target (path and query) of the request is malformed",
        "ambiguousTarget": "an encoded slash in the request target would change the verdict",
        "malformedBatch": "the body of a $batch request is malformed",
        "payloadTooLarge": "the request body is over the size limit for a rule or a batch",
        "headersTooLarge": "the request's header section has too many bytes or too many fields",
        "requestTimeout": "the client sent the request too slowly",
        "unsupported": "the proxy does not serve a method, version or feature in the request, such "
        "as CONNECT",
        # Requests that the proxy was not able to serve.
        "notReady": "the proxy is not ready: no rules, rules too old, or no room for audit events",
        "credentialUnavailable": "the proxy has no valid upstream token",
        "overloaded": "the load is over a limit of the proxy for upstream connections or memory",
        "internalError": "a fault in the proxy itself ended the request",
        # Failures of the upstream.
        "upstreamError": "the upstream responded with a status that the proxy reports as 502",
        "upstreamUnauthorised": "the upstream refused the proxy's own token",
        "upstreamUnreachable": "the connection to the upstream failed, or broke before a response",
        "upstreamTimeout": "the upstream did not respond in time",
        "upstreamProtocol": "the upstream's response is not HTTP that the proxy accepts",
        "upstreamAborted": "the upstream's response broke off after it had begun",
        "filterFailed": "the proxy withheld the response because it could not filter the response",
        # Clients that left.
        "clientAborted": "the client left before its response was complete, or a worker that hung was ended",
        # Sub-requests of a batch that the proxy did not send.
        "dependencyFailed": "a sub-request of a $batch depends on a sub-request that was blocked or failed",
    }
)

# Reasons of token requests. No rule decides those.
TOKEN_REASONS: Final = frozenset(("tokenIssued", "tokenRefused", "assertionRefused", "certificateRefused"))

CREDENTIAL_PROBLEMS: Final = MappingProxyType(
    {
        "issuer": "no credential of the application has the assertion's issuer",
        "subject": "no credential of the application has the assertion's subject",
        "audience": "the assertion's audience is neither this proxy nor the audience in a credential "
        "of the application",
        "algorithm": "the signature algorithm of the assertion is not allowed for the key",
        "key": "no known key has the key ID or the thumbprint that the assertion names",
        "signature": "the signature of the assertion does not match the key of the credential",
        "notYetValid": "the assertion is not valid yet, or was issued in the future",
        "expired": "the assertion or the certificate has expired",
        "lifetime": "the assertion is valid for longer than the proxy accepts, or never expires",
        "reuse": "the client assertion was used before",
        "malformed": "the assertion is not a signed JWT, or has a claim or header that the proxy refuses",
        "keysUnavailable": "the proxy has no recent keys of the assertion's issuer",
        "audienceUnknown": "`Proxy.PublicBaseUrl` is not set, so the proxy cannot check the assertion",
        "certificate": "the client certificate is not registered as a credential of the application",
        "binding": "the request's connection does not have the client certificate that the token names",
        "ended": "the credential of the application has ended",
        "noCertificate": "the connection has no client certificate; a load balancer may have terminated TLS",
    }
)


def uuid7(ms: int, random74: int) -> str:
    """Return a UUIDv7 (RFC 9562 §5.7) from a Unix time in ms and 74 bits (first rand_a, then rand_b)."""
    return "%08x-%04x-%04x-%04x-%012x" % (  # noqa: UP031 - an f-string takes half as long again
        ms >> 16 & 0xFFFFFFFF,
        ms & 0xFFFF,
        0x7000 | random74 >> 62 & 0xFFF,
        0x8000 | random74 >> 48 & 0x3FFF,
        random74 & 0xFFFFFFFFFFFF,
    )


@lru_cache(maxsize=64)
def rfc3339(ms: int) -> str:
    """Format a Unix time in milliseconds in UTC, as in `2026-11-21T04:25:58.123Z`."""
    seconds, milliseconds = divmod(ms, 1000)
    return f"{_to_the_second(seconds)}.{milliseconds:03d}Z"


@lru_cache(maxsize=64)
def _to_the_second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
