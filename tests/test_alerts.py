"""Tests of alert rules and the dashboard: each alert fires, stays silent, and links to its remedy."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

CONF: Final = Path(__file__).parent.parent / "conf"
ALERTS: Final = [
    rule
    for group in yaml.safe_load((CONF / "prometheus" / "alerts.yml").read_text("utf-8"))["groups"]
    for rule in group["rules"]
]
TESTS: Final = yaml.safe_load((CONF / "prometheus" / "alerts.test.yml").read_text("utf-8"))["tests"]
DASHBOARD: Final = json.loads((CONF / "grafana" / "graphward.json").read_text("utf-8"))
_PAGE: Final = (CONF.parent / "docs" / "how-to" / "alerts.md").read_text("utf-8")
_ALERTNAME: Final = re.compile(r'alertname="(\w+)"')


@pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool here: apt install prometheus")
@pytest.mark.parametrize(
    "command",
    ["check rules alerts.yml", "check config prometheus.yml", "test rules alerts.test.yml"],
)
def test_promtool_takes_it(command: str) -> None:
    done = subprocess.run(
        ["promtool", *command.split()], cwd=CONF / "prometheus", capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr


def _outcomes() -> Iterator[set[str]]:
    """Yield the alerts that fire, for each time that an alert test checks."""
    for test in TESTS:
        for look in test["promql_expr_test"]:
            report = " ".join(sample["labels"] for sample in look["exp_samples"] or ())
            yield set(_ALERTNAME.findall(report))


@pytest.mark.parametrize("alert", ALERTS, ids=[alert["alert"] for alert in ALERTS])
def test_an_alert_is_tried_both_ways_and_leads_to_what_to_do(alert: dict[str, Any]) -> None:
    assert any(alert["alert"] in firing for firing in _outcomes())
    assert alert["labels"]["severity"] in ("critical", "warning")
    notes = alert["annotations"]
    assert notes["summary"]
    assert notes["description"]
    page, _, anchor = notes["runbook"].partition("#")
    assert page == "docs/how-to/alerts.md"
    assert anchor in {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in _titles()}


def _titles() -> list[str]:
    return re.findall(r"^#{2,3} (.+)$", _PAGE, re.MULTILINE)


def test_every_test_of_alerts_looks_at_a_time_when_nothing_fires() -> None:
    """Each test in which an alert fires also checks a time at which no alert fires."""
    for test in TESTS:
        assert any(not look["exp_samples"] for look in test["promql_expr_test"]), test["name"]


def test_the_dashboard_is_laid_out_without_overlap() -> None:
    taken: dict[tuple[int, int], str] = {}
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24, panel["title"]
        for x in range(at["x"], at["x"] + at["w"]):
            for y in range(at["y"], at["y"] + at["h"]):
                assert (x, y) not in taken, f"{panel['title']} lies over {taken[x, y]}"
                taken[x, y] = panel["title"]


def test_the_dashboard_says_of_each_panel_what_it_shows_and_from_where() -> None:
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    variables = {variable["name"] for variable in DASHBOARD["templating"]["list"]}
    for panel in DASHBOARD["panels"]:
        if panel["type"] == "row":
            continue
        assert panel["title"]
        assert panel["description"]
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert panel["datasource"]["uid"] == "${datasource}"
        for target in panel["targets"]:
            used = set(re.findall(r"\$(\w+)", target["expr"])) - {"__rate_interval"}
            assert used <= variables, target["expr"]
            assert target["legendFormat"]
