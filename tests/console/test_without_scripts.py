"""Test of the console in a browser without scripts.

The file test_rulesets.py tests publishing without scripts.
"""

from __future__ import annotations

from playwright.sync_api import Browser

from tests.console.conftest import Served, visiting


def test_an_event_is_found_and_an_app_is_stopped(browser: Browser, served: Served) -> None:
    with visiting(browser, served, None, scripts=False) as visit:
        page = visit.page
        visit.sign_in("ada")
        visit.go("/?org=contoso")
        page.get_by_label("Search audit events").fill("verdict:block")
        page.keyboard.press("Enter")
        page.wait_for_url("**/search?**")
        page.locator(".events .request a").first.click()
        page.wait_for_url("**/events/**")
        assert "block" in page.locator("main").inner_text()
        visit.go("/stops?org=contoso")
        page.get_by_label("App", exact=True).select_option(label="hr-portal")
        page.get_by_role("button", name="Stop the app…").click()
        page.get_by_label("Why").fill("it asks too much")
        page.get_by_role("button", name="Stop hr-portal").click()
        assert "The stop of hr-portal is set" in page.get_by_role("status").inner_text()
        page.get_by_role("button", name="Lift the stop of hr-portal").click()
        page.get_by_role("button", name="Lift the stop", exact=True).click()
        page.get_by_text("Nothing is stopped").wait_for()
        assert visit.complaints == []
