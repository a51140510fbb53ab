"""Signed calls to the control plane: one session, exact bytes, no redirects, bounded responses."""

import io
import ssl
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import aiohttp
import msgspec

from proxy.policy.json_text import readable
from proxy.policy.redaction import shortened
from proxy.wire.models import ErrorBody, ErrorDetail
from proxy.wire.signing import (
    API_KEY_HEADER,
    SIGNATURE_HEADER,
    TIMESTAMP_HEADER,
    UNCHANGED_HEADER,
    sign,
    verify_response,
    verify_unchanged,
)

_TIMEOUT_SECONDS: Final = 30.0
_CONNECT_SECONDS: Final = 10.0

# What an operator of this host can do about a refusal.
_HINTS: Final = {
    "timestampOutOfRange": "check this host's clock",
    "unknownApiKey": "check Agent.ApiKey",
    "invalidSignature": "check Agent.HmacSecret",
}

_error_decoder = msgspec.json.Decoder(ErrorBody)


class CallFailed(Exception):
    """No whole response: unreachable, timed out, broke off, or larger than is believable."""


@dataclass(frozen=True, slots=True)
class Response:
    status: int
    headers: Mapping[str, str]
    body: bytes
    is_signed: bool  # by the holder of our secret, in response to this very request
    request_signature: str
    needs_signature: bool = True  # whether the settings ask for one

    @property
    def is_believed(self) -> bool:
        return self.is_signed or not self.needs_signature

    @property
    def is_explained(self) -> bool:
        """Whether it has the error that a control plane refuses with, not the page of something between."""
        return self._error() is not None

    def _error(self) -> ErrorDetail | None:
        try:
            return _error_decoder.decode(readable(self.body)).error
        except ValueError:  # a response of anybody
            return None

    def described(self) -> str:
        """The status, and what the control plane says about it."""
        error = self._error()
        if error is None:
            return str(self.status)
        hint = f"; {_HINTS[error.code]}" if error.code in _HINTS else ""
        return f"{self.status} {error.code}: {shortened(error.message, 200)}{hint}"


@dataclass(frozen=True, slots=True)
class Identity:
    """Who this proxy is to its control plane."""

    api_key: str = field(repr=False)
    hmac_secret: bytes = field(repr=False)


class ControlPlane:
    def __init__(
        self,
        session: aiohttp.ClientSession,
        identity: Identity,
        *,
        require_signed: bool = True,
        timeout_seconds: float = _TIMEOUT_SECONDS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`require_signed`: whether a response without a signature for its request proves nothing."""
        self.unsigned: Counter[str] = Counter()  # responses without one, by the last part of the path
        self._require_signed = require_signed
        self._session = session
        self._identity = identity
        self._timeout = aiohttp.ClientTimeout(total=timeout_seconds, sock_connect=_CONNECT_SECONDS)
        self._clock = clock

    async def get(self, url: str, headers: Mapping[str, str], *, max_bytes: int) -> Response:
        return await self._call("GET", url, b"", headers, max_bytes)

    async def post(self, url: str, body: bytes, *, max_bytes: int = 64 * 1024) -> Response:
        return await self._call("POST", url, body, {"Content-Type": "application/json"}, max_bytes)

    def proves_unchanged(self, response: Response, version: str) -> bool:
        """Whether the response, a 304, is about this very version."""
        signature = response.headers.get(UNCHANGED_HEADER, "")
        return verify_unchanged(self._identity.hmac_secret, response.request_signature, version, signature)

    async def _call(
        self, method: str, url: str, body: bytes, headers: Mapping[str, str], max_bytes: int
    ) -> Response:
        timestamp = str(int(self._clock()))
        signature = sign(self._identity.hmac_secret, timestamp, body)
        signed = {
            **headers,
            API_KEY_HEADER: self._identity.api_key,
            TIMESTAMP_HEADER: timestamp,
            SIGNATURE_HEADER: signature,
        }
        try:
            async with self._session.request(
                method,
                url,
                data=io.BytesIO(body) if method == "POST" else None,  # sent in pieces
                headers=signed,
                allow_redirects=False,  # a signature is for one address only
                timeout=self._timeout,
            ) as response:
                content = await _bounded(response, max_bytes)
                response_signature = response.headers.get(SIGNATURE_HEADER, "")
                is_signed = verify_response(
                    self._identity.hmac_secret, signature, content, response_signature
                )
                if not is_signed:
                    self.unsigned[url.rpartition("/")[2]] += 1
                return Response(
                    response.status,
                    response.headers,
                    content,
                    is_signed,
                    signature,
                    self._require_signed,
                )
        except TimeoutError:
            raise CallFailed("timed out") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise CallFailed(f"{type(error).__name__}: {error}") from None


async def _bounded(response: aiohttp.ClientResponse, max_bytes: int) -> bytes:
    content = bytearray()
    async for chunk in response.content.iter_any():
        content += chunk
        if len(content) > max_bytes:
            raise CallFailed(f"response is larger than {max_bytes} bytes")
    return bytes(content)


def open_session(tls: ssl.SSLContext) -> aiohttp.ClientSession:
    """A session that keeps no cookies and takes no proxy or password from the environment."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(ssl=tls, limit=32),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=True,
        trust_env=False,
        headers={"User-Agent": "graphward-proxy"},
    )
