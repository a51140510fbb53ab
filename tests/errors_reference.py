"""Write docs/reference/errors.md from the error codes in the source: python -m tests.errors_reference."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from controlplane.admin.openapi import ADMIN_CODES, AGENT_CODES, ENROLMENT_CODES
from controlplane.errors import STATUS_OF as API_STATUS_OF
from proxy.server.errors import STATUS_OF
from proxy.wire.audit_event import CREDENTIAL_PROBLEMS, REASONS
from tests import error_texts
from tests.error_texts import Text

PAGE: Final = Path(__file__).parent.parent / "docs" / "reference" / "errors.md"
_SERVED_BY: Final = {
    "Admin API": ADMIN_CODES,
    "agent API": AGENT_CODES,
    "enrolment endpoint": ENROLMENT_CODES,
}

_INTRODUCTION: Final = """\
# Errors and reasons

<!-- `python -m tests.errors_reference` writes this page. -->

This page lists every error code, every reason and every exit status of Graphward. The table below shows which section of this
page describes your error code:

| You have | Section |
|---|---|
| a response to a request for Graph data, with `error.code` | [Responses of the proxy](#responses-of-the-proxy) |
| a response to a request for a token, with `error` | [Responses of the token endpoint](#responses-of-the-token-endpoint) |
| an audit event with `reason` | [Reasons in audit events](#reasons-in-audit-events) |
| an audit event with `credentialProblem` | [Credential problems](#credential-problems) |
| a response of the control plane to an operator or a proxy | [Responses of the control plane](#responses-of-the-control-plane) |
| the exit status of a command | [Exit statuses](#exit-statuses) |

"""
_RESPONSES: Final = """\
## Responses of the proxy

An error response that the proxy makes itself has the shape of an error of Microsoft Graph:

```json
{"error": {"code": "policyBlocked", "ruleId": "no-mail",
           "message": "Graphward blocked this request by rule 'no-mail'. Ask: graph-admins@contoso.com",
           "innerError": {"request-id": "…", "client-request-id": "…", "date": "2026-11-21T04:25:58"}}}
```

- The message of each error except `itemNotFound` begins with `Graphward`.
- `request-id` is the ID of the [audit event](../glossary.md#audit-event). The command `audit event ID` and the console's search
  find an event by its `request-id`.
- The proxy forwards error responses from the [upstream](../glossary.md#upstream). By default, the proxy replaces a 5xx status
  other than 503 and 504 by 502 `upstreamError`.
- A 429 to a request for Graph data comes from the upstream: [429 from Microsoft
  Graph](../how-to/troubleshoot.md#429-from-microsoft-graph). The proxy's own 429 is
  [temporarily_unavailable](#temporarily_unavailable-429) of the token endpoint.

"""
_TOKENS: Final = """\
## Responses of the token endpoint

An error of the token endpoint has the JSON fields that RFC 6749 defines, as in `{"error": "invalid_client", "error_description":
"…"}`. The JSON field `trace_id` of a token error is the ID of the audit event. Identity libraries print `trace_id`. A token request
with a body over 64 KiB gets [payloadTooLarge](#payloadtoolarge-413). A token request gets [notReady](#notready-503) if the proxy
is not ready.

"""
_REASONS: Final = """\
## Reasons in audit events

The field `reason` of an [audit event](../glossary.md#audit-event) gives the cause of the event's verdict or status.

"""
_PROBLEMS: Final = """\
## Credential problems

The field `credentialProblem` of an audit event gives the reason for which the proxy refused a credential. The client receives
only [invalid_client](#invalid_client-401) with a general description. For the problem `binding`, the client receives
[InvalidAuthenticationToken](#invalidauthenticationtoken-401). The proxy reports a credential as `ended` for two weeks after its
end. After these two weeks, or if the credential was removed, the proxy reports the credential as unknown.

"""
_API: Final = """\
## Responses of the control plane

An error response of the control plane has the form `{"error": {"code": "…", "message": "…"}}`. If the request has several faults,
the JSON field `problems` lists them. An error of the audit endpoint also has `batchId`, and `error.retryAfterSeconds` repeats the
header `Retry-After`.

"""
_EXITS: Final = """\
## Exit statuses

Each command of Graphward ends with one of the following exit statuses. The exit statuses of the proxy are those of `python -m
proxy` and `graphward-proxy`.

| Status | Program or command | Meaning |
|---|---|---|
"""


def page_as_it_should_be() -> str:
    return "".join(
        [
            _INTRODUCTION,
            _RESPONSES,
            *(_response(f"{code} ({STATUS_OF[code]})", error_texts.RESPONSES[code]) for code in STATUS_OF),
            _TOKENS,
            *(_response(f"{code} ({status})", text) for (code, status), text in error_texts.OAUTH.items()),
            _REASONS,
            *(_reason(code) for code in REASONS),
            _PROBLEMS,
            *(
                _entry(f"credentialProblem {code}", *_of(code, CREDENTIAL_PROBLEMS))
                for code in CREDENTIAL_PROBLEMS
            ),
            _API,
            *(_api_entry(code) for code in API_STATUS_OF),
            _EXITS,
            *(f"| {' | '.join(row)} |\n" for row in error_texts.EXITS),
        ]
    )


def _response(title: str, text: Text) -> str:
    code = title.partition(" ")[0]
    return _entry(
        title,
        text.meaning,
        text.action,
        f"- **Reasons in audit events with the error `{code}`:** {_links(text.reasons)}",
    )


def _entry(title: str, meaning: str, action: str, more: str = "") -> str:
    lines = [f"### {title}\n", meaning, "", f"- **What to do:** {action}"]
    if more:
        lines.append(more)
    return "\n".join(lines) + "\n\n"


def _of(code: str, meanings: Mapping[str, str]) -> tuple[str, str]:
    return _sentence(meanings[code]), error_texts.PROBLEMS[code]


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _links(reasons: Iterable[str]) -> str:
    return ", ".join(f"[`{each}`](#reason-{each.lower()})" for each in reasons)


def _reason(code: str) -> str:
    response = ", ".join(_responses_with(code)) or "no response, or a response that began before the failure"
    lines = [
        f"### Reason {code}\n",
        _sentence(REASONS[code]),
        "",
        f"- **What to do:** {error_texts.REASONS[code]}",
        f"- **Response if the audit event has the reason `{code}`:** {response}",
    ]
    return "\n".join(lines) + "\n\n"


def _responses_with(reason: str) -> Iterator[str]:
    for code, text in error_texts.RESPONSES.items():
        if reason in text.reasons:
            yield f"[`{code}` ({STATUS_OF[code]})](#{code.lower()}-{STATUS_OF[code]})"
    for (code, status), text in error_texts.OAUTH.items():
        if reason in text.reasons:
            yield f"[`{code}` ({status})](#{code}-{status})"
    if reason in ("rule", "default", "responseRule", "impliedRequest", "hiddenProperty"):
        yield "or the upstream's response, if the request is not blocked"
    if reason == "tokenIssued":
        yield "200, with the token"


def _api_entry(code: str) -> str:
    title = f"{code} ({API_STATUS_OF[code]})" + (" of the control plane" if code in STATUS_OF else "")
    served = [name for name, codes in _SERVED_BY.items() if code in codes]
    entry = _entry(title, error_texts.API[code].meaning, error_texts.API[code].action)
    return (
        entry[:-1]
        + f"- **APIs that return `{code}`:** {', '.join(served) or 'all APIs of the control plane'}\n\n"
    )


if __name__ == "__main__":
    PAGE.write_text(page_as_it_should_be(), "utf-8")
