"""The meaning of each error code and reason, and what to do: the texts of docs/reference/errors.md.

The codes are in the code of the programs. A test fails if a code has no text, or a text has no code.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Text(NamedTuple):
    """Paragraphs for one code. `reasons` are those that an audit event of such a response can have."""

    meaning: str
    action: str
    reasons: tuple[str, ...] = ()


RESPONSES: Final = {
    "badRequest": Text(
        "The request is malformed, or its target has more than one interpretation. The message names the "
        "fault.",
        "Correct the request in the application. Write characters beyond ASCII as `%XX` (`é` is `%C3%A9`).",
        ("malformedRequest", "malformedTarget", "ambiguousTarget", "malformedBatch", "unsupported"),
    ),
    "InvalidAuthenticationToken": Text(
        "The request has no token, or a token that this proxy does not accept. The proxy accepts only "
        "tokens that "
        "it issued itself. It refuses a token of Microsoft Entra.",
        "Request a new token from the proxy's token endpoint. The claims challenge in `WWW-Authenticate` "
        "makes "
        "most SDKs do so. If every token is refused, check that all proxies behind one address have the same "
        "signing key. A request without a valid token leaves no audit event; the proxy logs it.",
        ("invalidToken",),
    ),
    "policyBlocked": Text(
        "A rule of the application's ruleset blocks the request. `ruleId` names the rule. The value "
        "`default` "
        "means that no rule matched.",
        "Do not retry: the response stays the same until the rules change. The operator finds the rule by "
        "`ruleset explain --event ID`, and [tries a change](../how-to/try-rules.md) before publishing it.",
        ("rule", "default", "hiddenProperty", "impliedRequest", "responseRule", "noRuleset"),
    ),
    "emergencyStop": Text(
        "An operator has stopped the application, its organisation or everything.",
        "Do not retry. `kill list` shows the stops, and `unkill` [lifts "
        "one](../how-to/emergency-stop.md). Also "
        "look for the file `Proxy.KillFile` on the host of the proxy.",
        ("stopped",),
    ),
    "itemNotFound": Text(
        "The object does not exist for this application. Either the upstream does not have it, or a rule "
        "removes "
        "it. The body is the same in both cases, so that a caller cannot detect a removed object.",
        "Search the event by its `request-id`. If the verdict is `filter`, a rule removed the object.",
        ("rule", "impliedRequest"),
    ),
    "methodNotAllowed": Text(
        "The method is not served, such as CONNECT, or the token endpoint received a method other than "
        "POST. The "
        "header `Allow` lists the methods.",
        "Use one of the methods in `Allow`.",
        ("unsupported", "malformedRequest"),
    ),
    "requestTimeout": Text(
        "The head or the body of the request arrived too slowly.",
        "Send the request faster. The limits are `Proxy.HeadTimeoutSeconds` and "
        "`Proxy.MinBodyBytesPerSecond`.",
        ("requestTimeout",),
    ),
    "payloadTooLarge": Text(
        "The body is too large for a rule that reads it, for a `$batch`, or for the token endpoint (64 KiB).",
        "Send a smaller body, or split the batch. The operator can raise `Proxy.MaxBufferedBodyBytes`.",
        ("payloadTooLarge",),
    ),
    "expectationFailed": Text(
        "The header `Expect` has a value other than `100-continue`.",
        "Remove the header from the request.",
        ("unsupported",),
    ),
    "failedDependency": Text(
        "A sub-request of a `$batch` names another one in `dependsOn`, and the proxy refused that one.",
        "Correct the sub-request that was refused first. The response to that sub-request has the cause.",
        ("dependencyFailed",),
    ),
    "headersTooLarge": Text(
        "The header section of the request, or of a sub-request, has too many bytes or fields.",
        "Send fewer or shorter header fields. The limits are `Proxy.MaxHeaderBytes` and "
        "`Proxy.MaxHeaderCount`.",
        ("headersTooLarge",),
    ),
    "upstreamError": Text(
        "The upstream failed: it responded with a 5xx status, refused the proxy's own token, or sent a "
        "response "
        "that is not valid HTTP. `upstreamStatus` has the upstream's status, if there was one.",
        "Retry if the request can be repeated. If `upstreamStatus` is 401, the operator checks the upstream "
        "credential and its permissions: the application is not at fault.",
        ("upstreamError", "upstreamUnauthorised", "upstreamProtocol"),
    ),
    "upstreamUnreachable": Text(
        "The proxy could not connect to the upstream, or the connection broke before a response.",
        "Retry if the request can be repeated. The operator runs `python -m proxy --config FILE "
        "--doctor`, which "
        "tests the connection.",
        ("upstreamUnreachable",),
    ),
    "filterFailed": Text(
        "A rule filters the response, and the proxy could not filter it. The proxy withheld the whole "
        "response. "
        "The message names the cause, such as a response that is too large.",
        "If it is over the size limit, request smaller pages with `$top`, or raise "
        "`Upstream.MaxFilterBytes`. "
        "If a 304 or a redirect elsewhere is the cause, request the object without conditions, or change "
        "the rule.",
        ("filterFailed",),
    ),
    "notReady": Text(
        "The proxy cannot serve the request now. It has no rules, no upstream token, no signing key or "
        "no space for "
        "audit events, or its load is over a limit. The message names the cause.",
        "Retry after `Retry-After` seconds, as SDKs do. If it lasts, the operator reads `/readyz` and "
        "the log, "
        "and runs `--doctor`.",
        ("notReady", "credentialUnavailable", "overloaded"),
    ),
    "upstreamTimeout": Text(
        "The upstream did not accept a connection or did not respond in time.",
        "Retry if the request can be repeated. The limits are `Upstream.ConnectTimeoutSeconds` and "
        "`Upstream.ResponseTimeoutSeconds`.",
        ("upstreamTimeout",),
    ),
}

OAUTH: Final = {
    ("invalid_request", 400): Text(
        "The form is malformed, or gives two kinds of credentials. `error_description` names the fault.",
        "Correct the request: one form in UTF-8, each field once.",
        ("malformedRequest",),
    ),
    ("unsupported_grant_type", 400): Text(
        "The form requests a grant other than `client_credentials`.",
        "Use `grant_type=client_credentials`. The proxy has no sign-in of users.",
        ("malformedRequest",),
    ),
    ("invalid_client", 401): Text(
        "The client id or the credential is wrong, or the application is disabled. The response does not "
        "distinguish these, so that a caller cannot guess client ids.",
        "The operator finds the event by `trace_id`. Its `credentialProblem` names the cause, see "
        "[credential problems](#credential-problems). `app show` has the state of the application. An unknown client "
        "id leaves no audit event; the proxy logs it.",
        ("tokenRefused", "assertionRefused", "certificateRefused"),
    ),
    ("emergency_stop", 403): Text(
        "An operator has stopped the application, and its credential is right. Azure Identity and MSAL "
        "show the "
        "message.",
        "Do not retry. The operator lifts the [emergency stop](../how-to/emergency-stop.md).",
        ("stopped",),
    ),
    ("temporarily_unavailable", 429): Text(
        "Too many attempts with wrong credentials came from the client or its address.",
        "Retry after `Retry-After` seconds, with the right credential. The limits are "
        "`Token.MaxFailuresPerAddress` and `Token.MaxFailuresPerClient`.",
        ("tooManyFailures",),
    ),
}

REASONS: Final = {
    "rule": "If the verdict is wrong, change the rule that `ruleId` names. `ruleset explain --event ID` shows how it matched.",
    "default": "If the request must be allowed, [add a rule](../how-to/write-a-rule.md) that matches it.",
    "hiddenProperty": "Remove the property from the request's path, `$select`, `$filter`, `$orderby` or "
    "`$search`. If the application needs the property, change the rule that hides it.",
    "impliedRequest": "Remove the `$expand` from the request, or allow the implied request by a rule. "
    "`ruleset explain --event ID` names that request.",
    "responseRule": "Change the response rule that `ruleId` names, if the verdict is wrong. A request may have "
    "had its effect at the upstream before its response was blocked.",
    "noRuleset": "Assign a ruleset to the application with `app bind`.",
    "stopped": "If the stop is over, lift it with `unkill`, or remove the file `Proxy.KillFile`.",
    "tokenIssued": "This is the normal case. There is nothing to do.",
    "tokenRefused": "Compare the client id and the secret with `app show`. A replaced or ended secret is refused.",
    "assertionRefused": "Look up the event's `credentialProblem` in "
    "[credential problems](#credential-problems).",
    "certificateRefused": "Look up the event's `credentialProblem` in "
    "[credential problems](#credential-problems).",
    "tooManyFailures": "Find the client that sends wrong credentials, by `clientIp`. The count covers one minute. A "
    "secret that was right before is accepted in that minute too, from another address.",
    "invalidToken": "Request a new token. If this repeats for one application, check that it is enabled and that "
    "its secret was not replaced.",
    "malformedRequest": "Correct the request in the application or in a load balancer. The proxy's log has the "
    "fault of each.",
    "malformedTarget": "Correct the path or query, for example an invalid `%XX`.",
    "ambiguousTarget": "Write the identifier without an encoded slash or backslash. "
    "[Paths and interpretations](../explain/paths-and-interpretations.md) has the cases.",
    "malformedBatch": "Correct the JSON of the batch. The message names the fault.",
    "payloadTooLarge": "Send a smaller body, or raise `Proxy.MaxBufferedBodyBytes`.",
    "headersTooLarge": "Send fewer header fields, or raise `Proxy.MaxHeaderBytes` or `Proxy.MaxHeaderCount`.",
    "requestTimeout": "Check the network between the application and the proxy.",
    "unsupported": "Use a plain request: no CONNECT, no method override, no query in a body.",
    "notReady": "Read `/readyz` of the proxy. It names the cause: no sync, or no disk space.",
    "credentialUnavailable": "Check the [upstream credential](../how-to/upstream-credentials.md): `/readyz` and the "
    "log have the response of the identity provider.",
    "overloaded": "Add workers or proxies, or raise the limit that the metric `graphward_limit_…_total` counts.",
    "internalError": "Report the fault with the stack trace in the proxy's log. The client received no response.",
    "upstreamError": "Check the service health of Microsoft Graph. `upstreamStatus` has the status of the upstream response.",
    "upstreamUnauthorised": "Check the tenant, the scope and the permissions of the upstream credential.",
    "upstreamUnreachable": "Run `--doctor` on the host of the proxy. Check DNS, the firewall and `[Egress]`.",
    "upstreamTimeout": "Check the network and the service health. Narrow the query if it is expensive.",
    "upstreamProtocol": "Check `Upstream.BaseUrl` and every device on the path to the upstream.",
    "upstreamAborted": "Retry the request. The application received a truncated response.",
    "filterFailed": "See [filterFailed](#filterfailed-502).",
    "clientAborted": "Check the application's timeouts. If workers hang, the log names the worker.",
    "dependencyFailed": "Look at the events with the same `parentRequestId` for the first refusal.",
}

PROBLEMS: Final = {
    "issuer": "Compare `iss` of the assertion with the credential in `app show`, letter for letter.",
    "subject": "Compare `sub` of the assertion with the credential in `app show`, letter for letter.",
    "audience": "Request the platform's token for the audience of the credential. For an assertion that the "
    "application signs itself, `aud` is the address of the proxy's token endpoint.",
    "algorithm": "Sign with an algorithm that fits the key, such as `RS256` for an RSA key.",
    "key": "Register the certificate that signs, or wait until the proxy has downloaded the issuer's new keys.",
    "signature": "Check that the private key belongs to the registered certificate.",
    "notYetValid": "Correct the clock of the application or of the proxy. `Callers.ClockSkewSeconds` is the "
    "accepted difference.",
    "expired": "Use a new assertion for each token request, or replace the certificate.",
    "lifetime": "Give the assertion an `exp` a few minutes after its start. It may be valid for 1 h, or for 25 h with a "
    "federated credential.",
    "reuse": "Create an assertion with a new `jti` for each token request.",
    "malformed": "Check that `client_assertion` is a signed JWT with the members that the "
    "[guide](../how-to/connect-an-application.md) lists.",
    "keysUnavailable": "Make the issuer's keys reachable from the proxy. `--doctor` and the check `issuers` in "
    "`/readyz` have the cause.",
    "audienceUnknown": "Set `Proxy.PublicBaseUrl` to the address that the application uses.",
    "certificate": "Register the certificate with `app certificate add`.",
    "binding": "Send the request over a connection with the same client certificate as the token request.",
    "ended": "Add a new credential to the application.",
    "noCertificate": "Let the proxy itself end TLS, with `Proxy.CertFile` and "
    '`Proxy.ClientCertificates = "optional"`.',
}

# Codes of the admin API and of the agent API.
API: Final = {
    "invalidRequest": Text(
        "The request has a missing, unknown or invalid member. The message or `problems` names each.",
        "Correct the request. [HTTP APIs](api.md) lists the members of each operation.",
    ),
    "unauthenticated": Text(
        "The request has no API token or session, or one that is unknown or has ended.",
        "Sign in again, or send `Authorization: Bearer TOKEN` with a valid API token.",
    ),
    "forbidden": Text(
        "The operator's role does not allow the operation, or the request lacks the session's CSRF "
        "token. For an "
        "enrolled proxy: an operator manages its keys.",
        "Use an operator with the role that the message names. A browser session sends `X-CSRF-Token`.",
    ),
    "notFound": Text(
        "The path is not an endpoint, or the named object does not exist in an organisation of this "
        "operator.",
        "Check the name or id, and the address. The agent API and the admin API have different listeners.",
    ),
    "alreadyExists": Text(
        "An object with this name exists.", "Choose another name, or change the existing one."
    ),
    "conflict": Text(
        "The state changed since it was read, or does not allow the operation. The message names the cause.",
        "Read the state again, and repeat the operation if it still applies.",
    ),
    "tooManyAttempts": Text(
        "Too many sign-ins failed, for this name or from this address.", "Retry after `Retry-After` seconds."
    ),
    "unavailable": Text(
        "The control plane cannot do this now: its store does not respond, its disk is full, or too many "
        "requests "
        "wait. Nothing was stored.",
        "Retry after `Retry-After` seconds. Proxies keep their events and retry. The control plane's log and "
        "`doctor` name the cause.",
    ),
    "internalError": Text(
        "A fault of the control plane.", "Report the fault with the stack trace in the control plane's log."
    ),
    "badRequest": Text("The request is not valid HTTP.", "Correct the client or the device in front of it."),
    "methodNotAllowed": Text(
        "The endpoint does not serve this method.", "Use a method in the header `Allow`."
    ),
    "expectationFailed": Text(
        "The header `Expect` has a value other than `100-continue`.", "Remove the header from the request."
    ),
    "requestTimeout": Text(
        "The body did not arrive within `ControlPlane.BodyTimeoutSeconds`.",
        "Check the network. A proxy retries on its own.",
    ),
    "payloadTooLarge": Text(
        "The body is over the limit that the message names.", "Send less in one request."
    ),
    "invalidPayload": Text(
        "The body is not what the endpoint expects. The message names the member.",
        "The proxy moves a batch to `rejected/` together with this response. Correct the cause, then "
        "[send the batch again](../how-to/missing-events.md).",
    ),
    "mixedOrganisations": Text(
        "The events of one batch belong to several organisations.",
        "A proxy of this release does not send such a batch. Check the program that sent it.",
    ),
    "invalidSignature": Text(
        "The header `X-Hmac-Signature` does not fit the request: the secret is wrong, or the body was "
        "changed on "
        "its path.",
        "Check `Agent.HmacSecret`. A gateway must pass bodies and the `X-` headers without changes.",
    ),
    "timestampOutOfRange": Text(
        "The clocks of the proxy and the control plane differ by more than 300 s.",
        "Synchronise both clocks with NTP.",
    ),
    "unknownApiKey": Text(
        "The API key is missing, unknown or replaced, or its proxy is disabled or deleted.",
        "Compare with `proxy show`. `proxy rotate-secret` issues new keys.",
    ),
    "invalidEnrolmentToken": Text(
        "The enrolment token is missing, unknown, revoked, expired or used up.",
        "Create a token with `proxy enrol-token add`, and set `Agent.EnrolmentToken`.",
    ),
    "notAuthorisedForTenant": Text(
        "The proxy does not belong to the organisation of these events.",
        "Add the organisation to the proxy, then [send the batch again](../how-to/missing-events.md).",
    ),
    "batchExpired": Text(
        "The control plane accepted this batch id more than 48 hours ago.",
        "A proxy sends the events again under a new id on its own. The control plane does not store an "
        "event twice.",
    ),
    "batchTooLarge": Text(
        "A batch is larger than 5 MiB.", "A proxy splits the batch on its own. There is nothing to do."
    ),
    "rateLimited": Text(
        "The proxy or its organisation sent too many batches or reports, or too many enrolments failed.",
        "A proxy waits on its own. For batches, raise `Audit.RateLimitProxy` or `Audit.RateLimitOrg`.",
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
