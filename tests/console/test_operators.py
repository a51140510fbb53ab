"""Tests of operator pages: roles, tokens and passwords."""

from __future__ import annotations

import re

from playwright.sync_api import Browser

from tests.console.conftest import Served, visiting
from tests.console.seed import PASSWORD


def test_an_operator_is_added_given_a_role_and_kept_out(browser: Browser, served: Served) -> None:
    with visiting(browser, served) as visit:
        page = visit.page
        visit.go("/operators")
        page.get_by_label("Name").fill("grace@contoso.com")
        page.get_by_label("Password").fill(PASSWORD)
        page.locator("main form").get_by_label("Role").select_option("viewer")
        page.get_by_label("Organisation", exact=True).select_option("contoso")
        page.locator("main form").get_by_role("button", name="Add operator").click()
        assert "grace@contoso.com was added" in page.get_by_role("status").inner_text()
        page.get_by_label("Role", exact=True).select_option("editor")
        page.get_by_label("Organisation", exact=True).select_option("northwind")
        page.get_by_role("button", name="Add role").click()
        assert page.get_by_text("editor in northwind").is_visible()
        page.get_by_role("button", name="Remove the role viewer in contoso").click()
        assert page.get_by_text("viewer in contoso").count() == 0

        with visiting(browser, served, None) as theirs:
            theirs.sign_in("grace@contoso.com")
            theirs.go("/orgs")
            assert theirs.page.locator("tbody tr").count() == 1
            page.get_by_role("button", name="Disable operator").click()
            page.get_by_role("status").wait_for()
            theirs.go("/orgs")
            assert "/login" in theirs.page.url, "a session ends with what it stands for"


def test_a_token_is_shown_once_opens_the_admin_api_and_ends(browser: Browser, served: Served) -> None:
    with visiting(browser, served, "victor") as visit:
        page = visit.page
        visit.go("/")
        page.get_by_role("link", name="victor").click()
        page.locator("#t-name").fill("report")
        page.get_by_role("button", name="Make token").click()
        found = re.search(r"gwt_[\w-]{43}", page.locator("main").inner_text())
        assert found
        bearer = {"Authorization": f"Bearer {found[0]}"}
        address = f"{served.address}/admin/v1/orgs"
        orgs = page.request.get(address, headers=bearer).json()["orgs"]
        assert [org["name"] for org in orgs] == ["contoso"]
        page.get_by_role("link", name="I have saved the token").click()
        assert found[0] not in page.content()
        page.get_by_role("button", name="Revoke the token report").click()
        assert "is revoked" in page.get_by_role("status").inner_text()
        assert page.request.get(address, headers=bearer).status == 401


def test_one_s_own_password_takes_the_current_one(browser: Browser, served: Served) -> None:
    with visiting(browser, served, "victor") as visit:
        page = visit.page
        visit.go("/operators/victor")
        page.get_by_text("Change your password").click()
        page.get_by_label("Current password").fill("something else")
        page.get_by_label("New password").fill("another correct horse")
        page.get_by_role("button", name="Set password").click()
        assert "current password" in page.get_by_role("alert").inner_text()


def test_a_viewer_sees_themselves_and_no_other_operator(browser: Browser, served: Served) -> None:
    with visiting(browser, served, "victor") as visit:
        visit.go("/operators")
        assert visit.page.locator("tbody tr").count() == 1
        assert visit.go("/operators/ada").status == 404
