"""Tests of delivery to sinks: each wanted outbox event arrives, in order, even if the sink fails."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import orjson
import pytest

from controlplane.retention import Retention
from controlplane.sinks import consumer as consumer_module
from controlplane.sinks.consumer import Consumer
from controlplane.sinks.interface import Limits, Sent, SinkEvent, SinkUnavailable
from controlplane.sinks.settings import AnySink, SplunkSettings
from controlplane.store.interface import RETENTION_MS, NewBatch, Org, RateLimits
from controlplane.store.sink_interface import SinkState
from controlplane.store.sql_store import SqlStore
from tests.controlplane.plane import HEARTBEAT, Plane, agreed_with
from tests.controlplane.search_events import ORG, OTHER_ORG, START_MS, event
from tests.controlplane.test_reports import GOOD_HEARTBEAT
from tests.controlplane.test_retention import _Index
from tests.fakes.clock import FakeClock
from tests.fakes.recording_sink import RecordingSink
from tests.patience import PATIENCE_SECONDS

SETTINGS: Final = SplunkSettings(
    name="siem", kind="splunk", url="https://splunk.example", token="hec-token", from_="beginning"
)
ONE_AT_ONCE: Final = Limits(1, 1_000_000)


async def commit(store: SqlStore, *events: dict[str, Any]) -> None:
    """Store the events of one organisation as one batch."""
    ids, seqs = [each["id"] for each in events], [each["seq"] for each in events]
    bodies = [orjson.dumps(each) for each in events]
    batch_id = f"batch-{ids[0]}"
    new = NewBatch("proxy-1", events[0]["orgId"], batch_id, ids, seqs, [START_MS] * len(ids), bodies)
    await store.commit_batch(new, RateLimits(10**6, 10**6))


def consumer_of(store: SqlStore, clock: FakeClock, settings: AnySink = SETTINGS) -> Consumer:
    def opened(_: AnySink) -> RecordingSink:
        raise AssertionError("the test gives the sink itself")

    return Consumer(settings, store, clock, opened)


def seqs_of(sink: RecordingSink) -> list[int]:
    return [each.members["seq"] for each in sink.taken]


async def state_of(store: SqlStore) -> SinkState:
    return (await store.sink_states())["siem"]


async def test_a_sink_is_given_every_event_it_wants_in_order(
    either_store: SqlStore, clock: FakeClock
) -> None:
    store, sink = either_store, RecordingSink(Limits(3, 1_000_000))
    await store.add_org(Org(ORG, "acme", "base", 0))
    await commit(store, *(event(at, verdict="block" if at % 2 else "allow") for at in range(8)))
    await commit(store, event(100, orgId=OTHER_ORG, verdict="block"))
    settings = replace(SETTINGS, filter="verdict:block", organisations=("acme",))
    await consumer_of(store, clock, settings).drain(sink)
    assert seqs_of(sink) == [1, 3, 5, 7]
    assert [len(each) for each in sink.calls] == [3, 1], "no call is larger than the sink allows"
    assert sink.taken[0].payload == orjson.dumps(event(1, verdict="block")), "the event as the proxy wrote it"
    state = await state_of(store)
    assert (state.delivered, state.delivered_ms) == (4, clock.wall)
    assert state.position == await store.last_position(), "events that it does not want are behind it too"
    assert await store.oldest_received_after(state.position) is None
    await commit(store, event(9, verdict="block"))
    assert await store.oldest_received_after(state.position) is not None
    await consumer_of(store, clock, settings).drain(sink)
    assert seqs_of(sink) == [1, 3, 5, 7, 9], "another consumer goes on from the cursor in the store"


async def test_a_new_name_begins_with_the_next_event_unless_told_otherwise(
    either_store: SqlStore, clock: FakeClock
) -> None:
    await commit(either_store, event(1))
    sink = RecordingSink()
    consumer = consumer_of(either_store, clock, replace(SETTINGS, from_="now"))
    await consumer.drain(sink)
    await commit(either_store, event(2))
    await consumer.drain(sink)
    assert seqs_of(sink) == [2]


async def test_a_sink_that_fails_gets_the_same_events_again_and_no_others_twice(
    either_store: SqlStore, clock: FakeClock
) -> None:
    store, sink = either_store, RecordingSink()
    await commit(store, *(event(at) for at in range(6)))
    sink.failures = [SinkUnavailable("responded 503: token hec-token is busy", 7.0, delivered=2)]
    consumer = consumer_of(store, clock)
    with pytest.raises(SinkUnavailable) as caught:
        await consumer.drain(sink)
    await consumer._attempts.failed(caught.value, 7.0)
    state = await state_of(store)
    assert (state.problem, state.delivered) == ("responded 503: token ******** is busy", 2)
    await consumer.drain(sink)
    assert seqs_of(sink) == [2, 3, 4, 5], "the first two were delivered already"
    state = await state_of(store)
    assert (state.problem, state.problem_ms, state.delivered) == (None, None, 6)


async def test_a_sink_that_hangs_is_given_up_in_time(either_store: SqlStore, clock: FakeClock) -> None:
    sink = RecordingSink()
    sink.hangs = True
    await commit(either_store, event(1))
    with pytest.raises(SinkUnavailable, match=r"the sink sent no response within 0\.05 s"):
        await consumer_of(either_store, clock, replace(SETTINGS, timeout_seconds=0.05)).drain(sink)
    assert (await state_of(either_store)).position == 0


@pytest.mark.parametrize("names_refused", [True, False])
async def test_an_event_that_is_refused_for_good_keeps_no_other_from_the_sink(
    either_store: SqlStore, clock: FakeClock, names_refused: bool
) -> None:
    store, sink = either_store, RecordingSink()
    await commit(store, *(event(at) for at in range(9)))
    first = (await store.events_after(0, 1))[0].position
    sink.poisoned = {first + 3: "no such index\nhec-token", first + 8: "blank"}
    sink.names_refused = names_refused
    consumer = consumer_of(store, clock)
    await consumer.drain(sink)
    assert seqs_of(sink) == [0, 1, 2, 4, 5, 6, 7]
    letters = await store.dead_letters("siem", 10)
    assert [(each.position, each.reason) for each in letters] == [
        (first + 3, "no such index ********"),
        (first + 8, "blank"),
    ]
    # Both events are sent again; one is accepted now.
    del sink.poisoned[first + 3]
    assert await store.retry_dead_letters("siem", None) == 2
    await consumer.drain(sink)
    assert seqs_of(sink)[-1] == 3
    (left,) = await store.dead_letters("siem", 10)
    assert (left.position, left.is_retried) == (first + 8, False)
    assert (await state_of(store)).delivered == 8
    assert await store.discard_dead_letters("siem", [first + 8, first + 1]) == 1
    assert await store.dead_letters("siem", 10) == []


async def test_too_many_dead_letters_stop_the_sink_until_an_operator_has_looked(
    either_store: SqlStore, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer_module, "MOST_DEAD_LETTERS", 3)
    store, sink = either_store, RecordingSink(ONE_AT_ONCE)
    await commit(store, *(event(at) for at in range(6)))
    sink.poisoned = {each.position: "no" for each in await store.events_after(0, 6)}
    consumer = consumer_of(store, clock)
    for _ in range(2):
        with pytest.raises(SinkUnavailable, match="refused 3 events in a row"):
            await consumer.drain(sink)
    assert len(sink.calls) == 3
    sink.poisoned = {}
    await store.retry_dead_letters("siem", None)
    await consumer.drain(sink)
    assert sorted(seqs_of(sink)) == [0, 1, 2, 3, 4, 5]


async def test_no_application_stops_a_sink_by_an_event_at_which_it_fails(
    either_store: SqlStore, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A firewall before the sink responds 403 because of one event's content, or the sink has a fault."""
    monkeypatch.setattr(consumer_module, "MOST_DEAD_LETTERS", 2)
    store, sink = either_store, RecordingSink()
    sent, at_fault = sink.send, {"/x/poison"}

    async def send(events: Sequence[SinkEvent]) -> Sent:
        if any(each.members["path"] in at_fault for each in events):
            raise SinkUnavailable("responded 500: boom")
        return await sent(events)

    monkeypatch.setattr(sink, "send", send)
    await commit(store, *(event(at, path="/x/poison" if at in (3, 4, 9, 11) else "/") for at in range(12)))
    await commit(store, event(12, appId="another"))
    consumer = consumer_of(store, clock)
    for _ in range(consumer_module.SUSPICIOUS_TRIES):
        with pytest.raises(SinkUnavailable, match="boom"):
            await consumer.drain(sink)
    assert sink.taken == []
    await consumer.drain(sink)
    assert list(dict.fromkeys(seqs_of(sink)[::-1]))[::-1] == [0, 1, 2, 5, 6, 7, 8, 10, 12]
    letters = await store.dead_letters("siem", 10)
    assert len(letters) == 4, "more than stop a sink, were they in a row"
    assert "accepts other events, but fails repeatedly at this one: responded 500" in letters[0].reason
    # The sink itself is unreachable: no event becomes a dead letter, however often it is retried.
    at_fault.add("/")
    at_fault.add("/v1.0/users")
    await commit(store, *(event(at, appId=f"app-{at}") for at in range(20, 24)))
    for _ in range(2 * consumer_module.SUSPICIOUS_TRIES):
        with pytest.raises(SinkUnavailable, match="boom"):
            await consumer.drain(sink)
    assert len(await store.dead_letters("siem", 10)) == 4


async def test_a_gateway_that_refuses_everything_makes_few_dead_letters(
    either_store: SqlStore, clock: FakeClock
) -> None:
    store, sink = either_store, RecordingSink()
    await commit(store, *(event(at, appId=f"app-{at % 3}") for at in range(20)))
    sink.poisoned = {each.position: "responded 413" for each in await store.events_after(0, 20)}
    sink.names_refused = False
    consumer = consumer_of(store, clock)
    for _ in range(2 * consumer_module.SUSPICIOUS_TRIES):
        with pytest.raises(SinkUnavailable, match="the sink refuses one event after another: responded 413"):
            await consumer.drain(sink)
    assert len(await store.dead_letters("siem", 100)) == 5
    sink.poisoned = {}
    await consumer.drain(sink)
    assert seqs_of(sink) == list(range(5, 20))


async def test_an_operator_rewinds_a_sink_while_it_delivers(either_store: SqlStore, clock: FakeClock) -> None:
    store, sink = either_store, RecordingSink(ONE_AT_ONCE)
    await commit(store, *(event(at) for at in range(4)))
    await store.begin_sink("siem", at_newest=False)
    send = sink.send
    rewound: list[bool] = []

    async def send_and_rewind(events: Sequence[Any]) -> Any:
        sent = await send(events)
        if len(sink.taken) == 3 and not rewound:
            rewound.append(await store.rewind_sink("siem", await store.position_received(0)))
        return sent

    sink.send = send_and_rewind  # type: ignore[method-assign]
    await consumer_of(store, clock).drain(sink)
    assert seqs_of(sink) == [0, 1, 2, 0, 1, 2, 3]
    assert rewound == [True]
    assert await store.rewind_sink("unknown", 0) is False
    assert await store.position_received(clock.wall + 1) == await store.last_position()


async def test_a_slow_leader_that_delivers_late_moves_no_cursor_back(
    either_store: SqlStore, clock: FakeClock
) -> None:
    await either_store.begin_sink("siem", at_newest=False)
    assert await either_store.advance_sink("siem", 0, 5, 5)
    assert await either_store.advance_sink("siem", 5, 9, 4)
    assert not await either_store.advance_sink("siem", 0, 5, 5)
    state = await state_of(either_store)
    assert (state.position, state.delivered) == (9, 9)


async def test_a_run_goes_on_by_itself_after_failures(either_store: SqlStore, clock: FakeClock) -> None:
    store, sink = either_store, RecordingSink()
    sink.failures = [SinkUnavailable("away"), OSError("broken"), ValueError("a bug")]
    consumer = Consumer(
        SETTINGS, store, clock, lambda _: sink, poll_seconds=5, linger_seconds=0, first_pause_seconds=0.001
    )
    await commit(store, event(1))
    task = asyncio.create_task(consumer.run())
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await sink.took.acquire()
            await commit(store, event(2))
            consumer.wake()
            await sink.took.acquire()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert seqs_of(sink) == [1, 2]
    assert (await state_of(store)).problem is None


@pytest.mark.parametrize(
    ("names", "hold_days", "kept"), [(("siem",), 5, [1, 2]), (("siem",), 0, []), ((), 5, [])]
)
async def test_retention_waits_for_a_sink_no_longer_than_its_settings_say(
    plane: Plane, clock: FakeClock, names: tuple[str, ...], hold_days: int, kept: list[int]
) -> None:
    """A sink that is no longer in the settings delays no purge."""
    org = await plane.org("acme")
    await (await plane.proxy("edge-1", "acme")).send(HEARTBEAT, json.dumps(GOOD_HEARTBEAT).encode())
    made = [event(at, orgId=org, time="2026-01-01T00:00:00Z") for at in (1, 2)]
    await commit(plane.store, *made)
    await plane.store.begin_sink("siem", at_newest=False)
    clock.advance(seconds=(RETENTION_MS["base"] + 3 * 86_400_000) / 1000)
    witnessed = await agreed_with(plane.store, plane.clock.wall)
    sinks = [replace(SETTINGS, name=each, hold_days=hold_days) for each in names]
    retention = Retention(plane.store, _Index(), plane.clock, witnessed, 60, sinks)
    await retention.purge()
    assert retention.problem is None
    assert [each["seq"] for _, each in await plane.stored()] == kept
    if kept:
        await plane.store.advance_sink("siem", 0, await plane.store.last_position(), 2)
        assert await retention.purge() == 2
