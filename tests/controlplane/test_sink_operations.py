"""Tests of sinks by command line and admin API: their progress, refused events, and permissions."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from controlplane.doctor.sinks import sinks as examined
from controlplane.operations import sinks
from controlplane.operations.actor import Actor, Forbidden, local_actor
from controlplane.operations.context import OperationContext
from controlplane.operations.operation import InvalidRequest
from controlplane.operations.perform import perform
from controlplane.sinks.settings import SplunkSettings, WebhookSettings
from controlplane.store.interface import LogQuery, NotFound
from controlplane.store.sink_interface import DeadLetter
from tests.controlplane.operator_commands import commands_at
from tests.controlplane.plane import FakeClock, Plane, batch, context_of, started
from tests.controlplane.search_events import event
from tests.controlplane.test_metrics import scraped
from tests.controlplane.test_sinks import commit
from tests.fakes.ports import free_port
from tests.fakes.splunk import SplunkCollector, splunk_collector
from tests.fakes.webhooks import SECRET
from tests.patience import PATIENCE_SECONDS

ADA = local_actor("ada")


@pytest.fixture
async def collector() -> AsyncIterator[SplunkCollector]:
    async with splunk_collector() as collector:
        yield collector


def with_sink(plane: Plane, url: str = "http://127.0.0.1:1") -> OperationContext:
    """Return a context whose settings have a sink to which no control plane delivers events."""
    sink = SplunkSettings(name="siem", kind="splunk", url=url, token="hec-token", from_="beginning")
    return replace(context_of(plane), settings=replace(plane.settings, sinks=(sink,)))


async def test_an_operator_sees_how_far_a_sink_is_and_sends_refused_events_again(
    plane: Plane, clock: FakeClock, collector: SplunkCollector
) -> None:
    context, store = with_sink(plane, collector.url), plane.store
    org = await plane.org("acme")
    made = [event(at, orgId=org) for at in range(3)]
    await store.begin_sink("siem", at_newest=False)
    await commit(store, *made)
    first = (await store.events_after(0, 1))[0].position
    letters = [
        DeadLetter(first, org, clock.wall, "blank"),
        DeadLetter(first + 1, org, clock.wall, "no index"),
    ]
    position = (await store.sink_states())["siem"].position
    await store.advance_sink("siem", position, first + 1, 1, letters)
    clock.advance(seconds=90)
    (facts,) = (await perform(sinks.list_all, context, ADA, sinks.ListSinks())).sinks
    assert (facts.name, facts.kind, facts.status) == ("siem", "splunk", "delivering")
    assert (facts.lag_events, facts.lag_seconds, facts.dead_letters) == (1, 90.0, 2)
    page = await perform(sinks.dead_letters, context, ADA, sinks.ListDeadLetters("siem", limit=1))
    (letter,) = page.dead_letters
    assert (letter.org, letter.event_id, letter.reason) == ("acme", made[0]["id"], "blank")
    assert page.next == first
    chosen = sinks.ChooseDeadLetters("siem", (first,))
    assert (await perform(sinks.retry, context, ADA, chosen)).count == 1
    assert (await perform(sinks.discard, context, ADA, sinks.ChooseDeadLetters("siem"))).count == 2
    (line, *_) = await store.operator_log(LogQuery(limit=1))
    assert (line.operation, line.result) == ("sink.discard", "discarded 2 dead letters of sink siem")
    rewound = await perform(sinks.rewind, context, ADA, sinks.RewindSink("siem", "-1h"))
    assert rewound.lag_events == 3
    found = await perform(sinks.test, context, ADA, sinks.SinkReference("siem"))
    assert (found.ok, found.result) == (True, "the collector is healthy and accepts the token")
    collector.token = "another"
    found = await perform(sinks.test, context, ADA, sinks.SinkReference("siem"))
    assert (found.ok, found.result) == (
        False,
        'responded 403 Forbidden: {"text": "Invalid token", "code": 4}',
    )


async def test_sinks_are_for_operators_of_every_organisation(plane: Plane) -> None:
    context = with_sink(plane)
    org = await plane.org("acme")
    of_org = Actor("eva", {org: "admin"})
    viewer = Actor("vic", {"*": "viewer"})
    editor = Actor("ed", {"*": "editor"})
    reference, chosen = sinks.SinkReference("siem"), sinks.ChooseDeadLetters("siem")
    with pytest.raises(Forbidden):
        await perform(sinks.list_all, context, of_org, sinks.ListSinks())
    await perform(sinks.list_all, context, viewer, sinks.ListSinks())
    await perform(sinks.show, context, viewer, reference)
    with pytest.raises(Forbidden):
        await perform(sinks.test, context, viewer, reference)
    with pytest.raises(Forbidden):
        await perform(sinks.retry, context, editor, chosen)
    with pytest.raises(Forbidden):
        await perform(sinks.discard, context, editor, chosen)
    with pytest.raises(Forbidden):
        await perform(sinks.rewind, context, editor, sinks.RewindSink("siem", "now"))
    with pytest.raises(NotFound, match="there is no sink other; the settings define siem"):
        await perform(sinks.show, context, ADA, sinks.SinkReference("other"))
    with pytest.raises(InvalidRequest, match="to: 'soon' is not a time"):
        await perform(sinks.rewind, context, ADA, sinks.RewindSink("siem", "soon"))


async def test_events_that_proxies_send_arrive_at_the_sink(
    tmp_path: Path, clock: FakeClock, collector: SplunkCollector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controlplane.sinks.consumer.LINGER_SECONDS", 0.0)
    sink = f'[[Sinks]]\nName = "siem"\nKind = "splunk"\nUrl = "{collector.url}"\nToken = "hec-token"'
    metrics = f'Listen = "127.0.0.1:{free_port()}"'
    async with started(tmp_path, clock, Metrics=metrics, Log=f'Level = "info"\n{sink}') as plane:
        commands = await commands_at(plane, tmp_path)
        org = await plane.org("acme")
        proxy = await plane.proxy("edge-1", "acme")
        assert (await proxy.audit(batch("b1", org, [1, 2]))).status == 202
        async with asyncio.timeout(PATIENCE_SECONDS):
            await collector.took.acquire()
        assert [each["event"]["seq"] for each in collector.events] == [1, 2]
        (facts,) = (await commands.facts("server", "sink", "list"))["sinks"]
        assert facts["name"] == "siem"
        status, out, err = await commands.run("store", "sink", "test", "siem")
        assert (status, out, err) == (0, "siem: the collector is healthy and accepts the token\n", "")
        found = await scraped(plane)
        assert found["graphward_sink_up", "siem"] == 1
        assert found["graphward_sink_lag_events", "siem"] in (0, 2), "the cursor follows the delivery"
        position = await plane.store.last_position()
        letter = DeadLetter(position, org, clock.wall, "no such index")
        await plane.store.end_retries("siem", [], 0, [letter])
        status, out, _ = await commands.run("server", "sink", "dead-letters", "siem")
        assert "no such index" in out
        status, out, _ = await commands.run("server", "sink", "discard", "siem", str(position))
        assert out == "discarded 1 dead letter\n"
        await plane.store.end_retries("siem", [], 0, [letter])
        assert (await scraped(plane))["graphward_sink_dead_letters", "siem"] == 1
        well, letters = await asyncio.to_thread(examined, plane.settings)
        assert (well.check, well.status) == ("sink siem", "ok")
        assert letters.found == "1 event that it refused permanently"
        hook = WebhookSettings(
            name="hook",
            kind="webhook",
            url="https://hooks.example/",
            secret=SECRET,
            organisations=("acme", "gone"),
        )
        odd = replace(
            plane.settings.event_sinks[0], filter="org:acme app:a* method:GET", organisations=(org,)
        )
        findings = await asyncio.to_thread(examined, replace(plane.settings, sinks=(odd, hook)))
        assert [(each.check, each.status, each.found) for each in findings[1:]] == [
            (
                "sink siem",
                "warn",
                "Filter has org:acme, but no org has that id (a filter does not accept names)",
            ),
            ("sink siem", "warn", "1 event that it refused permanently"),
            ("sink hook", "warn", "there is no organisation gone"),
            ("sink hook", "ok", "not tried, because a test sends a notice; it has not started yet"),
        ]
        await plane.store.begin_webhook("hook", at_newest=True)
        await plane.store.note_sink_problem("hook", "responded 401 Unauthorized")
        (*_, told) = await asyncio.to_thread(examined, replace(plane.settings, sinks=(hook,)))
        assert (told.status, "responded 401" in told.found) == ("fail", True)
        shown = await perform(
            sinks.show, replace(context_of(plane), settings=replace(plane.settings, sinks=(hook,))), ADA,
            sinks.SinkReference("hook"),
        )  # fmt: skip
        assert shown.unknown_organisations == ("gone",)
        collector.token = "another"
        (ill, _) = await asyncio.to_thread(examined, plane.settings)
        assert ill.status == "fail"
        status, out, err = await commands.run("server", "sink", "test", "siem")
        assert (status, out) == (1, "")
        assert "Invalid token" in err


async def test_another_control_plane_goes_on_where_the_leader_ended(
    tmp_path: Path,
    clock: FakeClock,
    postgres_url: str,
    collector: SplunkCollector,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("controlplane.sinks.consumer.LINGER_SECONDS", 0.0)
    sink = f'[[Sinks]]\nName = "siem"\nKind = "splunk"\nUrl = "{collector.url}"\nToken = "hec-token"'
    sections = {
        "Store": f'Url = "{postgres_url}"',
        "SearchIndex": 'Kind = "postgresql"',
        "Log": f'Level = "info"\n{sink}\nFrom = "beginning"',
    }
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    async with AsyncExitStack() as of_second:
        async with started(first, clock, **sections) as leader:
            shutil.copytree(first / "var", second / "var")
            other = await of_second.enter_async_context(started(second, clock, **sections))
            org = await leader.org("acme")
            proxy = await leader.proxy("edge-1", "acme")
            assert (await proxy.audit(batch("b1", org, [1, 2]))).status == 202
            async with asyncio.timeout(PATIENCE_SECONDS):
                await collector.took.acquire()
        proxy.base_url, proxy.session = other.base_url, other.session
        assert (await proxy.audit(batch("b2", org, [3, 4]))).status == 202
        async with asyncio.timeout(PATIENCE_SECONDS):
            while collector.events[-1]["event"]["seq"] != 4:
                await collector.took.acquire()
    arrived = [each["event"]["seq"] for each in collector.events]
    assert list(dict.fromkeys(arrived)) == [1, 2, 3, 4]
