"""Tests that an operator with few rights cannot disturb the control plane with excessive requests."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any, cast

import aiohttp
import pytest

from controlplane.operations import rulesets
from controlplane.operations import worker_process as lane
from controlplane.operations.actor import Actor, local_actor
from controlplane.operations.audit import SearchEvents, search
from controlplane.operations.context import OperationContext
from controlplane.operations.dry_runs import CheckRuleset, RunCases, Source, check
from controlplane.operations.dry_runs import test as run_cases
from controlplane.operations.event_export import ExportEvents, export
from controlplane.operations.event_queries import MOST_ASKED_BY_ONE
from controlplane.operations.integrity import HeadsAsked, KnownHead, Verify, checks, head, verify
from controlplane.operations.operation import InvalidRequest
from controlplane.operations.perform import MOST_CHANGES_OF_ONE
from controlplane.operations.rulesets import (
    ApplyRuleset,
    RollBack,
    RulesetReference,
    ShowRuleset,
    apply,
    history,
    rollback,
    show,
)
from controlplane.operations.run_process import RunFailed
from controlplane.operations.worker_process import run_change, run_for_page, run_trial
from controlplane.search.interface import SearchIndex, SearchPage, SearchQuery
from controlplane.search.query import parse_filter
from controlplane.store.interface import Conflict, LogQuery, NewLogLine, StoreBusy
from controlplane.store.operators import OperatorTables
from tests.controlplane.held_runs import Latch, read_slowly, stubborn, wait_for
from tests.controlplane.plane import HEARTBEAT, METRICS, Plane, ProxyClient, batch, context_of, event
from tests.controlplane.test_admin import PASSWORD, call, operator
from tests.controlplane.test_reports import GOOD_HEARTBEAT, GOOD_METRICS
from tests.patience import PATIENCE_SECONDS

EDITOR = local_actor("ada")
NOBODY = Actor("mallory", {})
SMALL = "version: 1\nname: hr\nrules: []\n"


@pytest.fixture
def context(plane: Plane) -> OperationContext:
    return context_of(plane)


async def test_a_dry_run_without_end_is_stopped_and_the_next_one_goes_on(
    context: OperationContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dry run evaluates every rule for every test case: a body of one megabyte can take hours."""
    rules = "".join(
        f"  - {{id: r{at}, match: {{path: [/**]}}, conditions: [{{header: x, equals: a}}], verdict: block}}\n"
        for at in range(500)
    )
    cases = "cases:\n" + "  - {request: GET /v1.0/users, expect: {verdict: block}}\n" * 2000
    asked = RunCases(source=Source(yaml=f"version: 1\nname: hr\nrules:\n{rules}"), cases=cases)
    with monkeypatch.context() as patch:
        patch.setattr(lane, "LONGEST_SECONDS", 1.0)
        with pytest.raises(InvalidRequest, match="takes longer than 1 s"):
            await run_cases.perform(context, NOBODY, asked)
    assert (await check.perform(context, NOBODY, CheckRuleset(yaml=SMALL))).problems == ()


@pytest.mark.parametrize("endless", [stubborn, partial(re.match, "(a+)+$", "a" * 40 + "b")])
async def test_work_that_nothing_stops_is_stopped_and_the_next_goes_on(
    endless: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time limit stops work that catches every exception, and work in a C function that runs for days."""
    with monkeypatch.context() as patch:
        patch.setattr(lane, "LONGEST_SECONDS", 0.1)
        with pytest.raises(InvalidRequest, match=r"takes longer than 0\.1 s"):
            await run_trial(NOBODY, endless)
    assert await run_trial(NOBODY, sum, (1, 2)) == 3


async def test_the_end_of_a_process_at_work_is_told_and_the_next_goes_on(held: Latch) -> None:
    working = asyncio.create_task(run_trial(NOBODY, wait_for, held.path, held.begun))
    os.kill(await asyncio.to_thread(held.await_begin), signal.SIGKILL)
    with pytest.raises(StoreBusy, match="ended by SIGKILL"):
        await working
    assert await run_trial(NOBODY, sum, (1, 2)) == 3


async def test_a_process_that_ended_while_idle_is_replaced() -> None:
    first = await run_trial(NOBODY, os.getpid)
    assert await run_trial(NOBODY, os.getpid) == first
    os.kill(first, signal.SIGKILL)
    await asyncio.to_thread(os.waitid, os.P_PID, first, os.WEXITED | os.WNOWAIT)
    assert await run_trial(NOBODY, os.getpid) not in (first, os.getpid())


async def test_work_whose_asker_has_left_is_ended(held: Latch) -> None:
    working = asyncio.create_task(run_trial(NOBODY, wait_for, held.path, held.begun))
    pid = await asyncio.to_thread(held.await_begin)
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert await run_trial(NOBODY, sum, (1, 2)) == 3


async def test_a_fault_in_the_work_is_a_fault_of_the_server() -> None:
    with pytest.raises(RunFailed, match="ZeroDivisionError"):
        await run_trial(NOBODY, divmod, 1, 0)


async def test_a_stop_leaves_no_process_behind() -> None:
    pids = [await work(NOBODY, os.getpid) for work in (run_trial, run_change, run_for_page)]
    assert len({*pids, os.getpid()}) == 4
    lane.end_processes()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(cast(int, pid), 0)


async def test_who_tries_things_out_keeps_no_ruleset_from_being_put_in_force(
    plane: Plane, context: OperationContext, held: Latch
) -> None:
    await plane.org("acme")
    crowd = [Actor(f"viewer-{number}", {}) for number in range(16)]
    trying = [asyncio.create_task(run_trial(each, wait_for, held.path)) for each in crowd]
    await asyncio.sleep(0)
    with pytest.raises(StoreBusy):
        await check.perform(context, NOBODY, CheckRuleset(yaml=SMALL))
    applied = await apply.perform(context, EDITOR, ApplyRuleset(org="acme", yaml=SMALL))
    assert applied.version == 1
    held.release()
    assert all(await asyncio.gather(*trying))


async def test_who_tries_much_out_waits_for_himself_and_lets_others_take_turns(
    context: OperationContext, held: Latch
) -> None:
    ended: list[str] = []

    async def try_out(actor: Actor) -> None:
        await run_trial(actor, wait_for, held.path)
        ended.append(actor.name)

    trying = [asyncio.create_task(try_out(NOBODY)) for _ in range(4)]
    await asyncio.sleep(0)
    with pytest.raises(StoreBusy):
        await check.perform(context, NOBODY, CheckRuleset(yaml=SMALL))
    trying += [asyncio.create_task(try_out(EDITOR))]
    await asyncio.sleep(0)
    held.release()
    await asyncio.gather(*trying)
    assert ended.index(EDITOR.name) == 1  # after the operator whose run was in progress


def test_no_stop_waits_for_a_dry_run(held: Latch) -> None:
    """The longest dry run takes six times as long as `DrainSeconds` allows for a stop of the server."""
    program = """
import asyncio, sys
from pathlib import Path
from controlplane.operations.actor import Actor
from controlplane.operations.worker_process import run_trial, run_change
from tests.controlplane.held_runs import wait_for

async def serve(path, begun):
    await run_change(Actor("mallory", {}), sum, (1, 2))  # whose process is idle from now on
    asyncio.create_task(run_trial(Actor("mallory", {}), wait_for, path, begun))
    await asyncio.to_thread(Path(begun).read_bytes)

asyncio.run(serve(*sys.argv[1:]))
"""
    command = [sys.executable, "-c", program, held.path, held.begun]
    # The worker processes share its output: a reader that reaches the end has waited for all of them.
    subprocess.run(command, check=True, timeout=PATIENCE_SECONDS, stdout=subprocess.PIPE)


async def test_no_operator_takes_every_place_in_the_store_s_queue(
    plane: Plane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refused request also causes a log line.

    The write of a log line waits for the disk, like the write of a batch.
    """
    token = await operator(plane, "ada", {})
    running, most = 0, 0
    begin_log_line = OperatorTables.begin_log_line

    async def counted(self: OperatorTables, record: NewLogLine) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        try:
            return await begin_log_line(self, record)
        finally:
            running -= 1

    monkeypatch.setattr(OperatorTables, "begin_log_line", counted)
    flood = [call(plane, token, "POST", "/orgs", {"name": "mine"}) for _ in range(40)]
    assert {response.status for response in await asyncio.gather(*flood)} == {403}
    assert most <= MOST_CHANGES_OF_ONE
    assert len(await plane.store.operator_log(LogQuery(limit=1000))) == len(flood)


async def test_what_waits_is_not_done_for_an_operator_who_was_disabled_meanwhile(
    plane: Plane, monkeypatch: pytest.MonkeyPatch
) -> None:
    await operator(plane, "root", {"*": "admin"})
    token = await operator(plane, "ada", {"*": "admin"})
    begun, go_on = asyncio.Semaphore(0), asyncio.Event()
    begin_log_line = OperatorTables.begin_log_line

    async def held_up(self: OperatorTables, record: NewLogLine) -> int:
        begun.release()
        await go_on.wait()
        return await begin_log_line(self, record)

    monkeypatch.setattr(OperatorTables, "begin_log_line", held_up)
    flood = [
        asyncio.create_task(call(plane, token, "POST", "/orgs", {"name": f"org-{at}"})) for at in range(40)
    ]
    for _ in range(MOST_CHANGES_OF_ONE):
        await begun.acquire()
    found = await plane.store.operator("ada")
    assert found is not None
    await plane.store.set_operator_enabled(found.operator_id, enabled=False)
    go_on.set()
    assert {response.status for response in await asyncio.gather(*flood)} <= {401, 403}
    assert await plane.store.orgs() == []


async def test_a_ruleset_that_takes_long_to_read_is_not_put_in_force_for_who_was_disabled_meanwhile(
    plane: Plane, monkeypatch: pytest.MonkeyPatch, held: Latch
) -> None:
    await plane.org("acme")
    token = await operator(plane, "ada", {"acme": "editor"})
    monkeypatch.setattr(rulesets, "read_ruleset", partial(read_slowly, held.path, held.begun))
    asked = {"org": "acme", "yaml": SMALL}
    applying = asyncio.create_task(call(plane, token, "POST", "/rulesets", asked))
    await asyncio.to_thread(held.await_begin)
    await plane.store.set_operator_enabled("id-of-ada", enabled=False)
    held.release()
    assert (await applying).status == 403
    assert await plane.store.rulesets(None) == []


async def test_a_rollback_undoes_no_version_that_nobody_looked_at(
    plane: Plane, context: OperationContext
) -> None:
    await plane.org("acme")
    for number in range(3):
        await plane.inventory.apply_ruleset("acme", "hr", 0, f"{SMALL}# {number}\n")
    with pytest.raises(Conflict, match="version 3 is active, but version 2 was expected"):
        await rollback.perform(context, EDITOR, RollBack("hr", "acme", to=1, expected=2))
    assert (await rollback.perform(context, EDITOR, RollBack("hr", "acme", to=1, expected=3))).version == 4


async def test_long_texts_of_former_versions_are_only_read_where_they_are_asked_for(
    plane: Plane, context: OperationContext
) -> None:
    """A ruleset can have any number of large versions, so a page must not load all their texts."""
    await plane.org("acme")
    for number in range(20):
        text = f"{SMALL}# {number} {'x' * 1_000_000}\n"
        await plane.inventory.apply_ruleset("acme", "hr", 0, text)
    tracemalloc.start()
    try:
        found = await history.perform(context, EDITOR, RulesetReference("hr"))
        shown = await show.perform(context, EDITOR, ShowRuleset("hr", version=7))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(found.versions) == 20
    assert shown.yaml.startswith(f"{SMALL}# 6 x")
    assert peak < 5_000_000


async def test_no_organisation_keeps_another_s_rules_from_a_proxy_that_they_share(
    plane: Plane, context: OperationContext
) -> None:
    """A proxy accepts a response of at most 64 MiB, which includes the rules of all its organisations."""
    await plane.org("acme")
    await plane.org("globex")
    shared = await plane.proxy("shared", "acme", "globex")
    filler = "#" + "\n" * (7 * 1024 * 1024)  # JSON encodes each of them as two characters

    async def publish(org: str, name: str, text: str = filler) -> None:
        yaml = f"version: 1\nname: {name}\nrules: []\n{text}"
        await apply.perform(context, EDITOR, ApplyRuleset(org=org, yaml=yaml))

    for name in ("one", "two"):
        await publish("acme", name)
    with pytest.raises(Conflict, match="together"):
        await publish("acme", "three")
    await publish("acme", "two", "")
    await publish("acme", "three")
    with pytest.raises(Conflict, match="together"):
        await rollback.perform(context, EDITOR, RollBack("two", "acme"))
    await publish("globex", "other", "")
    response = await shared.sync()
    assert {each["name"] for each in response.json["rulesets"]} == {"one", "two", "three", "other"}
    assert len(response.body) < 32 * 1024 * 1024


class SlowIndex:
    """A search index that sends no response until the test releases it."""

    def __init__(self) -> None:
        self.asked: asyncio.Queue[SearchQuery] = asyncio.Queue()
        self.go_on = asyncio.Event()

    async def search(self, query: SearchQuery) -> SearchPage:
        self.asked.put_nowait(query)
        await self.go_on.wait()
        return SearchPage((), None)

    async def span(self, org_ids: Sequence[str] | None) -> None:
        """Return None, because the fake index has no events."""


async def test_who_searches_much_waits_for_himself(context: OperationContext) -> None:
    """All operators share one index reader, but one operator's queries must not delay others' queries."""
    index = SlowIndex()

    async def slow() -> SearchIndex:
        return cast(SearchIndex, index)

    searching = replace(context, index=slow)

    async def searched(actor: Actor, text: str) -> None:
        await search.perform(searching, actor, SearchEvents(filter=text))

    async def exported() -> None:
        streamed = await export.perform(searching, NOBODY, ExportEvents())
        assert [piece async for piece in streamed.pieces] == []

    flood = [asyncio.create_task(searched(NOBODY, "-path:*a*b*")) for _ in range(50)]
    flood += [asyncio.create_task(exported()) for _ in range(4)]
    for _ in range(MOST_ASKED_BY_ONE):
        await index.asked.get()
    flood.append(asyncio.create_task(searched(Actor("ada", {}), "users")))
    assert (await index.asked.get()).filter == parse_filter("users")
    assert index.asked.empty()
    index.go_on.set()
    await asyncio.gather(*flood)


async def test_nobody_s_own_head_changes_what_is_known_of_a_chain(
    plane: Plane, proxy: ProxyClient, context: OperationContext
) -> None:
    """A viewer who submits a false chain head must not be able to cause or clear a chain finding."""
    (org,) = proxy.org_ids
    viewer = Actor("victor", {org: "viewer"})
    assert (await proxy.audit(batch("b1", org, [1, 2]))).status == 202

    async def known_misfit() -> str | None:
        (check,) = (await checks.perform(context, viewer, HeadsAsked())).orgs
        assert check.checked_at is not None
        return None if check.misfit is None else check.misfit.what

    assert (await verify.perform(context, viewer, Verify())).intact
    made_up = Verify(org=org, head="00" * 32)
    assert not (await verify.perform(context, viewer, made_up)).intact
    assert await known_misfit() is None
    with closing(sqlite3.connect(plane.settings.store.path)) as file:
        file.execute("UPDATE blocks SET body = CAST('[]' AS BLOB)")
        file.commit()
    assert not (await verify.perform(context, viewer, Verify())).intact
    (newest,) = (await head.perform(context, viewer, HeadsAsked())).heads
    passed_over = Verify(checkpoint=(KnownHead(org_id=org, number=newest.number, link=newest.link),))
    assert (await verify.perform(context, viewer, passed_over)).intact
    assert await known_misfit() == "removed"


ABSURD: list[tuple[str, dict[str, Any]]] = [
    (HEARTBEAT, {**GOOD_HEARTBEAT, "checks": {}, name: number})
    for name in ("syncAgeSeconds", "uptimeSeconds", "auditPending")
    for number in (1e308, -9e15)
]
ABSURD += [
    (METRICS, {**GOOD_METRICS, **members})
    for members in (
        {"windowStart": "0001-01-01T00:00:00+14:00", "windowEnd": "9999-12-31T23:59:59-14:00"},
        {"windowStart": "0001-01-01T00:00:00Z", "windowEnd": "9999-12-31T23:59:59Z"},
        {"windowStart": "9999-12-31T23:59:59-14:00", "windowEnd": "0001-01-01T00:00:00+14:00"},
        {"evaluated": -9_000_000_000_000_000_000, "upstreamErrors": 9_000_000_000_000_000_000},
        {"latencyMs": {"buckets": [[1e308, 1], [-1e308, 9]], "sum": 1e308, "count": 10}},
        {"windowStart": "9999-12-31T23:59:59.9999Z", "windowEnd": "9999-12-31T23:59:59.9999Z"},
        {"evaluated": 17 * 10**307},
        {"latencyMs": {"buckets": [[1, -17 * 10**307], [2, 17 * 10**307]], "sum": 1, "count": 9}},
    )
]
TIMES = (
    "0001-01-01T00:00:00Z",
    "0001-01-01T00:00:00+14:00",
    "9999-12-31T23:59:59-14:00",
    "9999-12-31T23:59:59.999Z",
)


async def test_no_number_or_time_of_a_proxy_takes_a_page_from_anybody(
    plane: Plane, proxy: ProxyClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The API key of one organisation's proxy must not be enough to break pages that list all proxies."""
    # A store may have times beyond the years of UTC, because earlier releases accepted them.
    monkeypatch.setattr("controlplane.ingest.EARLIEST_MS", -(1 << 62))
    monkeypatch.setattr("controlplane.ingest.LATEST_MS", 1 << 62)
    (org,) = proxy.org_ids
    await operator(plane, "ada", {"*": "admin"})
    events = [
        event(org, at, id=f"odd-{at}", time=time, clientId="c") for at, time in enumerate(TIMES, start=1)
    ]
    events.append(event(org, len(events) + 1, id="odd-shadow", shadowVerdict="block"))  # and nothing more
    assert (await proxy.audit({"batchId": "b1", "events": events})).status == 202
    pages = ["/", "/proxies", f"/proxies/{proxy.proxy_id}", "/search", "/live"]
    pages += [f"/events/{org}/{each['id']}" for each in events]
    async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as session:
        form = {"name": "ada", "password": PASSWORD}
        async with session.post(f"{plane.console_url}/login", data=form) as response:
            assert response.status == 200
        for path, body in ABSURD:
            assert (await proxy.send(path, json.dumps(body).encode())).status in (200, 400)
            for page in pages[1:3]:
                async with session.get(plane.console_url + page) as response:
                    assert response.status == 200, (page, body)
        for page in pages:
            async with session.get(plane.console_url + page) as response:
                assert response.status == 200, page
