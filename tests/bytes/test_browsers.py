"""Tests of browser requests and user tokens: the responses match connect-an-application.md."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from tests.bytes.data_path import data_path, ok, responding

PREFLIGHT = (
    b"Host: p\r\nOrigin: https://page.example\r\nAccess-Control-Request-Method: GET\r\n"
    b"Access-Control-Request-Headers: authorization\r\n\r\n"
)


@pytest.mark.parametrize(("target", "status"), [(b"/v1.0/users", 401), (b"/proxy/token", 405)])
async def test_a_preflight_is_refused_and_allows_no_origin(
    tmp_path: Path, target: bytes, status: int
) -> None:
    async with data_path(responding(ok(b"{}")), tmp_path) as proxy:
        reply = await proxy.ask(b"OPTIONS %b HTTP/1.1\r\n%b" % (target, PREFLIGHT))
        assert reply.status == status
        assert b"access-control-" not in reply.head.lower()
        assert proxy.upstream.received == []
        assert proxy.events() == []


async def test_options_with_a_token_is_forwarded_and_responded_like_any_request(tmp_path: Path) -> None:
    response = ok(b"{}", b"Access-Control-Allow-Origin: *")
    async with data_path(responding(response), tmp_path) as proxy:
        reply = await proxy.ask(proxy.request("/v1.0/users", "OPTIONS"))
        assert (reply.status, reply.value("access-control-allow-origin")) == (200, "*")
        assert [event["method"] for event in proxy.events()] == ["OPTIONS"]


async def test_a_token_of_the_identity_provider_is_refused_as_such(tmp_path: Path) -> None:
    def encoded(part: dict[str, str]) -> str:
        return base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")

    header = {"typ": "JWT", "nonce": "n", "alg": "RS256", "x5t": "k", "kid": "k"}
    token = f"{encoded(header)}.{encoded({'aud': 'https://graph.microsoft.com', 'scp': 'Mail.Read'})}.c2ln"
    async with data_path(responding(ok(b"{}")), tmp_path) as proxy:
        raw = f"GET /v1.0/me HTTP/1.1\r\nHost: p\r\nAuthorization: Bearer {token}\r\n\r\n"
        reply = await proxy.ask(raw.encode())
        assert reply.status == 401
        assert reply.json()["error"]["message"] == "Graphward: The access token was not issued by this proxy."
        assert proxy.upstream.received == []


async def test_another_scheme_is_named_as_the_fault(tmp_path: Path) -> None:
    async with data_path(responding(ok(b"{}")), tmp_path) as proxy:
        reply = await proxy.ask(b"GET /v1.0/a HTTP/1.1\r\nHost: p\r\nAuthorization: Basic eDp5\r\n\r\n")
        assert (
            reply.json()["error"]["message"]
            == "Graphward: The Authorization header field does not contain a Bearer token."
        )


@pytest.mark.parametrize(
    "grant",
    ["authorization_code", "refresh_token", "urn:ietf:params:oauth:grant-type:jwt-bearer", "device_code"],
)
async def test_no_grant_of_a_user_is_served(tmp_path: Path, grant: str) -> None:
    form = f"grant_type={grant}&client_id=client-1&code=c".encode()
    head = (
        b"POST /adfs/oauth2/v2.0/token HTTP/1.1\r\nHost: p\r\n"
        b"Content-Type: application/x-www-form-urlencoded\r\nContent-Length: %d\r\n\r\n" % len(form)
    )
    async with data_path(responding(ok(b"{}")), tmp_path) as proxy:
        reply = await proxy.ask(head + form)
        assert (reply.status, reply.json()["error"]) == (400, "unsupported_grant_type")
        assert (await proxy.ask(b"GET /adfs/oauth2/v2.0/authorize HTTP/1.1\r\nHost: p\r\n\r\n")).status == 401


async def test_me_is_forwarded_with_the_application_s_credential(tmp_path: Path) -> None:
    async with data_path(responding(ok(b"{}")), tmp_path) as proxy:
        assert (await proxy.ask(proxy.request("/v1.0/me"))).status == 200
        [head] = proxy.upstream.heads
        assert head.startswith(b"GET /v1.0/me HTTP/1.1\r\n")
        assert proxy.token.encode() not in head
