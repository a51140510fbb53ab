"""Tests of a whole proxy in a network whose only way out is an egress proxy."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from proxy.doctor.examination import _network as examine_network
from proxy.startup.settings import load
from tests.fakes.certificates import LOCAL_NAMES
from tests.fakes.egress import FakeEgress
from tests.fakes.system import System
from tests.process.proxy_parts import client_of, log_of, rules_file, stored_paths, until

pytestmark = pytest.mark.process

# No resolver has these names (RFC 6761), so a connection by another way fails.
GRAPH, LOGIN, CONTROL, VAULT = "graph.invalid", "login.invalid", "control.invalid", "hr.vault.invalid"


class Confined(System):
    """A proxy that can reach only the egress proxy and the metadata service of its machine."""

    def __init__(self, directory: Path, egress: FakeEgress, password: str) -> None:
        super().__init__(
            directory,
            {"app": rules_file(directory)},
            workers=1,
            vault=True,
            names=(*LOCAL_NAMES, GRAPH, LOGIN, CONTROL, VAULT),
            proxy_environment={
                "Egress__ProxyUrl": f"http://ada:{password}@127.0.0.1:{egress.port}",
                "Upstream__BaseUrl": f"https://{GRAPH}",
                "Credentials__AuthorityUrl": f"https://{LOGIN}",
                "Credentials__VaultUrl": f"https://{VAULT}",
                "RuleSync__SaasBaseUrl": f"https://{CONTROL}",
            },
        )
        self.egress = egress

    async def start_proxy(self, *, until_ready: bool = True) -> None:
        for name, url in (
            (GRAPH, self.graph.base_url),
            (LOGIN, self.identity.base_url),
            (VAULT, self.vault.base_url),
            (CONTROL, self.control_plane_url),
        ):
            self.egress.names[f"{name}:443"] = ("127.0.0.1", urlsplit(url).port or 0)
        self.vault.name = VAULT
        await super().start_proxy(until_ready=until_ready)

    @property
    def environment(self) -> dict[str, str]:
        return {**self.managed_identity.environment, **self._proxy_environment}


async def test_everything_that_leaves_leaves_through_the_egress_proxy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    password = "pass-of-the-egress"
    async with (
        FakeEgress(credentials=f"ada:{password}") as egress,
        Confined(tmp_path, egress, password) as system,
        client_of(system) as client,
    ):
        assert (await client.get("/v1.0/users")).status == 200
        await until(lambda: "/v1.0/users" in stored_paths(system))
        assert set(egress.targets) == {f"{name}:443" for name in (GRAPH, LOGIN, VAULT, CONTROL)}
        for fake in (system.graph, system.identity, system.vault):
            assert fake.requests
            assert all(b"proxy-authorization" not in each.head.lower() for each in fake.requests)

        for name, value in system.managed_identity.environment.items():
            monkeypatch.setenv(name, value)
        settings = load(system.proxy_config, system.environment)
        findings = {each.check: each for each in await examine_network(settings)}
        hosts = ("control plane", "identity provider", "key vault", "upstream")
        names = [*(f"{host}: egress" for host in hosts), "upstream: default", "control plane: sync"]
        assert {name: findings[name].status for name in names} == dict.fromkeys(names, "ok")
        assert not [name for name in findings if name.endswith(": name")]  # this machine resolved no names

        del egress.names[f"{GRAPH}:443"]
        await egress.end_tunnels()
        refused = await client.get("/v1.0/users")
        assert (refused.status, json.loads(refused.body)["error"]["code"]) == (502, "upstreamUnreachable")
        log = log_of(system)
        assert f"egress proxy 127.0.0.1:{egress.port}: 503 Service Unavailable to CONNECT {GRAPH}:443" in log
        for text in (log, str(findings), refused.body.decode()):
            assert password not in text
