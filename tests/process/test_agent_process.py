"""Tests of the agent as a forked process, with channels, counters and an admin listener."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import resource
import select
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path

import aiohttp
import pytest

from proxy import __version__
from proxy.agent.admin import MAX_CONNECTIONS
from proxy.agent.main import run_agent
from proxy.ipc import counters as c
from proxy.ipc.channel import (
    ActiveUpstreamToken,
    Channel,
    Hello,
    Message,
    Rules,
    UpstreamTokenRejected,
    UpstreamTokenUnavailable,
    channel_pair,
)
from proxy.process import log
from proxy.rules.snapshot import read_snapshot
from proxy.rules.stops import NOTHING_STOPPED
from proxy.startup.certificates import certificates
from proxy.startup.settings import Settings, load
from proxy.wire.audit_event import rfc3339
from tests.fakes.certificates import CertificateAuthority
from tests.fakes.control_plane import API_KEY, HMAC_SECRET, FakeControlPlane, error, ruleset_yaml, sync_body
from tests.fakes.enrolling import ENROL, TOKEN, EnrollingControlPlane
from tests.fakes.identity import CLIENT_ID, CLIENT_SECRET, TENANT, FakeIdentityProvider
from tests.fakes.key_vault import FakeKeyVault, FakeManagedIdentity
from tests.fakes.lifeline import end_with_parent
from tests.fakes.ports import free_port
from tests.fakes.server import Response
from tests.patience import PATIENCE_SECONDS
from tests.process.agent_parts import spool_writer, write

pytestmark = pytest.mark.process


CLIENTS = {"client-of-mail": "fake~mail.secret", "client-of-files": "fake~files.secret"}
IDENTITIES = """
[[Credentials.Identities]]
Name = "mail"
ClientId = "client-of-mail"
ClientSecret = "fake~mail.secret"
SecretName = "graph-mail"
Applications = ["client-1"]
[[Credentials.Identities]]
Name = "files"
ClientId = "client-of-files"
ClientSecret = "fake~files.secret"
SecretName = "graph-files"
Organisations = ["org-2"]
"""
KEYS = f'ApiKey = "{API_KEY}"\nHmacSecret = "{HMAC_SECRET}"'
OWNERS = {"default": CLIENT_ID, "mail": "client-of-mail", "files": "client-of-files"}


def settings_for(
    directory: Path,
    control: FakeControlPlane,
    identity: FakeIdentityProvider,
    port: int,
    more: str,
    environ: Mapping[str, str],
    agent: str,
) -> Settings:
    file = directory / "proxy.toml"
    file.write_text(
        f"""
[Proxy]
Workers = 2
[Agent]
{agent}
[RuleSync]
SaasBaseUrl = "{control.base_url}"
IntervalSeconds = 0.3
CachePath = "var/snapshot.json"
[Audit]
LocalRetentionPath = "var/audit"
ReplayIntervalSeconds = 0.5
[Credentials]
Provider = "environment"
TenantId = "{TENANT}"
ClientId = "{CLIENT_ID}"
ClientSecret = "{CLIENT_SECRET}"
AuthorityUrl = "{identity.base_url}"
[Admin]
Listen = "127.0.0.1:{port}"
{more}"""
    )
    return load(file, environ)


@dataclass
class Worker:
    """A worker's end of the channel to the agent, and all messages that the worker received."""

    end: socket.socket
    report: list[Message] = field(default_factory=list)
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.channel = Channel(self.end, self._take)

    def _take(self, message: Message) -> None:
        self.report.append(message)
        self.news.set()

    async def until(self, condition: Callable[[list[Message]], bool]) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not condition(self.report):
                self.news.clear()
                await self.news.wait()


@dataclass
class Running:
    directory: Path
    control: FakeControlPlane
    identity: FakeIdentityProvider
    settings: Settings
    counters: c.CounterPages
    agent_ends: list[socket.socket]
    workers: list[Worker]
    log_file: Path
    pid: int = 0

    def start(self) -> None:
        # Forked as the supervisor does it: sockets and pages are inherited, not created again.
        process = get_context("fork").Process(target=self._be_the_agent)
        process.start()
        assert process.pid is not None
        self.pid = process.pid
        self._process = process

    def _be_the_agent(self) -> None:
        end_with_parent()
        os.dup2(os.open(self.log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), 2)
        sys.stderr = os.fdopen(2, "w", buffering=1)
        asyncio.set_event_loop(None)
        asyncio._set_running_loop(None)
        log.configure("info", "text", "agent")
        os._exit(run_agent(self.settings, certificates(self.settings), self.agent_ends, self.counters))

    async def end(self, number: int) -> int | None:
        os.kill(self.pid, number)
        await asyncio.to_thread(self._process.join, 20)
        return self._process.exitcode

    async def get(self, path: str) -> tuple[int, str]:
        address = f"http://{self.settings.admin.listen}{path}"
        async with aiohttp.ClientSession() as session, session.get(address) as response:
            return response.status, await response.text()

    async def says(self, words: str) -> None:
        """Wait until the agent's log contains the text."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while words not in self.log_file.read_text():  # noqa: ASYNC110 - another process writes it
                await asyncio.sleep(0.02)

    def alive(self, **gauges: int) -> None:
        """Write values of a live worker into the shared memory page of each worker's counters."""
        for page in self.counters.workers:
            page.values[c.ALIVE_AT] = int(time.time())
            page.values[c.SPOOL_READY] = 1
            page.values[c.SNAPSHOT_GENERATION] = 1
            page.values[c.SIGNING_KEY_READY] = 1
            page.values[c.CREDENTIAL_READY] = 1


@asynccontextmanager
async def a_proxy(
    directory: Path,
    more: str = "",
    environ: Mapping[str, str] | None = None,
    *,
    agent: str = KEYS,
    fake: FakeControlPlane | None = None,
) -> AsyncIterator[Running]:
    async with fake or FakeControlPlane() as control, FakeIdentityProvider() as identity:
        identity.more_clients = dict(CLIENTS)
        pairs = [channel_pair() for _ in range(2)]
        running = Running(
            directory,
            control,
            identity,
            settings_for(directory, control, identity, free_port(), more, environ or {}, agent),
            c.CounterPages(2),
            [agent for _, agent in pairs],
            [Worker(worker) for worker, _ in pairs],
            directory / "agent.log",
        )
        running.start()
        try:
            yield running
        finally:
            if running._process.is_alive():
                await running.end(signal.SIGKILL)
            for worker in running.workers:
                worker.channel.close()
            for pair in pairs:
                for end in pair:
                    end.close()
        assert control.problems == []
        text = running.log_file.read_text()
        assert "Traceback" not in text
        assert "agent.main" in text
        for secret in (HMAC_SECRET, CLIENT_SECRET, API_KEY, TOKEN, *CLIENTS.values(), *identity.tokens):
            assert secret not in text


def held_by(report: list[Message]) -> dict[str, ActiveUpstreamToken]:
    """Return each upstream identity with the latest upstream token that a worker received for it."""
    return {each.identity: each for each in report if isinstance(each, ActiveUpstreamToken)}


def unavailable_of(report: list[Message]) -> dict[str, UpstreamTokenUnavailable]:
    return {each.identity: each for each in report if isinstance(each, UpstreamTokenUnavailable)}


def rules(report: list[Message]) -> list[Rules]:
    return [message for message in report if isinstance(message, Rules)]


def credentials(report: list[Message]) -> list[ActiveUpstreamToken]:
    return [message for message in report if isinstance(message, ActiveUpstreamToken)]


async def test_workers_are_told_of_rules_and_token(tmp_path: Path) -> None:
    async with a_proxy(tmp_path) as running:
        for worker in running.workers:
            await worker.until(lambda report: bool(credentials(report)) and bool(rules(report)))
            assert running.identity.accepts(credentials(worker.report)[0].token)
        assert running.identity.acquisitions == 1
        snapshot = read_snapshot(running.settings.rule_sync.cache_path)
        assert snapshot.version == "v1"
        await running.workers[0].until(lambda report: bool(rules(report)))


async def test_the_first_heartbeat_waits_for_the_first_token(tmp_path: Path) -> None:
    """After an upgrade, a new agent has no token for a moment, and must not report the proxy as failed."""
    async with a_proxy(tmp_path) as running:
        worker, control = running.workers[0], running.control
        await worker.until(lambda report: bool(credentials(report)) and bool(rules(report)))
        assert await running.end(signal.SIGKILL) == -signal.SIGKILL
        token = running.identity.gates[CLIENT_ID] = asyncio.Event()
        worker.report.clear()
        control.heartbeats.clear()
        running.start()
        await worker.until(lambda report: bool(rules(report)))
        token.set()
        await control.until(lambda: bool(control.heartbeats))
        assert control.heartbeats[0]["checks"]["credentials"]["status"] == "ok"


async def test_a_hello_brings_the_state_again(tmp_path: Path) -> None:
    async with a_proxy(tmp_path) as running:
        worker = running.workers[0]
        await worker.until(lambda report: bool(credentials(report)) and bool(rules(report)))
        held = credentials(worker.report)[0]
        worker.report.clear()
        worker.channel.send(Hello())
        await worker.until(lambda report: bool(credentials(report)) and bool(rules(report)))
        assert credentials(worker.report)[0].generation == held.generation


async def test_a_refused_token_brings_another_to_every_worker(tmp_path: Path) -> None:
    async with a_proxy(tmp_path) as running:
        first, second = running.workers
        await first.until(lambda report: bool(credentials(report)))
        generation = credentials(first.report)[0].generation
        for _ in range(20):
            first.channel.send(UpstreamTokenRejected("default", generation))
        await second.until(lambda report: len(credentials(report)) == 2)
        assert credentials(second.report)[1].generation > generation
        assert running.identity.acquisitions == 2


async def test_new_rules_reach_the_workers_within_an_interval_and_a_bad_one_never(tmp_path: Path) -> None:
    async with a_proxy(tmp_path) as running:
        worker = running.workers[0]
        await worker.until(lambda report: bool(rules(report)))
        rulesets = sync_body()["rulesets"]
        running.control.sync_body = sync_body(
            version="v2",
            generatedAt="2026-11-22T00:00:00Z",
            rulesets=[rulesets[0] | {"version": 2, "yaml": ruleset_yaml(path="/v1.0/groups")}],
        )
        worker.report.clear()
        await worker.until(lambda report: bool(rules(report)))
        assert read_snapshot(running.settings.rule_sync.cache_path).version == "v2"
        running.control.sync_body = sync_body(
            version="v3", generatedAt="2026-11-23T00:00:00Z", rulesets=[rulesets[0] | {"yaml": "nonsense: ["}]
        )
        await running.control.until(
            lambda: any(beat["checks"]["sync"]["status"] == "degraded" for beat in running.control.heartbeats)
        )
        beat = next(
            beat for beat in running.control.heartbeats if beat["checks"]["sync"]["status"] == "degraded"
        )
        assert beat["syncVersion"] == "v2"
        assert beat["loadedRules"] == 1
        assert read_snapshot(running.settings.rule_sync.cache_path).version == "v2"


async def test_a_heartbeat_tells_at_once_which_rules_every_worker_enforces(tmp_path: Path) -> None:
    """A heartbeat must not report a ruleset version while a worker still uses another version."""
    async with a_proxy(tmp_path, environ={"RuleSync__IntervalSeconds": "600"}) as running:
        await running.workers[0].until(lambda report: bool(rules(report)))
        generation = read_snapshot(running.settings.rule_sync.cache_path).generation
        running.alive()
        running.counters.workers[0].values[c.SNAPSHOT_GENERATION] = generation
        heartbeats = running.control.heartbeats
        # s: twice the agent's polling interval; the next heartbeat is due in half a minute.
        await asyncio.sleep(0.5)
        assert [beat["rulesets"] for beat in heartbeats] == [None] * len(heartbeats)
        running.alive()
        for page in running.counters.workers:
            page.values[c.SNAPSHOT_GENERATION] = generation
        async with asyncio.timeout(PATIENCE_SECONDS):
            await running.control.until(
                lambda: heartbeats[-1:] != [] and heartbeats[-1]["rulesets"] is not None
            )
        assert heartbeats[-1]["rulesets"] == {"ruleset-1": 1}
        assert 0 <= heartbeats[-1]["syncAgeSeconds"] < 15


async def test_the_heartbeat_counts_what_waits_and_names_what_is_missing(tmp_path: Path) -> None:
    async with a_proxy(tmp_path) as running:
        control = running.control
        control.down = True
        retention = running.settings.audit.local_retention_path
        spool = spool_writer(retention)
        write(spool, range(100), time_ms=int(time.time() * 1000))
        await control.until(lambda: any(beat["auditPending"] == 100 for beat in control.heartbeats))
        assert control.heartbeats[-1]["lastSeq"] == {"org-1": 100}
        await control.until(lambda: control.check_status("audit") == "degraded")
        beat = control.heartbeats[-1]
        assert "503" in beat["checks"]["audit"]["detail"]
        assert beat["oldestPendingSeconds"] >= 0
        for path in (retention / "journal" / "org-1").iterdir():
            path.unlink()
        await control.until(lambda: "1-100" in control.heartbeats[-1]["checks"]["audit"]["detail"])
        control.down = False
        write(spool, range(100, 120))
        await control.until(lambda: len(control.seqs("org-1")) == 20)
        assert control.seqs("org-1") == list(range(101, 121))


async def test_metrics_are_deltas_that_lose_nothing_to_failures_or_restarts(tmp_path: Path) -> None:
    async with a_proxy(tmp_path) as running:
        control, pages = running.control, running.counters.workers
        control.metrics_script.extend([Response(503)] * 2)
        pages[0].values[c.ALLOWED] += 5
        pages[1].values[c.ALLOWED] += 2
        pages[1].values[c.BLOCKED] += 3
        pages[0].observe_latency(700)
        pages[1].observe_latency(61_000_000)
        await control.until(lambda: bool(control.metrics))
        first = control.metrics[0]
        assert (first["evaluated"], first["allowed"], first["blocked"]) == (10, 7, 3)
        assert first["latencyMs"]["buckets"][0] == [0.5, 0]
        assert first["latencyMs"]["buckets"][1] == [1, 1]
        assert first["latencyMs"]["count"] == 2
        assert first["latencyMs"]["sum"] == 61_000.7
        await control.until(lambda: len(control.metrics) > 2)
        for one, following in itertools.pairwise(control.metrics):
            assert one["windowEnd"] == following["windowStart"]
        assert await running.end(signal.SIGKILL) == -signal.SIGKILL
        pages[0].values[c.FILTERED] += 4
        running.start()
        await control.until(lambda: control.metrics[-1]["filtered"] == 4)
        totals = {
            name: sum(each[name] for each in control.metrics) for name in ("evaluated", "allowed", "filtered")
        }
        assert totals == {"evaluated": 14, "allowed": 7, "filtered": 4}


async def test_readiness_says_what_is_missing_and_metrics_count_workers_together(tmp_path: Path) -> None:
    async with a_proxy(tmp_path) as running:
        await running.workers[0].until(lambda report: bool(credentials(report)) and bool(rules(report)))
        assert await running.get("/healthz") == (200, f"ok {__version__}\n")
        status, text = await running.get("/readyz")
        assert status == 503
        assert json.loads(text)["reasons"] == ["no worker is alive"]
        running.alive()
        status, text = await running.get("/readyz")
        assert status == 200, text
        assert json.loads(text)["loadedRules"] == 1
        one, other = running.counters.workers
        for index, reason in (
            (c.SNAPSHOT_GENERATION, "not every worker has rules yet"),
            (c.CREDENTIAL_READY, "not every worker has an upstream token yet"),
            (c.SIGNING_KEY_READY, "not every worker has a key for tokens yet"),
        ):
            one.values[index] = 0
            status, text = await running.get("/readyz")
            assert (status, json.loads(text)["reasons"]) == (503, [reason])
            other.values[c.TAKES_REQUESTS] = 1  # a worker that takes no requests delays no readiness
            status, _ = await running.get("/readyz")
            assert status == 200
            other.values[c.TAKES_REQUESTS] = 0
            running.alive()
        for page in running.counters.workers:
            page.values[c.SPOOL_READY] = 0
        status, text = await running.get("/readyz")
        assert status == 503
        assert json.loads(text)["checks"]["spool"]["status"] == "failed"
        for page in running.counters.workers:
            page.values[c.BLOCKED] += 21
            page.observe_latency(2_000)
        _, text = await running.get("/metrics")
        assert "graphward_requests_total 42.0" in text
        assert 'graphward_request_duration_seconds_bucket{le="+Inf"} 2.0' in text
        assert "graphward_audit_pending 0.0" in text
        assert 'graphward_check{check="spool"} 2.0' in text


async def test_a_proxy_is_ready_while_its_workers_serve_whatever_its_agent_lacks(tmp_path: Path) -> None:
    """During a reload with wrong settings, the old workers still serve requests."""
    async with a_proxy(tmp_path) as running:
        await running.workers[0].until(lambda report: bool(credentials(report)) and bool(rules(report)))
        assert await running.end(signal.SIGKILL) == -signal.SIGKILL
        running.identity.client_secrets.clear()
        running.control.sign_responses = False
        for file in running.settings.rule_sync.cache_path.parent.glob("snapshot.json*"):
            file.unlink()
        running.start()
        await running.workers[0].until(lambda report: "default" in unavailable_of(report))
        await running.says("sync failed")
        running.alive()
        for page in running.counters.workers:
            page.values[c.TAKES_REQUESTS] = 1
        status, text = await running.get("/readyz")
        assert (status, json.loads(text)["reasons"]) == (200, [])
        assert json.loads(text)["checks"]["credentials"]["status"] == "failed"
        assert json.loads(text)["checks"]["sync"]["status"] == "failed"
        for index, reason in (
            (c.SNAPSHOT_GENERATION, "there are no rules"),
            (c.CREDENTIAL_READY, "there is no upstream token"),
        ):
            running.counters.workers[0].values[index] = 0
            status, text = await running.get("/readyz")
            assert (status, json.loads(text)["reasons"]) == (503, [reason])
            running.alive()


async def test_who_takes_the_admin_port_of_a_dead_agent_stops_nothing_but_its_responses(
    tmp_path: Path,
) -> None:
    async with a_proxy(tmp_path) as running:
        control, listen = running.control, running.settings.admin.listen
        await control.until(lambda: bool(control.heartbeats))
        assert await running.end(signal.SIGKILL) == -signal.SIGKILL
        spool = spool_writer(running.settings.audit.local_retention_path)
        write(spool, range(50), time_ms=int(time.time() * 1000))
        with socket.create_server((listen.host, listen.port)) as other:
            heartbeats_before = len(control.heartbeats)
            control.sync_body = sync_body(version="v2", generatedAt="2026-11-22T00:00:00Z")
            running.start()
            await control.until(lambda: len(control.seqs("org-1")) == 50)
            await control.until(
                lambda: (
                    len(control.heartbeats) > heartbeats_before
                    and control.heartbeats[-1]["syncVersion"] == "v2"
                )
            )
            await running.says("/readyz and /metrics are unavailable")
            # close is not enough, because the forked child inherited the socket
            other.shutdown(socket.SHUT_RDWR)
        await running.says("/readyz and /metrics are available")
        assert await running.get("/healthz") == (200, f"ok {__version__}\n")
        assert running.log_file.read_text().count("Admin.Listen") == 2
        spool.close()
        assert await running.end(signal.SIGTERM) == 0


async def test_a_spool_that_cannot_be_read_fails_one_check_and_nothing_else(tmp_path: Path) -> None:
    """The path of the spool directory is a file, both at the start of the proxy and later."""
    spool_path = tmp_path / "var/audit/spool"
    spool_path.parent.mkdir(parents=True)
    spool_path.touch()
    async with a_proxy(tmp_path) as running:
        control, heartbeats = running.control, running.control.heartbeats
        await control.until(lambda: len(control.metrics) > 1 and len(heartbeats) > 1)
        check = heartbeats[-1]["checks"]["audit"]
        assert check["status"] == "failed"
        assert "events stay in the spool: [Errno 20] Not a directory" in check["detail"]
        assert (await running.get("/metrics"))[0] == 200
        spool_path.unlink()
        spool = spool_writer(spool_path.parent)
        write(spool, range(50), time_ms=int(time.time() * 1000))
        await control.until(lambda: len(control.seqs("org-1")) == 50)
        await control.until(lambda: control.check_status("audit") == "ok")

        spool_path.rename(tmp_path / "aside")
        spool_path.touch()
        await control.until(lambda: control.check_status("audit") == "failed")
        control.sync_body = sync_body(version="v2", generatedAt="2026-11-22T00:00:00Z")
        await control.until(lambda: heartbeats[-1]["syncVersion"] == "v2")
        _, text = await running.get("/readyz")
        assert "Not a directory" in json.loads(text)["checks"]["audit"]["detail"]
        spool_path.unlink()
        (tmp_path / "aside").rename(spool_path)
        write(spool, range(50, 60), time_ms=int(time.time() * 1000))
        spool.close()
        await running.says("the collection of audit events from the spool works again")
        assert await running.end(signal.SIGTERM) == 0  # the first process ends
        assert control.seqs("org-1") == list(range(1, 61))


async def test_an_agent_that_may_open_no_more_files_lives_on(tmp_path: Path) -> None:
    async with a_proxy(tmp_path) as running:
        control = running.control
        await control.until(lambda: bool(control.metrics) and bool(control.heartbeats))
        spool = spool_writer(running.settings.audit.local_retention_path)
        before = resource.prlimit(running.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(running.pid, resource.RLIMIT_NOFILE, (3, before[1]))
        await running.says("cannot move audit events from the spool to the journal: [Errno 24]")
        reports = len(control.metrics)
        await control.until(lambda: len(control.metrics) > reports)
        await control.until(
            lambda: "Too many open files" in control.heartbeats[-1]["checks"]["audit"]["detail"]
        )
        resource.prlimit(running.pid, resource.RLIMIT_NOFILE, before)
        write(spool, range(50), time_ms=int(time.time() * 1000))
        await control.until(lambda: len(control.seqs("org-1")) == 50)
        spool.close()
        assert await running.end(signal.SIGTERM) == 0


async def test_who_opens_many_connections_to_the_admin_listener_takes_nothing_but_its_responses(
    tmp_path: Path,
) -> None:
    async with a_proxy(tmp_path) as running:
        control, listen = running.control, running.settings.admin.listen
        await control.until(lambda: bool(control.heartbeats))
        assert await running.get("/healthz") == (200, f"ok {__version__}\n")
        held = [socket.create_connection((listen.host, listen.port), 20) for _ in range(MAX_CONNECTIONS + 20)]
        try:
            for further in held[MAX_CONNECTIONS:]:
                assert await asyncio.to_thread(further.recv, 1) == b""
            assert select.select(held[:MAX_CONNECTIONS], [], [], 0)[0] == []
            control.sync_body = sync_body(version="v2", generatedAt="2026-11-22T00:00:00Z")
            await control.until(lambda: control.heartbeats[-1]["syncVersion"] == "v2")
        finally:
            for each in held:
                each.close()
        assert await running.end(signal.SIGTERM) == 0


@pytest.mark.parametrize("begun", [b"", b"GET /healthz HTTP/1.1\r\nHost: x\r\n"], ids=["nothing", "a head"])
async def test_the_admin_listener_waits_for_no_request_for_ever(
    tmp_path: Path, begun: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.agent.admin.IDLE_SECONDS", 0.3)
    async with a_proxy(tmp_path) as running:
        await running.control.until(lambda: bool(running.control.heartbeats))
        listen = running.settings.admin.listen
        reader, writer = await asyncio.open_connection(listen.host, listen.port)
        writer.write(begun)
        assert await asyncio.wait_for(reader.read(), PATIENCE_SECONDS) == b""
        writer.close()
        assert await running.get("/healthz") == (200, f"ok {__version__}\n")


async def test_sigterm_ends_it_in_good_order(tmp_path: Path) -> None:
    async with a_proxy(tmp_path) as running:
        control = running.control
        spool = spool_writer(running.settings.audit.local_retention_path)
        await control.until(lambda: bool(control.heartbeats))
        write(spool, range(50), time_ms=int(time.time() * 1000))
        spool.close()
        assert await running.end(signal.SIGTERM) == 0
        assert control.seqs("org-1") == list(range(1, 51))


async def test_a_worker_that_reads_nothing_gets_the_latest_of_each_kind_and_blocks_nobody() -> None:
    slow, agent = channel_pair()
    try:
        channel = Channel(agent, lambda _: None)
        for at in range(5000):
            channel.send(Rules(at, 0.0, NOTHING_STOPPED))
            channel.send(ActiveUpstreamToken("default", at, "t" * 500, 1e9))
        report: list[Message] = []
        done = asyncio.Event()

        def take(message: Message) -> None:
            report.append(message)
            last = {Rules(4999, 0.0, NOTHING_STOPPED), ActiveUpstreamToken("default", 4999, "t" * 500, 1e9)}
            if last <= set(report):
                done.set()

        reader = Channel(slow, take)
        await asyncio.wait_for(done.wait(), PATIENCE_SECONDS)
        assert len(report) < 5000
        reader.close()
        channel.close()
    finally:
        slow.close()
        agent.close()


async def test_a_worker_that_reads_nothing_gets_the_latest_of_each_identity() -> None:
    slow, agent = channel_pair()
    try:
        channel = Channel(agent, lambda _: None)
        for at in range(2000):
            for name in ("mail", "files"):
                channel.send(ActiveUpstreamToken(name, at, "t" * 500, 1e9))
            channel.send(UpstreamTokenUnavailable("default", str(at), 1.0))
        worker = Worker(slow)
        await worker.until(
            lambda report: (
                [each.generation for each in held_by(report).values()] == [1999, 1999]
                and unavailable_of(report)["default"].detail == "1999"
            )
        )
        assert len(worker.report) < 6000
        worker.channel.close()
        channel.close()
    finally:
        slow.close()
        agent.close()


async def test_each_identity_has_a_token_of_its_own_and_renews_it_alone(tmp_path: Path) -> None:
    async with a_proxy(tmp_path, IDENTITIES) as running:
        identity, (first, second) = running.identity, running.workers
        await first.until(lambda report: len(held_by(report)) == 3)
        assert {
            name: identity.client_of(each.token) for name, each in held_by(first.report).items()
        } == OWNERS
        before = held_by(first.report)
        first.channel.send(UpstreamTokenRejected("mail", before["mail"].generation))
        first.channel.send(UpstreamTokenRejected("unheard-of", before["files"].generation))
        await second.until(lambda report: held_by(report).get("mail") not in (None, before["mail"]))
        after = held_by(second.report)
        assert identity.client_of(after["mail"].token) == "client-of-mail"
        assert {name: each for name, each in after.items() if name != "mail"} == {
            name: each for name, each in before.items() if name != "mail"
        }
        assert {name: len(identity.issued_to(owner)) for name, owner in OWNERS.items()} == {
            "default": 1,
            "mail": 2,
            "files": 1,
        }


async def test_a_worker_is_told_of_no_token_only_after_an_attempt(tmp_path: Path) -> None:
    """The agent reports a token as unavailable only after an attempt to fetch it.

    So a new worker can distinguish a delayed upstream token from a token that the agent cannot get.
    """
    async with a_proxy(tmp_path, IDENTITIES) as running:
        worker = running.workers[0]
        await worker.until(lambda report: len(held_by(report)) == 3 and bool(rules(report)))
        assert await running.end(signal.SIGKILL) == -signal.SIGKILL
        running.identity.mode = "hang"
        worker.report.clear()
        running.start()
        for count in (1, 2):  # the data of the first response arrived with the second
            worker.channel.send(Hello())
            await worker.until(lambda report, count=count: len(rules(report)) >= count)  # type: ignore[misc]
        assert unavailable_of(worker.report) == {}
        assert held_by(worker.report) == {}
        control = running.control
        await control.until(lambda: control.check_status("credentials/mail") == "failed")
        assert control.heartbeats[-1]["checks"]["credentials/mail"]["detail"] == "no upstream token yet"


async def test_an_identity_that_is_refused_degrades_and_the_last_one_in_use_fails(tmp_path: Path) -> None:
    """The rules contain only client-1 of org-1, whose requests are sent upstream with the identity mail."""
    async with a_proxy(tmp_path, IDENTITIES) as running:
        identity, worker = running.identity, running.workers[0]
        await worker.until(lambda report: len(held_by(report)) == 3 and bool(rules(report)))
        running.alive()
        _, text = await running.get("/readyz")
        checks = json.loads(text)["checks"]
        assert [
            checks[name]["status"] for name in ("credentials", *(f"credentials/{each}" for each in OWNERS))
        ] == (["ok"] * 4)
        # perhaps misspelled
        unknown = "the settings name organisation org-2 of identity files, but the rules do not contain it"
        assert running.log_file.read_text().count(unknown) == 1
        assert "application client-1" not in running.log_file.read_text()

        assert await running.end(signal.SIGKILL) == -signal.SIGKILL
        del identity.more_clients["client-of-files"]
        running.start()
        await worker.until(lambda report: "files" in unavailable_of(report))
        running.alive()
        status, text = await running.get("/readyz")
        checks = json.loads(text)["checks"]
        assert status == 200, text
        assert checks["credentials"] == {
            "status": "degraded",
            "detail": "identity files: identity provider responded with 401 invalid_client AADSTS7000215; "
            "the client secret is wrong: it must be the secret's value, not its id",
        }
        assert (checks["credentials/files"]["status"], checks["credentials/mail"]["status"]) == (
            "failed",
            "ok",
        )
        assert 'graphward_check{check="credentials/files"} 2.0' in (await running.get("/metrics"))[1]
        control = running.control
        await control.until(lambda: control.check_status("credentials/files") == "failed")

        # The rules are sent again, although they are unchanged.
        await running.control.until(lambda: running.log_file.read_text().count(unknown) == 2)
        assert await running.end(signal.SIGKILL) == -signal.SIGKILL
        del identity.more_clients["client-of-mail"]
        running.start()
        await worker.until(lambda report: "mail" in unavailable_of(report))
        running.alive()
        status, text = await running.get("/readyz")
        assert status == 503
        assert json.loads(text)["reasons"] == ["there is no upstream token"]
        # no organisation uses this identity
        assert json.loads(text)["checks"]["credentials/default"]["status"] == "ok"


async def test_each_identity_is_proved_by_its_own_secret_of_the_vault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = CertificateAuthority(tmp_path / "certificates")
    async with (
        FakeManagedIdentity() as managed_identity,
        FakeKeyVault(managed_identity, tls=authority.server()) as vault,
    ):
        vault.put("graph-client", CLIENT_SECRET)
        vault.put("graph-mail", CLIENTS["client-of-mail"])  # there is no secret for files yet
        for name, value in managed_identity.environment.items():
            monkeypatch.setenv(name, value)
        environ = {
            "Credentials__Provider": "managed-identity-key-vault",
            "Credentials__VaultUrl": vault.base_url,
            "Credentials__SecretName": "graph-client",
            "Credentials__CaFile": str(authority.ca_file),
            "Credentials__Identities__files__ClientSecret": "not-used-with-a-vault",
        }
        async with a_proxy(tmp_path, IDENTITIES, environ) as running:
            worker, identity = running.workers[0], running.identity
            await worker.until(lambda report: len(held_by(report)) == 2 and "files" in unavailable_of(report))
            owners = {name: identity.client_of(each.token) for name, each in held_by(worker.report).items()}
            assert owners == {name: OWNERS[name] for name in ("default", "mail")}
            assert "secret graph-files" in unavailable_of(worker.report)["files"].detail
            said = running.log_file.read_text()
            assert "cannot read the upstream credential of identity files: key vault" in said
            assert "cannot fetch a new upstream token of identity files: key vault" in said
            vault.put("graph-files", CLIENTS["client-of-files"])
            await worker.until(lambda report: "files" in held_by(report))
            assert identity.client_of(held_by(worker.report)["files"].token) == "client-of-files"
            assert set(vault.reads) == {"graph-client", "graph-mail", "graph-files"}


async def test_a_message_of_another_release_is_passed_over() -> None:
    worker, agent = channel_pair()
    got = asyncio.Event()
    channel = Channel(agent, lambda message: got.set())
    try:
        worker.send(b'{"type":"unheard-of","x":1}')
        worker.send(b"\xff\x00")
        worker.send(b'{"type":"hello","more":true}')
        await asyncio.wait_for(got.wait(), PATIENCE_SECONDS)
        assert "secret" not in repr(ActiveUpstreamToken("default", 1, "secret", 2.0))
    finally:
        channel.close()
        worker.close()
        agent.close()


async def test_a_proxy_without_keys_enrols_itself_and_renews_them_while_it_works(tmp_path: Path) -> None:
    """A proxy that is not enrolled yet is not ready, and reports why.

    After the renewal, all requests use the new keys.
    """
    fake = EnrollingControlPlane()
    fake.enrol_script.append(error(429, "rateLimited", ("Retry-After", "1")))
    async with a_proxy(tmp_path, agent=f'EnrolmentToken = "{TOKEN}"', fake=fake) as running:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await fake.received(1)
        await running.says("not enrolled: control plane responded with 429 rateLimited")
        status, text = await running.get("/readyz")
        assert status == 503
        assert json.loads(text)["reasons"][0].startswith("there are no rules: this proxy is not enrolled: ")
        assert (await running.get("/healthz"))[0] == 200
        await running.workers[0].until(lambda report: bool(rules(report)))
        (enrolled,) = fake.proxies
        first = next(iter(enrolled.keys))
        spool = spool_writer(running.settings.audit.local_retention_path)
        rotate_at = rfc3339(int((time.time() + 0.5) * 1000))
        fake.sync_body = sync_body(version="v2", metadata={"proxyId": "proxy-1", "rotateAt": rotate_at})
        async with asyncio.timeout(PATIENCE_SECONDS):
            await fake.until(lambda: len(enrolled.keys) == 2)
            await running.says("renewed the keys of this proxy")
            enrolled.keys.pop(first)  # the overlap of the keys is over
            write(spool, range(20), time_ms=int(time.time() * 1000))
            await fake.until(lambda: len(fake.seqs("org-1")) == 20)
        assert {event["proxyId"] for event in fake.events["org-1"]} == {"proxy-1"}
        assert fake.refused_keys == 0
        assert [each.path for each in fake.requests].count(ENROL) == 3
        for key in (first, *enrolled.keys):
            assert key not in running.log_file.read_text()


async def test_what_an_earlier_identity_still_owes_goes_out_after_the_next_enrolment(tmp_path: Path) -> None:
    fake = EnrollingControlPlane()
    fake.uses_left[TOKEN] = 2
    async with a_proxy(tmp_path, agent=f'EnrolmentToken = "{TOKEN}"', fake=fake) as running:
        retention = running.settings.audit.local_retention_path
        async with asyncio.timeout(PATIENCE_SECONDS):
            await running.workers[0].until(lambda report: bool(rules(report)))
            spool = spool_writer(retention)
            now = int(time.time() * 1000)
            write(spool, range(10), time_ms=now)
            await fake.until(lambda: len(fake.seqs("org-1")) == 10)
            fake.down = True
            write(spool, range(10, 30), time_ms=now)
            await fake.until(lambda: any(beat["lastSeq"] == {"org-1": 30} for beat in fake.heartbeats))
        await running.end(signal.SIGKILL)
        fake.down = False
        fake.events.clear()
        write(spool, range(30, 40), time_ms=now)  # events in the spool that are not collected
        fake.revoke(fake.proxies[0])
        running.settings.agent.identity_path.unlink()
        fake.sync_body = sync_body(metadata={"proxyId": "proxy-2"})
        # The events are neither delivered nor numbered before the proxy is enrolled.
        fake.enrol_script.append(error(429, "rateLimited", ("Retry-After", "1")))
        running.start()
        async with asyncio.timeout(PATIENCE_SECONDS):
            await fake.until(lambda: len(fake.seqs("org-1")) == 30)
        assert fake.seqs("org-1") == list(range(1, 31))
        assert fake.refused_keys == 0
        assert len(fake.proxies) == 2
