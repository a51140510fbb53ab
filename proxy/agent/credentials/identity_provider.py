"""The identity provider's token endpoint: a client's proof of itself in, an upstream token out (RFC 6749
§4.4)."""

import re
import time
from collections.abc import Callable, Mapping
from typing import Final

import aiohttp
import msgspec

from proxy.agent.credentials.provider import CredentialError, UpstreamToken
from proxy.agent.retry import retry_after
from proxy.policy.json_text import readable

_TIMEOUT: Final = aiohttp.ClientTimeout(total=30.0, sock_connect=10.0)
_MAX_RESPONSE: Final = 256 * 1024
_LONGEST_PAUSE: Final = 300.0
_LONGEST_TOKEN: Final = 16 * 1024  # a message to a worker has room for more, the upstream's heads hardly
_LONGEST_LIFE: Final = 7 * 86400
_SHORTEST_LIFE: Final = 2.0  # with less, each token would be asked for as soon as the last has come
_TOKEN: Final = re.compile(
    r"[0-9A-Za-z._~+/=-]+"
)  # b64token, RFC 6750 §2.1: nothing that could break a header
_DIGITS: Final = re.compile(r"[0-9]{1,9}")
_CODE: Final = re.compile(r"[0-9A-Za-z_.-]{1,64}")


class _Response(msgspec.Struct):
    access_token: str
    expires_in: int | float | str
    token_type: str = "Bearer"  # noqa: S105 - a type, not a token


class _Error(msgspec.Struct):
    error: str = ""


class ClientRefused(CredentialError):
    """`invalid_client`: the identity provider doesn't know the secret or certificate that it was shown."""


class IdentityProvider:
    def __init__(
        self,
        session: aiohttp.ClientSession,
        *,
        authority_url: str,
        tenant_id: str,
        client_id: str,
        scope: str,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._session = session
        self.token_url = f"{authority_url.rstrip('/')}/{tenant_id}/oauth2/v2.0/token"
        self.client_id = client_id
        self._form = {"grant_type": "client_credentials", "client_id": client_id, "scope": scope}
        self._clock = clock

    async def token(self, proof: Mapping[str, str]) -> UpstreamToken:
        """A token for whoever can show `proof`: the form fields of a client secret or a client assertion."""
        asked_at = self._clock()  # the life of the token began before its response came
        try:
            async with self._session.post(
                self.token_url, data={**self._form, **proof}, timeout=_TIMEOUT, allow_redirects=False
            ) as response:
                body = await _bounded(response)
                status, pause = response.status, response.headers.get("Retry-After")
        except TimeoutError:
            raise CredentialError("identity provider: timed out") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise CredentialError(f"identity provider: {type(error).__name__}: {error}") from None
        if status != 200:
            asked = min(retry_after(pause, self._clock()) or 0.0, _LONGEST_PAUSE)
            code = _error_code(body)
            kind = ClientRefused if code == "invalid_client" else CredentialError
            raise kind(f"identity provider responded with {status} {code}".rstrip(), asked)
        return _token(body, asked_at)


async def _bounded(response: aiohttp.ClientResponse) -> bytes:
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > _MAX_RESPONSE:
            raise CredentialError(f"identity provider: response is larger than {_MAX_RESPONSE} bytes")
    return bytes(body)


def _token(body: bytes, asked_at: float) -> UpstreamToken:
    """The token in a 200. What is empty or garbled is a failure like any other, never a token."""
    try:
        response = msgspec.json.decode(readable(body), type=_Response)
    except ValueError:
        raise CredentialError(
            "identity provider responded with 200 without a token and its lifetime"
        ) from None
    if _TOKEN.fullmatch(response.access_token) is None:
        raise CredentialError("identity provider responded with 200 with an empty or malformed token")
    if len(response.access_token) > _LONGEST_TOKEN:
        raise CredentialError(f"identity provider responded with a token over {_LONGEST_TOKEN} characters")
    if response.token_type.lower() != "bearer":
        raise CredentialError("identity provider responded with a token that is no Bearer token")
    life = _lifetime(response.expires_in)
    if life is None:
        raise CredentialError("identity provider responded with 200 with a lifetime that is no use")
    return UpstreamToken(response.access_token, asked_at + life)


def _lifetime(expires_in: float | str) -> float | None:
    if isinstance(expires_in, str):  # some identity providers quote it
        if _DIGITS.fullmatch(expires_in) is None:
            return None
        expires_in = int(expires_in)
    return float(expires_in) if _SHORTEST_LIFE <= expires_in <= _LONGEST_LIFE else None


def _error_code(body: bytes) -> str:
    """The code of an OAuth error response; never its description, which quotes what was sent."""
    try:
        code = msgspec.json.decode(readable(body), type=_Error).error
    except ValueError:
        return ""
    return code if _CODE.fullmatch(code) else ""
