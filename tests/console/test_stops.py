"""Tests of the console's emergency stop: quick to reach, hard to overlook, lifted only by an admin."""

from __future__ import annotations

import re

from playwright.sync_api import Browser

from tests.console.conftest import Served, Visit, visiting
from tests.console.looks import complaints


def test_an_editor_stops_an_app_everybody_sees_it_and_an_admin_lifts_it(
    browser: Browser, served: Served
) -> None:
    app = served.seeded.apps["hr-portal"]
    with visiting(browser, served, "edith") as editor, visiting(browser, served) as admin:
        editor.go(f"/apps/{app.app_id}")
        editor.page.get_by_role("link", name="Stop this app…").click()
        assert editor.page.get_by_label("App", exact=True).input_value() == app.app_id
        editor.page.locator("#app-reason").fill("it asks for everybody's mail")
        editor.page.get_by_role("button", name="Stop the app…").click()
        said = editor.page.inner_text("main")
        assert re.search(r" requests? in the last hour\. All requests will get 403 from ", said)
        assert editor.page.get_by_label("Why").input_value() == "it asks for everybody's mail"
        assert complaints(editor.page) == []
        editor.page.get_by_role("button", name="Stop hr-portal").click()
        assert "The stop of hr-portal is set" in editor.page.get_by_role("status").inner_text()
        assert editor.page.get_by_role("button", name="Lift").count() == 0
        assert "An admin can lift the stop" in editor.page.inner_text("table")
        assert "hr-portal: active at" in editor.page.inner_text("#reach")
        assert "not confirmed" in editor.page.inner_text("#reach")
        editor.go(f"/apps/{app.app_id}")
        assert editor.page.locator(".heading").get_by_text("stopped", exact=True).is_visible()
        assert editor.page.get_by_role("link", name="Stop this app").count() == 0
        editor.go("/stops")
        assert editor.page.get_by_role("button", name="Stop everything").count() == 0

        admin.go("/orgs")
        admin.page.get_by_text("hr-portal (it asks for everybody's mail) is stopped").get_by_role(
            "link", name="View"
        ).click()
        row = admin.page.get_by_role("row", name="hr-portal")
        assert "everybody's mail" in row.inner_text()
        row.get_by_role("button", name="Lift the stop of hr-portal").click()
        row.get_by_role("button", name="Lift the stop", exact=True).click()
        admin.page.get_by_text("Nothing is stopped").wait_for()
        assert [*editor.all_complaints(), *admin.all_complaints()] == []


def test_everything_is_stopped_by_who_means_it(browser: Browser, served: Served) -> None:
    with visiting(browser, served) as visit:
        visit.go("/stops")
        assert visit.page.get_by_label("App", exact=True).input_value() == "", "nothing is preselected"
        visit.page.get_by_role("button", name="Stop the app…").click()
        assert visit.page.get_by_text("Nothing is stopped").is_visible(), "the browser asks for an app"
        csrf = visit.page.locator("input[name=csrf]").first.get_attribute("value") or ""
        for unsaid in ("app", "org", ""):
            asked = visit.page.request.post(f"{served.address}/stops", form={"csrf": csrf, "scope": unsaid})
            assert asked.status == 422, "so does the server"
        visit.page.get_by_role("button", name="Stop everything…").click()
        assert "apps of every organisation sent" in visit.page.inner_text("main")
        visit.go("/stops")
        assert visit.page.get_by_text("Nothing is stopped").is_visible(), "to look is not to stop"
        visit.page.get_by_role("button", name="Stop everything…").click()
        visit.page.get_by_role("button", name="Stop everything", exact=True).click()
        assert "The stop of everything is set" in visit.page.get_by_role("status").inner_text()
        for path in ("/", "/stops", "/apps"):
            visit.go(path)
            assert complaints(visit.page) == [], path
        _find_the_stop_by_keyboard(visit)
        for scope in ({}, {"scope": "App", "app": "hr-portal"}):
            form = {"csrf": csrf, **scope}
            asked = visit.page.request.post(f"{served.address}/stops/lift", form=form)
            assert asked.status == 422, "what isn't said is not lifted"
        visit.go("/stops")
        visit.page.get_by_role("button", name="Lift the stop of everything").click()
        visit.page.get_by_role("button", name="Lift the stop", exact=True).click()
        visit.page.get_by_text("Nothing is stopped").wait_for()


def _find_the_stop_by_keyboard(visit: Visit) -> None:
    """Find the emergency stop in the chart with the keyboard, and check its time in the chosen time zone."""
    visit.go("/")
    visit.page.locator(".zones summary").click()
    visit.page.get_by_label("Another time zone").fill("Asia/Tokyo")
    visit.page.get_by_role("button", name="Show this zone").click()
    visit.page.get_by_text("Asia/Tokyo", exact=True).wait_for()
    moment, tip = visit.page.get_by_role("slider", name="Requests over time"), visit.page.locator(".tip")
    moment.focus()
    visit.page.keyboard.press("End")
    assert "JST: ada stopped everything" in tip.inner_text()
    assert "ada stopped everything" in (moment.get_attribute("aria-valuetext") or "")
    visit.page.keyboard.press("ArrowLeft")
    assert "stopped" not in tip.inner_text()
    assert "JST" in tip.inner_text()
    visit.page.keyboard.press("Escape")
    assert not tip.is_visible()
