"""Tests of the console's ruleset pages: read, try, publish and roll back, without loss of text."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from tests.console.conftest import DESKTOP, PHONE, Served, Visit, visiting
from tests.console.looks import complaints
from tests.console.seed import PASSWORD

RULES = """\
version: 1
name: {name}
default: block
rules:
  - id: people
    match: {{methods: [GET], path: [/v1.0/users]}}
    verdict: allow
"""
CASES = """\
cases:
  - request: GET /v1.0/users
    expect: {verdict: allow, rule: people}
  - request: GET /v1.0/groups
    expect: {verdict: allow}
"""


def rules(page: Page) -> Locator:
    return page.get_by_label("Rules", exact=False).and_(page.locator("textarea"))


def publish_new(visit: Visit, name: str) -> None:
    page = visit.page
    visit.go("/rulesets/new?org=contoso")
    rules(page).fill(RULES.format(name=name))
    page.get_by_role("button", name="Review and publish").click()
    page.get_by_label("Why").fill("To begin with")
    page.get_by_role("button", name="Publish version 1").click()
    expect(page.get_by_role("status")).to_have_text(
        f"Version 1 of {name} is published. Each proxy enforces it from its next sync."
    )


def change(page: Page, old: str, new: str) -> None:
    """Change the ruleset text as an operator would: select a part and overwrite it."""
    rules(page).evaluate(
        "(e, old) => { const at = e.value.indexOf(old); e.focus(); "
        "e.setSelectionRange(at, at + old.length); }",
        old,
    )
    page.keyboard.insert_text(new)


def forgive_refusals(visit: Visit) -> None:
    """Ignore the browser's error for a form that was refused."""
    visit.complaints[:] = [line for line in visit.complaints if "422 (Unprocessable" not in line]


@pytest.fixture(params=[True, False], ids=["with scripts", "without scripts"])
def any_visit(browser: Browser, served: Served, request: pytest.FixtureRequest) -> Iterator[Visit]:
    with visiting(browser, served, scripts=request.param) as visit:
        yield visit
        assert visit.complaints == []


def test_a_ruleset_is_read_by_its_rules(visit: Visit) -> None:
    visit.go("/rulesets")
    visit.page.get_by_role("link", name="hr-sync").click()
    visit.page.get_by_role("link", name="group-names").click()
    assert visit.page.url.endswith("#rule-group-names")
    begins = visit.page.locator("tr:has(:target)")
    assert begins.inner_text().split(None, 1)[1] == "- id: group-names"
    assert visit.page.get_by_role("link", name="payroll").is_visible()
    assert visit.page.get_by_role("link", name="edge-oslo-1").is_visible()


def test_from_a_new_ruleset_to_a_rollback(any_visit: Visit, request: pytest.FixtureRequest) -> None:
    visit, page = any_visit, any_visit.page
    name = re.sub("[^a-z]+", "-", request.node.name).strip("-")
    publish_new(visit, name)
    page.get_by_role("link", name="Edit", exact=True).click()
    rules(page).fill(RULES.format(name=name).replace("verdict: allow", "verdict: block"))
    page.get_by_role("button", name="Review and publish").click()
    assert page.get_by_role("heading", name="Difference from version 1, which is active").is_visible()
    assert page.locator("#publish .changes").inner_text().split() == ["changed", "people:", "verdict"]
    page.get_by_label("Why").fill("Nobody may")
    page.get_by_role("button", name="Publish version 2").click()
    expect(page.get_by_role("status")).to_have_text(
        f"Version 2 of {name} is published. Each proxy enforces it from its next sync."
    )
    assert "Nobody may" in page.locator(".history").inner_text()
    page.get_by_role("link", name="Roll back to version 1").click()
    assert page.locator(".diff .old").inner_text().split()[-1] == "block"
    expected = page.locator("input[name=expected]")
    # Simulates a page that was opened before another operator published
    expected.evaluate("field => field.value = 1")
    page.get_by_label("Why").fill("They may after all")
    page.get_by_role("button", name="Roll back to version 1").click()
    assert "version 2 is active, but version 1 was expected" in page.locator("main").inner_text()
    visit.complaints.clear()  # the browser reports the status as an error
    page.go_back()
    expected.evaluate("field => field.value = 2")
    page.get_by_label("Why").fill("They may after all")
    page.get_by_role("button", name="Roll back to version 1").click()
    expect(page.get_by_role("status")).to_contain_text("with the text of version 1")
    assert "The text of version 1." in page.locator(".history").inner_text()


def test_a_draft_is_tried_in_every_way_without_losing_a_word(any_visit: Visit) -> None:
    visit, page = any_visit, any_visit.page
    visit.go("/rulesets/contoso/device-inventory/edit")
    draft = RULES.format(name="device-inventory")
    rules(page).fill(draft)
    page.get_by_label("Path and query").fill("/v1.0/users?$top=5")
    page.get_by_role("button", name="Explain", exact=True).click()
    assert page.locator("#explained .verdict-line").inner_text().split() == ["allow", "by", "people."]
    page.get_by_text("Try cases").click()
    page.get_by_label("Cases", exact=True).fill(CASES)
    page.get_by_role("button", name="Run the cases").click()
    expect(page.locator("#tested")).to_contain_text("1 of 2 cases")
    page.get_by_text("Compare with the active version").click()
    page.get_by_role("button", name="Compare", exact=True).click()
    expect(page.locator("#compared .changes")).to_contain_text("added people")
    page.get_by_role("button", name="Check", exact=True).click()
    expect(page.locator("#checked")).to_contain_text("1 rule in the ruleset named device-inventory")
    assert rules(page).input_value() == draft
    assert page.get_by_label("Cases", exact=True).input_value() == CASES
    assert page.get_by_label("Path and query").input_value() == "/v1.0/users?$top=5"


def test_open_routes_are_listed_under_the_text(any_visit: Visit) -> None:
    visit, page = any_visit, any_visit.page
    visit.go("/rulesets/contoso/device-inventory/edit")
    block = RULES.format(name="device-inventory").replace("allow", "block")
    rules(page).fill(block.replace("default: block", "default: allow"))
    page.get_by_role("button", name="List open routes").click()
    expect(page.locator("#routes")).to_contain_text("GET /v1.0/devices/id1/registeredOwners")
    expect(page.locator("#routes")).to_contain_text("match: {resource: [user]}")
    assert visit.complaints == []


def test_open_routes_without_a_schema_are_those_that_a_path_shows(any_visit: Visit) -> None:
    visit, page = any_visit, any_visit.page
    visit.go("/rulesets/fabrikam/reporting/edit")
    block = RULES.format(name="reporting").replace("allow", "block")
    rules(page).fill(block.replace("default: block", "default: allow"))
    page.get_by_role("button", name="List open routes").click()
    expect(page.locator("#routes")).to_contain_text("GET /beta/users")
    expect(page.locator("#routes")).to_contain_text("The organisation has no schema of the upstream")
    assert visit.complaints == []


def test_mistakes_show_while_one_types_and_lead_to_their_places(visit: Visit) -> None:
    page = visit.page
    visit.go("/rulesets/contoso/hr-sync/edit")
    change(page, "verdict: block", "verdict: blocked")
    place = page.locator("#checked .findings.bad a")
    expect(place).to_have_text("25:14")
    assert page.locator(".gutter .bad").inner_text() == "25"
    place.click()
    selected = "e => e.value.slice(e.selectionStart, e.selectionEnd)"
    assert rules(page).evaluate(selected) == "blocked"
    page.keyboard.insert_text("block")
    expect(page.locator("#checked")).to_contain_text("valid")
    assert page.locator(".gutter .bad").count() == 0


def test_words_are_completed_by_the_keyboard_and_the_text_has_colours(visit: Visit) -> None:
    page = visit.page
    visit.go("/rulesets/contoso/hr-sync/edit")
    text, options = rules(page), page.get_by_role("listbox").get_by_role("option")
    text.fill("version: 1\n# it's late\nname: a\nrules:\n  - id: b\n    verdict: \n" + "#\n" * 80)
    text.evaluate("area => { area.setSelectionRange(61, 61); area.scrollTop = 0; }")
    expect(page.locator(".paint .y-key").first).to_have_text("version")
    expect(page.locator(".paint .y-comment").first).to_have_text("# it's late")
    page.keyboard.press("Control+Space")
    expect(options).to_have_text(["allow", "filter", "block", "log_only"], timeout=20_000)
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    chosen = page.locator("#completions [aria-selected=true]")
    expect(chosen).to_have_text("filter")
    assert text.get_attribute("aria-activedescendant") == chosen.get_attribute("id")
    page.keyboard.press("Tab")
    assert "    verdict: filter\n" in text.input_value()
    page.keyboard.press("Enter")
    page.keyboard.type("tra")
    expect(options).to_have_text(["transforms"], timeout=20_000)
    page.keyboard.press("Escape")
    expect(page.locator("#completions")).to_be_hidden()
    text.evaluate("area => { area.scrollTop = area.scrollHeight; }")
    expect(page.locator(".gutter").first.get_by_text("88", exact=True)).to_be_visible()
    places = page.evaluate(
        "['.gutter > div', '.paint > div'].map(each =>"
        " document.querySelector(each).lastElementChild.getBoundingClientRect().bottom)"
    )
    assert abs(places[0] - places[1]) < 1, "a line and its number are level when scrolled to the end"
    assert text.evaluate("area => area.clientWidth") > 530


def test_tab_indents_and_escape_lets_a_keyboard_leave(visit: Visit) -> None:
    page = visit.page
    page.clock.install()
    sent: list[str] = []
    page.on("request", lambda request: sent.append(request.post_data or ""))
    visit.go("/rulesets/new")
    area = rules(page)
    area.fill("rules:\n- id: a")
    area.press("Home")
    area.press("Tab")
    assert area.input_value() == "rules:\n  - id: a"
    area.press("Tab")
    page.clock.run_for(1000)
    assert not any("do=complete" in each for each in sent), "a list of completions would take the next Tab"
    area.press("Tab")
    assert area.input_value() == "rules:\n      - id: a"
    area.press("Shift+Tab")
    area.press("Shift+Tab")
    assert area.input_value() == "rules:\n  - id: a"
    area.press("Shift+Tab")
    assert area.input_value() == "rules:\n- id: a"
    area.press("Control+z")
    assert area.input_value() == "rules:\n  - id: a"
    area.press("End")
    area.press("Enter")
    area.type("verdict: block")
    assert area.input_value() == "rules:\n  - id: a\n    verdict: block"
    area.press("Escape")
    area.press("Tab")
    assert page.evaluate("document.activeElement.tagName") == "BUTTON"


def test_a_draft_of_an_older_version_is_not_published_unawares(
    browser: Browser, served: Served, visit: Visit
) -> None:
    page = visit.page
    publish_new(visit, "contested")
    page.wait_for_function("localStorage.length == 0")  # the browser removed the draft after it was published
    page.get_by_role("link", name="Edit", exact=True).click()
    change(page, "/v1.0/users", "/v1.0/groups")
    with visiting(browser, served, "edith") as other:
        other.go("/rulesets/contoso/contested/edit")
        change(other.page, "verdict: allow", "verdict: block")
        other.page.get_by_role("button", name="Review and publish").click()
        other.page.get_by_label("Why").fill("Too open")
        other.page.get_by_role("button", name="Publish version 2").click()
        expect(other.page.get_by_role("status")).to_be_visible()
    page.get_by_role("button", name="Review and publish").click()
    expect(page.get_by_role("alert").filter(has_text="version 2 is active now")).to_be_visible()
    page.get_by_label("Why").fill("Groups instead")
    page.get_by_role("button", name="Publish version 3").click()
    expect(page.get_by_role("alert").filter(has_text="Not published: version 2 is active")).to_be_visible()
    assert "/v1.0/groups" in rules(page).input_value()
    page.get_by_label("Publish anyway, and replace version 2").check()
    page.get_by_role("button", name="Publish version 3").click()
    expect(page.get_by_role("status")).to_have_text(
        "Version 3 of contested is published. Each proxy enforces it from its next sync."
    )
    forgive_refusals(visit)


def test_the_text_is_there_again_after_the_session_ended(visit: Visit) -> None:
    page = visit.page
    visit.go("/rulesets/contoso/mail-archive/edit")
    change(page, "verdict: allow", "verdict: log_only")
    expect(page.locator("#checked")).to_contain_text("valid")
    visit.context.clear_cookies()
    page.get_by_role("button", name="Review and publish").click()
    page.wait_for_url(re.compile("/login"))
    page.get_by_label("Name").fill("ada")
    page.get_by_label("Password").fill(PASSWORD)
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile("/edit"))
    assert "verdict: log_only" in rules(page).input_value()
    page.get_by_role("button", name="Discard this draft").click()
    assert "verdict: log_only" not in rules(page).input_value()
    assert page.evaluate("localStorage.length") == 0


def test_who_may_only_look_tries_changes_and_publishes_none(browser: Browser, served: Served) -> None:
    with visiting(browser, served, "victor") as visit:
        visit.go("/rulesets/contoso/hr-sync")
        assert visit.page.get_by_role("link", name="Roll back to version").count() == 0
        visit.page.get_by_role("link", name="Try changes").click()
        expect(visit.page.locator("#checked")).to_contain_text("valid")
        assert visit.page.get_by_role("button", name="Review and publish").count() == 0
        token = visit.page.locator(".editor input[name=csrf]").input_value()
        form = {
            "csrf": token,
            "yaml": RULES.format(name="hr-sync"),
            "do": "publish",
            "reviewed": "3",
            "base": "3",
        }
        response = visit.context.request.post(
            f"{served.address}/rulesets/contoso/hr-sync/edit", form=form, headers={"Origin": served.address}
        )
        assert response.status == 422
        assert "This operation needs the role editor" in response.text()
        assert visit.go("/rulesets/northwind/staff-directory").status == 404


def test_what_is_typed_is_never_markup(visit: Visit) -> None:
    page = visit.page
    visit.go("/rulesets/new?org=contoso")
    nasty = "</textarea><script>window.broken = 1</script>"
    rules(page).fill(f"name: '{nasty}'\n{nasty}: 1\n")
    page.get_by_role("button", name="Review and publish").click()
    expect(page.get_by_role("alert").first).to_be_visible()
    assert nasty in rules(page).input_value()
    assert page.evaluate("window.broken") is None
    forgive_refusals(visit)


def test_a_replay_tells_what_would_change_and_leads_to_the_events(any_visit: Visit) -> None:
    visit, page = any_visit, any_visit.page
    visit.go("/rulesets/contoso/hr-sync/edit")
    text = rules(page).input_value()
    rules(page).fill(text.replace("[user, user.manager]", "[user.manager]"))
    page.get_by_text("Replay recorded traffic").click()
    page.get_by_role("button", name="Replay", exact=True).click()
    group = page.locator("#replayed .groups > li").first
    expect(group).to_contain_text("newly blocked")
    expect(group).to_contain_text("requests of payroll")
    expect(page.locator("#replayed")).to_contain_text("finished")
    assert (
        page.locator("#replayed").get_by_text("mail-archiver").count() == 0
    )  # evaluated against other rules
    link = group.get_by_role("link", name="View the events").get_attribute("href")
    assert link is not None
    visit.go(link)
    expect(page.locator("main")).to_contain_text("hide-contacts")


def test_a_review_tells_what_would_have_become_of_the_last_day_and_cuts_no_line(visit: Visit) -> None:
    page = visit.page
    visit.go("/rulesets/contoso/hr-sync/edit")
    line = "# " + "a remark that is longer than any column of a page, " * 8
    change(page, "default: block", f"default: allow {line}")
    page.get_by_role("button", name="Review and publish").click()
    review = page.locator("#publish")
    expect(review).to_contain_text("would be allowed that are blocked today (last 24 h)")
    expect(review).to_contain_text("Replayed")
    assert review.locator("del").inner_text() == "block"
    assert review.locator("ins").inner_text().startswith("allow # a remark")
    link = review.get_by_role("link", name="View").first.get_attribute("href") or ""
    for width in (1280, 390):
        page.set_viewport_size({"width": width, "height": 900})
        wide = review.locator(".diff").evaluate_all("all => all.map(e => e.scrollWidth - e.clientWidth)")
        assert max(wide) <= 0, f"a line is cut at {width} px"
        assert complaints(page) == [], width
    visit.go(link)
    expect(page.locator("main")).to_contain_text("default")


def test_what_an_app_asked_for_becomes_a_draft(any_visit: Visit) -> None:
    visit, page = any_visit, any_visit.page
    app = visit.served.seeded.apps["power-bi"]
    visit.go(f"/rulesets/new?suggest_app={app.app_id}")
    page.get_by_role("button", name="Suggest rules").click()
    expect(page.locator(".outline li").first).to_be_visible()
    assert page.get_by_label("Organisation").input_value() == "fabrikam"
    assert re.match(r"# Suggested from [\d,]+ requests? of power-bi, ", rules(page).input_value())
    page.get_by_role("button", name="Check", exact=True).click()
    expect(page.locator("#checked")).to_contain_text("named power-bi")


@pytest.mark.parametrize(("size", "dark"), [(DESKTOP, False), (PHONE, True)])
def test_what_is_tried_can_be_read_and_used(
    browser: Browser, served: Served, size: tuple[int, int], dark: bool
) -> None:
    with visiting(browser, served, size=size, dark=dark) as visit:
        page = visit.page
        visit.go("/rulesets/contoso/hr-sync/edit?target=/v1.0/users/ada")
        expect(page.locator("#explained .tried")).to_be_visible()
        expect(page.locator("#checked")).to_contain_text("valid")
        assert complaints(page) == []
        change(page, "default: block", "default: allow")
        page.get_by_text("Try cases").click()
        page.get_by_label("Cases", exact=True).fill(CASES)
        page.get_by_role("button", name="Run the cases").click()
        expect(page.locator("#tested .findings")).to_be_visible()
        page.get_by_role("button", name="Review and publish").click()
        expect(page.locator("#publish .diff").first).to_be_visible()
        expect(page.locator("#replayed .groups")).to_be_visible()
        assert complaints(page) == []
        change(page, "verdict: block", "verdict: blocked")
        expect(page.locator("#checked .findings.bad")).to_be_visible()
        assert complaints(page) == []
        assert visit.all_complaints() == []


def test_a_sign_in_in_another_tab_is_enough_to_go_on(visit: Visit) -> None:
    page = visit.page
    visit.go("/rulesets/contoso/hr-sync/edit")
    expect(page.locator("#checked")).to_contain_text("valid")
    visit.context.clear_cookies()
    change(page, "default: block", "default: allow")
    expect(page.get_by_role("alert").filter(has_text="You are signed out")).to_be_visible()
    other = visit.context.new_page()
    other.goto(f"{visit.served.address}/login")
    other.get_by_label("Name").fill("ada")
    other.get_by_label("Password").fill(PASSWORD)
    other.keyboard.press("Enter")
    other.wait_for_url(re.compile("/$"))
    page.get_by_label("Path and query").fill("/v1.0/organization")
    page.get_by_role("button", name="Explain", exact=True).click()
    expect(page.locator("#explained .verdict-line")).to_contain_text("allow")
    expect(page.get_by_role("alert").filter(has_text="You are signed out")).to_be_hidden()
    visit.complaints[:] = [line for line in visit.complaints if "403 (Forbidden)" not in line]
