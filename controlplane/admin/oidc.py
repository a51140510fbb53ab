"""OpenID Connect: requests to an identity provider, and the interpretation of its responses.

The console uses the authorization code flow with PKCE (RFC 7636), state and nonce, and finds endpoints by
discovery. Claims come from the ID token and from the userinfo endpoint, as OpenID Connect Core section 5.4
defines.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, TypeVar
from urllib.parse import quote_plus, urlencode, urlsplit

import aiohttp
import jwt
import msgspec

from controlplane.admin import signed_token
from controlplane.admin.claims import Claims
from controlplane.admin.sign_in_failure import Cause, SignInFailed, refused_by_provider, said
from controlplane.clock import Clock
from controlplane.settings import ConsoleSettings
from proxy.config.tls import client_tls
from proxy.outbound.egress import Egress
from proxy.outbound.session import open_session
from proxy.policy.json_text import readable

T = TypeVar("T")
_SECONDS: Final = aiohttp.ClientTimeout(total=10)
_MAX_BYTES: Final = 1024 * 1024
_USER_AGENT: Final = "graphward"
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_KEPT_MS: Final = 3_600_000
_LOOKED_AGAIN_MS: Final = 60_000  # ms between lookups of a key that is not among the known keys
_TEMPLATE: Final = re.compile(r"\{[^{}]*\}")
_PARAMETER: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')  # RFC 6750 section 3
_ENTRA_V1: Final = re.compile(
    r"https://login\.(?:microsoftonline\.(?:com|us|de)|partner\.microsoftonline\.cn|chinacloudapi\.cn)/([^/]+)"
)


class _Metadata(msgspec.Struct):
    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str
    userinfo_endpoint: str = ""
    token_endpoint_auth_methods_supported: list[str] = []
    authorization_response_iss_parameter_supported: bool = False


class _Keys(msgspec.Struct):
    keys: list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Secrets:
    """Secret values that belong to one sign-in.

    `verifier` proves that the client that requests the tokens also began the sign-in.
    """

    state: str
    nonce: str
    verifier: str

    @property
    def challenge(self) -> str:
        digest = hashlib.sha256(self.verifier.encode()).digest()
        return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


@dataclass(frozen=True, slots=True)
class Proof:
    """A verified ID token, and the access token (an empty text if the provider sent none)."""

    claims: Claims
    access_token: str

    @property
    def subject(self) -> str:
        return str(self.claims.members["sub"])


@dataclass(frozen=True, slots=True)
class _Response:
    url: str
    status: int
    media_type: str
    challenge: str
    text: bytes


class Provider:
    """Requests to the identity provider of the console.

    Every method that fails raises SignInFailed with the cause and one line for the log.
    """

    def __init__(self, settings: ConsoleSettings, clock: Clock, egress: Egress) -> None:
        self._issuer = settings.oidc_issuer
        self._client_id = settings.oidc_client_id
        self._client_secret = settings.oidc_client_secret
        self._clock = clock
        self._egress = egress
        self._session: aiohttp.ClientSession | None = None
        self._metadata: tuple[int, _Metadata] | None = None
        self._keys: tuple[int, list[dict[str, Any]]] | None = None

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def address(self, redirect_uri: str, secrets: Secrets) -> str:
        """Return the address of the identity provider to which a browser goes to sign in."""
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

    async def check_came_from_here(self, issuer: str | None) -> None:
        """Check `iss` of the authorization response (RFC 9207).

        The check of `iss` rejects an authorization code that a different provider issued.
        """
        metadata = await self._discovered()
        if issuer is None and metadata.authorization_response_iss_parameter_supported:
            raise SignInFailed(
                Cause.FORGED,
                "the authorization response has no `iss`, although the provider's metadata promises it",
            )
        if issuer is not None and not signed_token.is_same_issuer(issuer, metadata.issuer):
            raise SignInFailed(
                Cause.FORGED,
                f"the authorization response has the issuer {said(issuer)}, not {said(metadata.issuer)}",
            )

    async def proof(self, code: str, redirect_uri: str, secrets: Secrets) -> Proof:
        """Redeem the authorization code, and verify the ID token of the person who signed in."""
        tokens = await self._redeemed(code, redirect_uri, secrets)
        token = tokens.get("id_token")
        if not isinstance(token, str):
            raise SignInFailed(
                Cause.REGISTRATION,
                "the token endpoint returned no ID token: "
                "permit the scope openid for the console at the provider",
            )
        claims, header = await self._verified(token, "the ID token")
        now = self._clock.wall_ms() / 1000
        issuer = (await self._discovered()).issuer
        signed_token.check_id_token(
            claims, issuer=issuer, client_id=self._client_id, nonce=secrets.nonce, now=now
        )
        access_token = tokens.get("access_token")
        kind = tokens.get("token_type", "Bearer")
        if not isinstance(access_token, str) or not isinstance(kind, str) or kind.lower() != "bearer":
            access_token = ""
        if access_token:
            signed_token.check_access_token(claims, header["alg"], access_token)
        return Proof(Claims("ID token", claims), access_token)

    async def userinfo(self, proof: Proof) -> Claims:
        """Return the userinfo claims of the person in the ID token (OpenID Connect Core section 5.3).

        If the userinfo endpoint can't be used, return no claims. The member `source` of this empty result
        contains the reason.
        """
        endpoint = (await self._discovered()).userinfo_endpoint
        if not endpoint:
            return Claims("userinfo (not requested: discovery names no userinfo_endpoint)", {})
        if not proof.access_token:
            return Claims("userinfo (not requested: no bearer token came with the ID token)", {})
        headers = {
            "Authorization": f"Bearer {proof.access_token}",
            "Accept": "application/json, application/jwt",
        }
        response = await self._response("GET", endpoint, headers=headers)
        if response.status != 200:
            raise _userinfo_refused(response)
        if response.media_type == "application/jwt":
            what = "the userinfo response"
            members, _ = await self._verified(response.text.decode("ascii", "replace").strip(), what)
            issuer = (await self._discovered()).issuer
            signed_token.check_parties(members, issuer=issuer, client_id=self._client_id, what=what)
        else:
            members = _decoded(response, dict[str, Any])
        if members.get("sub") != proof.subject:
            raise SignInFailed(
                Cause.TOKEN,
                f"{endpoint}: the response is about another person than the ID token: "
                f"`sub` of the response is {said(members.get('sub', 'missing'))}, but `sub` of the ID"
                " token is "
                f"{said(proof.subject)}",
            )
        return Claims("userinfo", members)

    async def check(self, redirect_uri: str) -> None:
        """Check that the provider publishes keys and endpoints, and accepts the console as a client."""
        await self._published(_KEPT_MS)
        nobody = Secrets("", "", "graphward-looks-whether-this-client-is-known-to-the-provider")
        try:
            await self._redeemed("graphward-no-code", redirect_uri, nobody)
        except SignInFailed as failed:
            if failed.cause is not Cause.CODE:  # the provider accepted the client and refused only the code
                raise

    async def discover(self) -> None:
        """Check that the provider's discovery document is consistent with the settings."""
        await self._discovered()

    async def _redeemed(self, code: str, redirect_uri: str, secrets: Secrets) -> dict[str, Any]:
        metadata = await self._discovered()
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": redirect_uri,
            "client_id": self._client_id,
            "code_verifier": secrets.verifier,
        }
        headers = {"Accept": "application/json"}
        if self._client_secret and "client_secret_post" in metadata.token_endpoint_auth_methods_supported:
            form["client_secret"] = self._client_secret
        elif self._client_secret:
            # Each is encoded as in a form, so that all its characters are safe (RFC 6749 section 2.3.1).
            headers["Authorization"] = aiohttp.encode_basic_auth(
                quote_plus(self._client_id), quote_plus(self._client_secret)
            )
        response = await self._response("POST", metadata.token_endpoint, data=form, headers=headers)
        return _tokens(response)

    async def _verified(self, token: str, what: str) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """Return the claims and the header of a token after checking its signature."""
        header = signed_token.header_of(token, what)
        key = await self._key(header, what)
        return signed_token.verified(token, key, header["alg"], what), header

    # Documents that the provider publishes

    async def _discovered(self) -> _Metadata:
        now = self._clock.steady_ms()
        if self._metadata is None or now - self._metadata[0] >= _KEPT_MS:
            url = f"{self._issuer}/.well-known/openid-configuration"
            found = await self._published_json(url, _Metadata)
            check_issuer(url, found.issuer, self._issuer)
            self._metadata = now, found
        return self._metadata[1]

    async def _key(self, header: Mapping[str, Any], what: str) -> jwt.PyJWK:
        for kept_ms in (_KEPT_MS, _LOOKED_AGAIN_MS):  # a provider may have changed its keys
            key = signed_token.fitting_key(header, await self._published(kept_ms), what)
            if key is not None:
                return key
        raise SignInFailed(
            Cause.TOKEN,
            f"the provider publishes no key that {what} could be signed with: alg {said(header['alg'])}, "
            f"kid {said(header.get('kid', 'missing'))}",
        )

    async def _published(self, kept_ms: int) -> list[dict[str, Any]]:
        now = self._clock.steady_ms()
        if self._keys is None or now - self._keys[0] >= kept_ms:
            found = await self._published_json((await self._discovered()).jwks_uri, _Keys)
            self._keys = now, found.keys
        return self._keys[1]

    async def _published_json(self, url: str, cls: type[T]) -> T:
        response = await self._response("GET", url, headers={"Accept": "application/json"})
        if response.status == 404:
            raise SignInFailed(
                Cause.REGISTRATION,
                f"{url}: 404: Console.OidcIssuer must be the provider's issuer, letter for letter",
            )
        if response.status != 200:
            raise SignInFailed(Cause.UNREACHABLE, f"{url}: responded with {response.status}")
        return _decoded(response, cls)

    async def _response(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str],
        data: Mapping[str, str] = MappingProxyType({}),
    ) -> _Response:
        """Return the complete response of the identity provider to a request.

        Raise SignInFailed if the identity provider's response is late or too large.
        """
        try:
            scheme = urlsplit(url).scheme
        except ValueError:
            scheme = ""
        if scheme != urlsplit(self._issuer).scheme:
            text = f"{said(url)}: the scheme of this endpoint differs from Console.OidcIssuer's"
            raise SignInFailed(Cause.REGISTRATION, text)
        if self._session is None:
            self._session = open_session(client_tls(None), self._egress, user_agent=_USER_AGENT)
        try:
            async with self._session.request(
                method, url, headers=headers, data=data or None, allow_redirects=False, timeout=_SECONDS
            ) as response:
                text_bytes = await _bounded(response)
        except TimeoutError:
            text = f"{said(url)}: no response within {_SECONDS.total:.0f} s"
            raise SignInFailed(Cause.UNREACHABLE, text) from None
        except (aiohttp.ClientError, ValueError) as error:
            text = f"{said(url)}: {said(str(error)) or type(error).__name__}"
            raise SignInFailed(Cause.UNREACHABLE, text) from None
        if response.status in _REDIRECTS:
            text = (
                f"{said(url)}: responded with {response.status} and leads to "
                f"{said(response.headers.get('Location', 'nowhere'))}, which was not followed: "
                "Console.OidcIssuer must be the provider's issuer, letter for letter"
            )
            raise SignInFailed(Cause.REGISTRATION, text)
        if text_bytes is None:
            raise SignInFailed(Cause.UNREACHABLE, f"{said(url)}: the response exceeds {_MAX_BYTES} bytes")
        challenge = response.headers.get("WWW-Authenticate", "")
        return _Response(said(url), response.status, response.content_type, challenge, text_bytes)


async def _bounded(response: aiohttp.ClientResponse) -> bytes | None:
    """Return the response body, in any number of pieces, or None if it is longer than the limit."""
    text = bytearray()
    async for piece in response.content.iter_any():
        text += piece
        if len(text) > _MAX_BYTES:
            return None
    return bytes(text)


def _decoded(response: _Response, cls: type[T]) -> T:
    try:
        return msgspec.json.decode(readable(response.text), type=cls)
    except ValueError as error:
        text = f"{response.url}: the response cannot be read as JSON: {said(str(error))}"
        raise SignInFailed(Cause.UNREACHABLE, f"{text} (Content-Type {said(response.media_type)})") from None


def _tokens(response: _Response) -> dict[str, Any]:
    """Return the JSON fields of the provider's token response.

    Raise SignInFailed for an OAuth error response (RFC 6749 section 5.2), even if its status is 200.
    """
    try:
        members = msgspec.json.decode(readable(response.text), type=dict[str, Any])
    except ValueError:
        members = {}
    where = f"{response.url}: responded with {response.status}"
    if members.get("error") is not None:
        raise refused_by_provider(
            where, members["error"], members.get("error_description"), at_token_endpoint=True
        )
    if response.status in (400, 401, 403):
        # The endpoint refuses either the client or the code, and gives no reason.
        cause = Cause.CODE if response.status == 400 else Cause.REGISTRATION
        raise SignInFailed(cause, f"{where} and gave no OAuth error code")
    if response.status != 200:
        raise SignInFailed(Cause.UNREACHABLE, where)
    return members or _decoded(response, dict[str, Any])


def _userinfo_refused(response: _Response) -> SignInFailed:
    """Return the failure that a Bearer challenge (RFC 6750 section 3) or the response body states."""
    found = dict(_PARAMETER.findall(response.challenge))
    if "error" not in found:
        try:
            found = msgspec.json.decode(readable(response.text), type=dict[str, Any])
        except ValueError:
            found = {}
    where = f"{response.url}: responded with {response.status}"
    if "error" not in found:
        cause = Cause.REGISTRATION if response.status in (401, 403) else Cause.UNREACHABLE
        return SignInFailed(cause, f"{where} to the request for the person's claims")
    failed = refused_by_provider(where, found["error"], found.get("error_description"))
    if failed.cause is not Cause.UNREACHABLE:  # a refusal of a new access token is not the visitor's fault
        failed.cause = Cause.REGISTRATION
    return failed


def check_issuer(url: str, found: str, wanted: str) -> None:
    """Check that the provider names the issuer in the settings (OpenID Connect Discovery section 4.3)."""
    if signed_token.is_same_issuer(found, wanted):
        return
    entra = _ENTRA_V1.fullmatch(wanted)
    if entra is not None and found.removesuffix("/") == f"https://sts.windows.net/{entra[1]}":
        return  # Entra's first endpoint of the same tenant
    if template := _TEMPLATE.search(found):
        fix = f"write the tenant's own id in place of {template[0]}: {found}"
        raise SignInFailed(
            Cause.REGISTRATION,
            f"{url}: the provider uses this address for many tenants, so its metadata does not name"
            " the issuer "
            f"of one tenant but {said(found)}. "
            f"Console.OidcIssuer: {said(fix)}",
        )
    raise SignInFailed(
        Cause.REGISTRATION,
        f"{url}: the provider's metadata names the issuer {said(found)}. If this issuer is the right one, "
        "write it into Console.OidcIssuer",
    )
