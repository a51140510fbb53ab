"""Tests of a client certificate from registration to removal, through the whole system.

The tests run the control plane, the agent and restarted workers, and follow the span of a request from the
worker to a trace collector.
"""

from __future__ import annotations

import asyncio
import os
import signal
import ssl
from pathlib import Path

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding

from tests.fakes.certificates import client_certificate
from tests.fakes.trace_collector import FakeTraceCollector, attributes
from tests.process.proxy_parts import events, processes, until, whole_system

pytestmark = pytest.mark.process

TRACE, CALLER = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


class Application:
    """An application with a client certificate and no secret.

    Each request of the application opens a new connection.
    """

    def __init__(self, base: str, context: ssl.SSLContext, client_id: str) -> None:
        self._base = base
        self._context = context
        self._client_id = client_id

    def ask_for_token(self) -> httpx.Response:
        form = {"grant_type": "client_credentials", "client_id": self._client_id}
        return httpx.post(f"{self._base}/proxy/token", data=form, verify=self._context)

    def gets_token(self) -> bool:
        """Request a token, and return the token, or False while the proxy refuses the TLS handshake."""
        try:
            return self.ask_for_token().status_code == 200
        except httpx.TransportError:
            return False

    def get(self, token: str, target: str) -> int:
        given = {"Authorization": f"Bearer {token}", "traceparent": f"00-{TRACE}-{CALLER}-01"}
        return httpx.get(self._base + target, headers=given, verify=self._context).status_code


async def test_a_registered_certificate_works_until_it_is_removed(tmp_path: Path) -> None:
    made = client_certificate(key=ec.generate_private_key(ec.SECP256R1()))
    own, public = tmp_path / "app.pem", tmp_path / "app-certificate.pem"
    own.write_text(made.pem)
    public.write_bytes(made.certificate.public_bytes(Encoding.PEM))
    async with FakeTraceCollector() as collector:
        environment = {"Proxy__ClientCertificates": "optional", "Traces__OtlpUrl": collector.base_url}
        async with whole_system(tmp_path, environment=environment) as system:
            added = await system.cli("app", "certificate", "add", "app", str(public))
            context = system.client_context()
            context.load_cert_chain(own)
            app = Application(system.proxy_url, context, system.applications["app"].client_id)
            await until(app.gets_token)
            token = (await asyncio.to_thread(app.ask_for_token)).json()["access_token"]
            assert await asyncio.to_thread(app.get, token, "/v1.0/echo/1") == 200
            for pid in processes(system, "worker").values():
                os.kill(pid, signal.SIGKILL)
            await until(app.gets_token)  # the workers received the certificate before they listened
            assert await asyncio.to_thread(app.get, token, "/v1.0/echo/2") == 200
            credential = added["credential"]["id"]
            await system.cli("app", "credential", "remove", "app", credential, "--yes")
            await until(lambda: app.get(token, "/v1.0/echo/3") == 401)
            refused = await asyncio.to_thread(app.ask_for_token)
            assert (refused.status_code, refused.json()["error"]) == (401, "invalid_client")
            await until(lambda: "certificateRefused" in {each["reason"] for each in events(system)})
            stored = events(system)
            issued = [each for each in stored if each["reason"] == "tokenIssued"]
            assert {each["credentialId"] for each in issued} == {credential}
            served = [each for each in stored if each["status"] == 200 and each["method"] == "GET"]
            assert {each["path"] for each in served} >= {"/v1.0/echo/1", "/v1.0/echo/2"}
            assert {each["traceId"] for each in served} == {TRACE}
            await until(lambda: {each["id"] for each in served} <= _requests(collector))
        assert collector.problems == []
        spans = {attributes(each)["graphward.request_id"]: each for each in collector.spans}
        for each in served:
            span = spans[each["id"]]
            assert (span["traceId"], span["parentSpanId"]) == (TRACE, CALLER)
            assert attributes(span)["url.path"] == each["path"]


def _requests(collector: FakeTraceCollector) -> set[str]:
    return {attributes(each)["graphward.request_id"] for each in collector.spans}
