"""Counters of all workers together, and the agent's own state, as Prometheus scrapes them."""

import math
import time
from collections.abc import Iterator, Mapping
from itertools import accumulate
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from proxy import __version__
from proxy.agent.health import AuditStatus, Health
from proxy.agent.sync import Sync
from proxy.ipc import counters as c
from proxy.process.given_file import read_given_file
from proxy.wire.audit_event import CREDENTIAL_PROBLEMS
from proxy.wire.models import AUDIT_PATH, HEARTBEAT_PATH, METRICS_PATH, SYNC_PATH

_GAUGES: Final = (
    ("connections_open", c.CONNECTIONS_OPEN, "Client connections"),
    ("requests_in_flight", c.IN_FLIGHT, "Requests that have begun and not ended"),
    ("upstream_connections_open", c.UPSTREAM_OPEN, "Connections to the upstream"),
)


def end_of(certificate: Path | None) -> float | None:
    """When the listener's own certificate ends, which stands first in its chain. Workers that can't read it
    say so themselves."""
    if certificate is None:
        return None
    from cryptography import x509  # slow to import, and many proxies have no certificate

    try:
        data = read_given_file(certificate)
        return x509.load_pem_x509_certificate(data).not_valid_after_utc.timestamp()
    except (OSError, ValueError):
        return None


def exposition(
    counters: c.CounterPages,
    sync: Sync,
    health: Health,
    audit: AuditStatus | None,
    certificate_ends_at: float | None,
    unsigned: Mapping[str, int],
) -> bytes:
    """The text that Prometheus scrapes."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Families(counters, sync, health, audit, certificate_ends_at, unsigned))
    return generate_latest(registry)


class _Families(Collector):
    def __init__(
        self,
        counters: c.CounterPages,
        sync: Sync,
        health: Health,
        audit: AuditStatus | None,
        certificate_ends_at: float | None,
        unsigned: Mapping[str, int],
    ) -> None:
        self._counters = counters
        self._sync = sync
        self._health = health
        self._audit = audit
        self._certificate_ends_at = certificate_ends_at
        self._unsigned = unsigned

    def collect(self) -> Iterator[Metric]:
        yield CounterMetricFamily("graphward_requests", "Count of: requests", value=self._counters.requests)
        for index, name in enumerate(c.COUNTER_NAMES):
            words = name.replace("_", " ")
            yield CounterMetricFamily(
                f"graphward_{name}", f"Count of: {words}", value=self._counters.total(index)
            )
        for name, index, words in _GAUGES:
            yield GaugeMetricFamily(f"graphward_{name}", words, value=self._counters.total(index))
        yield self._refused_credentials()
        yield self._latency()
        yield from self._rules()
        yield from self._checks()
        yield self._unsigned_responses()
        yield from self._vault()
        yield from self._traces()
        if self._certificate_ends_at is not None:
            yield GaugeMetricFamily(
                "graphward_certificate_expires_in_seconds",
                "Until the listener's certificate ends",
                value=self._certificate_ends_at - time.time(),
            )
        if self._audit is not None:
            yield from self._audit_families(self._audit)

    def _refused_credentials(self) -> Metric:
        family = CounterMetricFamily(
            "graphward_refused_credentials",
            "Refused assertions, certificates and ended secrets, and tokens without their certificate",
            labels=["problem"],
        )
        for index, problem in enumerate(CREDENTIAL_PROBLEMS, c.CREDENTIAL_PROBLEMS_FIRST):
            family.add_metric([problem], self._counters.total(index))
        return family

    def _latency(self) -> Metric:
        counts = map(self._counters.total, range(c.LATENCY_FIRST, c.LATENCY_LAST + 1))
        bounds = [str(bound / 1000) for bound in c.LATENCY_BOUNDS_MS] + ["+Inf"]
        return HistogramMetricFamily(
            "graphward_request_duration_seconds",
            "Duration of whole requests",
            buckets=list(zip(bounds, accumulate(counts), strict=True)),
            sum_value=self._counters.total(c.LATENCY_SUM_US) / 1e6,
        )

    def _rules(self) -> Iterator[Metric]:
        snapshot = self._sync.snapshot
        build = GaugeMetricFamily("graphward_build_info", "Version of the proxy", labels=["version"])
        build.add_metric([__version__], 1)
        yield build
        yield GaugeMetricFamily(
            "graphward_loaded_rules", "Rules in force", value=snapshot.rule_count if snapshot else 0
        )
        if self._sync.age_seconds is not None:
            yield GaugeMetricFamily(
                "graphward_sync_age_seconds",
                "Since the control plane last confirmed the rules",
                value=self._sync.age_seconds,
            )

    def _checks(self) -> Iterator[Metric]:
        family = GaugeMetricFamily(
            "graphward_check", "State of a concern: 0 ok, 1 degraded, 2 failed", labels=["check"]
        )
        for name, check in self._health.checks().items():
            family.add_metric([name], ("ok", "degraded", "failed").index(check.status))
        yield family
        ready = 0 if self._health.not_ready() else 1
        yield GaugeMetricFamily("graphward_ready", "Whether traffic is served", value=ready)

    def _unsigned_responses(self) -> Metric:
        family = CounterMetricFamily(
            "graphward_unsigned_responses",
            "Responses to calls of the control plane that it did not sign for that request",
            labels=["endpoint"],
        )
        for path in (SYNC_PATH, HEARTBEAT_PATH, AUDIT_PATH, METRICS_PATH):
            endpoint = path.rpartition("/")[2]
            family.add_metric([endpoint], self._unsigned.get(endpoint, 0))
        return family

    def _vault(self) -> Iterator[Metric]:
        held = self._health.held
        if not held:
            return
        yield CounterMetricFamily(
            "graphward_vault_failures",
            "Attempts to read the key vault that failed",
            value=sum(each.maintenance.failures for each in held),
        )
        ages = [each.maintenance.age_seconds for each in held]
        if None not in ages:
            yield GaugeMetricFamily(
                "graphward_vault_age_seconds",
                "Since the key vault was last read for every purpose",
                value=max(age for age in ages if age is not None),
            )
        ends_at = min(each.ends_at for each in held)
        if not math.isinf(ends_at):
            yield GaugeMetricFamily(
                "graphward_vault_expires_in_seconds",
                "Until the first secret or certificate of the key vault that is in use ends",
                value=ends_at - time.time(),
            )

    def _traces(self) -> Iterator[Metric]:
        traces = self._health.traces
        if traces is None:
            return
        yield CounterMetricFamily(
            "graphward_spans_exported", "Spans that the collector of traces took", value=traces.exported
        )
        yield CounterMetricFamily(
            "graphward_spans_lost",
            "Spans that found no room in the queue, were refused or were left at a stop",
            value=traces.lost,
        )

    def _audit_families(self, audit: AuditStatus) -> Iterator[Metric]:
        gauges = (
            ("pending", "Events that are not delivered", audit.pending),
            ("oldest_pending_seconds", "Age of the oldest of them", audit.oldest_seconds(time.time())),
        )
        totals = (
            ("missing", "Events that were lost", audit.journal.missing),
            ("dropped", "Events deleted unsent to make room", audit.journal.dropped),
            ("reused_batch_ids", "Batch ids that the control plane had for other events", audit.reused_ids),
            ("rejected_batches", "Batches refused for good and set aside", audit.journal.rejected_batches),
        )
        for name, words, value in gauges:
            yield GaugeMetricFamily(f"graphward_audit_{name}", words, value=value)
        for name, words, value in totals:
            yield CounterMetricFamily(f"graphward_audit_{name}", words, value=value)
