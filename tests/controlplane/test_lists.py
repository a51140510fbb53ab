"""Lists: searched, sorted and read page by page, while rows come and go."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

import pytest

from controlplane.live_tail import LiveTail
from controlplane.operations import apps, fleet, operators, orgs, rulesets
from controlplane.operations.actor import EVERY_ORG, Actor, local_actor
from controlplane.operations.context import OperationContext
from controlplane.operations.operation import InvalidRequest
from controlplane.settings import read_settings
from controlplane.store.interface import App, Operator, Org, Proxy, Ruleset
from controlplane.store.pages import HEALTH_ORDER, SORT_COLUMNS, ListName
from controlplane.store.sqlite import SqliteStore
from tests.controlplane.plane import (
    HEARTBEAT,
    RULESET,
    FakeClock,
    Plane,
    ProxyClient,
    batch,
    context_of,
    write_settings,
)
from tests.controlplane.test_admin import call, operator
from tests.controlplane.test_reports import GOOD_HEARTBEAT

ADA = local_actor("ada")
OF_ACME = Actor("eve", {"org-acme": "viewer"})
NAMES = ("edge", "Edge-2", "inner_1", "inner%1", "inner!1", "outer")
Ask = Callable[..., Awaitable[Any]]


@pytest.fixture
async def context(tmp_path: Path, clock: FakeClock) -> AsyncIterator[OperationContext]:
    """Operations on a store of its own, without a server."""

    async def absent() -> NoReturn:
        raise AssertionError("no list needs it")

    settings = read_settings(write_settings(tmp_path))
    store = await SqliteStore.open(settings.store.path, clock)
    await _fill(store)
    yield OperationContext(settings, store, clock, absent, absent, LiveTail(store))
    await store.close()


async def _fill(store: SqliteStore) -> None:
    """Two organisations. Each name of NAMES is that of a proxy, an app, a ruleset and an operator."""
    for at, org in enumerate(("acme", "globex")):
        await store.add_org(Org(f"org-{org}", org, "base", 5 - at))
    for at, name in enumerate(NAMES):
        org_id = f"org-{('acme', 'globex')[at % 2]}"
        ids = {each: f"{each}-{9 - at}" for each in ("ruleset", "app", "proxy", "operator")}
        await store.apply_ruleset(
            Ruleset(ids["ruleset"], org_id, name, 1, at % 3, 1), "version: 1\n", None, None
        )
        await store.add_app(
            App(ids["app"], org_id, name, f"client-{at}", ids["ruleset"], name, True, at % 2, ())
        )
        both = ("org-acme", "org-globex") if at == 0 else (org_id,)
        await store.add_proxy(Proxy(ids["proxy"], name, True, at % 2, None, 1, both), name.encode(), b"")
        await store.add_operator(Operator(ids["operator"], name, None, True, at % 2, {org_id: "viewer"}))


LISTS: Mapping[ListName, tuple[Any, Any, str, str]] = {
    "orgs": (orgs.list_all, orgs.ListOrgs, "orgs", "org_id"),
    "proxies": (fleet.list_all, fleet.ListFleet, "proxies", "proxy_id"),
    "rulesets": (rulesets.list_all, rulesets.ListRulesets, "rulesets", "ruleset_id"),
    "apps": (apps.list_all, apps.ListApps, "apps", "app_id"),
    "operators": (operators.list_all, operators.ListOperators, "operators", "operator_id"),
}


async def _found(context: OperationContext, name: ListName, actor: Actor = ADA, **members: Any) -> Any:
    operation, request, _, _ = LISTS[name]
    return await operation.perform(context, actor, request(**members))


async def _ids(context: OperationContext, name: ListName, actor: Actor = ADA, **members: Any) -> list[str]:
    _, _, rows, row_id = LISTS[name]
    found = await _found(context, name, actor, **members)
    return [getattr(each, row_id) for each in getattr(found, rows)]


async def _pages(context: OperationContext, name: ListName, **members: Any) -> list[list[str]]:
    """The ids of each page."""
    pages, cursor = [], None
    while True:
        found = await _found(context, name, cursor=cursor, **members)
        pages.append([getattr(each, LISTS[name][3]) for each in getattr(found, LISTS[name][2])])
        if found.next is None:
            return pages
        cursor = found.next


@pytest.mark.parametrize("name", LISTS)
async def test_the_pages_of_a_list_have_each_row_once_in_order(
    context: OperationContext, name: ListName
) -> None:
    """By each column, in both directions; equal values are told apart by name."""
    whole = await _ids(context, name)
    for sort in SORT_COLUMNS[name]:
        upward = await _pages(context, name, sort=sort, limit=2)
        assert {len(page) for page in upward[:-1]} <= {2}
        flat = [each for page in upward for each in page]
        assert sorted(flat) == sorted(whole)
        assert [flat] == await _pages(context, name, sort=sort, limit=200)
        downward = await _pages(context, name, sort=f"-{sort}", limit=2)
        assert [each for page in downward for each in page] == flat[::-1]
        assert (await _found(context, name, sort=sort, limit=1)).total == len(whole)
    assert [each for page in await _pages(context, name, limit=2) for each in page] == whole


async def test_a_list_is_sorted_by_what_its_rows_show(context: OperationContext) -> None:
    by_rules = (await _found(context, "rulesets", sort="-rules")).rulesets
    assert [each.rules for each in by_rules] == [2, 2, 1, 1, 0, 0]
    assert [each.name for each in by_rules[:2]] == ["outer", "inner_1"]
    by_org = (await _found(context, "apps", sort="org")).apps
    assert [each.org_id for each in by_org] == ["org-acme"] * 3 + ["org-globex"] * 3
    newest = (await _found(context, "orgs", sort="-createdAt")).orgs
    assert [each.name for each in newest] == ["acme", "globex"]
    names = [each.name for each in (await _found(context, "operators", sort="name")).operators]
    assert names == sorted(NAMES, key=str.lower)


async def test_rows_that_come_and_go_between_two_pages_move_no_other_row(context: OperationContext) -> None:
    first = await _found(context, "orgs", limit=1)
    assert [each.name for each in first.orgs] == ["acme"]
    await context.store.add_org(Org("org-aaa", "aaa", "base", 1))  # before the place of the cursor
    await context.store.add_org(Org("org-bcd", "bcd", "base", 1))  # after it
    following = await _found(context, "orgs", limit=5, cursor=first.next)
    assert [each.name for each in following.orgs] == ["bcd", "globex"]
    assert (following.next, following.total) == (None, 4)


@pytest.mark.parametrize("name", [each for each in LISTS if each != "orgs"])
@pytest.mark.parametrize(
    ("search", "found"),
    [
        ("EDGE", {"edge", "Edge-2"}),
        ("dge-", {"Edge-2"}),
        ("_1", {"inner_1"}),  # no wildcard
        ("%", {"inner%1"}),
        ("!", {"inner!1"}),
        ("nothing", set()),
    ],
)
async def test_a_search_finds_part_of_a_name(
    context: OperationContext, name: ListName, search: str, found: set[str]
) -> None:
    result = await _found(context, name, search=search)
    assert {each.name for each in getattr(result, LISTS[name][2])} == found
    assert result.total == len(found)


@pytest.mark.parametrize("name", LISTS)
async def test_a_search_finds_a_whole_id(context: OperationContext, name: ListName) -> None:
    one = (await _ids(context, name))[0]
    assert await _ids(context, name, search=one) == [one]
    assert await _ids(context, name, search=one[:-1]) == []
    assert await _ids(context, "apps", search="client-3") == ["app-6"]


async def test_a_list_has_the_rows_that_one_may_look_at(context: OperationContext) -> None:
    for name, ids in (
        ("orgs", ["org-acme"]),
        ("rulesets", ["ruleset-9", "ruleset-5", "ruleset-7"]),
        ("apps", ["app-9", "app-5", "app-7"]),
        ("proxies", ["proxy-9", "proxy-5", "proxy-7"]),
    ):
        assert await _ids(context, name, OF_ACME) == ids  # type: ignore[arg-type]
        page = await _found(context, name, OF_ACME, limit=2)  # type: ignore[arg-type]
        assert page.total == len(ids)
    assert await _ids(context, "proxies", org="globex") == ["proxy-8", "proxy-9", "proxy-6", "proxy-4"]
    nobody = Actor("noel", {})
    assert [await _ids(context, name, nobody) for name in LISTS] == [[]] * 5


async def test_operators_are_listed_for_admins_and_for_themselves(context: OperationContext) -> None:
    itself, admin = Actor("EDGE", {"org-acme": "viewer"}), Actor("abe", {"org-globex": "admin"})
    assert await _ids(context, "operators", itself) == ["operator-9"]
    assert await _ids(context, "operators", admin) == ["operator-8", "operator-6", "operator-4"]
    await context.store.set_role("operator-9", EVERY_ORG, "viewer")
    assert "operator-9" in await _ids(context, "operators", admin)
    there = await _ids(context, "operators", org="globex")
    assert there == ["operator-9", "operator-8", "operator-6", "operator-4"]


@pytest.mark.parametrize(
    ("members", "message"),
    [
        (
            {"sort": "secret"},
            "sort: no column 'secret': sort by name, org, ruleset, createdAt, or by one with",
        ),
        ({"cursor": "x"}, "cursor: not the `next` of a page before"),
        ({"cursor": "é"}, "cursor: not the `next` of a page before"),
        ({"search": "a\0"}, "search: has a character that no name and no id has"),
        ({"search": "\ud800"}, "search: has a character that no name and no id has"),
    ],
)
async def test_what_can_not_be_meant_is_refused(
    context: OperationContext, members: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message):
        await _found(context, "apps", **members)


async def test_a_cursor_goes_with_the_sort_of_its_page(context: OperationContext) -> None:
    cursor = (await _found(context, "apps", sort="createdAt", limit=1)).next
    for sort in (None, "org", "ruleset"):
        with pytest.raises(InvalidRequest, match="with the same sort"):
            await _found(context, "apps", sort=sort, cursor=cursor)


async def test_a_request_without_a_page_gets_every_row_and_nothing_else(plane: Plane) -> None:
    await _fill(plane.store)
    token = await operator(plane, "ada", {"*": "viewer"})
    paths = {"/orgs": "orgs", "/apps": "apps", "/rulesets": "rulesets", "/fleet": "proxies"}
    for path, name in paths.items():
        whole = (await call(plane, token, "GET", path)).json
        assert list(whole) == [name]
        page = (await call(plane, token, "GET", f"{path}?limit=1")).json
        assert page == {name: whole[name][:1], "next": page["next"], "total": len(whole[name])}
        rest = (await call(plane, token, "GET", f"{path}?limit=200&cursor={page['next']}")).json
        assert rest == {name: whole[name][1:], "next": None, "total": len(whole[name])}
    for limit in (0, 201, "many"):
        assert (await call(plane, token, "GET", f"/apps?limit={limit}")).status == 400


# Health in the store, and health as it is assessed


async def _beat(proxy: ProxyClient, **members: Any) -> None:
    body = {**GOOD_HEARTBEAT, "checks": {}, "oldestPendingSeconds": 0, **members}
    assert (await proxy.send(HEARTBEAT, json.dumps(body).encode())).status == 200


async def _fleet_of_every_health(plane: Plane) -> None:
    """Proxies on both sides of each bound of health, by an interval of 30 s."""
    acme = await plane.org("acme")
    ruleset_id = await plane.ruleset("acme", "hr")
    names = (
        "never", "lost", "stale", "stale-failed", "late", "failed", "degraded", "unconfirmed", "unsent",
        "skewed", "behind", "just-behind", "gap", "reused", "well", "off", "off-gap",
    )  # fmt: skip
    made = {name: await plane.proxy(name, "acme") for name in names}
    await _beat(made["lost"])
    plane.clock.advance(seconds=210)
    await _beat(made["stale"])
    await _beat(made["stale-failed"], checks={"upstream": {"status": "failed"}})
    await _beat(made["behind"], rulesets={ruleset_id: 1})
    await plane.ruleset("acme", "hr", RULESET.format(name="hr") + "# 2\n")
    plane.clock.advance(seconds=1)
    await _beat(made["late"])
    plane.clock.advance(seconds=90)
    await _beat(made["behind"], rulesets={ruleset_id: 1})
    await _beat(made["just-behind"], rulesets={ruleset_id: 2})
    await plane.ruleset("acme", "hr", RULESET.format(name="hr") + "# 3\n")
    await _beat(made["failed"], checks={"upstream": {"status": "failed"}, "sync": {"status": "degraded"}})
    await _beat(made["degraded"], checks={"upstream": {"status": "degraded"}})
    await _beat(made["unconfirmed"], syncAgeSeconds=91)
    await _beat(made["unsent"], oldestPendingSeconds=301)
    timestamp = str(plane.clock.wall_ms() // 1000 + 60)
    assert (await made["skewed"].send(HEARTBEAT, b"{}", timestamp=timestamp)).status == 200
    for name in ("gap", "off-gap"):
        await made[name].audit(batch(name, acme, [1, 9]))
    await made["reused"].audit(batch("r", acme, [1]))
    await made["reused"].audit(batch("r", acme, [1, 2]))
    for name in ("gap", "reused", "well", "off", "off-gap"):
        await _beat(made[name], rulesets={ruleset_id: 3})
    for name in ("off", "off-gap"):
        await plane.store.set_proxy_enabled(made[name].proxy_id, False)


async def test_the_store_chooses_and_counts_by_health_as_it_is_assessed(plane: Plane) -> None:
    await _fleet_of_every_health(plane)
    context = context_of(plane)
    for seconds in (0, 1, 31, 209):
        plane.clock.advance(seconds=seconds)
        listed = (await _found(context, "proxies")).proxies
        assessed = {each.name: each.health if each.enabled else "disabled" for each in listed}
        counts = await fleet.count.perform(context, ADA, fleet.CountFleet())
        for health in HEALTH_ORDER:
            chosen = (await _found(context, "proxies", health=health, limit=200)).proxies
            assert {each.name for each in chosen} == {n for n, h in assessed.items() if h == health}
            assert getattr(counts, health.replace(" ", "_")) == len(chosen)
        assert counts.total == len(listed)
        worst_first = (await _found(context, "proxies", sort="health", limit=200)).proxies
        places = [HEALTH_ORDER.index(assessed[each.name]) for each in worst_first]
        assert places == sorted(places)
        looked_at = {each.name for each in (await _found(context, "proxies", needs_look=True)).proxies}
        assert looked_at == {n for n, h in assessed.items() if h not in ("ok", "disabled")} | {"off-gap"}


async def test_the_fleet_of_that_test_has_proxies_of_every_health(plane: Plane) -> None:
    await _fleet_of_every_health(plane)
    counts = await fleet.count.perform(context_of(plane), ADA, fleet.CountFleet())
    assert min(getattr(counts, each.replace(" ", "_")) for each in HEALTH_ORDER) > 0


async def test_a_proxy_is_behind_for_what_it_serves_alone(plane: Plane, proxy: ProxyClient) -> None:
    ruleset_id = await plane.ruleset("acme", "hr")
    await _beat(proxy, rulesets={ruleset_id: 1, "forged": 7})
    await plane.ruleset("acme", "hr", RULESET.format(name="hr") + "# 2\n")
    plane.clock.advance(seconds=91)
    await _beat(proxy, rulesets={ruleset_id: 1})
    context = context_of(plane)
    assert (await fleet.count.perform(context, ADA, fleet.CountFleet())).degraded == 1
    await _beat(proxy, rulesets={ruleset_id: 2})
    assert (await fleet.count.perform(context, ADA, fleet.CountFleet())).ok == 1
    await _beat(proxy, rulesets={ruleset_id: 1})
    (acme,) = await plane.store.find_orgs("acme")
    await plane.store.revoke(proxy.proxy_id, acme.org_id)
    assert (await fleet.count.perform(context, ADA, fleet.CountFleet())).ok == 1
