"""A fake identity provider: client credentials, upstream tokens, people's sign-ins, and simulated failures.

People sign in by OpenID Connect.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import secrets
import time
from collections.abc import Callable, Iterable
from functools import cached_property
from pathlib import Path
from typing import Final, Literal
from urllib.parse import parse_qs, parse_qsl, unquote_plus, urlencode

import jwt
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

from tests.fakes.certificates import ServerCertificate
from tests.fakes.server import Fake, Received, Response

Mode = Literal["ok", "down", "hang", "garbage", "empty", "throttled", "error"]

TENANT: Final = "11111111-2222-3333-4444-555555555555"
CLIENT_ID: Final = "99999999-8888-7777-6666-555555555555"
CLIENT_SECRET: Final = "fake~client.secret+50%/:"
ASSERTION_TYPE: Final = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"


class FakeIdentityProvider(Fake):
    """Token issuer for the clients of one tenant. There is one client unless a test registers more clients.

    A test may change the `mode` of the fake at any time.
    """

    def __init__(
        self,
        *,
        tls: ServerCertificate | None = None,
        port: int = 0,
        lifetime_seconds: int = 3599,
        clock: Callable[[], float] = time.monotonic,
        record_file: Path | None = None,
    ) -> None:
        super().__init__(tls=tls, port=port, record_file=record_file)
        self.mode: Mode = "ok"
        self.lifetime_seconds = lifetime_seconds
        self.acquisitions = 0
        self.client_secrets = {CLIENT_SECRET}  # secrets that are registered for the client now
        self.more_clients: dict[str, str] = {}  # further client ids, each with its secret
        self.gates: dict[str, asyncio.Event] = {}  # client ids whose response waits until the event is set
        self.certificates: list[x509.Certificate] = []
        # Checks tokens of other issuers that prove the client: an AADSTS code, or empty if the token is
        # trusted.
        self.federation: Callable[[str], str] | None = None
        self.refusals: list[str] = []  # why each assertion was refused
        self._assertions_seen: set[str] = set()
        self._clock = clock
        self._ends: dict[str, float] = {}
        self._clients: dict[str, str] = {}

    @cached_property
    def people(self) -> SignIns:
        return SignIns()

    @property
    def tokens(self) -> list[str]:
        """Return every token that the provider has issued, oldest first."""
        return list(self._ends)

    def accepts(self, token: str) -> bool:
        """Return whether the upstream currently accepts the given token."""
        return self._clock() < self._ends.get(token, float("-inf"))

    def client_of(self, token: str) -> str | None:
        """Return the client for which a token was issued."""
        return self._clients.get(token)

    def issued_to(self, client_id: str) -> list[str]:
        return [token for token, owner in self._clients.items() if owner == client_id]

    def revoke_all(self) -> None:
        self.revoke(self.tokens)

    def revoke(self, tokens: Iterable[str]) -> None:
        self._ends |= dict.fromkeys(tokens, float("-inf"))

    async def response(self, request: Received) -> Response:
        published = self._published(request)
        if published is not None:
            return published
        if request.path != f"/{TENANT}/oauth2/v2.0/token" or request.method != "POST":
            return _json(404, {"error": "not_found"})
        match self.mode:
            case "down":
                raise ConnectionAbortedError("the identity provider is down")
            case "hang":
                await asyncio.Event().wait()
            case "garbage":
                return Response(200, (("Content-Type", "application/json"),), b"<html>it works</html>")
            case "empty":
                return _json(200, {"token_type": "Bearer", "expires_in": 3599, "access_token": ""})
            case "throttled":
                return _json(429, {"error": "temporarily_unavailable"}, ("Retry-After", "7"))
            case "error":
                return _json(503, {"error": "temporarily_unavailable"})
            case "ok":
                pass
        form = {
            name: values[-1]
            for name, values in parse_qs(bytes(request.body).decode("utf-8", "replace")).items()
        }
        gate = self.gates.get(form.get("client_id", ""))
        if gate is not None:
            await gate.wait()
        if form.get("grant_type") == "authorization_code":
            secret = self._client_secret(request, form)
            return self.people.finish(form, f"{self.base_url}/{TENANT}/v2.0{self.people.slash}", secret)
        return self._token(form)

    def _client_secret(self, request: Received, form: dict[str, str]) -> str | None:
        """Return the client's secret, sent by the only advertised method (RFC 6749 section 2.3.1)."""
        if self.people.client_proves_by == "client_secret_post":
            return form.get("client_secret")
        scheme, _, credentials = "".join(request.values("Authorization")).partition(" ")
        client_id, _, secret = base64.b64decode(credentials).decode().partition(":")
        return unquote_plus(secret) if (scheme, unquote_plus(client_id)) == ("Basic", CLIENT_ID) else None

    def _published(self, request: Received) -> Response | None:
        """Return the response for documents that are available even while no token is issued."""
        match request.path.removeprefix(f"/{TENANT}/"):
            case "v2.0/.well-known/openid-configuration":
                return _json(200, self._discovery())
            case "discovery/v2.0/keys":
                return _json(200, {"keys": self.people.published})
            case "oauth2/v2.0/authorize":
                return self.people.begin(dict(parse_qsl(request.query)))
            case "oidc/userinfo":
                return self.people.tell("".join(request.values("Authorization")))
        return None

    def _token(self, form: dict[str, str]) -> Response:
        if form.get("grant_type") != "client_credentials" or not form.get("scope", "").endswith("/.default"):
            return _json(400, {"error": "invalid_request", "error_description": "AADSTS900144"})
        client_id = form.get("client_id", "")
        code = self._refusal(client_id, form)
        if code:
            described = f"{code}: fake says no. Trace ID: 1"
            return _json(401, {"error": "invalid_client", "error_description": described})
        self.acquisitions += 1
        token = f"standin-upstream.{secrets.token_urlsafe(48)}"
        self._ends[token] = self._clock() + self.lifetime_seconds
        self._clients[token] = client_id
        expires = self.lifetime_seconds
        body = {
            "token_type": "Bearer",
            "expires_in": expires,
            "ext_expires_in": expires,
            "access_token": token,
        }
        return _json(200, body, ("Cache-Control", "no-store"))

    def _refusal(self, client_id: str, form: dict[str, str]) -> str:
        """Return Entra's error code for a client's invalid proof, or an empty text for a valid proof."""
        if "client_assertion" not in form:
            known = {self.more_clients.get(client_id)} if client_id != CLIENT_ID else self.client_secrets
            return "" if form.get("client_secret", "") in known else "AADSTS7000215"
        if self.federation is not None and client_id == CLIENT_ID:
            return self.federation(form["client_assertion"])
        try:
            self._check_assertion(form)
        except (jwt.InvalidTokenError, KeyError, ValueError) as error:
            self.refusals.append(f"{type(error).__name__}: {error}")
            return "AADSTS700027"
        return ""

    def _check_assertion(self, form: dict[str, str]) -> None:
        """Check a client assertion by the rules of Microsoft Entra for assertions of its own library.

        The assertion needs a registered certificate's thumbprint, a valid signature, this fake's address, at
        most half an hour of life, and no second use.
        """
        if form.get("client_assertion_type") != ASSERTION_TYPE or "client_secret" in form:
            raise ValueError("client_assertion_type")
        text = form["client_assertion"]
        header = jwt.get_unverified_header(text)
        if set(header) != {"alg", "typ", "x5t#S256"} or header["typ"] != "JWT":
            raise ValueError(f"header {sorted(header)}")
        thumbprint = base64.urlsafe_b64decode(header["x5t#S256"] + "=")
        (certificate,) = (
            each for each in self.certificates if each.fingerprint(hashes.SHA256()) == thumbprint
        )
        key = certificate.public_key()
        assert isinstance(key, RSAPublicKey)
        claims = jwt.decode(
            text,
            key,
            algorithms=["PS256"],
            audience=f"{self.base_url}/{TENANT}/oauth2/v2.0/token",
            issuer=CLIENT_ID,
            options={"require": ["aud", "exp", "iss", "jti", "nbf", "sub"]},
        )
        if claims["sub"] != CLIENT_ID or claims["exp"] - claims["nbf"] > 1800:
            raise ValueError("sub or exp")
        if claims["jti"] in self._assertions_seen:
            raise ValueError("replayed")
        self._assertions_seen.add(claims["jti"])

    def _discovery(self) -> dict[str, object]:
        tenant = f"{self.base_url}/{TENANT}"
        return {
            "token_endpoint": f"{tenant}/oauth2/v2.0/token",
            "authorization_endpoint": f"{tenant}/oauth2/v2.0/authorize",
            "issuer": f"{tenant}/v2.0{self.people.slash}",
            "jwks_uri": f"{tenant}/discovery/v2.0/keys",
            "token_endpoint_auth_methods_supported": [self.people.client_proves_by],
            "userinfo_endpoint": f"{tenant}/oidc/userinfo",
            **self.people.discovery,
        }


class SignIns:
    """State of the sign-ins of one person in the browser: the claims, and the faults to simulate."""

    def __init__(self) -> None:
        self.claims: dict[str, object] = {"preferred_username": "ada@contoso.com"}
        self.changed: dict[str, object] = {}  # members that replace correct ones of the ID token
        self.algorithm = "RS256"
        self.key: object = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.key_id = "key-1"
        self.slash = ""  # appended to the issuer's name, as some providers have it
        self.published = [self.jwk()]
        self.client_proves_by = "client_secret_post"
        self.asked: list[dict[str, str]] = []
        self.discovery: dict[str, object] = {}  # members that replace correct ones of the discovery document
        self.back: dict[str, str] = {}  # parameters that the browser returns instead of a code, or with it
        self.refusal: tuple[int, dict[str, object]] | None = None  # response of the token endpoint
        self.beside_tokens: dict[str, object] = {}  # members that replace correct ones of the token response
        self.userinfo: dict[str, object] = {}  # claims that only userinfo returns, not the ID token
        self.userinfo_response: Response | None = None  # replaces the response with these claims
        self.report = 0  # number of requests to userinfo
        self._codes: dict[str, dict[str, str]] = {}

    def jwk(self) -> dict[str, object]:
        """Return the public half of the key, as a provider publishes it."""
        assert isinstance(self.key, rsa.RSAPrivateKey)
        found = jwt.algorithms.RSAAlgorithm.to_jwk(self.key.public_key(), as_dict=True)
        return {**found, "kid": self.key_id, "use": "sig"}

    def signed(self, claims: dict[str, object]) -> str:
        header = {"kid": self.key_id} if self.key_id else None
        return jwt.encode(claims, self.key, self.algorithm, header)  # type: ignore[arg-type]

    def begin(self, query: dict[str, str]) -> Response:
        """Redirect the browser back to the client with a code, without any question to the person."""
        self.asked.append(query)
        wanted = {"response_type": "code", "code_challenge_method": "S256", "client_id": CLIENT_ID}
        if any(query.get(name) != value for name, value in wanted.items()) or "openid" not in query["scope"]:
            return _json(400, {"error": "invalid_request"})
        code = secrets.token_urlsafe(16)
        self._codes[code] = query
        brought = {"state": query["state"], **self.back}
        if "error" not in self.back:
            brought["code"] = code
        return Response(302, (("Location", f"{query['redirect_uri']}?{urlencode(brought)}"),))

    def tell(self, authorization: str) -> Response:
        """Return the response of the userinfo endpoint (OpenID Connect Core section 5.3)."""
        self.report += 1
        if self.userinfo_response is not None:
            return self.userinfo_response
        if authorization != "Bearer -":
            return _json(401, {}, ("WWW-Authenticate", 'Bearer error="invalid_token"'))
        return _json(200, {"sub": "person-1", **self.userinfo})

    def finish(self, form: dict[str, str], issuer: str, client_secret: str | None) -> Response:
        """Exchange a code for tokens once, if the client has the code's verifier (RFC 7636 section 4.6)."""
        if self.refusal is not None:
            return _json(*self.refusal)
        query = self._codes.pop(form.get("code", ""), None)
        digest = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        if (
            query is None
            or query["code_challenge"] != challenge
            or query["redirect_uri"] != form.get("redirect_uri")
            or client_secret != CLIENT_SECRET
        ):
            return _json(400, {"error": "invalid_grant"})
        now = int(time.time())
        claims = {
            "iss": issuer,
            "aud": CLIENT_ID,
            "sub": "person-1",
            "nonce": query["nonce"],
            "iat": now,
            "exp": now + 600,
            **self.claims,
            **self.changed,
        }
        kept = {name: value for name, value in claims.items() if value is not None}
        token = self.signed(kept)
        given = {"token_type": "Bearer", "expires_in": 600, "id_token": token, "access_token": "-"}
        return _json(200, {**given, **self.beside_tokens})


def _json(status: int, body: dict[str, object], *headers: tuple[str, str]) -> Response:
    return Response(
        status, (("Content-Type", "application/json; charset=utf-8"), *headers), json.dumps(body).encode()
    )
