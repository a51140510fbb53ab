"""Tests of organisation pages."""

from __future__ import annotations

from playwright.sync_api import Browser

from tests.console.conftest import Served, visiting


def test_keeping_events_for_a_shorter_time_is_asked_twice(browser: Browser, served: Served) -> None:
    with visiting(browser, served) as visit:
        page = visit.page
        visit.go("/orgs")
        row = page.get_by_role("row", name="fabrikam")
        row.get_by_role("combobox").select_option("base")
        row.get_by_role("button", name="Save").click()
        page.get_by_role("link", name="Cancel").click()
        assert row.get_by_role("combobox").input_value() == "90d"
        row.get_by_role("combobox").select_option("1y")
        row.get_by_role("button", name="Save").click()
        assert "fabrikam are kept for 1 year" in page.get_by_role("status").inner_text()
        row.get_by_role("combobox").select_option("90d")
        row.get_by_role("button", name="Save").click()
        page.get_by_role("button", name="Delete older events and keep 90 days").click()
        assert "fabrikam are kept for 90 days" in page.get_by_role("status").inner_text()
