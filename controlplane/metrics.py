"""What Prometheus reads of the control plane: counted here, or asked of the store when it is scraped.

The only label that grows with use is the proxy's name, and only as many of them are reported as a scrape
should hold.
"""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
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
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from controlplane import __version__
from controlplane.clock import Clock
from controlplane.fleet_health import health_bounds
from controlplane.index_writer import IndexWriter
from controlplane.readiness import Readiness
from controlplane.retention import Retention
from controlplane.store.interface import Peers, Store, StoreError, Tally
from controlplane.store.pages import HEALTH_ORDER, Health
from controlplane.store.reserve import missing_bytes
from proxy.wire.models import AUDIT_PATH, HEARTBEAT_PATH, METRICS_PATH, SYNC_PATH

disable_created_metrics()  # type: ignore[no-untyped-call]  # a series for each series, that nobody looks at

MOST_PROXIES: Final = 1000  # that a scrape names, by their urgency
MOST_KEPT: Final = 256  # series of one name: to look one up by its labels takes longer than to count
_ENDPOINTS: Final = {
    SYNC_PATH: "sync",
    HEARTBEAT_PATH: "heartbeat",
    AUDIT_PATH: "audit",
    METRICS_PATH: "metrics",
}
_BOUNDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Counts:
    """What the process counts as it goes; it begins again with the process, as Prometheus expects."""

    def __init__(self) -> None:
        self.registry: Final = CollectorRegistry(auto_describe=False)
        self.events: Final = Counter(
            "graphward_controlplane_events_accepted", "Audit events that were stored", registry=self.registry
        )
        self.batches: Final = Counter(
            "graphward_controlplane_batches",
            "Audit batches by what became of them",
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
            "Duration of whole requests of the agent API",
            ["endpoint"],
            buckets=_BOUNDS,
            registry=self.registry,
        )
        self._of_response = lru_cache(MOST_KEPT)(self._requests.labels)
        self._of_endpoint = lru_cache(MOST_KEPT)(self._duration.labels)
        self.outcome = lru_cache(MOST_KEPT)(self.batches.labels)

    @web.middleware
    async def measured(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        """Counts what gets a response. A client that left before reads no response."""
        began = time.perf_counter()
        response = await handler(request)
        endpoint = _ENDPOINTS.get(request.path, "other")
        self._of_response(endpoint, response.status).inc()
        self._of_endpoint(endpoint).observe(time.perf_counter() - began)
        return response


class Exposition:
    """The text of a scrape, and the listener's application that gives it."""

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
    ) -> None:
        self._counts = counts
        self._store = store
        self._index_writer = index_writer
        self._clock = clock
        self._retention = retention
        self._peers = peers
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
        """With the store away, what is known without it."""
        bounds = health_bounds(self._clock.wall_ms(), self._interval_ms)
        try:
            tally = await self._store.tally(MOST_PROXIES)
            of_store = [
                *_of_each_proxy(tally),
                _by_health(await self._store.count_proxies(bounds, None)),
                _gauge(
                    "instances",
                    "Control planes that share the store and run",
                    value=len(await self._store.running_instances()),
                ),
            ]
        except StoreError:
            tally, of_store = None, []
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Families([*self._gauges(tally), *of_store]))
        return generate_latest(self._counts.registry) + generate_latest(registry)

    def _gauges(self, tally: Tally | None) -> Iterator[Metric]:
        build = _gauge("build_info", "Version of the control plane", label="version")
        build.add_metric([__version__], 1)
        yield build
        yield _gauge("store_readable", "Whether the store responds", value=tally is not None)
        if self._store_path is not None:
            yield from _of_files(self._store_path)
        leads = self._peers.leads
        yield _gauge(
            "leads", "Whether it keeps index and retention going for all that share its store", value=leads
        )
        yield _gauge(
            "index_failing",
            "Whether the index takes no events",
            value=leads and self._index_writer.problem is not None,
        )
        yield _gauge(
            "retention_failing",
            "Whether the last pass of retention failed",
            value=leads and self._retention.problem is not None,
        )
        yield _gauge(
            "index_left_out_events",
            "Events that the index could not take, since the start",
            value=self._index_writer.left_out,
        )
        if self._ends_at is not None:
            yield _gauge(
                "certificate_expires_in_seconds",
                "Until the listener's certificate ends",
                value=self._ends_at.timestamp() - self._clock.wall_ms() / 1000,
            )
        if tally is not None:
            yield _gauge(
                "broken_chains",
                "Organisations with a mismatch in their chain of events, by its last verification",
                value=tally.broken_chains,
            )
        if tally is not None and leads and self._index_writer.is_measured:  # only the leader writes the index
            lag = max(0, tally.newest_position - self._index_writer.position)
            yield _gauge("index_lag_events", "Stored events that are not in the index yet", value=lag)


class _Families(Collector):
    """What was gathered already, as a registry wants it."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> list[Metric]:
        return self._families


def _by_health(counts: Mapping[Health, int]) -> Metric:
    proxies = _gauge("proxies", "Proxies by health, as the list of proxies says it", label="health")
    for health in HEALTH_ORDER:
        proxies.add_metric([health], counts.get(health, 0))
    return proxies


def _of_each_proxy(tally: Tally) -> Iterator[Metric]:
    """Gauges of each proxy. The time of the last message is given for enabled ones alone."""
    seen = _gauge(
        "proxy_last_seen_timestamp_seconds",
        "The proxy's latest signed message; where there was none, when it was made",
        label="proxy",
    )
    losses = GaugeMetricFamily(
        "graphward_controlplane_proxy_losses",
        "Missing events, repeated numbers and implausible times that no operator has acknowledged",
        labels=["proxy", "kind"],
    )
    missing = _gauge(
        "proxy_missing_events", "Sequence numbers below the highest that never came", label="proxy"
    )
    repeated = _gauge(
        "proxy_repeated_numbers", "Events under sequence numbers that others had before", label="proxy"
    )
    reused = _gauge(
        "proxy_reused_batch_ids", "Batches with an id used before for other content", label="proxy"
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


def _gauge(
    name: str, words: str, *, value: float | None = None, label: str | None = None
) -> GaugeMetricFamily:
    labels = None if label is None else [label]
    return GaugeMetricFamily(f"graphward_controlplane_{name}", words, value=value, labels=labels)


def _size(store: Path) -> int:
    files = (store.with_name(store.name + ending) for ending in ("", "-wal", "-shm"))
    return sum(file.stat().st_size for file in files if file.exists())


def _of_files(store: Path) -> Iterator[Metric]:
    yield _gauge("store_bytes", "Size of the store's files", value=_size(store))
    yield _gauge("store_free_bytes", "Room beside them", value=_free(store))
    yield _gauge(
        "reserve_missing_bytes",
        "Room for operators on a full disk that is used up",
        value=missing_bytes(store),
    )


def _free(store: Path) -> int:
    room = os.statvfs(store.parent)
    return room.f_bavail * room.f_frsize


def _end_of(certificate: Path) -> datetime:
    """Of the server's own certificate, which stands first in its chain; that it can be read is known."""
    return x509.load_pem_x509_certificate(certificate.read_bytes()).not_valid_after_utc
