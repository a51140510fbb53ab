"""Tests of client certificates (RFC 8705): which client gets a token, and where the client may use it."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import datetime
import json
import shutil
import socket
import ssl
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from proxy.config.tls import client_tls, server_tls
from proxy.ipc import counters
from proxy.rules.credentials import Certificate
from proxy.rules.snapshot import App, Snapshot, write_snapshot
from proxy.server.callers.client_certificates import ClientCertificates, thumbprint_of
from proxy.server.client.tls_listener import TlsListener
from proxy.server.router import handler_for
from proxy.startup.check import unusable_credentials
from proxy.startup.settings import load
from proxy.wire.audit_event import CREDENTIAL_PROBLEMS
from proxy.wire.models import SyncCertificate, SyncPublicKey, SyncSecret
from tests.bytes.data_path import (
    CLIENT_ID,
    CLIENT_SECRET,
    DataPath,
    Reply,
    data_path,
    ok,
    read_reply,
    responding,
    until,
    without_ids,
)
from tests.fakes.certificates import CertificateAuthority

OTHER_ID = "client-2"
NOW = datetime.datetime.now(datetime.UTC)


@dataclass
class Client:
    """A client certificate with its key, and the TLS session that new connections of the client resume."""

    authority: CertificateAuthority
    file: Path
    der: bytes
    version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3
    session: ssl.SSLSession | None = None
    context: ssl.SSLContext = field(init=False)

    def __post_init__(self) -> None:
        self.context = client_tls(self.authority.ca_file)
        self.context.load_cert_chain(self.file)
        self.context.maximum_version = self.version

    def credential(self, id_: str = "crd-1", ends_at: float | None = None) -> Certificate:
        return Certificate(id_, ends_at, self.der, thumbprint_of(self.der))


@dataclass
class Issuer:
    """Issuer of client certificates that are self-signed or from an unknown authority."""

    authority: CertificateAuthority
    key: ec.EllipticCurvePrivateKey = field(default_factory=lambda: ec.generate_private_key(ec.SECP256R1()))
    made: int = 0

    def client(self, days: tuple[int, int] = (-1, 30), issuer: str = "", **options: Any) -> Client:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "app")])  # the same name for all of them
        by = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer or "app")])
        certificate = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(by)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(NOW + datetime.timedelta(days=days[0]))
            .not_valid_after(NOW + datetime.timedelta(days=days[1]))
            .sign(self.key if issuer else key, hashes.SHA256())
        )
        self.made += 1
        file = self.authority.directory / f"client-{self.made}.pem"
        file.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
            + certificate.public_bytes(serialization.Encoding.PEM)
        )
        return Client(self.authority, file, certificate.public_bytes(serialization.Encoding.DER), **options)


@dataclass
class Connection:
    """An open TLS connection of a client to the proxy."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, data: bytes) -> Reply:
        self.writer.write(data)
        return await read_reply(self.reader)

    async def ask_for_token(self, **form: str) -> Reply:
        fields = {"grant_type": "client_credentials", "client_id": CLIENT_ID} | form
        body = "&".join(f"{name}={value.replace(' ', '+')}" for name, value in fields.items()).encode()
        head = (
            "POST /proxy/token HTTP/1.1\r\nHost: proxy.example\r\n"
            f"Content-Type: application/x-www-form-urlencoded\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        return await self.send(head.encode() + body)

    async def token(self) -> str:
        reply = await self.ask_for_token()
        assert reply.status == 200, reply.body
        token: str = reply.json()["access_token"]
        return token

    async def use(self, token: str) -> Reply:
        return await self.send(request_with(token))


@dataclass
class Served:
    """The data path behind a TLS listener that requests client certificates."""

    proxy: DataPath
    issuer: Issuer
    port: int

    async def register(self, *credentials: Certificate, others: tuple[Certificate, ...] = ()) -> None:
        """Activate rules with `credentials` for one application, and the credentials `others` for another."""
        book = self.proxy.context.rulebook
        caller = replace(book.callers[CLIENT_ID], credentials=credentials)
        other = replace(caller, app_id="app-2", client_id=OTHER_ID, credentials=others)
        book = replace(book, callers={CLIENT_ID: caller, OTHER_ID: other})
        await self.proxy.context.client_certificates.trust(book)
        self.proxy.context.use(book)

    @contextlib.asynccontextmanager
    async def connect(self, client: Client | None) -> AsyncIterator[Connection]:
        context = client_tls(self.issuer.authority.ca_file) if client is None else client.context
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, ssl=context)
        try:
            yield Connection(reader, writer)
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    def last_event(self) -> dict[str, Any]:
        return self.proxy.events()[-1]


@contextlib.asynccontextmanager
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    authority = CertificateAuthority(tmp_path / "certificates")
    certificate = authority.server()
    tls = server_tls(certificate.cert_file, certificate.key_file, ask_for_certificate=True)
    async with data_path(responding(ok(b"{}")), tmp_path) as proxy:
        proxy.context.client_certificates = ClientCertificates(tls)
        listening = socket.create_server(("127.0.0.1", 0), backlog=64)
        port = listening.getsockname()[1]
        listener = TlsListener(proxy.context, handler_for, listening, tls, 5)
        try:
            yield Served(proxy, Issuer(authority), port)
        finally:
            listener.close()


def request_with(token: str, scheme: str = "Bearer") -> bytes:
    return f"GET /v1.0/users HTTP/1.1\r\nHost: p\r\nAuthorization: {scheme} {token}\r\n\r\n".encode()


def claims_of(token: str) -> dict[str, Any]:
    payload = token.split(".")[1]
    claims: dict[str, Any] = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    return claims


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("issuer", ["", "an authority of the company"])
async def test_a_token_is_bound_to_the_certificate_that_it_was_given_for(
    tmp_path: Path, version: ssl.TLSVersion, issuer: str
) -> None:
    async with served(tmp_path) as proxy:
        own = proxy.issuer.client(issuer=issuer, version=version)
        other = proxy.issuer.client(version=version)
        await proxy.register(own.credential(), others=(other.credential("crd-2"),))
        async with proxy.connect(own) as connection:
            token = await connection.token()
            event = proxy.last_event()
            assert (event["reason"], event["credentialId"]) == ("tokenIssued", "crd-1")
            assert (await connection.use(token)).status == 200
            assert (await connection.use(token)).status == 200
        claims = claims_of(token)
        assert (claims["cid"], claims["cnf"]) == ("crd-1", {"x5t#S256": thumbprint_of(own.der)})
        async with proxy.connect(own) as connection:
            assert (await connection.use(token)).status == 200
        assert len(proxy.proxy.upstream.heads) == 3
        for thief in (other, None):
            async with proxy.connect(thief) as connection:
                reply = await connection.use(token)
                assert (reply.status, reply.json()["error"]["code"]) == (401, "InvalidAuthenticationToken")
                event = proxy.last_event()
                assert (event["reason"], event["credentialProblem"]) == ("invalidToken", "binding")
                assert (event["credentialId"], event["clientId"]) == ("crd-1", CLIENT_ID)
        for without_tls in (request_with(token), request_with(token, scheme="bearer ")):
            assert (await proxy.proxy.ask(without_tls)).status == 401
        refused = counters.CREDENTIAL_PROBLEMS_FIRST + list(CREDENTIAL_PROBLEMS).index("binding")
        assert proxy.proxy.context.counters.values[refused] == 4
        assert len(proxy.proxy.upstream.heads) == 3


async def test_a_certificate_that_is_not_the_applications_own_proves_nothing(tmp_path: Path) -> None:
    async with served(tmp_path) as proxy:
        own, other = proxy.issuer.client(), proxy.issuer.client()
        old, early = proxy.issuer.client((-9, -1)), proxy.issuer.client((1, 9))
        ended = proxy.issuer.client()
        await proxy.register(
            own.credential(), old.credential("crd-old"), early.credential("crd-early"),
            ended.credential("crd-ended", ends_at=NOW.timestamp() - 1), others=(other.credential("crd-2"),),
        )  # fmt: skip
        for client, problem, credential_id in (
            (other, "certificate", None),
            (old, "expired", "crd-old"),
            (early, "notYetValid", "crd-early"),
            (ended, "ended", "crd-ended"),
            (None, "noCertificate", None),  # the case of a load balancer that terminates TLS
        ):
            async with proxy.connect(client) as connection:
                reply = await connection.ask_for_token()
                assert (reply.status, reply.json()["error"]) == (401, "invalid_client")
                event = proxy.last_event()
                assert (event["reason"], event["credentialProblem"]) == ("certificateRefused", problem)
                assert event.get("credentialId") == credential_id
                assert event["clientId"] == CLIENT_ID
        async with proxy.connect(None) as connection:
            known, unknown = (
                await connection.ask_for_token(),
                await connection.ask_for_token(client_id="nobody"),
            )
            assert without_ids(known) == without_ids(unknown)
        async with proxy.connect(own) as connection:
            known = await connection.ask_for_token(client_id=OTHER_ID)
            unknown = await connection.ask_for_token(client_id="nobody")
            assert (known.status, without_ids(known)) == (unknown.status, without_ids(unknown))
            assert known.json()["error_description"] == "The client certificate is not valid."
            assert (await connection.ask_for_token()).status == 200
        assert proxy.proxy.upstream.heads == []


async def test_a_secret_over_a_connection_with_a_certificate_gives_an_unbound_token(tmp_path: Path) -> None:
    async with served(tmp_path) as proxy:
        own = proxy.issuer.client()
        await proxy.register(own.credential())
        for client in (own, None):
            async with proxy.connect(client) as connection:
                reply = await connection.ask_for_token(client_secret=CLIENT_SECRET)
                assert reply.status == 200
                token = reply.json()["access_token"]
                assert not {"cid", "cnf"} & claims_of(token).keys()
        assert (await proxy.proxy.ask(proxy.proxy.request())).status == 200
        async with proxy.connect(own) as connection:
            wrong = await connection.ask_for_token(client_secret="wrong")
            assert (wrong.status, proxy.last_event()["reason"]) == (401, "tokenRefused")


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_a_certificate_that_nobody_registered_is_told_to_its_client_and_the_operator(
    tmp_path: Path, version: ssl.TLSVersion, caplog: pytest.LogCaptureFixture
) -> None:
    refused = counters.CREDENTIAL_PROBLEMS_FIRST + list(CREDENTIAL_PROBLEMS).index("certificate")
    async with served(tmp_path) as proxy:
        unknown = proxy.issuer.client(version=version), proxy.issuer.client(issuer="other", version=version)
        for client in unknown:
            with pytest.raises(ssl.SSLError, match=r"(?i)alert.*unknown.ca"):
                async with proxy.connect(client) as connection:
                    await connection.token()
        assert proxy.proxy.context.counters.values[refused] == 2
        lines = [each.getMessage() for each in caplog.records if "client certificate" in each.getMessage()]
        assert lines == ["refused the client certificate of 127.0.0.1: no application has registered it"]
        own = proxy.issuer.client(version=version)
        await proxy.register(own.credential())
        async with proxy.connect(own) as connection:
            assert (await connection.use(await connection.token())).status == 200


async def test_certificates_come_and_go_with_the_rules(tmp_path: Path) -> None:
    async with served(tmp_path) as proxy:
        first, second = proxy.issuer.client(), proxy.issuer.client()
        await proxy.register(first.credential())
        async with proxy.connect(first) as open_before:
            token = await open_before.token()
            assert (await open_before.use(token)).status == 200
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                async with proxy.connect(second) as connection:
                    await connection.token()
                    pytest.fail("a certificate that nobody registered was taken")
            await proxy.register(second.credential("crd-2"))
            reply = await open_before.use(token)
            assert (reply.status, proxy.last_event()["reason"]) == (401, "invalidToken")
            assert (await open_before.ask_for_token()).status == 401
            event = proxy.last_event()
            assert (event["reason"], event["credentialProblem"]) == ("certificateRefused", "certificate")
        async with proxy.connect(second) as connection:
            assert (await connection.use(await connection.token())).status == 200
        async with proxy.connect(first) as connection:  # the anchor stays, and authenticates nobody
            assert (await connection.ask_for_token()).status == 401
        damaged = replace(first.credential("crd-3"), certificate=b"no certificate")
        await proxy.register(second.credential("crd-2"), damaged)
        async with proxy.connect(second) as connection:
            assert (await connection.ask_for_token()).status == 200


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_a_resumed_session_has_its_certificate_and_revives_no_removed_one(
    tmp_path: Path, version: ssl.TLSVersion
) -> None:
    async with served(tmp_path) as proxy:
        own = proxy.issuer.client(version=version)
        await proxy.register(own.credential())
        first, session = await asyncio.to_thread(_resumable, proxy.port, own, None, ask_for_token())
        assert first.startswith(b"HTTP/1.1 200 ")
        token = json.loads(first.partition(b"\r\n\r\n")[2])["access_token"]
        use = request_with(token)
        resumed, session = await asyncio.to_thread(_resumable, proxy.port, own, session, use)
        assert resumed.startswith(b"HTTP/1.1 200 ")
        await proxy.register()
        for request in (use, ask_for_token()):
            resumed, _ = await asyncio.to_thread(_resumable, proxy.port, own, session, request)
            assert resumed.startswith(b"HTTP/1.1 401 ")


def ask_for_token() -> bytes:
    body = f"grant_type=client_credentials&client_id={CLIENT_ID}".encode()
    return (
        b"POST /proxy/token HTTP/1.1\r\nHost: p\r\nContent-Type: application/x-www-form-urlencoded\r\n"
        b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
    )


def _resumable(
    port: int, client: Client, session: ssl.SSLSession | None, request: bytes
) -> tuple[bytes, ssl.SSLSession | None]:
    """Send a request over a blocking socket, because asyncio cannot resume a TLS session.

    Return the first bytes of the response, and the TLS session.
    """
    with (
        socket.create_connection(("127.0.0.1", port)) as plain,
        client.context.wrap_socket(plain, server_hostname="127.0.0.1", session=session) as secured,
    ):
        secured.settimeout(10)
        secured.sendall(request)
        response = secured.recv(65536)
        assert secured.session_reused is (session is not None)
        return response, secured.session


def test_check_tells_of_certificates_that_nobody_asks_for(tmp_path: Path) -> None:
    (tmp_path / "a.pem").write_text("PEM")
    (tmp_path / "proxy.toml").write_text(
        """
[Proxy]
CertFile = "a.pem"
KeyFile = "a.pem"
[Agent]
ApiKey = "key"
HmacSecret = "secret"
[RuleSync]
SaasBaseUrl = "https://control.example"
CachePath = "snapshot.json"
[Credentials]
Provider = "static"
AccessToken = "t"
"""
    )
    secret, certificate = SyncSecret("crd-1", "$argon2"), SyncCertificate("crd-2", b"DER", "thumbprint")
    key = SyncPublicKey("crd-3", {"kty": "EC"})
    for credentials, told in ((None, 0), ((secret,), 0), ((secret, certificate), 1), ((certificate, key), 2)):
        app = App("app-1", "org-1", "HR sync", "client-1", (), 1, None, True, credentials=credentials)
        snapshot = Snapshot("v", "2026-11-26T00:00:00Z", 1, 0.0, None, None, None, {}, (app,), ())
        write_snapshot(tmp_path / "snapshot.json", snapshot)
        given = {"Proxy__ClientCertificates": "optional", "Proxy__PublicBaseUrl": "https://p.example"}
        asked_for = load(tmp_path / "proxy.toml", given)
        assert list(unusable_credentials(asked_for)) == []
        warnings = list(unusable_credentials(load(tmp_path / "proxy.toml", {})))
        assert len(warnings) == told
        what = ("a client certificate, such as HR sync", "a public key, such as HR sync")
        assert all(
            f"1 application registered {each}" in line for each, line in zip(what, warnings, strict=False)
        )


async def test_discovery_names_the_method_only_if_certificates_are_asked_for(tmp_path: Path) -> None:
    path = b"GET /adfs/.well-known/openid-configuration HTTP/1.1\r\nHost: p\r\n\r\n"
    async with served(tmp_path) as proxy:
        document = (await proxy.proxy.ask(path)).json()
        assert "self_signed_tls_client_auth" in document["token_endpoint_auth_methods_supported"]
        assert document["tls_client_certificate_bound_access_tokens"] is True
        proxy.proxy.context.client_certificates = ClientCertificates(None)
        document = (await proxy.proxy.ask(path)).json()
        assert "self_signed_tls_client_auth" not in document["token_endpoint_auth_methods_supported"]
        assert "tls_client_certificate_bound_access_tokens" not in document


NODE = """
const https = require("https"), fs = require("fs");
const [port, file, ca, id] = process.argv.slice(1);
const pem = fs.readFileSync(file);
const agent = new https.Agent({ keepAlive: true, key: pem, cert: pem, ca: fs.readFileSync(ca) });
const ask = (method, path, headers, body) => new Promise((done, failed) => {
  const request = https.request({ host: "127.0.0.1", port, method, path, headers, agent }, (response) => {
    let text = "";
    response.on("data", (part) => (text += part));
    response.on("end", () => done([response.statusCode, text]));
  });
  request.on("error", failed);
  request.end(body);
});
(async () => {
  const form = { "Content-Type": "application/x-www-form-urlencoded" };
  const body = "grant_type=client_credentials&client_id=" + id;
  const [, token] = await ask("POST", "/proxy/token", form, body);
  const bearer = { Authorization: "Bearer " + JSON.parse(token).access_token };
  console.log((await ask("GET", "/v1.0/users", bearer))[0]);
  agent.destroy();
})();
"""
PYTHON = """
import sys, requests, httpx, ssl
port, file, ca, id_ = sys.argv[1:]
base, form = f"https://127.0.0.1:{port}", {"grant_type": "client_credentials", "client_id": id_}
token = requests.post(base + "/proxy/token", form, cert=file, verify=ca).json()["access_token"]
tls = ssl.create_default_context(cafile=ca)
tls.load_cert_chain(file)
print(httpx.get(base + "/v1.0/users", headers={"Authorization": f"Bearer {token}"}, verify=tls).status_code)
"""
CURL = """
token=$(curl -sS --cacert "$3" --cert "$2" -d grant_type=client_credentials -d "client_id=$4" \
  "https://127.0.0.1:$1/proxy/token" | sed 's/.*"access_token":"\\([^"]*\\)".*/\\1/')
curl -sS -o /dev/null -w '%{http_code}\\n' --cacert "$3" --cert "$2" -H "Authorization: Bearer $token" \
  "https://127.0.0.1:$1/v1.0/users"
"""


async def test_common_clients_work_with_a_certificate(tmp_path: Path) -> None:
    commands = {
        "python": (sys.executable, "-c", PYTHON),
        "node": (shutil.which("node"), "-e", NODE),
        "curl": (shutil.which("curl") and "sh", "-c", CURL, "sh"),
    }
    async with served(tmp_path) as proxy:
        own = proxy.issuer.client()
        await proxy.register(own.credential())
        given = (str(proxy.port), str(own.file), str(own.authority.ca_file), CLIENT_ID)
        for name, (program, *arguments) in commands.items():
            if not program:
                continue
            command = [program, *map(str, arguments), *given]
            running = await asyncio.create_subprocess_exec(
                *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
            )
            out, err = await running.communicate()
            assert (name, out.decode().strip()) == (name, "200"), err.decode()
        await until(lambda: not proxy.proxy.connections)
