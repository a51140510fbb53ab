"""Agent: the process of a proxy that connects to the control plane and the identity provider."""

import asyncio
import contextlib
import gc
import logging
import math
import os
import signal
import socket
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

import uvloop
from aiohttp import ClientSession

from proxy.agent.audit import Audit, AuditOptions
from proxy.agent.control_plane import ControlPlane, Identity
from proxy.agent.credentials.manager import ENDLESS_SECONDS, CredentialManager
from proxy.agent.credentials.provider import CredentialProvider
from proxy.agent.credentials.sources import open_providers, open_vault, upstream_secrets
from proxy.agent.enrolment import Enrolment, EnrolmentOptions
from proxy.agent.health import Health
from proxy.agent.heartbeat import HeartbeatSender
from proxy.agent.issuers import Issuers, issuer_keys_file
from proxy.agent.metrics import MetricsReporter
from proxy.agent.report import Report
from proxy.agent.signing_keys import SigningKeyKeeper
from proxy.agent.span import Source
from proxy.agent.sync import Sync
from proxy.agent.traces import TraceExporter
from proxy.agent.vault import Held, HeldSecret
from proxy.config import Address
from proxy.ipc.channel import (
    LAST_STOP,
    ActiveUpstreamToken,
    Channel,
    Hello,
    Message,
    Rules,
    SigningKeys,
    SnapshotUnusable,
    UnknownIssuerKey,
    UpstreamTokenRejected,
)
from proxy.ipc.counters import ALIVE_AT, CounterPages
from proxy.outbound.session import open_session
from proxy.outbound.settings import egress_of
from proxy.outbound.vault import Vault
from proxy.rules.snapshot import Snapshot
from proxy.rules.stops import EVERYTHING_STOPPED, Stops
from proxy.startup.certificates import Certificates
from proxy.startup.settings import Settings
from proxy.wire.models import HEARTBEAT_PATH, METRICS_PATH, SYNC_PATH

log = logging.getLogger(__name__)

_HANDOVER_SECONDS: Final = 5.0  # seconds to deliver events at SIGTERM; the next agent delivers the rest
_LAST_SPANS_SECONDS: Final = 1.0  # seconds to send the last spans at a stop
_LISTEN_RETRY_SECONDS: Final = 1.0
# Characters of all names of stops in one message; beyond it, everything is stopped.
_MOST_NAMED_CHARACTERS: Final = 20_000
NICENESS: Final = 5  # if processor time is scarce, requests come first and their events wait in the spool


def run_agent(
    settings: Settings,
    certificates: Certificates,
    channels: list[socket.socket],
    counters: CounterPages,
    *,
    to_old_workers: Sequence[socket.socket] = (),
) -> int:
    """Run the agent in its own process and return the exit status.

    SIGTERM ends the agent cleanly. The signal LAST_STOP also ends the agent, but the agent may use the
    configured time to deliver events. `channels` are the agent's ends of the channels to the worker slots.
    The supervisor keeps both ends of each channel open. `to_old_workers` are channels to old workers, which
    run with other settings or another version than the new workers. During a reload, the old workers depend
    on the new agent, because the old agent has ended.
    """
    gc.enable()  # all modules are imported
    os.nice(NICENESS)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_run(settings, certificates, channels, counters, to_old_workers))


async def _run(
    settings: Settings,
    certificates: Certificates,
    channels: list[socket.socket],
    counters: CounterPages,
    to_old_workers: Sequence[socket.socket],
) -> int:
    stopping: asyncio.Queue[signal.Signals] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    for each in (signal.SIGTERM, LAST_STOP):
        loop.add_signal_handler(each, stopping.put_nowait, each)
    # Ctrl-C in a terminal reaches every process. Only the supervisor acts on it, so that workers end first.
    loop.add_signal_handler(signal.SIGINT, lambda: None)
    async with contextlib.AsyncExitStack() as stack:
        agent = await _Agent.open(settings, certificates, channels, counters, stack)
        for end in to_old_workers:
            agent.tell_old_worker(end, stack)
        return await agent.run(stopping)


class _Agent:
    """Object that creates and connects the components of the agent.

    Each part of the agent runs in its own task.
    """

    def __init__(
        self,
        settings: Settings,
        counters: CounterPages,
        workers: int,
        calls: ControlPlane,
        deliveries: ControlPlane,
        providers: Mapping[str, CredentialProvider],
        vault: Vault | None,
        secrets: Mapping[str, HeldSecret],
        enrolment: Enrolment | None,
        spans: ClientSession | None,
        issuers: ClientSession,
    ) -> None:
        base = settings.rule_sync.saas_base_url.rstrip("/")
        heartbeats = Report(calls, base + HEARTBEAT_PATH, "heartbeat")
        metrics = Report(calls, base + METRICS_PATH, "metrics report")
        self._calls = calls, deliveries
        self._enrolment = enrolment  # None if the settings hold the keys
        self._channels: list[Channel] = []
        self._old_channels: list[Channel] = []
        self._counters = counters
        self._sync = Sync(
            calls,
            url=base + SYNC_PATH,
            cache_path=settings.rule_sync.cache_path,
            interval=settings.rule_sync.interval_seconds,
            require_signed=settings.rule_sync.require_signed_response,
            announce=self._rules_confirmed,
        )
        self._assignments = settings.credentials.assignments
        self._writing_again: asyncio.Task[None] | None = None
        # Organisations and applications in the settings that the rules do not have.
        self._unknown: list[str] = []
        self._credentials = {
            name: CredentialManager(provider, name=name, announce=self._tell_all)
            for name, provider in providers.items()
        }
        self._signing_keys = _signing_keys(settings, vault, self._tell_all) if vault is not None else None
        self._held: list[Held] = list(secrets.values())
        if self._signing_keys is not None:
            self._held.append(self._signing_keys)
        self._traces = None if spans is None else self._exporter(settings, spans)
        self._issuers = Issuers(
            issuers,
            issuer_keys_file(settings.audit.local_retention_path),
            refresh=settings.callers.keys_refresh_seconds,
            max_age=settings.callers.keys_max_age_seconds,
            announce=self._tell_all,
        )
        self._audit = Audit(
            _audit_options(settings, workers, self._sync.proxy_id),
            deliveries,
            self._proxy_id,
            lambda: self._sync.linger,
            None if self._traces is None else self._traces.offer,
        )
        self._health = Health(
            counters,
            self._sync,
            list(self._credentials.values()),
            self._assignments,
            self._held,
            self._audit.last_status,
            (heartbeats, metrics),
            workers=workers,
            max_staleness=settings.rule_sync.max_staleness_seconds,
            kill_file=settings.proxy.kill_file,
            identity=None if enrolment is None else enrolment.check,
            traces=self._traces,
            issuers=self._issuers.check,
        )
        self._heartbeat = HeartbeatSender(
            heartbeats,
            sync=self._sync,
            health=self._health,
            audit=self._audit.status,
            public_base_url=settings.proxy.public_base_url,
        )
        self._metrics = MetricsReporter(metrics, counters, sync=self._sync, audit=self._audit.status)
        self._admin_address = settings.admin.listen
        self._certificate = settings.proxy.cert_file
        self._last_seconds = settings.audit.deliver_at_stop_seconds

    @classmethod
    async def open(
        cls,
        settings: Settings,
        certificates: Certificates,
        channels: list[socket.socket],
        counters: CounterPages,
        stack: contextlib.AsyncExitStack,
    ) -> "_Agent":
        # Two sessions, so that deliveries that hang don't use up the connections of sync and heartbeat.
        egress = egress_of(settings.egress)
        calls = await stack.enter_async_context(open_session(certificates.control_plane, egress))
        deliveries = await stack.enter_async_context(open_session(certificates.control_plane, egress))
        enrolment = _enrolment(settings, calls) if settings.agent.enrols_itself else None
        present, refused = _given_identity(settings), None
        if enrolment is not None:
            stack.callback(enrolment.close)
            present, refused = enrolment.present, enrolment.report_refusal
        identity_tls = certificates.identity_provider
        vault = await open_vault(settings, identity_tls, stack) if settings.uses_vault else None
        secrets = upstream_secrets(settings, vault) if vault is not None else {}
        providers = await open_providers(settings, identity_tls, secrets, stack)
        spans = None
        if certificates.traces is not None:
            spans = await stack.enter_async_context(open_session(certificates.traces, egress))
        agent = cls(
            settings,
            counters,
            # There are pages for twice as many workers, because a reload runs both generations.
            len(channels),
            ControlPlane(
                calls, present, require_signed=settings.rule_sync.require_signed_response, refused=refused
            ),
            ControlPlane(deliveries, present, require_signed=settings.audit.require_signed_response),
            providers,
            vault,
            secrets,
            enrolment,
            spans,
            await stack.enter_async_context(open_session(certificates.issuers, egress, connections=0)),
        )
        stack.push_async_callback(agent._issuers.close)
        for end in channels:
            agent._listen_to(end, stack)
        return agent

    async def run(self, stopping: asyncio.Queue[signal.Signals]) -> int:
        """Run the agent until a signal to stop, or until one of its parts fails unexpectedly.

        After the agent ends because a part failed, the supervisor starts a new agent process.
        """
        if self._sync.snapshot is not None:
            self._issuers.use(self._sync.snapshot)  # the control plane may be unreachable for long
        admin = self._start("admin", self._serve_admin())  # listens first, then lets the other tasks start
        tasks = [  # first the data that workers need before they take a request
            *(self._start(f"credentials {name}", each.run()) for name, each in self._credentials.items()),
            *(self._start("vault", each.run()) for each in self._held),
            *([] if self._enrolment is None else [self._start("enrolment", self._enrolment.run())]),
            self._start("sync", self._once_enrolled(self._sync.run)),
            self._start("audit", self._audit.run()),
            self._start("heartbeat", self._once_enrolled(self._heartbeat.run)),
            self._start("metrics", self._once_enrolled(self._metrics.run)),
            *([] if self._traces is None else [self._start("traces", self._traces.run())]),
        ]
        alive = self._start(
            "alive", self._say_alive()
        )  # during the stop too, or the supervisor would kill it
        stop = asyncio.create_task(stopping.get(), name="stop")
        done, _ = await asyncio.wait([stop, admin, alive, *tasks], return_when=asyncio.FIRST_COMPLETED)
        failed = [task for task in done if task is not stop]
        for task in failed:
            log.critical("%s failed", task.get_name(), exc_info=task.exception())
        is_last = stop in done and stop.result() is LAST_STOP
        await _cancelled(stop, *tasks)
        left = await self._audit.stop(self._last_seconds if is_last else _HANDOVER_SECONDS, retry=is_last)
        if self._traces is not None:
            await self._traces.flush(_LAST_SPANS_SECONDS)
        if is_last and left is not None and self._proxy_id() is not None:
            await self._heartbeat.last(left)
        await _cancelled(admin, alive)  # kept until now, because the listener also reports the stop
        self._audit.close()
        return 1 if failed else 0

    async def _once_enrolled(self, run: Callable[[], Coroutine[object, object, None]]) -> None:
        if self._enrolment is not None:
            await self._enrolment.is_enrolled.wait()
        await run()

    def _exporter(self, settings: Settings, session: ClientSession) -> TraceExporter:
        proxy = settings.proxy
        scheme = urlsplit(proxy.public_base_url).scheme or ("http" if proxy.cert_file is None else "https")
        traces = settings.traces
        return TraceExporter(
            session, traces.otlp_url, traces.header_fields, lambda: Source(self._proxy_id(), scheme)
        )

    def _proxy_id(self) -> str | None:
        """Return the ID of the proxy whose events this agent collects; None if the ID is not known yet."""
        return self._sync.proxy_id if self._enrolment is None else self._enrolment.proxy_id

    async def _serve_admin(self) -> None:
        """Serve the admin listener as soon as the address of the listener is free.

        The other tasks of the agent do not wait until the admin listener is ready.
        """
        listener = await _listener(self._admin_address)
        await asyncio.sleep(0)  # let the other tasks start first: this import takes a tenth of the start
        from proxy.agent.admin import Admin

        admin = Admin(
            self._counters,
            self._sync,
            self._health,
            self._audit.status,
            self._certificate,
            lambda: sum((each.unsigned for each in self._calls), Counter[str]()),
        )
        await admin.serve(listener)

    @staticmethod
    def _start(name: str, work: Coroutine[object, object, object]) -> asyncio.Task[object]:
        return asyncio.create_task(work, name=name)

    async def _say_alive(self) -> None:
        while True:
            self._counters.agent.values[ALIVE_AT] = int(time.time())
            await asyncio.sleep(1.0)

    def _listen_to(self, end: socket.socket, stack: contextlib.AsyncExitStack) -> None:
        channel = Channel(end, lambda message: self._received(channel, message))
        self._channels.append(channel)
        stack.callback(channel.close)

    def tell_old_worker(self, end: socket.socket, stack: contextlib.AsyncExitStack) -> None:
        """Send only rules and emergency stops to an old worker.

        An old worker's credentials are valid until they expire. This agent discards the old worker's
        messages, because they are meant for the old agent, which has ended.
        """
        channel = Channel(end, lambda message: None)
        self._old_channels.append(channel)
        stack.callback(channel.close)

    def _received(self, channel: Channel, message: Message) -> None:
        match message:
            case Hello():
                self._bring_up_to_date(channel)
            case UpstreamTokenRejected(identity, generation) if identity in self._credentials:
                self._credentials[identity].rejected(generation)
            case UnknownIssuerKey(issuer):
                self._issuers.asked_for(issuer)
            case SnapshotUnusable():
                self._write_snapshot_again()
            case _:
                log.warning("a worker sent a message that is not for the agent: %s", type(message).__name__)

    def _bring_up_to_date(self, channel: Channel) -> None:
        snapshot = self._sync.snapshot
        if snapshot is not None or self._sync.stopped_beside:
            channel.send(self._rules(snapshot, self._sync.stopped_beside))
        for credential in self._credentials.values():
            if credential.tried:
                channel.send(credential.current())
        keys = self._signing_keys.current() if self._signing_keys is not None else None
        if keys is not None:
            channel.send(keys)
        for issuer_keys in self._issuers.current():
            channel.send(issuer_keys)

    def _write_snapshot_again(self) -> None:
        """Write the rules snapshot again, once for all workers that request it at the same time."""
        if self._writing_again is None or self._writing_again.done():
            self._writing_again = asyncio.create_task(self._sync.write_again())

    def _rules_confirmed(self, snapshot: Snapshot | None, is_new: bool) -> None:
        if is_new and snapshot is not None:
            log.info("activated rules version %s: %d rules", snapshot.version, snapshot.rule_count)
        self._tell_all(self._rules(snapshot, self._sync.stopped_beside))
        for channel in self._old_channels:  # old workers may not be able to read or find the new snapshot
            channel.send(self._rules(snapshot, self._sync.stops))
        if snapshot is not None:
            self._warn_of_unknown(snapshot)
            self._issuers.use(snapshot)
            if self._enrolment is not None:
                self._enrolment.report_sync(snapshot.etag, snapshot.rotate_at)

    def _rules(self, snapshot: Snapshot | None, stopped: Stops) -> Rules:
        age = self._sync.age_seconds
        if sum(map(len, stopped.orgs | stopped.apps)) > _MOST_NAMED_CHARACTERS:
            stopped = EVERYTHING_STOPPED
        generation = 0 if snapshot is None else snapshot.generation
        return Rules(generation, age if age is not None and math.isfinite(age) else None, stopped)

    def _warn_of_unknown(self, snapshot: Snapshot) -> None:
        """Log each organisation or application that the settings name but the rules lack.

        The proxy logs each missing organisation or application once. If the list of missing names changes,
        the proxy logs all missing names again.
        """
        unknown = self._assignments.unknown(snapshot.orgs, snapshot.apps)
        if unknown != self._unknown:
            self._unknown = unknown
            for each in unknown:
                log.warning("the settings name %s, but the rules do not contain it", each)

    def _tell_all(self, message: Message) -> None:
        if isinstance(message, ActiveUpstreamToken):
            left = round(message.expires_at - time.time())
            log.info(
                "sending the upstream token of identity %s to the workers: generation %d, valid for %s",
                message.identity,
                message.generation,
                f"{left} s" if left < ENDLESS_SECONDS else "an unknown time",
            )
        for channel in self._channels:
            channel.send(message)


def _audit_options(settings: Settings, workers: int, served_as: str | None) -> AuditOptions:
    return AuditOptions(
        retention=settings.audit.local_retention_path,
        url=settings.audit_url,
        max_disk_bytes=settings.audit.max_disk_bytes,
        workers_room=2 * settings.segment_bytes * workers,
        when_full=settings.audit.when_full,
        max_batch_size=settings.audit.max_batch_size,
        replay_interval=settings.audit.replay_interval_seconds,
        catch_up=settings.audit.catch_up,
        has_served=os.path.exists(settings.rule_sync.cache_path),
        served_as=served_as,
        waits_for_id=settings.agent.enrols_itself,
    )


def _given_identity(settings: Settings) -> Callable[[], Identity]:
    identity = Identity(settings.agent.api_key, settings.agent.hmac_secret.encode())
    return lambda: identity


def _enrolment(settings: Settings, session: ClientSession) -> Enrolment:
    base = settings.rule_sync.saas_base_url.rstrip("/")
    agent = settings.agent
    return Enrolment(EnrolmentOptions(base, agent.identity_path, agent.enrolment_token), session)


async def _listener(address: Address) -> socket.socket:
    """Return the socket of the admin listener once its address is free.

    `_listener` tries again until it can listen on the address.

    At the first start, the supervisor makes sure that the address of the admin listener is free. If another
    program takes the address after an agent has died, the new agent lacks only the admin listener.
    """
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    is_active = False
    while True:
        try:
            listener = socket.create_server((address.host, address.port), family=family)
        except OSError as error:
            if not is_active:
                log.error(
                    "Admin.Listen: %s; /readyz and /metrics are unavailable, the rest of the agent runs",
                    error.strerror,
                )
                is_active = True
            await asyncio.sleep(_LISTEN_RETRY_SECONDS)
        else:
            if is_active:
                log.info("Admin.Listen: %s is free again; /readyz and /metrics are available", address)
            return listener


async def _cancelled(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _signing_keys(
    settings: Settings, vault: Vault, announce: Callable[[SigningKeys], None]
) -> SigningKeyKeeper | None:
    if not settings.token.signing_key_secret_name:
        return None
    return SigningKeyKeeper(
        vault,
        settings.token.signing_key_secret_name,
        token_lifetime=settings.token.lifetime_seconds,
        interval=settings.credentials.vault_refresh_seconds,
        announce=announce,
    )
