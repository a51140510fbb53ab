"""Tests of signing in to the console: which operators can sign in, and which can't."""

from __future__ import annotations

from playwright.sync_api import Browser

from tests.console.conftest import Served, visiting


def test_one_signs_in_and_goes_on_to_where_one_wanted(browser: Browser, served: Served) -> None:
    with visiting(browser, served, None) as visit:
        visit.go("/orgs?org=contoso")
        assert visit.page.url == f"{served.address}/login?next=%2Forgs%3Forg%3Dcontoso"
        visit.page.get_by_label("Name").fill("ada")
        visit.page.get_by_label("Password").fill("no idea")
        visit.page.keyboard.press("Enter")
        assert "wrong" in visit.page.get_by_role("alert").inner_text()
        assert visit.page.get_by_label("Name").input_value() == "ada", "the name needs no second typing"
        visit.page.get_by_label("Password").fill("correct horse battery staple")
        visit.page.keyboard.press("Enter")
        visit.page.wait_for_url(f"{served.address}/orgs?org=contoso")


def test_a_sign_in_leads_nowhere_else(browser: Browser, served: Served) -> None:
    with visiting(browser, served, None) as visit:
        visit.go("/login?next=//evil.example/")
        assert visit.page.locator("input[name=next]").get_attribute("value") == "/"


def test_who_signed_out_is_out(browser: Browser, served: Served) -> None:
    with visiting(browser, served, None) as visit:
        visit.sign_in("ada")
        visit.go("/orgs")
        visit.page.get_by_role("button", name="Sign out").click()
        visit.page.wait_for_url(f"{served.address}/login")
        visit.page.go_back()
        assert "/login" in visit.page.url, "the page before isn't kept by the browser"


def test_all_of_it_works_without_a_script(browser: Browser, served: Served) -> None:
    with visiting(browser, served, scripts=False) as visit:
        visit.go("/orgs")
        form = visit.page.locator("#add")
        form.get_by_label("Name").fill("lamna")
        form.get_by_label("Events are kept for").select_option("90d")
        form.get_by_role("button", name="Add organisation").click()
        assert visit.page.get_by_role("status").inner_text() == "Organisation lamna was added."
        assert visit.page.get_by_role("row", name="lamna").is_visible()
        visit.page.reload()
        assert visit.page.get_by_role("status").count() == 0, "it is said once"
        visit.page.get_by_role("button", name="Light or dark").click()
        assert visit.page.locator("html[data-theme=dark]").count() == 1
        assert visit.page.url.endswith("/orgs")


def test_a_form_that_is_not_taken_says_why_and_keeps_what_was_typed(browser: Browser, served: Served) -> None:
    with visiting(browser, served) as visit:
        visit.go("/orgs")
        form = visit.page.locator("#add")
        form.get_by_label("Name").fill("contoso")
        form.get_by_role("button", name="Add organisation").click()
        assert "exists" in visit.page.get_by_role("alert").inner_text()
        assert form.get_by_label("Name").input_value() == "contoso"


def test_a_viewer_sees_no_button_that_would_be_refused(browser: Browser, served: Served) -> None:
    with visiting(browser, served, "victor") as visit:
        visit.go("/orgs")
        assert visit.page.get_by_role("row", name="contoso").is_visible()
        assert visit.page.get_by_text("fabrikam").count() == 0, "it isn't theirs to know of"
        assert visit.page.locator("main form[method=post]").count() == 0  # only the search forms use GET
        csrf = visit.page.locator("input[name=csrf]").first.get_attribute("value")
        refused = visit.page.request.post(
            f"{served.address}/orgs", form={"csrf": csrf or "", "name": "x", "retention": "base"}
        )
        assert refused.status == 403
        foreign = visit.go("/orgs?org=fabrikam")
        assert foreign.status == 404
        never = visit.go("/orgs?org=never-was")
        assert never.status == 404


def test_a_form_of_another_session_is_refused_with_a_page(browser: Browser, served: Served) -> None:
    with visiting(browser, served) as visit:
        refused = visit.page.request.post(f"{served.address}/orgs", form={"csrf": "guessed", "name": "x"})
        assert refused.status == 403
        assert "text/html" in refused.headers["content-type"]
