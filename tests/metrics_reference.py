"""Write docs/reference/metrics.md from the metrics in the code: python -m tests.metrics_reference."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final
from unittest.mock import AsyncMock, patch

from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from controlplane.metrics import Counts, Exposition
from controlplane.store.interface import EndingCredential, EnrolmentToken, Losses, ProxyTally, Store, Tally
from proxy.agent.exposition import exposition
from proxy.ipc.counters import CounterPages

PAGE: Final = Path(__file__).parent.parent / "docs" / "reference" / "metrics.md"
_NAME: Final = re.compile(
    r"\b(?:Proxy|Audit|Token|Upstream)\.[A-Z]\w+|\bMaxFailuresPerClient\b|\bcredentialProblem\b|\blog_only\b|/readyz\b|\brejected/|\bfilterFailed\b|\bnotReady\b"
)
_LABELS: Final = {
    "check": "name of the check",
    "endpoint": "endpoint of the agent API",
    "problem": "[credential problem](errors.md#credential-problems)",
    "version": "version of the program",
    "outcome": "`stored`, `duplicate`, `reused` (a known batch ID with other events) or an "
    "[error code](errors.md#responses-of-the-control-plane)",
    "status": "HTTP status",
    "proxy": "name of the proxy",
    "kind": "`missing`, `repeated` or `implausible`",
    "token": "name of the enrolment token",
    "left": "`ended`, `1d`, `7d`, `30d` or `later`; each credential counts once",
    "health": "health of the proxy",
    "sink": "name of the sink",
}

_INTRODUCTION: Final = """\
# Metrics

<!-- `python -m tests.metrics_reference` writes this page. -->

The proxy and the control plane serve metrics in the Prometheus text format at `/metrics`. This page lists all metrics of the
proxy and the control plane. [Monitor](../how-to/monitor.md) says which metrics to watch, and [Alerts](../how-to/alerts.md) has
alert rules and a dashboard.

| Program | Address | Setting |
|---|---|---|
| [Proxy](../glossary.md#proxy) | `http://127.0.0.1:9090/metrics` | [`Admin.Listen`](settings.md#admin) |
| [Control plane](../glossary.md#control-plane) | `http://127.0.0.1:9091/metrics` | [`Metrics.Listen`](settings.md#metrics) |

The listeners for metrics have no sign-in, so keep them on a network that only operators reach.

- The name of a counter ends with `_total`. A counter starts at 0 when the process starts, and only grows. Each counter of the
  proxy is the sum over all its workers.
- A gauge has the value at the time of the scrape.
- A histogram has the series `_bucket`, `_sum` and `_count`.
- A metric is missing if its feature (key vault, traces, TLS certificates or sinks) is off.

"""
_PROXY: Final = """\
## Metrics of the proxy

"""
_LIMITS: Final = """\
### Limits of the proxy

Each counter in this table grows when a request or a connection reaches a [limit](limits.md) of the proxy.

"""
_CONTROL_PLANE: Final = """\
## Metrics of the control plane

If several control planes share a store, each control plane serves the metrics of the whole store. Among several control planes,
only the leader serves the metrics of sinks and `graphward_controlplane_index_lag_events`. The metrics name at most 1000 proxies.
If there are more than 1000 proxies, the metrics name proxies with lost events first, then the proxies that have been silent
longest. `graphward_controlplane_proxy_last_seen_timestamp_seconds` has no value for a proxy that is disabled or has ended. The
metrics of an enrolment token end when the token expires or is revoked.

"""
_LABEL_TABLE: Final = """\
## Labels

| Label | Values |
|---|---|
"""


def page_as_it_should_be() -> str:
    of_proxy, of_control_plane = proxy_families(), asyncio.run(control_plane_families())
    limits = [each for each in of_proxy if each.name.startswith("graphward_limit_")]
    others = [each for each in of_proxy if each not in limits]
    used = sorted({label for each in (*of_proxy, *of_control_plane) for label in _labels(each)})
    return "".join(
        [
            _INTRODUCTION,
            _PROXY,
            _table(others),
            _LIMITS,
            _table(limits),
            _CONTROL_PLANE,
            _table(of_control_plane),
            _LABEL_TABLE,
            *(f"| `{label}` | {_LABELS[label]} |\n" for label in used),
        ]
    )


def _table(families: Iterable[Metric]) -> str:
    rows = ["| Metric | Type | Labels | Unit | Meaning |", "|---|---|---|---|---|"]
    for family in families:
        name = family.name + ("_total" if family.type == "counter" else "")
        labels = ", ".join(f"`{each}`" for each in _labels(family)) or "–"
        meaning = _NAME.sub(lambda found: f"`{found[0]}`", family.documentation)
        rows.append(f"| `{name}` | {family.type} | {labels} | {_unit(family)} | {meaning}. |")
    return "\n".join(rows) + "\n\n"


def _unit(family: Metric) -> str:
    words = family.name.split("_")
    if words[1] == "limit":
        return "–"
    if words[-2:] == ["timestamp", "seconds"]:
        return "Unix time"
    return next((unit for unit in ("seconds", "bytes") if unit in words), "–")


def _labels(family: Metric) -> list[str]:
    return list(dict.fromkeys(label for sample in family.samples for label in sample.labels if label != "le"))


def _parsed(text: bytes) -> list[Metric]:
    return list(text_string_to_metric_families(text.decode()))


def proxy_families() -> list[Metric]:
    """Return every metric family that a proxy with all features can serve."""
    held = SimpleNamespace(maintenance=SimpleNamespace(failures=0, age_seconds=1.0), ends_at=2.0)
    health: Any = SimpleNamespace(
        checks=lambda: {"sync": SimpleNamespace(status="ok")},
        not_ready=list,
        held=[held],
        traces=SimpleNamespace(exported=0, lost=0),
    )
    audit: Any = SimpleNamespace(
        pending=0,
        oldest_seconds=lambda now: 0.0,
        reused_ids=0,
        journal=SimpleNamespace(missing=0, dropped=0, rejected_batches=0),
    )
    sync: Any = SimpleNamespace(snapshot=None, age_seconds=1.0)
    return _parsed(exposition(CounterPages(1), sync, health, audit, 1.0, {}))


async def control_plane_families() -> list[Metric]:
    """Return every metric family that a leading control plane with all features can serve."""
    token = EnrolmentToken("id", "pods", (), 1, 0, 0, "", 2**60, None, None)
    store: Any = AsyncMock(spec=Store)
    store.tally.return_value = Tally(0, (ProxyTally("edge", True, 0, 0, 0, Losses(), 0),))
    store.enrolment_tokens.return_value = [token]
    store.ending_credentials.return_value = [EndingCredential("", "", "", "", 2**60)]
    store.count_proxies.return_value = {}
    store.running_instances.return_value = []
    store.sink_states.return_value = {
        "siem": SimpleNamespace(position=0, delivered=0, dead_letters=0, problem=None)
    }
    store.last_position.return_value = 0
    store.oldest_received_after.return_value = None
    counts = Counts()
    counts.outcome("stored")
    counts.count("sync", 200, 0.0)
    clock: Any = SimpleNamespace(wall_ms=lambda: 0)
    with patch("controlplane.metrics._end_of", return_value=datetime.now(UTC)):
        scraped = Exposition(
            counts,
            store,
            SimpleNamespace(problem=None, left_out=0, is_measured=True, position=0),  # type: ignore[arg-type]
            clock,
            sync_interval_seconds=30,
            store_path=PAGE,
            certificate=PAGE,
            retention=SimpleNamespace(problem=None),  # type: ignore[arg-type]
            peers=SimpleNamespace(leads=True),
            sinks=["siem"],
        )
        return _parsed(await scraped.text())


if __name__ == "__main__":
    PAGE.write_text(page_as_it_should_be(), "utf-8")
