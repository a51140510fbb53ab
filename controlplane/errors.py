"""Errors that the control plane returns: their codes, HTTP statuses and JSON form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
from aiohttp import web

from proxy.wire.models import ERROR_STATUS, MAX_BATCH_BYTES, ErrorBody, ErrorDetail

# Codes of the contract, codes for requests that cannot be served at all, and codes of the admin API.
# tests/error_texts.py has the text of each code for docs/reference/errors.md.
STATUS_OF: Final = {
    **ERROR_STATUS,
    "requestTimeout": 408,
    "payloadTooLarge": 413,
    "unavailable": 503,
    "badRequest": 400,
    "notFound": 404,
    "methodNotAllowed": 405,
    "expectationFailed": 417,
    "internalError": 500,
    "invalidRequest": 400,
    "unauthenticated": 401,
    "forbidden": 403,
    "alreadyExists": 409,
    "conflict": 409,
    "tooManyAttempts": 429,
}
_MESSAGES: Final = {
    "invalidSignature": "X-Hmac-Signature must be this request's HMAC-SHA256 in lowercase hex, once",
    "timestampOutOfRange": "X-Timestamp must be Unix seconds within 300 s of the control plane's, once",
    "invalidEnrolmentToken": (
        "this request needs an enrolment token, as Authorization: Bearer, or a signature"
    ),
    "unknownApiKey": "X-Api-Key must be the key of an enabled proxy, once",
    "notAuthorisedForTenant": "this proxy is not authorised for the organisation of these events",
    "mixedOrganisations": "all events of one batch must belong to one organisation",
    "batchExpired": "this batch id was processed more than 48 hours ago; use a new one",
    "unauthenticated": "sign in, or send an API token",
    "batchTooLarge": f"a batch must have at most {MAX_BATCH_BYTES} bytes",
}


def status_of(code: str) -> int:
    return STATUS_OF[code]


class Refused(Exception):
    """Error with which the control plane refuses a request.

    The attribute `problems` of the error has lines of text for the operator.
    """

    def __init__(self, code: str, message: str = "", *, problems: Sequence[str] = (), **headers: str) -> None:
        super().__init__(code)
        self.code = code
        self.message = message or _MESSAGES[code]
        self.problems = tuple(problems)
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}
        # Id of the refused audit batch, which the response returns to the proxy.
        self.batch_id: str | None = None

    @property
    def status(self) -> int:
        return status_of(self.code)


class _Detail(ErrorDetail, frozen=True, omit_defaults=True):
    problems: tuple[str, ...] = ()


def error_response(refused: Refused) -> web.Response:
    wait = refused.headers.get("Retry-After")
    detail = _Detail(
        refused.code,
        refused.message,
        msgspec.UNSET if wait is None else int(wait),
        problems=refused.problems,
    )
    body = msgspec.json.encode(ErrorBody(detail, refused.batch_id or msgspec.UNSET))
    return web.Response(
        status=refused.status, body=body, content_type="application/json", headers=refused.headers
    )
