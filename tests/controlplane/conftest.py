"""Fixtures that give each test its own control plane."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from controlplane.store.sql_store import SqlStore
from tests.controlplane.held_runs import Latch
from tests.controlplane.new_store import open_new_store
from tests.controlplane.operator_commands import Commands, commands_at
from tests.controlplane.plane import CHEAP, FakeClock, Plane, ProxyClient, started
from tests.fakes.postgres import NoServer, PostgresServer, postgres_server
from tests.patience import PATIENCE_SECONDS


@pytest.fixture(autouse=True)
def cheap_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace password hashes by cheap hashes, because real hashes took a sixth of these tests' time."""
    monkeypatch.setattr("controlplane.secrets._hasher", lambda: CHEAP)


@pytest.fixture(autouse=True)
def patient_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let console pages wait for their counts on a busy machine. Tests of this limit set it again."""
    monkeypatch.setattr("controlplane.console.outcomes._WITHIN_SECONDS", PATIENCE_SECONDS)
    monkeypatch.setattr("controlplane.console.search._COUNTS_WITHIN_SECONDS", PATIENCE_SECONDS)
    monkeypatch.setattr("controlplane.operations.stop_effects._COUNTED_WITHIN_SECONDS", PATIENCE_SECONDS)


@pytest.fixture(autouse=True)
def unchanged_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restore the file mode mask after a command that ran in this process."""
    monkeypatch.setattr("controlplane.cli.keep_to_itself", lambda: None)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run the tests of a module once for each engine in the module's `ENGINES`, if the tests use a store."""
    engines = getattr(metafunc.module, "ENGINES", ())
    if engines and "engine" in metafunc.fixturenames:
        metafunc.parametrize("engine", engines, indirect=True)


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """Yield a PostgreSQL server with a database `migrated` that has the tables of the store."""
    try:
        with postgres_server() as server:
            from controlplane.store.postgres_database import bring_up_at

            with server.new_database("migrated") as url:
                bring_up_at(url)
                yield server
    except NoServer as why:
        pytest.skip(f"no PostgreSQL server: {why}")


@pytest.fixture
def postgres_url(
    postgres: PostgresServer, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """Return the URL of a database with the store's tables.

    The time limits in this database use the fake clock.
    """
    from controlplane.store.postgres_connection import PostgresConnection

    monkeypatch.setattr(PostgresConnection, "steady_ms", lambda _: clock.steady_ms())
    yield postgres.url("migrated")
    postgres.empty("migrated")


@pytest.fixture(params=["sqlite", "postgres"])
async def either_store(
    request: pytest.FixtureRequest, tmp_path: Path, clock: FakeClock
) -> AsyncIterator[SqlStore]:
    """Yield an empty store. Each test that uses this fixture runs on SQLite and on PostgreSQL."""
    opened: SqlStore
    if request.param == "sqlite":
        opened = await open_new_store(tmp_path / "store.db", clock)
    else:
        url = request.getfixturevalue("postgres_url")
        from controlplane.store.postgres import PostgresStore

        opened = await PostgresStore.open(url, clock)
    yield opened
    await opened.close()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def engine(request: pytest.FixtureRequest) -> dict[str, str]:
    """Return the settings sections for SQLite, or for the engine that the test names."""
    if getattr(request, "param", "sqlite") == "sqlite":
        return {}
    url = request.getfixturevalue("postgres_url")
    return {"Store": f'Url = "{url}"', "SearchIndex": 'Kind = "postgresql"'}


@pytest.fixture
async def plane(tmp_path: Path, clock: FakeClock, engine: dict[str, str]) -> AsyncIterator[Plane]:
    async with started(tmp_path, clock, **engine) as plane:
        yield plane


@pytest.fixture
async def proxy(plane: Plane) -> ProxyClient:
    """A client that acts as a proxy of the organisation `acme`."""
    await plane.org("acme")
    return await plane.proxy("edge-1", "acme")


@pytest.fixture
async def commands(plane: Plane, tmp_path: Path) -> Commands:
    """Start a server whose first operator was created by a command on the store's host."""
    return await commands_at(plane, tmp_path)


@pytest.fixture
def held(tmp_path: Path) -> Iterator[Latch]:
    """Yield a latch that blocks functions in other processes until the test releases the latch or ends."""
    latch = Latch(tmp_path)
    try:
        yield latch
    finally:
        latch.release()
