"""A control plane's data as it looks after a busy day: organisations, rulesets, apps, proxies, events.

python -m tests.console.seed FOLDER   writes the data and a settings file into FOLDER, ready to be served
"""

from __future__ import annotations

import asyncio
import json
import math
import random
import re
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from controlplane.fleet_health import said_by
from controlplane.integrity import begin_chain
from controlplane.live_tail import LiveTail
from controlplane.master_key import open_vault
from controlplane.model.flat_form import encode
from controlplane.model.metadata import parse
from controlplane.operations import apps, credentials, enrolment, orgs
from controlplane.operations.actor import Actor, Forbidden
from controlplane.operations.context import OperationContext
from controlplane.operations.operation import Operation, Request
from controlplane.operations.perform import perform
from controlplane.reports import Heartbeat
from controlplane.search.interface import SearchIndex
from controlplane.secrets import Vault, hash_password
from controlplane.settings import Settings, read_settings
from controlplane.store.interface import (
    EVERY_ORG,
    App,
    NewSchema,
    Operator,
    Org,
    Proxy,
    Retention,
    Role,
    Ruleset,
)
from controlplane.store.sink_interface import DeadLetter
from controlplane.store.sqlite import SqliteStore
from proxy.policy.compile import compile_ruleset
from proxy.policy.resource_model import ResourceModel, digest_of
from proxy.policy.ruleset_yaml import parse_ruleset
from proxy.policy.schemas import Schemas
from proxy.wire.audit_event import rfc3339, uuid7
from proxy.wire.packed_schema import pack
from tests.controlplane.inventory import OPERATOR, Inventory
from tests.controlplane.plane import FakeClock
from tests.fakes.graph import SCHEMA
from tests.fakes.traffic import DAY_MS, NO_LIMIT, Traffic, TrafficMaker, batch

ROOT: Final = Path(__file__).parents[2]
EVENTS: Final = 6000

PASSWORD: Final = "correct horse battery staple"
# For each operator, the roles by name of the organisation.
OPERATORS: Final[Mapping[str, Mapping[str, Role]]] = {
    "ada": {EVERY_ORG: "admin"},
    "edith": {"contoso": "editor", "fabrikam": "viewer"},
    "victor": {"contoso": "viewer"},
}
ORGS: Final[Mapping[str, Retention]] = {
    "contoso": "1y",
    "fabrikam": "90d",
    "northwind": "7y",
    "adventure-works": "base",
}

MAIL_ARCHIVE: Final = """\
# The archive reads mail that is older than a day, and nothing else.
version: 1
name: mail-archive
default: block
rules:
  - id: mail-at-night
    match:
      methods: [GET]
      path: ["/v1.0/users/{id}/messages", "/v1.0/users/{id}/mailFolders/**"]
    time: {from: "00:00", to: "23:59", timezone: Europe/Oslo}
    verdict: filter
    transforms: {strip_properties: [bccRecipients, internetMessageHeaders]}
  - id: subscriptions
    match: {path: [/v1.0/subscriptions, "/v1.0/subscriptions/{id}"]}
    verdict: allow
"""
DEVICES: Final = """\
version: 1
name: device-inventory
default: block
rules:
  - id: watch-beta
    description: What still calls beta is to be known before it is shut.
    match: {path: ["/beta/**"]}
    verdict: log_only
  - id: inventory
    match: {methods: [GET], path: ["/v1.0/devices", "/v1.0/devices/{id}", "/v1.0/deviceManagement/**"]}
    verdict: allow
  - id: no-wipe
    description: Nothing that changes a device goes through this application.
    match: {methods: [POST, PATCH, DELETE], path: ["/v1.0/devices/**", "/v1.0/deviceManagement/**"]}
    verdict: block
"""
# By organisation and name, the texts from the oldest version to the active one.
RULESETS: Final[Mapping[tuple[str, str], Sequence[str]]] = {
    ("contoso", "hr-sync"): [
        re.sub(r"(?ms)^  - id: small-device-pages.*?(?=^  - id: photos)", "", text)
        if number == 0
        else text.replace("at_most: 100", "at_most: 500")
        if number == 1
        else text
        for number, text in enumerate([(ROOT / "conf/demo/hr-sync.yaml").read_text("utf-8")] * 3)
    ],
    ("contoso", "mail-archive"): [MAIL_ARCHIVE],
    ("contoso", "device-inventory"): [DEVICES.replace("  - id: no-wipe", "  - id: read-only"), DEVICES],
    ("fabrikam", "reporting"): [(ROOT / "conf/demo/reporting.yaml").read_text("utf-8")],
    ("northwind", "staff-directory"): [(ROOT / "conf/rulesets/example.yaml").read_text("utf-8")],
}


TRAFFIC: Final = (
    Traffic("contoso", "payroll", "hr-sync", 0.34, "10.20.4", (
        (30, "GET", "/v1.0/users?$select=id,displayName,mail&$top=100"), (26, "GET", "/v1.0/users/{id}"),
        (9, "GET", "/v1.0/users/{id}/manager"), (6, "GET", "/v1.0/groups"), (4, "GET", "/v1.0/organization"),
        (3, "GET", "/v1.0/users?$filter=startswith(mobilePhone,'+47')"), (2, "POST", "/v1.0/users"),
        (2, "GET", "/v1.0/users/{id}/messages/{mail}"), (2, "GET", "/v1.0/auditLogs/directoryAudits"),
        (1, "DELETE", "/v1.0/users/{id}"),
    )),
    Traffic("contoso", "hr-portal", "hr-sync", 0.14, "10.20.9", (
        (20, "GET", "/v1.0/users/{id}"), (9, "GET", "/v1.0/users/{id}/photo/$value"),
        (5, "GET", "/v1.0/groups/{id}"), (3, "GET", "/v1.0/me/messages/{mail}"),
        (2, "GET", "/v1.0/devices?$top=999"), (2, "GET", "/v1.0/domains"),
    )),
    Traffic("contoso", "mail-archiver", "mail-archive", 0.12, "10.31.0", (
        (30, "GET", "/v1.0/users/{id}/messages?$top=50"), (6, "GET", "/v1.0/users/{id}/mailFolders/{mail}"),
        (2, "POST", "/v1.0/subscriptions"), (1, "GET", "/v1.0/users"),
    ), nightly=True),
    Traffic("contoso", "device-audit", "device-inventory", 0.05, "10.40.2", (
        (10, "GET", "/v1.0/devices"), (6, "GET", "/v1.0/deviceManagement/deviceConfigurations"),
        (2, "GET", "/beta/deviceManagement/managedDevices"),
        (1, "POST", "/v1.0/deviceManagement/reports/exportJobs"),
    )),
    Traffic("fabrikam", "power-bi", "reporting", 0.17, "172.16.8", (
        (8, "GET", "/v1.0/me/drive/recent"), (2, "PATCH", "/v1.0/groups/{id}"), (0, "", "examples"),
    )),
    Traffic("fabrikam", "helpdesk", "reporting", 0.06, "172.16.30", (
        (20, "GET", "/v1.0/users/{id}"), (6, "PATCH", "/v1.0/users/{id}"), (3, "GET", "/v1.0/me/events"),
    )),
    Traffic("northwind", "intranet", "staff-directory", 0.12, "192.168.14", (
        (24, "GET", "/v1.0/users?$top=25"), (12, "GET", "/v1.0/users/{id}"),
        (5, "GET", "/v1.0/places/{id}/microsoft.graph.room"), (2, "PATCH", "/v1.0/users/{id}"),
        (2, "GET", "/v1.0/users/{id}/messages/{mail}"),
    )),
)  # fmt: skip
# For each proxy, its organisations and the age of its last heartbeat in minutes (None: never seen).
PROXIES: Final[Mapping[str, tuple[Sequence[str], float | None]]] = {
    "edge-oslo-1": (("contoso", "fabrikam"), 0.2),
    "edge-oslo-2": (("contoso", "fabrikam"), 0.3),
    "edge-amsterdam": (("northwind",), 0.4),
    "edge-lab": (("contoso",), 190),
    "edge-next": (("adventure-works",), None),
}


@dataclass(frozen=True, slots=True)
class Seeded:
    config: Path
    now_ms: int
    orgs: Mapping[str, Org]
    apps: Mapping[str, App]
    proxies: Mapping[str, Proxy]
    events: int


def write_config(folder: Path) -> Path:
    """Write settings whose listeners use ports that the operating system chooses."""
    config = folder / "controlplane.toml"
    config.write_text(
        # A long interval, so that the control plane does not expect heartbeats during the tests.
        '[ControlPlane]\nListen = "127.0.0.1:0"\nSyncIntervalSeconds = 300\n'
        '[Console]\nListen = "127.0.0.1:0"\n'
        '[Store]\nPath = "controlplane.db"\n[Metrics]\nListen = []\n[Secrets]\nMasterKeyFile = "master.key"\n'
        # Nothing listens on this port.
        '[[Sinks]]\nName = "siem"\nKind = "splunk"\nUrl = "http://127.0.0.1:1"\nToken = "hec-token"\n'
        'Filter = "verdict:block"\n'
    )
    return config


async def seed(folder: Path, *, now_ms: int | None = None, events: int = EVENTS) -> Seeded:
    """Fill the store with data that depends only on `now_ms`, except for secrets and ids."""
    config = write_config(folder)
    settings = read_settings(config, {})
    clock = FakeClock((now_ms or time.time_ns() // 1_000_000) - 40 * DAY_MS)
    store = await SqliteStore.open(settings.store.path, clock)
    await begin_chain(await open_vault(settings.secrets, store), store)
    try:
        seeding = _Seeding(settings, store, clock, now_ms or time.time_ns() // 1_000_000)
        seeded = await seeding.run(config, events)
        await _refuse_an_event(store, seeded)
        return seeded
    finally:
        await store.close()


async def _refuse_an_event(store: SqliteStore, seeded: Seeded) -> None:
    """Store the state of a sink that has received all events except one event, which the sink refused."""
    newest = await store.last_position()
    reason = 'responded 400 Bad Request: {"text":"Event field cannot be blank","code":13}'
    letter = DeadLetter(newest, seeded.orgs["contoso"].org_id, seeded.now_ms, reason)
    await store.begin_sink("siem", at_newest=False)
    await store.advance_sink("siem", 0, newest - 200, 4, [letter])


class _Seeding:
    def __init__(self, settings: Settings, store: SqliteStore, clock: FakeClock, now_ms: int) -> None:
        self._settings = settings
        self._store = store
        self._clock = clock
        self._now_ms = now_ms
        self._context = OperationContext(
            settings, store, clock, self._opened_vault, self._no_index, LiveTail(store)
        )
        self._inventory = Inventory(self._context)
        self._random = random.Random(20261121)
        self._traffic = TrafficMaker(now_ms, self._random)

    async def run(self, config: Path, events: int) -> Seeded:
        for name, retention in ORGS.items():
            await self._inventory.add_org(name, retention)
            self._clock.advance(hours=1)
        await self._add_operators()
        await self._add_rulesets()
        for traffic in TRAFFIC:
            await self._inventory.add_app(traffic.name, traffic.org, traffic.ruleset)
            self._clock.advance(hours=3)
        for name, (org_names, _) in PROXIES.items():
            await self._inventory.add_proxy(name, org_names)
            self._clock.advance(hours=2)
        asked = enrolment.AddEnrolmentToken(("contoso",), "edge-deployment", 20, "90d", 30, 7)
        await enrolment.add.perform(self._context, OPERATOR, asked)
        await self._operate()
        seeded = Seeded(
            config,
            self._now_ms,
            {org.name: org for org in await self._store.orgs()},
            {app.name: app for app in await self._store.apps(None)},
            {proxy.name: proxy for proxy in await self._store.proxies(None)},
            events,
        )
        await self._report(seeded)
        await self._commit(seeded)
        return seeded

    async def _opened_vault(self) -> Vault:
        return await open_vault(self._settings.secrets, self._store)

    async def _no_index(self) -> SearchIndex:
        raise AssertionError("nothing here searches")

    async def _operate(self) -> None:
        """Record operators' actions in the operator log, including one action that was refused."""
        actors = {
            each.name: Actor(each.name, each.roles, "10.0.4.17") for each in await self._store.operators()
        }
        a_day = 86_400
        workflows = credentials.AddFederated(
            app="payroll",
            issuer="https://token.actions.githubusercontent.com",
            subject="repo:contoso/payroll-sync:environment:production",
            expires="20d",
        )
        done: Sequence[tuple[int, str, Operation[Any, Any], Request]] = (
            (50, "ada", orgs.set_retention, orgs.SetRetention(org="northwind", retention="7y")),
            (28, "edith", apps.bind, apps.BindApp(app="device-audit", ruleset="device-inventory")),
            (9, "victor", apps.disable, apps.AppReference(app="payroll")),
            (8, "ada", apps.disable, apps.AppReference(app="helpdesk")),
            (3, "ada", apps.rotate_secret, apps.RotateSecret(app="payroll", grace_seconds=a_day)),
            (3, "ada", credentials.add_federated, workflows),
        )
        for hours, name, operation, request in done:
            self._clock.wall = self._clock.steady = self._now_ms - hours * 3_600_000
            with suppress(Forbidden):
                await perform(operation, self._context, actors[name], request)

    async def _add_operators(self) -> None:
        org_ids = {org.name: org.org_id for org in await self._store.orgs()} | {EVERY_ORG: EVERY_ORG}
        hashed = hash_password(PASSWORD)
        for name, roles in OPERATORS.items():
            held = {org_ids[org]: role for org, role in roles.items()}
            identity = uuid7(self._clock.wall, self._random.getrandbits(74))
            await self._store.add_operator(Operator(identity, name, hashed, True, self._clock.wall, held))
            self._clock.advance(hours=1)

    async def _add_rulesets(self) -> None:
        flat = encode(parse(SCHEMA))
        schema = NewSchema(
            "/v1.0", digest_of(flat), pack(flat), len(flat), "https://graph.microsoft.com/v1.0/$metadata"
        )
        with_schema = [org.org_id for org in await self._store.orgs() if org.name != "fabrikam"]
        await self._store.add_schema(with_schema, schema)
        schemas = Schemas({("v1.0",): ResourceModel(flat, schema.digest)})
        for (org, name), texts in RULESETS.items():
            for text in texts:
                parsed = parse_ruleset(text)
                applied = await self._inventory.apply_ruleset(org, name, len(parsed.rules), text)
                compiled = compile_ruleset(parsed, schemas=schemas)
                self._traffic.use_ruleset(name, applied.version, compiled)
                self._clock.advance(hours=30)

    # Heartbeats of proxies

    async def _report(self, seeded: Seeded) -> None:
        rulesets = await self._store.rulesets(None)
        for name, (_, minutes) in PROXIES.items():
            if minutes is None:
                continue
            proxy = seeded.proxies[name]
            for beat in range(12, -1, -1):
                self._clock.wall = self._clock.steady = round(self._now_ms - minutes * 60_000) - beat * 30_000
                skew_ms = 41_000 if name == "edge-lab" else 0
                body = self._heartbeat(name, proxy, beat, rulesets)
                said = said_by(30_000, skew_ms, msgspec.json.decode(body, type=Heartbeat))
                await self._store.add_heartbeat(proxy.proxy_id, body, skew_ms, said)
            for minute in range(60, 0, -1):
                self._clock.wall = round(self._now_ms - (minutes + minute) * 60_000)
                await self._store.add_metrics(
                    proxy.proxy_id, rfc3339(self._clock.wall), self._metrics(name, minute)
                )

    def _heartbeat(self, name: str, proxy: Proxy, beat: int, rulesets: Sequence[Ruleset]) -> str:
        checks: dict[str, Any] = {
            each: {"status": "ok"} for each in ("sync", "credentials", "audit", "upstream", "tls")
        }
        if name == "edge-oslo-2":
            checks["audit"] = {"status": "degraded", "detail": "12 batches wait for the control plane"}
        if name == "edge-lab":
            checks["credentials"] = {"status": "failed", "detail": "the identity provider responds with 401"}
        body = {
            "version": "0.1.0",
            # This proxy started a moment ago.
            "uptimeSeconds": (
                130 - beat * 30 if name == "edge-amsterdam" and beat < 4 else 91_000 - beat * 30
            ),
            "loadedRules": 31,
            "syncVersion": "7c1f09",
            "syncAgeSeconds": 12.4,
            "checks": checks,
            "lastSeq": dict.fromkeys(proxy.org_ids, 4000),
            "auditPending": 640 if name == "edge-oslo-2" else 3,
            "oldestPendingSeconds": 95.0 if name == "edge-oslo-2" else 0.6,
        }
        if name != "edge-lab":  # edge-lab runs an earlier release that does not report this
            late = 1 if name == "edge-oslo-2" else 0
            body["rulesets"] = {
                each.ruleset_id: max(1, each.version - late)
                for each in rulesets
                if each.org_id in proxy.org_ids
            }
        return json.dumps(body)

    def _metrics(self, name: str, minute: int) -> str:
        evaluated = round(240 * (1 + 0.5 * math.sin(minute / 7)) * self._random.uniform(0.8, 1.2))
        blocked, filtered = evaluated // 11, evaluated // 2
        latencies = sorted(self._random.lognormvariate(3.4, 0.7) for _ in range(evaluated))
        buckets = [
            [bound, sum(each <= bound for each in latencies)] for bound in (5, 10, 25, 50, 100, 250, 1000)
        ]
        body = {
            "windowStart": rfc3339(self._clock.wall),
            "windowEnd": rfc3339(self._clock.wall + 60_000),
            "evaluated": evaluated,
            "allowed": evaluated - blocked - filtered,
            "blocked": blocked,
            "filtered": filtered,
            "loggedOnly": evaluated // 40,
            "upstreamErrors": self._random.choice((0, 0, 0, 1, 2)),
            "auditPending": 640 if name == "edge-oslo-2" else 3,
            "latencyMs": {"buckets": buckets, "sum": sum(latencies), "count": evaluated},
        }
        return json.dumps(body)

    # Requests of applications

    async def _commit(self, seeded: Seeded) -> None:
        """Store the events in batches, separately for each proxy and organisation, in the order of time.

        A few events of one proxy are missing in the stored data.
        """
        lanes: dict[tuple[str, str], list[dict[str, Any]]] = {}
        for traffic, at_ms in self._traffic.moments(TRAFFIC, seeded.events):
            names = [name for name, (orgs, ago) in PROXIES.items() if traffic.org in orgs and (ago or 99) < 1]
            name = self._random.choice(names)
            lane = lanes.setdefault((name, traffic.org), [])
            app, proxy = seeded.apps[traffic.name], seeded.proxies[name]
            lane.append(self._traffic.event(traffic, app, proxy, at_ms, len(lane) + 1))
        for (name, org), lane in lanes.items():
            came = [each for each in lane if not (name == "edge-oslo-2" and 400 <= each["seq"] < 407)]
            for start in range(0, len(came), 500):
                await self._store.commit_batch(
                    batch(seeded.proxies[name], seeded.orgs[org], came[start : start + 500]), NO_LIMIT
                )
            if name == "edge-amsterdam":  # this proxy has since lost its audit directory
                again = [{**each, "id": f"again-{each['id']}"} for each in lane[:3]]
                await self._store.commit_batch(batch(seeded.proxies[name], seeded.orgs[org], again), NO_LIMIT)


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    print(asyncio.run(seed(folder)).config)
