"""Tests of proxy pages: health by age, charts and gaps, secrets shown once, and permissions."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Error, Page

from tests.console.conftest import Served, Visit, seeded_and_served, visiting

_SECRETS = re.compile(r"gw[kh]_[\w-]{43}")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Start a control plane for this module alone, because proxy health depends on the age of the data."""
    with seeded_and_served(tmp_path_factory.mktemp("proxies")) as served:
        yield served


def _row(page: Page, name: str) -> str:
    row = page.locator("table.cards tbody tr", has=page.get_by_role("link", name=name))
    return str(row.inner_text())


def test_the_list_evaluates_by_age_and_says_why(browser: Browser, served: Served) -> None:
    with visiting(browser, served) as visit:
        visit.go("/proxies")
        page = visit.page
        names = page.locator("tbody a.name").all_inner_texts()
        assert names[0] == "edge-lab"  # the worst health comes first
        assert "no heartbeat for 3 h" in _row(page, "edge-lab")
        assert "failed" in _row(page, "edge-lab")
        assert "degraded" in _row(page, "edge-oslo-2")
        # The rulesets of which the proxy has an old version
        assert "of 2 and 1 more" in _row(page, "edge-oslo-2")
        assert "no heartbeat" in _row(page, "edge-next")
        page.get_by_role("link", name="1 no heartbeat").click()
        assert page.locator("tbody a.name").all_inner_texts() == ["edge-next"]
        assert "health=no+heartbeat" in page.url


def test_one_proxy_shows_gaps_as_gaps_and_each_curve_as_a_table_too(browser: Browser, served: Served) -> None:
    with visiting(browser, served) as visit:
        visit.go("/proxies")
        visit.page.get_by_role("link", name="edge-oslo-2").click()
        page = visit.page
        gaps = page.locator("#gaps")
        assert gaps.get_by_role("img", name=re.compile("contoso: 7 missing")).count() == 1
        assert "400–406" in gaps.inner_text()
        assert page.locator("figure.chart .curves polyline").count() >= 5
        page.get_by_text("View as table").click()
        assert (
            page.get_by_role("region", name="Windows that the proxy reported").locator("tbody tr").count()
            == 60
        )
        page.locator("summary", has_text="Heartbeats").click()
        assert page.get_by_role("region", name="Heartbeats, newest first").locator("tbody tr").count() == 13


def test_numbers_that_were_given_out_twice_are_told(browser: Browser, served: Served) -> None:
    with visiting(browser, served) as visit:
        visit.go("/proxies/edge-amsterdam")
        assert "3 with reused numbers" in visit.page.locator("#gaps").inner_text()
        visit.go("/proxies/edge-oslo-2")
        assert "reused numbers" not in visit.page.locator("#gaps").inner_text()


def test_a_restart_is_told(browser: Browser, served: Served) -> None:
    with visiting(browser, served) as visit:
        visit.go("/proxies/edge-amsterdam")
        assert "proxy restarted 1 time" in visit.page.locator("summary", has_text="Heartbeats").inner_text()


def test_secrets_are_shown_once(browser: Browser, served: Served) -> None:
    with visiting(browser, served) as visit:
        page = visit.page
        secrets = _added(visit, "edge-first")
        page.get_by_role("link", name="I have saved both secrets").click()
        assert page.locator("h1").inner_text() == "edge-first"
        assert not secrets & set(_SECRETS.findall(page.content()))
        with pytest.raises(Error, match="ERR_CACHE_MISS"):  # the browser would have to send the form again
            page.go_back()


def test_secrets_are_replaced_by_who_writes_the_name(browser: Browser, served: Served) -> None:
    with visiting(browser, served) as visit:
        page = visit.page
        first = _added(visit, "edge-second")
        visit.go("/proxies/edge-second")
        _ask_for_new_secrets(page, "another")
        assert "Nothing was changed" in page.locator("main").inner_text()
        _ask_for_new_secrets(page, "edge-second")
        second = set(_SECRETS.findall(page.locator("main").inner_text()))
        assert len(second) == 2
        assert not first & second
        page.reload()  # the browser sends the form again
        assert not _SECRETS.findall(page.content())
        assert "replaced by another change" in page.get_by_role("alert").inner_text()


def _ask_for_new_secrets(page: Page, name: str) -> None:
    page.locator("summary", has_text="Replace the secrets").click()
    page.get_by_label("Name of this proxy").fill(name)
    page.get_by_role("button", name="Make new secrets").click()


def test_organisations_are_granted_and_revoked_and_a_proxy_is_cut_off(
    browser: Browser, served: Served
) -> None:
    with visiting(browser, served) as visit:
        _added(visit, "edge-third")
        visit.go("/proxies/edge-third")
        _grant_and_revoke(visit.page)
        _disable_and_enable(visit.page)


def _added(visit: Visit, name: str) -> set[str]:
    visit.go("/proxies")
    visit.page.get_by_label("Name").fill(name)
    visit.page.get_by_label("Serves").select_option("northwind")
    visit.page.get_by_role("button", name="Add proxy").click()
    found = set(_SECRETS.findall(visit.page.locator("main").inner_text()))
    assert {each[:4] for each in found} == {"gwk_", "gwh_"}
    return found


def _grant_and_revoke(page: Page) -> None:
    page.get_by_label("Organisation", exact=True).select_option("fabrikam")
    page.get_by_role("button", name="Grant access").click()
    assert "serves fabrikam from its next sync" in page.get_by_role("status").inner_text()
    page.get_by_role("button", name="Revoke fabrikam").click()
    assert "Events of fabrikam" in page.get_by_role("status").inner_text()
    assert page.get_by_role("button", name="Revoke fabrikam").count() == 0


def _disable_and_enable(page: Page) -> None:
    page.get_by_role("button", name="Disable proxy").click()
    assert "its calls are refused" in page.get_by_role("status").inner_text()
    assert "disabled" in page.locator(".heading").inner_text()
    page.get_by_role("button", name="Enable proxy").click()
    assert "accepted again" in page.get_by_role("status").inner_text()


def test_who_may_only_look_sees_no_button_and_nothing_of_other_organisations(
    browser: Browser, served: Served
) -> None:
    with visiting(browser, served, "victor") as visit:
        visit.go("/proxies")
        page = visit.page
        assert page.get_by_role("button", name="Add proxy").count() == 0
        assert set(page.locator("tbody a.name").all_inner_texts()) == {
            "edge-lab",
            "edge-oslo-1",
            "edge-oslo-2",
        }
        page.get_by_role("link", name="edge-oslo-2").click()
        main = page.locator("main").inner_text()
        assert "Figures over all organisations of the proxy are not shown" in main
        assert "fabrikam" not in main
        assert page.locator("main button:not([data-copy])").count() == 0
        assert visit.go("/proxies/edge-amsterdam").status == 404
