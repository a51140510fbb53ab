"""Tests of the fakes themselves, because other tests rely on them."""

from __future__ import annotations

import asyncio
import base64
import gzip
import hashlib
import json
import signal
import ssl
import sys
import time
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlencode

import aiohttp
import jwt
import pytest
from cryptography.hazmat.primitives import hashes

from controlplane.model.metadata import parse
from tests.fakes.certificates import CertificateAuthority, client_certificate
from tests.fakes.examples import examples
from tests.fakes.graph import FakeGraph, pattern_bytes
from tests.fakes.identity import ASSERTION_TYPE, CLIENT_ID, CLIENT_SECRET, TENANT, FakeIdentityProvider, Mode
from tests.fakes.lifeline import end_with_parent
from tests.fakes.server import Fake, RawResponse

TOKEN = "upstream-token"
AUTHORIZED = f"Authorization: Bearer {TOKEN}\r\n"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> CertificateAuthority:
    return CertificateAuthority(tmp_path_factory.mktemp("ca"))


@pytest.fixture
async def graph() -> AsyncIterator[FakeGraph]:
    async with FakeGraph(accepts=TOKEN.__eq__) as graph:
        yield graph


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    head: str
    body: bytes

    def header(self, name: str) -> str:
        prefix = f"\r\n{name}: ".lower()
        at = self.head.lower().find(prefix)
        return "" if at < 0 else self.head[at + len(prefix) :].split("\r\n", 1)[0]

    @property
    def json(self) -> Any:
        return json.loads(self.body)


async def send(fake: Fake, data: bytes, tls: ssl.SSLContext | None = None) -> bytes:
    """Send `data` to the fake server, and return everything until the server closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", fake.port, ssl=tls)
    try:
        writer.write(data)
        return await reader.read()
    finally:
        writer.close()


def reply(data: bytes) -> Reply:
    head, _, body = data.partition(b"\r\n\r\n")
    text = head.decode()
    if "transfer-encoding: chunked" in text.lower():
        body = unchunked(body)
    return Reply(int(text.split(" ")[1]), text, body)


def unchunked(data: bytes) -> bytes:
    body = b""
    while data:
        size, _, rest = data.partition(b"\r\n")
        length = int(size, 16)
        body, data = body + rest[:length], rest[length + 2 :]
        if length == 0:
            return body
    raise AssertionError("the last chunk is missing")


async def ask(
    fake: Fake, target: str, method: str = "GET", headers: str = AUTHORIZED, body: bytes = b""
) -> Reply:
    length = f"Content-Length: {len(body)}\r\n" if body else ""
    head = f"{method} {target} HTTP/1.1\r\nHost: graph.test\r\nConnection: close\r\n{headers}{length}\r\n"
    return reply(await send(fake, head.encode() + body))


class TestGraph:
    async def test_every_published_example_is_served(self, graph: FakeGraph) -> None:
        first_of = {(each.method, each.target): each for each in reversed(examples())}
        assert len(examples()) == 60
        for each in first_of.values():
            response = await ask(graph, each.target, each.method, body=each.request_body)
            assert response.status == each.status, each.id
            expected = each.response_body.replace(b"https://graph.microsoft.com", graph.base_url.encode())
            assert response.body == expected, each.id

    async def test_a_request_is_kept_byte_for_byte(self, graph: FakeGraph) -> None:
        head = b"PUT /v1.0/upload/a%2Fb HTTP/1.1\r\nHost: h\r\nX-odd:  two  \r\nconnection: close\r\n"
        head += AUTHORIZED.encode() + b"transfer-encoding: chunked\r\n\r\n"
        body = b"3;x=y\r\nabc\r\n2\r\nde\r\n0\r\nTrailer: t\r\n\r\n"
        response = reply(await send(graph, head + body))
        assert response.json == {"bytes": 5, "sha256": hashlib.sha256(b"abcde").hexdigest()}
        (received,) = await graph.received(1)
        assert received.head == head
        assert received.wire_body == body
        assert received.body == b"abcde"
        assert (received.method, received.target) == ("PUT", "/v1.0/upload/a%2Fb")
        assert received.headers[1] == ("X-odd", "two")

    @pytest.mark.parametrize(
        "fields",
        [
            "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n",
            "Content-Length: 1\r\nContent-Length: 1\r\n",
            "Content-Length: +1\r\n",
            "Content-Length: 1_0\r\n",
            "Transfer-Encoding: gzip, chunked\r\n",
            "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
            "Transfer-Encoding : chunked\r\n",
            " folded: yes\r\n",
            "Host: another\r\n",
        ],
    )
    async def test_ambiguous_framing_is_marked_and_refused(self, graph: FakeGraph, fields: str) -> None:
        response = await ask(graph, "/v1.0/upload", "POST", AUTHORIZED + fields)
        assert response.status == 400
        (received,) = await graph.received(1)
        assert received.malformed

    async def test_a_body_that_is_cut_off_is_not_complete(self, graph: FakeGraph) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", graph.port)
        writer.write(
            f"PUT /v1.0/upload HTTP/1.1\r\nHost: h\r\n{AUTHORIZED}Content-Length: 10\r\n\r\nhalf".encode()
        )
        writer.write_eof()
        assert await reader.read() == b""
        writer.close()
        (received,) = await graph.received(1)
        assert (received.complete, bytes(received.body)) == (False, b"half")

    async def test_half_a_head_is_kept_too(self, graph: FakeGraph) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", graph.port)
        writer.write(b"GET / HT")
        writer.write_eof()
        assert await reader.read() == b""
        writer.close()
        assert graph.fragments == [b"GET / HT"]

    @pytest.mark.parametrize(
        "headers", ["", "Authorization: Bearer wrong\r\n", f"Authorization: Basic {TOKEN}\r\n"]
    )
    async def test_only_the_upstream_token_is_taken(self, graph: FakeGraph, headers: str) -> None:
        response = await ask(graph, "/v1.0/users", headers=headers)
        assert response.status == 401
        assert response.json["error"]["code"] == "InvalidAuthenticationToken"

    async def test_responses_look_like_the_real_service(self, graph: FakeGraph) -> None:
        headers = f"{AUTHORIZED}Accept-Encoding: gzip, br\r\nclient-request-id: abc\r\n"
        response = await ask(graph, "/v1.0/users/ada@contoso.com", headers=headers)
        assert response.header("Content-Encoding") == "gzip"
        assert response.header("Transfer-Encoding") == "chunked"
        assert response.header("client-request-id") == "abc"
        assert response.header("request-id")
        assert response.header("x-ms-ags-diagnostic")
        assert "odata.metadata=minimal" in response.header("Content-Type")
        assert json.loads(gzip.decompress(response.body))["displayName"] == "Ada Lovelace"

    async def test_plain_responses_have_a_length_and_no_coding(self) -> None:
        async with FakeGraph(realistic=False) as graph:
            response = await ask(graph, "/v1.0/users/ada@contoso.com", headers="Accept-Encoding: gzip\r\n")
            assert int(response.header("Content-Length")) == len(response.body)
            assert not response.header("Content-Encoding")

    async def test_pages_lead_to_all_users_once(self, graph: FakeGraph) -> None:
        target, names = "/v1.0/users?$top=5", []
        for _ in range(3):
            page = (await ask(graph, target)).json
            names += [each["displayName"] for each in page["value"]]
            target = page.get("@odata.nextLink", "").removeprefix(graph.base_url)
        assert target == ""
        assert len(names) == len(set(names)) == 12

    async def test_a_property_has_its_own_path_and_raw_value(self, graph: FakeGraph) -> None:
        response = await ask(graph, "/v1.0/users('ada@contoso.com')/mobilePhone/$value")
        assert response.body == b"+47 900 00 000"
        response = await ask(graph, "/v1.0/users/ada%40contoso.com/MobilePhone")
        assert response.json["value"] == "+47 900 00 000"

    async def test_an_unchanged_resource_is_304(self, graph: FakeGraph) -> None:
        etag = (await ask(graph, "/v1.0/users/ada@contoso.com")).header("ETag")
        response = await ask(
            graph, "/v1.0/users/ada@contoso.com", headers=f"{AUTHORIZED}If-None-Match: {etag}\r\n"
        )
        assert (response.status, response.body) == (304, b"")

    async def test_head_has_no_body(self, graph: FakeGraph) -> None:
        data = await send(
            graph, f"HEAD /v1.0/users HTTP/1.1\r\nHost: h\r\n{AUTHORIZED}Connection: close\r\n\r\n".encode()
        )
        assert data.startswith(b"HTTP/1.1 200 ")
        assert data.endswith(b"\r\n\r\n")

    async def test_echo_shows_the_head_but_never_the_credential(self, graph: FakeGraph) -> None:
        response = await ask(graph, "/v1.0/echo", "POST", f"X-A: 1\r\n{AUTHORIZED}X-B: 2\r\n", b"body")
        assert "X-A: 1\r\nAuthorization: (not shown)\r\nX-B: 2\r\n" in response.json["head"]
        assert response.json["bodyBytes"] == 4

    @pytest.mark.parametrize("query", ["", "?chunked"])
    async def test_any_number_of_bytes_streams(self, graph: FakeGraph, query: str) -> None:
        response = await ask(graph, f"/v1.0/bytes/200000{query}")
        assert response.body == b"".join(pattern_bytes(200_000))
        assert len(response.body) == 200_000

    @pytest.mark.parametrize("status", [200, 201, 204, 304, 400, 404, 429, 500, 503, 504, 599])
    async def test_any_status_can_be_had(self, graph: FakeGraph, status: int) -> None:
        response = await ask(graph, f"/v1.0/status/{status}?retryAfter=7")
        assert response.status == status
        assert response.header("Retry-After") == "7"

    async def test_an_interim_response_comes_before_the_final(self, graph: FakeGraph) -> None:
        data = await send(
            graph,
            f"GET /v1.0/status/103 HTTP/1.1\r\nHost: h\r\n{AUTHORIZED}Connection: close\r\n\r\n".encode(),
        )
        interim, _, final = data.partition(b"\r\n\r\n")
        assert interim.startswith(b"HTTP/1.1 103 ")
        assert final.startswith(b"HTTP/1.1 200 ")

    async def test_expect_is_responded_before_the_body(self, graph: FakeGraph) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", graph.port)
        head = f"PUT /v1.0/upload HTTP/1.1\r\nHost: h\r\n{AUTHORIZED}Connection: close\r\n"
        writer.write(f"{head}Expect: 100-continue\r\nContent-Length: 2\r\n\r\n".encode())
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"ok")
        assert reply(await reader.read()).status == 201
        writer.close()

    async def test_a_gate_holds_a_request_until_it_opens(self, graph: FakeGraph) -> None:
        waiting = asyncio.create_task(ask(graph, "/v1.0/gate/first"))
        await graph.received(1)
        assert not waiting.done()
        graph.gate("first").set()
        assert (await waiting).status == 200

    async def test_exact_bytes_can_stand_in_for_a_response(self, graph: FakeGraph) -> None:
        graph.raw_responses["/v1.0/odd"] = RawResponse(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\ncut")
        data = await send(graph, f"GET /v1.0/odd HTTP/1.1\r\nHost: h\r\n{AUTHORIZED}\r\n".encode())
        assert data.endswith(b"\r\n\r\ncut")

    async def test_links_to_follow_have_its_own_address(self, graph: FakeGraph) -> None:
        assert (
            (await ask(graph, "/v1.0/redirect")).header("Location").startswith(f"{graph.base_url}/v1.0/users")
        )
        assert (
            (await ask(graph, "/v1.0/operations", "POST"))
            .header("Operation-Location")
            .startswith(graph.base_url)
        )

    async def test_parts_of_a_batch_are_responded_by_the_same_table(self, graph: FakeGraph) -> None:
        parts = [
            {"id": "1", "method": "GET", "url": "/users/ada@contoso.com"},
            {"id": "2", "method": "GET", "url": "/users/nobody@contoso.com"},
            {"id": "3", "method": "GET", "url": "/users/alan@contoso.com", "dependsOn": ["2"]},
            {"id": "4", "method": "GET", "url": "/users/ada@contoso.com/photo/$value"},
        ]
        body = json.dumps({"requests": parts}).encode()
        responses = {
            each["id"]: each
            for each in (await ask(graph, "/v1.0/$batch", "POST", body=body)).json["responses"]
        }
        assert [responses[id_]["status"] for id_ in "1234"] == [200, 404, 424, 200]
        assert responses["1"]["body"]["displayName"] == "Ada Lovelace"
        assert isinstance(responses["4"]["body"], str)

    async def test_connections_are_kept_and_counted(self, graph: FakeGraph) -> None:
        one = f"GET /v1.0/users HTTP/1.1\r\nHost: h\r\n{AUTHORIZED}\r\n"
        last = one.replace("Host: h", "Host: h\r\nConnection: close")
        data = await send(graph, (one + last).encode())
        assert data.count(b"HTTP/1.1 200 ") == 2
        assert graph.connections_opened == 1


async def test_graph_shows_its_schema_to_a_caller_without_a_token(graph: FakeGraph) -> None:
    shown = await ask(graph, "/v1.0/$metadata", headers="")
    assert (shown.status, shown.header("Content-Type")) == (200, "application/xml")
    roots = {root.name for root in parse(shown.body).roots}
    assert {"users", "groups", "me"} <= roots
    assert (await ask(graph, "/v1.0/users", headers="")).status == 401


async def test_the_graph_runs_as_a_process_and_records_to_a_file(
    authority: CertificateAuthority, tmp_path: Path
) -> None:
    server, record = authority.server(), tmp_path / "received.ndjson"
    process = await asyncio.create_subprocess_exec(
        *[sys.executable, "-m", "tests.fakes.graph", "--token", TOKEN, "--record", str(record)],
        *["--cert", str(server.cert_file), "--key", str(server.key_file)],
        stdout=asyncio.subprocess.PIPE,
        preexec_fn=end_with_parent,
    )
    assert process.stdout is not None
    try:
        ready = (await process.stdout.readline()).decode()
        assert ready.startswith("ready https://127.0.0.1:")
        port = int(ready.rsplit(":", 1)[1])
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=authority.client_context())
        writer.write(f"GET /v1.0/users HTTP/1.1\r\nHost: h\r\n{AUTHORIZED}Connection: close\r\n\r\n".encode())
        assert (await reader.read()).startswith(b"HTTP/1.1 200 ")
        writer.close()
        assert json.loads(record.read_text())["target"] == "/v1.0/users"
    finally:
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0


class TestIdentity:
    FORM: ClassVar[dict[str, str]] = {
        "grant_type": "client_credentials",
        "client_id": CLIENT_ID,
        "client_secret": CLIENT_SECRET,
        "scope": "https://graph.microsoft.com/.default",
    }

    async def acquire(self, identity: FakeIdentityProvider, **changes: str) -> Reply:
        body = urlencode({**self.FORM, **changes}).encode()
        return await ask(identity, f"/{TENANT}/oauth2/v2.0/token", "POST", "", body)

    async def test_the_right_credentials_get_a_new_token_each_time(self) -> None:
        async with FakeIdentityProvider(lifetime_seconds=60) as identity:
            first, second = await self.acquire(identity), await self.acquire(identity)
            assert first.json["expires_in"] == 60
            assert first.json["token_type"] == "Bearer"
            assert first.json["access_token"] != second.json["access_token"]
            assert identity.acquisitions == 2
            assert identity.tokens == [first.json["access_token"], second.json["access_token"]]

    @pytest.mark.parametrize(
        ("changes", "status", "error"),
        [
            ({"client_secret": "wrong"}, 401, "invalid_client"),
            ({"client_id": "wrong"}, 401, "invalid_client"),
            ({"grant_type": "password"}, 400, "invalid_request"),
            ({"scope": "User.Read"}, 400, "invalid_request"),
        ],
    )
    async def test_anything_else_gets_none(self, changes: dict[str, str], status: int, error: str) -> None:
        async with FakeIdentityProvider() as identity:
            response = await self.acquire(identity, **changes)
            assert (response.status, response.json["error"]) == (status, error)
            assert identity.acquisitions == 0

    async def test_a_token_ends_and_can_be_revoked(self) -> None:
        now = 1000.0
        async with FakeIdentityProvider(lifetime_seconds=60, clock=lambda: now) as identity:
            token = (await self.acquire(identity)).json["access_token"]
            assert identity.accepts(token)
            now = 1060.0
            assert not identity.accepts(token)
            token = (await self.acquire(identity)).json["access_token"]
            identity.revoke_all()
            assert not identity.accepts(token)
            assert not identity.accepts("made up")

    @pytest.mark.parametrize(
        ("mode", "start"),
        [
            ("down", b""),
            ("garbage", b"HTTP/1.1 200 "),
            ("empty", b"HTTP/1.1 200 "),
            ("throttled", b"HTTP/1.1 429 "),
            ("error", b"HTTP/1.1 503 "),
        ],
    )
    async def test_it_fails_as_told_and_recovers(self, mode: Mode, start: bytes) -> None:
        async with FakeIdentityProvider() as identity:
            body = urlencode(self.FORM).encode()
            head = f"POST /{TENANT}/oauth2/v2.0/token HTTP/1.1\r\nHost: h\r\nConnection: close\r\n"
            data = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
            identity.mode = mode
            response = await send(identity, data)
            assert response[: len(start) or None] == start
            assert identity.acquisitions == 0
            identity.mode = "ok"
            assert (await self.acquire(identity)).status == 200

    async def test_a_hanging_provider_responses_nobody(self) -> None:
        async with FakeIdentityProvider() as identity:
            identity.mode = "hang"
            waiting = asyncio.create_task(self.acquire(identity))
            await identity.received(1)
            assert not waiting.done()
            waiting.cancel()

    async def test_discovery_names_its_own_addresses(self) -> None:
        async with FakeIdentityProvider() as identity:
            document = (await ask(identity, f"/{TENANT}/v2.0/.well-known/openid-configuration")).json
            assert document["token_endpoint"] == f"{identity.base_url}/{TENANT}/oauth2/v2.0/token"


async def test_clients_that_trust_the_authority_reach_a_server_by_address(
    authority: CertificateAuthority,
) -> None:
    async with FakeGraph(tls=authority.server()) as graph:
        data = await send(
            graph,
            b"GET /v1.0/users HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
            authority.client_context(),
        )
        assert data.startswith(b"HTTP/1.1 200 ")
        with pytest.raises(ssl.SSLCertVerificationError):
            await send(graph, b"", ssl.create_default_context())


@pytest.mark.parametrize(
    "what",
    [
        "good",
        "replayed",
        "unregistered",
        "another's signature",
        "RS256",
        "no thumbprint",
        "in the past",
        "long-lived",
        "another audience",
        "another issuer",
        "another subject",
        "with a secret",
        "without jti",
    ],
)
async def test_the_identity_provider_takes_no_assertion_but_a_proper_one(what: str) -> None:
    registered, other = client_certificate(), client_certificate()
    async with FakeIdentityProvider() as identity:
        identity.certificates.append(registered.certificate)
        now = int(time.time()) - (1000 if what == "in the past" else 0)
        url = f"{identity.base_url}/{TENANT}/oauth2/v2.0/token"
        claims: dict[str, object] = {
            "aud": "https://login.example/" if what == "another audience" else url,
            "iss": "someone" if what == "another issuer" else CLIENT_ID,
            "sub": "someone" if what == "another subject" else CLIENT_ID,
            "jti": str(uuid.uuid4()),
            "iat": now,
            "nbf": now,
            "exp": now + (3600 if what == "long-lived" else 300),
        }
        if what == "without jti":
            del claims["jti"]
        shown = other if what == "unregistered" else registered
        signing = other if what == "another's signature" else shown
        thumbprint = base64.urlsafe_b64encode(shown.certificate.fingerprint(hashes.SHA256()))
        headers = {} if what == "no thumbprint" else {"x5t#S256": thumbprint.decode().rstrip("=")}
        algorithm = "RS256" if what == "RS256" else "PS256"
        form = {
            "grant_type": "client_credentials",
            "client_id": CLIENT_ID,
            "scope": "https://graph.microsoft.com/.default",
            "client_assertion_type": ASSERTION_TYPE,
            "client_assertion": jwt.encode(claims, signing.pem, algorithm=algorithm, headers=headers),
        }
        if what == "with a secret":
            form["client_secret"] = CLIENT_SECRET
        async with aiohttp.ClientSession() as session:
            statuses = []
            for _ in range(2 if what == "replayed" else 1):
                async with session.post(url, data=form) as response:
                    statuses.append(response.status)
        assert statuses == {"good": [200], "replayed": [200, 401]}.get(what, [401])
        assert len(identity.refusals) == (0 if what == "good" else 1)
