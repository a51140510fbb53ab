"""HTTP transport for Azure's SDK that uses the program's own session, limits responses and writes no log.

Importing Azure's SDK takes a fifth of a second and 20 MB, so the program imports it only if a setting needs
it.
"""

import json
import logging
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import aiohttp
from azure.core.exceptions import HttpResponseError, ServiceRequestError, ServiceResponseError
from azure.core.pipeline.transport import AioHttpTransport
from azure.core.rest import AsyncHttpResponse

from proxy.outbound.retry import retry_after
from proxy.policy.json_text import readable

# Errors that the SDK raises for settings or a response that it can't read, in addition to its own.
NONSENSE: Final = (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError)
_CONNECT_SECONDS: Final = 5.0
_READ_SECONDS: Final = 15.0
_LONGEST_PAUSE: Final = 300.0
_CODE: Final = re.compile(r"[0-9A-Za-z_.-]{1,64}")
_ENTRA_CODE: Final = re.compile(r"\bAADSTS[0-9]{2,9}\b", re.ASCII)
MAX_RESPONSE: Final = 256 * 1024  # bytes; a secret has at most 25 KiB, and a page of versions about 10 KiB


class Transport(AioHttpTransport):  # type: ignore[misc]  # azure.core makes it when it is asked for
    """Transport of Azure's SDK over aiohttp that refuses a response larger than `MAX_RESPONSE`."""

    async def send(self, request: Any, *, stream: bool = False, **config: Any) -> Any:
        response = await super().send(request, stream=True, **config)
        body = bytearray()
        async for chunk in response.iter_raw():
            body += chunk
            if len(body) > MAX_RESPONSE:
                await response.close()
                raise ServiceResponseError(f"the response is larger than {MAX_RESPONSE} bytes")
        response._content = bytes(body)  # the attribute that read() would set, without a limit
        return response


def open_transport(session: aiohttp.ClientSession) -> Transport:
    """Return an SDK transport that sends requests through `session` and does not close the session."""
    for name in ("azure", "msal"):  # their log lines contain headers and responses
        logging.getLogger(name).setLevel(logging.CRITICAL)
    return Transport(
        session=session,
        session_owner=False,
        connection_timeout=_CONNECT_SECONDS,
        read_timeout=_READ_SECONDS,
    )


@dataclass(frozen=True, slots=True)
class Failure:
    what: str
    retry_after: float = 0.0


def failure_of(error: Exception, hint: Callable[[int, str], str]) -> Failure:
    """Describe an error of Azure's SDK by the HTTP response of the error, or of the error's cause.

    `hint` returns an explanation for the response's status and the error codes in its body. The messages of
    Azure's SDK quote responses, so the function does not use them.
    """
    chain = [error, error.__cause__]
    for each in chain:
        response = each.response if isinstance(each, HttpResponseError) else None
        if isinstance(response, AsyncHttpResponse):
            status = response.status_code
            if status < 300:
                return Failure(f"responded with {status} and an invalid body")
            asked = retry_after(response.headers.get("Retry-After"), time.time()) or 0.0
            code = _error_code(response.content)
            return Failure(f"responded with {status}{code}{hint(status, code)}", min(asked, _LONGEST_PAUSE))
    for each in chain:
        if isinstance(each, (ServiceRequestError, ServiceResponseError)):
            return Failure(f"can't be reached: {type(each).__name__}: {each.message}")
    return Failure("the response is invalid")


def _error_code(body: bytes) -> str:
    """Return the error codes in a response body, with a space before them, and without the error message."""
    try:
        given = json.loads(readable(body))
        error = given["error"]
        if isinstance(error, str):
            codes = [error, *_ENTRA_CODE.findall(str(given.get("error_description", "")))[:1]]
        else:
            codes = [error["code"], (error.get("innererror") or {}).get("code")]
    except NONSENSE:
        return ""
    report = [code for code in codes if isinstance(code, str) and _CODE.fullmatch(code)]
    return f" {' '.join(report)}" if report else ""
