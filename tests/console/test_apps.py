"""App identities in the console: what is secret is shown once, and each button does what it says."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Browser, Error, Page

from tests.console.conftest import Served, Visit, visiting

_SECRET = re.compile(r"gws_[\w-]{43}")


def _secret(page: Page) -> str:
    found = _SECRET.search(page.locator("main").inner_text())
    assert found, page.locator("main").inner_text()
    return found[0]


def test_a_new_app_s_secret_is_shown_once_and_never_again(browser: Browser, served: Served) -> None:
    with visiting(browser, served) as visit:
        _add_and_look_for_the_secret(visit)


def _add_and_look_for_the_secret(visit: Visit) -> None:
    page = visit.page
    visit.go("/apps?org=northwind")
    page.get_by_label("Name").fill("lunch-menu")
    page.get_by_label("Evaluated against the ruleset").select_option("staff-directory")
    page.locator("main form").get_by_role("button", name="Add app").click()
    secret = _secret(page)
    visit.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Copy the client secret").click()
    assert page.evaluate("navigator.clipboard.readText()") == secret

    page.get_by_role("link", name="It is kept safe: go on").click()
    assert page.locator("h1").inner_text() == "lunch-menu"
    assert secret not in page.content()
    with pytest.raises(Error, match="ERR_CACHE_MISS"):  # it would have to send the form again
        page.go_back()


def test_sending_the_form_twice_makes_no_second_app_and_no_second_secret(
    browser: Browser, served: Served
) -> None:
    with visiting(browser, served) as visit:
        page = visit.page
        visit.go(f"/apps/{served.seeded.apps['intranet'].app_id}")
        page.get_by_text("Replace the secret").click()
        page.get_by_role("button", name="Make a new secret").click()
        first = _secret(page)
        page.reload()  # the browser sends the form again
        assert first not in page.content()
        assert not _SECRET.search(page.content())
        assert "has been replaced since" in page.get_by_role("alert").inner_text()


def test_with_a_grace_both_secrets_are_good_until_it_ends(browser: Browser, served: Served) -> None:
    with visiting(browser, served) as visit:
        visit.go(f"/apps/{served.seeded.apps['payroll'].app_id}")
        secrets = visit.page.locator("section", has=visit.page.get_by_role("heading", name="Secrets"))
        shown = secrets.get_by_role("listitem").all_inner_texts()
        assert len(shown) == 2
        assert shown[0].startswith("Secret 2 (newest)")
        assert "ends in" in shown[1]


def test_an_app_is_disabled_enabled_and_evaluated_by_another_ruleset(
    browser: Browser, served: Served
) -> None:
    with visiting(browser, served) as visit:
        page = visit.page
        visit.go(f"/apps/{served.seeded.apps['device-audit'].app_id}")
        page.get_by_role("button", name="Disable").click()
        assert "refused" in page.get_by_role("status").inner_text()
        assert page.locator(".heading").get_by_text("disabled").is_visible()
        page.get_by_role("button", name="Enable").click()
        assert "served again" in page.get_by_role("status").inner_text()
        page.get_by_label("Let another evaluate it").select_option("mail-archive")
        page.get_by_role("button", name="Bind").click()
        assert "mail-archive evaluates device-audit" in page.get_by_role("status").inner_text()
        visit.go("/record?operation=app")
        lines = page.locator("tbody tr").all_inner_texts()
        assert ["app.bind" in lines[0], "app.enable" in lines[1], "app.disable" in lines[2]] == [True] * 3
        assert "device-inventory" not in lines[0]
        assert "contoso" in lines[0]
        assert "device-audit" in lines[0], "an id is told as a name"


def test_an_editor_may_stop_an_app_and_no_more(browser: Browser, served: Served) -> None:
    with visiting(browser, served, "edith") as visit:
        app = served.seeded.apps["mail-archiver"]
        visit.go(f"/apps/{app.app_id}")
        assert visit.page.get_by_role("button", name="Disable").is_visible()
        assert visit.page.get_by_text("Replace the secret").count() == 0
        csrf = visit.page.locator("input[name=csrf]").first.get_attribute("value") or ""
        address = f"{served.address}/apps/{app.app_id}/secret"
        refused = visit.page.request.post(address, form={"csrf": csrf, "expected": "1", "graceSeconds": "0"})
        assert refused.status == 403
        assert not _SECRET.search(refused.text())


def test_a_foreign_app_is_as_unknown_as_one_that_never_was(browser: Browser, served: Served) -> None:
    with visiting(browser, served, "victor") as visit:
        foreign = visit.go(f"/apps/{served.seeded.apps['power-bi'].app_id}")
        assert foreign.status == 404
        assert "power-bi" not in visit.page.content()


def test_a_ruleset_is_tried_compared_and_put_in_force(browser: Browser, served: Served) -> None:
    with visiting(browser, served) as visit:
        page = visit.page
        visit.go(f"/apps/{served.seeded.apps['device-audit'].app_id}")
        before = page.get_by_text("Evaluated against").inner_text().removeprefix("Evaluated against ")
        page.get_by_label("Try", exact=True).select_option("hr-sync")
        page.get_by_role("button", name="Try it").click()
        assert "hr-sync is tried on device-audit" in page.get_by_role("status").inner_text()
        where = page.get_by_role("link", name="What a switch would block").get_attribute("href") or ""
        assert visit.go(where).status == 200
        assert page.get_by_role("alert").count() == 0  # the filter is understood
        page.go_back()
        page.get_by_role("button", name="Let it evaluate from now on").click()
        assert "hr-sync evaluates device-audit" in page.get_by_role("status").inner_text()
        page.get_by_label("Try", exact=True).select_option(before)
        page.get_by_role("button", name="Try it").click()
        page.get_by_role("button", name="End the trial").click()
        assert "No ruleset is tried" in page.get_by_role("status").inner_text()
        page.get_by_label("Let another evaluate it").select_option(before)
        page.get_by_role("button", name="Bind").click()
