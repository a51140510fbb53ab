"""Tests of application pages: secrets are shown once, and each button has its effect."""

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
    page.get_by_label("Owner").fill("Facilities")
    page.get_by_label("Ruleset", exact=True).select_option(label="staff-directory")
    page.locator("main form").get_by_role("button", name="Add app").click()
    secret = _secret(page)
    visit.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Copy the client secret").click()
    assert page.evaluate("navigator.clipboard.readText()") == secret

    page.get_by_role("link", name="I have saved the secret").click()
    assert page.locator("h1").inner_text() == "lunch-menu"
    assert "Facilities" in page.locator("main").inner_text()
    assert "Never seen" in page.locator("main").inner_text()
    assert secret not in page.content()
    with pytest.raises(Error, match="ERR_CACHE_MISS"):  # the browser would have to send the form again
        page.go_back()


def test_sending_the_form_twice_makes_no_second_app_and_no_second_secret(
    browser: Browser, served: Served
) -> None:
    with visiting(browser, served) as visit:
        page = visit.page
        visit.go(f"/apps/{served.seeded.apps['intranet'].app_id}")
        page.get_by_text("Replace the secret").click()
        page.get_by_role("button", name="Make new secret").click()
        first = _secret(page)
        page.reload()  # the browser sends the form again
        assert first not in page.content()
        assert not _SECRET.search(page.content())
        assert "the secret was replaced by another change" in page.get_by_role("alert").inner_text()


def test_an_app_has_all_its_credentials_in_one_table_where_they_are_added_and_removed(
    browser: Browser, served: Served
) -> None:
    with visiting(browser, served) as visit:
        page = visit.page
        visit.go(f"/apps/{served.seeded.apps['payroll'].app_id}")
        rows = page.locator("#credentials tbody tr")
        kinds = [text.split("\n")[0].strip() for text in rows.locator("td:first-child").all_inner_texts()]
        assert kinds == ["Secret 2", "Secret 1", "Federated"]
        assert "ends in" in rows.nth(1).inner_text()
        assert "repo:contoso/payroll-sync:environment:production" in rows.nth(2).inner_text()

        page.get_by_text("Add a federated credential").click()
        added = page.locator("form", has=page.get_by_role("button", name="Add federated credential"))
        added.get_by_label("Issuer").fill("http://issuer.example")
        added.get_by_label("Subject").fill("system:serviceaccount:payroll:sync")
        added.get_by_role("button").click()
        assert "must be a URL that begins with https://" in page.get_by_role("alert").inner_text()
        added.get_by_label("Issuer").fill("https://issuer.example")
        added.get_by_label("A token is accepted").select_option("untilEnd")
        added.get_by_role("button").click()
        assert "proves this app" in page.get_by_role("status").inner_text()
        assert rows.nth(3).get_by_text("never").count() == 2
        rows.nth(3).get_by_role("button", name="Remove federated").click()
        assert "refuse the credential" in page.get_by_role("status").inner_text()
        assert rows.count() == 3

        page.get_by_text("Add a public key").click()
        page.get_by_label("Public key").fill("-----BEGIN PRIVATE KEY-----\nMAA=\n-----END PRIVATE KEY-----")
        page.get_by_role("button", name="Add public key").click()
        assert "is a private key" in page.get_by_role("alert").inner_text()
        assert "MAA=" not in page.content()

        page.get_by_text("Connect the application").click()
        shown = page.locator("details.more .snippet h3").all_inner_texts()
        proofs = ("a client secret", "a federated credential")
        assert shown == [
            f"{what} with {kind}"
            for kind in proofs
            for what in ("Environment of any Azure SDK", "curl", "Python")
        ]
        names = page.get_by_role("region").evaluate_all(
            "all => all.map(one => one.ariaLabel || one.innerText)"
        )
        assert len(names) == len(set(names)), names


def test_an_app_is_disabled_enabled_and_evaluated_by_another_ruleset(
    browser: Browser, served: Served
) -> None:
    with visiting(browser, served) as visit:
        page = visit.page
        visit.go(f"/apps/{served.seeded.apps['device-audit'].app_id}")
        page.get_by_role("button", name="Disable app").click()
        assert "refuse device-audit" in page.get_by_role("status").inner_text()
        assert page.locator(".heading").get_by_text("disabled").is_visible()
        page.get_by_role("button", name="Enable app").click()
        assert "serve device-audit again" in page.get_by_role("status").inner_text()
        page.get_by_text("Replace the secret").click()
        page.get_by_label("The new secret ends").select_option("in 90 days")
        page.get_by_role("button", name="Make new secret").click()
        assert "The new secret ends" in page.locator("section.secret").inner_text()
        page.get_by_role("link", name="I have saved the secret").click()
        newest = page.locator("#credentials tbody tr").first.inner_text()
        assert "The newest secret" in newest
        assert "in 89 days" in newest or "in 90 days" in newest
        page.get_by_label("Ruleset of this app", exact=True).select_option("mail-archive")
        page.get_by_role("button", name="Change ruleset").click()
        assert "device-audit has the ruleset mail-archive" in page.get_by_role("status").inner_text()
        visit.go("/record?operation=app")
        lines = page.locator("tbody tr").all_inner_texts()
        done = ("app.bind", "app.rotate-secret", "app.enable", "app.disable")
        assert all(name in line for name, line in zip(done, lines, strict=False))
        assert "switched device-audit from device-inventory to mail-archive" in lines[0]
        assert "contoso" in lines[0]
        assert "device-audit" in lines[0], "an id is told as a name"


def test_an_editor_may_stop_an_app_and_no_more(browser: Browser, served: Served) -> None:
    with visiting(browser, served, "edith") as visit:
        app = served.seeded.apps["mail-archiver"]
        visit.go(f"/apps/{app.app_id}")
        assert visit.page.get_by_role("button", name="Disable app").is_visible()
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
        before = page.get_by_text("This app is evaluated").inner_text().rpartition(" ")[2]
        page.get_by_label("Shadow ruleset of this app").select_option("hr-sync")
        page.get_by_role("button", name="Start shadowing").click()
        assert "hr-sync shadows device-audit" in page.get_by_role("status").inner_text()
        where = (
            page.get_by_role("link", name="Requests that the shadow ruleset would block").get_attribute(
                "href"
            )
            or ""
        )
        assert visit.go(where).status == 200
        assert page.get_by_role("alert").count() == 0  # the filter is understood
        page.go_back()
        page.get_by_role("button", name="Switch to this ruleset").click()
        assert "device-audit has the ruleset hr-sync" in page.get_by_role("status").inner_text()
        page.get_by_label("Shadow ruleset of this app").select_option(before)
        page.get_by_role("button", name="Start shadowing").click()
        page.get_by_role("button", name="Stop shadowing").click()
        assert "has no shadow ruleset" in page.get_by_role("status").inner_text()
        page.get_by_label("Ruleset of this app", exact=True).select_option(before)
        page.get_by_role("button", name="Change ruleset").click()
