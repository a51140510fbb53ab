"""One worker process: event loop, listeners, rules, upstream credentials, spool maintenance and drain."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import math
import os
import resource
import secrets
import signal
import socket
import ssl
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Final, NoReturn
from urllib.parse import urlsplit

import msgspec
import uvloop

from proxy.audit.spool import SILENT_SECONDS, SpoolWriter
from proxy.ipc.channel import (
    ActiveUpstreamToken,
    Channel,
    Hello,
    IssuerKeys,
    Message,
    Rules,
    SigningKeys,
    SnapshotUnusable,
    UnknownIssuerKey,
    UpstreamTokenRejected,
    UpstreamTokenUnavailable,
)
from proxy.ipc.counters import (
    ALIVE_AT,
    CREDENTIAL_READY,
    IN_FLIGHT,
    KILL_FILE,
    LOADED_RULES,
    SIGNING_KEY_READY,
    SNAPSHOT_GENERATION,
    SPOOL_DROPPED,
    SPOOL_READY,
    STARTS,
    TAKES_REQUESTS,
    UPSTREAM_OPEN,
    Counters,
)
from proxy.outbound.settings import egress_of
from proxy.policy import interpretations
from proxy.policy.gates import parse_network
from proxy.rules.kill_file import NO_ORDER, KillOrder, read_kill_file
from proxy.rules.schemas import load_models
from proxy.rules.snapshot import Snapshot, SnapshotDamaged, read_snapshot
from proxy.rules.stops import NOTHING_STOPPED, Stops
from proxy.server.assertions.assertion_judge import AssertionJudge
from proxy.server.assertions.judge import Expectations
from proxy.server.assertions.used import UsedAssertions, used_directory
from proxy.server.callers.client_certificates import ClientCertificates
from proxy.server.callers.rulebook import Rulebook, build_rulebook
from proxy.server.callers.token_keeper import TokenKeeper, TokenSettings
from proxy.server.client.connection import ClientConnection
from proxy.server.client.tls_listener import TlsListener
from proxy.server.context import Context, Limits
from proxy.server.loop.deadlines import Deadlines
from proxy.server.loop.iteration import LoopIteration
from proxy.server.router import handler_for
from proxy.server.upstream.credentials import UpstreamCredentials
from proxy.server.upstream.pool import UpstreamPool
from proxy.server.upstream.settings import UpstreamSettings
from proxy.startup.certificates import Certificates
from proxy.startup.settings import Settings

logger = logging.getLogger(__package__)

FIRST_ROOM_SECONDS: Final = 1.0  # seconds that the first heartbeat waits for space in the spool
MAINTENANCE_SECONDS: Final = 0.1
LOOK_SECONDS: Final = 0.01  # seconds between two checks of a worker that is not ready
GIVE_WAY_SECONDS: Final = 0.0002
KILL_FILE_SECONDS: Final = 1.0
RELOAD_RETRY_SECONDS: Final = 1.0
# longest wait of a new worker until it is ready; then it accepts requests in any case
FIRST_REQUEST_SECONDS: Final = 5.0
COMPARING_THREADS: Final = 2  # threads that compare secrets
FILE_THREADS: Final = 4  # threads for blocking work: spool, snapshot, kill file, and one more
ACCEPT_SECONDS: Final = 0.02
# seconds that idle connections stay open at a stop, so that busy clients can send one more request
LAST_REQUEST_SECONDS: Final = 1.0
BACKLOG: Final = 4096
ID_PREFIX_BITS: Final = 34
RESERVED_DESCRIPTORS: Final = 128  # descriptors of listeners, channel, spool segments and libraries


def run_worker(
    settings: Settings,
    keys: tuple[bytes, ...],
    certificates: Certificates,
    listeners: list[socket.socket],
    channel: socket.socket,
    counters: Counters,
    ready: Callable[[], None],
    *,
    until_ready: bool,
) -> int:
    """Run the worker process until it receives SIGTERM, and then until its connections are drained.

    The worker calls `ready` when it accepts requests. With `until_ready`, the worker waits without a time
    limit for rules and upstream tokens before it accepts requests.
    """
    gc.enable()  # all modules are imported
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(
            Worker(settings, keys, certificates, counters).run(
                listeners, channel, ready, until_ready=until_ready
            )
        )
    return 0


class Worker:
    """Owner of the state that a worker process shares among all of its HTTP exchanges.

    The worker process updates the state that its exchanges share.
    """

    def __init__(
        self, settings: Settings, keys: tuple[bytes, ...], certificates: Certificates, counters: Counters
    ) -> None:
        self._settings = settings
        self._keys = keys
        self._certificates = certificates
        self._counters = counters
        self._comparing = _threads(COMPARING_THREADS)
        self._files = _threads(FILE_THREADS)
        self._spool = self._make_spool()
        self._maintenance: asyncio.Future[None] | None = None  # current maintenance of the spool
        self._maintained_at = 0.0  # start of the last maintenance, by the event loop's clock
        self._stop = asyncio.Event()
        self._reloading: asyncio.Task[None] | None = None
        self._reload_again = False
        self._dropped_before = 0
        self._had_room = True
        self._snapshot: Snapshot | None = None  # the active snapshot
        self._received_rules: Rules | None = None
        self._confirmed_at = 0.0  # confirmation time of the received rules, by the event loop's clock
        self._stopped_beside = NOTHING_STOPPED
        self._describe_stops = NOTHING_STOPPED
        self._unusable = ""  # reason why the snapshot on disk is not used
        self._kill_file = settings.proxy.kill_file
        self._kill_order = NO_ORDER
        self._overlooks_kill_file = False

    async def run(
        self,
        listeners: list[socket.socket],
        channel: socket.socket,
        ready: Callable[[], None],
        *,
        until_ready: bool,
    ) -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._stop.set)
        self._counters.reset_gauges()
        self._counters.values[STARTS] += 1
        self._deadlines = Deadlines(loop)
        self._deadlines.start()
        self._credentials = UpstreamCredentials(
            self._settings.credentials.assignments, self._ask_for_another_credential
        )
        self._context = self._make_context(loop)
        signal.signal(signal.SIGABRT, self._end_at_once)
        maintaining = self._task(loop, self._maintain_periodically())
        self._apply_kill_order(await loop.run_in_executor(self._files, read_kill_file, self._kill_file))
        await self._load_snapshot()
        self._channel = Channel(channel, self._take_message)
        self._channel.send(Hello())
        watch = self._task(loop, self._watch_kill_file())
        await self._until_able(None if until_ready else FIRST_REQUEST_SECONDS)
        servers = await self._listen(loop, listeners)
        self._beat(loop)
        self._counters.values[TAKES_REQUESTS] = 1
        ready()
        await self._stop.wait()
        self._counters.values[TAKES_REQUESTS] = 0
        await self._drain(servers, listeners)
        maintaining.cancel()
        watch.cancel()
        if self._maintenance is not None:
            self._maintenance.cancel()  # the spool is closed next, so no more segments may be prepared
        self._channel.close()
        await loop.run_in_executor(self._files, self._spool.close)
        for threads in (self._comparing, self._files):
            threads.shutdown(wait=False, cancel_futures=True)

    def _task(self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start an asyncio task that the worker process needs.

        If this task fails, the worker process ends and the supervisor starts another worker process.
        """
        task = loop.create_task(work)
        task.add_done_callback(self._end_if_failed)
        return task

    def _end_if_failed(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (fault := task.exception()) is not None:
            logger.error("this worker ends after an internal error", exc_info=fault)
            self._end_at_once()

    def _end_at_once(self, *_: object) -> NoReturn:
        """Write the audit records of all current requests to the spool, and exit the process.

        `_end_at_once` is also the signal handler for a worker whose event loop does not respond to the
        supervisor. Python runs the signal handler even during a call that blocks the event loop. The
        interrupted code does not continue, because the signal handler exits the process.
        """
        for connection in list(self._context.connections):
            with contextlib.suppress(Exception):
                connection.record_unfinished()
        os._exit(1)

    # Setup

    def _make_spool(self) -> SpoolWriter:
        audit = self._settings.audit
        return SpoolWriter(
            audit.local_retention_path,
            segment_bytes=self._settings.segment_bytes,
            max_bytes=audit.max_disk_bytes,
            when_full=audit.when_full,
            id_prefix=secrets.randbits(ID_PREFIX_BITS),
        )

    def _make_context(self, loop: asyncio.AbstractEventLoop) -> Context:
        settings = self._settings
        proxy, upstream, token = settings.proxy, settings.upstream, settings.token
        iteration = LoopIteration(loop)
        towards = _upstream_settings(settings, self._certificates.upstream)
        pool = UpstreamPool(loop, towards, self._deadlines, self._counters, iteration)
        limits = Limits(
            max_header_bytes=proxy.max_header_bytes,
            max_header_count=proxy.max_header_count,
            max_buffered_body=proxy.max_buffered_body_bytes,
            max_filter_bytes=upstream.max_filter_bytes,
            head_timeout=proxy.head_timeout_seconds,
            idle_timeout=proxy.idle_timeout_seconds,
            body_grace=proxy.body_grace_seconds,
            min_body_rate=proxy.min_body_bytes_per_second,
            upstream_wait=upstream.connect_timeout_seconds,
            token_lifetime=token.lifetime_seconds,
            max_staleness=settings.rule_sync.max_staleness_seconds,
            max_connections=_affordable_connections(settings),
            max_connections_per_address=proxy.max_connections_per_address,
            max_held_bytes=proxy.max_held_bytes,
            max_failures_per_address=token.max_failures_per_address,
            max_failures_per_client=token.max_failures_per_client,
        )
        return Context(
            limits=limits,
            deadlines=self._deadlines,
            counters=self._counters,
            spool=self._spool,
            tokens=TokenKeeper(
                TokenSettings(token.issuer, token.audience, token.lifetime_seconds), self._keys
            ),
            pool=pool,
            iteration=iteration,
            upstream_base=upstream.base_url,
            other_bases=upstream.other_base_urls,
            statuses_as_502=upstream.statuses_as_502,
            rewrite_links=upstream.rewrite_links,
            interpretations=interpretations.bits(upstream.interpretations),
            public_base=proxy.public_base_url,
            contact=proxy.contact,
            trusted_proxies=tuple(parse_network(str(each)) for each in proxy.trusted_proxies),
            executor=self._comparing,
            loop=loop,
            assertions=self._assertions(),
            client_certificates=ClientCertificates(
                None if proxy.client_certificates == "off" else self._certificates.listener
            ),
        )

    def _assertions(self) -> AssertionJudge:
        settings = self._settings
        return AssertionJudge(
            Expectations(settings.proxy.public_base_url, settings.callers.clock_skew_seconds),
            UsedAssertions(used_directory(settings.audit.local_retention_path)),
            lambda issuer: self._channel.send(UnknownIssuerKey(issuer)),
        )

    async def _until_able(self, patience: float | None) -> None:
        """Wait until the worker has rules, upstream tokens and space for audit events.

        While the worker waits, the kernel's accept queue holds new connections.
        """
        loop = asyncio.get_running_loop()
        end = None if patience is None else loop.time() + patience
        while not self._stop.is_set():
            if self._context.why_not_ready() is None and self._credentials.settled(
                self._context.rulebook.credentials, loop.time()
            ):
                return
            if end is not None and loop.time() >= end:
                logger.warning(
                    "this worker is not ready and refuses requests: %s", self._why_unable(loop.time())
                )
                return
            await asyncio.sleep(LOOK_SECONDS)
        logger.warning("stopped this worker before it was ready: %s", self._why_unable(loop.time()))

    def _why_unable(self, now: float) -> str:
        return self._context.why_not_ready() or f"no upstream token: {self._credentials.why_unsettled(now)}"

    async def _listen(
        self, loop: asyncio.AbstractEventLoop, listeners: list[socket.socket]
    ) -> list[asyncio.Server | TlsListener]:
        tls = self._certificates.listener
        context = self._context
        if tls is not None:
            timeout = self._settings.proxy.head_timeout_seconds
            return [TlsListener(context, handler_for, listener.dup(), tls, timeout) for listener in listeners]
        return [
            await loop.create_server(
                lambda: ClientConnection(context, handler_for, secure=False),
                sock=listener.dup(),
                backlog=BACKLOG,
            )
            for listener in listeners
        ]

    # Rules and credentials

    def _take_message(self, message: Message) -> None:
        match message:
            case Rules():
                self._take_rules(message)
            case ActiveUpstreamToken():
                self._take_credential(message)
            case SigningKeys(keys):
                self._context.tokens.use_keys(keys)
            case IssuerKeys(issuer, keys, good_until):
                self._context.assertions.keys.take(issuer, keys, good_until)
            case UpstreamTokenUnavailable(identity, detail, retry_after):
                credential = self._credentials.named(identity)
                if credential is not None:
                    credential.unavailable(detail, max(1, round(retry_after)))
            case _:
                pass

    def _take_rules(self, report: Rules) -> None:
        if report.stopped != self._stopped_beside:
            self._stopped_beside = report.stopped
            self._activate(self._context.rulebook)
        if not report.generation:
            return
        age = math.inf if report.age is None else report.age
        self._received_rules, self._confirmed_at = report, asyncio.get_running_loop().time() - age
        if self._is_active(report.generation):
            self._context.synced_at = self._confirmed_at
        else:
            self._reload()

    def _is_active(self, generation: int) -> bool:
        return self._snapshot is not None and self._snapshot.generation == generation

    def _take_credential(self, report: ActiveUpstreamToken) -> None:
        credential = self._credentials.named(report.identity)
        if credential is not None and report.generation >= credential.generation:
            ends_at = asyncio.get_running_loop().time() + report.expires_at - time.time()
            credential.renew(report.token, ends_at, report.generation)

    def _ask_for_another_credential(self, identity: str, generation: int) -> None:
        self._channel.send(UpstreamTokenRejected(identity, generation))

    def _reload(self) -> None:
        if self._reloading is not None and not self._reloading.done():
            self._reload_again = True
            return
        self._reloading = asyncio.get_running_loop().create_task(self._reload_as_asked())

    async def _reload_as_asked(self) -> None:
        """Load the snapshot repeatedly until the rules that the agent has reported are active.

        If a worker cannot use the snapshot, the worker requests that the agent writes the snapshot again.
        """
        while True:
            self._reload_again = False
            await self._load_snapshot()
            if self._reload_again:
                continue
            if self._received_rules is None or self._is_active(self._received_rules.generation):
                return
            self._channel.send(SnapshotUnusable())
            await asyncio.sleep(RELOAD_RETRY_SECONDS)

    async def _load_snapshot(self) -> None:
        """Activate the rules in the persisted snapshot.

        If the snapshot cannot be used, the active rules do not change.
        """
        loop = asyncio.get_running_loop()
        path = self._settings.rule_sync.cache_path
        try:
            snapshot = await loop.run_in_executor(self._files, read_snapshot, path, _give_way)
            known = self._context.rulebook.models
            models = await loop.run_in_executor(self._files, load_models, snapshot, known)
        except FileNotFoundError:
            return
        except (SnapshotDamaged, OSError) as error:
            if str(error) != self._unusable:
                logger.error("cannot use the rules snapshot, so the active rules do not change: %s", error)
            self._unusable = str(error)
            return
        self._unusable = ""
        if self._is_active(snapshot.generation):
            return
        rulebook = await build_rulebook(snapshot, self._context.rulebook, self._credentials, models)
        await self._context.client_certificates.trust(rulebook)
        # without its large members
        self._snapshot = msgspec.structs.replace(snapshot, rulesets=(), schemas={})
        self._activate(rulebook)
        is_active = self._received_rules is not None and self._is_active(self._received_rules.generation)
        by_its_file = loop.time() - snapshot.age_at(time.time())
        self._context.synced_at = self._confirmed_at if is_active else by_its_file
        values = self._counters.values
        values[SNAPSHOT_GENERATION] = snapshot.generation
        values[LOADED_RULES] = rulebook.rule_count
        logger.info("activated the rules: version %s, %d rules", snapshot.version, rulebook.rule_count)

    def _activate(self, rulebook: Rulebook) -> None:
        """Activate compiled rules, and the emergency stops of the snapshot, the agent and the local file."""
        snapshot = self._snapshot
        if snapshot is None:
            return
        local = self._kill_order.stops(snapshot.orgs, snapshot.apps)
        remote = snapshot.stops.with_others(self._stopped_beside)
        self._context.use(replace(rulebook, stops=remote.with_others(local)))
        self._tell_of_stops(remote)
        for unknown in self._kill_order.unknown(snapshot.orgs, snapshot.apps):
            logger.error(
                "EMERGENCY STOP: %s names %s, which is not in the proxy's rules", self._kill_file, unknown
            )

    def _tell_of_stops(self, remote: Stops) -> None:
        if remote == self._describe_stops:
            return
        self._describe_stops = remote
        if remote:
            logger.error("EMERGENCY STOP by the control plane: %s", remote.described())
        else:
            logger.warning("the control plane has lifted all emergency stops")

    async def _watch_kill_file(self) -> None:
        """Read the emergency stop file periodically, outside the event loop.

        Each worker process reads the emergency stop file itself, so that a stop works without the agent and
        the control plane.
        """
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(KILL_FILE_SECONDS)
            try:
                order = await loop.run_in_executor(self._files, read_kill_file, self._kill_file)
            except Exception:  # any error: a later stop must still be seen
                if not self._overlooks_kill_file:
                    logger.exception("cannot read the kill file %s, trying again", self._kill_file)
                self._overlooks_kill_file = True
                continue
            self._overlooks_kill_file = False
            self._apply_kill_order(order)

    def _apply_kill_order(self, order: KillOrder) -> None:
        if order == self._kill_order:
            return
        self._kill_order = order
        if order == NO_ORDER:
            logger.warning("the kill file %s was removed: it no longer stops requests", self._kill_file)
        else:
            logger.error("EMERGENCY STOP by %s: %s", self._kill_file, order)
        self._counters.values[KILL_FILE] = 2 if order.everything else int(order != NO_ORDER)
        self._activate(self._context.rulebook)

    # Periodic maintenance

    async def _maintain_periodically(self) -> None:
        loop = asyncio.get_running_loop()
        self._context.reserve_records()
        self._look_after_spool(loop)
        if self._maintenance is not None:
            # Otherwise the first heartbeat would report a full spool, because no segment is prepared yet.
            await asyncio.wait([self._maintenance], timeout=FIRST_ROOM_SECONDS)
        while True:
            self._beat(loop)
            await asyncio.sleep(MAINTENANCE_SECONDS)

    def _beat(self, loop: asyncio.AbstractEventLoop) -> None:
        values = self._counters.values
        self._context.reserve_records()
        self._look_after_spool(loop)
        values[ALIVE_AT] = int(time.time())
        values[IN_FLIGHT] = self._context.in_flight()
        values[UPSTREAM_OPEN] = self._context.pool.open_connections
        values[SPOOL_READY] = int(self._context.can_record(0))
        self._tell_of_room()
        values[SIGNING_KEY_READY] = int(self._context.tokens.ready)
        able = self._credentials.able(self._context.rulebook.credentials, loop.time())
        values[CREDENTIAL_READY] = int(able)

    def _look_after_spool(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start the spool's maintenance each second and on demand, but not while the maintenance runs.

        The disk may be slow, so the event loop does not wait for the maintenance of the spool.
        """
        maintenance, now = self._maintenance, loop.time()
        if maintenance is not None:
            if not maintenance.done():
                if now - self._maintained_at > SILENT_SECONDS:
                    self._spool.note_silence()
                return
            self._maintenance = None
            maintenance.result()
            self._counters.values[SPOOL_DROPPED] += self._spool.dropped - self._dropped_before
            self._dropped_before = self._spool.dropped
        if int(now) != int(self._maintained_at) or self._spool.needs_maintenance:
            self._maintained_at = now
            self._maintenance = loop.run_in_executor(self._files, self._spool.maintain)

    def _tell_of_room(self) -> None:
        """Write one log line when the worker begins to refuse requests because the spool is full.

        Write one log line when the worker accepts requests again.
        """
        ready = self._spool.ready
        if not ready and self._spool.problem is None and self._maintenance is not None:
            return  # the running maintenance may find space
        if not ready and self._had_room:
            why = self._spool.problem or "the remaining space is reserved for current requests"
            logger.error("refusing requests: there is no room for audit events: %s", why)
        elif ready and not self._had_room:
            logger.warning("accepting requests: there is room for audit events again")
        self._had_room = ready

    # Stop of the worker

    async def _drain(
        self, servers: list[asyncio.Server | TlsListener], listeners: list[socket.socket]
    ) -> None:
        """Finish current requests within DrainSeconds, then close the remaining connections.

        During the drain, the next response on a keep-alive connection contains `Connection: close`. The
        worker closes a keep-alive connection if no further request arrives.
        """
        context = self._context
        context.draining = True
        await asyncio.sleep(ACCEPT_SECONDS)  # connections in the accept queue are still accepted
        for server in servers:
            server.close()
        for listener in listeners:
            listener.close()
        end = time.monotonic() + self._settings.proxy.drain_seconds
        last_request = min(end, time.monotonic() + LAST_REQUEST_SECONDS)
        if self._settings.proxy.cert_file is not None:
            # A connection in its TLS handshake is not registered yet, and its first request has not arrived.
            await asyncio.sleep(last_request - time.monotonic())
        await self._wait_until_closed(last_request)
        for connection in list(context.connections):
            connection.drain()
        await self._wait_until_closed(end)
        if context.connections:
            logger.warning(
                "closed %d client connections that did not finish in time", len(context.connections)
            )
        for connection in list(context.connections):
            connection.cut()
        context.pool.close()
        self._deadlines.stop()
        await asyncio.sleep(0)

    async def _wait_until_closed(self, end: float) -> None:
        while self._context.connections and time.monotonic() < end:  # noqa: ASYNC110 - bounded, only at a stop
            await asyncio.sleep(0.02)


def _threads(count: int) -> ThreadPoolExecutor:
    """Return a thread pool after all threads of the pool have started.

    The thread pool never has to create a thread later, when the creation could fail.
    """
    executor = ThreadPoolExecutor(count, thread_name_prefix="worker")
    all_there = threading.Event()
    for _ in range(count):
        executor.submit(all_there.wait)
    all_there.set()
    return executor


def _give_way() -> None:
    """Release the interpreter lock for a moment, so that the event loop can run if it has work."""
    time.sleep(GIVE_WAY_SECONDS)


def _affordable_connections(settings: Settings) -> int:
    """Return how many client connections the limit of file descriptors allows.

    If a worker already has as many clients as it can afford, a new client gets a 503 response.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = settings.proxy.max_connections
    if limit == resource.RLIM_INFINITY:
        return wanted
    affordable = max(1, limit - settings.upstream.max_connections - RESERVED_DESCRIPTORS)
    if affordable < wanted:
        logger.warning(
            "the limit of %d open files allows only %d of %d client connections", limit, affordable, wanted
        )
    return min(wanted, affordable)


def _upstream_settings(settings: Settings, tls: ssl.SSLContext | None) -> UpstreamSettings:
    upstream = settings.upstream
    address = urlsplit(upstream.base_url)
    return UpstreamSettings(
        host=address.hostname or "",
        port=address.port or (80 if tls is None else 443),
        tls=tls,
        connect_timeout=upstream.connect_timeout_seconds,
        response_timeout=upstream.response_timeout_seconds,
        idle_timeout=upstream.idle_timeout_seconds,
        max_connections=upstream.max_connections,
        max_waiting=upstream.max_waiting,
        max_header_bytes=upstream.max_header_bytes,
        egress=egress_of(settings.egress).proxy_for(upstream.base_url),
    )
