"""Tests of the cached sync version: it stays valid until a process changes data that the proxy receives."""

from __future__ import annotations

import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

from controlplane.store.interface import App, AppSecret, NewKeys, Proxy, RateLimits, Ruleset, Stop
from controlplane.store.sql_store import SqlStore
from controlplane.store.sqlite import SqliteStore
from tests.controlplane.new_store import open_new_store
from tests.controlplane.plane import FakeClock
from tests.controlplane.two_orgs import add_two_orgs
from tests.fakes.postgres import PostgresServer

LIMITS = RateLimits(org=40, proxy=60)  # two proxies overflow one's limit, three overflow two's
EDGE = "proxy-acme"

CHANGES: dict[str, Callable[[SqlStore], Awaitable[object]]] = {
    "an organisation more": lambda store: store.grant(EDGE, "org-globex"),
    "an organisation less": lambda store: store.revoke(EDGE, "org-globex"),
    "a new version of the rules": lambda store: store.apply_ruleset(
        Ruleset("ruleset-acme", "org-acme", "hr", 1, 0, 1), "version: 1\nname: hr\n", None, None
    ),
    "an older version of the rules": lambda store: store.roll_back("ruleset-acme", None, None, None),
    "another ruleset": lambda store: store.apply_ruleset(
        Ruleset("ruleset-new", "org-acme", "new", 1, 0, 1), "version: 1\n", None, None
    ),
    "an app bound to it": lambda store: store.bind_app("app-acme", "ruleset-new"),
    "a shadow": lambda store: store.set_shadow("app-acme", "ruleset-acme"),
    "an app without a shadow": lambda store: store.set_shadow("app-acme", None),
    "a disabled app": lambda store: store.set_app_enabled("app-acme", False),
    "an app more": lambda store: store.add_app(
        App("app-2", "org-acme", "crm", "client-2", "ruleset-acme", "hr", True, 1, (AppSecret(1, "x", None),))
    ),
    "another secret": lambda store: store.rotate_secret("app-2", "y", 60_000, None),
    "a stop": lambda store: store.add_stop(Stop(None, None, "why", "ada", 1)),
    "a stop that is lifted": lambda store: store.lift_stop(None, None),
    "more proxies": lambda store: store.add_proxy(proxy("other", 2), b"2", b"s"),
    "fewer proxies": lambda store: store.set_proxy_enabled("proxy-other", False),
}


def proxy(name: str, number: int) -> Proxy:
    return Proxy(f"proxy-{name}", f"edge-{name}", True, 1, None, 1, ("org-acme",))


async def asked(store: SqlStore, *known: str) -> str:
    """Return the version of the sync content that a proxy gets if its request names the versions `known`."""
    content = await store.sync_content(EDGE, known, LIMITS)
    return content if isinstance(content, str) else content.version


async def test_a_version_is_remembered_until_what_the_proxy_receives_is_changed(
    either_store: SqlStore, clock: FakeClock
) -> None:
    await add_two_orgs(either_store)
    await either_store.add_proxy(proxy("acme", 1), b"1", b"s")
    version = await asked(either_store)
    for what, change in CHANGES.items():
        assert await asked(either_store, version) == await asked(either_store, version) == version, what
        await change(either_store)
        assert await either_store.sync_version(EDGE, LIMITS) is None, what
        version = await asked(either_store, version)
    clock.advance(seconds=61)  # the replaced secret has ended
    assert await asked(either_store, version) != version


async def test_a_change_by_another_process_counts_at_once(tmp_path: Path, clock: FakeClock) -> None:
    server = await open_new_store(tmp_path / "store.db", clock)
    command = await SqliteStore.open(tmp_path / "store.db", clock)
    await add_two_orgs(command)
    await command.add_proxy(proxy("acme", 1), b"1", b"s")
    version = await asked(server)
    assert await asked(server, version) == version
    await command.set_app_enabled("app-acme", False)
    assert await asked(server, version) != version
    assert (await server.credentials(b"1")) == (await server.credentials(b"1")) is not None
    await command.grant(EDGE, "org-globex")
    held = await server.credentials(b"1")
    assert held is not None
    assert held.org_ids == {"org-acme", "org-globex"}
    await command.set_proxy_credentials(EDGE, NewKeys(b"new", b"s"), None)
    assert await server.credentials(b"1") is None
    assert await server.credentials(b"new") is not None
    await command.set_proxy_enabled(EDGE, False)
    assert await server.credentials(b"new") is None
    await server.close()
    await command.close()


async def apply(store: SqlStore, text: str) -> None:
    await store.apply_ruleset(Ruleset("ruleset-acme", "org-acme", "hr", 1, 0, 1), text, None, None)


async def test_a_stop_counts_after_the_database_went_back_beside_a_running_server(
    postgres: PostgresServer, clock: FakeClock
) -> None:
    from controlplane.store.postgres import PostgresStore

    with postgres.new_database("live", "migrated") as url:
        server = await PostgresStore.open(url, clock)
        await add_two_orgs(server)
        await server.add_proxy(proxy("acme", 1), b"1", b"s")
        await asked(server)
        postgres.end_sessions("live")
        with postgres.new_database("backup", "live"):
            await apply(server, "version: 1\nname: lost\n")
            lost = await asked(server)
            assert await asked(server, lost) == lost
            assert await server.credentials(b"1") is not None
            postgres.restore("live", "backup")
        await server.set_proxy_enabled(EDGE, False)  # this makes as many changes as were lost
        assert await asked(server, lost) != lost
        assert await server.credentials(b"1") is None
        await server.close()


async def test_another_text_is_another_version_though_a_restored_backup_gives_it_the_same_number(
    tmp_path: Path, clock: FakeClock
) -> None:
    path, backup = tmp_path / "store.db", tmp_path / "backup.db"
    server = await SqliteStore.open(path, clock)
    await add_two_orgs(server)
    await server.add_proxy(proxy("acme", 1), b"1", b"s")
    await asked(server)
    await server.close()
    shutil.copy(path, backup)
    versions: list[str] = []
    for verdict in ("allow", "block"):
        shutil.copy(backup, path)
        server = await SqliteStore.open(path, clock)
        await apply(server, f"version: 1\nname: hr\ndefault: {verdict}\n")
        versions.append(await asked(server, *versions))
        await server.close()
    assert versions[0] != versions[1]
