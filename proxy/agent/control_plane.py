"""Client for signed calls to the control plane: one session, no redirects, and responses of limited size."""

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
    is_signed: bool  # signed with the secret of this proxy, in response to this very request
    request_signature: str
    needs_signature: bool = True  # True if the settings require a signature
    identity: "Identity | None" = None  # identity that signed the request; None if the request was not signed

    @property
    def is_believed(self) -> bool:
        return self.is_signed or not self.needs_signature

    @property
    def is_explained(self) -> bool:
        """Return True if the body is an error response of a control plane, and not an intermediary's page."""
        return self._error() is not None

    @property
    def error_code(self) -> str:
        """Return the error code in the response body; empty if the body has no code."""
        error = self._error()
        return "" if error is None else error.code

    def _error(self) -> ErrorDetail | None:
        try:
            return _error_decoder.decode(readable(self.body)).error
        except ValueError:  # the body is not a control plane's error
            return None

    def described(self) -> str:
        """Return the response status, and the control plane's explanation of this status."""
        error = self._error()
        if error is None:
            return str(self.status)
        return f"{self.status} {error.code}: {shortened(error.message, 200)}"


@dataclass(frozen=True, slots=True)
class Identity:
    """Identity that this proxy has at its control plane."""

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
        """`present` returns the identity for each call, or raises CallFailed if the proxy has no identity.

        If the control plane does not accept an identity, the callback `refused` is called with that identity.
        If `require_signed` is True, a response counts only if it is signed for the sent request.
        """
        # Number of responses without a signature, by the last part of the path.
        self.unsigned: Counter[str] = Counter()
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
        """Return True if the response is a 304 with a valid signature for the given content version."""
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
