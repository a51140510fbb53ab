"""A fake control plane that enrols proxies and renews their keys by the contract of enrolment."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final

from tests.fakes.certificates import ServerCertificate
from tests.fakes.control_plane import FakeControlPlane, Script, _json, _next, error, sync_body
from tests.fakes.server import Received, Response

TOKEN: Final = "gwe_token-of-the-fake-control-plane"
ENROL: Final = "/api/v1/enrol"


@dataclass
class EnrolledProxy:
    proxy_id: str
    name: str
    enrolment_id: str
    keys: dict[str, str] = field(default_factory=dict)  # API key -> HMAC secret, for all valid keys
    renewal_id: str = ""
    renewed_from: str = ""  # API key that requested the renewal
    is_seen: bool = False


class EnrollingControlPlane(FakeControlPlane):
    """A fake control plane that accepts signed requests only from an enrolled proxy."""

    def __init__(self, *, tls: ServerCertificate | None = None) -> None:
        super().__init__(tls=tls, record=True)
        self.uses_left = {TOKEN: 1}
        self.proxies: list[EnrolledProxy] = []
        self.enrol_script: deque[Script] = deque()
        self.rotate_at: str | None = None
        self.refused_keys = 0  # signed requests with an invalid API key
        self.before_enrol_response: Callable[[], Awaitable[None]] | None = None
        self.sync_body = sync_body()

    async def response(self, request: Received) -> Response:
        if request.path == ENROL:
            return await self._enrol(request)
        if self._owner(request) is None:
            self.refused_keys += 1
            return error(401, "unknownApiKey")
        return await super().response(request)

    def revoke(self, proxy: EnrolledProxy) -> None:
        proxy.keys.clear()

    def _owner(self, request: Received) -> EnrolledProxy | None:
        key = request.value("X-Api-Key")
        return next((each for each in self.proxies if key in each.keys), None)

    def _check_signing(self, request: Received) -> None:
        owner = self._owner(request)
        assert owner is not None
        owner.is_seen = True
        key = request.value("X-Api-Key")
        signed = f"{request.value('X-Timestamp')}.".encode() + bytes(request.body)
        expected = hmac.new(owner.keys[key].encode(), signed, hashlib.sha256).hexdigest()
        if request.values("X-Hmac-Signature") != [expected]:
            self.problems.append(f"{request.method} {request.target}: wrong signature")

    def signed(self, request: Received, response: Response) -> Response:
        owner = self._owner(request)
        if owner is None:
            return response
        secret = owner.keys[request.value("X-Api-Key")]
        payload = f"response.{request.value('X-Hmac-Signature')}.".encode() + response.body
        signature = hmac.new(secret.encode(), payload, hashlib.sha256).hexdigest()
        return Response(response.status, (*response.headers, ("X-Hmac-Signature", signature)), response.body)

    async def _enrol(self, request: Received) -> Response:
        if self.enrol_script:
            return await _next(self.enrol_script)
        body = json.loads(request.body)
        response = self._renewed(request, body) if "renewalId" in body else self._enrolled(request, body)
        if self.before_enrol_response is not None:
            await self.before_enrol_response()
        return response

    def _enrolled(self, request: Received, body: dict[str, Any]) -> Response:
        token = request.value("Authorization").removeprefix("Bearer ")
        if token not in self.uses_left:
            return error(401, "invalidEnrolmentToken")
        if set(body) != {"name", "enrolmentId", "version"}:
            return error(400, "invalidPayload")
        known = [each for each in self.proxies if each.enrolment_id == body["enrolmentId"]]
        if known and not known[0].is_seen:
            known[0].keys.clear()
            return _json(201, self._identity(known[0]))
        if not self.uses_left[token]:
            return error(401, "invalidEnrolmentToken")
        self.uses_left[token] -= 1
        proxy = EnrolledProxy(f"proxy-{len(self.proxies) + 1}", body["name"], body["enrolmentId"])
        self.proxies.append(proxy)
        return _json(201, self._identity(proxy))

    def _renewed(self, request: Received, body: dict[str, Any]) -> Response:
        owner = self._owner(request)
        if owner is None:
            return error(401, "unknownApiKey")
        self._check_signing(request)
        # no renewal on top of another: the keys in the lost response become void
        if body["renewalId"] == owner.renewal_id:
            owner.keys = {owner.renewed_from: owner.keys[owner.renewed_from]}
        owner.renewal_id, owner.renewed_from = body["renewalId"], request.value("X-Api-Key")
        return self.signed(request, _json(200, self._identity(owner)))

    def _identity(self, proxy: EnrolledProxy) -> dict[str, Any]:
        number = sum(each.count(b"enrol") for each in (r.head for r in self.requests)) + len(self.proxies)
        key, secret = f"gwk_{proxy.proxy_id}-key-{number}", f"gwh_{proxy.proxy_id}-secret-{number}"
        proxy.keys[key] = secret
        orgs = [{"orgId": "org-1", "name": "Contoso"}]
        members = {"proxyId": proxy.proxy_id, "name": proxy.name, "orgs": orgs, "rotateAt": self.rotate_at}
        return members | {"apiKey": key, "hmacSecret": secret}
