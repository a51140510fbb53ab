"""Tests of request spans: which spans a trace collector receives, and how refused spans are handled."""

from __future__ import annotations

import asyncio
import re
import signal
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientTimeout

from proxy.agent.journal import Journal
from proxy.agent.span import LONGEST_TEXT, Source, is_sampled
from proxy.agent.traces import (
    LONGEST_RETRY_AFTER,
    MOST_IN_A_REQUEST,
    MOST_QUEUED,
    MOST_QUEUED_CHARACTERS,
    TraceExporter,
    _PutOff,
)
from proxy.audit.payload import encode
from proxy.audit.record import Record, request_id
from proxy.config.tls import client_tls
from proxy.outbound.egress import DIRECT
from proxy.outbound.session import open_session
from tests.fakes.trace_collector import FakeTraceCollector, attributes
from tests.patience import PATIENCE_SECONDS
from tests.process.agent_parts import collect_all, collector, spool_writer
from tests.process.proxy_parts import until
from tests.process.test_agent_process import a_proxy

pytestmark = pytest.mark.process

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
CALLER = "00f067aa0ba902b7"
TIME_MS = 1_700_000_000_000
PREFIX = 0x3_1234_5678  # prefix of the request ids of one worker


def a_record(**changes: Any) -> Record:
    values: dict[str, Any] = dict.fromkeys(Record.__struct_fields__)
    values |= {
        "n": 7, "time_ms": TIME_MS, "org_id": "org-1", "app_id": "app-1", "client_ip": "192.0.2.1",
        "method": "GET", "path": "/v1.0/users", "status": 200, "verdict": "allow", "rule_id": "r1",
        "upstream_status": 200, "duration_us": 1500, "upstream_us": 1200, "request_bytes": 0,
        "response_bytes": 42, "reason": "rule", "ruleset_version": 3,
    }  # fmt: skip
    return Record(**(values | changes))


def an_exporter(collector: FakeTraceCollector, **headers: str) -> TraceExporter:
    session = open_session(client_tls(None), DIRECT)
    return TraceExporter(session, collector.base_url, headers, lambda: Source("proxy-1", "https"))


async def spans_of(*records: Record) -> list[dict[str, Any]]:
    """Return the spans that a trace collector receives for the given records."""
    async with FakeTraceCollector() as fake:
        exporter = an_exporter(fake)
        exporter.offer(records, PREFIX)
        await exporter.flush(5)
        await exporter._session.close()
        assert fake.problems == []
        assert exporter.exported == len(fake.spans)
        return fake.spans


async def test_a_span_is_the_callers_child_and_says_what_was_decided() -> None:
    (span,) = await spans_of(a_record(trace=f"{TRACE}-{CALLER}-01", query="$top=5"))
    own_id = request_id(TIME_MS, PREFIX, 7)
    assert (span["traceId"], span["parentSpanId"], span["flags"]) == (TRACE, CALLER, 0x301)
    assert span["spanId"] == own_id.replace("-", "")[16:]
    assert (span["name"], span["kind"], "status" in span) == ("GET", 2, False)
    assert int(span["startTimeUnixNano"]) == TIME_MS * 1_000_000
    assert int(span["endTimeUnixNano"]) - int(span["startTimeUnixNano"]) == 1_500_000
    assert attributes(span) == {
        "http.request.method": "GET", "url.scheme": "https", "url.path": "/v1.0/users", "url.query": "$top=5",
        "http.response.status_code": 200, "http.request.body.size": 0, "http.response.body.size": 42,
        "client.address": "192.0.2.1", "graphward.request_id": own_id, "graphward.org_id": "org-1",
        "graphward.app_id": "app-1", "graphward.verdict": "allow", "graphward.reason": "rule",
        "graphward.rule_id": "r1", "graphward.ruleset_version": 3, "graphward.upstream.status_code": 200,
        "graphward.upstream.duration_us": 1200,
    }  # fmt: skip


async def test_a_trace_of_its_own_a_part_of_a_batch_and_a_failure() -> None:
    batch = request_id(TIME_MS - 5, PREFIX, 6)
    own, part, traced_part, old, failed = await spans_of(
        a_record(),
        a_record(n=8, parent=(6, TIME_MS - 5)),
        a_record(n=9, parent=(6, TIME_MS - 5), trace=f"{TRACE}-{CALLER}-01"),
        a_record(n=10, trace=TRACE),  # a release that stored only the trace id wrote this
        a_record(n=11, method="BREW", status=502, reason="upstreamError"),
    )
    assert own["traceId"] == request_id(TIME_MS, PREFIX, 7).replace("-", "")
    assert "parentSpanId" not in own
    assert part["traceId"] == batch.replace("-", "")
    assert part["parentSpanId"] == traced_part["parentSpanId"] == batch.replace("-", "")[16:]
    assert traced_part["traceId"] == old["traceId"] == TRACE
    assert "parentSpanId" not in old
    assert (failed["name"], failed["status"]) == ("HTTP", {"code": 2})
    said = attributes(failed)
    assert (said["http.request.method"], said["http.request.method_original"]) == ("_OTHER", "BREW")
    assert said["error.type"] == "502"
    assert len({each["spanId"] for each in (own, part, traced_part, old, failed)}) == 5


def test_the_callers_flag_says_whether_a_request_is_sampled() -> None:
    assert is_sampled(a_record())
    assert is_sampled(a_record(trace=f"{TRACE}-{CALLER}-03"))
    assert not is_sampled(a_record(trace=f"{TRACE}-{CALLER}-00"))
    assert not is_sampled(a_record(trace=f"{TRACE}-{CALLER}-02"))


async def test_spans_that_are_not_taken_wait_or_are_counted_as_lost(caplog: pytest.LogCaptureFixture) -> None:
    async with FakeTraceCollector(token="Bearer t-1") as fake:
        exporter = an_exporter(fake, Authorization="Bearer t-1")
        exporter.offer([a_record(n=n) for n in range(2)], PREFIX)
        fake.mode = "throttled"
        with pytest.raises(_PutOff) as put_off:
            await exporter._export_queued()
        assert put_off.value.wait == 0.0
        assert (exporter.exported, exporter.lost) == (0, 0)
        fake.mode = "partial"
        await exporter._export_queued()
        assert (exporter.exported, exporter.lost) == (1, 1)
        assert "rejected 1 of 2 spans: too old" in exporter.check().detail
        fake.mode = "refused"
        exporter.offer([a_record()], PREFIX)
        await exporter._export_queued()
        assert (exporter.exported, exporter.lost) == (1, 2)
        assert exporter.check().status == "degraded"
        assert "no such tenant" in exporter.check().detail
        assert "no such tenant" in caplog.text
        fake.mode = "ok"
        exporter.offer([a_record(n=n) for n in range(MOST_QUEUED + 3)], PREFIX)
        assert exporter.lost == 2 + 3
        await exporter._export_queued()
        assert len(fake.spans) == MOST_QUEUED
        assert len(fake.requests) == 3 + MOST_QUEUED // MOST_IN_A_REQUEST
        assert exporter.check().status == "ok"
    exporter.offer([a_record()], PREFIX)
    await exporter.flush(1)  # the collector no longer listens
    assert exporter.lost == 2 + 3 + 1
    await exporter._session.close()


async def test_long_paths_and_queries_fill_neither_memory_nor_a_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("proxy.agent.traces._REQUEST_LIMITS", ClientTimeout(total=PATIENCE_SECONDS))
    record = a_record(path="/" + "p" * 40_000, query="q" * 60_000)
    async with FakeTraceCollector() as fake:
        exporter = an_exporter(fake)
        exporter.offer([record] * MOST_QUEUED, PREFIX)
        kept = sum(len(each.path) + len(each.query or "") for each, _ in exporter._queue)
        assert 0.99 * MOST_QUEUED_CHARACTERS < kept <= MOST_QUEUED_CHARACTERS
        assert len(exporter._queue) + exporter.lost == MOST_QUEUED
        await exporter._export_queued()
        assert max(len(each.body) for each in fake.requests) < 1_000_000
        said = attributes(fake.spans[0])
        assert said["url.query"].startswith("q" * LONGEST_TEXT)
        assert "57952" in said["url.query"]  # the message reports what was truncated
        exporter.offer([record], PREFIX)
        assert len(exporter._queue) == 1  # there is room again
        await exporter._session.close()


async def test_a_collector_silences_spans_for_minutes_at_most_and_the_check_says_until_when() -> None:
    async with FakeTraceCollector() as fake:
        fake.mode, fake.retry_after = "throttled", "86400"
        exporter = an_exporter(fake)
        exporter.offer([a_record()], PREFIX)
        before = time.time()
        running = asyncio.create_task(exporter.run())
        await until(lambda: exporter.check().status == "degraded")
        said = re.search(r"responds with 503; the next attempt is at (\S+)", exporter.check().detail)
        assert said is not None
        wait = datetime.fromisoformat(said[1]).timestamp() - before
        assert LONGEST_RETRY_AFTER - 1 < wait < LONGEST_RETRY_AFTER + 10
        running.cancel()
        await exporter._session.close()


def test_a_collector_of_traces_sees_what_was_collected_once(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    spool = spool_writer(tmp_path, prefix=3)
    for n in range(40):
        spool.append("org-1", encode(a_record(n=n)))
    part = collector(
        tmp_path,
        Journal(tmp_path, max_bytes=1 << 28),
        collected=lambda records, prefix: seen.extend((record.n, prefix) for record in records),
    )
    collect_all(part)
    assert seen == [(n, 3) for n in range(40)]


async def test_the_agent_sends_spans_beside_events(tmp_path: Path) -> None:
    async with FakeTraceCollector(token="Bearer t-1") as fake:
        more = f'[Traces]\nOtlpUrl = "{fake.base_url}"\nHeaders = "Authorization=Bearer%20t-1"\n'
        async with a_proxy(tmp_path, more) as running:
            spool = spool_writer(tmp_path / "var/audit")
            spool.append("org-1", encode(a_record(trace=f"{TRACE}-{CALLER}-01")))
            spool.append("org-1", encode(a_record(n=8, trace=f"{TRACE}-{CALLER}-00")))
            await fake.until_spans(1)
            await running.control.until(lambda: running.control.seqs("org-1") == [1, 2])
            assert [event["traceId"] for event in running.control.events["org-1"]] == [TRACE, TRACE]
            _, metrics = await running.get("/metrics")
            assert "graphward_spans_exported_total 1.0" in metrics
            assert "graphward_spans_lost_total 0.0" in metrics
            assert 'graphward_check{check="traces"} 0.0' in metrics
            spool.append("org-1", encode(a_record(n=9)))
            await running.end(signal.SIGTERM)
            await fake.until_spans(2)  # the spans that were left at the stop
            assert "t-1" not in running.log_file.read_text()
        assert fake.resources[0]["service.name"] == "graphward-proxy"
        assert fake.resources[0]["service.instance.id"] == "proxy-1"
        assert fake.problems == []
