"""Tests of the search page of the console."""

from __future__ import annotations

import json
import re
import threading
from typing import Any
from urllib.parse import urlencode

import pytest

from controlplane.operations.actor import local_actor
from controlplane.operations.apps import AddApp, add
from controlplane.operations.emergency import AppToStop, stop_app
from controlplane.operations.perform import perform
from controlplane.operations.rulesets import ApplyRuleset, apply
from controlplane.search.parts import PartWriter
from tests.controlplane.plane import RULESET, Plane, ProxyClient, batch, context_of
from tests.controlplane.visitor import visiting

OWNER = local_actor("owner")


@pytest.mark.parametrize("path", ["/search", "/search/counts"])
@pytest.mark.parametrize("to", ["9999-12-31", "9990-01-01"])
async def test_a_time_may_reach_to_the_last_one_that_has_a_name(
    plane: Plane, proxy: ProxyClient, path: str, to: str
) -> None:
    (org,) = proxy.org_ids
    sent = batch("one", org, [1])
    sent["events"][0] |= {"verdict": "block"}
    assert (await proxy.audit(sent)).status == 202
    async with visiting(plane) as visitor:
        seen = await visitor.get(f"{path}?to={to}&counts=1")
    assert seen.status == 200
    assert "9999-12-31T23%3A59%3A59.999Z" in seen.text, "where the last bar leads"


async def test_each_page_with_events_or_counts_says_that_the_index_is_being_filled(
    plane: Plane, proxy: ProxyClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    (org,) = proxy.org_ids
    monkeypatch.setattr("controlplane.app._MOMENT_SECONDS", 0.05)
    free = threading.Event()
    written = PartWriter.write

    def slow(*given: Any) -> None:
        free.wait(60)
        written(*given)

    async with visiting(plane) as visitor:
        monkeypatch.setattr(PartWriter, "write", slow)
        assert (await proxy.audit(batch("one", org, range(4)))).status == 202
        said = "The search index is being filled: it has 0% of the stored events."
        for path in ("/", "/search", "/live"):
            assert (await visitor.get(path)).text.count(said) == 1, path
        assert said not in (await visitor.get("/operators")).text
        free.set()
        monkeypatch.setattr("controlplane.app._WHILE_BEHIND_SECONDS", 60)
        assert said not in (await visitor.get("/search")).text


OWN, CLIENTS = "01a21710-e265-7000-8000-2a0000000002", "3fa85f64-5717-4562-b3fc-2c963f66afa6"


async def test_an_id_in_the_search_box_leads_to_its_event(plane: Plane, proxy: ProxyClient) -> None:
    (org,) = proxy.org_ids
    sent = batch("one", org, range(4))
    for each in sent["events"]:
        each["clientRequestId"] = CLIENTS
    sent["events"][1]["requestId"] = OWN
    sent["events"][2]["upstreamRequestId"] = "0c1d2e3f-0000-4000-8000-000000000001"
    assert (await proxy.audit(sent)).status == 202
    pasted = {
        "error": {"code": "policyBlocked", "innerError": {"request-id": OWN, "client-request-id": CLIENTS}}
    }
    async with visiting(plane) as visitor:
        for text, event_id in (
            (f" {OWN}\n", "event-1"),
            (json.dumps(pasted), "event-1"),
            ("failed: 0C1D2E3F-0000-4000-8000-000000000001", "event-2"),
        ):
            seen = await visitor.get(f"/search?{urlencode({'q': text})}")
            assert seen.status == 303
            assert (seen.led_to or "").endswith(f"/{event_id}")
        several = await visitor.get(f"/search?q={CLIENTS}&from=2020-01-01&to=2020-01-02")
        assert "4 events have this id" in several.text
        absent = {"q": f'{{"request-id": "{OWN[:-1]}f"}}'}
        none = await visitor.get(f"/search?{urlencode(absent)}")
        assert none.status == 200
        assert "as event id, request id" in none.text


async def test_an_event_without_an_app_has_a_page(plane: Plane, proxy: ProxyClient) -> None:
    (org,) = proxy.org_ids
    sent = batch("one", org, [1])
    sent["events"][0].pop("appId", None)
    assert (await proxy.audit(sent)).status == 202
    async with visiting(plane) as visitor:
        assert (await visitor.get(f"/events/{org}/{sent['events'][0]['id']}")).status == 200


async def test_charts_name_what_was_published_and_stopped_and_stopped_apps_are_marked(
    plane: Plane, proxy: ProxyClient
) -> None:
    context, (org,) = context_of(plane), proxy.org_ids
    applied = ApplyRuleset(org=org, yaml=RULESET.format(name="hr"))
    for _ in range(2):  # the second time the version is already active, and nothing changes
        await perform(apply, context, OWNER, applied)
    payroll = await perform(add, context, OWNER, AddApp("payroll", org, "hr"))
    portal = await perform(add, context, OWNER, AddApp("portal", org, "hr"))
    await perform(stop_app, context, OWNER, AppToStop(payroll.app_id, reason="leaked secret"))
    sent = batch("one", org, [1, 2, 3])
    for each, app in zip(sent["events"], (payroll, payroll, portal), strict=True):
        each |= {"verdict": "block", "appId": app.app_id, "ruleId": "r1"}
    sent["events"][0] |= {"status": 503, "durationMs": 7}
    assert (await proxy.audit(sent)).status == 202
    published = f"{OWNER.name} published hr version 1"
    stopped = f"{OWNER.name} stopped app payroll (leaked secret)"
    async with visiting(plane) as visitor:
        for path in ("/", "/search?counts=1&from=2026-11-21&to=2026-11-22", f"/apps/{payroll.app_id}"):
            text = (await visitor.get(path)).text
            table = text.partition("View as table")[2].partition("</table>")[0]
            assert all(each in table for each in (published, stopped)), path
            titles = " ".join(re.findall(r"<title>([^<]*)</title><circle", text))
            assert titles.count("published") == titles.count("stopped app") == 1, path
        overview = (await visitor.get("/")).text
        ranked = dict(
            re.findall(r"<li><a href[^>]*><span title=[^>]*>(p\w+)</span>(.*?)<svg class=.share", overview)
        )
        assert {name: "stopped" in state for name, state in ranked.items()} == {
            "payroll": True,
            "portal": False,
        }
        facet = (await visitor.get("/search?counts=1")).text
        assert 'aria-label="Only app payroll, 2, stopped"' in facet
        assert 'aria-label="Only app portal, 1"' in facet
        assert "Failed (5xx)</span><strong>1</strong>" in re.sub(
            r">\s+<", "><", (await visitor.get(f"/apps/{payroll.app_id}")).text
        )
