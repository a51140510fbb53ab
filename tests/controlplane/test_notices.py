"""Tests of notices for operators: their causes, and that a webhook gets each notice despite crashes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from controlplane.notices.conditions import conditions_now
from controlplane.notices.delivery import Delivery
from controlplane.notices.from_log import notice_of
from controlplane.notices.notice import FORMS, Kind, Notice, decoded, encoded
from controlplane.notices.webhook import Webhook
from controlplane.notices.writer import NoticeWriter
from controlplane.operations import sinks
from controlplane.operations.actor import local_actor
from controlplane.operations.perform import perform
from controlplane.settings import read_settings, secrets_of
from controlplane.sinks.interface import SinkUnavailable
from controlplane.sinks.settings import WebhookSettings
from controlplane.store.interface import EndingCredential, LogLine, Losses, NewLogLine, Org, Proxy
from controlplane.store.sink_interface import DeadLetter, NewNotice, SinkState
from controlplane.store.sql_store import SqlStore
from proxy.config import SettingsError
from proxy.outbound.egress import DIRECT
from tests.controlplane.plane import FakeClock, Plane, context_of, started, write_settings
from tests.fakes.webhooks import SECRET, Answer, FakeReceiver
from tests.patience import PATIENCE_SECONDS

ADA: Final = local_actor("ada")
DAY_MS: Final = 86_400_000


def settings(url: str, **changed: Any) -> WebhookSettings:
    return replace(
        WebhookSettings(name="pager", kind="webhook", url=url, secret=SECRET, from_="beginning"), **changed
    )


def notice(number: int, kind: Kind = "publish", org_ids: tuple[str, ...] = ("org-1",)) -> NewNotice:
    made = Notice(f"ntc_{number}", kind, "happened", 1000 + number, org_ids, "s", f"text {number}")
    return NewNotice(made.notice_id, made.time_ms, encoded(made))


@pytest.fixture
async def receiver() -> AsyncIterator[FakeReceiver]:
    async with FakeReceiver() as fake:
        yield fake


class Delivering:
    """Delivery of the store's notices to a webhook. After each run, the webhook's HTTP client is closed."""

    def __init__(self, store: SqlStore, clock: FakeClock, webhook: WebhookSettings) -> None:
        self.webhook = Webhook(webhook, DIRECT, clock, "https://control.example")
        self._delivery = Delivery(webhook, store, clock, lambda _: self.webhook)

    async def drain(self) -> None:
        try:
            await self._delivery.drain(self.webhook)
        finally:
            await self.webhook.close()


def line(operation: str, result: str | None, **changed: Any) -> LogLine:
    made = LogLine(7, 1000, "ada", "::1", operation, '{"reason":"leak"}', ("org-1",), "done", False, result)
    return replace(made, **changed)


@pytest.mark.parametrize(
    ("operation", "result", "kind", "text"),
    [
        ("kill.all", None, "emergencyStop", "ada stopped everything: leak"),
        ("kill.app", "stopped app hr", "emergencyStop", "ada stopped app hr: leak"),
        ("unkill.org", "lifted the stop of organisation acme", "emergencyStop", "ada lifted the stop of"),
        ("ruleset.apply", "published hr version 4", "publish", "ada published hr version 4: leak"),
        ("ruleset.rollback", "rolled back hr to version 3", "publish", "ada rolled back hr to version 3"),
        ("proposal.approve", "published hr version 4, proposed by alan", "publish", "ada published hr"),
    ],
)
def test_stops_and_published_rules_are_told(operation: str, result: str | None, kind: str, text: str) -> None:
    made = notice_of(line(operation, result))
    assert made is not None
    assert (made.kind, made.org_ids, made.data["operator"]) == (kind, ("org-1",), "ada")
    assert made.text.startswith(text)
    assert made.notice_id == notice_of(line(operation, result)).notice_id  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "changed",
    [
        line("kill.all", None, outcome="forbidden"),
        line("kill.all", None, outcome=None),
        line("ruleset.apply", "hr unchanged: version 3 stays active"),
        line("ruleset.apply", "proposed hr version 4"),
        line("proposal.reject", "rejected a change of hr, proposed by alan"),
        line("app.add", None),
    ],
)
def test_what_was_refused_or_changed_nothing_is_not_told(changed: LogLine) -> None:
    assert notice_of(changed) is None


def test_each_form_is_what_its_receiver_takes() -> None:
    made = Notice("ntc_1", "publish", "happened", 1000, ("o",), "ruleset.apply", "a <!channel> & b", {"x": 1})
    event = FORMS["cloudevents"].body(made, "urn:x")
    assert b'"specversion":"1.0"' in event
    assert b'"type":"graphward.publish.happened"' in event
    assert b'"time":"1970-01-01T00:00:01.000Z"' in event
    assert b"a &lt;!channel&gt; &amp; b" in FORMS["slack"].body(made, "urn:x"), "no mention of everybody"
    assert b'"type":"AdaptiveCard"' in FORMS["teams"].body(made, "urn:x")


async def test_a_webhook_gets_each_notice_signed_and_in_order(
    either_store: SqlStore, clock: FakeClock, receiver: FakeReceiver
) -> None:
    store = either_store
    await store.add_org(Org("org-1", "acme", "base", 0))
    await store.log_position_noticed()
    made = [notice(1), notice(2, "sink", ()), notice(3, org_ids=("org-2",)), notice(4, "emergencyStop")]
    await store.add_notices(made, 0)
    await store.add_notices(made, 0)  # a delayed leader does this
    all_kinds = settings(receiver.base_url + "/hook")
    await Delivering(store, clock, all_kinds).drain()
    assert [each.headers["webhook-id"] for each in receiver.taken] == ["ntc_1", "ntc_2", "ntc_3", "ntc_4"]
    assert all(each.is_signed for each in receiver.taken)
    assert receiver.taken[0].headers["webhook-timestamp"] == str(clock.wall_ms() // 1000)
    assert receiver.taken[0].json["data"] == {
        "text": "text 1", "step": "happened", "organisations": ["org-1"],
    }  # fmt: skip
    chosen = replace(all_kinds, name="acme", organisations=("acme",), notices=("publish", "sink"))
    await Delivering(store, clock, chosen).drain()
    assert [each.headers["webhook-id"] for each in receiver.taken[4:]] == ["ntc_1", "ntc_2"]
    later = replace(all_kinds, name="later", from_="now")
    await Delivering(store, clock, later).drain()
    await store.add_notices([notice(5)], 0)
    await Delivering(store, clock, later).drain()
    assert [each.headers["webhook-id"] for each in receiver.taken[6:]] == ["ntc_5"]
    states = await store.sink_states()
    assert (states["pager"].delivered, states["acme"].delivered, states["later"].delivered) == (4, 2, 1)


async def test_a_receiver_that_is_away_loses_nothing_and_one_that_refuses_makes_a_dead_letter(
    either_store: SqlStore, clock: FakeClock, receiver: FakeReceiver
) -> None:
    store, url = either_store, receiver.base_url + "/hook"
    await store.log_position_noticed()
    await store.add_notices([notice(1), notice(2), notice(3)], 0)
    receiver.answers = [Answer(503, (("Retry-After", "7"),), b"try " + url.encode())]
    with pytest.raises(SinkUnavailable, match="503") as away:
        await Delivering(store, clock, settings(url)).drain()
    assert away.value.retry_after == 7
    receiver.answers = [Answer(302, (("Location", "http://169.254.169.254/"),))]
    with pytest.raises(SinkUnavailable, match="not followed"):
        await Delivering(store, clock, settings(url)).drain()
    receiver.answers = [Answer(406, (), b"no such field")]
    clock.advance(hours=72)
    await Delivering(store, clock, settings(url)).drain()
    assert [each.headers["webhook-id"] for each in receiver.taken] == ["ntc_2", "ntc_3"]
    (dead,) = await store.dead_letters("pager", 9)
    reason = "responded 406 Not Acceptable: no such field"
    assert dead == DeadLetter(dead.position, "org-1", clock.wall_ms(), reason)
    assert await store.retry_dead_letters("pager", None) == 1
    await Delivering(store, clock, settings(url)).drain()
    assert [each.headers["webhook-id"] for each in receiver.taken] == ["ntc_2", "ntc_3", "ntc_1"]
    assert await store.dead_letters("pager", 9) == []


async def test_a_control_plane_that_was_killed_goes_on_where_it_stood(
    tmp_path: Path, clock: FakeClock, receiver: FakeReceiver
) -> None:
    """The control plane's process ends immediately after it has stored an emergency stop.

    After a restart, the control plane sends the notice of an emergency stop that was stored just before a
    crash.
    """
    table = f'[[Sinks]]\nName = "pager"\nKind = "webhook"\nUrl = "{receiver.base_url}"\nSecret = "{SECRET}"\n'
    async with started(tmp_path, clock) as plane:
        await plane.store.begin_webhook("pager", at_newest=True)
        await plane.store.log_position_noticed()
        await log(plane.store, "kill.all")
    async with started(tmp_path, clock, Log=f'Level = "info"\n{table}'), asyncio.timeout(PATIENCE_SECONDS):
        (call,) = await receiver.until_taken(1)
    assert call.is_signed
    assert call.json["type"] == "graphward.emergencyStop.happened"
    assert call.json["data"]["operator"] == "ada"


async def test_operators_see_test_and_rewind_a_webhook(plane: Plane, receiver: FakeReceiver) -> None:
    webhook = settings(receiver.base_url)
    context = replace(context_of(plane), settings=replace(plane.settings, sinks=(webhook,)))
    assert (await perform(sinks.list_all, context, ADA, sinks.ListSinks())).sinks[0].status == "not started"
    await plane.store.add_notices([notice(1), notice(2)], 0)
    await plane.store.begin_webhook("pager", at_newest=True)
    found = await perform(sinks.show, context, ADA, sinks.SinkReference("pager"))
    assert (found.kind, found.status, found.lag_events) == ("webhook", "up to date", 0)
    rewound = await perform(sinks.rewind, context, ADA, sinks.RewindSink("pager", "1970-01-01T00:00:00Z"))
    assert (rewound.status, rewound.lag_events) == ("delivering", 2)
    tried = await perform(sinks.test, context, ADA, sinks.SinkReference("pager"))
    assert (tried.ok, tried.result) == (True, "the receiver accepted a test notice")
    assert receiver.taken[0].json["subject"] == "test"
    receiver.answers = [Answer(401, (), b"who is " + SECRET.encode())]
    tried = await perform(sinks.test, context, ADA, sinks.SinkReference("pager"))
    assert (tried.ok, SECRET in tried.result) == (False, False)


async def log(store: SqlStore, operation: str, result: str | None = None) -> None:
    position = await store.begin_log_line(NewLogLine("ada", "::1", operation, "{}"))
    await store.end_log_line(position, "done", ["org-1"], result)


async def bodies(store: SqlStore) -> list[str]:
    return [each.body for each in await store.notices_after(0, 99)]


async def test_the_operator_log_makes_each_notice_once_from_the_first_look_on(
    either_store: SqlStore, clock: FakeClock
) -> None:
    store = either_store
    await log(store, "kill.all")
    writer = NoticeWriter((), store, clock, lambda: None)
    await writer.look()
    assert await bodies(store) == [], "what came before is old"
    begun = await store.begin_log_line(NewLogLine("ada", "::1", "kill.org", "{}"))
    await log(store, "ruleset.apply", "published hr version 4")
    await writer.look()
    await store.end_log_line(begun, "done", ["org-1"], "stopped organisation acme")
    await writer.look()
    await NoticeWriter((), store, clock, lambda: None).look()  # after a crash, or at another control plane
    found = await bodies(store)
    assert ["published hr" in found[0], "stopped organisation acme" in found[1], len(found)] == [
        True,
        True,
        2,
    ]
    clock.advance(hours=2)
    await writer.look()
    assert await store.log_position_noticed() == begun + 1
    clock.advance(hours=24 * 91)
    await writer.look()
    assert await bodies(store) == []


async def test_what_lasts_has_a_begin_a_reminder_each_day_and_an_end(
    either_store: SqlStore, clock: FakeClock, receiver: FakeReceiver
) -> None:
    store = either_store
    webhook = settings(receiver.base_url)
    await store.log_position_noticed()
    await store.add_notices([notice(1)], 0)
    receiver.answers = [Answer(422)]
    await Delivering(store, clock, webhook).drain()
    writer = NoticeWriter((webhook,), store, clock, lambda: None)
    for _ in range(25):
        await writer.look()
        clock.advance(hours=1)
    await store.discard_dead_letters("pager", None)
    await writer.look()
    await NoticeWriter((webhook,), store, clock, lambda: None).look()
    told = [decoded(body) for body in await bodies(store)]
    assert [each.step for each in told if "dead" in each.subject] == ["began", "reminder", "ended"]
    assert told[-1].text == "Sink pager has no dead letter any more"
    assert {each.step for each in told if each.subject == "lag pager"} == {"began", "reminder"}
    assert len({each.notice_id for each in told}) == len(told)


class Sources:
    """A fleet of one proxy with two missing events, and an application with a credential that ends soon."""

    def __init__(self, ends_ms: int = 0) -> None:
        self._ends_ms = ends_ms
        self.lost = Losses(missing=2)

    async def orgs(self) -> list[Org]:
        return [Org("org-1", "acme", "base", 0)]

    async def proxies(self, org_id: str | None) -> list[Proxy]:
        return [Proxy("proxy-1", "edge", True, 0, 0, 1, ("org-1",))]

    async def losses(self, proxy_ids: Sequence[str]) -> Mapping[str, Losses]:
        return dict.fromkeys(proxy_ids, self.lost)

    async def ending_credentials(
        self, org_ids: Collection[str] | None, until_ms: int
    ) -> list[EndingCredential]:
        found = [EndingCredential("app-1", "org-1", "reader", "crd-1", self._ends_ms)]
        return [each for each in found if each.ends_ms < until_ms]

    async def sink_states(self) -> Mapping[str, SinkState]:
        return {}

    async def oldest_received_after(self, position: int) -> int | None:
        return None

    async def oldest_notice_after(self, position: int) -> int | None:
        return None


async def test_gaps_are_told_with_their_organisation() -> None:
    sources = Sources()
    (gap,) = await conditions_now(sources, (), 0)
    assert (gap.kind, gap.org_ids) == ("missingEvents", ("org-1",))
    assert gap.text == "The audit trail of proxy edge has faults: 2 events missing"
    sources.lost = Losses()
    assert await conditions_now(sources, (), 0) == []


@pytest.mark.parametrize(("ends_ms", "told"), [(14 * DAY_MS - 1, True), (14 * DAY_MS, False), (0, False)])
async def test_the_end_of_a_credential_is_told_two_weeks_ahead(ends_ms: int, told: bool) -> None:
    found = [each for each in await conditions_now(Sources(ends_ms), (), 0) if each.kind == "credentialEnds"]
    assert [(each.org_ids, each.data["credentialId"]) for each in found] == [(("org-1",), "crd-1")] * told


def written(tmp_path: Path, **changed: str) -> Path:
    keys = {"Name": '"pager"', "Kind": '"webhook"', "Url": '"https://hooks.contoso.test/T0/secret"'}
    keys |= {"Secret": f'"{SECRET}"'} | changed
    lines = [f"{name} = {value}" for name, value in keys.items() if value]
    path = write_settings(tmp_path)
    path.write_text(path.read_text() + "\n[[Sinks]]\n" + "\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"Url": '"http://hooks.contoso.test/"'}, "must be an https:// address"),
        ({"Secret": ""}, "Secret: is missing"),
        ({"Secret": '"short"'}, "must be `whsec_` and 24 to 64 random bytes"),
        ({"Notices": '["stops"]'}, "Sinks.pager.Notices"),
        ({"Filter": '"verdict:block"'}, "unknown key"),
    ],
)
def test_a_webhook_that_can_not_work_stops_the_start(
    tmp_path: Path, changed: dict[str, str], problem: str
) -> None:
    with pytest.raises(SettingsError) as refused:
        read_settings(written(tmp_path, **changed), {})
    assert problem in "\n".join(refused.value.problems)
    assert SECRET not in "\n".join(refused.value.problems)


def test_the_address_and_the_secret_of_a_webhook_are_not_shown(tmp_path: Path) -> None:
    found = read_settings(written(tmp_path, Url='"http://127.0.0.1:9/hook"', Notices='["sink"]'), {})
    assert {"http://127.0.0.1:9/hook", SECRET} <= secrets_of(found)
    assert found.event_sinks == ()
    assert [each.notices for each in found.webhooks] == [("sink",)]
