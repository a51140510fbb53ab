"""Tests of both APIs with generated requests: the APIs behave as described and never fail."""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis import Case
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from controlplane.admin.openapi import description
from tests.controlplane.plane import RULESET, write_settings
from tests.fakes.lifeline import end_with_parent
from tests.patience import PATIENCE_SECONDS

ROOT: Final = Path(__file__).parents[2]
PASSWORD: Final = "correct horse battery staple"
CHECKS: Final = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
DESCRIBED: Final = schemathesis.openapi.from_dict(description())
DESCRIBED.config.phases.coverage.enabled = False
# An endless operation, and one that would revoke the token of all other requests.
NOT_ASKED: Final = ["audit.tail", "operator.disable"]
ADMIN: Final = DESCRIBED.include(path_regex="^/admin/").exclude(operation_id=NOT_ASKED)
AGENT: Final = DESCRIBED.include(path_regex="^/api/")
# Declared here, because the environment that type-checks this file does not have the package.
_Decorator = Callable[[Callable[..., None]], Callable[..., None]]
each_of_admin: Final[_Decorator] = ADMIN.parametrize()
each_of_agent: Final[_Decorator] = AGENT.parametrize()
FEW: Final = settings(
    max_examples=5,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@dataclass(frozen=True)
class Running:
    """A control plane of its own for generated requests, because these requests change its data."""

    console: str
    agent_api: str
    token: str
    api_key: str
    hmac_secret: str

    def signed(self, body: bytes) -> dict[str, str]:
        timestamp = str(int(time.time()))
        signature = hmac.new(self.hmac_secret.encode(), timestamp.encode() + b"." + body, hashlib.sha256)
        return {
            "X-Api-Key": self.api_key,
            "X-Timestamp": timestamp,
            "X-Hmac-Signature": signature.hexdigest(),
        }


@pytest.fixture(scope="session")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("described")
    config = write_settings(folder, Audit="RateLimitOrg = 1000000\nRateLimitProxy = 1000000")
    command = [sys.executable, "-m", "controlplane", "--config", str(config)]

    def facts(*arguments: str) -> Any:
        done = subprocess.run([*command, *arguments, "--json"], cwd=ROOT, capture_output=True, check=True)
        return json.loads(done.stdout)

    (folder / "password").write_text(PASSWORD)
    (folder / "hr.yaml").write_text(RULESET.format(name="hr"))
    facts("operator", "add", "ada", "--admin", "--password-file", str(folder / "password"))
    token = facts("operator", "token", "add", "ada", "tests")["token"]
    facts("org", "add", "acme")
    facts("ruleset", "apply", str(folder / "hr.yaml"), "--org", "acme")
    proxy = facts("proxy", "add", "edge-1", "--org", "acme")
    server = subprocess.Popen(
        command, cwd=ROOT, stderr=subprocess.PIPE, text=True, preexec_fn=end_with_parent
    )
    try:
        assert server.stderr is not None
        addresses: list[str] = []
        while len(addresses) < 2:
            line = server.stderr.readline()
            assert line, "the control plane ended"
            addresses += re.findall(r" on (http://[^\s,]+)", line)
        yield Running(addresses[1], addresses[0], token, proxy["apiKey"], proxy["hmacSecret"])
    finally:
        server.terminate()
        _, log = server.communicate(timeout=PATIENCE_SECONDS)
        assert "Traceback" not in log


@each_of_admin
@FEW
def test_the_admin_api_does_as_described(case: Case[Any], running: Running) -> None:
    case.call_and_validate(
        base_url=running.console, headers={"Authorization": f"Bearer {running.token}"}, checks=CHECKS
    )


@each_of_agent
@FEW
def test_the_agent_api_does_as_described(case: Case[Any], running: Running) -> None:
    sent = case.as_transport_kwargs(base_url=running.agent_api)
    prepared = requests.Request(
        **{
            name: sent[name]
            for name in ("method", "url", "headers", "params", "json", "data")
            if name in sent
        }
    ).prepare()
    body = prepared.body or b""
    prepared.headers.update(running.signed(body.encode() if isinstance(body, str) else body))
    with requests.Session() as session:
        response = session.send(prepared, timeout=PATIENCE_SECONDS)
    case.validate_response(response, checks=CHECKS)
