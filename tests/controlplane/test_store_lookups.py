"""Tests that the store finds rows by id or by name without reading a whole table."""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from controlplane.store.interface import App, Org, Proxy, Ruleset
from controlplane.store.migrate import _migrations, migrate
from controlplane.store.sql_store import SqlStore
from controlplane.store.sqlite_database import SqliteDatabase
from tests.controlplane.two_orgs import NAMES, add_two_orgs

Lookup = Callable[[SqlStore, str], Awaitable[list[object]]]
UNKNOWN = "019a0000-0000-7000-8000-000000000000"


@pytest.fixture
async def store(either_store: SqlStore) -> SqlStore:
    """Create two organisations with a proxy each; their rulesets and applications have equal names."""
    await add_two_orgs(either_store)
    for org in NAMES:
        proxy = Proxy(f"proxy-{org}", f"edge-{org}", True, 1, None, 1, (f"org-{org}",))
        await either_store.add_proxy(proxy, org.encode(), b"sealed")
    return either_store


async def _orgs(store: SqlStore, reference: str) -> list[str]:
    return [each.org_id for each in await store.find_orgs(reference)]


async def _proxies(store: SqlStore, reference: str) -> list[str]:
    return [each.proxy_id for each in await store.find_proxies(reference)]


async def _rulesets(store: SqlStore, reference: str) -> list[str]:
    return [each.ruleset_id for each in await store.find_rulesets(reference, None)]


async def _apps(store: SqlStore, reference: str) -> list[str]:
    return [each.app_id for each in await store.find_apps(reference, None)]


@pytest.mark.parametrize(
    ("find", "reference", "found"),
    [
        (_orgs, "org-acme", ["org-acme"]),
        (_orgs, "acme", ["org-acme"]),
        (_proxies, "proxy-acme", ["proxy-acme"]),
        (_proxies, "edge-acme", ["proxy-acme"]),
        (_rulesets, "ruleset-acme", ["ruleset-acme"]),
        (_rulesets, "hr", ["ruleset-acme", "ruleset-globex"]),
        (_apps, "app-acme", ["app-acme"]),
        (_apps, "client-acme", ["app-acme"]),
        (_apps, "payroll", ["app-acme", "app-globex"]),
    ],
)
async def test_a_row_is_found_by_each_of_its_keys(
    store: SqlStore, find: Lookup, reference: str, found: list[str]
) -> None:
    assert sorted(map(str, await find(store, reference))) == found


async def test_a_key_is_compared_whole_and_with_its_case(store: SqlStore) -> None:
    others = ("", UNKNOWN, "%", "acm", "ACME", "Edge-Acme", "HR", "Payroll", "acme ", "acme\0")
    for find in (_orgs, _proxies, _rulesets, _apps):
        for reference in (*others, "\ud800", "ac\udc80me"):
            assert await find(store, reference) == []


async def test_a_look_up_in_an_organisation_returns_only_rows_of_it(store: SqlStore) -> None:
    for reference in ("hr", "ruleset-acme"):
        found = await store.find_rulesets(reference, "org-acme")
        assert [each.ruleset_id for each in found] == ["ruleset-acme"]
    for reference in ("payroll", "app-acme", "client-acme"):
        assert [each.app_id for each in await store.find_apps(reference, "org-acme")] == ["app-acme"]
    assert await store.find_rulesets("ruleset-acme", "org-globex") == []
    assert await store.find_apps("app-acme", "org-globex") == []
    assert await store.find_apps("client-acme", "org-globex") == []


async def test_a_row_whose_name_is_its_id_is_returned_once(store: SqlStore) -> None:
    """A store from an earlier release can contain an object whose name equals its id."""
    await store.add_org(Org("same", "same", "base", 1))
    await store.add_proxy(Proxy("same", "same", True, 1, None, 1, ()), b"same", b"sealed")
    await store.apply_ruleset(Ruleset("same", "same", "same", 1, 0, 1), "version: 1\n", None, None)
    await store.add_app(App("same", "same", "same", "same", "same", "same", True, 1, ()))
    assert await _orgs(store, "same") == ["same"]
    assert await _proxies(store, "same") == ["same"]
    assert await _rulesets(store, "same") == ["same"]
    assert await _apps(store, "same") == ["same"]


async def test_a_name_that_is_the_id_of_another_row_finds_both(store: SqlStore) -> None:
    await store.add_org(Org("org-other", "org-acme", "base", 1))
    assert sorted(await _orgs(store, "org-acme")) == ["org-acme", "org-other"]


async def test_a_found_row_is_the_row_of_the_list(store: SqlStore) -> None:
    assert await store.find_orgs("acme") == [(await store.orgs())[0]]
    assert await store.find_proxies("edge-acme") == [(await store.proxies(None))[0]]
    assert await store.find_rulesets("hr", None) == await store.rulesets(None)
    assert await store.find_apps("payroll", None) == await store.apps(None)


async def test_the_proxies_of_an_organisation_are_those_that_serve_it(store: SqlStore) -> None:
    await store.grant("proxy-globex", "org-acme")
    assert [each.name for each in await store.proxies("org-acme")] == ["edge-acme", "edge-globex"]
    assert [each.name for each in await store.proxies("org-globex")] == ["edge-globex"]
    assert [each.name for each in await store.proxies(None)] == ["edge-acme", "edge-globex"]
    assert await store.proxies("org-other") == []
    (shared,) = await store.find_proxies("edge-globex")
    assert shared.org_ids == ("org-acme", "org-globex")


@contextmanager
def _statements(store: SqlStore) -> Iterator[list[str]]:
    """Record the SQL statements that the store's read connections execute within the `with` block."""
    seen: list[str] = []
    database = store._database
    assert isinstance(database, SqliteDatabase)
    connections = (database._reader.raw, database._statements._conn)
    for each in connections:
        each.set_trace_callback(seen.append)
    yield seen
    for each in connections:
        each.set_trace_callback(None)


@pytest.mark.parametrize(
    "look_up",
    [
        lambda store: store.find_orgs("acme"),
        lambda store: store.find_proxies("edge-acme"),
        lambda store: store.find_rulesets("hr", None),
        lambda store: store.find_rulesets("hr", "org-acme"),
        lambda store: store.find_apps("payroll", None),
        lambda store: store.find_apps("payroll", "org-acme"),
        lambda store: store.rulesets("org-acme"),
        lambda store: store.apps("org-acme"),
        lambda store: store.proxies("org-acme"),
    ],
)
@pytest.mark.parametrize("either_store", ["sqlite"], indirect=True)
async def test_a_look_up_reads_no_whole_table(
    store: SqlStore, look_up: Callable[[SqlStore], Awaitable[list[object]]]
) -> None:
    """SQLite's query plan calls a read of a complete table a SCAN."""
    with _statements(store) as seen:
        assert await look_up(store)
    selects = [each for each in seen if each.startswith("SELECT")]
    assert selects
    for each in selects:
        plan = [row[3] for row in await store._database.fetch(f"EXPLAIN QUERY PLAN {each}")]
        assert [step for step in plan if step.startswith("SCAN")] == []
        assert any(step.startswith("SEARCH") for step in plan)


def test_the_store_of_an_earlier_release_gets_the_indexes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "store.db"
    wanted = {"rulesets_name", "apps_name", "proxy_orgs_org"}

    def indexes() -> set[str]:
        with closing(sqlite3.connect(path)) as connection:
            rows = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'index'").fetchall()
        return {name for (name,) in rows}

    with monkeypatch.context() as patched:
        patched.setattr("controlplane.store.migrate._migrations", lambda: _migrations()[:12])
        migrate(path)
    assert not wanted & indexes()
    migrate(path)
    assert wanted <= indexes()


async def test_a_write_returns_the_row_as_it_is_after_it(store: SqlStore) -> None:
    await store.apply_ruleset(Ruleset("new", "org-acme", "new", 1, 0, 1), "version: 1\n", None, None)
    assert (await store.set_retention("org-acme", "7y")).retention == "7y"
    assert (await store.set_proxy_enabled("proxy-acme", False)).enabled is False
    assert (await store.grant("proxy-acme", "org-globex")).org_ids == ("org-acme", "org-globex")
    assert (await store.revoke("proxy-acme", "org-acme")).org_ids == ("org-globex",)
    assert (await store.set_app_enabled("app-acme", False)).enabled is False
    assert (await store.bind_app("app-acme", "new")).ruleset_name == "new"
    assert (await store.set_shadow("app-acme", "ruleset-acme")).shadow_ruleset_name == "hr"
    promoted = await store.promote_shadow("app-acme", "hr")
    assert (promoted.ruleset_name, promoted.shadow_ruleset_name) == ("hr", None)
    assert await store.find_apps("app-acme", None) == [promoted]
