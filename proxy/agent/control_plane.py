"""Signed calls to the control plane: one session, exact bytes, no redirects, bounded responses."""

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import aiohttp
import msgspec

from proxy.outbound.call import CONNECT_SECONDS, SMALL_RESPONSE, TIMEOUT_SECONDS, call
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

_error_decoder = msgspec.json.Decoder(ErrorBody)


@dataclass(frozen=True, slots=True)
class Response:
    status: int
    headers: Mapping[str, str]
    body: bytes
    is_signed: bool  # by the holder of our secret, in response to this very request
    request_signature: str
    needs_signature: bool = True  # whether the settings ask for one
    identity: "Identity | None" = None  # which signed the request; None: no identity did

    @property
    def is_believed(self) -> bool:
        return self.is_signed or not self.needs_signature

    @property
    def is_explained(self) -> bool:
        """Whether it has the error that a control plane refuses with, not the page of something between."""
        return self._error() is not None

    @property
    def error_code(self) -> str:
        """The code of the error that the body has; empty if it has none."""
        error = self._error()
        return "" if error is None else error.code

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
        return f"{self.status} {error.code}: {shortened(error.message, 200)}"


@dataclass(frozen=True, slots=True)
class Identity:
    """Who this proxy is to its control plane."""

    api_key: str = field(repr=False)
    hmac_secret: bytes = field(repr=False)
    file: str = ""  # Agent.IdentityPath, if the proxy enrolled itself


class ControlPlane:
    def __init__(
        self,
        session: aiohttp.ClientSession,
        present: Callable[[], Identity],
        *,
        require_signed: bool = True,
        timeout_seconds: float = TIMEOUT_SECONDS,
        clock: Callable[[], float] = time.time,
        refused: Callable[[Identity], None] | None = None,
    ) -> None:
        """`present` returns the identity of each call, or raises CallFailed if there is none.
        `refused` receives an identity that the control plane does not accept.
        `require_signed`: whether a response without a signature for its request proves nothing."""
        self.unsigned: Counter[str] = Counter()  # responses without one, by the last part of the path
        self._require_signed = require_signed
        self._session = session
        self._present = present
        self._timeout = aiohttp.ClientTimeout(total=timeout_seconds, sock_connect=CONNECT_SECONDS)
        self._clock = clock
        self._refused = refused

    async def get(self, url: str, headers: Mapping[str, str], *, max_bytes: int) -> Response:
        return await self._call("GET", url, b"", headers, max_bytes)

    async def post(self, url: str, body: bytes, *, max_bytes: int = SMALL_RESPONSE) -> Response:
        return await self._call("POST", url, body, {"Content-Type": "application/json"}, max_bytes)

    def proves_unchanged(self, response: Response, version: str) -> bool:
        """Whether the response, a 304, is about this very version."""
        signature = response.headers.get(UNCHANGED_HEADER, "")
        if response.identity is None:
            return False
        secret = response.identity.hmac_secret
        return verify_unchanged(secret, response.request_signature, version, signature)

    async def _call(
        self, method: str, url: str, body: bytes, headers: Mapping[str, str], max_bytes: int
    ) -> Response:
        identity = self._present()
        timestamp = str(int(self._clock()))
        signature = sign(identity.hmac_secret, timestamp, body)
        signed = {
            **headers,
            API_KEY_HEADER: identity.api_key,
            TIMESTAMP_HEADER: timestamp,
            SIGNATURE_HEADER: signature,
        }
        status, given, content = await call(
            self._session, method, url, body, signed, max_bytes=max_bytes, limits=self._timeout
        )
        response_signature = given.get(SIGNATURE_HEADER, "")
        is_signed = verify_response(identity.hmac_secret, signature, content, response_signature)
        if not is_signed:
            self.unsigned[url.rpartition("/")[2]] += 1
        response = Response(status, given, content, is_signed, signature, self._require_signed, identity)
        if self._refused is not None and status == 401 and response.error_code == "unknownApiKey":
            self._refused(identity)
        return response
