"""One outgoing HTTP call: a bounded response, no redirects, and an error in plain words."""

import io
import os
import ssl
from collections.abc import Mapping
from typing import Final

import aiohttp
from yarl import URL

from proxy.outbound.session import EgressError

TIMEOUT_SECONDS: Final = 30.0
CONNECT_SECONDS: Final = 10.0
CALL_TIMEOUT: Final = aiohttp.ClientTimeout(total=TIMEOUT_SECONDS, sock_connect=CONNECT_SECONDS)
SMALL_RESPONSE: Final = 64 * 1024  # bytes of any response, except a sync response


class CallFailed(Exception):
    """Error because the response to an outgoing call is missing or incomplete.

    The text of a CallFailed error says what failed. The attribute `cause` of CallFailed is the exception that
    caused the failure.
    """

    def __init__(self, text: str, cause: BaseException | None = None) -> None:
        super().__init__(text)
        self.cause = cause


async def call(
    session: aiohttp.ClientSession,
    method: str,
    url: str | URL,
    body: bytes,
    headers: Mapping[str, str],
    *,
    max_bytes: int = SMALL_RESPONSE,
    limits: aiohttp.ClientTimeout = CALL_TIMEOUT,
) -> tuple[int, Mapping[str, str], bytes]:
    """Return the status, the header fields and the whole body of the response to an HTTP call.

    Raise CallFailed.
    """
    try:
        async with session.request(
            method,
            url,
            data=io.BytesIO(body) if body or method == "POST" else None,  # sent in pieces
            headers=headers,
            allow_redirects=False,  # a signature or a token is for one address only
            timeout=limits,
        ) as response:
            return response.status, response.headers, await _bounded(response, max_bytes)
    except (aiohttp.ClientError, OSError, ValueError) as error:  # TimeoutError is an OSError
        raise CallFailed(failure_of(error), error) from None


def failure_of(error: Exception) -> str:
    """Return a description in plain words of the error that ended an HTTP call."""
    match error:
        case EgressError():
            return str(error)
        case TimeoutError():
            return "timed out"
        case aiohttp.ClientConnectorCertificateError():
            refused = error.certificate_error
            reason = refused.verify_message if isinstance(refused, ssl.SSLCertVerificationError) else refused
            return f"the certificate of {error.host} is refused: {reason}"
        case aiohttp.ClientConnectorDNSError():
            return f"{error.host} does not resolve: {error.os_error.strerror or error.os_error}"
        case aiohttp.ClientConnectorError():
            return f"no connection to {error.host}:{error.port}: {_reason(error.os_error)}"
        case aiohttp.ServerDisconnectedError():
            return "the server closed the connection before it responded"
        case aiohttp.ClientPayloadError():
            return "the server closed the connection during its response"
        case OSError():
            return f"the connection broke: {_reason(error)}"
    return f"{type(error).__name__}: {error}"


def _reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return f"no TLS handshake: {error.reason or error}"
    return os.strerror(error.errno) if error.errno else str(error)


async def _bounded(response: aiohttp.ClientResponse, max_bytes: int) -> bytes:
    content = bytearray()
    async for chunk in response.content.iter_any():
        content += chunk
        if len(content) > max_bytes:
            raise CallFailed(f"the response is larger than {max_bytes} bytes")
    return bytes(content)
