"""Tests of the alert rules and the dashboard, with a real Prometheus, proxy and control plane under load.

Each metric that an alert or the dashboard uses is exposed by a Graphward program. Each query of the dashboard
returns data.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import time
import urllib.parse
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.fakes.identity import CLIENT_SECRET
from tests.fakes.lifeline import end_with_parent
from tests.fakes.ports import free_port
from tests.fakes.syslog import syslog_server
from tests.fakes.system import VAULT_SECRET, System
from tests.process.proxy_parts import LIMITS, Load, get, rules_file, until
from tests.test_alerts import ALERTS, CONF, DASHBOARD

pytestmark = pytest.mark.process

QUERIES: Final = [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", ())]
_METRIC: Final = re.compile(r"\bgraphward_\w+")
_WINDOW: Final = "20s"  # replaces the interval that Grafana computes from the scrape interval


class Measured(System):
    """A system that exposes all metrics: it uses TLS, a sink, and an expiring secret in a vault."""

    def __init__(self, directory: Path, syslog_port: int) -> None:
        rules = {"app": rules_file(directory)}
        super().__init__(directory, rules, vault=True, control_plane_environment=LIMITS)
        self._syslog_port = syslog_port
        self.vault.put(VAULT_SECRET, CLIENT_SECRET, expires=time.time() + 86400)

    def _control_plane_settings(self) -> str:
        sink = f'[[Sinks]]\nName = "siem"\nKind = "syslog"\nUrl = "tcp://127.0.0.1:{self._syslog_port}"\n'
        return super()._control_plane_settings() + sink


@asynccontextmanager
async def measured_system(directory: Path) -> AsyncIterator[System]:
    async with syslog_server() as syslog, Measured(directory, syslog.port) as system:
        yield system


def exposed(system: System) -> set[str]:
    text = get(f"{system.admin_url}/metrics")[1] + get(system.control_plane_metrics_url)[1]
    return {re.split(r"[{ ]", line)[0] for line in text.decode().splitlines() if not line.startswith("#")}


async def test_what_alerts_and_dashboard_name_is_there(tmp_path: Path) -> None:
    named = {
        name for text in (*QUERIES, *(alert["expr"] for alert in ALERTS)) for name in _METRIC.findall(text)
    }
    async with measured_system(tmp_path) as system, Load(system) as load:
        await load.responses(50)
        await system.cli("proxy", "enrol-token", "add", "--org", "Contoso", "--uses", "20")
        late = {"graphward_controlplane_batches_total", "graphward_sink_up"}
        await until(lambda: late <= exposed(system))
        assert named - exposed(system) == set()


class Prometheus:
    """Debian's Prometheus with the project's settings, except other addresses and shorter intervals."""

    def __init__(self, directory: Path, system: System) -> None:
        settings = yaml.safe_load((CONF / "prometheus" / "prometheus.yml").read_text("utf-8"))
        settings["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        settings["rule_files"] = [str(CONF / "prometheus" / "alerts.yml")]
        targets = {
            "graphward-proxy": system.admin_url,
            "graphward-controlplane": system.control_plane_metrics_url,
        }
        for job in settings["scrape_configs"]:
            job["static_configs"] = [{"targets": [urllib.parse.urlsplit(targets[job["job_name"]]).netloc]}]
        self._directory = directory
        self._config = directory / "prometheus.yml"
        self._config.write_text(yaml.safe_dump(settings), "utf-8")
        self._url = f"http://127.0.0.1:{free_port()}"

    async def __aenter__(self) -> Prometheus:
        with (self._directory / "prometheus.log").open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                "prometheus",
                f"--config.file={self._config}",
                f"--storage.tsdb.path={self._directory / 'tsdb'}",
                f"--web.listen-address={self._url.removeprefix('http://')}",
                stdout=log,
                stderr=log,
                preexec_fn=end_with_parent,
            )
        return self

    async def __aexit__(self, *_: object) -> None:
        self._process.terminate()
        await self._process.wait()

    def query(self, expression: str) -> list[dict[str, Any]]:
        try:
            status, body = get(f"{self._url}/api/v1/query?{urllib.parse.urlencode({'query': expression})}")
        except OSError:
            return []  # not ready yet
        assert status == 200, f"{expression}: {body.decode()}"
        return list(json.loads(body)["data"]["result"])

    def alerts(self) -> list[dict[str, Any]]:
        return list(json.loads(get(f"{self._url}/api/v1/alerts")[1])["data"]["alerts"])


@pytest.mark.skipif(shutil.which("prometheus") is None, reason="no prometheus here: apt install prometheus")
async def test_every_query_of_the_dashboard_gives_data(tmp_path: Path) -> None:
    async with (
        measured_system(tmp_path) as system,
        Prometheus(tmp_path, system) as prometheus,
        Load(system, clients=2) as load,
    ):
        await load.responses(50)
        scraped = f"min(count_over_time(up[{_WINDOW}])) >= 4 and min(up) == 1 and count(up) == 2"
        stored = f"rate(graphward_controlplane_batches_total[{_WINDOW}]) > 0"
        await until(lambda: prometheus.query(scraped) and prometheus.query(stored))
        for query in QUERIES:
            expression = query.replace("$__rate_interval", _WINDOW)
            expression = re.sub(r"\$(instance|controlplane)", ".*", expression)
            found = await asyncio.to_thread(prometheus.query, expression)
            assert found, f"no data: {expression}"
            assert all(sample["value"][1] != "NaN" for sample in found), f"no number: {expression}"
        alerts = await asyncio.to_thread(prometheus.alerts)
        # the alert is pending
        assert "GraphwardSecretExpires" in {alert["labels"]["alertname"] for alert in alerts}
        assert [alert for alert in alerts if alert["state"] == "firing"] == []
