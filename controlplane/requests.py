"""Request handling that all listeners share: bodies within limits, errors as JSON, strict headers."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from controlplane.connections import Connection
from controlplane.errors import Refused, error_response
from controlplane.secrets import MasterKeyError, without_secrets
from controlplane.store.interface import StoreBusy, StoreError

# Headers for responses that are not for a browser, so that a browser does not render, frame or store them. A
# page sets its own headers.
_STRICT: Final[Mapping[str, str]] = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


_log = logging.getLogger(__name__)


async def strict_headers(request: web.Request, response: web.StreamResponse) -> None:
    response.headers.popall("Server", None)  # aiohttp would send its own version and Python's.
    for name, value in _STRICT.items():
        response.headers.setdefault(name, value)


def connection_of(request: web.Request) -> Connection:
    assert isinstance(request.protocol, Connection)
    return request.protocol


def of_any_name(path: str) -> str:
    """Return a route such as `/apps/{app}` as a pattern in which every name matches `{app}`.

    The usual routes of aiohttp do not match names that contain braces.
    """
    return re.sub(r"{(\w+)}", r"{\1:[^/]+}", path)


async def no_continue_yet(request: web.Request) -> None:
    """Delay `100 Continue` until the request head has passed its checks."""
    if request.headers.get("Expect", "").lower() != "100-continue":
        raise web.HTTPExpectationFailed


async def read_body(
    request: web.Request, cap: int, timeout_seconds: float, too_large: Callable[[], Refused]
) -> bytes:
    if (request.content_length or 0) > cap:
        raise too_large()
    if "Expect" in request.headers and request.can_read_body:
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0  # Otherwise aiohttp considers the response started.
    try:
        if request.content.is_eof():  # The body of a small request has usually arrived already.
            body = request.content.read_nowait()
        else:
            async with asyncio.timeout(timeout_seconds):
                body = await _arriving(request, cap, too_large)
    except TimeoutError:
        raise Refused(
            "requestTimeout", f"the request body must arrive within {timeout_seconds:g} s"
        ) from None
    except (HttpProcessingError, web.RequestPayloadError):
        raise Refused("invalidPayload", "the HTTP framing of the request body is invalid") from None
    if len(body) > cap:
        raise too_large()
    return body


async def _arriving(request: web.Request, cap: int, too_large: Callable[[], Refused]) -> bytes:
    body = bytearray()
    async for chunk in request.content.iter_any():
        body += chunk
        if len(body) > cap:
            raise too_large()
    return bytes(body)


@web.middleware
async def response_errors(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Return every error in the JSON form of the API, and log it as one line."""
    connection_of(request).asked()
    path = without_secrets(request.path)
    try:
        return await handler(request)
    except web.HTTPRedirection:
        raise  # A redirect is the response of a page and not an error.
    except Refused as error:
        refused = error
    except web.HTTPNotFound:
        refused = Refused("notFound", "there is no such endpoint")
    except web.HTTPMethodNotAllowed as error:
        allowed = ", ".join(sorted(error.allowed_methods))
        refused = Refused("methodNotAllowed", f"this endpoint accepts only {allowed}", Allow=allowed)
    except web.HTTPExpectationFailed:
        refused = Refused("expectationFailed", "the only supported value of the Expect field is 100-continue")
    # The client has closed the connection, so nobody reads a response and nothing is logged.
    except ConnectionError:
        return web.Response(status=400)
    except StoreBusy as error:
        refused = Refused("unavailable", str(error), Retry_After="1")
    except (StoreError, MasterKeyError) as error:
        _log.error("%s %s: %s", request.method, path, error)
        refused = Refused("unavailable", "the control plane can't do this now", Retry_After="5")
    except Exception:
        _log.exception("%s %s failed", request.method, path)
        refused = Refused("internalError", "internal error of the control plane")
    _log.info("%s %s from %s: %s", request.method, path, request.remote, refused.code)
    return error_response(refused)
