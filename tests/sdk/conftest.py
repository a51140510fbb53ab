"""Fixtures: a test system behind TLS, and programs that send requests to the system through SDKs."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import random
import re
import shutil
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
import pytest_asyncio

from tests.fakes.certificates import client_certificate
from tests.fakes.graph import problem
from tests.fakes.issuer import FakeIssuer
from tests.fakes.lifeline import end_with_parent
from tests.fakes.server import Response
from tests.fakes.system import ROOT, System
from tests.fakes.transfers import is_pre_authenticated
from tests.patience import PATIENCE_SECONDS
from tests.process.proxy_parts import LIMITS, until

HERE: Final = Path(__file__).parent
PYTHON: Final = ROOT / ".venv-sdk" / "bin" / "python"
NODE: Final = shutil.which("node")
NODE_MODULES: Final = HERE / "js" / "node_modules"
# Longer than the proxy buffers even when compressed, which this text hardly can be.
LONG_TEXT: Final = base64.b64encode(random.Random(1).randbytes(4_500_000)).decode()

AUDIENCE: Final = "api://AzureADTokenExchange"
ONCE_SUBJECT: Final = "repo:contoso/app:ref:refs/heads/main"  # the form of GitHub's subjects
WORKLOAD_SUBJECT: Final = "system:serviceaccount:shop:orders"  # the form of Kubernetes' subjects

JWT: Final = re.compile(rb"eyJ[\w-]+\.[\w-]+\.[\w-]+")

Results = dict[str, Any]


@dataclass(slots=True)
class Program:
    """A running program that belongs to an application."""

    process: asyncio.subprocess.Process

    async def says(self, line: str) -> None:
        """Wait until the program has printed the given line as its first line."""
        assert self.process.stdout is not None
        assert (await self.process.stdout.readline()).decode().strip() == line, await self._errors()

    async def results(self, report: bytes = b"") -> Results:
        """Let the program continue, wait for its end, and return its results. Return its output."""
        out, errors = await self.process.communicate(report)
        assert self.process.returncode == 0, errors.decode()
        results = json.loads(out)
        assert isinstance(results, dict)
        return results

    async def _errors(self) -> str:
        return (await self.process.communicate())[1].decode()


@dataclass(slots=True)
class Harness:
    """The tested system, with a method that starts applications that use the system."""

    system: System
    issuer: FakeIssuer
    certificates: dict[str, Path]  # files with private keys: the application's own, and another one

    def assertions(self, count: int) -> dict[str, str]:
        """Return environment variables that name files, for an application without a client secret."""
        directory = self.system.directory
        fresh = [self.issuer.token(ONCE_SUBJECT, AUDIENCE) for _ in range(count)]
        (directory / "assertions").write_text("\n".join(fresh), "utf-8")
        (directory / "workload").write_text(self.issuer.token(WORKLOAD_SUBJECT, AUDIENCE), "utf-8")
        return {
            "ASSERTIONS_FILE": str(directory / "assertions"),
            "AZURE_FEDERATED_TOKEN_FILE": str(directory / "workload"),
            "CERTIFICATE_FILE": str(self.certificates["own"]),
            "OTHER_CERTIFICATE_FILE": str(self.certificates["other"]),
        }

    async def start(
        self, language: str, program: str, without_secret: dict[str, str] | None = None
    ) -> Program:
        self.system.graph.requests.clear()
        application = self.system.applications["guarded"]
        authority = str(self.system.authority.ca_file)
        settings = {
            "AZURE_AUTHORITY_HOST": self.system.proxy_url,
            "AZURE_TENANT_ID": "adfs",
            "AZURE_CLIENT_ID": application.client_id,
            "AZURE_CLIENT_SECRET": application.client_secret,
            # With a publicly trusted certificate, an application needs none of these.
            "REQUESTS_CA_BUNDLE": authority,
            "SSL_CERT_FILE": authority,
            "NODE_EXTRA_CA_CERTS": authority,
            "NO_PROXY": "*",
        }
        if without_secret is not None:
            del settings["AZURE_CLIENT_SECRET"]
            settings |= without_secret
        pipe = asyncio.subprocess.PIPE
        return Program(
            await asyncio.create_subprocess_exec(
                *_command(language, program),
                env={**os.environ, **settings},
                stdin=pipe,
                stdout=pipe,
                stderr=pipe,
                preexec_fn=end_with_parent,
            )
        )

    async def run(self, language: str, program: str, without_secret: dict[str, str] | None = None) -> Results:
        return await (await self.start(language, program, without_secret)).results()

    def prepare_responses(self) -> None:
        """Prepare upstream paths: some succeed after two failures, one fails, and one returns a long page."""
        graph = self.system.graph
        first = graph.first_responses
        json_type = ("Content-Type", "application/json")
        found = Response(200, (json_type,), b'{"value": [{"id": "1"}]}')
        for status in (429, 503, 504):
            refusal = problem(status, "standIn", "Not now.", ("Retry-After", "1"))
            first[f"/v1.0/groups/retried-{status}"] = deque([refusal, refusal, found])
        first["/v1.0/groups/broken"] = deque([problem(500, "standIn", "Broken.")])
        link = f"{graph.base_url}/v1.0/users?$top=5&$skiptoken=10"
        page = {"value": [{"id": "1", "description": LONG_TEXT}], "@odata.nextLink": link}
        first["/v1.0/groups/long"] = deque([Response(200, (json_type,), json.dumps(page).encode())])

    def assert_nothing_leaked(self) -> None:
        """Check that no receiver got a credential that is meant for another receiver.

        Requests to the upstream and to the identity provider contain no proxy token and no secret of the
        application. If an address contains a credential, a request to the address has no token at all.
        """
        graph, identity = self.system.graph, self.system.identity
        application = self.system.applications["guarded"]
        assert graph.requests
        for request in (*graph.requests, *identity.requests):
            whole = request.head + bytes(request.body)
            assert not JWT.search(whole)
            assert application.client_secret.encode() not in whole
        for request in graph.requests:
            sent = request.values("Authorization")
            if is_pre_authenticated(request):
                assert sent == []
            else:
                assert [value.removeprefix("Bearer ") in identity.tokens for value in sent] == [True]


def _command(language: str, program: str) -> tuple[str, ...]:
    if language == "python":
        if not PYTHON.exists():
            pytest.skip("the Python SDKs are not installed: ./dev test-sdk does that")
        return (str(PYTHON), str(HERE / "python" / f"{program}.py"))
    if NODE is None or not NODE_MODULES.exists():
        pytest.skip("node or the JavaScript SDKs are missing: ./dev test-sdk says why")
    return (NODE, str(HERE / "js" / f"{program}.mjs"))


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def harness(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Harness]:
    environment = {"Callers__KeysRefreshSeconds": "60"}  # other values are computed below
    system = System(
        tmp_path_factory.mktemp("sdk"),
        {"guarded": HERE / "rules.yaml"},
        workers=1,
        proxy_environment=environment,
        control_plane_environment=LIMITS,
    )
    environment["Proxy__PublicBaseUrl"] = system.proxy_url
    environment["Callers__IssuerCaFile"] = str(system.authority.ca_file)
    async with system, FakeIssuer(tls=system.authority.server("issuer")) as issuer:
        certificates = {}
        for name in ("own", "other"):
            certificates[name] = system.directory / f"{name}.pem"
            certificates[name].write_text(client_certificate(name).pem, "utf-8")
        pem = certificates["own"].read_text("utf-8")
        public = system.directory / "own-certificate.pem"
        public.write_text(pem[pem.index("-----BEGIN CERTIFICATE") :], "utf-8")
        await register_credentials(system, issuer, public)
        yield Harness(system, issuer, certificates)


async def register_credentials(system: System, issuer: FakeIssuer, public: Path) -> None:
    """Register three more credentials of the application, and wait until the proxy has their keys."""
    added = await system.cli("app", "key", "add", "guarded", str(public))
    for subject, reuse in ((ONCE_SUBJECT, "once"), (WORKLOAD_SUBJECT, "until-end")):
        pinned = ("--issuer", issuer.issuer, "--subject", subject, "--audience", AUDIENCE, "--reuse", reuse)
        added = await system.cli("app", "federated", "add", "guarded", *pinned)
    snapshot = system.directory / "snapshot.json"
    await until(lambda: added["credential"]["id"] in snapshot.read_text("utf-8"))
    async with asyncio.timeout(PATIENCE_SECONDS):
        await issuer.was_read.wait()


@pytest_asyncio.fixture(scope="session", loop_scope="session", params=["python", "javascript"])
async def directory(request: pytest.FixtureRequest, harness: Harness) -> Results:
    """Run the test program `directory` in Python or JavaScript, and return its output for each step."""
    harness.prepare_responses()
    return {"language": request.param, **await harness.run(request.param, "directory")}
