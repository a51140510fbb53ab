"""A fake control plane that checks every signature.

The fake's responses follow the specification or a script.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Final

from tests.fakes.certificates import ServerCertificate
from tests.fakes.server import Fake, Received, Response

API_KEY: Final = "standin-api-key"
HMAC_SECRET: Final = "standin-hmac-secret"

Script = Response | Callable[[], Awaitable[Response]]


class FakeControlPlane(Fake):
    """A fake control plane that can send responses from a test's script.

    The fake uses each scripted response once. After the scripted responses, the fake follows the
    specification again.
    """

    def __init__(self, *, tls: ServerCertificate | None = None, port: int = 0, record: bool = False) -> None:
        super().__init__(tls=tls, port=port, record=record)
        self.problems: list[str] = []  # requests that violate the signing rules or a contract
        # accepted events of each organisation, counted once per batch
        self.events: dict[str, list[dict[str, Any]]] = {}
        self.bodies: dict[str, set[bytes]] = {}  # batch id -> every body that was sent with it
        self.attempts: list[tuple[float, str, str, int]] = []  # (monotonic, organisation, batch id, status)
        self.heartbeats: list[dict[str, Any]] = []
        self.metrics: list[dict[str, Any]] = []
        self.sync_requests: list[Received] = []
        self.audit_script: deque[Script] = deque()
        self.sync_script: deque[Script] = deque()
        self.metrics_script: deque[Script] = deque()
        self.organisation_scripts: dict[str, deque[Script]] = {}
        self.down = False  # respond 503 to every audit batch
        self.sign_responses = True
        self.spoil_signature: Callable[[str], str] = lambda signature: signature
        self.sync_body: dict[str, Any] = sync_body()
        self._counted: set[str] = set()
        self._news = asyncio.Condition()

    async def response(self, request: Received) -> Response:
        self._check_signing(request)
        kind = request.path.removeprefix("/api/v1/agent/")
        handler = {
            "sync": self._sync,
            "audit": self._audit,
            "heartbeat": self._heartbeat,
            "metrics": self._metrics,
        }.get(kind)
        if handler is None:
            self.problems.append(f"unknown path {request.target}")
            return Response(404)
        response = self._as_its_own(request, await handler(request))
        async with self._news:
            self._news.notify_all()
        return response

    def _as_its_own(self, request: Received, response: Response) -> Response:
        """Sign a JSON response, unless it has a signature or the field `Via` of a simulated intermediary."""
        names = {name.lower() for name, _ in response.headers}
        if response.stream is not None or not _is_json(response) or {"x-hmac-signature", "via"} & names:
            return response
        return self.signed(request, response)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until the requests that the fake received satisfy the condition."""
        async with self._news:
            await self._news.wait_for(condition)

    def check_status(self, name: str) -> str | None:
        """Return the status of the check `name` in the last heartbeat; None if the check is missing."""
        checks = self.heartbeats[-1]["checks"] if self.heartbeats else {}
        return checks[name]["status"] if name in checks else None

    def seqs(self, org_id: str) -> list[int]:
        return [event["seq"] for event in self.events.get(org_id, [])]

    def _check_signing(self, request: Received) -> None:
        body = bytes(request.body)
        timestamp = request.value("X-Timestamp")
        expected = hmac.new(HMAC_SECRET.encode(), f"{timestamp}.".encode() + body, hashlib.sha256)
        if request.values("X-Hmac-Signature") != [expected.hexdigest()]:
            self.problems.append(f"{request.method} {request.target}: wrong signature")
        if request.values("X-Api-Key") != [API_KEY]:
            self.problems.append(f"{request.method} {request.target}: wrong API key")
        if not timestamp.isdigit() or abs(time.time() - int(timestamp)) > 300:
            self.problems.append(f"{request.method} {request.target}: timestamp {timestamp!r}")

    async def _sync(self, request: Received) -> Response:
        self.sync_requests.append(request)
        if request.method != "GET" or request.body_length:
            self.problems.append("sync is a GET without a body")
        if self.sync_script:
            return await _next(self.sync_script)
        body = json.dumps(self.sync_body).encode()
        etag = f'"{hashlib.sha256(body).hexdigest()[:16]}"'
        if request.value("If-None-Match") == etag:
            return self.signed(request, Response(304, (("ETag", etag),)))
        return self.signed(request, Response(200, (("ETag", etag),), body))

    def signed(self, request: Received, response: Response) -> Response:
        if not self.sign_responses:
            return response
        payload = f"response.{request.value('X-Hmac-Signature')}.".encode() + response.body
        signature = hmac.new(HMAC_SECRET.encode(), payload, hashlib.sha256).hexdigest()
        header = ("X-Hmac-Signature", self.spoil_signature(signature))
        return Response(response.status, (*response.headers, header), response.body)

    async def _audit(self, request: Received) -> Response:
        batch = json.loads(request.body)
        organisations = {event["orgId"] for event in batch["events"]}
        if len(organisations) != 1:
            self.problems.append(f"a batch of {len(organisations)} organisations")
        org_id = organisations.pop()
        batch_id = batch["batchId"]
        self.bodies.setdefault(batch_id, set()).add(bytes(request.body))
        response = await self._audit_response(org_id)
        self.attempts.append((time.monotonic(), org_id, batch_id, response.status))
        if response.status != 202 or response.body:
            return _naming(batch_id, response)
        duplicate = batch_id in self._counted
        if not duplicate:
            self._counted.add(batch_id)
            self.events.setdefault(org_id, []).extend(batch["events"])
        return _json(202, {"batchId": batch_id, "accepted": len(batch["events"]), "duplicate": duplicate})

    async def _audit_response(self, org_id: str) -> Response:
        for script in (self.organisation_scripts.get(org_id), self.audit_script):
            if script:
                return await _next(script)
        return Response(503) if self.down else Response(202)

    async def _heartbeat(self, request: Received) -> Response:
        self.heartbeats.append(json.loads(request.body))
        return _json(200, {"status": "ok"})

    async def _metrics(self, request: Received) -> Response:
        if self.metrics_script:
            response = await _next(self.metrics_script)
            if response.status != 200:
                return response
        self.metrics.append(json.loads(request.body))
        return _json(200, {"status": "ok"})


async def _next(script: deque[Script]) -> Response:
    step = script.popleft()
    return step if isinstance(step, Response) else await step()


def error(status: int, code: str, *headers: tuple[str, str], **members: Any) -> Response:
    """Return an error response of the control plane.

    The argument `batchId` becomes the batch id in the response, beside the error. All arguments except
    `batchId` become members of the JSON object `error`.
    """
    named = {name: members.pop(name) for name in list(members) if name == "batchId"}
    detail = {"code": code, "message": f"fake says {code}", **members}
    return _json(status, {"error": detail, **named}, *headers)


def accepted(**members: Any) -> Response:
    """Return a 202 response of the control plane.

    The 202 response names the batch id of the request, unless the test gives another batch id.
    """
    return _json(202, {"accepted": 0, "duplicate": False} | members)


def foreign(response: Response) -> Response:
    """Return the response without a signature, as if an intermediary had sent it."""
    return Response(response.status, (*response.headers, ("Via", "1.1 gateway")), response.body)


def _is_json(response: Response) -> bool:
    return ("Content-Type", "application/json") in response.headers


def _naming(batch_id: str, response: Response) -> Response:
    """Return the response with the batch id of the request, as the real control plane sends it."""
    if not _is_json(response) or ("Via", "1.1 gateway") in response.headers:
        return response
    body = {"batchId": batch_id} | json.loads(response.body)
    return Response(response.status, response.headers, json.dumps(body).encode())


def _json(status: int, body: dict[str, Any], *headers: tuple[str, str]) -> Response:
    return Response(status, (("Content-Type", "application/json"), *headers), json.dumps(body).encode())


async def hang() -> Response:
    """Wait for ever, like a control plane that never sends a response."""
    await asyncio.Event().wait()
    raise AssertionError("unreachable")


async def break_off() -> Response:
    raise ConnectionAbortedError("the control plane broke off")


def ruleset_yaml(name: str = "rules", path: str = "/v1.0/users") -> str:
    return (
        f"version: 1\nname: {name}\ndefault: block\nrules:\n"
        f"  - id: r1\n    match: {{methods: [GET], path: ['{path}']}}\n    verdict: allow\n"
    )


def sync_body(**changes: Any) -> dict[str, Any]:
    return {
        "version": "v1",
        "generatedAt": "2026-11-21T04:25:58.123Z",
        "orgs": [{"orgId": "org-1", "name": "Contoso"}],
        "apps": [
            {
                "appId": "app-1",
                "orgId": "org-1",
                "name": "hr",
                "clientId": "client-1",
                "secretHashes": ["$argon2id$standin"],
                "secretVersion": 1,
                "rulesetId": "ruleset-1",
                "enabled": True,
            }
        ],
        "rulesets": [
            {
                "rulesetId": "ruleset-1",
                "orgId": "org-1",
                "name": "rules",
                "version": 1,
                "yaml": ruleset_yaml(),
            }
        ],
        "metadata": {"syncIntervalSeconds": 30, "proxyId": "proxy-1"},
    } | changes
