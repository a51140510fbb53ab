"""Tests of a proxy whose client secret and signing key are in a vault: rotations, outages, and a fleet."""

from __future__ import annotations

import json
import os
import re
import signal
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import jwt
import pytest

from tests.fakes.certificates import client_certificate
from tests.fakes.identity import CLIENT_SECRET
from tests.fakes.key_vault import IDENTITY_HEADER
from tests.fakes.ports import free_port
from tests.fakes.system import SIGNING_KEY, VAULT_SECRET, VAULT_SIGNING_KEY
from tests.patience import PATIENCE_SECONDS
from tests.process.proxy_parts import processes
from tests.process.specification import (
    Live,
    Reply,
    fake_proxy_settings,
    run,
    send,
    started,
    until,
    whole_system,
)

pytestmark = pytest.mark.process

RULES = "version: 1\nname: open\ndefault: allow\nrules: []\n"
SECOND_SECRET = "fake~second.secret"
CERTIFICATE = client_certificate()
SECOND_KEY = "fake~signing~key~of~the~fleet~0002"
WATCH = """\
import os, sys

class Watch:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("azure", "msal"):
            with open(os.environ["AZURE_IMPORTS"], "a") as file:
                file.write(f"{os.getpid()} {name}\\n")

sys.meta_path.insert(0, Watch())
"""


def watching_imports(directory: Path) -> dict[str, str]:
    """Return an environment in which every process records its imports of Azure's SDK."""
    (directory / "sitecustomize.py").write_text(WATCH)
    search_path = os.pathsep.join(filter(None, (str(directory), os.environ.get("PYTHONPATH"))))
    return {"PYTHONPATH": search_path, "AZURE_IMPORTS": str(directory / "imports")}


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    directory = tmp_path_factory.mktemp("system")
    environment = {**watching_imports(directory), "Log__Level": "debug"}
    with whole_system(directory, {"app": RULES}, environment) as live:
        yield live
        for child in live.system.children:
            assert "Traceback" not in child.log.read_text("utf-8")


def readiness(live: Live) -> dict[str, Any]:
    try:
        with urllib.request.urlopen(f"{live.system.admin_url}/readyz", timeout=PATIENCE_SECONDS) as response:
            return {"status": response.status, **json.loads(response.read())}
    except urllib.error.HTTPError as error:
        return {"status": error.code, **json.loads(error.read())}
    except OSError:
        return {"status": 0, "checks": {}}


def metrics(live: Live) -> str:
    with urllib.request.urlopen(f"{live.system.admin_url}/metrics", timeout=PATIENCE_SECONDS) as response:
        return str(response.read().decode())


def vault_is(live: Live, status: str) -> Callable[[], bool]:
    return lambda: readiness(live)["checks"].get("vault", {}).get("status") == status


def kid(token: str) -> str:
    return str(jwt.get_unverified_header(token)["kid"])


# Processes with the SDK


def test_only_the_agent_imports_azures_sdk(live: Live) -> None:
    assert live.ask("app", "GET", "/v1.0/echo/x").status == 200
    lines = (live.system.directory / "imports").read_text().splitlines()
    assert {int(line.split()[0]) for line in lines} == {processes(live.system)["agent"]}


def test_a_proxy_with_a_static_token_imports_none_of_it(tmp_path: Path) -> None:
    admin = free_port()
    nowhere = f"http://127.0.0.1:{free_port()}"
    more = '[Log]\nLevel = "debug"\n'
    config = fake_proxy_settings(tmp_path, nowhere, nowhere, admin, more)
    with started(tmp_path / "log", "proxy", "--config", str(config), **watching_imports(tmp_path)) as process:
        process.until_said(" proxy.agent.")
        assert process.stop() == 0
    assert not (tmp_path / "imports").exists()


# Rotation


def test_a_rotated_client_secret_costs_no_request(live: Live) -> None:
    system = live.system
    assert live.ask("app", "GET", "/v1.0/echo/before").status == 200
    system.identity.client_secrets = {SECOND_SECRET}
    system.vault.put(VAULT_SECRET, SECOND_SECRET)
    system.identity.revoke_all()
    assert live.ask("app", "GET", "/v1.0/echo/after").status == 200
    assert SECOND_SECRET.encode() in bytes(system.identity.requests[-1].body).replace(b"%7E", b"~")


def test_a_rotated_signing_key_takes_over_without_refusing_a_token(live: Live) -> None:
    old = live.new_token("app")
    live.system.vault.put(VAULT_SIGNING_KEY, SECOND_KEY)
    bearer = [("Authorization", f"Bearer {old}")]

    def issued_anew() -> bool:
        assert live.send("GET", "/v1.0/echo/old", bearer).status == 200
        return kid(live.new_token("app")) != kid(old)

    until(issued_anew)
    assert live.send("GET", "/v1.0/echo/old", bearer).status == 200
    new = [("Authorization", f"Bearer {live.new_token('app')}")]
    assert live.send("GET", "/v1.0/echo/new", new).status == 200


def test_a_disabled_version_of_the_signing_key_is_refused(live: Live) -> None:
    """An operator disables a version of the signing key if the key was revealed."""
    system = live.system
    known = system.vault.put(VAULT_SIGNING_KEY, "fake~signing~key~that~became~known")
    until(lambda: kid(live.new_token("app")) == _kid_of(known.value))
    bearer = [("Authorization", f"Bearer {live.new_token('app')}")]
    assert live.send("GET", "/v1.0/echo/x", bearer).status == 200
    known.enabled = False
    until(lambda: live.send("GET", "/v1.0/echo/x", bearer).status == 401)
    live.tokens.clear()
    assert live.ask("app", "GET", "/v1.0/echo/x").status == 200


def _kid_of(key: str) -> str:
    from proxy.server.callers.token_keeper import kid_of

    return kid_of(key.encode())


# A fleet


@contextmanager
def second_proxy(live: Live) -> Iterator[Callable[[str], Reply]]:
    """Start a second proxy with the same settings as the first proxy.

    Return a function that sends a request with a token to the second proxy.
    """
    system = live.system
    keys = live.cli("proxy", "add", "second", "--org", system.org_id)
    listen, admin = free_port(), free_port()
    text = system.proxy_config.read_text("utf-8")
    for pattern, value in (
        (r"(?<=\[Proxy\]\nListen = )\S+", f'"127.0.0.1:{listen}"'),
        (r"(?<=\[Admin\]\nListen = )\S+", f'"127.0.0.1:{admin}"'),
        (r"(?<=ApiKey = )\S+", f'"{keys["apiKey"]}"'),
        (r"(?<=HmacSecret = )\S+", f'"{keys["hmacSecret"]}"'),
        (r"snapshot\.json", "snapshot-2.json"),
        (r"/audit\"", '/audit-2"'),
    ):
        text, count = re.subn(pattern, value, text)
        assert count == 1, pattern
    config = system.directory / "proxy-2.toml"
    config.write_text(text)

    def ask(token: str) -> Reply:
        bearer = [("Authorization", f"Bearer {token}")]
        return send(f"https://127.0.0.1:{listen}", "GET", "/v1.0/echo/2", bearer, context=live.context)

    log = system.directory / "proxy-2.log"
    with started(log, "proxy", "--config", str(config), **system.managed_identity.environment) as process:

        def is_ready() -> bool:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{admin}/readyz", timeout=PATIENCE_SECONDS):
                    return True
            except OSError:
                assert process.popen.poll() is None, process.output
                return False

        until(is_ready)
        yield ask
        assert "Traceback" not in process.output


def test_two_proxies_that_share_a_vault_take_each_others_tokens_throughout_a_rotation(live: Live) -> None:
    with second_proxy(live) as ask_second:
        old = live.new_token("app")
        assert ask_second(old).status == 200
        live.system.vault.put(VAULT_SIGNING_KEY, "fake~signing~key~of~the~fleet~0003")

        def taken_over() -> bool:
            token = live.new_token("app")
            assert ask_second(token).status == 200, "refused what the first proxy had just issued"
            return kid(token) != kid(old)

        until(taken_over)
        assert ask_second(old).status == 200


# Outages of the vault


def test_the_proxy_serves_on_while_the_vault_is_away_and_says_so_loudly(live: Live) -> None:
    system = live.system
    until(vault_is(live, "ok"))
    assert 'graphward_check{check="vault"} 0.0' in metrics(live)
    system.vault.mode = "down"
    until(vault_is(live, "degraded"))
    where = f"key vault {system.vault.base_url}, secret {VAULT_SECRET}, as the machine's own identity"
    until(lambda: where in readiness(live)["checks"]["vault"]["detail"])
    assert readiness(live)["status"] == 200
    assert live.ask("app", "GET", "/v1.0/echo/away").status == 200
    assert live.new_token("app")
    report = metrics(live)
    assert 'graphward_check{check="vault"} 1.0' in report
    assert re.search(r"^graphward_vault_failures_total [1-9]", report, re.MULTILINE)
    assert re.search(r"^graphward_vault_age_seconds [0-9.]+$", report, re.MULTILINE)
    assert f"cannot read the upstream credential: {where}" in system.proxy.log.read_text()
    until(lambda: where in json.dumps(live.cli("proxy", "show", "demo-proxy")))  # reported by a heartbeat
    system.vault.mode = "ok"
    until(vault_is(live, "ok"))


def test_a_proxy_that_starts_without_its_vault_refuses_until_it_is_back(live: Live) -> None:
    """After the outage, the proxy finds a certificate in place of the client secret."""
    system = live.system
    system.vault.mode = "forbidden"
    live.loop.run(system.proxy.stop())
    system.vault.put(VAULT_SECRET, CERTIFICATE.pfx, "application/x-pkcs12")
    system.identity.certificates.append(CERTIFICATE.certificate)
    system.identity.client_secrets.clear()
    live.loop.run(system.start_proxy(until_ready=False))
    until(lambda: "key vault" in readiness(live)["checks"].get("credentials", {}).get("detail", ""))
    now = readiness(live)
    assert now["status"] == 503
    assert "there is no upstream token" in now["reasons"]
    for check in ("credentials", "vault"):
        assert now["checks"][check]["status"] == "failed"
        detail = now["checks"][check]["detail"]
        assert f"key vault {system.vault.base_url}, secret {VAULT_SECRET}" in detail
        assert "403 Forbidden ForbiddenByRbac" in detail
    until(lambda: "not every worker has a key for tokens yet" in readiness(live)["reasons"])
    for target, method in (("/proxy/token", "POST"), ("/v1.0/echo/x", "GET")):
        refused = live.send(method, target)
        assert refused.status == 503
        assert "notReady" in refused.body.decode() or target == "/proxy/token"
    system.vault.mode = "ok"
    until(lambda: readiness(live)["status"] == 200)
    live.tokens.clear()
    assert live.ask("app", "GET", "/v1.0/echo/x").status == 200
    assert b"client_assertion=" in system.identity.requests[-1].body


def test_a_killed_agent_brings_the_keys_again(live: Live) -> None:
    agent = processes(live.system)["agent"]
    token = live.token("app")
    os.kill(agent, signal.SIGKILL)
    until(lambda: processes(live.system).get("agent", agent) != agent)
    worker = processes(live.system)["worker-0"]
    os.kill(worker, signal.SIGKILL)  # the next worker starts without a key
    until(lambda: processes(live.system).get("worker-0", worker) != worker)
    bearer = [("Authorization", f"Bearer {token}")]
    assert until(lambda: live.send("GET", "/v1.0/echo/x", bearer)).status == 200


# Secrecy


def test_nothing_of_the_vault_is_in_logs_metrics_events_or_files(live: Live) -> None:
    system = live.system
    live.ask("app", "GET", "/v1.0/echo/last")
    checked = run("proxy", "--config", str(system.proxy_config), "--check")
    assert checked.returncode == 0
    page = json.dumps(live.cli("audit", "search", "--org", system.org_id, "--limit", "1000"))
    report = checked.stdout + checked.stderr + page + metrics(live) + json.dumps(readiness(live))
    data = report.encode() + b"".join(
        path.read_bytes() for path in system.directory.rglob("*") if path.is_file()
    )
    assert len(data) > 10_000
    secrets = [CLIENT_SECRET, SECOND_SECRET, SIGNING_KEY, SECOND_KEY, IDENTITY_HEADER]
    secrets += [CERTIFICATE.pfx[:60], *CERTIFICATE.pem.splitlines()[1:20]]
    forms = [parse_qs(bytes(each.body).decode()) for each in system.identity.requests]
    assertions = [form["client_assertion"][0] for form in forms if "client_assertion" in form]
    assert assertions
    secrets += assertions
    secrets += [*system.managed_identity.tokens, *system.identity.tokens]
    assert len(secrets) > 8
    assert [secret for secret in secrets if secret.encode() in data] == []
