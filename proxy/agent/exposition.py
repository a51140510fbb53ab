"""Metrics that Prometheus scrapes: the sums of all workers' counters, and the agent's own state.

`python -m tests.metrics_reference` writes docs/reference/metrics.md from the descriptions in this module.
"""

import math
import time
from collections.abc import Iterator, Mapping
from itertools import accumulate
from pathlib import Path
from types import MappingProxyType
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
    ("connections_open", c.CONNECTIONS_OPEN, "Open client connections"),
    ("requests_in_flight", c.IN_FLIGHT, "Requests that have begun and not ended"),
    ("upstream_connections_open", c.UPSTREAM_OPEN, "Open connections to the upstream"),
)
COUNTER_TEXTS: Final = MappingProxyType(
    {
        "allowed": "Requests with the verdict allow",
        "blocked": "Requests with the verdict block",
        "filtered": "Requests with the verdict filter",
        "logged_only": "Requests with the verdict log_only",
        "upstream_errors": "Requests that failed at the upstream, or got a 5xx status from it",
        "tokens_issued": "Tokens issued to applications",
        "tokens_refused": "Token requests of known applications that were refused",
        "unknown_clients": "Token requests with an unknown client ID; they leave no audit event",
        "unauthenticated": "Requests without a valid token; they leave no audit event",
        "bad_requests": "Requests that are not valid HTTP",
        "client_aborted": "Requests whose client left before the end of the response",
        "upstream_aborted": "Responses that the upstream broke off",
        "filter_failed": "Responses that could not be filtered and were withheld (502 filterFailed)",
        "not_ready": "Requests that got 503 notReady, or whose audit event found no space",
        "spool_dropped": "Audit events that workers deleted unsent to make space (Audit.WhenFull)",
        "bytes_in": "Bytes of request bodies",
        "bytes_out": "Bytes of response bodies",
        "connections_accepted": "Client connections that were accepted",
        "upstream_opened": "Connections to the upstream that were opened",
        "upstream_reused": "Requests sent on an open connection to the upstream",
        "upstream_retried": "Requests sent to the upstream again, on another connection or with a new token",
        "starts": "Starts of worker processes, restarts included",
        "limit_head_bytes": "Requests with a head over Proxy.MaxHeaderBytes",
        "limit_header_count": "Requests with more fields than Proxy.MaxHeaderCount",
        "limit_body_bytes": "Requests with a body over Proxy.MaxBufferedBodyBytes, or a form over 64 KiB",
        "limit_connections": "Connections refused over Proxy.MaxConnections",
        "limit_head_timeout": "Requests whose head took longer than Proxy.HeadTimeoutSeconds",
        "limit_idle_timeout": "Idle connections closed after Proxy.IdleTimeoutSeconds",
        "limit_body_rate": "Requests with a body slower than Proxy.MinBodyBytesPerSecond",
        "limit_upstream_connections": "Requests that found all Upstream.MaxConnections busy for too long",
        "limit_filter_bytes": "Responses over Upstream.MaxFilterBytes that a rule reads",
        "limit_response_timeout": "Requests whose response took longer than Upstream.ResponseTimeoutSeconds",
        "limit_token_checks": "Token requests refused because too many secrets were being compared",
        "limit_address_connections": "Connections refused over Proxy.MaxConnectionsPerAddress",
        "limit_token_failures": "Token requests over Token.MaxFailuresPerAddress or MaxFailuresPerClient",
        "limit_upstream_waiting": "Requests refused over Upstream.MaxWaiting",
        "limit_held_bytes": "Requests refused over Proxy.MaxHeldBytes",
        "limit_slow_readers": "Connections closed because the client read the response too slowly",
        "limit_answer_head_bytes": "Responses with a head over Upstream.MaxHeaderBytes",
        "foreign_links": "Next links that lead past the proxy, to a host that is not in the settings",
        "limit_assertions": "Assertions refused because used ones could not be remembered",
    }
)


def end_of(certificate: Path | None) -> float | None:
    """Return the expiry time of the listener's own certificate, the first certificate in the file.

    If the certificate file can't be read, return None: the workers report the problem.
    """
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
    """Return the text of the metrics for Prometheus."""
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
        words = "Requests that were evaluated against a ruleset"
        yield CounterMetricFamily("graphward_requests", words, value=self._counters.requests)
        for index, name in enumerate(c.COUNTER_NAMES):
            words = COUNTER_TEXTS[name]
            yield CounterMetricFamily(f"graphward_{name}", words, value=self._counters.total(index))
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
                "Seconds until the listener's certificate expires",
                value=self._certificate_ends_at - time.time(),
            )
        if self._audit is not None:
            yield from self._audit_families(self._audit)

    def _refused_credentials(self) -> Metric:
        family = CounterMetricFamily(
            "graphward_refused_credentials",
            "Refused credentials by credentialProblem, and tokens used without their client certificate",
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
            "Duration of whole requests, in seconds",
            buckets=list(zip(bounds, accumulate(counts), strict=True)),
            sum_value=self._counters.total(c.LATENCY_SUM_US) / 1e6,
        )

    def _rules(self) -> Iterator[Metric]:
        snapshot = self._sync.snapshot
        build = GaugeMetricFamily("graphward_build_info", "Version of the proxy", labels=["version"])
        build.add_metric([__version__], 1)
        yield build
        yield GaugeMetricFamily(
            "graphward_loaded_rules", "Active rules", value=snapshot.rule_count if snapshot else 0
        )
        if self._sync.age_seconds is not None:
            yield GaugeMetricFamily(
                "graphward_sync_age_seconds",
                "Seconds since the control plane last confirmed the rules",
                value=self._sync.age_seconds,
            )

    def _checks(self) -> Iterator[Metric]:
        family = GaugeMetricFamily(
            "graphward_check", "State of a check of /readyz: 0 ok, 1 degraded, 2 failed", labels=["check"]
        )
        for name, check in self._health.checks().items():
            family.add_metric([name], ("ok", "degraded", "failed").index(check.status))
        yield family
        ready = 0 if self._health.not_ready() else 1
        yield GaugeMetricFamily("graphward_ready", "1 if the proxy serves requests, else 0", value=ready)

    def _unsigned_responses(self) -> Metric:
        family = CounterMetricFamily(
            "graphward_unsigned_responses",
            "Responses of the control plane without a valid signature for the request",
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
            "Failed attempts to read the key vault",
            value=sum(each.maintenance.failures for each in held),
        )
        ages = [each.maintenance.age_seconds for each in held]
        if None not in ages:
            yield GaugeMetricFamily(
                "graphward_vault_age_seconds",
                "Seconds since every secret was last read from the key vault",
                value=max(age for age in ages if age is not None),
            )
        ends_at = min(each.ends_at for each in held)
        if not math.isinf(ends_at):
            yield GaugeMetricFamily(
                "graphward_vault_expires_in_seconds",
                "Seconds until the first secret or certificate in use from the key vault expires",
                value=ends_at - time.time(),
            )

    def _traces(self) -> Iterator[Metric]:
        traces = self._health.traces
        if traces is None:
            return
        yield CounterMetricFamily(
            "graphward_spans_exported", "Spans that the trace collector accepted", value=traces.exported
        )
        yield CounterMetricFamily(
            "graphward_spans_lost",
            "Spans that did not fit the queue, were refused, or were left at a stop",
            value=traces.lost,
        )

    def _audit_families(self, audit: AuditStatus) -> Iterator[Metric]:
        gauges = (
            ("pending", "Audit events that are not delivered yet", audit.pending),
            (
                "oldest_pending_seconds",
                "Age in seconds of the oldest audit event that is not delivered",
                audit.oldest_seconds(time.time()),
            ),
        )
        totals = (
            ("missing", "Audit events that were lost", audit.journal.missing),
            ("dropped", "Audit events that the agent deleted unsent to make space", audit.journal.dropped),
            (
                "reused_batch_ids",
                "Batches whose ID the control plane already had for other events",
                audit.reused_ids,
            ),
            (
                "rejected_batches",
                "Batches that the control plane refused for good; the proxy moved them to rejected/",
                audit.journal.rejected_batches,
            ),
        )
        for name, words, value in gauges:
            yield GaugeMetricFamily(f"graphward_audit_{name}", words, value=value)
        for name, words, value in totals:
            yield CounterMetricFamily(f"graphward_audit_{name}", words, value=value)
