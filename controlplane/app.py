"""Server of the control plane: its routes, listeners, background tasks and shutdown."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final
from urllib.parse import urlsplit

from aiohttp import web

from controlplane import __version__
from controlplane.admin import api as admin_api
from controlplane.admin.attempts import AttemptsInMemory, AttemptsInStore
from controlplane.admin.gate import GATE, Gate, gate_keeper
from controlplane.admin.single_sign_on import add_single_sign_on
from controlplane.agent_api import AgentApi, sign_responses
from controlplane.clock import Clock, SystemClock
from controlplane.connections import Connections, allow_all_descriptors
from controlplane.console.frame import Console
from controlplane.enrolment import EnrolmentApi
from controlplane.exposures import exposures
from controlplane.index_writer import IndexWriter
from controlplane.ingest import Ingest
from controlplane.integrity import begin_chain
from controlplane.leader import lead
from controlplane.listeners import Listeners
from controlplane.live_tail import LiveTail
from controlplane.master_key import open_vault
from controlplane.metrics import Counts, Exposition
from controlplane.notices.delivery import Deliveries
from controlplane.notices.webhook import Webhook
from controlplane.notices.writer import NoticeWriter
from controlplane.operations.context import OperationContext
from controlplane.operations.worker_process import end_processes
from controlplane.presence import Presence
from controlplane.readiness import Readiness
from controlplane.requests import response_errors, strict_headers
from controlplane.retention import Retention, WitnessedTime
from controlplane.retirement import Retirement
from controlplane.search import open_index
from controlplane.search.interface import SearchIndex
from controlplane.search.known_event import Parsed
from controlplane.secrets import Vault
from controlplane.settings import Settings
from controlplane.sinks.consumer import Consumers
from controlplane.sinks.open_sink import open_sink
from controlplane.store.interface import Peers, RateLimits, Store
from controlplane.store.open_store import open_store
from proxy.outbound.egress import Egress
from proxy.outbound.settings import egress_of

_log = logging.getLogger(__name__)

# Time for which a search waits for events that are not indexed yet. It suffices unless the index is rebuilt.
_MOMENT_SECONDS: Final = 2.0
_WHILE_BEHIND_SECONDS: Final = 0.05  # A page sends several requests to an index that is known to be behind.
_OBJECTS_BETWEEN_COLLECTIONS: Final = 100_000  # about 20 MB


def build_app(
    settings: Settings,
    store: Store,
    vault: Vault,
    clock: Clock,
    witnessed: WitnessedTime,
    on_stored: Callable[[Parsed | None], None],
    counts: Counts,
) -> web.Application:
    limits = RateLimits(org=settings.audit.rate_limit_org, proxy=settings.audit.rate_limit_proxy)
    api = AgentApi(
        store,
        Ingest(store, limits, clock, on_stored),
        vault,
        clock,
        witnessed,
        counts,
        limits=limits,
        sync_interval_seconds=settings.control_plane.sync_interval_seconds,
        body_timeout_seconds=settings.control_plane.body_timeout_seconds,
    )

    app = web.Application(middlewares=[counts.measured, sign_responses, response_errors])
    app.on_response_prepare.append(strict_headers)
    attempts = AttemptsInStore(store) if store.is_shared else AttemptsInMemory(clock)
    timeout = settings.control_plane.body_timeout_seconds
    enrolment = EnrolmentApi(store, vault, clock, attempts, api, body_timeout_seconds=timeout)
    app.add_routes([*api.routes(), *enrolment.routes(), *Readiness(store).routes()])
    return app


def build_console(settings: Settings, context: OperationContext) -> web.Application:
    """Build the application with the admin API and the console."""
    loopback = all(address.is_loopback for address in settings.console.listen)
    gate = Gate(
        context,
        # Browsers send such a cookie only over TLS, which a loopback listener often does not have.
        secure=settings.console.cert_file is not None
        or settings.console.public_base_url.startswith("https:")
        or not loopback,
        body_timeout_seconds=settings.control_plane.body_timeout_seconds,
        # On other addresses, the names of the host are unknown, and the certificate names the valid ones.
        hosts={urlsplit(settings.console.public_base_url).hostname or ""} if loopback else None,
    )
    console = Console(context)
    app = web.Application(middlewares=[response_errors, console.shows_errors(), gate_keeper])
    app[GATE] = gate
    app.on_cleanup.append(gate.close)
    app.on_response_prepare.append(strict_headers)
    app.add_routes([*admin_api.routes(), *console.routes()])
    add_single_sign_on(app, settings.console, egress_of(settings.egress))
    return app


async def serve(settings: Settings, clock: Clock | None = None) -> None:
    """Run the control plane until it receives SIGTERM or SIGINT.

    Requests in progress get a response before the control plane closes its connections and its store.
    """
    clock = clock or SystemClock()
    allow_all_descriptors()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    for line in (*settings.without_effect, *settings.egress.ignored):
        _log.warning("%s", line)
    for key, what, _ in exposures(settings):
        _log.warning("%s: %s", key, what)
    for address in settings.metrics.listen:
        if not address.is_loopback:
            _log.warning("Metrics.Listen: other hosts can read the metrics at %s without sign-in", address)
    async with running(settings, clock) as addresses:
        listening = ", ".join(addresses.agent_api)
        _log.info("control plane version %s, agent API listening on %s", __version__, listening)
        if addresses.console:
            _log.info("console and admin API on %s", ", ".join(addresses.console))
        _let_collector_rest()
        await stop.wait()
        _log.info("stopping")
    _log.info("stopped")


def _let_collector_rest() -> None:
    """Exclude loaded objects from garbage collection, and run the collector less often.

    Objects loaded at the start are never freed. Nearly all objects of requests are freed by reference
    counting, without the collector. With Python's default collector settings, repeated scans of objects took
    a tenth of the ingestion time (bench.ingest).
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS)


@dataclass(frozen=True, slots=True)
class Addresses:
    """Addresses on which the control plane listens."""

    agent_api: list[str]
    console: list[str]


@asynccontextmanager
async def running(settings: Settings, clock: Clock) -> AsyncIterator[Addresses]:
    """Run the whole control plane from its start to its stop."""
    async with AsyncExitStack() as stack:
        listeners = Listeners(settings, stack.enter_context(ExitStack()))
        where, key_file = settings.store, settings.secrets.key_file
        store = await open_store(where.path, where.url, clock, key_file)
        peers = await _joined(store)
        stack.push_async_callback(_leave, store, peers)
        egress = egress_of(settings.egress)
        vault = await open_vault(settings.secrets, store, egress)
        await begin_chain(vault, store)
        index = await open_index(settings.search_index, store, settings.store.path, has_store=True)
        stack.push_async_callback(index.close)
        stack.callback(end_processes)
        witnessed = WitnessedTime()
        index_writer = IndexWriter(store, index)
        interval_seconds = settings.retention.interval_seconds
        retention = Retention(store, index, clock, witnessed, interval_seconds, settings.event_sinks)
        presence = Presence(store, clock, peers, witnessed)
        await presence.begin()
        stack.push_async_callback(presence.end)
        _in_background(stack, "presence", presence.run())
        tail = LiveTail(store)
        outgoing = _Outgoing(settings, store, clock, egress)

        def stored_elsewhere() -> None:
            index_writer.wake()
            outgoing.wake()
            tail.wake()

        def stored(parsed: Parsed | None) -> None:
            if parsed is None or not peers.leads:
                index_writer.wake()
            else:
                index_writer.take(parsed)
            outgoing.wake()
            tail.wake()
            peers.announce()

        def start_jobs() -> list[asyncio.Task[None]]:
            return [
                _task("forwarder", index_writer.run()),
                _task("retention", retention.run()),
                _task("retirement", Retirement(store, clock, witnessed).run()),
                *(_task(name, run) for name, run in outgoing.runs()),
            ]

        _in_background(stack, "peers", peers.run(stored_elsewhere))
        _in_background(stack, "leader", lead(peers, start_jobs))

        counts = Counts()
        app = build_app(settings, store, vault, clock, witnessed, stored, counts)
        context = _context(settings, store, clock, vault, index, index_writer, tail)
        exposition = Exposition(
            counts,
            store,
            index_writer,
            clock,
            sync_interval_seconds=settings.control_plane.sync_interval_seconds,
            store_path=None if settings.store.url else settings.store.path,
            certificate=settings.control_plane.cert_file,
            retention=retention,
            peers=peers,
            sinks=[each.name for each in settings.sinks],
            webhooks=[each.name for each in settings.webhooks],
        )
        drain_seconds = settings.control_plane.drain_seconds
        listeners.listen()
        await _serve(app, "ControlPlane.Listen", listeners, drain_seconds, stack)
        if settings.console.listen:
            console = build_console(settings, context)
            await _serve(console, "Console.Listen", listeners, drain_seconds, stack)
        stack.callback(tail.close)
        await _serve_scrapes(exposition, listeners, stack)
        yield Addresses(listeners.urls("ControlPlane.Listen"), listeners.urls("Console.Listen"))


class _Outgoing:
    """Background jobs that deliver events to sinks and notices to webhooks."""

    def __init__(self, settings: Settings, store: Store, clock: Clock, egress: Egress) -> None:
        self._consumers = Consumers(settings.event_sinks, store, clock, partial(open_sink, egress=egress))
        self._deliveries = Deliveries(
            settings.webhooks, store, clock, lambda webhook: Webhook(webhook, egress, clock, settings.source)
        )
        self._writer = NoticeWriter(settings.sinks, store, clock, self._deliveries.wake)
        self._has_webhooks = bool(settings.webhooks)

    def wake(self) -> None:
        """Make the delivery jobs look soon for new events to deliver."""
        self._consumers.wake()

    def runs(self) -> list[tuple[str, Coroutine[Any, Any, None]]]:
        """Return a name and a coroutine for each delivery job.

        Without a webhook in the settings, the control plane makes no notices.
        """
        notices = [("notices", self._writer.run())] if self._has_webhooks else []
        return [*self._consumers.runs(), *notices, *self._deliveries.runs()]


async def _joined(store: Store) -> Peers:
    try:
        return store.join()
    except BaseException:
        await store.close()
        raise


async def _leave(store: Store, peers: Peers) -> None:
    await store.close()
    await peers.close()


def _context(
    settings: Settings,
    store: Store,
    clock: Clock,
    vault: Vault,
    index: SearchIndex,
    index_writer: IndexWriter,
    tail: LiveTail,
) -> OperationContext:
    async def opened() -> Vault:
        return vault

    async def filled() -> SearchIndex:
        is_behind = index_writer.is_behind
        await index_writer.catch_up(_WHILE_BEHIND_SECONDS if is_behind else _MOMENT_SECONDS)
        return index

    return OperationContext(
        settings,
        store,
        clock,
        opened,
        filled,
        tail,
        is_behind=lambda: index_writer.is_behind,
        percent_indexed=lambda: index_writer.percent,
    )


def _in_background(stack: AsyncExitStack, name: str, work: Coroutine[Any, Any, None]) -> None:
    stack.push_async_callback(_cancel, _task(name, work))


def _task(name: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    task = asyncio.create_task(work, name=name)
    task.add_done_callback(_say_if_failed)
    return task


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def _say_if_failed(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.critical("%s ended: %s", task.get_name(), error, exc_info=error)


async def _serve(
    app: web.Application, key: str, listeners: Listeners, drain_seconds: float, stack: AsyncExitStack
) -> None:
    """Serve requests until the exit stack closes.

    When the exit stack closes, refuse new connections first, then finish current responses.
    """
    runner = web.AppRunner(app, shutdown_timeout=drain_seconds)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    for server in await listeners.serve(key, Connections(runner)):
        stack.callback(server.close)


async def _serve_scrapes(exposition: Exposition, listeners: Listeners, stack: AsyncExitStack) -> None:
    application = exposition.application()
    application.on_response_prepare.append(strict_headers)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    assert runner.server is not None
    for server in await listeners.serve("Metrics.Listen", runner.server):
        stack.callback(server.close)
