"""A client written from the specification alone, with raw sockets and its own signatures."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import http.client
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlencode, urlsplit

from tests.fakes import commands
from tests.fakes.control_plane import API_KEY, HMAC_SECRET
from tests.fakes.lifeline import end_with_parent
from tests.fakes.server import RawResponse
from tests.fakes.system import Application, System
from tests.patience import PATIENCE_SECONDS

T = TypeVar("T")

ROOT = Path(__file__).parents[2]
RFC3339_MS = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{3}Z")
UUID7 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
FORM = ("Content-Type", "application/x-www-form-urlencoded")
JSON = ("Content-Type", "application/json")

Fields = Sequence[tuple[str, str]]


# HTTP


@dataclass(frozen=True)
class Reply:
    status: int
    headers: list[tuple[str, str]]
    body: bytes

    def value(self, name: str) -> str | None:
        return next((value for each, value in self.headers if each.lower() == name.lower()), None)

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> Any:
        return self.json["error"]


def head_bytes(method: str, target: str, fields: Fields) -> bytes:
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in fields)]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def send(
    base_url: str,
    method: str,
    target: str,
    fields: Fields = (),
    body: bytes = b"",
    *,
    context: ssl.SSLContext | None = None,
) -> Reply:
    """Send one request on a new connection.

    The request also gets Host and Content-Length, unless `fields` contains them.
    """
    names = {name.lower() for name, _ in fields}
    written = list(fields)
    if "host" not in names:
        written.insert(0, ("Host", urlsplit(base_url).netloc))
    if body and not names & {"content-length", "transfer-encoding"}:
        written.append(("Content-Length", str(len(body))))
    return send_bytes(base_url, head_bytes(method, target, written) + body, method, context=context)


def send_bytes(
    base_url: str, request: bytes, method: str = "GET", *, context: ssl.SSLContext | None = None
) -> Reply:
    with connected(base_url, context) as connection:
        connection.sendall(request)
        return read_reply(connection, method)


@contextmanager
def connected(base_url: str, context: ssl.SSLContext | None = None) -> Iterator[socket.socket]:
    address = urlsplit(base_url)
    host, port = address.hostname or "", address.port or 0
    with socket.create_connection((host, port), timeout=PATIENCE_SECONDS) as plain:
        if address.scheme == "http":
            yield plain
            return
        assert context is not None
        with context.wrap_socket(plain, server_hostname=host) as secured:
            yield secured


def read_reply(connection: socket.socket, method: str = "GET") -> Reply:
    response = http.client.HTTPResponse(connection, method=method)
    try:
        response.begin()
        return Reply(response.status, response.getheaders(), response.read())
    finally:
        response.close()


def until(condition: Callable[[], T], seconds: float = PATIENCE_SECONDS) -> T:
    """Call `condition` repeatedly until it returns a true value, and return this value."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.05)
    return value


# Signing by the text of the specification


def signature_of(secret: str, timestamp: str, body: bytes) -> str:
    return hmac.new(secret.encode(), timestamp.encode() + b"." + body, hashlib.sha256).hexdigest()


def response_signature_of(secret: str, request_signature: str, body: bytes) -> str:
    payload = b"response." + request_signature.encode() + b"." + body
    return hmac.new(secret.encode(), payload, hashlib.sha256).hexdigest()


@dataclass
class AgentClient:
    """Client of the agent API. The control plane treats this test client as a proxy."""

    base_url: str
    api_key: str
    secret: str
    proxy_id: str = ""
    last_signature: str = ""

    def signing(self, body: bytes, *, skew: int = 0) -> list[tuple[str, str]]:
        timestamp = str(int(time.time()) + skew)
        self.last_signature = signature_of(self.secret, timestamp, body)
        return [
            ("X-Api-Key", self.api_key),
            ("X-Timestamp", timestamp),
            ("X-Hmac-Signature", self.last_signature),
        ]

    def call(
        self,
        method: str,
        endpoint: str,
        body: bytes = b"",
        *,
        skew: int = 0,
        replace: Mapping[str, str | None] | None = None,
        extra: Fields = (),
    ) -> Reply:
        """Send a signed request to the agent API.

        `replace` changes or removes the header fields that carry the signature.
        """
        changed = replace or {}
        fields = [
            (name, changed.get(name) or value)
            for name, value in self.signing(body, skew=skew)
            if changed.get(name, "") is not None
        ]
        if method == "POST":
            fields += [JSON, ("Content-Length", str(len(body)))]
        return send(self.base_url, method, f"/api/v1/agent/{endpoint}", [*fields, *extra], body)

    def sync(self, *extra: tuple[str, str]) -> Reply:
        return self.call("GET", "sync", extra=extra)

    def audit(self, batch: Any) -> Reply:
        return self.call("POST", "audit", json.dumps(batch).encode())


def event(org_id: str, **members: Any) -> dict[str, Any]:
    """Return an audit event that has only the required members."""
    return {
        "id": str(uuid.uuid4()),
        "time": "2026-11-21T04:25:58.123Z",
        "orgId": org_id,
        "method": "GET",
        "path": "/v1.0/users",
        "status": 200,
        "verdict": "allow",
        **members,
    }


def batch(*events: dict[str, Any], batch_id: str = "") -> dict[str, Any]:
    return {"batchId": batch_id or str(uuid.uuid4()), "events": list(events)}


# Processes


class Process:
    """A program that the test starts in the same way as a user, and the file that receives its output."""

    def __init__(self, log: Path, *arguments: str, **environment: str) -> None:
        self.log = log
        with log.open("wb") as output:
            self.popen = subprocess.Popen(
                [sys.executable, "-m", *arguments],
                cwd=ROOT,
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=end_with_parent,
            )

    @property
    def output(self) -> str:
        return self.log.read_text("utf-8", "replace")

    def until_said(self, pattern: str) -> str:
        """Wait until the output of the program contains text that matches the pattern.

        Return the first capture group of the match.
        """

        def said() -> re.Match[str] | None:
            assert self.popen.poll() is None, self.output
            return re.search(pattern, self.output)

        found = until(said)
        assert found
        return found[1] if found.lastindex else found[0]

    def stop(self) -> int:
        self.popen.send_signal(signal.SIGTERM)
        try:
            return self.popen.wait(15)
        finally:
            self.kill()

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.popen.pid, signal.SIGKILL)
        self.popen.wait()


@contextmanager
def started(log: Path, *arguments: str, **environment: str) -> Iterator[Process]:
    process = Process(log, *arguments, **environment)
    try:
        yield process
    finally:
        process.kill()


def run(module: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )


class Operator:
    """The command line of the control plane, with the same settings file for each command."""

    def __init__(self, directory: Path, settings: str = "") -> None:
        self.directory = directory
        self.config = directory / "controlplane.toml"
        listeners = '[ControlPlane]\nListen = "127.0.0.1:0"\n[Metrics]\nListen = []\n[Console]\nListen = []\n'
        self.config.write_text(listeners + settings, "utf-8")

    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return commands.run("--config", str(self.config), *arguments, environment=environment)

    def json(self, *arguments: str) -> Any:
        done = self.run(*arguments, "--json")
        assert (done.returncode, done.stderr) == (0, "")
        return json.loads(done.stdout)

    def serving(self, **environment: str) -> Process:
        return Process(
            self.directory / "controlplane.log", "controlplane", "--config", str(self.config), **environment
        )

    def ruleset(self, text: str, org: str) -> Any:
        file = self.directory / f"{uuid.uuid4()}.yaml"
        file.write_text(text, "utf-8")
        return self.json("ruleset", "apply", str(file), "--org", org)

    def client(self, base_url: str, name: str, *orgs: str) -> AgentClient:
        flags = [flag for org in orgs for flag in ("--org", org)]
        keys = self.json("proxy", "add", name, *flags)
        return AgentClient(base_url, keys["apiKey"], keys["hmacSecret"], keys["proxyId"])


# Fakes, which run on another event loop so that tests can block


class Loop:
    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@dataclass
class Live:
    """A running test system, and an HTTP client with the tokens of the system's applications."""

    system: System
    loop: Loop
    tokens: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.context = self.system.client_context()
        self.context.set_alpn_protocols(["http/1.1"])

    @property
    def url(self) -> str:
        return self.system.proxy_url

    @property
    def host(self) -> str:
        return urlsplit(self.url).netloc

    def app(self, name: str) -> Application:
        return self.system.applications[name]

    def cli(self, *arguments: str) -> Any:
        return self.loop.run(self.system.cli(*arguments))

    def send(self, method: str, target: str, fields: Fields = (), body: bytes = b"") -> Reply:
        return send(self.url, method, target, fields, body, context=self.context)

    def form(
        self, form: Mapping[str, str], target: str = "/proxy/token", extra: Fields = (), method: str = "POST"
    ) -> Reply:
        return self.send(method, target, [FORM, *extra], urlencode(form).encode())

    def credentials(self, app: str) -> dict[str, str]:
        known = self.app(app)
        return {
            "grant_type": "client_credentials",
            "client_id": known.client_id,
            "client_secret": known.client_secret,
        }

    def new_token(self, app: str) -> str:
        response = self.form(self.credentials(app))
        assert response.status == 200, response
        return str(response.json["access_token"])

    def token(self, app: str) -> str:
        if app not in self.tokens:
            self.tokens[app] = self.new_token(app)
        return self.tokens[app]

    def ask(self, app: str, method: str, target: str, fields: Fields = (), body: bytes = b"") -> Reply:
        """Send a request of the application with the application's token."""
        bearer = ("Authorization", f"Bearer {self.token(app)}")
        return self.send(method, target, [bearer, *fields], body)

    # The upstream

    def upstream_says(
        self, path: str, body: bytes, fields: Fields = (JSON,), status: int = 200, *, close: bool = False
    ) -> None:
        """Make the upstream respond to requests for `path` with exactly the given status, fields and body."""
        head = [f"HTTP/1.1 {status} Whatever", *(f"{name}: {value}" for name, value in fields)]
        head.append(f"Content-Length: {len(body)}")
        data = "\r\n".join([*head, "", ""]).encode("latin-1") + body
        self.system.graph.raw_responses[path] = RawResponse(data, close=close)

    def seen(self, request_id: str) -> list[Any]:
        """Return the request with this client-request-id that the upstream received."""
        requests = list(self.system.graph.requests)
        return [each for each in requests if each.value("client-request-id") == request_id]

    # The audit trail

    def events(self, *request_ids: str) -> list[dict[str, Any]]:
        """Wait until an event for each client-request-id has arrived, and return the events."""
        wanted = set(request_ids)

        def found() -> dict[str, Any] | None:
            page = self.cli("audit", "search", "--org", self.system.org_id, "--limit", "1000")
            by_id = {each.get("clientRequestId"): each for each in reversed(page["events"])}
            return by_id if wanted <= set(by_id) else None

        by_id = until(found)
        assert by_id
        return [by_id[each] for each in request_ids]


@contextmanager
def whole_system(
    directory: Path,
    rulesets: Mapping[str, str],
    environment: Mapping[str, str] | None = None,
    *,
    vault: bool = True,
) -> Iterator[Live]:
    """Start the system with one application for each ruleset.

    Each application has the same name as its ruleset.
    """
    files = {}
    for name, text in rulesets.items():
        files[name] = directory / f"{name}.yaml"
        files[name].write_text(text, "utf-8")
    loop = Loop()
    # The tests of a module send wrong secrets more often in a minute than any application does.
    until_ready = {"Token__MaxFailuresPerAddress": "10000", "Token__MaxFailuresPerClient": "10000"}
    environment = {**until_ready, **(environment or {})}
    system = System(directory, files, workers=1, vault=vault, proxy_environment=environment)
    try:
        loop.run(system.__aenter__())
        try:
            yield Live(system, loop)
        finally:
            loop.run(system.__aexit__(None, None, None))
    finally:
        loop.close()


def fake_proxy_settings(
    directory: Path, control_plane: str, upstream: str, admin_port: int, more: str = ""
) -> Path:
    """Write the settings of a proxy whose control plane is a scripted fake."""
    path = directory / "proxy.toml"
    path.write_text(
        f"""\
[Proxy]
Listen = "127.0.0.1:0"
Workers = 1

[Agent]
ApiKey = "{API_KEY}"
HmacSecret = "{HMAC_SECRET}"

[RuleSync]
SaasBaseUrl = "{control_plane}"
IntervalSeconds = 0.3
CachePath = "snapshot.json"

[Upstream]
BaseUrl = "{upstream}"

[Credentials]
Provider = "static"
AccessToken = "upstream-token-of-the-test"

[Admin]
Listen = "127.0.0.1:{admin_port}"
{more}""",
        "utf-8",
    )
    return path


def claims_of(token: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Decode a JWT's header and claims, without verification of the signature."""
    header, claims, _ = token.split(".")
    return _decoded(header), _decoded(claims)


def _decoded(part: str) -> dict[str, Any]:
    value = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    assert isinstance(value, dict)
    return value
