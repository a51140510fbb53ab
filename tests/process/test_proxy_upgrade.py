"""Tests of an upgrade to another version under load: no request fails, and each request has its event.

A version that can't start never replaces the running version.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
import re
import shutil
import signal
import socket
from pathlib import Path

import pytest

from tests.fakes.ports import this_program
from tests.fakes.system import CODE, System
from tests.process.proxy_parts import (
    LONG,
    Load,
    alive,
    assert_no_gap,
    client_of,
    events,
    kill_control_plane,
    log_of,
    processes,
    readiness,
    stored_paths,
    until,
    whole_system,
)
from tests.process.test_proxy_exhausted import settled
from tests.process.test_proxy_start import change, config, refused_with, run

__all__ = ["config"]
pytestmark = [pytest.mark.process, pytest.mark.timeout(1800 if LONG else 300)]

UPGRADES = 50 if LONG else 1


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """Return the directory with a copy of the installed proxy.

    A test may replace the copied proxy by another version of the proxy.
    """
    installed = tmp_path / "installed"
    shutil.copytree(CODE / "proxy", installed / "proxy", ignore=shutil.ignore_patterns("__pycache__"))
    for library in CODE.glob("*.so"):
        shutil.copy(library, installed)
    return installed


_installed = itertools.count(1_700_000_000)


def install(code: Path, version: str, more: str = "") -> None:
    file = code / "proxy" / "__init__.py"
    file.write_text(f'"""Another version."""\n\n__version__ = "{version}"\n{more}', "utf-8")
    # Python's cache of compiled code treats files with the same size and the same second of change as equal.
    moment = next(_installed)
    os.utime(file, (moment, moment))


def upgrade(system: System) -> None:
    os.kill(system.proxy.process.pid, signal.SIGUSR2)


async def runs(system: System, version: str, seconds: float = 40) -> None:
    """Wait until all processes of the proxy run the version `version`."""
    await until(lambda: f"version {version} takes over" in log_of(system), seconds)
    await until(lambda: "reloaded" in log_of(system).rpartition(f"version {version} takes over")[2], seconds)


async def test_upgrades_and_ways_back_under_load_fail_no_request(tmp_path: Path, code: Path) -> None:
    async with whole_system(tmp_path, proxy_code=code) as system:
        before = processes(system)
        kept, single = Load(system, clients=4), Load(system, clients=4, kept=False)
        async with client_of(system) as slow, kept, single:
            for at in range(UPGRADES):
                version = f"9.{at}" if at % 2 == 0 else f"0.{at}"
                await kept.responses(50)
                in_flight = asyncio.create_task(slow.get("/v1.0/slow/5000"))
                await system.graph.received(1)
                install(code, version)
                upgrade(system)
                await runs(system, version)
                assert (await in_flight).status == 200
                slow.close()
            await kept.responses(50)
            await single.responses(50)
        for load in (kept, single):
            assert (load.broken, load.refused_connects, load.idle_closes) == ([], 0, 0)
            assert load.statuses() == {200}
            await until(lambda responded=set(load.responded): responded <= stored_paths(system))  # type: ignore[misc]
        assert system.proxy.process.returncode is None  # one process id from first to last
        assert not any(alive(pid) for pid in before.values())
        assert sorted(processes(system)) == ["agent", "worker-0", "worker-1"]
        assert_no_gap(events(system))
        assert [event for event in events(system) if event["status"] != 200] == []
        await until(lambda: readiness(system)["ready"])
        assert readiness(system)["checks"]["workers"] == {"status": "ok", "detail": ""}
        system.proxy.process.send_signal(signal.SIGTERM)
        assert await system.proxy.process.wait() == 0
    assert "Traceback" not in log_of(system)


async def test_an_upgrade_to_fewer_workers_while_the_control_plane_is_away_loses_nothing(
    tmp_path: Path, code: Path
) -> None:
    async with whole_system(tmp_path, proxy_code=code, workers=3) as system:
        good = system.proxy_config.read_text("utf-8")
        await kill_control_plane(system)
        async with Load(system, clients=4, kept=False) as load:
            for count in (1, 2) if LONG else (1,):
                settings = good.replace("Workers = 3", f"Workers = {count}")
                assert settings != good
                system.proxy_config.write_text(settings, "utf-8")
                install(code, f"9.{count}")
                upgrade(system)
                await runs(system, f"9.{count}")
                assert sorted(processes(system)) == ["agent", *(f"worker-{slot}" for slot in range(count))]
                await load.responses(50)
        assert (load.broken, load.refused_connects, load.idle_closes) == ([], 0, 0)
        assert load.statuses() == {200}
        await system.start_control_plane()
        await until(lambda: set(load.responded) <= stored_paths(system))
        assert_no_gap(events(system))


async def test_a_version_that_can_not_start_changes_nothing(tmp_path: Path, code: Path) -> None:
    broken = {
        'raise ImportError("half of it is missing")\n': "half of it is missing",
        "this is no Python\n": "SyntaxError",
        "import os\nos._exit(3)\n": "ended with status 3",
    }
    async with whole_system(tmp_path, proxy_code=code, workers=1) as system, client_of(system) as client:
        before = processes(system)
        for at, (more, report) in enumerate(broken.items()):
            install(code, "9.9", more)
            upgrade(system)
            await until(
                lambda times=at + 1: log_of(system).count("--check of the new version ended") == times  # type: ignore[misc]
            )
            assert report in log_of(system)
        install(code, "9.9")
        good = system.proxy_config.read_text("utf-8")
        system.proxy_config.write_text(good.replace("[Token]", "[Token]\nLifetimeSecond = 9"), "utf-8")
        upgrade(system)
        await until(lambda: "--check of the new version ended with status 2" in log_of(system))
        assert "did you mean LifetimeSeconds" in log_of(system)
        assert processes(system) == before
        assert (await client.get("/v1.0/echo/1")).status == 200


async def test_a_version_that_could_not_have_what_its_settings_want_changes_nothing(tmp_path: Path) -> None:
    """After the new version has replaced the old version, a rollback is not possible."""

    def refusals(system: System) -> int:
        return log_of(system).count("--check of the new version ended with status 2")

    async with whole_system(tmp_path, workers=1) as system, client_of(system) as client:
        before, good = processes(system), system.proxy_config.read_text("utf-8")
        with socket.create_server(("127.0.0.1", 0)) as other:
            address = f"127.0.0.1:{other.getsockname()[1]}"
            listen = re.sub(r'\nListen = (".*")', rf'\nListen = [\1, "{address}"]', good, count=1)
            system.proxy_config.write_text(listen, "utf-8")
            upgrade(system)
            await until(lambda: refusals(system) == 1)
            assert f"Proxy.Listen: {address} is in use by {this_program()}" in log_of(system)
            admin = good.replace(system.admin_url.removeprefix("http://"), address)
            system.proxy_config.write_text(admin, "utf-8")
            upgrade(system)
            await until(lambda: refusals(system) == 2)
            assert f"Admin.Listen: {address} is in use by {this_program()}" in log_of(system)
        # In another directory event numbers would start again, and this backlog would never be delivered.
        elsewhere = tmp_path / "elsewhere"
        system.proxy_config.write_text(good.replace(f"{tmp_path}/audit", str(elsewhere)), "utf-8")
        upgrade(system)
        await until(lambda: refusals(system) == 3)
        assert f"Audit.LocalRetentionPath: {elsewhere}: an upgrade keeps {tmp_path}/audit" in log_of(system)
        assert not elsewhere.exists()
        assert processes(system) == before
        assert (await client.get("/v1.0/echo/1")).status == 200
        system.proxy_config.write_text(good, "utf-8")
        upgrade(system)
        await until(lambda: "reloaded" in log_of(system))


async def test_without_an_interpreter_nothing_changes(tmp_path: Path) -> None:
    """The Python interpreter is missing, as happens for a moment while its directory is replaced."""
    (tmp_path / "shim").mkdir()
    (tmp_path / "shim" / "sitecustomize.py").write_text("import sys\nsys.executable = '/nowhere/python'\n")
    environment = {"PYTHONPATH": str(tmp_path / "shim")}
    async with whole_system(tmp_path, workers=1, environment=environment) as system:
        before = processes(system)
        async with client_of(system) as client:
            for times in (1, 2):  # the next worker is tried as well
                upgrade(system)
                await until(lambda times=times: log_of(system).count("/nowhere/python") == times)  # type: ignore[misc]
            assert "keeps running: cannot start --check of the new version" in log_of(system)
            assert processes(system) == before
            assert (await client.get("/v1.0/echo/1")).status == 200
    assert "Traceback" not in log_of(system)


async def test_workers_of_a_version_that_can_not_serve_never_replace_those_that_do(
    tmp_path: Path, code: Path
) -> None:
    """The workers of the new version exit immediately after their start.

    The old version's workers continue to serve, until a fixed version replaces the old and the faulty
    version.
    """
    async with whole_system(tmp_path, proxy_code=code) as system, Load(system, clients=4) as load:
        worker = code / "proxy" / "worker" / "main.py"
        good = worker.read_text("utf-8")
        old = {pid for name, pid in processes(system).items() if name != "agent"}
        broken = good.replace("    async def run(\n", "    async def run_not(\n", 1)
        assert broken != good
        worker.write_text(broken, "utf-8")
        install(code, "9.8")
        upgrade(system)
        await until(lambda: log_of(system).count("worker-0 failed") >= 2)
        await load.responses(100)
        assert all(alive(pid) for pid in old)
        worker.write_text(good, "utf-8")
        install(code, "9.9")
        upgrade(system)
        await runs(system, "9.9")
        await load.responses(100)
        assert not any(alive(pid) for pid in old)
    assert (load.broken, load.refused_connects, load.idle_closes) == ([], 0, 0)
    assert load.statuses() == {200}


async def test_an_upgrade_that_can_not_serve_takes_mended_settings_at_sighup(
    tmp_path: Path, code: Path
) -> None:
    """An upgrade can be repeated: old workers serve until the workers of the new version can serve."""
    reload = code / "proxy" / "supervisor" / "reload.py"
    change(reload, "RELOAD_SECONDS: Final = 30.0", "RELOAD_SECONDS: Final = 2.0")
    async with whole_system(tmp_path, proxy_code=code) as system, Load(system, clients=2) as load:
        old, held = processes(system, "worker").values(), await settled(system)
        good = system.proxy_config.read_text("utf-8")
        system.proxy_config.write_text(good.replace('ClientSecret = "', 'ClientSecret = "not-'), "utf-8")
        for times, number in enumerate((signal.SIGUSR2, signal.SIGHUP, signal.SIGHUP), 1):
            os.kill(system.proxy.process.pid, number)
            await until(
                lambda times=times: log_of(system).count("can't serve; the old workers keep running") == times  # type: ignore[misc]
            )
            assert all(alive(pid) for pid in old)
        system.proxy_config.write_text(good, "utf-8")
        os.kill(system.proxy.process.pid, signal.SIGHUP)
        await until(lambda: "proxy.supervisor: reloaded" in log_of(system))
        assert not any(alive(pid) for pid in old)
        assert sorted(processes(system)) == ["agent", "worker-0", "worker-1"]
        await until(lambda: readiness(system)["ready"])
        assert len(await settled(system)) == len(held)
        upgrade(system)
        await until(lambda: log_of(system).count("proxy.supervisor: reloaded") == 2)
        await load.responses(20)
    assert (load.broken, load.refused_connects, load.statuses()) == ([], 0, {200})
    assert "Traceback" not in log_of(system)


async def test_an_agent_that_hangs_delays_an_upgrade_no_longer_than_any_stop(tmp_path: Path) -> None:
    """A hanging agent gets less time than draining workers before the supervisor kills it.

    If no agent runs, the proxy cannot renew its upstream tokens.
    """
    environment = {"Proxy__DrainSeconds": "3600"}
    async with whole_system(tmp_path, environment=environment) as system, Load(system, clients=2) as load:
        os.kill(processes(system)["agent"], signal.SIGSTOP)
        upgrade(system)
        await until(lambda: "killed agent: it did not end in time" in log_of(system), 20)
        await until(lambda: readiness(system)["ready"])
        await load.responses(50)
        assert "can't serve" not in log_of(system)
    assert (load.broken, load.statuses()) == ([], {200})


@pytest.mark.skipif(not LONG, reason="a minute and more: GRAPHWARD_LONG=1")
async def test_kills_amid_upgrades_lose_and_double_no_event(tmp_path: Path, code: Path) -> None:
    chance = random.Random(17)
    async with whole_system(tmp_path, proxy_code=code) as system:
        async with Load(system, clients=4) as load:
            for at in range(20):
                install(code, f"9.{at}")
                upgrade(system)
                await asyncio.sleep(chance.uniform(0, 4))
                victims = {**processes(system), "supervisor": system.proxy.process.pid}
                victim = chance.choice(sorted(victims))
                with contextlib.suppress(ProcessLookupError):
                    os.kill(victims[victim], signal.SIGKILL)
                if victim == "supervisor":
                    await system.proxy.process.wait()
                    await until(lambda gone=victims: not any(alive(pid) for pid in gone.values()))  # type: ignore[misc]
                    await system.start_proxy()
                await load.responses(20)
        served = {path for path, status in load.responded.items() if status == 200}
        await until(lambda: served <= stored_paths(system))
        assert load.statuses() <= {200, 503}
        found = events(system)
        assert_no_gap(found)
        assert len({event["id"] for event in found}) == len(found)


async def test_a_worker_that_hangs_before_it_is_ready_is_replaced(tmp_path: Path, code: Path) -> None:
    """Only the connections in the hanging worker's own queue wait for the replacement worker."""
    hangs = tmp_path / "hangs"
    child = code / "proxy" / "supervisor" / "child.py"
    change(child, "START_SECONDS: Final = 60.0", "START_SECONDS: Final = 5.0")
    begins = "        loop.add_signal_handler(signal.SIGTERM, self._stop.set)\n"
    stops = f"        if os.path.exists({str(hangs)!r}):\n            os.kill(os.getpid(), signal.SIGSTOP)\n"
    change(code / "proxy" / "worker" / "main.py", begins, begins + stops)
    async with whole_system(tmp_path, proxy_code=code) as system, client_of(system) as client:
        hangs.touch()
        os.kill(processes(system)["worker-0"], signal.SIGKILL)
        await until(lambda: "replacing worker-0: it does not respond" in log_of(system))
        hangs.unlink()
        await until(lambda: log_of(system).count("worker-0 ended with") == 2)
        await until(lambda: readiness(system)["checks"]["workers"] == {"status": "ok", "detail": ""})
        for at in range(20):
            client.close()
            assert (await client.get(f"/v1.0/echo/{at}")).status == 200
    assert "Traceback" not in log_of(system)


# -- one proxy for each directory ---------------------------------------------------------------------


async def test_a_second_proxy_on_the_directory_of_one_that_runs_does_not_start(
    tmp_path: Path, config: Path
) -> None:
    (tmp_path / "first").mkdir()
    async with whole_system(tmp_path / "first") as system, client_of(system) as client:
        directory = system.directory / "audit"
        done = await asyncio.to_thread(run, config, Audit__LocalRetentionPath=str(directory))
        refused_with(done, "Audit.LocalRetentionPath", str(directory), "another proxy", status=1)
        for at in range(20):
            assert (await client.get(f"/v1.0/echo/{at}")).status == 200
        await until(lambda: {f"/v1.0/echo/{at}" for at in range(20)} <= stored_paths(system))
        assert_no_gap(events(system))
