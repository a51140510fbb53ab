"""Explanation and remedy for each error code and reason: the texts of docs/reference/errors.md.

The source code of the programs defines all error codes. A test fails if an error code has no explanation in
this module, or if an explanation has no error code.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Text(NamedTuple):
    """The paragraphs of the documentation about one error code.

    `reasons` contains each value of `reason` that an audit event can have for this error code.
    """

    meaning: str
    action: str
    reasons: tuple[str, ...] = ()


RESPONSES: Final = {
    "badRequest": Text(
        "The request is malformed, or its target has more than one interpretation. The error "
        "message names the fault of the request.",
        "Correct the request in the application. In the request target, "
        "write each character beyond ASCII as `%XX` (`é` as `%C3%A9`).",
        ("malformedRequest", "malformedTarget", "ambiguousTarget", "malformedBatch", "unsupported"),
    ),
    "InvalidAuthenticationToken": Text(
        "The request has no token, or a token that this proxy does not accept. The proxy "
        "accepts only tokens that it issued itself, and refuses a token of Microsoft Entra.",
        "Request a new token from the proxy's token endpoint. The claims challenge in "
        "`WWW-Authenticate` makes most SDKs request a new token. If the proxies refuse every "
        "token, check that all proxies behind one address have the same signing key. A "
        "request without a valid token leaves no audit event, but a line in the proxy's log.",
        ("invalidToken",),
    ),
    "policyBlocked": Text(
        "A rule of the application's ruleset blocks the request. The JSON field `ruleId` of the "
        "response names the rule that blocked the request. If `ruleId` is `default`, no rule "
        "matched the request.",
        "Do not send the request again, because the response stays the same until the rules "
        "change. The operator finds the rule by `ruleset explain --event ID`, and [tries a "
        "change of the rule](../how-to/try-rules.md) before publishing it.",
        ("rule", "default", "hiddenProperty", "impliedRequest", "responseRule", "noRuleset"),
    ),
    "emergencyStop": Text(
        "An operator has stopped the application, its organisation or all traffic.",
        "Do not send the request again. The command `kill list` shows the emergency stops, "
        "and `unkill` [lifts a stop](../how-to/emergency-stop.md). A stop can also come from "
        "the file `Proxy.KillFile` on the host of the proxy.",
        ("stopped",),
    ),
    "itemNotFound": Text(
        "The requested object does not exist for this application. Either the upstream does "
        "not have the requested object, or a rule removes the object from the response. The "
        "response body is the same for a missing and for a removed object, so that a caller "
        "cannot detect the removal.",
        "Search the audit event by the `request-id` of the response. If the verdict of the "
        "event is `filter`, a rule removed the object.",
        ("rule", "impliedRequest"),
    ),
    "methodNotAllowed": Text(
        "The proxy does not serve the method of the request, such as CONNECT, or the token "
        "endpoint received a method other than POST. The header `Allow` of the response "
        "lists the methods that the proxy serves.",
        "Use one of the methods in the header `Allow` of the response.",
        ("unsupported", "malformedRequest"),
    ),
    "requestTimeout": Text(
        "The header section or the body of the request arrived too slowly.",
        "Send the request faster. `Proxy.HeadTimeoutSeconds` and "
        "`Proxy.MinBodyBytesPerSecond` set the limits for the speed of a request.",
        ("requestTimeout",),
    ),
    "payloadTooLarge": Text(
        "The request body is too large for a rule that reads it, for a `$batch`, or for the "
        "token endpoint (64 KiB).",
        "Send a smaller request body, or split the batch. The operator can raise the limit "
        "`Proxy.MaxBufferedBodyBytes`.",
        ("payloadTooLarge",),
    ),
    "expectationFailed": Text(
        "The header `Expect` of the request has a value other than `100-continue`.",
        "Remove the header `Expect` from the request.",
        ("unsupported",),
    ),
    "failedDependency": Text(
        "A sub-request of a `$batch` names another sub-request in `dependsOn`, and the proxy "
        "refused the other sub-request.",
        "Correct the sub-request that the proxy refused first. The response to the refused "
        "sub-request gives the cause of its refusal.",
        ("dependencyFailed",),
    ),
    "headersTooLarge": Text(
        "The header section of the request, or of a sub-request, has too many bytes or fields.",
        "Send fewer or shorter header fields. `Proxy.MaxHeaderBytes` and "
        "`Proxy.MaxHeaderCount` set the limits for the header section.",
        ("headersTooLarge",),
    ),
    "upstreamError": Text(
        "The upstream responded with a 5xx status, refused the proxy's own token, or sent a "
        "response that is not valid HTTP. If the upstream sent a status, `upstreamStatus` in "
        "the response has this status.",
        "Send the request again if the request can be repeated. If `upstreamStatus` is 401, "
        "the application is not at fault. The operator must check the upstream credential of "
        "the proxy and the permissions of this credential.",
        ("upstreamError", "upstreamUnauthorised", "upstreamProtocol"),
    ),
    "upstreamUnreachable": Text(
        "The proxy could not connect to the upstream, or the connection to the upstream "
        "broke before a response.",
        "Send the request again if the request can be repeated. The operator runs `python -m "
        "proxy --config FILE --doctor`, which tests the connection to the upstream.",
        ("upstreamUnreachable",),
    ),
    "filterFailed": Text(
        "A rule filters the response, but the proxy could not filter it. The proxy withheld "
        "the whole response of the upstream. The error message says why the filter "
        "failed, for example because the response is too large.",
        "If the response is over the size limit for filters, request smaller pages with "
        "`$top`, or raise `Upstream.MaxFilterBytes`. If a 304 or a redirect to another host "
        "is the cause, request the object without conditional header fields, or change the "
        "rule that filters the response.",
        ("filterFailed",),
    ),
    "notReady": Text(
        "The proxy cannot serve the request now. The proxy has no rules, no upstream token, "
        "no signing key or no space for audit events, or its load is over a limit. The error "
        "message of the 503 response says why the proxy cannot serve the request.",
        "Send the request again after `Retry-After` seconds, as SDKs do. If the error lasts, "
        "the operator reads `/readyz` and the log of the proxy, and runs `--doctor`.",
        ("notReady", "credentialUnavailable", "overloaded"),
    ),
    "upstreamTimeout": Text(
        "The upstream did not accept a connection or did not respond in time.",
        "Send the request again if the request can be repeated. "
        "`Upstream.ConnectTimeoutSeconds` and `Upstream.ResponseTimeoutSeconds` set the time "
        "limits for the upstream.",
        ("upstreamTimeout",),
    ),
}

OAUTH: Final = {
    ("invalid_request", 400): Text(
        "The form of the token request is malformed, or gives two kinds of credentials. "
        "`error_description` in the response names the fault.",
        "Correct the token request. The body must be one form in UTF-8 that has each field at most once.",
        ("malformedRequest",),
    ),
    ("unsupported_grant_type", 400): Text(
        "The form of the token request names a grant type other than `client_credentials`.",
        "Use `grant_type=client_credentials` in token requests. The proxy does not sign in users.",
        ("malformedRequest",),
    ),
    ("invalid_client", 401): Text(
        "The client ID or the credential is wrong, or the application is disabled. The "
        "response `invalid_client` is the same for all causes, so that a caller cannot guess "
        "client IDs.",
        "The operator finds the audit event by the `trace_id` of the response. The field "
        "`credentialProblem` of the event names the cause of the refusal. [Credential "
        "problems](#credential-problems) explains the values of `credentialProblem`. The "
        "command `app show` prints the state of the application. A token request with an "
        "unknown client ID leaves no audit event, but a line in the proxy's log.",
        ("tokenRefused", "assertionRefused", "certificateRefused"),
    ),
    ("emergency_stop", 403): Text(
        "The credentials of the application are correct, but an emergency stop applies to the "
        "application. Azure Identity and MSAL show the error message of the proxy.",
        "Do not send the token request again until the operator has lifted the [emergency "
        "stop](../how-to/emergency-stop.md).",
        ("stopped",),
    ),
    ("temporarily_unavailable", 429): Text(
        "The client or its address sent too many token requests with wrong credentials.",
        "Send the token request again after `Retry-After` seconds, with the right "
        "credential. `Token.MaxFailuresPerAddress` and `Token.MaxFailuresPerClient` set the "
        "limits on wrong credentials. A 429 to a request for Graph data comes from the upstream: "
        "[429 from Microsoft Graph](../how-to/troubleshoot.md#429-from-microsoft-graph).",
        ("tooManyFailures",),
    ),
}

REASONS: Final = {
    "rule": "If the verdict is wrong, change the rule that the event's `ruleId` names. `ruleset "
    "explain --event ID` shows how the rule matched the request.",
    "default": "To allow the request, [add a rule](../how-to/write-a-rule.md) that matches it.",
    "hiddenProperty": "Remove the hidden property from the request's path, `$select`, `$filter`, "
    "`$orderby` or `$search`. If the application needs the hidden property, change "
    "the rule that hides it.",
    "impliedRequest": "Remove the `$expand` from the request, or allow the implied request by a rule. "
    "`ruleset explain --event ID` names the implied request that the rules refused.",
    "responseRule": "If the verdict is wrong, change the response rule that the event's `ruleId` names. "
    "A request may have had its effect at the upstream before a rule blocked the "
    "response.",
    "noRuleset": "Assign a ruleset to the application with `app bind`.",
    "stopped": "If the emergency stop is no longer needed, lift it with `unkill`, or remove the "
    "file `Proxy.KillFile`.",
    "tokenIssued": "No action is needed: the reason `tokenIssued` is the normal result of a token request.",
    "tokenRefused": "Compare the client ID and the secret of the application with `app show`. The proxy "
    "refuses a secret that was replaced or has ended.",
    "assertionRefused": "Look up the event's `credentialProblem` in "
    "[credential problems](#credential-problems).",
    "certificateRefused": "Look up the event's `credentialProblem` in "
    "[credential problems](#credential-problems).",
    "tooManyFailures": "Find the client that sends wrong credentials by the field `clientIp` of the events. "
    "The proxy counts wrong credentials for one minute. Even after too many failures, "
    "the proxy accepts a secret from another address if the proxy has accepted the secret "
    "before.",
    "invalidToken": "The application must request a new proxy token. If audit events of one application "
    "have the reason `invalidToken` again and again, check that the application is enabled "
    "and that its secret was not replaced.",
    "malformedRequest": "Correct the request in the application or in a load balancer. The proxy's log has "
    "the fault of each malformed request.",
    "malformedTarget": "Correct the path or query of the request, for example an invalid `%XX`.",
    "ambiguousTarget": "Write the identifier in the path without an encoded slash or backslash. [Paths and "
    "interpretations](../explain/paths-and-interpretations.md) explains which paths are "
    "ambiguous.",
    "malformedBatch": "Correct the JSON of the `$batch` body. The error message of the response names the "
    "fault in the JSON.",
    "payloadTooLarge": "Send a smaller request body, or raise `Proxy.MaxBufferedBodyBytes`.",
    "headersTooLarge": "Send fewer header fields, or raise `Proxy.MaxHeaderBytes` or `Proxy.MaxHeaderCount`.",
    "requestTimeout": "Check the network between the application and the proxy.",
    "unsupported": "Use a request without CONNECT, without a method override and without a query in the "
    "body.",
    "notReady": "Read `/readyz` of the proxy: it says why the proxy is not ready, such as no sync or no disk space.",
    "credentialUnavailable": "Check the [upstream credential](../how-to/upstream-credentials.md) of the proxy. "
    "`/readyz` and the proxy's log show the response of the identity provider.",
    "overloaded": "Add workers or proxies, or raise the limit that the metric `graphward_limit_…_total` counts.",
    "internalError": "Report the fault of the proxy with the stack trace in the proxy's log. The client "
    "received no response.",
    "upstreamError": "Check the service health of Microsoft Graph. The event's field `upstreamStatus` has "
    "the status of the upstream response.",
    "upstreamUnauthorised": "Check the tenant, the scope and the permissions of the proxy's upstream credential.",
    "upstreamUnreachable": "Run the proxy with `--doctor` on its host. Check DNS, the firewall and the settings "
    "in `[Egress]` of the proxy.",
    "upstreamTimeout": "Check the network and the service health of Microsoft Graph. If the query of the "
    "request is expensive, narrow the query.",
    "upstreamProtocol": "Check `Upstream.BaseUrl` and every device on the path to the upstream.",
    "upstreamAborted": "Send the request again, because the application received a truncated response.",
    "filterFailed": "Follow the advice for the error [filterFailed](#filterfailed-502).",
    "clientAborted": "Check the timeouts of the application. If a worker of the proxy hangs, the proxy's "
    "log names the worker.",
    "dependencyFailed": "Look for the first refusal among the events with the same `parentRequestId`.",
}

PROBLEMS: Final = {
    "issuer": "Compare `iss` of the assertion with the credential in `app show`, letter for letter.",
    "subject": "Compare `sub` of the assertion with the credential in `app show`, letter for letter.",
    "audience": "Request the platform's token for the audience that the federated credential names. "
    "In an assertion that the application signs itself, `aud` must be the address of the "
    "proxy's token endpoint.",
    "algorithm": "Sign the assertion with an algorithm that fits the key, such as `RS256` for an RSA key.",
    "key": "Register the certificate that signs the assertion, or wait until the proxy has "
    "downloaded the issuer's new keys.",
    "signature": "Check that the private key that signs the assertion belongs to the registered certificate.",
    "notYetValid": "Correct the clock of the application or of the proxy. `Callers.ClockSkewSeconds` is "
    "the accepted difference between the clocks of the application and the proxy.",
    "expired": "Use a new assertion for each token request, or replace the certificate.",
    "lifetime": "Give the assertion an `exp` a few minutes after its start. An assertion may be "
    "valid for 1 h, or for 25 h with a federated credential.",
    "reuse": "Create an assertion with a new `jti` for each token request.",
    "malformed": "Check that `client_assertion` is a signed JWT with the claims that "
    "[Client assertions](token-endpoint.md#client-assertions) lists.",
    "keysUnavailable": "Make the issuer's keys reachable from the proxy. The option `--doctor` and the "
    "check `issuers` in `/readyz` name the reason why the keys are missing.",
    "audienceUnknown": "Set `Proxy.PublicBaseUrl` to the address of the proxy that the application uses.",
    "certificate": "Register the client certificate of the application with `app certificate add`.",
    "binding": "Send the request over a connection with the same client certificate as the token request.",
    "ended": "Add a new credential to the application.",
    "noCertificate": "Let the proxy itself terminate TLS, with `Proxy.CertFile` and "
    '`Proxy.ClientCertificates = "optional"`.',
}

# Codes of the admin API and of the agent API.
API: Final = {
    "invalidRequest": Text(
        "A JSON field of the request is missing, unknown or invalid. The error message or "
        "`problems` names each faulty field.",
        "Correct the JSON fields that the error message names. [HTTP APIs](api.md) lists the fields "
        "of each operation's request.",
    ),
    "unauthenticated": Text(
        "The request has no API token and no session, or its token or session is unknown or has ended.",
        "Sign in again, or send a valid API token as the bearer token in the header `Authorization`.",
    ),
    "forbidden": Text(
        "The operator's role does not allow the operation, or the request lacks the "
        "session's CSRF token. A proxy receives the error `forbidden` if it renews its keys "
        "but an operator manages these keys.",
        "Use an operator with the role that the error message names. A request of a browser "
        "session must send the header `X-CSRF-Token`.",
    ),
    "notFound": Text(
        "The path of the request is not an endpoint, or the named object does not exist in "
        "an organisation of this operator.",
        "Check the name or ID of the object, and the address of the request. The agent API "
        "and the admin API have different listeners.",
    ),
    "alreadyExists": Text(
        "An object with the name in the request exists already.",
        "Choose another name for the new object, or change the existing object.",
    ),
    "conflict": Text(
        "The state of the object changed since it was read, or does not allow the operation. "
        "The error message names the cause of the conflict.",
        "Read the state of the object again, and repeat the operation if it is still needed.",
    ),
    "tooManyAttempts": Text(
        "Too many sign-ins failed for the same operator name or from the same address.",
        "Sign in again after `Retry-After` seconds.",
    ),
    "unavailable": Text(
        "The control plane cannot do the operation now, because its store does not respond, "
        "its disk is full, or too many requests wait. The control plane stored nothing of "
        "the request.",
        "Send the request again after `Retry-After` seconds. Proxies keep their audit events "
        "and send them again. The control plane's log and the command `doctor` name the "
        "cause of the error.",
    ),
    "internalError": Text(
        "A fault in the control plane itself ended the request.",
        "Report the fault of the control plane with the stack trace in its log.",
    ),
    "badRequest": Text(
        "The request to the control plane is not valid HTTP.",
        "Correct the client, or the device between the client and the control plane.",
    ),
    "methodNotAllowed": Text(
        "The endpoint does not serve the method of the request.",
        "Use a method that the header `Allow` of the response lists.",
    ),
    "expectationFailed": Text(
        "The header `Expect` of the request has a value other than `100-continue`.",
        "Remove the header `Expect` from the request.",
    ),
    "requestTimeout": Text(
        "The request body did not arrive within `ControlPlane.BodyTimeoutSeconds`.",
        "Check the network between the client and the control plane. After a 408, a proxy "
        "repeats its request without any action of an operator.",
    ),
    "payloadTooLarge": Text(
        "The request body is over the size limit that the error message names.",
        "Send less data in one request.",
    ),
    "invalidPayload": Text(
        "The request body does not have the form that the endpoint expects. The error "
        "message names the faulty JSON field of the body.",
        "If the control plane refuses a batch with the error `invalidPayload`, the proxy moves "
        "the batch to `rejected/`, together with the response. Correct the cause of the error, "
        "then [send the batch again](../how-to/missing-events.md).",
    ),
    "mixedOrganisations": Text(
        "The events of one batch belong to several organisations.",
        "Correct the program that sent the batch: each batch must contain events of only one "
        "organisation. Proxies of this release send only such batches.",
    ),
    "invalidSignature": Text(
        "The header `X-Hmac-Signature` does not match the request, because the secret is "
        "wrong or the body was changed on its path.",
        "Check the setting `Agent.HmacSecret` of the proxy. A gateway between proxy and "
        "control plane must pass bodies and the `X-` headers without changes.",
    ),
    "timestampOutOfRange": Text(
        "The clocks of the proxy and the control plane differ by more than 300 s.",
        "Synchronise the clocks of the proxy and the control plane with NTP.",
    ),
    "unknownApiKey": Text(
        "The API key of the proxy is missing, unknown or replaced, or the proxy is disabled or deleted.",
        "Check the state of the proxy and of its keys with `proxy show`. The command `proxy "
        "rotate-secret` issues new keys.",
    ),
    "invalidEnrolmentToken": Text(
        "The enrolment token is missing, unknown, revoked, expired or used up.",
        "Create an enrolment token with `proxy enrol-token add`, and set it as "
        "`Agent.EnrolmentToken` of the proxy.",
    ),
    "notAuthorisedForTenant": Text(
        "The proxy does not belong to the organisation of the events in the batch.",
        "Add the organisation to the proxy, then [send the batch again](../how-to/missing-events.md).",
    ),
    "batchExpired": Text(
        "The control plane already accepted a batch with this ID more than 48 hours ago.",
        "A proxy sends the events of the batch again under a new ID on its own. The control "
        "plane does not store an event twice.",
    ),
    "batchTooLarge": Text(
        "The batch of audit events is larger than 5 MiB.",
        "The error needs no action, because a proxy splits the batch on its own.",
    ),
    "rateLimited": Text(
        "The proxy or its organisation sent too many batches or reports, or too many enrolments failed.",
        "A proxy waits on its own before it sends the next request. If the control plane "
        "refuses batches, raise `Audit.RateLimitProxy` or `Audit.RateLimitOrg`.",
    ),
}

EXITS: Final = (
    ("0", "both programs", "The command succeeded. The proxy ended by SIGTERM or SIGINT."),
    ("1", "both programs", "The operation failed. `--doctor` and `doctor` found a failure."),
    ("2", "both programs", "The command line, the settings or the input are invalid."),
    ("1", "`ruleset diff`", "The rulesets differ."),
    ("1", "`ruleset test`, `apply`", "A case of a ruleset has another verdict than expected."),
    ("1", "`audit verify`, `audit verify-archive`", "A link of the chain does not fit."),
    ("1", "`audit report`", "Events of the period may be missing."),
    ("1", "`proxy wait`", "The time ran out before every proxy had the version."),
    ("2", "`apply --plan`", "The plan has changes."),
    ("130", "the control plane's commands", "Ctrl-C (SIGINT) interrupted the command."),
)
