"""Tests of lists in the admin API: search, sorting, and paging while rows are added and removed."""

from __future__ import annotations

import base64
import json
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import pytest

from controlplane.fleet_health import said_by
from controlplane.live_tail import LiveTail
from controlplane.operations import apps, fleet, operators, orgs, rulesets
from controlplane.operations.actor import EVERY_ORG, Actor, local_actor
from controlplane.operations.context import OperationContext
from controlplane.operations.operation import InvalidRequest, validation_problem
from controlplane.reports import Heartbeat
from controlplane.settings import read_settings
from controlplane.store.interface import App, NewBatch, Operator, Org, Proxy, RateLimits, Ruleset
from controlplane.store.pages import HEALTH_ORDER, SORT_COLUMNS, ListName
from controlplane.store.sql_store import SqlStore
from tests.controlplane.plane import (
    HEARTBEAT,
    RULESET,
    FakeClock,
    Plane,
    ProxyClient,
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
def empty(tmp_path: Path, clock: FakeClock, either_store: SqlStore) -> OperationContext:
    """Return a context of operations on an empty store, without a server."""

    async def absent() -> NoReturn:
        raise AssertionError("no list needs it")

    settings = read_settings(write_settings(tmp_path))
    return OperationContext(settings, either_store, clock, absent, absent, LiveTail(either_store))


@pytest.fixture
async def context(empty: OperationContext, either_store: SqlStore) -> OperationContext:
    await _fill(either_store)
    return empty


async def _fill(store: SqlStore) -> None:
    """Create two organisations, and a proxy, application, ruleset and operator for each name in NAMES."""
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


async def _found(context: OperationContext, name: ListName, actor: Actor = ADA, /, **members: Any) -> Any:
    operation, request, _, _ = LISTS[name]
    return await operation.perform(context, actor, request(**members))


async def _ids(context: OperationContext, name: ListName, actor: Actor = ADA, **members: Any) -> list[str]:
    _, _, rows, row_id = LISTS[name]
    found = await _found(context, name, actor, **members)
    return [getattr(each, row_id) for each in getattr(found, rows)]


async def _pages(context: OperationContext, name: ListName, **members: Any) -> list[list[str]]:
    """Return a list of ids for each page of the list that the test reads."""
    pages: list[list[str]] = []
    cursors: list[str | None] = [None]  # one for each page
    while True:
        found = await _found(context, name, cursor=cursors[-1], **members)
        assert found.before == sum(map(len, pages))
        pages.append([getattr(each, LISTS[name][3]) for each in getattr(found, LISTS[name][2])])
        assert found.previous == (cursors[-2] if len(cursors) > 1 else None)
        if found.next is None:
            return pages
        cursors.append(found.next)


async def test_the_pages_of_a_list_have_each_row_once_in_order(context: OperationContext) -> None:
    """Each list is sorted by each of its columns, in both directions.

    Rows with equal values in the sorted column must be sorted by name.
    """
    for name in LISTS:
        whole = await _ids(context, name)
        assert [each for page in await _pages(context, name, limit=2) for each in page] == whole
        for sort in SORT_COLUMNS[name]:
            upward = await _pages(context, name, sort=sort, limit=2)
            assert {len(page) for page in upward[:-1]} <= {2}
            flat = [each for page in upward for each in page]
            assert sorted(flat) == sorted(whole)
            assert [flat] == await _pages(context, name, sort=sort, limit=200)
            downward = await _pages(context, name, sort=f"-{sort}", limit=2)
            assert [each for page in downward for each in page] == flat[::-1]
            assert (await _found(context, name, sort=sort, limit=1)).total == len(whole)


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
    await context.store.add_org(Org("org-aaa", "aaa", "base", 1))  # sorts before the cursor
    await context.store.add_org(Org("org-bcd", "bcd", "base", 1))  # sorts after it
    following = await _found(context, "orgs", limit=5, cursor=first.next)
    assert [each.name for each in following.orgs] == ["bcd", "globex"]
    assert (following.next, following.total) == (None, 4)


async def test_a_search_finds_part_of_a_name_or_a_whole_id(context: OperationContext) -> None:
    for name in LISTS:
        one = (await _ids(context, name))[0]
        assert await _ids(context, name, search=one) == [one]
        assert await _ids(context, name, search=one[:-1]) == []
        for search, found in (
            ("EDGE", {"edge", "Edge-2"}),
            ("dge-", {"Edge-2"}),
            ("_1", {"inner_1"}),  # not a wildcard
            ("%", {"inner%1"}),
            ("!", {"inner!1"}),
            ("nothing", set()),
        ):
            result = await _found(context, name, search=search)
            named = {each.name for each in getattr(result, LISTS[name][2])}
            assert named == (found if name != "orgs" else set()), (name, search)
            assert result.total == len(named)
    assert await _ids(context, "apps", search="client-3") == ["app-6"]
    assert await _ids(context, "orgs", search="CM") == ["org-acme"]


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
    counts = await fleet.count.perform(context, OF_ACME, fleet.CountFleet())
    assert (counts.total, counts.no_heartbeat) == (3, 3)
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
    ("given", "said"),
    [
        (
            {"health": "neverSeen"},
            f"health: 'neverSeen' is not allowed: use one of {', '.join(sorted(HEALTH_ORDER))}",
        ),
        ({"limit": 0}, "limit: must be a whole number, at least 1"),
        ({"limit": "many"}, "limit: must be a whole number"),
        ({"limit": 201}, "limit: must be a whole number, at most 200"),
        ({"needsLook": "perhaps"}, "needsLook: must be true or false"),
    ],
)
def test_a_wrong_member_is_refused_in_plain_words(given: dict[str, Any], said: str) -> None:
    with pytest.raises(msgspec.ValidationError) as refused:
        msgspec.convert(given, fleet.ListFleet, strict=False)
    assert validation_problem(refused.value, fleet.ListFleet) == said


async def test_what_can_not_be_meant_is_refused(context: OperationContext) -> None:
    for members, message in (
        (
            {"sort": "secret"},
            "sort: unknown column 'secret': sort by name, org, ruleset, owner, lastSeen, createdAt, with -",
        ),
        ({"cursor": "x"}, "cursor: is not the `next` of a previous page"),
        ({"cursor": "é"}, "cursor: is not the `next` of a previous page"),
        ({"cursor": _cursor(["name", 1, "id"])}, "cursor: is not the `next` of a previous page"),
        ({"cursor": _cursor(["name", "a\0", "id"])}, "cursor: is not the `next` of a previous page"),
        ({"cursor": _cursor(["createdAt", 2**63, "a", "id"]), "sort": "createdAt"}, "is not the `next`"),
        ({"search": "a\0"}, "search: contains a character that no name or ID contains"),
        ({"search": "\ud800"}, "search: contains a character that no name or ID contains"),
    ):
        with pytest.raises(InvalidRequest, match=message):
            await _found(context, "apps", **members)


def _cursor(values: list[object]) -> str:
    return base64.urlsafe_b64encode(json.dumps(values).encode()).decode()


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
        place = {"before": 0, "previous": None, "total": len(whole[name])}
        assert page == {name: whole[name][:1], "next": page["next"], **place}
        rest = (await call(plane, token, "GET", f"{path}?limit=200&cursor={page['next']}")).json
        assert rest == {name: whole[name][1:], "next": None, **place, "before": 1}
    for limit in (0, 201, "many"):
        assert (await call(plane, token, "GET", f"/apps?limit={limit}")).status == 400


# Health in the store, and assessed health


async def _beat(proxy: ProxyClient, **members: Any) -> None:
    body = {**GOOD_HEARTBEAT, "checks": {}, "oldestPendingSeconds": 0, **members}
    assert (await proxy.send(HEARTBEAT, json.dumps(body).encode())).status == 200


class _Proxies:
    """Helper that adds proxies to a store, and stores heartbeats and audit batches of these proxies."""

    def __init__(self, store: SqlStore, clock: FakeClock) -> None:
        self.store = store
        self.clock = clock

    async def add(self, *names: str) -> None:
        await self.store.add_org(Org("org-acme", "acme", "base", 1))
        for name in names:
            await self.store.add_proxy(
                Proxy(name, name, True, 1, None, 1, ("org-acme",)), name.encode(), b"sealed"
            )

    async def apply(self, yaml: str) -> None:
        new = Ruleset("hr", "org-acme", "hr", 1, 1, self.clock.wall_ms())
        await self.store.apply_ruleset(new, yaml, None, None)

    async def beat(self, name: str, *, version: int | None = None, skew_ms: int = 0, **members: Any) -> None:
        rulesets = {} if version is None else {"hr": version}
        body = json.dumps({"rulesets": rulesets, **members})
        said = said_by(30_000, skew_ms, msgspec.json.decode(body, type=Heartbeat))
        await self.store.add_heartbeat(name, body, skew_ms, said)

    async def send(self, name: str, batch_id: str, *seqs: int, content: bytes = b"") -> None:
        ids = [f"{name}-{batch_id}-{seq}" for seq in seqs]
        events = [f'{{"id":"{each}"}}'.encode() for each in ids]
        times = [self.clock.wall_ms()] * len(seqs)
        new = NewBatch(name, "org-acme", batch_id, ids, seqs, times, events, content=content)
        await self.store.commit_batch(new, RateLimits(100, 100))


async def _every_health(proxies: _Proxies) -> None:
    """Create proxies with heartbeats just younger and just older than each age at which health changes.

    The heartbeat interval is 30 s.
    """
    await proxies.add(
        "never", "lost", "stale", "stale-failed", "late", "failed", "degraded", "unconfirmed", "unsent",
        "skewed", "behind", "just-behind", "gap", "reused", "well", "off", "off-gap",
        "ended", "ended-gap", "ended-back",
    )  # fmt: skip
    await proxies.apply("version: 1\n")
    for name in ("lost", "ended", "ended-back"):
        await proxies.beat(name, ended=name != "lost")
    proxies.clock.advance(seconds=210)
    await proxies.beat("stale")
    await proxies.beat("stale-failed", checks={"upstream": {"status": "failed"}})
    await proxies.apply("version: 1 # 2\n")
    proxies.clock.advance(seconds=1)
    await proxies.beat("late")
    proxies.clock.advance(seconds=90)
    await proxies.beat("behind", version=1)
    await proxies.beat("just-behind", version=2)
    await proxies.apply("version: 1 # 3\n")
    await proxies.beat("failed", checks={"upstream": {"status": "failed"}, "sync": {"status": "degraded"}})
    await proxies.beat("degraded", checks={"upstream": {"status": "degraded"}})
    await proxies.beat("unconfirmed", syncAgeSeconds=91)
    await proxies.beat("unsent", oldestPendingSeconds=301)
    await proxies.beat("skewed", skew_ms=60_000)
    await proxies.send("gap", "a", 1, 9)
    for name in ("off-gap", "ended-gap"):
        await proxies.send(name, name, 1, 9)
    await proxies.send("ended-back", "d", 1)
    await proxies.beat("ended-gap", ended=True)
    await proxies.send("reused", "c", 1, content=b"1")
    await proxies.send("reused", "c", 1, 2, content=b"2")
    for name in ("gap", "reused", "well", "off", "off-gap"):
        await proxies.beat(name, version=3)
    for name in ("off", "off-gap"):
        await proxies.store.set_proxy_enabled(name, False)


async def test_the_store_chooses_and_counts_by_health_as_it_is_assessed(
    empty: OperationContext, either_store: SqlStore, clock: FakeClock
) -> None:
    either_store.sign_links(b"k" * 32)
    await _every_health(_Proxies(either_store, clock))
    for seconds in (0, 1, 31, 209):
        clock.advance(seconds=seconds)
        listed = (await _found(empty, "proxies")).proxies
        assessed = {each.name: each.health if each.enabled else "disabled" for each in listed}
        counts = await fleet.count.perform(empty, ADA, fleet.CountFleet())
        assert counts.total == len(listed)
        for health in HEALTH_ORDER:
            chosen = (await _found(empty, "proxies", health=health, limit=200)).proxies
            assert {each.name for each in chosen} == {n for n, h in assessed.items() if h == health}
            assert getattr(counts, health.replace(" ", "_")) == len(chosen)
            assert chosen or seconds, "the first look finds proxies of every health"
        worst_first = (await _found(empty, "proxies", sort="health", limit=200)).proxies
        places = [HEALTH_ORDER.index(assessed[each.name]) for each in worst_first]
        assert places == sorted(places)
        looked_at = {each.name for each in (await _found(empty, "proxies", needs_look=True)).proxies}
        assert looked_at == {n for n, h in assessed.items() if h not in ("ok", "ended", "disabled")} | {
            "off-gap"
        }


async def test_losses_of_a_disabled_proxy_are_for_who_sees_all_of_it(
    empty: OperationContext, either_store: SqlStore, clock: FakeClock
) -> None:
    either_store.sign_links(b"k" * 32)
    proxies = _Proxies(either_store, clock)
    await proxies.add("edge")
    await proxies.send("edge", "a", 1, 9)
    await either_store.set_proxy_enabled("edge", False)
    assert await _ids(empty, "proxies", OF_ACME, needs_look=True) == ["edge"]
    await either_store.add_org(Org("org-globex", "globex", "base", 1))
    await either_store.grant("edge", "org-globex")
    assert await _ids(empty, "proxies", OF_ACME, needs_look=True) == []
    assert await _ids(empty, "proxies", ADA, needs_look=True) == ["edge"]


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
