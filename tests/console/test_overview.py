"""Tests of the overview: each figure agrees with the audit events, and links to them."""

from __future__ import annotations

import re

from playwright.sync_api import Browser, Page

from tests.console.conftest import Served, visiting
from tests.console.seed import EVENTS


def _figure(page: Page, name: str) -> int:
    return _number(page.locator("a.figure", has_text=name).locator("strong").inner_text())


def _number(text: str) -> int:
    return int(re.sub(r"\D", "", text))


def test_verdicts_add_up_and_each_figure_leads_to_its_events(browser: Browser, served: Served) -> None:
    with visiting(browser, served) as visit:
        page = visit.page
        for name in ("Blocked", "Filtered", "Requests"):
            visit.go("/?last=7d")
            verdicts = [_figure(page, each) for each in ("Allowed", "Filtered", "Blocked", "Logged only")]
            whole = _figure(page, "Requests")
            assert sum(verdicts) == whole
            assert whole >= EVENTS - 20  # a few events never left their proxy
            report = _figure(page, name)
            page.locator("a.figure", has_text=name).click()
            page.wait_for_url("**/search?**")
            assert _number(page.get_by_role("heading", name=re.compile("events?$")).inner_text()) == report
        assert visit.all_complaints() == []


def test_what_is_blocked_most_comes_first_and_leads_to_it(browser: Browser, served: Served) -> None:
    with visiting(browser, served) as visit:
        page = visit.page
        visit.go("/?last=7d&org=contoso")
        ranking = page.locator("section", has=page.get_by_role("heading", name="Blocked by app"))
        lines = ranking.get_by_role("listitem").all_inner_texts()
        counts = [_number(line.splitlines()[-1]) for line in lines]
        assert counts == sorted(counts, reverse=True)
        ranking.get_by_role("link", name=re.compile("payroll")).click()
        page.wait_for_url("**/search?**")
        heading = page.get_by_role("heading", name=re.compile("events?$")).inner_text()
        assert _number(heading) == counts[[line.startswith("payroll") for line in lines].index(True)]


def test_an_organisation_s_viewer_counts_that_organisation_alone(browser: Browser, served: Served) -> None:
    with visiting(browser, served, "victor") as theirs, visiting(browser, served) as admin:
        theirs.go("/?last=7d")
        admin.go("/?last=7d&org=contoso")
        assert _figure(theirs.page, "Requests") == _figure(admin.page, "Requests")
        for name in ("fabrikam", "northwind", "power-bi", "edge-amsterdam"):
            assert theirs.page.get_by_text(name).count() == 0


def test_where_nothing_is_yet_the_next_steps_are_told(browser: Browser, served: Served) -> None:
    with visiting(browser, served) as visit:
        page = visit.page
        visit.go("/?org=adventure-works")
        steps = page.locator("section", has=page.get_by_role("heading", name="Get started"))
        report = steps.get_by_role("listitem").all_inner_texts()
        assert ["done" in report[0], "to do" in report[1], "to do" in report[2]] == [True, True, True]
        steps.get_by_role("link", name="Write a ruleset").click()
        assert page.url.endswith("/rulesets/new?org=adventure-works")
        visit.go("/?org=contoso")
        assert page.get_by_text("Get started").count() == 0
