"""Tests of every console page in a large window, on a phone, in a dark theme, and with the keyboard only."""

from __future__ import annotations

from typing import Literal

import pytest
from playwright.sync_api import Browser, Page

from tests.console.axe import load_axe, violations
from tests.console.conftest import DESKTOP, PHONE, Served, Visit, visiting
from tests.console.looks import complaints

PAGES = (
    "/",
    "/?last=7d",
    "/?org=contoso",
    "/?org=adventure-works",
    "/apps",
    "/apps?org=contoso",
    "/apps?org=adventure-works",
    "/apps/{payroll}",
    "/delete?kind=app&thing={payroll}",
    "/delete?kind=org&thing=contoso",
    "/nowhere",
    "/operators",
    "/operators?org=contoso",
    "/operators/ada",
    "/operators/edith",
    "/orgs",
    "/proxies",
    "/proxies?health=degraded&org=contoso",
    "/proxies?search=edge&sort=-name",
    "/proxies/edge-oslo-2",
    "/proxies/edge-amsterdam",
    "/proxies/edge-next",
    "/delete?kind=proxy&thing=edge-next",
    "/enrolment",
    "/enrolment/edge-deployment",
    "/audit/integrity",
    "/audit/report",
    "/audit/report?org=contoso&mail=yes&directory=yes",
    "/sinks",
    "/sinks/siem",
    "/record",
    "/record?operation=app&from=-1h",
    "/record?from=soon",
    "/stops",
    "/proposals",
    "/stops?org=contoso",
    "/rulesets",
    "/rulesets?org=adventure-works",
    "/rulesets/new",
    "/rulesets/contoso/hr-sync",
    "/rulesets/contoso/hr-sync?version=1",
    "/rulesets/contoso/hr-sync/compare?old=1&new=3",
    "/rulesets/contoso/hr-sync/rollback?to=1",
    "/rulesets/contoso/hr-sync/edit?target=/v1.0/users",
)
UNLIKE_MOST = {"/nowhere": 404, "/record?from=soon": 422, "/search?q=verdict:nonsense": 422}
# Pages that list events. They have few events here, because axe examines each element.
OF_EVENTS = (
    "/search?q=verdict:nonsense",
    "/search?q=app:payrol",
    "/search?org=contoso&q=reason:hiddenProperty",
    "/live?q=app:payrol",
)
THEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
EVENTS = ".events .request a"
AGAIN = "meta[http-equiv=refresh]"  # the page of a slow report, which reloads itself


@pytest.mark.timeout(400)  # axe examines forty pages, while other test runs use the same processors
def test_every_page_can_be_read_and_used(browser: Browser, served: Served) -> None:
    with visiting(browser, served) as visit:
        visit.go("/orgs")
        found = {"the frame": faults_of_the_frame(visit.page)}
        for path in (*PAGES, *OF_EVENTS):
            response = visit.go(path.format(payroll=served.seeded.apps["payroll"].app_id))
            assert response.status == UNLIKE_MOST.get(path, 200), path
            assert " style=" not in response.text(), path
            visit.page.locator(AGAIN).wait_for(state="detached")
            found[path] = all_faults(visit.page)
        visit.go("/search?org=contoso&q=reason:hiddenProperty")
        visit.go(visit.page.locator(EVENTS).first.get_attribute("href") or "no event")
        found["an event"] = all_faults(visit.page)
        assert [f"{path}: {line}" for path, lines in found.items() for line in lines] == []
        # The browser itself reports a page that does not exist.
        noted = [line for line in visit.all_complaints() if "Failed to load resource" not in line]
        assert noted == []


def faults_of_the_frame(page: Page) -> list[str]:
    """Return the faults that axe finds in a whole page: both themes, each on a desktop and on a phone."""
    load_axe(page)
    found = []
    for width, height in (DESKTOP, PHONE):
        page.set_viewport_size({"width": width, "height": height})
        for theme in THEMES:
            page.emulate_media(color_scheme=theme)
            found += violations(page)
    return found


def all_faults(page: Page) -> list[str]:
    """Return the faults of a page. The accessibility checks leave out the frame around the page's content.

    The tool axe-core applies all its rules only once, in the size of a desktop. On a phone, axe-core applies
    only the rules that depend on the width. A theme of the console changes only colours.
    """
    page.set_viewport_size({"width": DESKTOP[0], "height": DESKTOP[1]})
    page.emulate_media(color_scheme="light")
    load_axe(page)
    found = violations(page, frame=False)
    page.emulate_media(color_scheme="dark")
    found += complaints(page)
    page.set_viewport_size({"width": PHONE[0], "height": PHONE[1]})
    return [*found, *violations(page, frame=False, of_the_width=True), *complaints(page, contrasts=False)]


@pytest.mark.parametrize("size", [DESKTOP, PHONE])
def test_the_sign_in_page_can_be_read_and_used(
    browser: Browser, served: Served, size: tuple[int, int]
) -> None:
    for dark in (False, True):
        with visiting(browser, served, None, size, dark=dark) as visit:
            visit.go("/login")
            assert complaints(visit.page) == []
            load_axe(visit.page)
            assert violations(visit.page) == []
            assert visit.all_complaints() == []


@pytest.mark.parametrize("path", ["/", "/orgs", "/operators/edith"])
def test_a_keyboard_reaches_everything_and_sees_where_it_is(visit: Visit, path: str) -> None:
    visit.go(path)
    reachable = visit.page.evaluate(
        """() => [...document.querySelectorAll("a[href], button, input:not([type=hidden]), select, summary")]
        .filter((e) => e.checkVisibility() && e.tabIndex >= 0 && !e.disabled).length"""
    )
    reached = set()
    for _ in range(reachable + 20):
        visit.page.keyboard.press("Tab")
        where, outlined = visit.page.evaluate(
            """() => {
                const e = document.activeElement;
                e.dataset.walked ??= String(Math.random());
                const outlined = getComputedStyle(e).outlineStyle !== "none";
                return [e === document.body ? "" : e.dataset.walked, outlined];
            }"""
        )
        if not where:
            break
        assert outlined, visit.page.evaluate("document.activeElement.outerHTML")
        reached.add(where)
    assert len(reached) >= reachable


def test_the_first_key_press_offers_to_skip_the_navigation(visit: Visit) -> None:
    visit.go("/orgs")
    visit.page.keyboard.press("Tab")
    assert visit.page.locator(":focus").inner_text() == "Skip to the content"
    visit.page.keyboard.press("Enter")
    assert visit.page.evaluate("document.activeElement.id") == "content"


def test_keys_find_and_go(visit: Visit) -> None:
    page = visit.page
    visit.go("/orgs")
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.name") == "q"
    page.keyboard.type("go")  # typed text has no effect
    assert page.url.endswith("/orgs")
    page.keyboard.press("Escape")
    page.locator("h1").click()
    page.keyboard.press("?")
    assert page.get_by_role("dialog", name="Keys").is_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("g")
    page.keyboard.press("o")
    page.wait_for_url(lambda url: url == f"{visit.served.address}/")


def test_the_chosen_organisation_goes_along(visit: Visit) -> None:
    visit.go("/?last=7d")
    visit.page.locator(".chooser:not(.zones) summary").click()
    visit.page.get_by_role("link", name="northwind", exact=True).click()
    assert visit.page.url == f"{visit.served.address}/?org=northwind&last=7d"
    visit.page.get_by_role("link", name="Organisations", exact=True).click()
    assert visit.page.url == f"{visit.served.address}/orgs?org=northwind"


def test_the_colours_one_chose_are_remembered(browser: Browser, served: Served) -> None:
    with visiting(browser, served, dark=True) as visit:
        visit.go("/")
        ground = "getComputedStyle(document.body).backgroundColor"
        dark = visit.page.evaluate(ground)
        visit.page.get_by_role("button", name="Light or dark").click()
        light = visit.page.evaluate(ground)
        assert light != dark
        visit.go("/orgs")
        assert visit.page.evaluate(ground) == light


def test_a_phone_has_the_navigation_behind_a_button(browser: Browser, served: Served) -> None:
    with visiting(browser, served, size=PHONE) as visit:
        visit.go("/")
        link = visit.page.get_by_role("link", name="Organisations", exact=True)
        assert not link.is_visible()
        visit.page.get_by_role("button", name="Menu").click()
        link.click()
        assert visit.page.url.endswith("/orgs")
        assert not link.is_visible()
        assert visit.all_complaints() == []
