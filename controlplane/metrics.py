"""What Prometheus reads of the control plane: counted here, or asked of the store when it is scraped.

The only label that grows with use is the proxy's name, and only as many of them are reported as a scrape
should hold.
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

disable_created_metrics()  # type: ignore[no-untyped-call]  # a series for each series, that nobody looks at

MOST_PROXIES: Final = 1000  # that a scrape names, by their urgency
MOST_KEPT: Final = 256  # series of one name: to look one up by its labels takes longer than to count
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
        sinks: Sequence[str] = (),
        webhooks: Collection[str] = (),
    ) -> None:
        self._counts = counts
        self._store = store
        self._index_writer = index_writer
        self._clock = clock
        self._retention = retention
        self._peers = peers
        self._sinks = sinks  # names
        self._webhooks = webhooks  # names of those that get notices in place of events
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
                *_of_each_token(await self._store.enrolment_tokens(), self._clock.wall_ms()),
                *_of_credentials(await self._store.ending_credentials(None, _EVER_MS), self._clock.wall_ms()),
                *(await self._of_each_sink() if self._peers.leads else ()),
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

    async def _of_each_sink(self) -> list[Metric]:
        """Gauges and counters of the sinks in the settings. Only the leader delivers, and gives them."""
        if not self._sinks:
            return []
        states, newest = await self._store.sink_states(), await self._store.last_position()
        now_ms = self._clock.wall_ms()
        families = _sink_families()
        for name in self._sinks:
            state = states.get(name)
            if state is None:  # it begins within seconds
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


def _sink_families() -> tuple[GaugeMetricFamily | CounterMetricFamily, ...]:
    def gauge(name: str, words: str) -> GaugeMetricFamily:
        return GaugeMetricFamily(f"graphward_sink_{name}", words, labels=["sink"])

    return (
        gauge("lag_events", "Stored events that the sink was not given yet, unwanted ones included"),
        gauge("lag_seconds", "Age of the oldest of them"),
        CounterMetricFamily("graphward_sink_delivered", "Events that the sink took", labels=["sink"]),
        gauge("dead_letters", "Events that the sink refused for good, and nobody discarded"),
        gauge("up", "Whether the sink took what it was given last"),
    )


def _of_each_token(tokens: Sequence[EnrolmentToken], now_ms: int) -> Iterator[Metric]:
    """Gauges of each enrolment token that is valid or used up."""
    uses = _gauge("enrolment_token_uses", "Enrolments that the token allows", label="token")
    left = _gauge("enrolment_token_uses_left", "Enrolments that are left of them", label="token")
    ends = _gauge("enrolment_token_expires_timestamp_seconds", "When the token expires", label="token")
    for token in tokens:
        if token.state_at(now_ms) in ("valid", "used up"):
            uses.add_metric([token.name], token.uses)
            left.add_metric([token.name], token.uses - token.used)
            ends.add_metric([token.name], token.expires_ms / 1000)
    yield uses
    yield left
    yield ends


def _of_credentials(ending: Sequence[EndingCredential], now_ms: int) -> Iterator[Metric]:
    """Gauges of credentials of apps that end, by the time that is left."""
    counted = dict.fromkeys(("ended", *_LEFT_MS, "later"), 0)
    for each in ending:
        left_ms = each.ends_ms - now_ms
        kinds = ("ended",) if left_ms <= 0 else (name for name, ms in _LEFT_MS.items() if left_ms <= ms)
        counted[next(iter(kinds), "later")] += 1
    by_time = _gauge(
        "credentials_ending", "Credentials of enabled apps by the time until they end", label="left"
    )
    for name, count in counted.items():
        by_time.add_metric([name], count)
    yield by_time
    yield _gauge(
        "credentials_ended_in_use",
        "Credentials of enabled apps that have ended, and were used in the week before",
        value=sum(each.ended_in_use(now_ms) for each in ending),
    )
    soonest = next((each.ends_ms for each in ending if each.ends_ms > now_ms), None)
    if soonest is not None:
        yield _gauge(
            "credential_soonest_end_timestamp_seconds",
            "When the next credential of an enabled app ends",
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
