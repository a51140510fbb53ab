"""The parts of an audit event: its fields, the list of all reasons, its id and its time."""

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
        "rule": "a request rule decided",
        "default": "no rule matched; the ruleset's default decided",
        "hiddenProperty": "the path or query names a property that a rule hides",
        "responseRule": "a response rule decided, once the upstream had responded",
        "impliedRequest": "a stricter rule applies to a request that this one implies, such as by `$expand`",
        "noRuleset": "the application has no ruleset, so everything is blocked",
        # Decision of an operator, which overrides the policy.
        "stopped": "an operator has stopped the application, its organisation or everything",
        # Outcomes of the token endpoint.
        "tokenIssued": "a proxy token was issued",
        "tokenRefused": "the application's credentials were wrong, or it is disabled",
        "assertionRefused": "a client assertion was refused; `credentialProblem` has the reason",
        "certificateRefused": "a client certificate was refused; `credentialProblem` has the reason",
        "tooManyFailures": "the client or its address has failed too often; no secret was compared",
        # Requests that were refused before their rules were evaluated.
        "invalidToken": "the proxy token is expired, revoked or of a disabled application",
        "malformedRequest": "the request is not acceptable HTTP",
        "malformedTarget": "the request target is malformed",
        "ambiguousTarget": "an encoded slash in the target would change the verdict",
        "malformedBatch": "the body of a $batch request is malformed",
        "payloadTooLarge": "the request body is over the size limit of a rule or a batch",
        "headersTooLarge": "the request's header section has too many bytes or too many fields",
        "requestTimeout": "the request came too slowly",
        "unsupported": "a method, version or feature of HTTP that the proxy does not serve, such as CONNECT",
        # Requests that the proxy was not able to serve.
        "notReady": "the proxy is not ready: no rules, rules too old, or no room for audit events",
        "credentialUnavailable": "the proxy has no valid upstream token",
        "overloaded": "the load is over a limit of the proxy: upstream connections or memory",
        "internalError": "a fault of the proxy itself",
        # Failures of the upstream.
        "upstreamError": "the upstream responded with a status that is reported as 502",
        "upstreamUnauthorised": "the upstream refused the proxy's own token",
        "upstreamUnreachable": "no connection to the upstream could be made, or it broke before a response",
        "upstreamTimeout": "the upstream did not respond in time",
        "upstreamProtocol": "the upstream's response is not acceptable HTTP",
        "upstreamAborted": "the upstream's response broke off after it had begun",
        "filterFailed": "the response should have been filtered and could not be, so it was withheld",
        # Clients that left.
        "clientAborted": "the client left before its response was complete, or a worker that hung was ended",
        # Sub-requests of a batch that the proxy did not send.
        "dependencyFailed": "a sub-request of a $batch depends on one that was blocked or failed",
    }
)

# Reasons of token requests. No rule decides those.
TOKEN_REASONS: Final = frozenset(("tokenIssued", "tokenRefused", "assertionRefused", "certificateRefused"))

CREDENTIAL_PROBLEMS: Final = MappingProxyType(
    {
        "issuer": "the issuer is not one that a credential of the application names",
        "subject": "the subject is not the one that a credential of the application names",
        "audience": "the audience is not the proxy's, and not one that a credential of the application names",
        "algorithm": "the algorithm is not allowed for the key",
        "key": "no known key has the key id, or the thumbprint, that the assertion names",
        "signature": "the signature does not fit the key",
        "notYetValid": "the assertion is not valid yet, or was issued in the future",
        "expired": "the assertion, or the certificate, has expired",
        "lifetime": "the assertion is valid for longer than the proxy accepts, or has no end",
        "reuse": "the assertion was used before",
        "malformed": "the assertion is not a signed JWT, or has members that the proxy does not accept",
        "keysUnavailable": "the proxy has no recent keys of the issuer",
        "audienceUnknown": "`Proxy.PublicBaseUrl` is not set, so the proxy cannot check the audience",
        "certificate": "the certificate is not one that a credential of the application names",
        "binding": "the connection does not have the client certificate that the token names",
        "ended": "the credential of the application has ended",
        "noCertificate": "the connection has no client certificate; a load balancer may have ended TLS",
    }
)


def uuid7(ms: int, random74: int) -> str:
    """Return a UUIDv7 (RFC 9562 §5.7) of a Unix time in milliseconds and 74 bits: rand_a, then rand_b."""
    return "%08x-%04x-%04x-%04x-%012x" % (  # noqa: UP031 - an f-string takes half as long again
        ms >> 16 & 0xFFFFFFFF,
        ms & 0xFFFF,
        0x7000 | random74 >> 62 & 0xFFF,
        0x8000 | random74 >> 48 & 0x3FFF,
        random74 & 0xFFFFFFFFFFFF,
    )


@lru_cache(maxsize=64)
def rfc3339(ms: int) -> str:
    """Format a Unix time in milliseconds as `2026-11-21T04:25:58.123Z`."""
    seconds, milliseconds = divmod(ms, 1000)
    return f"{_to_the_second(seconds)}.{milliseconds:03d}Z"


@lru_cache(maxsize=64)
def _to_the_second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
