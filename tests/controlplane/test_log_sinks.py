"""Tests of the sinks `sentinel` and `otlp` with services that throttle, refuse and reject in part."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import orjson
import pytest
from azure.core.credentials import AccessToken

from controlplane.sinks import sentinel
from controlplane.sinks.azure_token import ServiceToken, open_credential
from controlplane.sinks.formats import as_ocsf
from controlplane.sinks.http import said
from controlplane.sinks.interface import Limits, SinkEvent, SinkRefused, SinkUnavailable
from controlplane.sinks.otlp import OtlpSink
from controlplane.sinks.selection import batches
from controlplane.sinks.sentinel import COLUMNS, OCSF, OTHER_MEMBERS, SentinelSink, scope_of
from controlplane.sinks.settings import OtlpSettings, SentinelSettings, secrets_of_sink
from proxy.config.tls import client_tls
from proxy.outbound.egress import DIRECT
from proxy.outbound.session import open_session
from tests.controlplane.search_events import event
from tests.fakes.certificates import CertificateAuthority
from tests.fakes.identity import CLIENT_ID, CLIENT_SECRET, TENANT, FakeIdentityProvider
from tests.fakes.log_intake import MONITOR_TOKEN, RULE_ID, FakeLogCollector, FakeLogsIngestion
from tests.fakes.server import Response

TRACE_ID: Final = "0af7651916cd43dd8448eb211c80319c"
REQUEST_ID: Final = "019ab4f2-0000-7000-8000-0123456789ab"


def sink_event(number: int, **members: Any) -> SinkEvent:
    body = orjson.dumps(event(number, **members))
    return SinkEvent(number, "org", body, body)


class Credential:
    """Fake credential that returns the token of the log service, and records each request for a token."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def get_token(self, *scopes: str, **_: Any) -> AccessToken:
        self.asked += scopes
        return AccessToken(MONITOR_TOKEN, int(time.time()) + 3600)


@pytest.fixture
async def service() -> AsyncIterator[FakeLogsIngestion]:
    async with FakeLogsIngestion() as fake:
        yield fake


@pytest.fixture
async def credential(monkeypatch: pytest.MonkeyPatch) -> Credential:
    found = Credential()
    monkeypatch.setattr(sentinel, "open_credential", lambda *_: found)
    return found


@pytest.fixture
async def table(service: FakeLogsIngestion, credential: Credential) -> AsyncIterator[SentinelSink]:
    settings = SentinelSettings(name="siem", kind="sentinel", url=service.base_url, rule_id=RULE_ID)
    sink = SentinelSink(settings, DIRECT)
    yield sink
    await sink.close()


async def test_events_become_rows_of_the_table(
    table: SentinelSink, service: FakeLogsIngestion, credential: Credential
) -> None:
    assert await table.test() == "the data collection rule accepts events"
    await table.send([sink_event(1, verdict="block"), sink_event(2, shadowVerdict="allow")])
    first, second = service.rows
    assert (first["EventId"], first["Verdict"], first["Seq"]) == (event(1)["id"], "block", 1)
    assert first["TimeGenerated"] == event(1)["time"]
    assert second[OTHER_MEMBERS] == {"shadowVerdict": "allow"} | first.get(OTHER_MEMBERS, {})
    assert set(first) <= {*COLUMNS, OTHER_MEMBERS}
    assert credential.asked == ["https://monitor.azure.com/.default"], "the token is kept"
    as_class = replace(table._settings, format="ocsf")
    table._settings = as_class
    body = orjson.dumps(event(3))
    await table.send([SinkEvent(3, "org", body, as_ocsf(event(3), body))])
    assert service.rows[-1][OCSF]["class_uid"] == 6003
    assert set(service.rows[-1]) == {"TimeGenerated", "EventId", "OrgId", OCSF}


async def test_a_call_is_never_larger_than_the_service_takes(
    table: SentinelSink, service: FakeLogsIngestion
) -> None:
    events = [sink_event(number, query="q" * 60_000) for number in range(40)]
    for batch in batches(events, Limits(table.limits.events, 10**9)):
        await table.send(batch)
    assert [row["Seq"] for row in service.rows] == list(range(40))
    assert len(service.calls) == 3
    with pytest.raises(SinkRefused, match="413"):
        await table.send([sink_event(1, query="q" * 1_100_000)])


async def test_the_service_says_which_events_wait_and_which_are_refused(
    table: SentinelSink, service: FakeLogsIngestion, credential: Credential
) -> None:
    some = [sink_event(1)]
    with pytest.raises(SinkRefused, match=r"400 Bad Request.*A record of the payload can't be read"):
        await table.send([*some, sink_event(2, path="/poison")])
    waiting = {
        "throttled": "429",
        "busy": "503",
        "noRole": "403.*Monitoring Metrics Publisher on the rule",
        "badStream": "400.*The stream is not one of the data collection rule",
        "expired": "401",
    }
    for mode, words in waiting.items():
        service.mode = mode  # type: ignore[assignment]
        with pytest.raises(SinkUnavailable, match=words) as caught:
            await table.send(some)
        assert caught.value.retry_after == (30.0 if mode == "throttled" else None)
    service.mode = "ok"
    await table.send(some)
    assert len(credential.asked) == 2, "another token is asked for after a 401"
    # A later call of a batch fails. The events of earlier calls are not sent again.
    large = [sink_event(number, query="q" * 60_000) for number in range(19)]
    with pytest.raises(SinkUnavailable) as caught:
        await table.send([*large, sink_event(20, path="/poison")])
    assert caught.value.delivered == 16


def test_the_scope_follows_the_cloud() -> None:
    assert scope_of("https://x.norwayeast-1.ingest.monitor.azure.com") == "https://monitor.azure.com/.default"
    assert (
        scope_of("https://x.usgovvirginia-1.ingest.monitor.azure.us") == "https://monitor.azure.us/.default"
    )


def test_the_template_has_the_columns_that_are_sent() -> None:
    template = json.loads(Path("conf/sentinel/graphward.json").read_text("utf-8"))
    table, rule, *_ = template["resources"]
    (declared,) = rule["properties"]["streamDeclarations"].values()
    of_rule = {each["name"]: each["type"] for each in declared["columns"]}
    assert set(of_rule) == {*COLUMNS, OTHER_MEMBERS, OCSF}
    of_table = {each["name"]: each["type"] for each in table["properties"]["schema"]["columns"]}
    assert of_table == of_rule
    assert of_rule["TimeGenerated"] == "datetime"
    flow = rule["properties"]["dataFlows"][0]
    assert flow["streams"] == list(rule["properties"]["streamDeclarations"])


# -- OTLP ------------------------------------------------------------------------------------------


@pytest.fixture
async def collector() -> AsyncIterator[FakeLogCollector]:
    async with FakeLogCollector() as fake:
        yield fake


@pytest.fixture
async def otlp(collector: FakeLogCollector) -> AsyncIterator[OtlpSink]:
    settings = OtlpSettings(name="logs", kind="otlp", url=collector.base_url, headers="api-key=key%2C1")
    assert secrets_of_sink(settings) == {"api-key=key%2C1", "key,1"}
    sink = OtlpSink(settings, DIRECT)
    yield sink
    await sink.close()


async def test_events_become_log_records(otlp: OtlpSink, collector: FakeLogCollector) -> None:
    assert await otlp.test() == "the collector accepts log records"
    traced = sink_event(1, traceId=TRACE_ID, requestId=REQUEST_ID, verdict="block")
    await otlp.send([traced, sink_event(2, requestId=REQUEST_ID, traceId=None)])
    first, second = collector.records
    assert (first["traceId"], first["spanId"]) == (TRACE_ID, "80000123456789ab")
    assert (first["severityText"], json.loads(first["body"]["stringValue"])) == ("WARN", event(
        1, traceId=TRACE_ID, requestId=REQUEST_ID, verdict="block"
    ))  # fmt: skip
    assert second["traceId"] == REQUEST_ID.replace("-", ""), "as the proxy's own span has it"
    assert first["timeUnixNano"].endswith("000000")
    given = {each["key"]: each["value"] for each in first["attributes"]}
    assert given["log.record.uid"] == {"stringValue": event(1)["id"]}
    assert given["http.response.status_code"] == {"intValue": str(event(1)["status"])}


async def test_the_collector_says_what_becomes_of_records(
    otlp: OtlpSink, collector: FakeLogCollector, caplog: pytest.LogCaptureFixture
) -> None:
    some = [sink_event(1), sink_event(2)]
    collector.mode = "throttled"
    with pytest.raises(SinkUnavailable) as caught:
        await otlp.send(some)
    assert caught.value.retry_after == 30.0
    collector.mode = "unauthorized"
    with pytest.raises(SinkUnavailable, match=r"401.*no valid key"):
        await otlp.send(some)
    collector.mode = "badData"
    with pytest.raises(SinkRefused, match="a record can't be read"):
        await otlp.send(some)
    collector.mode = "partial"
    sent = await otlp.send(some)
    assert [each.position for each in sent.refused] == [1, 2], "it does not say which, and wants none again"
    assert sent.refused[0].reason == (
        "the collector rejected 1 (it does not say which) of 2 records: a record is too old"
    )
    collector.mode = "warning"
    assert (await otlp.send(some)).refused == ()
    assert "use gRPC" in caplog.text


async def test_the_identity_buys_a_token_for_the_service(tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path)
    async with FakeIdentityProvider(tls=authority.server("localhost")) as provider:
        settings = SentinelSettings(
            name="siem", kind="sentinel", url="https://x.ingest.monitor.azure.com", rule_id=RULE_ID,
            identity="client-secret", tenant_id=TENANT, client_id=CLIENT_ID, client_secret=CLIENT_SECRET,
            authority_url=provider.base_url, ca_file=authority.ca_file,
        )  # fmt: skip
        session = open_session(client_tls(settings.ca_file), DIRECT)
        token = ServiceToken(open_credential(settings, session), scope_of(settings.url))
        assert await token.value() == await token.value() != ""
        assert provider.acquisitions == 1
        wrong = replace(settings, client_secret="wrong")
        refused = ServiceToken(open_credential(wrong, session), scope_of(settings.url))
        with pytest.raises(SinkUnavailable, match=r"provider responded with 40[01] invalid_client"):
            await refused.value()
        provider.mode = "throttled"
        refused = ServiceToken(open_credential(settings, session), scope_of(settings.url))
        with pytest.raises(SinkUnavailable, match="responded with 429") as caught:
            await refused.value()
        assert caught.value.retry_after == 7.0
        await session.close()


PORTAL: Final = Response(200, (("Content-Type", "text/html"),), b"<html>Please sign in</html>")


async def test_a_success_that_is_not_one_of_the_service_delivers_nothing(
    table: SentinelSink, service: FakeLogsIngestion, otlp: OtlpSink, collector: FakeLogCollector
) -> None:
    """The responder may be a captive portal, a load balancer or another program than the service."""
    as_json = (("Content-Type", "application/json"),)
    strangers = [
        PORTAL,
        Response(200, as_json, b"<html></html>"),
        Response(200, as_json, b"[]"),
        Response(200, as_json, b'{"status": "ok"}'),
        Response(200, as_json, b'{"partialSuccess": {"rejectedLogRecords": "some"}}'),
        Response(204, (("Content-Type", "text/html"),)),
    ]
    for collector.instead in strangers:
        for attempt in (otlp.send([sink_event(1)]), otlp.test()):
            with pytest.raises(
                SinkUnavailable, match="not that of the service, so nothing counts as delivered"
            ):
                await attempt
    for service.instead in (PORTAL, Response(200, as_json, b"{}"), Response(202)):
        for attempt in (table.send([sink_event(1)]), table.test()):
            with pytest.raises(SinkUnavailable, match="not that of the service"):
                await attempt
    for collector.instead in (Response(200), Response(202, as_json, b"{}"), Response(204)):
        assert (await otlp.send([sink_event(1)])).refused == ()


async def test_no_part_of_a_secret_is_in_the_words_of_a_service(
    table: SentinelSink, service: FakeLogsIngestion, otlp: OtlpSink, collector: FakeLogCollector
) -> None:
    for length in range(290, 301):  # the text is truncated after 300 characters
        padding = b"x" * length
        collector.instead = Response(401, (), padding + b"key,1")
        with pytest.raises(SinkUnavailable) as caught:
            await otlp.send([sink_event(1)])
        assert "k" not in str(caught.value).partition(":")[2], length
        service.instead = Response(503, (), padding + MONITOR_TOKEN.encode())
        with pytest.raises(SinkUnavailable) as caught:
            await table.send([sink_event(1)])
        assert "m" not in str(caught.value).partition(":")[2], length
    words = said(302, {"Location": "https://x/?t=a%2Fb"}, b"", {"a/b"})
    assert "a%2Fb" not in words
    assert said(500, {}, rb'{"given": "q\"b", "more": "q"}', {'q"b', "q"}).count("q") == 0
