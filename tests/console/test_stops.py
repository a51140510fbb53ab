"""The emergency stop in the console: quick to reach, hard to overlook, lifted by an admin."""

from __future__ import annotations

from playwright.sync_api import Browser

from tests.console.conftest import Served, visiting
from tests.console.looks import complaints


def test_an_editor_stops_an_app_everybody_sees_it_and_an_admin_lifts_it(
    browser: Browser, served: Served
) -> None:
    app = served.seeded.apps["hr-portal"]
    with visiting(browser, served, "edith") as editor, visiting(browser, served) as admin:
        editor.go(f"/apps/{app.app_id}")
        editor.page.get_by_role("link", name="Stop", exact=True).click()
        assert editor.page.get_by_label("App", exact=True).input_value() == app.app_id
        editor.page.locator("#app-reason").fill("it asks for everybody's mail")
        editor.page.get_by_role("button", name="Stop the app").click()
        assert "refuse the app hr-portal" in editor.page.get_by_role("status").inner_text()
        assert editor.page.get_by_role("button", name="Lift").count() == 0
        editor.go(f"/apps/{app.app_id}")
        assert editor.page.locator(".heading").get_by_text("stopped", exact=True).is_visible()
        editor.go("/stops")
        assert editor.page.get_by_role("button", name="Stop everything").count() == 0

        admin.go("/orgs")
        admin.page.get_by_text("hr-portal (it asks for everybody's mail) is stopped").get_by_role(
            "link", name="Look into it"
        ).click()
        row = admin.page.get_by_role("row", name="hr-portal")
        assert "everybody's mail" in row.inner_text()
        row.get_by_role("button", name="Lift the stop of hr-portal").click()
        row.get_by_role("button", name="Lift it").click()
        admin.page.get_by_text("Nothing is stopped").wait_for()
        assert [*editor.all_complaints(), *admin.all_complaints()] == []


def test_everything_is_stopped_by_who_means_it(browser: Browser, served: Served) -> None:
    with visiting(browser, served) as visit:
        visit.go("/stops")
        visit.page.get_by_role("button", name="Stop everything").click()
        assert visit.page.get_by_text("Nothing is stopped").is_visible(), "the browser asks for the tick"
        csrf = visit.page.locator("input[name=csrf]").first.get_attribute("value") or ""
        asked = visit.page.request.post(f"{served.address}/stops", form={"csrf": csrf, "scope": "all"})
        assert asked.status == 422, "so does the server"
        visit.page.get_by_label("Refuse every request of every organisation").check()
        visit.page.get_by_role("button", name="Stop everything").click()
        assert "every app of every organisation" in visit.page.get_by_role("status").inner_text()
        for path in ("/", "/stops", "/apps"):
            visit.go(path)
            assert complaints(visit.page) == [], path
        for scope in ({}, {"scope": "App", "app": "hr-portal"}):
            form = {"csrf": csrf, **scope}
            asked = visit.page.request.post(f"{served.address}/stops/lift", form=form)
            assert asked.status == 422, "what isn't said is not lifted"
        visit.go("/stops")
        visit.page.get_by_role("button", name="Lift the stop of everything").click()
        visit.page.get_by_role("button", name="Lift it").click()
        visit.page.get_by_text("Nothing is stopped").wait_for()
