"""Tests of an intermediary that responds for the control plane: no event is lost, and the log says why."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from proxy.agent.statefile import StateFile
from proxy.wire.signing import SIGNATURE_HEADER
from tests.fakes.between import Between, Foreign
from tests.fakes.system import System
from tests.process.proxy_parts import (
    LIMITS,
    assert_no_gap,
    client_of,
    events,
    log_of,
    metrics,
    readiness,
    rules_file,
    store_of,
    until,
)

pytestmark = pytest.mark.process

HTML = b"<!DOCTYPE html>\n<html><title>One moment</title>Checking your browser</html>"
FOREIGN = {
    "an empty 202": Foreign(202),
    "a 202 with a page": Foreign(202, HTML, "text/html; charset=utf-8"),
    "a queue's 202": Foreign(202, b'{"status":"queued","id":"7f2c"}', "application/json"),
    "a 202 in our form": Foreign(
        202, b'{"batchId":"x","accepted":500,"duplicate":false}', "application/json"
    ),
    "a 200 with a page": Foreign(200, HTML, "text/html"),
    "a 400 in our form": Foreign(
        400, b'{"error":{"code":"invalidPayload","message":"no"}}', "application/json"
    ),
    "a 403 of a firewall": Foreign(403, b'{"error":{"code":"blocked","message":"WAF"}}', "application/json"),
    "a 403 in our form": Foreign(
        403, b'{"error":{"code":"notAuthorisedForTenant","message":"no"}}', "application/json"
    ),
    "a 409": Foreign(409, b'{"error":{"code":"batchExpired","message":"no"}}', "application/json"),
    "a 413 in our form": Foreign(
        413, b'{"error":{"code":"batchTooLarge","message":"no"}}', "application/json"
    ),
    "a 429 for a day": Foreign(429, HTML, "text/html", {"Retry-After": "0"}),
}


@asynccontextmanager
async def with_between(directory: Path, *settings: str) -> AsyncIterator[tuple[System, Between]]:
    """Start a whole system whose `settings` route the proxy through the intermediary."""
    environment = {"Proxy__Workers": "1"}
    system = System(
        directory,
        {"app": rules_file(directory)},
        workers=1,
        proxy_environment=environment,
        control_plane_environment=LIMITS,
    )
    async with Between(system.control_plane_url, system.client_context()) as between:
        environment.update(dict.fromkeys(settings, between.url))
        async with system:
            yield system, between


def audit_check(system: System) -> dict[str, Any]:
    found: dict[str, Any] = readiness(system)["checks"].get("audit", {})
    return found


def batch_ids(system: System) -> set[str]:
    """Return the ids of the batches that the proxy has started to deliver."""
    state = StateFile(system.directory / "audit").load()
    assert state is not None
    return {each.batch_id for org in state.organisations.values() for each in org.batches}


async def test_no_response_of_a_stranger_ends_an_event_or_changes_a_batch(tmp_path: Path) -> None:
    async with with_between(tmp_path, "Audit__IngestionUrl") as (system, between):
        async with client_of(system) as client:
            await until(lambda: len(events(system)) == 1)  # the event of the token request
            between.responses["audit"] = Foreign(202)
            for number in range(5):
                assert (await client.get(f"/v1.0/echo/{number}")).status == 200
        await between.asked("audit")
        ids = batch_ids(system)
        assert len(ids) == 1
        for name, foreign in FOREIGN.items():
            between.responses["audit"] = foreign
            await between.asked("audit", 2)
            words = f"responded with {foreign.status}"
            await until(lambda: words in audit_check(system)["detail"])  # noqa: B023
            assert audit_check(system)["status"] == "degraded", name
            assert "something between this proxy and the control plane" in audit_check(system)["detail"]
            if foreign.status != 413:  # a 413 splits the batch and loses nothing
                assert batch_ids(system) == ids, name
            ids = batch_ids(system)
            assert list((tmp_path / "audit" / "rejected").iterdir()) == [], name
        assert len(events(system)) == 1
        report = metrics(system)
        assert report["graphward_audit_pending"] == 5
        assert report['graphward_unsigned_responses_total{endpoint="audit"}'] >= 2 * len(FOREIGN)
        shown = await system.cli("proxy", "show", "demo-proxy")
        assert shown["health"] == "degraded"
        assert any("something between" in reason for reason in shown["reasons"])
        await passes(system, between)
        assert log_of(system).count(" are kept: ") <= len(FOREIGN) + 1


async def passes(system: System, between: Between) -> None:
    """Make the simulated intermediary forward requests again, and check that all events arrive.

    The audit check of the proxy must then be `ok` again.
    """
    between.responses.clear()
    await until(lambda: len(events(system)) == 6)
    assert_no_gap(events(system))
    await until(lambda: audit_check(system)["status"] == "ok")


async def test_the_same_response_again_and_again_is_one_line_of_the_log(tmp_path: Path) -> None:
    async with with_between(tmp_path, "Audit__IngestionUrl") as (system, between):
        between.responses["audit"] = Foreign(202, HTML, "text/html")
        async with client_of(system):
            await between.asked("audit", 4)
        kept = [line for line in log_of(system).splitlines() if " are kept: " in line]
        assert len(kept) == 1
        assert "responded with 202 (text/html, an HTML page)" in kept[0]


async def test_a_signed_refusal_under_another_status_is_no_acceptance(tmp_path: Path) -> None:
    """The signature of a response covers neither the response's status line nor the path of the request."""
    async with with_between(tmp_path, "Audit__IngestionUrl") as (system, between):
        between.redirects, between.relabels = {"audit": "metrics"}, {400: 202}
        async with client_of(system):
            await between.asked("audit", 2)
        assert events(system) == []
        await system.cli("proxy", "revoke", "demo-proxy", "--org", system.org_id)
        between.redirects, between.relabels = {}, {403: 202}
        await between.asked("audit", 2)
        assert metrics(system)["graphward_audit_pending"] == 1
        await system.cli("proxy", "grant", "demo-proxy", "--org", system.org_id)
        await until(lambda: len(events(system)) == 1)
        assert list((tmp_path / "audit" / "rejected").iterdir()) == []


def reported(system: System) -> int:
    """Return the number of requests in all metric windows that the proxy reported to the control plane."""
    with store_of(system) as store:
        bodies = [json.loads(body) for (body,) in store.execute("SELECT body FROM metrics")]
    return sum(body["evaluated"] for body in bodies)


async def test_no_window_of_metrics_is_lost_and_no_heartbeat_counts_as_delivered(tmp_path: Path) -> None:
    async with with_between(tmp_path, "RuleSync__SaasBaseUrl") as (system, between):
        for foreign in (Foreign(200), Foreign(200, b'{"status":"ok"}', "application/json")):
            between.responses = {"heartbeat": foreign, "metrics": foreign}
            async with client_of(system) as client:
                for number in range(3):
                    assert (await client.get(f"/v1.0/echo/{number}")).status == 200
            await asyncio.gather(between.asked("metrics", 3), between.asked("heartbeat", 2))
            check = readiness(system)["checks"]["reports"]
            assert check["status"] == "degraded"
            assert "heartbeat not delivered: something between" in check["detail"]
            assert "metrics report not delivered: something between" in check["detail"]
        assert reported(system) == 0
        between.responses = {}
        await until(lambda: reported(system) == 6)
        await until(lambda: readiness(system)["checks"]["reports"]["status"] == "ok")
        # A signed response to the same bytes, from an endpoint that stored nothing of them.
        between.redirects, between.relabels = {"metrics": "heartbeat"}, {400: 200}
        async with client_of(system) as client:
            assert (await client.get("/v1.0/echo/9")).status == 200
        await between.asked("metrics", 2)
        assert readiness(system)["checks"]["reports"]["status"] == "degraded"
        between.redirects, between.relabels = {}, {}
        await until(lambda: reported(system) == 7)


def without_signature(response: web.Response) -> web.Response:
    del response.headers[SIGNATURE_HEADER]
    return response


def signature_in_capitals(response: web.Response) -> web.Response:
    response.headers[SIGNATURE_HEADER] = response.headers[SIGNATURE_HEADER].upper()
    return response


def another_signature_first(response: web.Response) -> web.Response:
    true = response.headers.popall(SIGNATURE_HEADER)
    response.headers.extend([(SIGNATURE_HEADER, each) for each in ["0" * 64, *true]])
    return response


def a_space_more(response: web.Response) -> web.Response:
    body = response.body or b""
    assert isinstance(body, bytes)
    response.body = body + b" "
    return response


_NO_FIT = "its X-Hmac-Signature does not match this request and the received body"
CHANGED: dict[str, tuple[Callable[[web.Response], web.Response], str]] = {
    "no signature": (without_signature, "it has no X-Hmac-Signature field"),
    "a signature in capitals": (signature_in_capitals, _NO_FIT),
    "another signature before the true one": (another_signature_first, _NO_FIT),
    "a space behind the body": (a_space_more, _NO_FIT),
}


def compressed(response: web.Response) -> web.Response:
    if response.body:
        assert isinstance(response.body, bytes)
        response.body = gzip.compress(response.body)
        response.headers["Content-Encoding"] = "gzip"
    return response


async def test_what_a_gateway_changes_in_the_control_planes_responses(tmp_path: Path) -> None:
    """The signature of a response stays valid only if nobody changes the response's body or the signature."""
    async with with_between(tmp_path, "Audit__IngestionUrl", "RuleSync__SaasBaseUrl") as (system, between):
        for number, (name, (change, words)) in enumerate(CHANGED.items()):
            between.changes = dict.fromkeys(("audit", "heartbeat", "metrics", "sync"), change)
            await asyncio.gather(*(between.asked(each) for each in ("heartbeat", "metrics", "sync")))
            async with client_of(system) as client:
                assert (await client.get(f"/v1.0/echo/{number}")).status == 200
            await between.asked("audit")
            await until(lambda: words in audit_check(system)["detail"])  # noqa: B023
            assert metrics(system)["graphward_audit_pending"] >= 1, name
            checks = readiness(system)["checks"]
            assert words in checks["reports"]["detail"], name
            report = checks["sync"]["detail"]
            assert words in report or "rejected the 304" in report, name
        between.changes = dict.fromkeys(("audit", "heartbeat", "metrics", "sync"), compressed)
        await until(lambda: metrics(system)["graphward_audit_pending"] == 0)
        await until(lambda: all(each["status"] == "ok" for each in readiness(system)["checks"].values()))
        assert_no_gap(events(system))
