"""Tests of each statement about the agent API. Some tests run a real control plane with a fake proxy.

Other tests of the agent API run a real proxy with a scripted fake of the control plane.
"""

from __future__ import annotations

import json
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from argon2 import PasswordHasher

from tests.fakes.control_plane import API_KEY, HMAC_SECRET, FakeControlPlane, error, sync_body
from tests.fakes.graph import FakeGraph
from tests.fakes.ports import free_port
from tests.fakes.server import Received
from tests.process.specification import (
    AgentClient,
    Loop,
    Operator,
    Process,
    Reply,
    batch,
    event,
    fake_proxy_settings,
    response_signature_of,
    run,
    send,
    signature_of,
    started,
    until,
)

pytestmark = pytest.mark.process

RULESET = "version: 1\nname: rules\nrules:\n  - {id: r1, match: {path: [/v1.0/users]}, verdict: allow}\n"
ENDPOINTS = (("GET", "sync"), ("POST", "heartbeat"), ("POST", "audit"), ("POST", "metrics"))
HEARTBEAT = b'{"version": "1", "uptimeSeconds": 1.5, "loadedRules": 0, "checks": {}}'
METRICS = b'{"windowStart": "2026-11-21T04:25:58.123Z", "windowEnd": "2026-11-21T04:26:58.123Z"}'


@dataclass
class Plane:
    operator: Operator
    server: Process
    base_url: str
    acme: str
    beta: str
    proxy: AgentClient
    app: Any


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    """Start a control plane with the organisations acme and beta, and a proxy that serves only acme."""
    operator = Operator(tmp_path_factory.mktemp("plane"))
    acme = operator.json("org", "add", "acme")["orgId"]
    beta = operator.json("org", "add", "beta")["orgId"]
    operator.ruleset(RULESET, "acme")
    app = operator.json("app", "add", "crm", "--org", "acme", "--ruleset", "rules")
    server = operator.serving()
    try:
        address = server.until_said(r"listening on (\S+)")
        client = operator.client(address, "edge-1", "acme")
        yield Plane(operator, server, address, acme, beta, client, app)
        assert "Traceback" not in server.output
    finally:
        server.kill()


def body_of(endpoint: str, org_id: str) -> bytes:
    bodies = {"heartbeat": HEARTBEAT, "metrics": METRICS, "audit": json.dumps(batch(event(org_id))).encode()}
    return bodies.get(endpoint, b"")


def code(reply: Reply) -> tuple[int, str]:
    return reply.status, reply.error["code"]


# Endpoints


@pytest.mark.parametrize(("method", "endpoint"), ENDPOINTS)
def test_each_endpoint_responses_with_its_success_status(plane: Plane, method: str, endpoint: str) -> None:
    """The calls {base_url}/api/v1/agent/sync, heartbeat and metrics give 200, and audit 202."""
    reply = plane.proxy.call(method, endpoint, body_of(endpoint, plane.acme))
    assert reply.status == (202 if endpoint == "audit" else 200)
    assert reply.value("Content-Type") == "application/json"
    assert isinstance(reply.json, dict)


@pytest.mark.parametrize(("method", "endpoint"), ENDPOINTS)
def test_all_carry_the_three_signing_headers(plane: Plane, method: str, endpoint: str) -> None:
    """Every request to the agent API has three signing headers; if one is missing, the response is 401."""
    for name in ("X-Api-Key", "X-Timestamp", "X-Hmac-Signature"):
        reply = plane.proxy.call(method, endpoint, body_of(endpoint, plane.acme), replace={name: None})
        assert reply.status == 401, name


def test_the_version_is_in_the_path(plane: Plane) -> None:
    """The path of the agent API carries its version, and no other version is served."""
    for path in ("/api/v2/agent/sync", "/api/agent/sync", "/agent/sync", "/api/v1/agent/"):
        reply = send(plane.base_url, "GET", path, plane.proxy.signing(b""))
        assert reply.status == 404, path


@pytest.mark.parametrize(("method", "endpoint"), [("POST", "sync"), ("GET", "audit"), ("PUT", "heartbeat")])
def test_another_method_is_no_endpoint(plane: Plane, method: str, endpoint: str) -> None:
    """The endpoints of the agent API are GET sync and POST heartbeat, audit and metrics."""
    assert plane.proxy.call(method, endpoint).status == 405


def test_sync_delivers_rulesets_app_identities_and_metadata(plane: Plane) -> None:
    """A sync request with an empty body fetches the current rulesets, app identities and metadata."""
    body = plane.proxy.sync().json
    assert [ruleset["yaml"] for ruleset in body["rulesets"]] == [RULESET]
    assert [app["clientId"] for app in body["apps"]] == [plane.app["clientId"]]
    assert body["apps"][0]["rulesetId"] == body["rulesets"][0]["rulesetId"]
    assert body["metadata"]["syncIntervalSeconds"] > 0


def test_a_heartbeat_tells_the_operator_version_uptime_rules_and_checks(plane: Plane) -> None:
    """A proxy signals liveness and reports version, uptime, loaded-rule count and check statuses."""
    report = {
        "version": "9.9",
        "uptimeSeconds": 12.5,
        "loadedRules": 7,
        "checks": {"upstream": {"status": "degraded", "detail": "slow"}},
    }
    assert plane.proxy.call("POST", "heartbeat", json.dumps(report).encode()).status == 200
    shown = plane.operator.json("proxy", "show", "edge-1")
    assert shown["heartbeat"] == report
    assert shown["lastSeen"] is not None


# Authentication: HMAC


def test_the_signature_of_a_standard_library_is_accepted(plane: Plane) -> None:
    """A signature computed by any standard HMAC-SHA256 library over `<timestamp>.<body>` is accepted."""
    body = json.dumps(batch(event(plane.acme))).encode()
    timestamp = str(int(time.time()))
    openssl = subprocess.run(
        ["openssl", "dgst", "-sha256", "-hmac", plane.proxy.secret],
        input=f"{timestamp}.".encode() + body,
        capture_output=True,
        check=True,
    )
    signature = openssl.stdout.decode().rsplit(" ", 1)[1].strip()
    signing = {"X-Timestamp": timestamp, "X-Hmac-Signature": signature}
    assert plane.proxy.call("POST", "audit", body, replace=signing).status == 202


def test_for_get_the_payload_is_the_timestamp_and_a_dot(plane: Plane) -> None:
    """The body of a GET is empty, so the signed payload is the timestamp followed by a dot."""
    timestamp = str(int(time.time()))
    good = signature_of(plane.proxy.secret, timestamp, b"")
    without_dot = signature_of(plane.proxy.secret, timestamp[:-1], b"")  # any other payload
    signing = {"X-Timestamp": timestamp, "X-Hmac-Signature": good}
    assert plane.proxy.call("GET", "sync", replace=signing).status == 200
    assert code(plane.proxy.call("GET", "sync", replace={**signing, "X-Hmac-Signature": without_dot})) == (
        401,
        "invalidSignature",
    )


@pytest.mark.parametrize("change", [b"\n", b"\r\n", b" ", b"\x00"])
def test_the_body_is_exactly_the_bytes_transmitted(plane: Plane, change: bytes) -> None:
    """Change the body of a request after signing: reformatting, a trailing newline or CRLF is refused."""
    signed = json.dumps(batch(event(plane.acme))).encode()
    signing = dict(plane.proxy.signing(signed))
    assert code(plane.proxy.call("POST", "audit", signed + change, replace=signing)) == (
        401,
        "invalidSignature",
    )
    spaced = b'{ "batchId" :\r\n "' + plane.proxy.last_signature.encode() + b'",\t"events": ['
    spaced += json.dumps(event(plane.acme), indent=3).encode() + b" ] }\n"
    assert plane.proxy.call("POST", "audit", spaced).status == 202


def test_an_uppercase_digest_is_rejected_as_a_mismatch(plane: Plane) -> None:
    """The control plane compares signatures case-sensitively against lowercase hex."""
    upper = plane.proxy.signing(b"")[2][1].upper()
    assert code(plane.proxy.call("GET", "sync", replace={"X-Hmac-Signature": upper})) == (
        401,
        "invalidSignature",
    )


@pytest.mark.parametrize(("skew", "status"), [(-296, 200), (296, 200), (-310, 401), (310, 401)])
def test_the_timestamp_must_be_within_300_seconds(plane: Plane, skew: int, status: int) -> None:
    """If X-Timestamp is more than 300 s before or after the control plane's clock, the response is 401.

    If X-Timestamp is more than 300 s wrong, the request gets 401 even if the signature is correct. The module
    tests/controlplane/test_signing.py tests the 300 s limit of timestamps to the second.
    """
    reply = plane.proxy.call("GET", "sync", skew=skew)
    assert reply.status == status
    if status == 401:
        assert reply.error["code"] == "timestampOutOfRange"


def test_an_unrecognised_api_key_gives_401(plane: Plane) -> None:
    """A request with an unrecognised API key gets 401."""
    reply = plane.proxy.call("GET", "sync", replace={"X-Api-Key": plane.proxy.api_key + "x"})
    assert code(reply) == (401, "unknownApiKey")


def test_a_valid_key_not_authorised_for_the_target_tenant_gives_403(plane: Plane) -> None:
    """A valid key that is not authorised for the tenant gets 403, as for a tenant that does not exist."""
    for org_id in (plane.beta, "no-such-organisation"):
        assert code(plane.proxy.audit(batch(event(org_id)))) == (403, "notAuthorisedForTenant")


@pytest.mark.parametrize("value", ["HMAC key-id=nobody, signature=00", "HMAC key-id=\t", "Bearer x", "\xe9"])
def test_the_authorization_header_is_not_parsed(plane: Plane, value: str) -> None:
    """The control plane ignores an `Authorization` header, even with the proxy's API key and signature."""
    assert plane.proxy.sync(("Authorization", value)).status == 200
    only = [("Authorization", f"HMAC key-id={plane.proxy.api_key}, signature={plane.proxy.last_signature}")]
    assert send(plane.base_url, "GET", "/api/v1/agent/sync", only).status == 401


# Events, as the control plane takes them


def test_a_batch_that_mixes_organisations_gives_400(plane: Plane) -> None:
    """All events in a batch must have the same org identifier: a mix of organisations gets 400."""
    mixed = batch(event(plane.acme), event(plane.beta))
    assert code(plane.proxy.audit(mixed)) == (400, "mixedOrganisations")
    assert plane.proxy.audit(batch(event(plane.acme), batch_id=mixed["batchId"])).json["duplicate"] is False


def test_a_replay_within_the_window_is_a_duplicate_and_counts_once(plane: Plane) -> None:
    """A repeated batch id gets 202 with `duplicate` = true within a 48-hour window."""
    sent = batch(event(plane.acme))
    assert plane.proxy.audit(sent).json == {"batchId": sent["batchId"], "accepted": 1, "duplicate": False}
    for _ in range(2):
        again = plane.proxy.audit(sent)
        assert (again.status, again.json["duplicate"]) == (202, True)
    found = plane.operator.json("audit", "search", f"id:{sent['events'][0]['id']}")
    assert len(found["events"]) == 1


def test_events_are_forwarded_into_a_search_index(plane: Plane) -> None:
    """The control plane forwards audit events into a search index."""
    sent = event(plane.acme, path="/v1.0/forwarded/marker", verdict="block", status=403, ruleId="r9")
    assert plane.proxy.audit(batch(sent)).status == 202
    found = plane.operator.json("audit", "search", "verdict:block path:/v1.0/forwarded/*", "--org", "acme")
    assert found == {"events": [sent], "next": None}
    assert plane.operator.json("audit", "search", "marker", "--org", "beta")["events"] == []


# Errors


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"events": []}',
        b'{"batchId": "b"}',
        b'{"batchId": null, "events": []}',
        b'{"batchId": "", "events": [{}]}',
        b'{"batchId": "b", "events": {}}',
        b'{"batchId": "b", "events": [1]}',
        b'{"batchId": "b", "events": [NaN]}',
        b'\xff{"batchId": "b"}',
        b"[" * 100_000,
    ],
)
def test_an_invalid_payload_shape_is_400(plane: Plane, body: bytes) -> None:
    """A batch with a missing id, malformed JSON or another invalid payload gets 400."""
    assert code(plane.proxy.call("POST", "audit", body)) == (400, "invalidPayload")


@pytest.mark.parametrize("missing", ["id", "time", "orgId", "method", "path", "status", "verdict"])
def test_an_event_without_a_required_member_is_400(plane: Plane, missing: str) -> None:
    """Each event must have the members id, time, orgId, method, path, status and verdict."""
    sent = event(plane.acme)
    del sent[missing]
    assert code(plane.proxy.audit(batch(sent))) == (400, "invalidPayload")


def test_a_batch_larger_than_5_mb_is_413(plane: Plane) -> None:
    """An audit batch over 5 MB (5 x 1024 x 1024 bytes of body) gets 413; exactly that size is accepted."""
    empty = json.dumps(batch(event(plane.acme, query=""))).encode()
    room = 5 * 1024 * 1024 - len(empty)
    exact = empty.replace(b'"query": ""', b'"query": "' + b"x" * room + b'"')
    assert code(plane.proxy.call("POST", "audit", exact + b" ")) == (413, "batchTooLarge")
    accepted = plane.proxy.call("POST", "audit", exact)
    assert (accepted.status, accepted.json["duplicate"]) == (202, False)


def test_a_refused_batch_leaves_no_trace_of_its_id(plane: Plane) -> None:
    """After a batch is refused (400, 403, 413, 429), its batch id can be used for another batch."""
    batch_id = "refused-before"
    for refused in (
        event(plane.beta),
        {**event(plane.acme), "status": "200"},
        event(plane.acme, query="x" * 5_300_000),
    ):
        assert plane.proxy.audit(batch(refused, batch_id=batch_id)).status in (400, 403, 413)
    assert plane.proxy.audit(batch(event(plane.acme), batch_id=batch_id)).json["duplicate"] is False


def test_a_replay_is_evaluated_per_proxy_instance(plane: Plane) -> None:
    """A repeated batch id counts as a duplicate only if the same proxy instance sends it."""
    other = plane.operator.client(plane.base_url, "edge-2", "acme", "beta")
    for client, org_id in ((plane.proxy, plane.acme), (other, plane.acme)):
        reply = client.audit(batch(event(org_id), batch_id="one-id-of-two"))
        assert (reply.status, reply.json["duplicate"]) == (202, False)


# Limits


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Operator, Process, AgentClient, str]]:
    """Start a control plane with a limit of 3 batches a minute per proxy and 4 per organisation."""
    operator = Operator(tmp_path_factory.mktemp("limited"), "[Audit]\nRateLimitProxy = 9\n")
    org_id = operator.json("org", "add", "acme")["orgId"]
    server = operator.serving(AUDIT_RATE_LIMIT_ORG="4", AUDIT_RATE_LIMIT_PROXY="3")
    try:
        client = operator.client(server.until_said(r"listening on (\S+)"), "edge-1", "acme")
        yield operator, server, client, org_id
    finally:
        server.kill()


def test_exceeding_either_audit_rate_limit_gives_429_with_retry_after(
    limited: tuple[Operator, Process, AgentClient, str],
) -> None:
    """A response with 429 has `Retry-After`.

    The environment variables AUDIT_RATE_LIMIT_* override the settings file. A duplicate batch does not count
    against a rate limit.
    """
    operator, _, first, org_id = limited
    sent = [batch(event(org_id)) for _ in range(4)]
    assert [first.audit(each).status for each in sent] == [202, 202, 202, 429]
    assert first.audit(sent[0]).json["duplicate"] is True
    refused = first.audit(sent[3])
    assert code(refused) == (429, "rateLimited")
    assert 0 < int(refused.value("Retry-After") or "") <= 60
    second = operator.client(first.base_url, "edge-2", "acme")
    replies = [second.audit(batch(event(org_id))) for _ in range(2)]
    assert [reply.status for reply in replies] == [202, 429]
    assert 0 < int(replies[1].value("Retry-After") or "") <= 60


def test_sync_heartbeat_and_metrics_have_no_rate_limit(
    limited: tuple[Operator, Process, AgentClient, str],
) -> None:
    """The calls sync, heartbeat and metrics have no individual rate limit."""
    _, _, client, _ = limited
    for _ in range(30):
        assert client.sync().status == 200
        assert client.call("POST", "heartbeat", HEARTBEAT).status == 200
        assert client.call("POST", "metrics", METRICS).status == 200


def test_beyond_48_hours_the_same_batch_id_returns_409(
    limited: tuple[Operator, Process, AgentClient, str],
) -> None:
    """A repeated batch id gets `duplicate` within 48 hours, and 409 `batchExpired` after that time."""
    operator, server, client, org_id = limited
    server.stop()
    database = sqlite3.connect(operator.directory / "var" / "controlplane.db")
    try:
        database.execute("DELETE FROM rate_log")
        database.commit()
        with_limits = {"AUDIT_RATE_LIMIT_ORG": "100", "AUDIT_RATE_LIMIT_PROXY": "60"}
        sent = batch(event(org_id))
        for aged_ms, response in ((0, (202, False)), (172_790_000, (202, True)), (172_801_000, (409, None))):
            database.execute("UPDATE batches SET accepted_ms = ?", (int(time.time() * 1000) - aged_ms,))
            database.commit()
            again = operator.serving(**with_limits)
            try:
                client.base_url = again.until_said(r"listening on (\S+)")
                reply = client.audit(sent)
                assert (reply.status, reply.json.get("duplicate")) == response
            finally:
                again.stop()
        assert reply.error["code"] == "batchExpired"
    finally:
        database.close()


# The proxy's side of the agent API, with a scripted control plane


@dataclass
class Shipping:
    """A proxy with two scripted fake control planes: one sends rules, and one receives audit events."""

    loop: Loop
    control: FakeControlPlane
    ingestion: FakeControlPlane
    graph: FakeGraph
    process: Process
    url: str
    directory: Path
    token: str = ""

    def request(self) -> int:
        self.token = self.token or self.new_token()
        return send(self.url, "GET", "/v1.0/users", [("Authorization", f"Bearer {self.token}")]).status

    def new_token(self) -> str:
        form = b"grant_type=client_credentials&client_id=client-1&client_secret=its-secret"
        fields = [("Content-Type", "application/x-www-form-urlencoded")]
        issued = send(self.url, "POST", "/proxy/token", fields, form)
        assert issued.status == 200, issued
        return str(issued.json["access_token"])

    def all_requests(self) -> list[Received]:
        return [*self.control.requests, *self.ingestion.requests]


@pytest.fixture(scope="module")
def shipping(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shipping]:
    directory = tmp_path_factory.mktemp("shipping")
    loop = Loop()
    control, ingestion = FakeControlPlane(record=True), FakeControlPlane(record=True)
    graph = FakeGraph()
    app = sync_body()["apps"][0] | {"secretHashes": [PasswordHasher(1, 8, 1).hash("its-secret")]}
    control.sync_body = sync_body(apps=[app])
    fakes = (control, ingestion, graph)
    for each in fakes:
        loop.run(each.__aenter__())
    try:
        admin = free_port()
        config = fake_proxy_settings(
            directory,
            control.base_url + "/",
            graph.base_url,
            admin,
            f'[Audit]\nIngestionUrl = "{ingestion.base_url}"\nLocalRetentionPath = "kept"\n'
            "ReplayIntervalSeconds = 0.3\nMaxBatchSize = 2\nCatchUp = false\n",
        )
        with started(directory / "proxy.log", "proxy", "--config", str(config)) as process:
            url = process.until_said(r"listening on (http://\S+) ")
            ready = f"http://127.0.0.1:{admin}"

            def is_ready() -> bool:
                try:
                    return send(ready, "GET", "/readyz").status == 200
                except OSError:
                    return False

            until(is_ready)
            yield Shipping(loop, control, ingestion, graph, process, url, directory)
            assert "Traceback" not in process.output
            assert control.problems + ingestion.problems == []
    finally:
        for each in fakes:
            loop.run(each.__aexit__(None, None, None))
        loop.close()


def test_the_proxy_calls_the_four_signed_endpoints(shipping: Shipping) -> None:
    """The proxy calls sync, heartbeat, audit and metrics, each signed over exactly the bytes transmitted."""
    assert shipping.request() == 200
    until(lambda: shipping.ingestion.events.get("org-1"))
    until(lambda: shipping.control.metrics and shipping.control.heartbeats)
    wanted = {("GET", "sync"), ("POST", "heartbeat"), ("POST", "metrics"), ("POST", "audit")}
    requests = list(shipping.all_requests())
    assert {(each.method, each.path.rpartition("/")[2]) for each in requests} == wanted
    assert {each.path.rpartition("/")[0] for each in requests} == {"/api/v1/agent"}
    for each in requests:
        assert each.values("X-Api-Key") == [API_KEY]
        timestamp, body = each.value("X-Timestamp"), bytes(each.body)
        assert timestamp.isdigit()
        assert abs(int(timestamp) - time.time()) < 60
        assert each.values("X-Hmac-Signature") == [signature_of(HMAC_SECRET, timestamp, body)]
        assert (each.method == "GET") == (body == b"")
        if body:
            assert each.value("Content-Type").startswith("application/json")


def test_the_addresses_are_those_of_the_settings(shipping: Shipping) -> None:
    """The control-plane address is configured by `RuleSync:SaasBaseUrl` and `Audit:IngestionUrl`."""
    until(lambda: shipping.ingestion.requests)
    assert {each.path for each in shipping.ingestion.requests} == {"/api/v1/agent/audit"}
    assert "/api/v1/agent/audit" not in {each.path for each in shipping.control.requests}


def test_events_of_a_batch_have_an_id_and_one_organisation(shipping: Shipping) -> None:
    """Each batch has an id, at most MaxBatchSize events, and only events of one organisation."""
    for _ in range(4):
        assert shipping.request() == 200
    until(lambda: len(shipping.ingestion.events.get("org-1", [])) >= 6)
    for each in list(shipping.ingestion.requests):
        body = json.loads(bytes(each.body))
        assert set(body) == {"batchId", "events"}
        assert isinstance(body["batchId"], str)
        assert body["batchId"]
        assert {each["orgId"] for each in body["events"]} == {"org-1"}
        assert 1 <= len(body["events"]) <= 2


def test_after_429_the_batch_is_in_local_retention_and_retried(shipping: Shipping) -> None:
    """After a 429, the proxy stores a batch in `Audit:LocalRetentionPath` and sends it again.

    The proxy sends the stored batch again after each interval of `Audit:ReplayIntervalSeconds` seconds. The
    proxy obeys Retry-After, and no event is lost or duplicated.
    """
    control = shipping.ingestion
    until(lambda: shipping.control.heartbeats and shipping.control.heartbeats[-1]["auditPending"] == 0)
    before = len(control.events["org-1"])
    attempts = len(control.attempts)
    refusals = [
        error(429, "rateLimited"),
        error(429, "rateLimited"),
        error(429, "rateLimited", ("Retry-After", "2")),
    ]
    control.audit_script.extend(refusals)
    assert shipping.request() == 200
    until(lambda: len(control.attempts) >= attempts + 3)
    kept = [path for path in (shipping.directory / "kept").rglob("*.ndjson") if path.stat().st_size]
    assert kept
    until(lambda: len(control.events["org-1"]) == before + 1)
    retried = control.attempts[attempts : attempts + 4]
    assert [status for *_, status in retried] == [429, 429, 429, 202]
    assert len({batch_id for _, _, batch_id, _ in retried}) == 1
    assert retried[1][0] - retried[0][0] >= 0.25  # the interval without Retry-After
    assert retried[3][0] - retried[2][0] >= 2.0
    assert all(len(bodies) == 1 for bodies in control.bodies.values())
    seqs = control.seqs("org-1")
    assert sorted(seqs) == list(range(1, len(seqs) + 1))


def test_liveness_reports_version_uptime_rules_and_checks(shipping: Shipping) -> None:
    """A proxy instance reports version, uptime, loaded-rule count and check statuses in heartbeats."""
    until(lambda: len(shipping.control.heartbeats) > 2)
    last, one_before = shipping.control.heartbeats[-1], shipping.control.heartbeats[-2]
    assert last["uptimeSeconds"] > one_before["uptimeSeconds"]
    assert last["loadedRules"] == 1
    assert last["version"]
    assert {check["status"] for check in last["checks"].values()} <= {"ok", "degraded", "failed"}


def test_no_heartbeat_tells_of_a_failure_that_there_is_not(shipping: Shipping) -> None:
    """A proxy without a fault reports no failed check, from the first heartbeat on."""
    failed = {
        f"{name}: {check['detail']}"
        for each in shipping.control.heartbeats
        for name, check in each["checks"].items()
        if check["status"] == "failed"
    }
    assert failed == set()


def test_performance_counters_cover_what_was_evaluated(shipping: Shipping) -> None:
    """The counters of the proxy cover requests evaluated, allowed, blocked and filtered, and latency."""

    def report() -> int:
        return sum(each["evaluated"] for each in shipping.control.metrics)

    asked = sum(each.path == "/v1.0/users" for each in shipping.graph.requests)
    for _ in range(3):
        assert shipping.request() == 200
    until(lambda: report() == asked + 3)
    metrics = shipping.control.metrics
    assert sum(each["allowed"] for each in metrics) == report()
    assert sum(each["blocked"] + each["filtered"] for each in metrics) == 0
    assert sum(each["latencyMs"]["count"] for each in metrics) == report()


def test_a_token_request_is_not_an_evaluated_one(shipping: Shipping) -> None:
    """Only upstream requests count as evaluated: a ruleset does not evaluate token requests."""
    seen = len(shipping.control.metrics)
    shipping.new_token()
    until(lambda: len(shipping.control.metrics) >= seen + 3)
    assert [each["evaluated"] for each in shipping.control.metrics[seen:]] == [0] * 3


# Resources


def test_a_client_secret_is_stored_hashed(plane: Plane) -> None:
    """The control plane stores only a hash of an application's secret."""
    secret = plane.app["clientSecret"]
    hashes = plane.proxy.sync().json["apps"][0]["secretHashes"]
    assert hashes
    assert all(each.startswith("$argon2id$") and secret not in each for each in hashes)
    assert PasswordHasher().verify(hashes[0], secret)
    for file in plane.operator.directory.rglob("*"):
        if file.is_file():
            content = file.read_bytes()
            assert secret.encode() not in content, file
            assert plane.proxy.secret.encode() not in content, file
            assert plane.proxy.api_key.encode() not in content, file


def test_a_sync_response_is_signed_for_its_request(plane: Plane) -> None:
    """The response to a sync has the header X-Hmac-Signature.

    The signature of the response covers `response.<X-Hmac-Signature of the request>.<response body bytes>`.
    """
    reply = plane.proxy.sync()
    expected = response_signature_of(plane.proxy.secret, plane.proxy.last_signature, reply.body)
    assert reply.value("X-Hmac-Signature") == expected
    etag = reply.value("ETag")
    assert etag
    again = plane.proxy.sync(("If-None-Match", etag))
    assert (again.status, again.body) == (304, b"")
    assert again.value("X-Hmac-Signature") == response_signature_of(
        plane.proxy.secret, plane.proxy.last_signature, b""
    )


def test_the_program_names_its_version() -> None:
    """The option `--version` prints the version that the heartbeat reports."""
    assert run("proxy", "--version").stdout.startswith("graphward-proxy ")
