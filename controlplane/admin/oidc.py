"""OpenID Connect: what an identity provider is asked, and how its answers are checked.

Authorization code with PKCE (RFC 7636), state and nonce; endpoints by discovery; the ID token is signed with
a key of the provider's and with no algorithm of its own choice (OpenID Connect Core section 3.1.3.7).
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, TypeGuard, TypeVar
from urllib.parse import quote_plus, urlencode, urlsplit

import aiohttp
import jwt
import msgspec

from controlplane.clock import Clock
from controlplane.settings import ConsoleSettings
from proxy.policy.json_text import readable

T = TypeVar("T")
_HALF_CHARACTER: Final = re.compile("[\ud800-\udfff]")
_ALGORITHMS: Final = {"RS256": "RSA", "ES256": "EC"}
_SECONDS: Final = aiohttp.ClientTimeout(total=10)
_MAX_BYTES: Final = 1024 * 1024
_KEPT_MS: Final = 3_600_000
_LOOKED_AGAIN_MS: Final = 60_000  # for a key that is not among the known ones
_LEEWAY_SECONDS: Final = 60
_OLDEST_SECONDS: Final = 600  # of an ID token, which we have just asked for


class ProviderFailed(Exception):
    """The provider can't be asked, or its answer can't be; the text is one line for the log."""


class NotProved(Exception):
    """The provider's answer proves nobody; the text is one line for the log."""


class _Metadata(msgspec.Struct):
    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str
    token_endpoint_auth_methods_supported: list[str] = []


class _Tokens(msgspec.Struct):
    id_token: str


class _Keys(msgspec.Struct):
    keys: list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Secrets:
    """What one sign-in is bound to; `verifier` proves later on that who asks for the tokens began it."""

    state: str
    nonce: str
    verifier: str

    @property
    def challenge(self) -> str:
        digest = hashlib.sha256(self.verifier.encode()).digest()
        return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


class Provider:
    def __init__(self, settings: ConsoleSettings, clock: Clock) -> None:
        self._issuer = settings.oidc_issuer
        self._client_id = settings.oidc_client_id
        self._client_secret = settings.oidc_client_secret
        self._clock = clock
        self._session: aiohttp.ClientSession | None = None
        self._metadata: tuple[int, _Metadata] | None = None
        self._keys: tuple[int, list[dict[str, Any]]] | None = None

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def address(self, redirect_uri: str, secrets: Secrets) -> str:
        """Where a browser goes to sign in."""
        query = {
            "response_type": "code",
            "client_id": self._client_id,
            "redirect_uri": redirect_uri,
            "scope": "openid email profile",
            "state": secrets.state,
            "nonce": secrets.nonce,
            "code_challenge": secrets.challenge,
            "code_challenge_method": "S256",
        }
        endpoint = (await self._discovered()).authorization_endpoint
        return f"{endpoint}{'&' if '?' in endpoint else '?'}{urlencode(query)}"

    async def names(self, code: str, redirect_uri: str, secrets: Secrets) -> tuple[str, ...]:
        """By which names the person is known who signed in there."""
        metadata = await self._discovered()
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": redirect_uri,
            "client_id": self._client_id,
            "code_verifier": secrets.verifier,
        }
        headers = {}
        if self._client_secret and "client_secret_post" in metadata.token_endpoint_auth_methods_supported:
            form["client_secret"] = self._client_secret
        elif self._client_secret:
            # Each as a form has it, so that no character of theirs is in the way (RFC 6749 section 2.3.1).
            headers["Authorization"] = aiohttp.encode_basic_auth(
                quote_plus(self._client_id), quote_plus(self._client_secret)
            )
        tokens = await self._fetched("POST", metadata.token_endpoint, _Tokens, data=form, headers=headers)
        return _names(await self._claims(tokens.id_token, secrets.nonce))

    async def _claims(self, token: str, nonce: str) -> Mapping[str, Any]:
        try:
            header = jwt.get_unverified_header(token)
            claims: dict[str, Any] = jwt.decode(
                token,
                await self._key(header),
                algorithms=[*_ALGORITHMS],
                audience=self._client_id,
                issuer=(await self._discovered()).issuer,
                # Times are judged below, by the clock that everything here is judged by.
                options={
                    "require": ["exp", "iat", "aud", "iss", "sub"],
                    "verify_exp": False,
                    "verify_iat": False,
                    "verify_nbf": False,
                },
            )
        except (jwt.PyJWTError, ValueError) as error:  # a published key may be none, too
            raise NotProved(f"the ID token is not valid: {error}") from None
        if not hmac.compare_digest(str(claims.get("nonce", "")).encode("utf-8", "replace"), nonce.encode()):
            raise NotProved("the ID token has another nonce")
        # Meant for others too, it must say that it was issued to us.
        if claims["aud"] not in (self._client_id, [self._client_id]) and claims.get("azp") != self._client_id:
            raise NotProved("the ID token was issued to another client")
        self._check_times(claims)
        return claims

    def _check_times(self, claims: Mapping[str, Any]) -> None:
        now = self._clock.wall_ms() / 1000
        expires, issued, begins = claims["exp"], claims["iat"], claims.get("nbf", 0)
        if not all(isinstance(each, int | float) for each in (expires, issued, begins)):
            raise NotProved("the ID token's times are no numbers")
        if expires <= now - _LEEWAY_SECONDS or issued < now - _OLDEST_SECONDS:
            raise NotProved("the ID token has expired")
        if max(issued, begins) > now + _LEEWAY_SECONDS:
            raise NotProved("the ID token is not valid yet")

    # What the provider publishes

    async def _discovered(self) -> _Metadata:
        now = self._clock.steady_ms()
        if self._metadata is None or now - self._metadata[0] >= _KEPT_MS:
            url = f"{self._issuer}/.well-known/openid-configuration"
            found = await self._fetched("GET", url, _Metadata)
            if found.issuer.removesuffix("/") != self._issuer:  # a setting has none; the issuer may
                raise ProviderFailed(f"{url}: is about another issuer, {found.issuer!r}")
            self._metadata = now, found
        return self._metadata[1]

    async def _key(self, header: Mapping[str, Any]) -> jwt.PyJWK:
        """The one key that the token names, for the algorithm that it names, if that is one of ours."""
        algorithm, key_id = header.get("alg"), header.get("kid")
        if algorithm not in _ALGORITHMS:
            raise NotProved(f"the ID token is signed by {algorithm!r}")
        for kept_ms in (_KEPT_MS, _LOOKED_AGAIN_MS):  # a provider may have changed its keys
            keys = [each for each in await self._published(kept_ms) if _fits(each, algorithm, key_id)]
            if len(keys) == 1:
                return jwt.PyJWK(keys[0], algorithm)
        raise NotProved("the ID token is signed with no key of the provider's")

    async def _published(self, kept_ms: int) -> list[dict[str, Any]]:
        now = self._clock.steady_ms()
        if self._keys is None or now - self._keys[0] >= kept_ms:
            found = await self._fetched("GET", (await self._discovered()).jwks_uri, _Keys)
            self._keys = now, found.keys
        return self._keys[1]

    async def _fetched(
        self,
        method: str,
        url: str,
        cls: type[T],
        *,
        headers: Mapping[str, str] = MappingProxyType({}),
        data: Mapping[str, str] | None = None,
    ) -> T:
        """A JSON answer of the provider's, whole, in time and of a bearable size."""
        if urlsplit(url).scheme != urlsplit(self._issuer).scheme:
            raise ProviderFailed(f"{url}: has another scheme than the issuer")
        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=_SECONDS)
        headers = {"Accept": "application/json", **headers}
        try:
            async with self._session.request(
                method, url, headers=headers, data=data, allow_redirects=False
            ) as response:
                text = await _bounded(response)
                status = response.status
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise ProviderFailed(f"{url}: {error or type(error).__name__}") from None
        if status in (400, 401) and method == "POST":
            raise NotProved(f"{url}: answered {status}")  # an invalid code, most likely; or our own secret
        if status != 200 or text is None:
            raise ProviderFailed(f"{url}: answered {status}{', at length' if text is None else ''}")
        try:
            return msgspec.json.decode(readable(text), type=cls)
        except ValueError as error:  # msgspec's, and those of the text
            raise ProviderFailed(f"{url}: {error}") from None


async def _bounded(response: aiohttp.ClientResponse) -> bytes | None:
    """The whole body, in however many pieces it comes; None where it is longer than is believable."""
    text = bytearray()
    async for piece in response.content.iter_any():
        text += piece
        if len(text) > _MAX_BYTES:
            return None
    return bytes(text)


def _fits(key: Mapping[str, Any], algorithm: str, key_id: object) -> bool:
    return (
        key.get("kty") == _ALGORITHMS[algorithm]
        and key.get("use", "sig") == "sig"
        and key.get("alg", algorithm) == algorithm
        and (key_id is None or key.get("kid") == key_id)
    )


def _names(claims: Mapping[str, Any]) -> tuple[str, ...]:
    """An address counts where the provider has verified it: elsewhere anyone could claim another's."""
    email = claims.get("email") if claims.get("email_verified") is True else None
    return tuple(each for each in (email, claims.get("preferred_username")) if _is_text(each))


def _is_text(claim: object) -> TypeGuard[str]:
    """JSON may escape half a character, which is no text that anybody could be named with."""
    return isinstance(claim, str) and claim != "" and not _HALF_CHARACTER.search(claim)
