"""A fake issuer of workload tokens, such as the tokens of Kubernetes, GitHub or Entra.

The fake issuer has a discovery document, keys that rotate, and tokens. The tests of the proxy, of the SDKs
and of the agent share this fake issuer.
"""

from __future__ import annotations

import asyncio
import base64
import json
import time
import uuid
from typing import Any, Final, Literal

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from tests.fakes.certificates import ServerCertificate
from tests.fakes.server import Fake, Received, Response

PrivateKey = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey
Mode = Literal["ok", "down", "hang", "garbage", "redirect", "other issuer", "http keys", "endless"]

ALGORITHM_OF_CURVE: Final = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}
_ALGORITHMS: Final = jwt.algorithms.get_default_algorithms()


def coded(raw: bytes) -> str:
    """Return the bytes as base64url without padding, as in a JWT."""
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


class SigningKey:
    """A key pair, with its public key as a JWK."""

    def __init__(self, private: PrivateKey | None = None, *, key_id: str | None = "key-1") -> None:
        self.private = private or ec.generate_private_key(ec.SECP256R1())
        self.key_id = key_id
        if isinstance(self.private, rsa.RSAPrivateKey):
            self.algorithm = "RS256"
            text = jwt.algorithms.RSAAlgorithm.to_jwk(self.private.public_key())
        else:
            self.algorithm = ALGORITHM_OF_CURVE[self.private.curve.name]
            text = jwt.algorithms.ECAlgorithm.to_jwk(self.private.public_key())
        self.jwk: dict[str, Any] = json.loads(text)
        self.jwk.pop("key_ops", None)
        if key_id is not None:
            self.jwk["kid"] = key_id

    def sign(self, claims: dict[str, Any], *, algorithm: str | None = None, **header: Any) -> str:
        """Return a signed JWT with the given claims.

        A parameter of the token's header is left out if the parameter's value is None.
        """
        algorithm = algorithm or self.algorithm
        fields = {"alg": algorithm, "typ": "JWT", "kid": self.key_id, **header}
        given = {name: value for name, value in fields.items() if value is not None}
        return self.sign_bytes(json.dumps(given).encode(), json.dumps(claims).encode(), algorithm)

    def sign_bytes(self, header: bytes, claims: bytes, algorithm: str | None = None) -> str:
        """Return a JWT whose header and claims are arbitrary bytes."""
        signed = f"{coded(header)}.{coded(claims)}"
        signature = _ALGORITHMS[algorithm or self.algorithm].sign(signed.encode(), self.private)
        return f"{signed}.{coded(signature)}"


def claims_of(issuer: str, subject: str, audience: str, **changes: Any) -> dict[str, Any]:
    """Return claims of a token that is valid for ten minutes.

    A claim of the token is left out if the claim's value is None.
    """
    now = int(time.time())
    claims = {
        "iss": issuer,
        "sub": subject,
        "aud": audience,
        "iat": now,
        "exp": now + 600,
        "jti": str(uuid.uuid4()),
        **changes,
    }
    return {name: value for name, value in claims.items() if value is not None}


class FakeIssuer(Fake):
    """An issuer that publishes `keys`; a test may change `mode` at any time."""

    def __init__(self, *, tls: ServerCertificate | None = None, port: int = 0, path: str = "") -> None:
        super().__init__(tls=tls, port=port)
        self.mode: Mode = "ok"
        self.keys = [SigningKey()]
        self.reads = 0  # number of reads of the keys
        self._path = path
        self.was_read = asyncio.Event()  # set at each read of the keys

    @property
    def issuer(self) -> str:
        return self.base_url + self._path

    def rotate(self, *, keep: bool = False) -> SigningKey:
        """Sign with a new key from now on, and return this key.

        If `keep` is True, the issuer still publishes the earlier keys.
        """
        new = SigningKey(key_id=f"key-{uuid.uuid4()}")
        self.keys = [new, *(self.keys if keep else [])]
        return new

    def token(self, subject: str, audience: str, **changes: Any) -> str:
        return self.keys[0].sign(claims_of(self.issuer, subject, audience, **changes))

    async def response(self, request: Received) -> Response:
        match self.mode:
            case "down":
                raise ConnectionAbortedError("the issuer is down")
            case "hang":
                await asyncio.Event().wait()
            case "garbage":
                return Response(200, (("Content-Type", "application/json"),), b"<html>it works</html>")
            case "endless":
                return Response(200, (("Content-Type", "application/json"),), b" " * 2_000_000)
            case "redirect":
                return Response(302, (("Location", f"{self.base_url}/elsewhere"),), b"")
            case _:
                pass
        if request.path == f"{self._path}/.well-known/openid-configuration":
            issuer = self.issuer + "/" if self.mode == "other issuer" else self.issuer
            keys_at = f"{self.base_url}/keys"
            if self.mode == "http keys":
                keys_at = "http://issuer.example/keys"
            return _json({"issuer": issuer, "jwks_uri": keys_at})
        if request.path == "/keys":
            self.reads += 1
            self.was_read.set()
            return _json({"keys": [key.jwk | {"use": "sig"} for key in self.keys]})
        return Response(404, (), b"")


def _json(body: dict[str, Any]) -> Response:
    return Response(200, (("Content-Type", "application/json"),), json.dumps(body).encode())
