"""Tests of the Splunk sink: its events, and its handling of the responses of Splunk's collector."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import orjson
import pytest
from aiohttp import web

from controlplane.sinks.formats import FORMATS
from controlplane.sinks.interface import SinkEvent, SinkRefused, SinkUnavailable
from controlplane.sinks.settings import SplunkSettings
from controlplane.sinks.splunk import SplunkSink
from proxy.outbound.egress import DIRECT
from tests.controlplane.search_events import START_MS, event
from tests.fakes.splunk import SplunkCollector, splunk_collector


@pytest.fixture
async def collector() -> AsyncIterator[SplunkCollector]:
    async with splunk_collector() as collector:
        yield collector


@asynccontextmanager
async def sink_at(collector: SplunkCollector, **changes: Any) -> AsyncIterator[SplunkSink]:
    settings = SplunkSettings(name="siem", kind="splunk", url=collector.url, token="hec-token")
    sink = SplunkSink(replace(settings, **changes), DIRECT)
    try:
        yield sink
    finally:
        await sink.close()


def events(*made: dict[str, Any], form: str = "event") -> list[SinkEvent]:
    found = []
    for position, each in enumerate(made, 1):
        body = orjson.dumps(each)
        found.append(SinkEvent(position, each["orgId"], body, FORMATS[form](each, body)))
    return found


async def test_events_arrive_as_they_are_with_their_time_and_source(collector: SplunkCollector) -> None:
    async with sink_at(collector, index="main") as sink:
        assert (await sink.send(events(event(1), event(2)))).refused == ()
        assert await sink.test() == "the collector is healthy and accepts the token"
    assert [each["event"] for each in collector.events] == [event(1), event(2)]
    assert {key: value for key, value in collector.events[0].items() if key != "event"} == {
        "source": "graphward",
        "sourcetype": "graphward:audit",
        "index": "main",
        "host": "proxy-1",
        "time": (START_MS + 1000) / 1000,
    }


async def test_an_invalid_event_is_named_and_all_others_arrive(collector: SplunkCollector) -> None:
    made = [event(1), event(2, path="/blank"), event(3), event(4, path="/blank")]
    async with sink_at(collector) as sink:
        sent = await sink.send(events(*made))
    assert [each.position for each in sent.refused] == [2, 4]
    assert "Event field cannot be blank" in sent.refused[0].reason
    assert [each["event"]["seq"] for each in collector.events] == [1, 3]


@pytest.mark.parametrize(
    ("response", "words", "retry_after"),
    [
        (web.json_response({"text": "Server is busy", "code": 9}, status=503), "Server is busy", None),
        (web.Response(status=429, headers={"Retry-After": "17"}), "429 Too Many Requests", 17.0),
        (web.Response(status=302, headers={"Location": "http://other/"}), "is not followed", None),
        (web.Response(status=200, text="<html>welcome</html>"), "not that of the service.*welcome", None),
        (web.Response(status=400, text="<html>no</html>"), "responded 400 Bad Request: <html>no", None),
        (web.Response(status=599, text="?"), "responded 599: ?", None),
    ],
)  # fmt: skip
async def test_what_the_collector_does_not_take_now_is_tried_again(
    collector: SplunkCollector, response: web.Response, words: str, retry_after: float | None
) -> None:
    collector.responses = [response]
    async with sink_at(collector) as sink:
        with pytest.raises(SinkUnavailable, match=words) as caught:
            await sink.send(events(event(1)))
        assert caught.value.retry_after == retry_after
        await sink.send(events(event(1)))
    assert len(collector.events) == 1


async def test_what_an_operator_must_correct_makes_no_dead_letter(collector: SplunkCollector) -> None:
    """If the token or index in the settings is wrong, Splunk refuses every event."""
    for changes, words in (
        ({"token": "other"}, "403 Forbidden: .*Invalid token"),
        ({"index": "secret"}, "Incorrect index"),
        ({"acknowledge": True}, "no ackId"),
        ({"url": "http://127.0.0.1:1"}, "no connection to 127.0.0.1:1"),
    ):
        async with sink_at(collector, **changes) as sink:
            with pytest.raises(SinkUnavailable, match=words):
                await sink.send(events(event(1)))


@pytest.mark.parametrize("token", ["a\nX: y", "øø€"])
def test_a_token_that_no_header_can_carry_is_a_problem_of_the_settings(token: str) -> None:
    settings = SplunkSettings(name="siem", kind="splunk", url="https://splunk.example", token=token)
    assert [key for key, _ in settings.problems()] == ["Token"]


async def test_a_batch_that_is_too_large_is_refused_as_one(collector: SplunkCollector) -> None:
    collector.responses = [web.Response(status=413, text="too large")]
    async with sink_at(collector) as sink:
        with pytest.raises(SinkRefused, match="413"):
            await sink.send(events(event(1), event(2)))


async def test_events_count_as_delivered_once_the_indexers_have_them(collector: SplunkCollector) -> None:
    collector.acknowledges = True
    collector.looks_until_indexed = 2
    async with sink_at(collector, acknowledge=True) as sink:
        assert (await sink.send(events(event(1)))).refused == ()
        collector.acknowledges = False
        collector.looks_until_indexed = 0
        with pytest.raises(SinkUnavailable, match="no ackId"):
            await sink.send(events(event(2)))


async def test_a_test_says_what_is_wrong(collector: SplunkCollector) -> None:
    collector.codes = [18]
    async with sink_at(collector, token="other") as sink:
        with pytest.raises(SinkUnavailable, match="queues are full"):
            await sink.test()
        with pytest.raises(SinkUnavailable, match="Invalid token"):
            await sink.test()
