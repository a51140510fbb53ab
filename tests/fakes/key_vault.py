"""Fakes of Azure Key Vault and of the managed identity, to which tests connect with Azure's own SDK."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from dataclasses import dataclass, field
from typing import Any, Final, Literal
from urllib.parse import parse_qs

from tests.fakes.certificates import ServerCertificate
from tests.fakes.identity import TENANT, FakeIdentityProvider
from tests.fakes.server import Fake, Received, Response

VaultMode = Literal["ok", "down", "hang", "forbidden", "throttled", "error", "garbage", "foreign", "deaf"]
IdentityMode = Literal["ok", "down", "hang", "unassigned", "garbage", "error"]

MANAGED_IDENTITY: Final = "77777777-6666-5555-4444-333333333333"  # user-assigned, by its client id
IDENTITY_HEADER: Final = "stand-in-identity-header"
PROOFS: Final = (
    ("/msi/token", IDENTITY_HEADER, ""),
    ("/metadata/identity/oauth2/token", "", "true"),  # a header that no redirect or link can add
)
VERSIONS_OF_A_PAGE: Final = 2


class FakeManagedIdentity(Fake):
    """Token endpoints for managed identities, over plain HTTP: of App Service and of virtual machines."""

    def __init__(self) -> None:
        super().__init__()
        self.mode: IdentityMode = "ok"
        self.tokens: dict[str, str] = {}  # token -> resource
        self.identities: list[str] = []  # client id of each request; empty for the system-assigned identity

    @property
    def machine_environment(self) -> dict[str, str]:
        """Return the environment variables of a virtual machine, with only a test address for the SDK."""
        return {"AZURE_POD_IDENTITY_AUTHORITY_HOST": self.base_url}

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment variables that Azure gives to a process with a managed identity."""
        return {"IDENTITY_ENDPOINT": f"{self.base_url}/msi/token", "IDENTITY_HEADER": IDENTITY_HEADER}

    async def response(self, request: Received) -> Response:
        query = {name: values[-1] for name, values in parse_qs(request.query).items()}
        if (request.path, request.value("X-IDENTITY-HEADER"), request.value("Metadata")) not in PROOFS:
            return _json(401, {"statusCode": 401, "message": "no"})
        match self.mode:
            case "down":
                raise ConnectionAbortedError("the managed identity is down")
            case "hang":
                await asyncio.Event().wait()
            case "garbage":
                return Response(200, (("Content-Type", "text/html"),), b"<html>it works</html>")
            case "error":
                return _json(500, {"statusCode": 500, "message": "stand-in"})
            case "unassigned":
                return _json(400, {"statusCode": 400, "message": "No User Assigned or Delegated Identity"})
            case "ok":
                pass
        identity = query.get("client_id", "")
        if identity not in ("", MANAGED_IDENTITY):
            return _json(400, {"statusCode": 400, "message": "No User Assigned or Delegated Identity"})
        self.identities.append(identity)
        token = f"standin-managed-identity.{secrets.token_urlsafe(32)}"
        self.tokens[token] = query["resource"]
        body = {
            "access_token": token,
            "expires_on": str(int(time.time()) + 86400),
            "resource": query["resource"],
            "token_type": "Bearer",
            "client_id": identity or "system",
        }
        return _json(200, body)


@dataclass(slots=True)
class Version:
    """A version of a secret, as the vault stores it."""

    value: str
    content_type: str | None = None
    id: str = field(default_factory=lambda: secrets.token_hex(16))
    enabled: bool = True
    created: float = field(default_factory=time.time)
    not_before: float | None = None
    expires: float | None = None

    @property
    def attributes(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "enabled": self.enabled,
            "created": int(self.created),
            "updated": int(self.created),
            "recoveryLevel": "Recoverable+Purgeable",
        }
        if self.not_before is not None:
            found["nbf"] = int(self.not_before)
        if self.expires is not None:
            found["exp"] = int(self.expires)
        return found


class FakeKeyVault(Fake):
    """A fake key vault with secret versions.

    The fake key vault sends the same authentication challenge as a real key vault.

    A test may change the `mode` of the fake at any time.
    """

    def __init__(self, identity: FakeManagedIdentity, *, tls: ServerCertificate) -> None:
        super().__init__(tls=tls)
        self.mode: VaultMode = "ok"
        self.reads: list[str] = []  # name of each secret whose value was returned
        self.applications: FakeIdentityProvider | None = None  # issuer whose tokens are accepted too
        self.name = ""  # host name in clients' addresses, if it is not the listening address
        self._identity = identity
        self._secrets: dict[str, list[Version]] = {}

    @property
    def resource(self) -> str:
        """Return the Azure resource that is the audience of tokens for the vault.

        For the test vault `127.0.0.1`, the resource is `0.0.1`, because a real vault's resource is its host
        name without the first label. The SDK refuses the challenge of a vault if the challenge names a
        resource that does not fit the vault's address. The SDK compares the resource `0.0.1` only as text, so
        `0.0.1` does not have to be a host name in DNS.
        """
        if self.name:
            return f"https://{self.name.partition('.')[2]}"
        return self.base_url.replace("127.0.0.1", "0.0.1")

    def put(self, name: str, value: str, content_type: str | None = None, **attributes: Any) -> Version:
        """Store a new version of the secret in the vault."""
        version = Version(value, content_type, **attributes)
        self._secrets.setdefault(name, []).append(version)
        return version

    def delete(self, name: str) -> None:
        self._secrets.pop(name)

    async def response(self, request: Received) -> Response:
        match self.mode:
            case "down":
                raise ConnectionAbortedError("the vault is down")
            case "hang":
                await asyncio.Event().wait()
            case "throttled":
                return _error(429, "Throttled", None, ("Retry-After", "3"))
            case "error":
                return _error(503, "ServiceUnavailable")
            case "garbage":
                return Response(200, (("Content-Type", "application/json"),), b'{"value": ["no"], "id": 7}')
            case "ok" | "forbidden" | "foreign" | "deaf":
                pass
        token = request.value("Authorization").removeprefix("Bearer ")
        known = self._identity.tokens.get(token) == self.resource
        known = known or (self.applications is not None and self.applications.accepts(token))
        if not known or self.mode == "deaf":
            return self._challenge()
        if self.mode == "forbidden":
            return _error(403, "Forbidden", "ForbiddenByRbac")
        return self._found(request)

    def _challenge(self) -> Response:
        resource = "https://vault.elsewhere.example" if self.mode == "foreign" else self.resource
        challenge = (
            f'Bearer authorization="https://login.microsoftonline.com/{TENANT}", resource="{resource}"'
        )
        return _error(401, "Unauthorized", None, ("WWW-Authenticate", challenge))

    def _found(self, request: Received) -> Response:
        _, root, name, *rest = [*request.path.split("/"), ""]
        if root != "secrets" or "api-version" not in parse_qs(request.query) or request.method != "GET":
            return _error(400, "BadParameter")
        versions = self._secrets.get(name, [])
        if rest[0] == "versions":
            return self._page(name, versions, int(parse_qs(request.query).get("$skiptoken", ["0"])[0]))
        wanted = [each for each in versions if rest[0] in ("", each.id)]
        if not wanted:
            return _error(404, "SecretNotFound")
        version = wanted[-1]
        if not version.enabled:
            return _error(403, "Forbidden", "SecretDisabled")
        self.reads.append(name)
        return _json(200, {"value": version.value, **self._item(name, version)})

    def _page(self, name: str, versions: list[Version], at: int) -> Response:
        page = versions[at : at + VERSIONS_OF_A_PAGE]
        following = at + len(page)
        link = f"{self.base_url}/secrets/{name}/versions?api-version=7.6&$skiptoken={following}"
        return _json(
            200,
            {
                "value": [self._item(name, each) for each in page],
                "nextLink": link if following < len(versions) else None,
            },
        )

    def _item(self, name: str, version: Version) -> dict[str, Any]:
        item = {
            "id": f"{self.base_url}/secrets/{name}/{version.id}",
            "attributes": version.attributes,
            "tags": {},
        }
        return item | ({"contentType": version.content_type} if version.content_type else {})


def _error(status: int, code: str, inner: str | None = None, *headers: tuple[str, str]) -> Response:
    error: dict[str, Any] = {"code": code, "message": f"fake says {code}"}
    if inner:
        error["innererror"] = {"code": inner}
    return _json(status, {"error": error}, *headers)


def _json(status: int, body: dict[str, Any], *headers: tuple[str, str]) -> Response:
    return Response(
        status, (("Content-Type", "application/json; charset=utf-8"), *headers), json.dumps(body).encode()
    )
