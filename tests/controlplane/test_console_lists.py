"""Tests of lists in the console: search, sorting and paging by links and a form, without a script."""

from __future__ import annotations

import html
import re

import pytest

from controlplane.store.pages import SORT_COLUMNS
from tests.controlplane.plane import Plane
from tests.controlplane.visitor import Visitor, visiting

NAMES = ("acme", "beta", "globex", "gamma", "umbrella")


async def _names(visitor: Visitor, path: str) -> list[str]:
    """Return the names in the first column of the list's table."""
    seen = await visitor.get(path)
    assert seen.status == 200
    return re.findall(r'<td data-label="\w+"[^>]*>(?:<span>)?<a class="name[^>]*>([^<]+)</a>', seen.text)


async def _link(visitor: Visitor, path: str, text: str) -> str:
    seen = await visitor.get(path)
    found = re.search(rf'<a [^>]*href="([^"]*)"[^>]*>(?:<svg.*?</svg>)?{text}', seen.text)
    assert found is not None, text
    return html.unescape(found[1])


@pytest.fixture
async def visitor_of(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> Plane:
    """Sign in to a console whose lists show two rows on each page.

    Each organisation has its own ruleset, application, proxy and operator.
    """
    monkeypatch.setattr("controlplane.console.lists._ROWS", 2)
    for name in NAMES:
        org_id = await plane.org(name)
        await plane.ruleset(name, name)
        await plane.inventory.add_app(name, name, name)
        await plane.proxy(name, name)
        assert org_id
    return plane


async def test_pages_follow_each_other_and_go_back_to_the_first(visitor_of: Plane) -> None:
    async with visiting(visitor_of) as visitor:
        for path in ("/orgs", "/rulesets", "/apps", "/proxies?sort=name"):
            first = await _names(visitor, path)
            assert first == sorted(NAMES)[:2]
            second = await _link(visitor, path, "Next page")
            assert await _names(visitor, second) == sorted(NAMES)[2:4]
            assert "<span>3–4 of 5</span>" in (await visitor.get(second)).text
            last = await _link(visitor, second, "Next page")
            assert await _names(visitor, last) == sorted(NAMES)[4:]
            shown = (await visitor.get(last)).text
            assert ("Next page" in shown, "<span>5–5 of 5</span>" in shown) == (False, True)
            assert await _names(visitor, await _link(visitor, last, "First page")) == first
            before = await _link(visitor, last, "Previous page")
            assert await _names(visitor, before) == sorted(NAMES)[2:4]
            assert "First page" not in (await visitor.get(before)).text
            assert await _link(visitor, before, "Previous page") == path


async def test_the_head_of_a_column_sorts_and_once_more_the_other_way(visitor_of: Plane) -> None:
    async with visiting(visitor_of) as visitor:
        down = await _link(visitor, "/apps", "App</a>")
        assert await _names(visitor, down) == sorted(NAMES, reverse=True)[:2]
        assert 'aria-sort="descending"' in (await visitor.get(down)).text
        up = await _link(visitor, down, "App</a>")
        assert await _names(visitor, up) == sorted(NAMES)[:2]
        assert 'aria-sort="ascending"' in (await visitor.get(up)).text
        following = await _link(visitor, down, "Next page")
        assert await _names(visitor, following) == sorted(NAMES, reverse=True)[2:4]


async def test_a_search_narrows_a_list_and_says_if_nothing_matches(visitor_of: Plane) -> None:
    async with visiting(visitor_of) as visitor:
        for path in ("/orgs", "/rulesets", "/apps", "/proxies"):
            assert await _names(visitor, f"{path}?search=EX") == ["globex"]
            nothing = f"{path}?search=nothing&sort=-name"
            assert "matches." in (await visitor.get(nothing)).text
            assert await _link(visitor, nothing, "Show all") == f"{path}?sort=-name"


async def test_the_counts_by_health_are_those_of_the_search(visitor_of: Plane) -> None:
    async with visiting(visitor_of) as visitor:
        for query, shown in (
            ("", ["All 5", "5 no heartbeat"]),
            ("?search=EX", ["All 1", "1 no heartbeat"]),
            ("?search=EX&health=ok", ["All 1", "1 no heartbeat", "0 ok"]),
            ("?search=nothing", ["All 0"]),
        ):
            seen = (await visitor.get(f"/proxies{query}")).text
            tabs = seen.partition('class="tabs healths"')[2].partition("</nav>")[0]
            assert sorted(re.findall(r">([^<>]+)</a>", tabs)) == sorted(shown)


async def test_every_column_that_a_list_sorts_by_is_shown(visitor_of: Plane) -> None:
    async with visiting(visitor_of) as visitor:
        for name in ("orgs", "rulesets", "apps", "operators"):
            heads = (await visitor.get(f"/{name}")).text.partition("<thead>")[2].partition("</thead>")[0]
            offered = re.findall(r'href="/\w+\?sort=-?(\w+)"', heads)
            assert sorted(offered) == sorted(SORT_COLUMNS[name])


async def test_an_app_can_be_added_from_the_list_of_all_organisations(visitor_of: Plane) -> None:
    async with visiting(visitor_of) as visitor:
        for path, asked_first in (
            ("/apps", '<select id="f-ruleset"'),
            ("/apps?org=acme", 'action="/apps?org=acme"'),
        ):
            seen = (await visitor.get(path)).text
            assert "Add app</a>" in seen.partition("<table")[0]
            assert asked_first in seen.partition('id="add"')[2]


async def test_the_operator_log_names_the_organisations_of_a_list(plane: Plane) -> None:
    org_id = await plane.org("acme")
    async with visiting(plane) as visitor:
        assert (await visitor.post("/proxies", {"name": "edge-1", "first": org_id})).status == 200
        seen = (await visitor.get("/record")).text
    assert '<span class="muted">orgs</span> acme</span>' in seen


async def test_a_search_keeps_the_sort_and_the_organisation(visitor_of: Plane) -> None:
    async with visiting(visitor_of) as visitor:
        seen = (await visitor.get("/proxies?org=acme&sort=-name&health=no+heartbeat&cursor=")).text
    form = re.search(r'<form class="find-in-list".*?</form>', seen, re.DOTALL)
    assert form is not None
    hidden = dict(re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', form[0]))
    assert hidden == {"org": "acme", "sort": "-name", "health": "no heartbeat"}


async def test_an_address_that_can_not_be_meant_is_refused(visitor_of: Plane) -> None:
    async with visiting(visitor_of) as visitor:
        for path, said in (("/apps?sort=secret", "unknown column"), ("/apps?cursor=x", "not the `next`")):
            seen = await visitor.get(path)
            assert seen.status == 400
            assert said in html.unescape(seen.text)
