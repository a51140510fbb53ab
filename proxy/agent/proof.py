"""Check the proof that a response comes from the control plane, and read what the response states.

A firewall, a gateway or a captive portal between proxy and control plane may respond with any status. A
response without proof of its sender never deletes an event and never changes a state. Only a signed response
that names the batch can delete this batch's events or change a state (`[Audit] RequireSignedResponse`). The
signature covers the body of the response and not the status line. Only the response body therefore proves
what the control plane did.
"""

from dataclasses import dataclass
from typing import Final

import msgspec

from proxy.agent.control_plane import Response
from proxy.policy.json_text import readable
from proxy.wire.models import ERROR_STATUS, AuditAnswer, ErrorBody, ReportResponse
from proxy.wire.signing import SIGNATURE_HEADER

_LONGEST_TYPE: Final = 60
_LONGEST_WAIT: Final = 86400.0
# Statuses that a control plane always signs. It may send other errors before it has verified the request. A
# batch of this proxy is smaller than the least size that it refuses with 413.
_ALWAYS_SIGNED: Final = {200, 202, 304, 400, 403, 409, 413, 429}
_HTML: Final = (b"<!doctype html", b"<html", b"<head", b"<body")

_decode_acceptance: Final = msgspec.json.Decoder(AuditAnswer).decode
_decode_error: Final = msgspec.json.Decoder(ErrorBody).decode
_decode_report: Final = msgspec.json.Decoder(ReportResponse).decode


@dataclass(frozen=True, slots=True)
class Accepted:
    """Outcome: the control plane has stored the batch with this ID."""

    count: int
    duplicate: bool
    content_differs: bool  # it has other events under this id, and not these


@dataclass(frozen=True, slots=True)
class Refused:
    """Outcome: the control plane refuses this batch."""

    status: int  # the status that belongs to the error's code
    text: str  # one line for an operator
    retry_after: float | None  # seconds, if the signed body names them


@dataclass(frozen=True, slots=True)
class Unproven:
    """Outcome of a check: nothing proves that the control plane sent this response about this batch."""

    text: str  # one line for an operator


AuditOutcome = Accepted | Refused | Unproven


def audit_outcome(response: Response, batch_id: str) -> AuditOutcome:
    """Return the outcome that a signed response states for the batch with the ID `batch_id`."""
    if response.status == 202:
        return _acceptance(response, batch_id)
    return _refusal(response, batch_id)


def report_problem(response: Response) -> str | None:
    """Return the reason why a heartbeat or metrics report was not delivered, or None if it was delivered."""
    if response.status != 200:
        return description(response)
    if not response.is_signed:
        return None if response.is_believed else description(response)
    try:
        _decode_report(readable(response.body))
    except ValueError:
        return "control plane responded with 200 with the body of another response"
    return None


def description(response: Response) -> str:
    """Describe in one line a response and the server that sent it, for the log and the health report."""
    report = response.described()
    if response.is_believed or (response.is_explained and response.status not in _ALWAYS_SIGNED):
        return f"control plane responded with {report}"
    older = ", or the control plane is of an earlier release" if _has_our_form(response) else ""
    return (
        f"something between this proxy and the control plane responded with "
        f"{report} ({_kind(response)}){older}: "
        f"the response is not signed for this request: {_lack(response)}"
    )


def _lack(response: Response) -> str:
    """Return the reason for which a response counts as unsigned: a missing or wrong signature."""
    if SIGNATURE_HEADER not in response.headers:
        return f"it has no {SIGNATURE_HEADER} field"
    return f"its {SIGNATURE_HEADER} does not match this request and the received body"


def _acceptance(response: Response, batch_id: str) -> Accepted | Unproven:
    if not response.is_believed:
        return Unproven(description(response))
    try:
        said = _decode_acceptance(readable(response.body))
    except ValueError:
        return Unproven("control plane responded with 202 without naming a batch")
    if said.batch_id != batch_id:
        return Unproven("control plane responded with 202 about another batch")
    return Accepted(said.accepted, said.duplicate, said.content_differs is True)


def _refusal(response: Response, batch_id: str) -> Refused | Unproven:
    try:
        said = _decode_error(readable(response.body))
    except ValueError:
        return Unproven(description(response))
    status = ERROR_STATUS.get(said.error.code)
    if not response.is_believed or status is None:
        return Unproven(description(response))
    # Earlier releases, which don't sign errors, don't name the batch either.
    if said.batch_id != batch_id and (response.is_signed or said.batch_id is not msgspec.UNSET):
        return Unproven(f"control plane responded with {response.status} without naming this batch")
    wait = said.error.retry_after_seconds
    return Refused(
        status,
        description(response),
        None if wait is msgspec.UNSET else float(min(max(wait, 0), _LONGEST_WAIT)),
    )


def _has_our_form(response: Response) -> bool:
    if response.is_explained:
        return True
    for decode in (_decode_acceptance, _decode_report):
        try:
            decode(readable(response.body))
        except ValueError:
            continue
        return True
    return False


def _kind(response: Response) -> str:
    """Return the content type of a response as text for a message.

    The returned text also says if the response body is an HTML page.
    """
    given = response.headers.get("Content-Type", "")[:_LONGEST_TYPE]
    report = given if given and given.isascii() and given.isprintable() else "no content type"
    looks_like_page = response.body.lstrip()[:16].lower().startswith(_HTML)
    return f"{report}, an HTML page" if looks_like_page else report
