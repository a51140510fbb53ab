"""Data from before the demo: an organisation with weeks of use, and the audit events of its last day."""

from __future__ import annotations

import random
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from controlplane.integrity import begin_chain
from controlplane.live_tail import LiveTail
from controlplane.master_key import open_vault
from controlplane.model.flat_form import encode
from controlplane.model.metadata import parse
from controlplane.names import new_id
from controlplane.operations import apps, operators, orgs, proxies, rulesets
from controlplane.operations.actor import EVERY_ORG, Actor
from controlplane.operations.context import OperationContext
from controlplane.operations.perform import masked, perform
from controlplane.search.interface import SearchIndex
from controlplane.secrets import Vault
from controlplane.settings import read_settings
from controlplane.store.interface import NewLogLine, NewSchema, Ruleset
from controlplane.store.sqlite import SqliteStore
from proxy.agent.statefile import OrganisationState, State, StateFile, encode_state
from proxy.policy.compile import compile_ruleset
from proxy.policy.resource_model import ResourceModel, digest_of
from proxy.policy.ruleset_yaml import parse_ruleset
from proxy.policy.schemas import NO_SCHEMAS, Schemas
from proxy.wire.packed_schema import pack
from tests.demo_rows import HR_RULES, PAYROLL, POWER_BI, REPORTING_RULES
from tests.fakes.clock import FakeClock
from tests.fakes.graph import SCHEMA
from tests.fakes.system import PROXY, ROOT, Application, Registered, System
from tests.fakes.traffic import DAY_MS, NO_LIMIT, Traffic, TrafficMaker, batch

ORG: Final = "Contoso"
OPERATOR: Final = "demo"
HR_PORTAL: Final = "hr-portal"
EVENTS: Final = 3000
EARLIER: Final = 300  # events of the day before that
_EVENTS_OF_A_BATCH: Final = 150
_HOUR_MS: Final = 3_600_000
_DELIVERY_MS: Final = 900  # between an event and its arrival at the control plane
_BEFORE_NOW_MS: Final = 60_000  # the last of these events is older than the first request of the demo
_SAMPLES: Final = ROOT / "conf" / "demo"
_TRAFFIC: Final = (
    Traffic(ORG, PAYROLL, HR_RULES, 0.42, "10.20.4", (
        (30, "GET", "/v1.0/users?$select=id,displayName,mail&$top=100"), (26, "GET", "/v1.0/users/{id}"),
        (9, "GET", "/v1.0/users/{id}/manager"), (6, "GET", "/v1.0/groups"), (4, "GET", "/v1.0/organization"),
        (3, "GET", "/v1.0/users?$filter=startswith(mobilePhone,'+47')"),
        (2, "GET", "/v1.0/users/{id}/messages/{mail}"), (2, "GET", "/v1.0/auditLogs/directoryAudits"),
        (1, "DELETE", "/v1.0/users/{id}"),
    )),
    Traffic(ORG, HR_PORTAL, HR_RULES, 0.24, "10.20.9", (
        (20, "GET", "/v1.0/users/{id}"), (9, "GET", "/v1.0/users/{id}/photo/$value"),
        (5, "GET", "/v1.0/groups/{id}"), (3, "GET", "/v1.0/me/messages/{mail}"),
        (2, "GET", "/v1.0/devices?$top=999"), (2, "GET", "/v1.0/domains"),
    )),
    Traffic(ORG, POWER_BI, REPORTING_RULES, 0.22, "172.16.8", (
        (8, "GET", "/v1.0/me/drive/recent"), (2, "PATCH", "/v1.0/groups/{id}"), (30, "", "examples"),
    ), nightly=True),
    Traffic(ORG, "helpdesk", REPORTING_RULES, 0.12, "172.16.30", (
        (20, "GET", "/v1.0/users/{id}"), (6, "PATCH", "/v1.0/users/{id}"), (3, "GET", "/v1.0/me/events"),
    )),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class SignIn:
    """Name and password of the demo's operator, made for one run."""

    name: str
    password: str


class Yesterday:
    """Writer of past activity for the demo: an organisation that is weeks old, and events of the last day."""

    def __init__(self) -> None:
        digits = secrets.token_hex(6)
        self.sign_in = SignIn(OPERATOR, f"{digits[:4]}-{digits[4:8]}-{digits[8:]}")
        self.verdicts: Counter[str] = Counter()  # verdicts of the stored events

    async def register(self, system: System) -> Registered:
        """Write the whole history of the demo's organisation to the store.

        The control plane must not run while `register` writes past events to the store.
        """
        now_ms = time.time_ns() // 1_000_000
        clock = FakeClock(now_ms - 40 * DAY_MS)
        async with _beside_the_store(system.control_plane_config, clock) as context:
            maker = TrafficMaker(now_ms - _BEFORE_NOW_MS, random.Random(20261126))
            past = _Past(context, clock, maker)
            keys = await past.add_organisation(self.sign_in)
            await past.add_rulesets()
            applications = [await past.add_app(each.name, each.ruleset) for each in _TRAFFIC]
            await past.change_lately(now_ms)
            events = await past.add_events()
            org = await context.resolve.org(past.actor, "viewer", ORG)
        self.verdicts.update(event["verdict"] for event in events[EARLIER:])
        _continue_numbers(system.audit_directory, org.org_id, len(events))
        named = {each.name: each for each in applications}
        return Registered(org.org_id, keys, named)


class _Past:
    """Activity in the past: operations of operators run with a fake clock that gives past times."""

    def __init__(self, context: OperationContext, clock: FakeClock, maker: TrafficMaker) -> None:
        self.actor = Actor(OPERATOR, {EVERY_ORG: "admin"}, "127.0.0.1")
        self._context = context
        self._clock = clock
        self._maker = maker
        self._schemas = NO_SCHEMAS

    async def add_organisation(self, sign_in: SignIn) -> Mapping[str, str]:
        """Add the operator and the organisation of the demo.

        Return the credentials of the organisation's proxy.
        """
        context = self._context
        admin = operators.AddOperator(sign_in.name, sign_in.password, "admin", EVERY_ORG)
        await operators.add.perform(context, self.actor, admin)
        await perform(orgs.add, context, self.actor, orgs.AddOrg(ORG, "90d"))
        self._clock.advance(hours=1)
        keys = await perform(proxies.add, context, self.actor, proxies.AddProxy(PROXY, (ORG,)))
        return {"apiKey": keys.api_key, "hmacSecret": keys.hmac_secret}

    async def add_rulesets(self) -> None:
        """Publish the first version of each ruleset.

        The first version of one ruleset allows more requests than the ruleset's current text.
        """
        self._schemas = await self._add_schema()
        wider = _text(HR_RULES).replace("at_most: 100}", "at_most: 500}")
        assert wider != _text(HR_RULES)
        await self._publish(HR_RULES, wider, "First version")
        await self._publish(REPORTING_RULES, _text(REPORTING_RULES), "First version")

    async def change_lately(self, now_ms: int) -> None:
        """Publish a version of a ruleset with the clock set to three days ago.

        Replace a client secret with the clock set to three hours ago.
        """
        self._move_clock(now_ms - 3 * DAY_MS)
        await self._publish(HR_RULES, _text(HR_RULES), "Pages of at most 100 devices")
        self._move_clock(now_ms - 3 * _HOUR_MS)
        request = apps.RotateSecret(HR_PORTAL, ORG, grace_seconds=DAY_MS // 1000)
        await perform(apps.rotate_secret, self._context, self.actor, request)

    async def _add_schema(self) -> Schemas:
        flat = encode(parse(SCHEMA))
        source = "https://graph.microsoft.com/v1.0/$metadata"
        schema = NewSchema("/v1.0", digest_of(flat), pack(flat), len(flat), source)
        org = await self._context.resolve.org(self.actor, "viewer", ORG)
        await self._context.store.add_schema([org.org_id], schema)
        return Schemas({("v1.0",): ResourceModel(flat, schema.digest)})

    async def _publish(self, name: str, text: str, note: str) -> None:
        """Store a ruleset version as `ruleset.apply` does, but check the ruleset text in this process."""
        context, clock = self._context, self._clock
        org = await context.resolve.org(self.actor, "viewer", ORG)
        parsed = parse_ruleset(text)
        ruleset = Ruleset(new_id(clock), org.org_id, name, 1, len(parsed.rules), clock.wall_ms())
        named = (await context.store.current_schemas(org.org_id)).digests
        request = rulesets.ApplyRuleset(org=ORG, yaml=text, note=note, label=f"{name}.yaml")
        done = NewLogLine(self.actor.name, self.actor.address, rulesets.apply.name, masked(request))
        line = await context.store.begin_log_line(done)
        applied, _ = await context.store.apply_ruleset(ruleset, text, note, None, named)
        await context.store.end_log_line(line, "done", [org.org_id])
        self._maker.use_ruleset(name, applied.version, compile_ruleset(parsed, schemas=self._schemas))

    async def add_app(self, name: str, ruleset: str) -> Application:
        self._clock.advance(hours=3)
        made = await perform(apps.add, self._context, self.actor, apps.AddApp(name, ORG, ruleset))
        return Application(name, made.client_id, made.client_secret or "")

    async def add_events(self) -> Sequence[Mapping[str, Any]]:
        """Store a day of events under the proxy's identity, numbered from 1 without a gap."""
        context = self._context
        org = await context.resolve.org(self.actor, "viewer", ORG)
        proxy = await context.resolve.proxy(self.actor, "viewer", PROXY)
        named = {app.name: app for app in await context.store.apps(org.org_id)}
        # A search of the last 24 hours finds events from its beginning on.
        earlier = [(traffic, at_ms - DAY_MS) for traffic, at_ms in self._maker.moments(_TRAFFIC, EARLIER)]
        events = [
            self._maker.event(traffic, named[traffic.name], proxy, at_ms, number)
            for number, (traffic, at_ms) in enumerate([*earlier, *self._maker.moments(_TRAFFIC, EVENTS)], 1)
        ]
        for start in range(0, len(events), _EVENTS_OF_A_BATCH):
            sent = batch(proxy, org, events[start : start + _EVENTS_OF_A_BATCH])
            self._move_clock(sent.times[-1] + _DELIVERY_MS)
            await context.store.commit_batch(sent, NO_LIMIT)
        return events

    def _move_clock(self, ms: int) -> None:
        self._clock.wall = self._clock.steady = ms


def _text(ruleset: str) -> str:
    return (_SAMPLES / f"{ruleset}.yaml").read_text("utf-8")


@asynccontextmanager
async def _beside_the_store(config: Path, clock: FakeClock) -> AsyncIterator[OperationContext]:
    settings = read_settings(config, {})
    store = await SqliteStore.open(settings.store.path, clock)

    async def opened_vault() -> Vault:
        return await open_vault(settings.secrets, store)

    async def no_index() -> SearchIndex:
        raise AssertionError("nothing here searches")

    try:
        await begin_chain(await opened_vault(), store)
        yield OperationContext(settings, store, clock, opened_vault, no_index, LiveTail(store))
    finally:
        await store.close()


def _continue_numbers(audit: Path, org_id: str, last: int) -> None:
    """Write an agent state after which the proxy's next event has the sequence number `last` + 1."""
    audit.mkdir(mode=0o700)
    numbers = OrganisationState(next_seq=last + 1, sent_seq=last)
    StateFile(audit).save(encode_state(State(organisations={org_id: numbers})))
