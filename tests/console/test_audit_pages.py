"""Tests of searching, following and examining audit events in a browser."""

from __future__ import annotations

import hashlib
import hmac
import json
import time
import urllib.request
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, Locator, expect

from proxy.wire.audit_event import rfc3339, uuid7
from tests.console.conftest import PHONE, Served, Visit, visiting
from tests.controlplane.processes import facts

HOSTILE = '"><script>window.hit = 1</script><img src=x onerror=window.hit=1>\u202e\x1b[31m'


@dataclass
class Edge:
    """Proxy that sends the events of one test, in a separate organisation."""

    served: Served
    org_id: str
    api_key: str
    hmac_secret: str
    sent: int = 0
    prefix: str = field(default_factory=lambda: f"{time.time_ns()}")

    def send(self, *paths: str, **members: Any) -> list[dict[str, Any]]:
        events = []
        for path in paths:
            self.sent += 1
            now = time.time_ns() // 1_000_000
            made = {
                "id": uuid7(now, self.sent), "time": rfc3339(now), "orgId": self.org_id, "method": "GET",
                "path": path, "status": 200, "verdict": "allow", "ruleId": "r1", "reason": "rule",
                "requestId": uuid7(now, 1 << 70 | self.sent), "clientId": "client-1", "durationMs": 12.5,
            }  # fmt: skip
            events.append(made | members)
        body = json.dumps({"batchId": f"{self.prefix}-{self.sent}", "events": events}).encode()
        stamp = str(int(time.time()))
        signed = hmac.new(self.hmac_secret.encode(), stamp.encode() + b"." + body, hashlib.sha256)
        headers = {"X-Api-Key": self.api_key, "X-Timestamp": stamp, "X-Hmac-Signature": signed.hexdigest()}
        request = urllib.request.Request(f"{self.served.agent_api}/api/v1/agent/audit", body, headers)
        with urllib.request.urlopen(request) as response:
            assert response.status == 202
        return events


@pytest.fixture(scope="module")
def edge(served: Served) -> Edge:
    config = served.seeded.config
    org_id = facts(config, "org", "add", "tailspin")["orgId"]
    minted = facts(config, "proxy", "add", "edge-tailspin", "--org", "tailspin")
    return Edge(served, org_id, minted["apiKey"], minted["hmacSecret"])


def rows(visit: Visit) -> Locator:
    return visit.page.locator("main .events tbody tr")


# Search


def test_a_search_is_narrowed_and_widened_by_clicks_and_its_address_is_all_of_it(visit: Visit) -> None:
    page = visit.page
    visit.go("/search?org=contoso&counts=1")
    page.get_by_role("link", name="Only verdict block").click()
    page.wait_for_url("**/search?org=contoso&q=verdict%3Ablock")
    assert set(rows(visit).locator(".badge").all_inner_texts()) == {"block"}
    page.get_by_role("link", name="Not status 403").click()
    expect(page.get_by_label("Filter", exact=True)).to_have_value("verdict:block -status:403")
    page.get_by_role("link", name="Without verdict block").click()
    expect(page.get_by_label("Filter", exact=True)).to_have_value("-status:403")
    address = page.url
    before = rows(visit).all_inner_texts()
    visit.go(address.removeprefix(visit.served.address))
    assert rows(visit).all_inner_texts() == before


def test_a_bar_of_the_histogram_narrows_the_time(visit: Visit) -> None:
    page = visit.page
    visit.go("/search?org=contoso&q=verdict:filter&counts=1")
    whole = page.get_by_role("heading", name=" events").inner_text()
    column = page.locator(".columns .over a").filter(has=page.locator("[data-from]")).last
    column.hover()
    tip = page.locator(".columns .tip")
    expect(tip).to_contain_text("filtered")
    expect(tip).to_contain_text("UTC")
    column.click()
    page.wait_for_url("**from=**to=**")
    narrowed = page.get_by_role("heading", name=" events").inner_text()
    assert 0 < _figure(narrowed) < _figure(whole)
    assert "verdict%3Afilter" in page.url


def _figure(text: str) -> int:
    return int("".join(char for char in text if char.isdigit()))


def test_pages_follow_each_other(visit: Visit) -> None:
    visit.go("/search?org=contoso&q=verdict:block")
    first = rows(visit).locator(".request a").evaluate_all("all => all.map((a) => a.href)")
    visit.page.get_by_role("link", name="Older", exact=True).click()
    visit.page.wait_for_url("**cursor=**")
    second = rows(visit).locator(".request a").evaluate_all("all => all.map((a) => a.href)")
    assert len(first) == 50
    assert not set(first) & set(second)


def test_a_mistake_is_marked_where_it_is(visit: Visit) -> None:
    visit.go("/search?q=verdict:block+stauts:403")
    alert = visit.page.get_by_role("alert")
    expect(alert).to_contain_text("Column 15: unknown field 'stauts': did you mean status?")
    assert alert.locator("mark").inner_text() == "s"
    assert visit.page.get_by_label("Filter", exact=True).get_attribute("aria-invalid") == "true"
    visit.go("/search?from=yesterday")
    expect(visit.page.get_by_role("alert")).to_contain_text("'yesterday' is not a time")
    visit.complaints.clear()  # the browser reports the status as an error


def test_where_nothing_is_found_it_says_what_to_try(visit: Visit) -> None:
    visit.go("/search?q=nosuchword&from=-1h&org=contoso")
    visit.page.get_by_role("link", name="Clear the filter", exact=True).click()
    visit.page.wait_for_url(lambda url: "nosuchword" not in url)
    assert "from=-1h" in visit.page.url


def test_what_takes_long_is_counted_behind_the_page(visit: Visit) -> None:
    page = visit.page
    # Replace the response by a page without counts, as if they took too long.
    page.route("**/search?*", lambda route: route.fulfill(
        status=200, content_type="text/html",
        body=_with_counts_to_come(route.fetch().text()),
    ), times=1)  # fmt: skip
    visit.go("/search?org=contoso&counts=1")
    expect(page.get_by_role("heading", name="Facets")).to_be_visible()
    page.get_by_role("link", name="Only verdict block").click()
    assert "q=verdict%3Ablock" in page.url


def _with_counts_to_come(text: str) -> str:
    start, end = text.index('<section class="card over-time"'), text.index('<div class="stack list">')
    later = '<p data-counts="/search/counts?org=contoso"><a href="?counts=1">Wait</a></p>'
    return text[:start] + later + text[end:]


def test_an_export_has_what_the_search_has(visit: Visit) -> None:
    visit.go("/search?org=contoso&q=verdict:block")
    with visit.page.expect_download() as download:
        visit.page.get_by_role("link", name="Export NDJSON", exact=True).click()
    assert download.value.suggested_filename == "audit-events.ndjson"
    lines = download.value.path().read_text("utf-8").splitlines()
    assert len(lines) > 50
    assert {json.loads(line)["verdict"] for line in lines} == {"block"}
    visit.page.get_by_text("Export with a signed manifest").click()
    with visit.page.expect_download() as download:
        visit.page.get_by_role("link", name="Export NDJSON and manifest").click()
    *signed, manifest = download.value.path().read_text("utf-8").splitlines()
    assert (signed, json.loads(manifest)["signed"]["filter"]) == (lines, "verdict:block")


# Page of one event


def test_an_event_says_why(visit: Visit) -> None:
    page = visit.page
    visit.go("/search?org=contoso&q=reason:hiddenProperty")
    rows(visit).first.locator(".request a").click()
    page.wait_for_url("**/events/contoso/**")
    why = page.locator("section.why")
    expect(why).to_contain_text("The path or query of the request names a property that a rule hides.")
    expect(why).to_contain_text("The deciding rule is hide-contacts of hr-sync, version 3.")
    assert why.locator("pre").first.inner_text().splitlines()[0].endswith("- id: hide-contacts")
    expect(page.get_by_role("heading", name="Rules tried")).to_be_visible()
    expect(page.locator(".trace .decides").first).to_contain_text("hide-contacts decides: block")
    expect(page.locator(".copyable code").first).to_contain_text("curl --globoff --path-as-is --request GET")
    page.get_by_role("link", name="Allow this request in the editor").click()
    expect(page.locator("#explained")).to_contain_text("by hide-contacts")
    text = page.get_by_label("Rules", exact=False).first
    at = text.evaluate("area => area.value.slice(area.selectionStart).split('\\n')[0]")
    assert at.endswith("id: hide-contacts"), "the cursor is at the deciding rule"
    page.get_by_role("button", name="Add a rule that allows the request").click()
    expect(page.locator("#explained .verdict-line").first).to_contain_text("allow by")


def test_parts_of_a_batch_lead_to_each_other(visit: Visit, edge: Edge) -> None:
    (whole,) = edge.send("/v1.0/$batch", method="POST")
    first, second = edge.send("/v1.0/part/1", "/v1.0/part/2", parentRequestId=whole["requestId"])
    visit.go(f"/events/tailspin/{whole['id']}")
    parts = visit.page.get_by_role("region", name="Requests of this $batch")
    assert parts.locator(".request").count() == 2
    visit.go(f"/events/tailspin/{first['id']}")
    for words in ("POST /v1.0/$batch", "GET /v1.0/part/2"):
        expect(visit.page.locator("main")).to_contain_text(words)
    expect(visit.page.locator(f'main a[href*="{second["id"]}"]').first).to_contain_text("/v1.0/part/2")


def test_an_event_of_nobody_we_know_is_no_fault(visit: Visit, edge: Edge) -> None:
    edge.send("/v1.0/bare", id="a/b c?d", reason=None, ruleId=None, requestId=None, durationMs=None, seq=5)
    assert visit.go(f"/events/tailspin/{quote('a/b c?d', safe='')}").status == 200
    assert visit.go("/events/tailspin/no-such-event").status == 404
    visit.complaints.clear()  # the browser reports the status as an error


def test_an_event_of_the_token_endpoint_says_why_and_asks_no_rule(visit: Visit, edge: Edge) -> None:
    (event,) = edge.send(
        "/proxy/token", method="POST", verdict="block", ruleId=None, reason="assertionRefused",
        credentialProblem="audienceUnknown",
    )  # fmt: skip
    visit.go(f"/events/tailspin/{event['id']}")
    main = visit.page.locator("main")
    expect(main.locator("section.why")).to_contain_text(
        "A credential was refused: Proxy.PublicBaseUrl is not set"
    )
    assert main.get_by_text("Rules tried").count() == 0
    assert main.get_by_role("link", name="in the editor").count() == 0


def test_nothing_of_a_foreign_organisation_is_on_any_page(browser: Browser, served: Served) -> None:
    with visiting(browser, served, "ada") as visit:
        visit.go("/search?org=fabrikam&q=verdict:block")
        foreign = rows(visit).first.locator(".request a").get_attribute("href") or ""
    with visiting(browser, served, "victor") as visit:
        for path in (foreign, foreign.partition("?")[0], "/search?org=fabrikam", "/live?org=fabrikam"):
            assert visit.go(path).status == 404, path
            assert "power-bi" not in visit.page.content()
        for path in ("/search?counts=1", "/search?q=org:fabrikam&counts=1", "/live"):
            assert visit.go(path).status == 200
            text = visit.page.content()
            assert "power-bi" not in text
            assert served.seeded.orgs["fabrikam"].org_id not in text
        assert "payroll" in text


# Untrusted text


def test_no_event_runs_or_hides_anything(visit: Visit, edge: Edge) -> None:
    (sent,) = edge.send(
        f"/{HOSTILE}", query=HOSTILE, ruleId=HOSTILE, reason=HOSTILE, appId=HOSTILE, method="GET" + HOSTILE,
        clientIp=HOSTILE, transforms=[HOSTILE], requestId=HOSTILE, clientId=HOSTILE, verdict="block",
    )  # fmt: skip
    search = quote(HOSTILE[:20], safe="")
    for path in (
        "/search?org=tailspin&counts=1",
        "/live?org=tailspin",
        f"/events/tailspin/{sent['id']}",
    ):
        assert visit.go(path).status == 200
        expect(visit.page.locator("main")).to_contain_text("<script>window.hit = 1</script>")
        assert "\u202e" not in visit.page.locator("main").inner_text()
    for path in (f"/search?q={search}", f"/search?org=tailspin&from={search}", f"/live?q={search}"):
        assert visit.go(path).status == 422
    assert visit.page.evaluate("window.hit") is None
    visit.complaints.clear()  # the browser reports the status as an error
    assert visit.page.evaluate("window.violations") == []


# Live events


@pytest.fixture
def live(visit: Visit, edge: Edge) -> Visit:
    visit.go("/live?org=tailspin&q=-path:/quiet")
    expect(visit.page.locator("[data-live-state]")).to_have_text("Live")
    return visit


def test_events_come_as_they_are_stored(live: Visit, edge: Edge) -> None:
    edge.send("/live/1", "/live/2", "/quiet", verdict="filter")
    expect(rows(live).first).to_contain_text("/live/2")
    expect(rows(live).nth(1)).to_contain_text("/live/1")
    assert "/quiet" not in live.page.locator("main table").inner_text()
    expect(rows(live).first.locator(".badge")).to_have_text("filter")
    rows(live).first.locator(".request a").click()
    live.page.wait_for_url("**/events/tailspin/**")
    expect(live.page.locator("h1")).to_contain_text("/live/2")


def test_a_row_that_comes_is_as_one_of_the_page(live: Visit, edge: Edge) -> None:
    edge.send(f"/alike/{HOSTILE}", query="a=1", status=403, verdict="block", durationMs=1.27)
    expect(rows(live).first).to_contain_text("/alike/")
    came, link = rows(live).first.inner_text(), rows(live).first.locator("a").get_attribute("href")
    live.page.reload()
    assert rows(live).first.inner_text() == came
    assert rows(live).first.locator("a").get_attribute("href") == link


def test_the_name_of_an_app_that_the_page_did_not_bring_is_looked_up(live: Visit, edge: Edge) -> None:
    elsewhere = live.served.seeded.apps["payroll"]  # the page contains only names of the chosen organisation
    edge.send("/named/1", "/named/2", appId=elsewhere.app_id)
    expect(rows(live).first).to_contain_text("/named/2")
    for at in (0, 1):
        expect(rows(live).nth(at).locator(".app")).to_contain_text("payroll")


def test_a_pause_holds_what_comes(live: Visit, edge: Edge) -> None:
    page = live.page
    page.get_by_role("link", name="Pause", exact=True).click()
    edge.send("/held/1", "/held/2")
    expect(page.locator("[data-live-state]")).to_have_text("Paused, 2 new")
    assert "/held" not in page.locator("main table").inner_text()
    assert "paused=1" in page.url
    page.get_by_role("link", name="Resume", exact=True).click()
    expect(rows(live).first).to_contain_text("/held/2")
    assert "paused" not in page.url


def test_without_a_script_the_list_is_fetched_again(browser: Browser, served: Served, edge: Edge) -> None:
    with visiting(browser, served, scripts=False) as visit:
        visit.go("/live?org=tailspin")
        assert visit.page.locator("meta[http-equiv=refresh]").count() == 1
        visit.page.get_by_role("link", name="Pause", exact=True).click()
        visit.page.wait_for_url("**paused=1")
        assert visit.page.locator("meta[http-equiv=refresh]").count() == 0
        visit.go("/search?org=contoso&counts=1")
        visit.page.get_by_role("link", name="Only verdict block").click()
        visit.page.wait_for_url("**q=verdict%3Ablock")


def test_a_phone_shows_events_whole(browser: Browser, served: Served) -> None:
    with visiting(browser, served, size=PHONE) as visit:
        visit.go("/search?org=contoso")
        for cell in (".verdict", ".status", ".request", ".app", ".at"):
            box = rows(visit).first.locator(cell).bounding_box()
            assert box is not None
            assert box["x"] >= 0
            assert box["x"] + box["width"] <= PHONE[0]
