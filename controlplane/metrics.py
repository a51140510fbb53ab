"""Metrics of the control plane for Prometheus: counted in the process, or read from the store at a scrape.

Only the label with the proxy's name takes more values as the fleet grows; one scrape contains at most
MOST_PROXIES values of this label. `python -m tests.metrics_reference` also writes the help texts of the
metrics to docs/reference/metrics.md.
"""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Final

from aiohttp import web
from cryptography import x509
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from controlplane import __version__
from controlplane.clock import Clock
from controlplane.fleet_health import health_bounds
from controlplane.index_writer import IndexWriter
from controlplane.readiness import Readiness
from controlplane.retention import Retention
from controlplane.store.interface import EndingCredential, EnrolmentToken, Peers, Store, StoreError, Tally
from controlplane.store.pages import HEALTH_ORDER, Health
from controlplane.store.reserve import missing_bytes
from controlplane.usage import DAY_MS
from proxy.wire.models import AUDIT_PATH, ENROL_PATH, HEARTBEAT_PATH, METRICS_PATH, SYNC_PATH

disable_created_metrics()  # type: ignore[no-untyped-call]  # omits the extra `_created` series of each series

MOST_PROXIES: Final = 1000  # proxies that a scrape names, the most urgent first
MOST_KEPT: Final = 256  # series of one name; looking one up by its labels takes longer than counting
_ENDPOINTS: Final = {
    SYNC_PATH: "sync",
    HEARTBEAT_PATH: "heartbeat",
    AUDIT_PATH: "audit",
    METRICS_PATH: "metrics",
    ENROL_PATH: "enrol",
}
_BOUNDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_LEFT_MS: Final = {"1d": DAY_MS, "7d": 7 * DAY_MS, "30d": 30 * DAY_MS}
_EVER_MS: Final = 2**62
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Counts:
    """Counters and histograms that the process keeps in memory.

    When the process starts, the counters start at 0, as Prometheus expects.
    """

    def __init__(self) -> None:
        self.registry: Final = CollectorRegistry(auto_describe=False)
        self.events: Final = Counter(
            "graphward_controlplane_events_accepted", "Audit events that were stored", registry=self.registry
        )
        self.batches: Final = Counter(
            "graphward_controlplane_batches",
            "Audit batches by outcome: stored, duplicate, reused, or an error code",
            ["outcome"],
            registry=self.registry,
        )
        self._requests = Counter(
            "graphward_controlplane_requests",
            "Requests of the agent API by endpoint and status",
            ["endpoint", "status"],
            registry=self.registry,
        )
        self._duration = Histogram(
            "graphward_controlplane_request_duration_seconds",
            "Duration of whole requests of the agent API, in seconds",
            ["endpoint"],
            buckets=_BOUNDS,
            registry=self.registry,
        )
        self._of_response = lru_cache(MOST_KEPT)(self._requests.labels)
        self._of_endpoint = lru_cache(MOST_KEPT)(self._duration.labels)
        self.outcome = lru_cache(MOST_KEPT)(self.batches.labels)

    @web.middleware
    async def measured(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        """Count each HTTP request that gets a response."""
        began = time.perf_counter()
        response = await handler(request)
        endpoint = _ENDPOINTS.get(request.path, "other")
        self.count(endpoint, response.status, time.perf_counter() - began)
        return response

    def count(self, endpoint: str, status: int, seconds: float) -> None:
        """Count one HTTP response, and the duration of its request."""
        self._of_response(endpoint, status).inc()
        self._of_endpoint(endpoint).observe(seconds)


class Exposition:
    """Text of a metrics scrape, and the web application that serves it."""

    def __init__(
        self,
        counts: Counts,
        store: Store,
        index_writer: IndexWriter,
        clock: Clock,
        *,
        sync_interval_seconds: int,
        store_path: Path | None,
        certificate: Path | None,
        retention: Retention,
        peers: Peers,
        sinks: Sequence[str] = (),
        webhooks: Collection[str] = (),
    ) -> None:
        self._counts = counts
        self._store = store
        self._index_writer = index_writer
        self._clock = clock
        self._retention = retention
        self._peers = peers
        self._sinks = sinks  # names of sinks
        self._webhooks = webhooks  # names of sinks that receive notices instead of events
        self._interval_ms = sync_interval_seconds * 1000
        self._store_path = store_path
        self._ends_at = None if certificate is None else _end_of(certificate)

    def application(self) -> web.Application:
        async def scrape(request: web.Request) -> web.Response:
            return web.Response(body=await self.text(), headers={"Content-Type": CONTENT_TYPE_LATEST})

        application = web.Application()
        application.add_routes([web.get("/metrics", scrape), *Readiness(self._store).routes()])
        return application

    async def text(self) -> bytes:
        """Return the text of a metrics scrape.

        If the store is unreachable, the text has only the metrics that do not need the store.
        """
        bounds = health_bounds(self._clock.wall_ms(), self._interval_ms)
        try:
            tally = await self._store.tally(MOST_PROXIES)
            of_store = [
                *_of_each_proxy(tally),
                *_of_each_token(await self._store.enrolment_tokens(), self._clock.wall_ms()),
                *_of_credentials(await self._store.ending_credentials(None, _EVER_MS), self._clock.wall_ms()),
                *(await self._of_each_sink() if self._peers.leads else ()),
                _by_health(await self._store.count_proxies(bounds, None)),
                _gauge(
                    "instances",
                    "Running control planes that share the store",
                    value=len(await self._store.running_instances()),
                ),
            ]
        except StoreError:
            tally, of_store = None, []
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Families([*self._gauges(tally), *of_store]))
        return generate_latest(self._counts.registry) + generate_latest(registry)

    async def _of_each_sink(self) -> list[Metric]:
        """Return gauges and counters of the sinks in the settings.

        Only the leader delivers events to sinks, so only the leader has the metrics of sinks.
        """
        if not self._sinks:
            return []
        states, newest = await self._store.sink_states(), await self._store.last_position()
        now_ms = self._clock.wall_ms()
        families = _sink_families()
        for name in self._sinks:
            state = states.get(name)
            if state is None:  # The sink begins within seconds.
                continue
            if name in self._webhooks:
                oldest_ms = await self._store.oldest_notice_after(state.position)
                behind = await self._store.notices_waiting(state.position)
            else:
                oldest_ms = await self._store.oldest_received_after(state.position)
                behind = 0 if oldest_ms is None else max(0, newest - state.position)
            age = 0.0 if oldest_ms is None else max(0, now_ms - oldest_ms) / 1000
            values = (behind, age, state.delivered, state.dead_letters, state.problem is None)
            for family, value in zip(families, values, strict=True):
                family.add_metric([name], value)
        return [*families]

    def _gauges(self, tally: Tally | None) -> Iterator[Metric]:
        build = _gauge("build_info", "Version of the control plane", label="version")
        build.add_metric([__version__], 1)
        yield build
        yield _gauge("store_readable", "1 if the store responds, else 0", value=tally is not None)
        if self._store_path is not None:
            yield from _of_files(self._store_path)
        leads = self._peers.leads
        yield _gauge(
            "leads",
            "1 if this control plane leads those that share the store, else 0",
            value=leads,
        )
        yield _gauge(
            "index_failing",
            "1 if the search index accepts no events, else 0",
            value=leads and self._index_writer.problem is not None,
        )
        yield _gauge(
            "retention_failing",
            "1 if the last deletion of old events failed, else 0",
            value=leads and self._retention.problem is not None,
        )
        yield _gauge(
            "index_left_out_events",
            "Events that the search index could not store, since the start",
            value=self._index_writer.left_out,
        )
        if self._ends_at is not None:
            yield _gauge(
                "certificate_expires_in_seconds",
                "Seconds until the listener's certificate expires",
                value=self._ends_at.timestamp() - self._clock.wall_ms() / 1000,
            )
        if tally is not None:
            yield _gauge(
                "broken_chains",
                "Organisations whose chain of events had a mismatch at its last verification",
                value=tally.broken_chains,
            )
        # Only the leader writes the index.
        if tally is not None and leads and self._index_writer.is_measured:
            lag = max(0, tally.newest_position - self._index_writer.position)
            yield _gauge(
                "index_lag_events",
                "Stored events that are not in the search index yet; only the leader has this metric",
                value=lag,
            )


class _Families(Collector):
    """Prometheus collector that returns the metric families that its constructor received."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> list[Metric]:
        return self._families


def _by_health(counts: Mapping[Health, int]) -> Metric:
    proxies = _gauge("proxies", "Proxies by health, as `proxy list` shows it", label="health")
    for health in HEALTH_ORDER:
        proxies.add_metric([health], counts.get(health, 0))
    return proxies


def _of_each_proxy(tally: Tally) -> Iterator[Metric]:
    """Yield the gauges of each proxy, with the proxy's name as a label.

    Only enabled proxies have the gauge for the time of the last message.
    """
    seen = _gauge(
        "proxy_last_seen_timestamp_seconds",
        "Time of the proxy's latest signed request, or of its creation, in Unix seconds",
        label="proxy",
    )
    losses = GaugeMetricFamily(
        "graphward_controlplane_proxy_losses",
        "Events that are missing, have a repeated number or an implausible time, and are not acknowledged",
        labels=["proxy", "kind"],
    )
    missing = _gauge(
        "proxy_missing_events", "Sequence numbers below the highest whose event never arrived", label="proxy"
    )
    repeated = _gauge(
        "proxy_repeated_numbers",
        "Events with a sequence number that another event already had",
        label="proxy",
    )
    reused = _gauge(
        "proxy_reused_batch_ids", "Batches with an ID that was used before for other content", label="proxy"
    )
    for proxy in tally.proxies:
        if proxy.enabled:
            seen.add_metric([proxy.name], proxy.last_seen_ms / 1000)
        missing.add_metric([proxy.name], proxy.missing)
        repeated.add_metric([proxy.name], proxy.repeated)
        for kind, count in proxy.losses._asdict().items():
            losses.add_metric([proxy.name, kind], count)
        reused.add_metric([proxy.name], proxy.reused)
    yield seen
    yield losses
    yield missing
    yield repeated
    yield reused


def _sink_families() -> tuple[GaugeMetricFamily | CounterMetricFamily, ...]:
    def gauge(name: str, words: str) -> GaugeMetricFamily:
        return GaugeMetricFamily(f"graphward_sink_{name}", words, labels=["sink"])

    return (
        gauge(
            "lag_events", "Stored events after the sink's position, including those that its filter excludes"
        ),
        gauge("lag_seconds", "Age in seconds of the oldest event after the sink's position"),
        CounterMetricFamily("graphward_sink_delivered", "Events that the sink accepted", labels=["sink"]),
        gauge("dead_letters", "Events that the sink refused for good and that nobody discarded"),
        gauge("up", "1 if the sink accepted the last delivery, else 0"),
    )


def _of_each_token(tokens: Sequence[EnrolmentToken], now_ms: int) -> Iterator[Metric]:
    """Yield the gauges of each enrolment token that is valid or used up."""
    uses = _gauge("enrolment_token_uses", "Enrolments that the token allows", label="token")
    left = _gauge("enrolment_token_uses_left", "Enrolments that the token still allows", label="token")
    ends = _gauge(
        "enrolment_token_expires_timestamp_seconds",
        "Time when the token expires, in Unix seconds",
        label="token",
    )
    for token in tokens:
        if token.state_at(now_ms) in ("valid", "used up"):
            uses.add_metric([token.name], token.uses)
            left.add_metric([token.name], token.uses - token.used)
            ends.add_metric([token.name], token.expires_ms / 1000)
    yield uses
    yield left
    yield ends


def _of_credentials(ending: Sequence[EndingCredential], now_ms: int) -> Iterator[Metric]:
    """Yield gauges of the number of expiring application credentials, by the remaining time."""
    counted = dict.fromkeys(("ended", *_LEFT_MS, "later"), 0)
    for each in ending:
        left_ms = each.ends_ms - now_ms
        kinds = ("ended",) if left_ms <= 0 else (name for name, ms in _LEFT_MS.items() if left_ms <= ms)
        counted[next(iter(kinds), "later")] += 1
    by_time = _gauge(
        "credentials_ending",
        "Credentials of enabled applications by the time until they end; replaced secrets do not count",
        label="left",
    )
    for name, count in counted.items():
        by_time.add_metric([name], count)
    yield by_time
    yield _gauge(
        "credentials_ended_in_use",
        "Ended credentials of enabled applications that were used in the 7 days before their end",
        value=sum(each.ended_in_use(now_ms) for each in ending),
    )
    soonest = next((each.ends_ms for each in ending if each.ends_ms > now_ms), None)
    if soonest is not None:
        yield _gauge(
            "credential_soonest_end_timestamp_seconds",
            "Time when the next credential of an enabled application ends, in Unix seconds",
            value=soonest / 1000,
        )


def _gauge(
    name: str, words: str, *, value: float | None = None, label: str | None = None
) -> GaugeMetricFamily:
    labels = None if label is None else [label]
    return GaugeMetricFamily(f"graphward_controlplane_{name}", words, value=value, labels=labels)


def _size(store: Path) -> int:
    files = (store.with_name(store.name + ending) for ending in ("", "-wal", "-shm"))
    return sum(file.stat().st_size for file in files if file.exists())


def _of_files(store: Path) -> Iterator[Metric]:
    yield _gauge("store_bytes", "Size of the store's files, in bytes", value=_size(store))
    yield _gauge("store_free_bytes", "Free disk space beside the store, in bytes", value=_free(store))
    yield _gauge(
        "reserve_missing_bytes",
        "Bytes that are missing from the reserve for operators on a full disk",
        value=missing_bytes(store),
    )


def _free(store: Path) -> int:
    room = os.statvfs(store.parent)
    return room.f_bavail * room.f_frsize


def _end_of(certificate: Path) -> datetime:
    """Return the time at which the server's certificate expires.

    The first certificate in the validated chain is the certificate of the server.
    """
    return x509.load_pem_x509_certificate(certificate.read_bytes()).not_valid_after_utc
