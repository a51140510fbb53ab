"""Tell a response that the control plane provably gave from any other, and read what it says.

A firewall, a gateway or a captive page in between may answer with any status. Such a response ends no copy of
an event and changes no state: only a signed one that names the batch does (`[Audit] RequireSignedResponse`).
The signature covers the body and not the status line, so the body alone says what the control plane did.
"""

from dataclasses import dataclass
from typing import Final

import msgspec

from proxy.agent.control_plane import Answer
from proxy.policy.json_text import readable
from proxy.wire.models import ERROR_STATUS, AuditAnswer, ErrorBody, ReportResponse
from proxy.wire.signing import SIGNATURE_HEADER

_LONGEST_TYPE: Final = 60
_LONGEST_WAIT: Final = 86400.0
# A control plane signs these always. Other errors it may give before it has verified the request. A batch of
# ours is smaller than the least that it refuses with 413.
_ALWAYS_SIGNED: Final = {200, 202, 304, 400, 403, 409, 413, 429}
_HTML: Final = (b"<!doctype html", b"<html", b"<head", b"<body")

_decode_acceptance: Final = msgspec.json.Decoder(AuditAnswer).decode
_decode_error: Final = msgspec.json.Decoder(ErrorBody).decode
_decode_report: Final = msgspec.json.Decoder(ReportResponse).decode


@dataclass(frozen=True, slots=True)
class Accepted:
    """The control plane has the batch of this id."""

    count: int
    duplicate: bool
    content_differs: bool  # it has other events under this id, and not these


@dataclass(frozen=True, slots=True)
class Refused:
    """The control plane refuses this batch."""

    status: int  # the one that belongs to the error's code
    text: str  # one line for a person
    retry_after: float | None  # seconds, where it was said under the signature


@dataclass(frozen=True, slots=True)
class Unproven:
    """Nobody knows whose response this is, or whether it is about this batch."""

    text: str  # one line for a person


AuditOutcome = Accepted | Refused | Unproven


def audit_outcome(answer: Answer, batch_id: str) -> AuditOutcome:
    """Return the meaning of a response for the batch that was sent under this id."""
    if answer.status == 202:
        return _acceptance(answer, batch_id)
    return _refusal(answer, batch_id)


def report_problem(answer: Answer) -> str | None:
    """Return the reason why a heartbeat or a metrics report is not delivered; None if it is."""
    if answer.status != 200:
        return description(answer)
    if not answer.is_signed:
        return None if answer.is_believed else description(answer)
    try:
        _decode_report(readable(answer.body))
    except ValueError:
        return "control plane answered 200 with the body of another response"
    return None


def description(answer: Answer) -> str:
    """Describe the response and its sender in one line, for log and health."""
    told = answer.described()
    if answer.is_believed or (answer.is_explained and answer.status not in _ALWAYS_SIGNED):
        return f"control plane answered {told}"
    older = ", or the control plane is of an earlier release" if _has_our_form(answer) else ""
    return (
        f"something between this proxy and the control plane answered {told} ({_kind(answer)}){older}: "
        f"the response is not signed for this request: {_lack(answer)}"
    )


def _lack(answer: Answer) -> str:
    """The fault of a signature that is absent or does not fit."""
    if SIGNATURE_HEADER not in answer.headers:
        return f"it has no {SIGNATURE_HEADER} field"
    return f"its {SIGNATURE_HEADER} does not fit this request and the body that came"


def _acceptance(answer: Answer, batch_id: str) -> Accepted | Unproven:
    if not answer.is_believed:
        return Unproven(description(answer))
    try:
        said = _decode_acceptance(readable(answer.body))
    except ValueError:
        return Unproven("control plane answered 202 without naming a batch")
    if said.batch_id != batch_id:
        return Unproven("control plane answered 202 about another batch")
    return Accepted(said.accepted, said.duplicate, said.content_differs is True)


def _refusal(answer: Answer, batch_id: str) -> Refused | Unproven:
    try:
        said = _decode_error(readable(answer.body))
    except ValueError:
        return Unproven(description(answer))
    status = ERROR_STATUS.get(said.error.code)
    if not answer.is_believed or status is None:
        return Unproven(description(answer))
    # Earlier releases, which sign no error, don't name the batch either.
    if said.batch_id != batch_id and (answer.is_signed or said.batch_id is not msgspec.UNSET):
        return Unproven(f"control plane answered {answer.status} without naming this batch")
    wait = said.error.retry_after_seconds
    return Refused(
        status,
        description(answer),
        None if wait is msgspec.UNSET else float(min(max(wait, 0), _LONGEST_WAIT)),
    )


def _has_our_form(answer: Answer) -> bool:
    if answer.is_explained:
        return True
    for decode in (_decode_acceptance, _decode_report):
        try:
            decode(readable(answer.body))
        except ValueError:
            continue
        return True
    return False


def _kind(answer: Answer) -> str:
    """Content type, and whether the body looks like a page for a browser."""
    given = answer.headers.get("Content-Type", "")[:_LONGEST_TYPE]
    told = given if given and given.isascii() and given.isprintable() else "no content type"
    looks_like_page = answer.body.lstrip()[:16].lower().startswith(_HTML)
    return f"{told}, an HTML page" if looks_like_page else told
